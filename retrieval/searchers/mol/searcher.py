"""What the searchers of Mixture-of-Logits share: blocks of queries, settled scores, bounds on what is left out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from simzoo.core.records import Query
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch
from simzoo.retrieval.searchers.mol.index import QUERIES, Block, MixtureIndex, check_finite, kth_largest, reaching
from simzoo.retrieval.topk import Rows, Scores, padded

TOLERANCE = 1e-5  # of a logit's range: how far single precision is taken to be off at first


@dataclass(frozen=True)
class BoundedRanking(Ranking):
    """A ranking that says what the items left out could have scored.

    Attributes:
        bounds: (B,) float32: no item whose gate was not evaluated scores above this; -inf where there is none.
    """

    bounds: Scores = field(kw_only=True)

    @classmethod
    def _more(cls, parts: Sequence[Ranking]) -> dict[str, Any]:
        return {"bounds": np.concatenate([part.bounds for part in parts if isinstance(part, BoundedRanking)])}

    @classmethod
    def nothing(cls, queries: int, k: int) -> Self:
        """See `Ranking.nothing`."""
        found = Ranking.nothing(queries, k)
        return cls(found.items, found.scores, found.calls, bounds=np.full(queries, -np.inf, dtype=np.float32))

    @property
    def certified(self) -> NDArray[np.bool_]:
        """(B,) bool: every item left out scores below the last result, or none is, so the ranking is exact."""
        certain: NDArray[np.bool_] = (self.bounds < self.scores[:, -1]) | np.isneginf(self.bounds)
        return certain

    @property
    def gaps(self) -> Scores:
        """(B,) at most by how much an item left out exceeds the last result (RAILS Theorems 2 and 3)."""
        last = np.where(np.isneginf(self.bounds), 0, self.scores[:, -1])
        gaps: Scores = np.maximum(np.where(np.isneginf(self.bounds), 0, self.bounds - last), 0)
        return gaps

    def noted(self, num_items: int) -> Self:
        """With notes: whether it is certified, the gap, and the share of the items whose gate was evaluated."""
        found = {"certified": self.certified, "gap": self.gaps, "gates evaluated": self.calls / num_items}
        return replace(self, notes={name: np.asarray(values, dtype=np.float64) for name, values in found.items()})


@dataclass(frozen=True)
class BlockResult:
    """What a method scored for b queries.

    Attributes:
        rows: (b, m) items, each of a query's once; at least those near or above its k-th score.
        scores: (b, m) theirs, in single precision; -inf for none, whatever its row.
        bounds: (b,) what no other item's score exceeds.
        calls: (b,) gates evaluated.
    """

    rows: Tensor
    scores: Tensor
    bounds: Tensor
    calls: Tensor


class Best:
    """The items near or above each query's k-th score, as the items go by.

    Args:
        block: of b queries.
        k: how many are wanted.
        tolerance: how far a score may be off.

    Attributes:
        rows: (b, m) items.
        scores: (b, m) theirs; -inf for none.
    """

    def __init__(self, block: Block, k: int, tolerance: float) -> None:
        self.k, self.tolerance = k, tolerance
        self.rows = block.rows.new_empty(len(block), 0)
        self.scores = block.components.new_empty(len(block), 0)
        self._kth = block.components.new_full((len(block), 1), -torch.inf)

    def add(self, scores: Tensor, first: int) -> None:
        """Takes the scores (b, C) of the items from ``first`` on.

        Raises:
            FloatingPointError: a score is not finite.
        """
        check_finite(scores)
        if scores.shape[1] >= self.k:
            self._kth = torch.maximum(self._kth, kth_largest(scores, self.k))
        found, columns = reaching(scores, self._kth - 2 * self.tolerance)
        self.rows, self.scores = torch.cat([self.rows, columns + first], 1), torch.cat([self.scores, found], 1)


def joined(parts: Sequence[tuple[Tensor, BlockResult]]) -> BlockResult:
    """What was found for the queries at several places of a block."""
    order = torch.argsort(torch.cat([places for places, _ in parts]))
    width = max(found.rows.shape[1] for _, found in parts)
    rows = torch.cat([F.pad(found.rows, (0, width - found.rows.shape[1])) for _, found in parts])
    scores = [F.pad(found.scores, (0, width - found.scores.shape[1]), value=-torch.inf) for _, found in parts]
    bounds, calls = (torch.cat(column) for column in zip(*((f.bounds, f.calls) for _, f in parts), strict=True))
    return BlockResult(rows[order], torch.cat(scores)[order], bounds[order], calls[order])


class MixtureSearcher(Searcher):
    """What the methods share: blocks of queries, and results whose order does not depend on rounding.

    A search reads the components of all items once a block of queries, and holds ``memory`` besides them; the gate's
    item parts are held a second time, in another order. Growing prepares everything anew.

    Args:
        memory: MiB that a search may use besides the representations.
    """

    needs_representations: ClassVar[bool] = True
    ranking: ClassVar[type[Ranking]] = BoundedRanking
    query_batch = QUERIES

    def __init__(self, memory: int = 64) -> None:
        super().__init__()
        if memory < 1:
            raise ValueError(f"memory is in MiB, at least 1; got {memory}")
        self.memory = memory

    @abstractmethod
    def look(self, block: Block, k: int, tolerance: float) -> BlockResult:
        """Scores at least k items for each query; ``tolerance`` is how far a score in single precision may be off."""

    def prepare(self, watch: Stopwatch) -> None:
        """Checks the representations, and takes them to the similarity's device."""
        with watch.step("components"):
            self._index = MixtureIndex(self.corpus, self.memory << 20)

    @torch.inference_mode()
    def find(self, scorer: Scorer, queries: Sequence[Query], k: int, watch: Stopwatch) -> BoundedRanking:
        """See `Searcher.find`."""
        assert scorer.queries is not None
        index = self._index
        with watch.step("scoring"):
            blocks = index.blocks(scorer.queries, queries)
            parts = [self._exactly(block, min(k, index.num_items)) for block in blocks]
        rows, scores, calls, bounds = (np.concatenate(column) for column in zip(*parts, strict=True))
        items, scores = padded(index.live[rows], scores, k)
        found = BoundedRanking(items, scores, calls, query_bytes=scorer.representation_bytes, bounds=bounds)
        return found.noted(index.num_items)

    def _exactly(self, block: Block, k: int) -> tuple[Rows, Scores, Rows, Scores]:
        """Items, scores, calls, bounds, with a tolerance that covers the errors seen: a sharp gate makes them worse."""
        tolerance = TOLERANCE * self._index.highest
        while True:
            found = self.look(block, k, tolerance)
            rows, exact, error = self._index.settle(block, found.rows, found.scores, k, tolerance)
            if error <= tolerance:
                return rows, exact, found.calls.cpu().numpy(), found.bounds.float().cpu().numpy()
            tolerance = 4 * error

    def _no_bound(self, block: Block, scored: int) -> Tensor:
        """(b,) the largest logit that there can be, unless all items are scored."""
        bounds = self._index.ceiling(block)
        return bounds if scored < self._index.num_items else bounds.fill_(-torch.inf)

    def _scored(self, block: Block, rows: Sequence[Tensor], bounds: Tensor) -> BlockResult:
        """Scores the given rows of each query."""
        sizes = torch.tensor([len(some) for some in rows], device=bounds.device)
        there = torch.arange(int(sizes.max()), device=bounds.device) < sizes[:, None]
        padded = torch.zeros(there.shape, dtype=torch.int64, device=bounds.device)
        padded[there] = torch.cat(list(rows))
        scores = self._index.score(block, padded)
        return BlockResult(padded, scores.masked_fill(~there, -torch.inf), bounds, sizes)
