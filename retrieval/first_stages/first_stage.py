"""First stages: cheap retrievers over a corpus, which wait for queries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simzoo.core.records import Query
from simzoo.core.shards import Worker
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.topk import Rows, Scores, padded, top_columns

__all__ = ["FirstStage", "ScoresAll"]

CELLS = 1 << 24  # scores held at once, where all items are scored
QUERIES = 1024  # queries at once


class FirstStage(ABC):
    """Retrieves without the similarity. Subclasses implement `prepare` and `find`; `grow` where that is cheaper.

    Attributes:
        representation_bytes: of what is kept of the items as vectors; 0 where there are none.
        truncated: texts that were longer than a model takes, so far.
    """

    _corpus: Corpus | None = None

    @property
    def corpus(self) -> Corpus:
        """What was indexed.

        Raises:
            RuntimeError: nothing was.
        """
        if self._corpus is None:
            raise RuntimeError(f"{type(self).__name__} has no index yet: call index(corpus) before search")
        return self._corpus

    @property
    def representation_bytes(self) -> int:
        """Bytes of the items' vectors."""
        return 0

    @property
    def truncated(self) -> int:
        """Texts that were longer than a model takes."""
        return 0

    def index(self, corpus: Corpus) -> None:
        """Offline work over the items; nothing to do for a corpus that was indexed last."""
        if self._corpus is corpus:
            return
        self._corpus = corpus
        try:
            self.prepare()
        except BaseException:
            self._corpus = None
            raise

    def index_together(self, corpus: Corpus, folder: Path, worker: Worker) -> None:
        """`index`, by several workers of which each needs the whole index. Here each does all of the work.

        Args:
            corpus: the items.
            folder: where they may put what they make together.
            worker: which of them this process is.
        """
        self.index(corpus)

    def extend(self, corpus: Corpus, start: int) -> None:
        """The corpus has grown, its rows from ``start`` on are new; or others were removed since: see `grow`.

        Raises:
            ValueError: another number of items was indexed before.
        """
        if len(self.corpus) != start or len(corpus) < start:
            raise ValueError(
                f"{type(self).__name__} has indexed {len(self.corpus)} items; it cannot take a corpus of {len(corpus)} "
                f"whose rows from {start} on are new. Index it anew"
            )
        self._corpus = corpus
        self.grow(start)

    @abstractmethod
    def prepare(self) -> None:
        """The offline work on ``self.corpus``."""

    def grow(self, start: int) -> None:
        """Takes in the rows from ``start`` on. Here: all the work again, the same results; none if there are no new."""
        if start < len(self.corpus):
            self.prepare()

    def search(self, queries: Sequence[Query], k: int) -> tuple[Rows, Scores]:
        """Top items of B queries: rows (B, k) and scores (B, k), best first; ties go to the lower row.

        -1 and -inf stand behind the last one, where a query has fewer than k.

        Raises:
            ValueError: k is below 1.
            RuntimeError: nothing was indexed.
        """
        corpus = self.corpus
        if k < 1:
            raise ValueError(f"a first stage returns at least 1 item, not {k}")
        parts = [(np.empty((0, k), dtype=np.int64), np.empty((0, k), dtype=np.float32))]
        size = self.batch()
        for start in range(0, len(queries), size):
            found = self.find(queries[start : start + size], min(k, len(corpus)))
            parts.append(padded(*found, k))
        rows, scores = (np.concatenate(column) for column in zip(*parts, strict=True))
        return rows, scores

    def pool(self, queries: Sequence[Query], count: int) -> Rows:
        """Rows (B, m) of about the best ``count`` items of B queries, in no certain order; -1 for none."""
        return self.search(queries, count)[0]

    def batch(self) -> int:
        """Queries that `find` gets at once."""
        return QUERIES

    @abstractmethod
    def find(self, queries: Sequence[Query], k: int) -> tuple[Rows, Scores]:
        """Rows and scores (B, m) of one batch, m at most k, best first; k is at most N. -inf: no item."""

    def identity(self) -> str:
        """Names what the results depend on besides the collection: what was mined is kept under it."""
        plain = {k: v for k, v in vars(self).items() if not k.startswith("_") and isinstance(v, int | float | str)}
        return f"{type(self).__name__} {sorted(plain.items())}"

    def described(self) -> dict[str, Any]:
        """What a run says of it besides its settings: the encoder's weights, say."""
        return {}


class ScoresAll(FirstStage):
    """A first stage that scores every item of a query. It holds 4 bytes an item for each query of a batch."""

    def batch(self) -> int:
        """See `FirstStage.batch`: as many as bound the scores."""
        return max(1, min(QUERIES, CELLS // len(self.corpus)))

    @abstractmethod
    def scores(self, queries: Sequence[Query]) -> Scores:
        """(B, N) scores of all items, a new array."""

    def find(self, queries: Sequence[Query], k: int) -> tuple[Rows, Scores]:
        """See `FirstStage.find`."""
        scores = self.scores(queries)
        if self.corpus.gone is not None:
            scores[:, self.corpus.gone] = -np.inf
        rows = top_columns(scores, k)
        return rows, np.take_along_axis(scores, rows, axis=1)
