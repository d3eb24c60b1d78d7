"""Candidates of Mixture-of-Logits by dot products alone (RAILS Algorithm 2): by an exact pass, or on vector indices."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from retrieval.ann import IndexKind
from retrieval.mol_index import CHUNK, Block, MixtureIndex, largest


class ByMean:
    """Items of the largest mean logits: one dot product a pair (RAILS Eq. 6).

    Args:
        index: of the items.
        ann: how the items' mean components are indexed; None: all of them are looked at.
    """

    def __init__(self, index: MixtureIndex, ann: IndexKind | None = None) -> None:
        self._mean = torch.cat([chunk.float().mean(dim=1) for chunk in torch.split(index.items, CHUNK)])
        self._index = None if ann is None else ann.build(self._mean.cpu().numpy())

    def __call__(self, block: Block, count: int) -> Tensor:
        """(b, count) rows; ties at the edge by lower row."""
        queries = block.components.mean(dim=0)
        if self._index is None:
            return largest(queries @ self._mean.T, count)
        return torch.from_numpy(self._index.search(queries.cpu().numpy(), count)[0]).to(queries.device)


class ByComponent:
    """Union of the top items of every logit, and what no other item's score exceeds.

    Args:
        index: of the items.
        ann: how each of the items' P_X components is indexed; None: all logits are looked at.
    """

    def __init__(self, index: MixtureIndex, ann: IndexKind | None = None) -> None:
        self._all = index
        components = range(index.item_components)
        self._indices = None
        if ann is not None:
            self._indices = [
                ann.build(np.ascontiguousarray(index.items[:, m].float().cpu().numpy())) for m in components
            ]

    def __call__(self, block: Block, count: int) -> tuple[list[Tensor], Tensor]:
        """For each query the rows, ascending, each once; and (b,) bounds, -inf where no item is left.

        The bound is the largest of the P logits that come next (Theorem 2). A vector index may have missed any item:
        then it is the largest logit that there can be.
        """
        number, found = len(block), self._scanned if self._indices is None else self._looked_up
        rows, bounds = found(block, count)
        unions = [torch.unique(some) for some in rows.reshape(number, -1)]
        everything = torch.tensor([len(some) == self._all.num_items for some in unions], device=bounds.device)
        return unions, bounds.masked_fill(everything, -torch.inf)

    def at_least(self, block: Block, count: int, k: int) -> tuple[list[Tensor], Tensor]:
        """With at least k rows for each query: ``count`` is doubled for the others, as often as needed."""
        rows, bounds = self(block, count)
        short = [place for place, some in enumerate(rows) if len(some) < k]
        if short:
            more, bounds[short] = self.at_least(block.take(short), min(2 * count, self._all.num_items), k)
            for place, some in zip(short, more, strict=True):
                rows[place] = some
        return rows, bounds

    def _scanned(self, block: Block, count: int) -> tuple[Tensor, Tensor]:
        """(b, P, count) rows and (b,) bounds."""
        index, lists = self._all, len(block) * self._all.num_logits
        values = torch.empty(lists, 0, device=index.items.device)
        rows = torch.empty(lists, 0, dtype=torch.int64, device=index.items.device)
        for start, stop in index.chunks(block):
            logits = index.logits(block, start, stop).view(lists, -1)
            best = largest(logits, min(count + 1, stop - start))
            values, rows = torch.cat([values, logits.gather(1, best)], dim=1), torch.cat([rows, best + start], dim=1)
            kept = largest(values, min(count + 1, values.shape[1]))
            values, rows = values.gather(1, kept), rows.gather(1, kept)
        bounds = values.view(index.num_logits, len(block), -1).amin(dim=2).amax(dim=0) + index.rounding
        rows = rows.gather(1, largest(values, min(count, index.num_items)))
        return rows.view(index.num_logits, len(block), -1).transpose(0, 1), bounds

    def _looked_up(self, block: Block, count: int) -> tuple[Tensor, Tensor]:
        """(b, P, count) rows and (b,) bounds."""
        assert self._indices is not None
        queries, device = block.components.flatten(0, 1).cpu().numpy(), block.rows.device
        found = np.stack([index.search(queries, count)[0] for index in self._indices], axis=1)
        by_query = torch.from_numpy(found).to(device).view(-1, len(block), *found.shape[1:]).transpose(0, 1)
        return by_query.flatten(1, 2), torch.full((len(block),), self._all.highest + self._all.rounding, device=device)
