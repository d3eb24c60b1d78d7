"""Judges: an expensive similarity bound to N items, which waits for queries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simzoo.core.records import Item, Query
from simzoo.core.reps import Reps, num_rows
from simzoo.core.shards import ALONE, Worker
from simzoo.retrieval.scorer import PAIRS, ListScorer, Scorer, SimilarityScorer
from simzoo.retrieval.storage.encoding import encode_items, encode_queries
from simzoo.retrieval.topk import Rows, Scores

__all__ = ["CallableJudge", "Judge", "MatrixJudge", "SimilarityJudge"]

CHUNK = 1024  # pairs that a callable gets at once
MOST_KEPT = 10_000  # queries whose scores outlast a failure

Function = Callable[[list[tuple[str, str]]], Any]


class Judge(ABC):
    """A similarity bound to N items: representations of the items are made once, queries are encoded when they come.

    Attributes:
        num_items: N.
        representation_bytes: of the items' representations; 0 where there are none.
    """

    num_items: int
    representation_bytes: int = 0

    @property
    def pointwise(self) -> bool:
        """Whether a score depends on its pair alone; otherwise only whole candidate lists can be scored."""
        return True

    @property
    def truncated(self) -> int:
        """Texts that were longer than the model takes, so far."""
        return 0

    @abstractmethod
    def scorer(self, queries: Sequence[Query]) -> Scorer:
        """A scorer over these B queries and the N items."""


class SimilarityJudge(Judge):
    """A learned similarity and the representations of the items.

    Args:
        similarity: a `LearnedSimilarity` in evaluation mode.
        items: representations of N items, in memory or memory-mapped.
        pairs: most pairs scored at once.

    Raises:
        ValueError: the similarity is in training mode, where dropout makes scores random.
    """

    def __init__(self, similarity: Any, items: Reps, pairs: int = PAIRS) -> None:
        if getattr(similarity, "training", False):
            raise ValueError(f"{type(similarity).__name__} is in training mode and would score at random: call eval()")
        self.similarity = similarity
        self.items = items
        self.pairs = pairs
        self.num_items = num_rows(items)
        self.representation_bytes = sum(part.nbytes for part in items.values())

    @classmethod
    def of(
        cls,
        similarity: Any,
        items: Sequence[Item],
        store: Path | None = None,
        dtype: str = "float32",
        worker: Worker = ALONE,
    ) -> SimilarityJudge:
        """Encodes the items, each once.

        Args:
            similarity: a `LearnedSimilarity`.
            items: N items.
            store: folder that keeps their representations from run to run; None: in memory only.
            dtype: what the model computes in; representations of one are not taken for those of another.
            worker: which of several workers this process is, who fill the store together.
        """
        return cls(similarity, encode_items(similarity, items, store, f"{similarity.weights_sha256} {dtype}", worker))

    @property
    def pointwise(self) -> bool:
        """See `Judge.pointwise`."""
        return bool(self.similarity.pointwise)

    @property
    def truncated(self) -> int:
        """See `Judge.truncated`."""
        text = getattr(self.similarity, "text", None)
        return text.truncated if text is not None else 0

    def encode(self, queries: Sequence[Query]) -> Reps:
        """Representations of B queries."""
        return encode_queries(self.similarity, queries)

    def scorer(self, queries: Sequence[Query]) -> SimilarityScorer:
        """See `Judge.scorer`."""
        kind = SimilarityScorer if self.pointwise else ListScorer
        return kind(self.similarity, self.encode(queries), self.items, self.pairs)


class CallableJudge(Judge):
    """A function of texts: an API, a sentence-transformers ``CrossEncoder.predict``, any code.

    The function gets chunks. When it raises, or gives a score that is not finite, all others are kept, and the same
    queries asked again go on where they were; the exception is passed on.

    Args:
        function: of a list of (query text, item text) to as many scores. Texts of items are title and text.
        items: N items.
        chunk: most pairs given to it at once.

    Examples:
        >>> items = [Item("i0", "a flat boat"), Item("i1", "the river bank")]
        >>> judge = CallableJudge(lambda pairs: [len(set(a.split()) & set(b.split())) for a, b in pairs], items)
        >>> judge.scorer([Query("q", "a boat")]).lists(np.array([[0, 1]])).tolist()
        [[2.0, 0.0]]
    """

    def __init__(self, function: Function, items: Sequence[Item], chunk: int = CHUNK) -> None:
        self.function = function
        self.items = items
        self.chunk = chunk
        self.num_items = len(items)
        self._kept: dict[Query, tuple[Rows, Scores]] = {}

    @classmethod
    def cross_encoder(cls, model: Any, items: Sequence[Item], batch_size: int = 32) -> CallableJudge:
        """Over any sentence-transformers ``CrossEncoder``."""
        return cls(lambda pairs: model.predict(pairs, batch_size=batch_size, show_progress_bar=False), items)

    def scorer(self, queries: Sequence[Query]) -> Scorer:
        """See `Judge.scorer`."""
        asked = _Asked(self, queries)
        return Scorer(asked, len(queries), self.num_items, self.chunk)


class _Asked:
    """One batch of queries before a `CallableJudge`, with what an earlier attempt at them has brought."""

    def __init__(self, judge: CallableJudge, queries: Sequence[Query]) -> None:
        self._judge = judge
        self._queries = list(queries)
        self._known = {query: judge._kept.pop(query) for query in self._queries if query in judge._kept}
        self._pairs: list[tuple[Rows, Rows, Scores]] = []

    def __call__(self, query_rows: Rows, item_rows: Rows) -> Scores:
        scores = np.full(len(query_rows), np.nan, dtype=np.float32)
        for query in {int(row) for row in query_rows} if self._known else ():
            rows, known = self._known.get(self._queries[query], (None, None))
            if rows is not None and known is not None:
                mine = np.flatnonzero(query_rows == query)
                places = np.searchsorted(rows, item_rows[mine]).clip(max=len(rows) - 1)
                there = rows[places] == item_rows[mine]
                scores[mine[there]] = known[places[there]]
        new = np.flatnonzero(np.isnan(scores))
        if new.size:
            scores[new] = self._asked(query_rows[new], item_rows[new])
        good = np.isfinite(scores)
        self._pairs.append((query_rows[good], item_rows[good], scores[good]))
        if not good.all():  # the scorer refuses the others, and names them
            self._keep()
        return scores

    def _asked(self, query_rows: Rows, item_rows: Rows) -> NDArray[Any]:
        pairs = [
            (self._queries[query].text, _text(self._judge.items[item]))
            for query, item in zip(query_rows.tolist(), item_rows.tolist(), strict=True)
        ]
        try:
            found = np.asarray(self._judge.function(pairs), dtype=np.float32)
        except BaseException:  # an interrupted run has paid for its calls as well
            self._keep()
            raise
        if found.shape != (len(pairs),):
            self._keep()
            raise ValueError(f"the function gave scores of shape {found.shape} for {len(pairs)} pairs of texts")
        return found

    def _keep(self) -> None:
        kept: dict[Query, list[tuple[Rows, Scores]]] = {query: [some] for query, some in self._known.items()}
        for query_rows, item_rows, scores in self._pairs:
            for row in np.unique(query_rows).tolist():
                mine = query_rows == row
                kept.setdefault(self._queries[row], []).append((item_rows[mine], scores[mine]))
        for query, parts in kept.items():
            rows, places = np.unique(np.concatenate([rows for rows, _ in parts]), return_index=True)
            self._judge._kept[query] = rows, np.concatenate([scores for _, scores in parts])[places]
        for query in list(self._judge._kept)[:-MOST_KEPT]:  # the oldest: a server is not asked them again
            del self._judge._kept[query]


class MatrixJudge(Judge):
    """Known scores.

    Args:
        matrix: (Q, N).
        query_ids: ids of the Q queries; None: "0", "1", ...

    Examples:
        >>> judge = MatrixJudge(np.array([[0.5, 2.0, 1.0]]), ["q"])
        >>> scorer = judge.scorer([Query("q", "a boat")])
        >>> scorer.lists(np.array([[2, 0]])).tolist(), scorer.calls.tolist()
        ([[1.0, 0.5]], [2])
    """

    def __init__(self, matrix: NDArray[Any], query_ids: Sequence[str] | None = None) -> None:
        ids = [str(row) for row in range(len(matrix))] if query_ids is None else list(query_ids)
        if len(ids) != len(matrix):
            raise ValueError(f"the matrix has {len(matrix)} rows, but there are {len(ids)} query ids")
        self.matrix = matrix
        self.num_items = matrix.shape[1]
        self._rows = {name: row for row, name in enumerate(ids)}

    def scorer(self, queries: Sequence[Query]) -> Scorer:
        """See `Judge.scorer`.

        Raises:
            KeyError: the matrix has no scores of a query.
        """
        missing = [query.id for query in queries if query.id not in self._rows]
        if missing:
            raise KeyError(f"the score matrix has no query {missing[0]!r}: it can be asked for its own queries only")
        rows = np.array([self._rows[query.id] for query in queries], dtype=np.int64)
        return Scorer(lambda query_rows, item_rows: self.matrix[rows[query_rows], item_rows], len(rows), self.num_items)


def _text(item: Item) -> str:
    return f"{item.title} {item.text}".strip()
