"""The only view a searcher has of a similarity: scores of (query row, item row) pairs, counted and cached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from simzoo.core.records import Item, Query
from simzoo.core.reps import Reps, num_rows, take, to_device

Rows = NDArray[np.int64]
Scores = NDArray[np.float32]


@dataclass(frozen=True)
class Represented:
    """What a scorer was made from: for searchers that read representations instead of scoring single pairs.

    Attributes:
        similarity: a `LearnedSimilarity`.
        queries: representations of Q queries.
        items: representations of N items.
    """

    similarity: Any
    queries: Reps
    items: Reps


class Scorer:
    """Scores pairs, computes each distinct pair once, and counts what it computed.

    Over a similarity that compares the candidates of a list with each other it is a `ListScorer`, which does neither.

    Args:
        score_pairs: function of (query rows (P,), item rows (P,)) to P scores.
        num_queries: Q.
        num_items: N.

    Attributes:
        calls: (Q,) int64, distinct pairs computed for each query.
        representation_bytes: of the queries' and items' representations; 0 where there are none.
        represented: the similarity and the representations; None where there are none.
    """

    pointwise: ClassVar[bool] = True
    """Whether a score depends on its pair alone, so that single pairs can be scored."""

    def __init__(self, score_pairs: Callable[[Rows, Rows], NDArray[Any]], num_queries: int, num_items: int) -> None:
        self._score_pairs = score_pairs
        self.num_queries = num_queries
        self.num_items = num_items
        self.calls = np.zeros(num_queries, dtype=np.int64)
        self.representation_bytes = 0
        self.represented: Represented | None = None
        self._known: dict[int, Scores] = {}

    def __call__(self, query_rows: Rows, item_rows: Rows) -> Scores:
        """Scores (P,) float32 of P pairs.

        Raises:
            IndexError: a row that does not exist.
            FloatingPointError: the function returned NaN or an infinity.
        """
        query_rows, item_rows = _rows(query_rows, "query"), _rows(item_rows, "item")
        self._check(query_rows, item_rows)
        known = self._look_up(query_rows, item_rows)
        new = np.isnan(known)
        if new.any():
            pairs = query_rows[new] * self.num_items + item_rows[new]
            if not (pairs[1:] > pairs[:-1]).all():
                pairs = np.unique(pairs)
            queries, items = np.divmod(pairs, self.num_items)
            computed = np.asarray(self._score_pairs(queries, items), dtype=np.float32)
            self._check_scores(computed, queries, items)
            np.add.at(self.calls, queries, 1)
            for row, places in _by_query(queries):
                self._known[row][items[places]] = computed[places]
            known = self._look_up(query_rows, item_rows)
        return known

    def _look_up(self, query_rows: Rows, item_rows: Rows) -> Scores:
        found = np.empty(len(query_rows), dtype=np.float32)
        for row, places in _by_query(query_rows):
            if row not in self._known:
                self._known[row] = np.full(self.num_items, np.nan, dtype=np.float32)
            found[places] = self._known[row][item_rows[places]]
        return found

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

    def forget(self, query_rows: Rows) -> None:
        """Frees the cached scores of queries that are done with."""
        for row in query_rows:
            self._known.pop(int(row), None)

    def _check(self, query_rows: Rows, item_rows: Rows) -> None:
        if query_rows.shape != item_rows.shape or query_rows.ndim != 1:
            raise ValueError(f"expected two lists of one length, got shapes {query_rows.shape} and {item_rows.shape}")
        for name, rows, size in (("query", query_rows, self.num_queries), ("item", item_rows, self.num_items)):
            if rows.size and not (rows.min() >= 0 and rows.max() < size):
                raise IndexError(f"{name} rows run from 0 to {size - 1}, got {rows.min()} to {rows.max()}")

    def _check_scores(self, scores: Scores, queries: Rows, items: Rows) -> None:
        if scores.shape != queries.shape:
            raise ValueError(f"the similarity gave scores of shape {scores.shape} for {queries.size} pairs")
        bad = np.flatnonzero(~np.isfinite(scores))
        if bad.size:
            where = bad[0]
            raise FloatingPointError(
                f"{bad.size} of {scores.size} scores are not finite; the first is {scores[where]} "
                f"for query row {queries[where]} and item row {items[where]}"
            )

    @classmethod
    def from_matrix(cls, matrix: NDArray[Any]) -> Self:
        """Over a (Q, N) matrix of known scores."""
        return cls(lambda queries, items: matrix[queries, items], *matrix.shape)

    @classmethod
    def from_callable(
        cls, function: Callable[[list[tuple[str, str]]], Any], queries: Sequence[Query], items: Sequence[Item]
    ) -> Self:
        """Over a function of a list of (query text, item text): an API, say."""
        query_texts = [query.text for query in queries]
        item_texts = [f"{item.title} {item.text}".strip() for item in items]

        def score(query_rows: Rows, item_rows: Rows) -> NDArray[Any]:
            rows = zip(query_rows.tolist(), item_rows.tolist(), strict=True)
            return np.asarray(function([(query_texts[q], item_texts[i]) for q, i in rows]))

        return cls(score, len(queries), len(items))

    @classmethod
    def from_cross_encoder(
        cls, model: Any, queries: Sequence[Query], items: Sequence[Item], batch_size: int = 32
    ) -> Self:
        """Over any sentence-transformers ``CrossEncoder``."""
        return cls.from_callable(
            lambda pairs: model.predict(pairs, batch_size=batch_size, show_progress_bar=False), queries, items
        )

    @staticmethod
    def from_similarity(similarity: Any, queries: Reps, items: Reps, pairs: int = 65_536) -> Scorer:
        """Over a learned similarity and the representations of all queries and items.

        Args:
            similarity: a `LearnedSimilarity`.
            queries: representations of Q queries.
            items: representations of N items.
            pairs: most pairs scored at once.

        Raises:
            ValueError: the similarity is in training mode, where dropout makes scores random.
        """
        if getattr(similarity, "training", False):
            raise ValueError(f"{type(similarity).__name__} is in training mode and would score at random: call eval()")
        device = getattr(similarity, "device", "cpu")

        def score_lists(query_rows: Rows, item_rows: Rows) -> NDArray[Any]:
            parts = []
            for rows in np.array_split(np.arange(len(query_rows)), max(1, -(-item_rows.size // pairs))):
                if len(rows):
                    few, where = np.unique(item_rows[rows], return_inverse=True)
                    padded = int(few[0] == -1)
                    with torch.inference_mode():
                        scores = similarity.score(
                            to_device(take(queries, torch.from_numpy(query_rows[rows])), device),
                            to_device(take(items, torch.from_numpy(few[padded:])), device),
                            torch.from_numpy(where.reshape(item_rows[rows].shape) - padded).to(device),
                        )
                    parts.append(scores.float().cpu().numpy())
            return np.concatenate(parts) if parts else np.empty(item_rows.shape, dtype=np.float32)

        def score(query_rows: Rows, item_rows: Rows) -> NDArray[Any]:
            parts = []
            for start in range(0, len(query_rows), pairs):
                few_queries, at_query = _few(queries, query_rows[start : start + pairs], device)
                few_items, at_item = _few(items, item_rows[start : start + pairs], device)
                with torch.inference_mode():
                    parts.append(
                        similarity.score_pairs(few_queries, few_items, at_query, at_item).float().cpu().numpy()
                    )
            return np.concatenate(parts)

        sizes = num_rows(queries), num_rows(items)
        scorer = Scorer(score, *sizes) if similarity.pointwise else ListScorer(score_lists, *sizes)
        scorer.represented = Represented(similarity, queries, items)
        scorer.representation_bytes = sum(part.nbytes for reps in (queries, items) for part in reps.values())
        return scorer


class ListScorer(Scorer):
    """Scores whole candidate lists, whose candidates see each other: a list is one call, and nothing is kept.

    Args:
        score_lists: function of (query rows (B,), item rows (B, K), -1 for no item) to scores (B, K).
        num_queries: Q.
        num_items: N.

    Attributes:
        calls: (Q,) int64, lists scored for each query.
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
        """See `Scorer.score_lists`; one call a list."""
        query_rows, item_rows = _rows(query_rows, "query"), _rows(item_rows, "item")
        if item_rows.ndim != 2 or query_rows.shape != item_rows.shape[:1]:
            raise ValueError(f"expected B queries and (B, K) items, got {query_rows.shape} and {item_rows.shape}")
        real = item_rows != -1
        queries = np.broadcast_to(query_rows[:, None], item_rows.shape)[real]
        self._check(queries, item_rows[real])
        scores = np.asarray(self._score_pairs(query_rows, item_rows), dtype=np.float32)
        self._check_scores(scores[real], queries, item_rows[real])
        np.add.at(self.calls, query_rows, 1)
        return scores


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


def _by_query(query_rows: Rows) -> Iterator[tuple[int, Rows]]:
    """Each query row with the places where it stands."""
    order = np.argsort(query_rows, kind="stable")
    rows, starts = np.unique(query_rows[order], return_index=True)
    yield from zip(rows.tolist(), np.split(order, starts[1:]) if len(rows) else [], strict=True)
