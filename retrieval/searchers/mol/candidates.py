"""Candidates of Mixture-of-Logits by dot products alone (RAILS Algorithm 2): by an exact pass, or on vector indices."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from simzoo.retrieval.first_stages.vector_index import IndexKind
from simzoo.retrieval.searchers.mol.index import CHUNK, Block, Largest, MixtureIndex, largest

BEST = 16  # items whose gates are averaged
SCANNED = 2048  # items at once whose largest logits are looked for


class ByMean:
    """Items of the largest mean logits: one dot product a pair (RAILS Eq. 6).

    Args:
        index: of the items.
        ann: how the items' mean components are indexed; None: all of them are looked at.
    """

    def __init__(self, index: MixtureIndex, ann: IndexKind | None = None) -> None:
        self._all = index
        self._mean = torch.cat([chunk.float().mean(dim=1) for chunk in torch.split(index.items, CHUNK)])
        self._index = None if ann is None else ann.build(self._mean.cpu().numpy())

    def __call__(self, block: Block, count: int) -> Tensor:
        """(b, count) rows; ties at the edge by lower row."""
        queries = block.components.mean(dim=1)
        if self._index is None:
            best = Largest(len(queries), count, queries.device)
            for start, stop in self._all.ranges(len(queries)):
                best.add(queries @ self._mean[start:stop].T, start)
            return best.columns
        return torch.from_numpy(self._index.search(queries.cpu().numpy(), count)[0]).to(queries.device)


class ByGate:
    """Items of the largest mean logits, then those of the largest logits weighted as the gate weights these.

    With fixed weights a query's score is one dot product with an item's components side by side. The mean gate of the
    few best items of the first kind makes that dot product rank like the mixture where it matters, at the top.

    Args:
        index: of the items.
    """

    def __init__(self, index: MixtureIndex) -> None:
        self._all = index
        self._by_mean = ByMean(index)

    def __call__(self, block: Block, seeds: int, count: int) -> tuple[Tensor, Tensor]:
        """(b, seeds + count) rows, each once, and their scores; at most all items."""
        index = self._all
        first = self._by_mean(block, min(seeds, index.num_items))
        scores = index.score(block, first)
        if first.shape[1] == index.num_items:
            return first, scores
        best = first.gather(1, scores.topk(min(BEST, first.shape[1]), dim=1).indices)
        queries = (index.mean_gates(block, best) @ block.components).flatten(1)
        most = Largest(len(queries), min(count, index.num_items - first.shape[1]), queries.device)
        for start, stop in index.ranges(len(queries)):
            parts = torch.split(index.items[start:stop], CHUNK)
            products = torch.cat([queries @ items.float().flatten(1).T for items in parts], dim=1)
            row, place = ((first >= start) & (first < stop)).nonzero(as_tuple=True)
            products[row, first[row, place] - start] = -torch.inf
            most.add(products, start)
        second = most.columns
        return torch.cat([first, second], dim=1), torch.cat([scores, index.score(block, second)], dim=1)


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
            more, bounds[short] = self.at_least(block.take(torch.tensor(short)), min(2 * count, self._all.num_items), k)
            for place, some in zip(short, more, strict=True):
                rows[place] = some
        return rows, bounds

    def _scanned(self, block: Block, count: int) -> tuple[Tensor, Tensor]:
        """(b, P, count) rows and (b,) bounds."""
        index, number = self._all, len(block)
        queries = block.components.flatten(0, 1).expand(index.item_components, -1, -1)
        best = Largest(number * index.num_logits, min(count + 1, index.num_items), queries.device)
        for start, stop in index.chunks(block, size=SCANNED):
            # One logit of all items side by side, as its largest values are looked for.
            logits = torch.bmm(queries, index.items[start:stop].float().permute(1, 2, 0))
            best.add(logits.flatten(0, 1), start)
        by_logit = (index.item_components, number, index.query_components, -1)
        bounds = best.values.view(by_logit).amin(dim=3).amax(dim=(0, 2)) + index.rounding
        rows = best.columns.gather(1, largest(best.values, min(count, index.num_items)))
        return rows.view(by_logit).transpose(0, 1).flatten(1, 2), bounds

    def _looked_up(self, block: Block, count: int) -> tuple[Tensor, Tensor]:
        """(b, P, count) rows and (b,) bounds."""
        assert self._indices is not None
        queries, device = block.components.flatten(0, 1).cpu().numpy(), block.rows.device
        found = np.stack([index.search(queries, count)[0] for index in self._indices], axis=1)
        return torch.from_numpy(found).to(device).view(len(block), -1, found.shape[2]), self._all.ceiling(block)
