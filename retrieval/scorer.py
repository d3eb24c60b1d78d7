"""The only view a searcher has of a similarity: scores of B queries with N items, counted and cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from simzoo.core.reps import Ragged, Reps, num_rows, take, to_device
from simzoo.retrieval.finite import NotFiniteError
from simzoo.retrieval.topk import Rows as Rows
from simzoo.retrieval.topk import Running, top_columns, top_order
from simzoo.retrieval.topk import Scores as Scores

__all__ = ["ListScorer", "Scorer", "SimilarityScorer"]

PAIRS = 65_536  # pairs scored at once
PRODUCTS = 1 << 22  # inner products at once, which hold nothing but themselves
EXTRA = 64  # items beyond the k-th that are looked at for ties
SMALL = 1 << 12  # items at once, where vectors are cast to float64


class Scorer:
    """Scores pairs of one batch of queries, computes each distinct pair once, and counts what it computed.

    The cache holds what was scored and no more, and goes with the batch. Over a similarity that compares the candidates
    of a list with each other it is a `ListScorer`, which keeps nothing.

    Args:
        score_pairs: function of (query rows (P,), item rows (P,)) to P scores.
        num_queries: B.
        num_items: N.
        chunk: most pairs given to the function at once; what came before is kept when a later chunk raises.

    Attributes:
        calls: (B,) int64, distinct pairs computed for each query.
        representation_bytes: of the queries' representations; 0 where there are none.
        queries: the queries' representations, for searchers that read them; None where there are none.
    """

    pointwise: ClassVar[bool] = True
    """Whether a score depends on its pair alone, so that single pairs can be scored."""

    def __init__(
        self, score_pairs: Callable[[Rows, Rows], NDArray[Any]], num_queries: int, num_items: int, chunk: int = PAIRS
    ) -> None:
        if chunk < 1:
            raise ValueError(f"chunk is the number of pairs scored at once, at least 1; got {chunk}")
        self._score_pairs = score_pairs
        self.num_queries = num_queries
        self.num_items = num_items
        self.chunk = chunk
        self.calls = np.zeros(num_queries, dtype=np.int64)
        self.representation_bytes = 0
        self.queries: Reps | None = None
        self._pairs = np.empty(0, dtype=np.int64)  # query row * N + item row of what is known, ascending
        self._found = np.empty(0, dtype=np.float32)

    def __call__(self, query_rows: Rows, item_rows: Rows) -> Scores:
        """Scores (P,) float32 of P pairs.

        Raises:
            IndexError: a row that does not exist.
            FloatingPointError: the function returned NaN or an infinity.
        """
        query_rows, item_rows = _rows(query_rows, "query"), _rows(item_rows, "item")
        self._check(query_rows, item_rows)
        pairs = query_rows * self.num_items + item_rows
        new = pairs[~self._known(pairs)]
        if new.size:
            self._compute_new(new if (new[1:] > new[:-1]).all() else np.unique(new))
        found: Scores = self._found[np.searchsorted(self._pairs, pairs)]
        return found

    def _known(self, pairs: Rows) -> NDArray[np.bool_]:
        if not self._pairs.size:
            return np.zeros(len(pairs), dtype=bool)
        places = np.searchsorted(self._pairs, pairs).clip(max=len(self._pairs) - 1)
        known: NDArray[np.bool_] = self._pairs[places] == pairs
        return known

    def _compute_new(self, pairs: Rows) -> None:
        parts: list[Scores] = []
        try:
            for start in range(0, len(pairs), self.chunk):
                queries, items = np.divmod(pairs[start : start + self.chunk], self.num_items)
                parts.append(self._computed(queries, items))
                self.calls += np.bincount(queries, minlength=self.num_queries)
        finally:  # also when a chunk raises: what came before it has been paid for
            scores = np.concatenate([self._found, *parts])
            joined = np.concatenate([self._pairs, pairs[: len(scores) - len(self._found)]])
            order = np.argsort(joined, kind="stable")  # two ascending runs: a merge
            self._pairs, self._found = joined[order], scores[order]

    def _computed(self, queries: Rows, items: Rows) -> Scores:
        computed = np.asarray(self._score_pairs(queries, items), dtype=np.float32)
        self._check_scores(computed, queries, items)
        return computed

    def score_lists(self, query_rows: Rows, item_rows: Rows) -> Scores:
        """Scores (B, K) of K items for each of B queries; item row -1 is no item and scores -inf.

        Raises:
            ValueError: there is not one list a query.
            IndexError: a row that does not exist.
        """
        query_rows, item_rows = _rows(query_rows, "query"), _rows(item_rows, "item")
        if item_rows.ndim != 2 or query_rows.shape != item_rows.shape[:1]:
            raise ValueError(f"expected B queries and (B, K) items, got {query_rows.shape} and {item_rows.shape}")
        real = item_rows != -1
        scores = np.full(item_rows.shape, -np.inf, dtype=np.float32)
        scores[real] = self(np.broadcast_to(query_rows[:, None], item_rows.shape)[real], item_rows[real])
        return scores

    def lists(self, item_rows: Rows) -> Scores:
        """Scores (B, K) of K items for each query of the batch; see `score_lists`."""
        return self.score_lists(np.arange(self.num_queries), item_rows)

    def score_items(self, item_rows: Rows) -> Scores:
        """Scores (B, M) of every query with the same M items. Each counts as a call; nothing is kept.

        Raises:
            IndexError: a row that does not exist.
        """
        item_rows = _rows(item_rows, "item")
        self._check_range("item", item_rows, self.num_items)
        scores = np.empty(self.num_queries * len(item_rows), dtype=np.float32)
        for start in range(0, len(scores), self.chunk):
            places = np.arange(start, min(start + self.chunk, len(scores)))
            queries, columns = np.divmod(places, len(item_rows))
            scores[places] = self._computed(queries, item_rows[columns])
            self.calls += np.bincount(queries, minlength=self.num_queries)
        return scores.reshape(self.num_queries, len(item_rows))

    def score_all(self) -> Scores:
        """Scores (B, N) of every query with every item; see `score_items`."""
        parts = [self.score_items(rows) for rows in self._blocks(np.arange(self.num_items), PAIRS)]
        return np.concatenate(parts, axis=1)

    def top(self, k: int, item_rows: Rows | None = None) -> tuple[Rows, Scores]:
        """The best k of the given items, or of all: rows (B, k) and scores (B, k), ties by lower row.

        All are scored, in blocks of which only the best so far are held. Fewer than k where there are not so many.
        """
        return self._best(k, self._every(item_rows), PAIRS)

    def _best(self, k: int, item_rows: Rows, pairs: int) -> tuple[Rows, Scores]:
        if 2 * k >= len(item_rows):  # the result is as large as all scores
            parts = [self.score_items(rows) for rows in self._blocks(item_rows, pairs)]
            scores = np.concatenate([np.empty((self.num_queries, 0), dtype=np.float32), *parts], axis=1)
            columns = top_columns(scores, min(k, len(item_rows)))
            return item_rows[columns], np.take_along_axis(scores, columns, axis=1)
        best = Running(self.num_queries, k)
        for rows in self._blocks(item_rows, pairs):
            best.add(self.score_items(rows), rows)
        return best.rows, best.scores

    def _every(self, item_rows: Rows | None) -> Rows:
        return np.arange(self.num_items) if item_rows is None else item_rows

    def _blocks(self, item_rows: Rows, pairs: int) -> Iterator[Rows]:
        size = max(1, pairs // max(1, self.num_queries))
        for start in range(0, len(item_rows), size):
            yield item_rows[start : start + size]

    def _check(self, query_rows: Rows, item_rows: Rows) -> None:
        if query_rows.shape != item_rows.shape or query_rows.ndim != 1:
            raise ValueError(f"expected two lists of one length, got shapes {query_rows.shape} and {item_rows.shape}")
        self._check_range("query", query_rows, self.num_queries)
        self._check_range("item", item_rows, self.num_items)

    def _check_range(self, name: str, rows: Rows, size: int) -> None:
        if rows.size and not (rows.min() >= 0 and rows.max() < size):
            raise IndexError(f"{name} rows run from 0 to {size - 1}, got {rows.min()} to {rows.max()}")

    def _check_scores(self, scores: Scores, queries: Rows, items: Rows) -> None:
        if scores.shape != queries.shape:
            raise ValueError(f"the similarity gave scores of shape {scores.shape} for {queries.size} pairs")
        bad = np.flatnonzero(~np.isfinite(scores))
        if bad.size:
            where = bad[0]
            raise NotFiniteError(
                f"{bad.size} of {scores.size} scores are not finite; the first is {scores[where]} "
                f"for query row {queries[where]} and item row {items[where]}",
                int(queries[where]),
                int(items[where]),
            )


class SimilarityScorer(Scorer):
    """Over a learned similarity and representations.

    Args:
        similarity: a `LearnedSimilarity`, or any object with ``pointwise`` and ``score_pairs``.
        queries: representations of B queries.
        items: representations of N items.
        chunk: most pairs scored at once.
    """

    def __init__(self, similarity: Any, queries: Reps, items: Reps, chunk: int = PAIRS) -> None:
        super().__init__(self._by_pairs, num_rows(queries), num_rows(items), chunk)
        self.similarity = similarity
        self.device = getattr(similarity, "device", "cpu")
        self.queries = queries
        self.representation_bytes = sum(part.nbytes for part in queries.values())
        self._items = items

    def _by_pairs(self, query_rows: Rows, item_rows: Rows) -> NDArray[Any]:
        assert self.queries is not None
        few_queries, at_query = _few(self.queries, query_rows, self.device)
        few_items, at_item = _few(self._items, item_rows, self.device)
        with torch.inference_mode():
            scores = self.similarity.score_pairs(few_queries, few_items, at_query, at_item)
        found: NDArray[Any] = scores.float().cpu().numpy()
        return found

    def score_items(self, item_rows: Rows) -> Scores:
        """See `Scorer.score_items`: blocks of items, given to `LearnedSimilarity.score` without candidates."""
        if not hasattr(self.similarity, "score"):  # of the contract, a user's own object may have the pairs alone
            return super().score_items(item_rows)
        item_rows = _rows(item_rows, "item")
        self._check_range("item", item_rows, self.num_items)
        pairs = PRODUCTS if getattr(self.similarity, "is_inner_product", False) else self.chunk
        parts = [np.empty((self.num_queries, 0), dtype=np.float32)]
        for rows in self._blocks(item_rows, pairs) if self.num_queries else ():
            assert self.queries is not None
            with torch.inference_mode():
                scores = self.similarity.score(to_device(self.queries, self.device), self._taken(rows), None)
            part = scores.float().cpu().numpy()
            if part.shape != (self.num_queries, len(rows)) or not np.isfinite(part).all():
                every = np.repeat(np.arange(self.num_queries), len(rows)), np.tile(rows, self.num_queries)
                self._check_scores(part.reshape(-1), *every)
            self.calls += len(rows)
            parts.append(part)
        return np.concatenate(parts, axis=1)

    def top(self, k: int, item_rows: Rows | None = None) -> tuple[Rows, Scores]:
        """See `Scorer.top`.

        An inner product is computed in single precision first; what is near the k-th place is computed again in double
        precision. So items with equal vectors tie and come by row, and a query's result does not depend on its batch.
        """
        if not getattr(self.similarity, "is_inner_product", False):
            return super().top(k, item_rows)
        every = self._every(item_rows)
        rows, scores = self._best(k + EXTRA, every, PRODUCTS)
        exact = np.empty_like(scores)
        for row in range(len(rows)):
            exact[row], error = self._in_double(row, rows[row])
            if scores.shape[1] < len(every) and scores[row, k - 1] - scores[row, -1] <= 2 * error:
                best = Running(1, rows.shape[1])  # more items may tie with the k-th than were looked at
                for start in range(0, len(every), SMALL):
                    some = every[start : start + SMALL]
                    best.add(self._in_double(row, some)[0][None], some)
                rows[row], exact[row] = best.rows[0], best.scores[0]
        order = top_order(exact, rows, k)
        return np.take_along_axis(rows, order, axis=1), np.take_along_axis(exact, order, axis=1)

    def _in_double(self, query_row: int, item_rows: Rows) -> tuple[Scores, float]:
        """Inner products (M,) in double precision, and how far they may be off in single precision."""
        assert self.queries is not None
        query = _vectors(self.queries)[query_row].astype(np.float64)
        products, longest = [np.empty(0, dtype=np.float32)], 0.0
        for start in range(0, len(item_rows), SMALL):
            vectors = _gathered(self._items, item_rows[start : start + SMALL])
            longest = max(longest, float(np.linalg.norm(vectors, axis=1).max()))
            # einsum adds up each product alone: equal vectors give equal sums, wherever they stand.
            products.append(np.einsum("d,kd->k", query, vectors).astype(np.float32))
        error = len(query) ** 0.5 * np.finfo(np.float32).eps * longest * float(np.linalg.norm(query))
        return np.concatenate(products), error

    def _taken(self, rows: Rows) -> Reps:
        """The items at ascending rows, on the device; a view where they follow each other."""
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
            taken = {name: _sliced(part, int(rows[0]), len(rows)) for name, part in self._items.items()}
        else:
            taken = take(self._items, torch.from_numpy(rows))
        return to_device(taken, self.device)


class ListScorer(SimilarityScorer):
    """Scores whole candidate lists, whose candidates see each other: a list is one call, and nothing is kept.

    Args:
        similarity: a `LearnedSimilarity` that is not pointwise.
        queries: representations of B queries.
        items: representations of N items.
        chunk: most candidates scored at once, unless one list has more.

    Attributes:
        calls: (B,) int64, lists scored for each query.
    """

    pointwise: ClassVar[bool] = False

    def __call__(self, query_rows: Rows, item_rows: Rows) -> Scores:
        """Refuses: single pairs have no score.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            "this similarity compares the candidates of a list with each other: single pairs have no score. Use a "
            "searcher that gives it whole candidate lists (Rerank, Pipeline)."
        )

    def score_lists(self, query_rows: Rows, item_rows: Rows) -> Scores:
        """See `Scorer.score_lists`; one call a list. A list without a candidate is none."""
        query_rows, item_rows = _rows(query_rows, "query"), _rows(item_rows, "item")
        if item_rows.ndim != 2 or query_rows.shape != item_rows.shape[:1]:
            raise ValueError(f"expected B queries and (B, K) items, got {query_rows.shape} and {item_rows.shape}")
        real = item_rows != -1
        queries = np.broadcast_to(query_rows[:, None], item_rows.shape)[real]
        self._check(queries, item_rows[real])
        scores = np.full(item_rows.shape, -np.inf, dtype=np.float32)
        asked = np.flatnonzero(real.any(axis=1))
        for rows in np.array_split(asked, max(1, -(-item_rows[asked].size // self.chunk))):
            if len(rows):
                scores[rows] = self._list(query_rows[rows], item_rows[rows])
                self.calls += np.bincount(query_rows[rows], minlength=self.num_queries)
        self._check_scores(scores[real], queries, item_rows[real])
        scores[~real] = -np.inf
        return scores

    def _list(self, query_rows: Rows, item_rows: Rows) -> Scores:
        assert self.queries is not None
        few, where = np.unique(item_rows, return_inverse=True)
        padded = int(few[0] == -1)
        with torch.inference_mode():
            scores = self.similarity.score(
                to_device(take(self.queries, torch.from_numpy(query_rows)), self.device),
                self._taken(few[padded:]),
                torch.from_numpy(where.reshape(item_rows.shape) - padded).to(self.device),
            )
        found: Scores = scores.float().cpu().numpy()
        return found

    def score_items(self, item_rows: Rows) -> Scores:
        """Scores (B, M) of one list of M items for every query; a list is one call."""
        item_rows = _rows(item_rows, "item")
        return self.score_lists(np.arange(self.num_queries), np.tile(item_rows, (self.num_queries, 1)))

    def score_all(self) -> Scores:
        """Scores (B, N) of the list of all items."""
        return self.score_items(np.arange(self.num_items))

    def top(self, k: int, item_rows: Rows | None = None) -> tuple[Rows, Scores]:
        """See `Scorer.top`: the items are one list."""
        rows = self._every(item_rows)
        scores = self.score_items(rows)
        columns = top_columns(scores, min(k, len(rows)))
        return rows[columns], np.take_along_axis(scores, columns, axis=1)


def _rows(rows: Any, name: str) -> Rows:
    found = np.asarray(rows)
    if found.size and not np.issubdtype(found.dtype, np.integer):
        raise TypeError(f"{name} rows are integers, got {found.dtype}")
    return found.astype(np.int64, copy=False)


def _few(reps: Reps, rows: Rows, device: torch.device | str) -> tuple[Reps, torch.Tensor]:
    """The representations that ``rows`` need, on the device, and where each row stands among them."""
    if all(isinstance(part, torch.Tensor) and part.device == torch.device(device) for part in reps.values()):
        return reps, torch.from_numpy(rows)  # nothing to move: the similarity gathers by itself
    few, where = np.unique(rows, return_inverse=True)
    return to_device(take(reps, torch.from_numpy(few)), device), torch.from_numpy(where)


def _sliced(part: torch.Tensor | Ragged, start: int, count: int) -> torch.Tensor | Ragged:
    if isinstance(part, Ragged):
        offsets = part.offsets[start : start + count + 1]
        return Ragged(part.values[offsets[0] : offsets[-1]], offsets - offsets[0])
    return part[start : start + count]


def _vectors(reps: Reps) -> NDArray[np.float32]:
    vector = reps["vector"]
    assert isinstance(vector, torch.Tensor)
    found: NDArray[np.float32] = vector.float().cpu().numpy()
    return found


def _gathered(reps: Reps, rows: Rows) -> NDArray[np.float64]:
    """(M, d) vectors at rows; by numpy where it can, which starts no threads for a few rows."""
    vector = reps["vector"]
    assert isinstance(vector, torch.Tensor)
    if vector.dtype == torch.float32 and vector.device.type == "cpu":
        return vector.numpy()[rows].astype(np.float64)
    return _vectors({"vector": vector[torch.from_numpy(rows).to(vector.device)]}).astype(np.float64)
