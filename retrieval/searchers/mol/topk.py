"""Top-k search with Mixture-of-Logits: exact by brute force and by bounds, and the heuristics (RAILS §3).

They read the representations that the judge was made from; the results of all of them are exact scores, and their
calls are the pairs whose gate was evaluated.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from simzoo.retrieval.first_stages.vector_index import IndexKind
from simzoo.retrieval.searcher import Stopwatch
from simzoo.retrieval.searchers.mol.candidates import ByComponent, ByGate, ByMean
from simzoo.retrieval.searchers.mol.index import SEGMENT, Block, MixtureIndex
from simzoo.retrieval.searchers.mol.screen import Screen
from simzoo.retrieval.searchers.mol.searcher import Best, BlockResult, MixtureSearcher, joined

__all__ = ["BruteForce", "CombTopK", "ExactMoL", "TopKAvg", "TopKGate", "TopKPerEmbd"]

SEEDS = 256  # items scored first, by the mean of their logits
AVERAGE = 512  # items scored after these, by the mean of their logits with the weights that the first ones had
SAMPLE = 1024  # items, at most a 16th of them all, that tell what share of a query's items bounds will leave out
ENOUGH = 0.3  # the share from which on looking at a query's bounds costs less than it saves
WORTHWHILE = 0.1  # share of a block's pairs that must be left out for a second pass over the items to pay
SPARSE = (
    0.8  # the share from which on a query's logits are computed one item after another, where rounded bounds say so
)
SCREENED = 1 << 15  # items whose rounded bounds are looked at before the k-th score is raised


class BruteForce(MixtureSearcher):
    """Evaluates the gate for every item."""

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`; the budget is all items."""
        return cls()

    def look(self, block: Block, k: int, tolerance: float) -> BlockResult:
        """See `MixtureSearcher.look`."""
        return _everything(self._index, block, Best(block, k, tolerance), first=0)


def _everything(index: MixtureIndex, block: Block, best: Best, first: int) -> BlockResult:
    """Evaluates every item from ``first`` on; those before are in ``best`` already."""
    buffer = torch.empty(len(block), min(SEGMENT, index.num_items), device=block.rows.device)
    for begin in range(first, index.num_items, SEGMENT):
        end = min(begin + SEGMENT, index.num_items)
        scores = buffer[:, : end - begin]
        for start, stop in index.chunks(block, first=begin, last=end):
            part = index.mix(block.gate, index.logits(block, start, stop), start)
            scores[:, start - begin : stop - begin] = part
        best.add(scores, begin)
    no_bounds = buffer.new_full((len(block),), -torch.inf)
    return BlockResult(best.rows, best.scores, no_bounds, torch.full_like(block.rows, index.num_items))


class ExactMoL(MixtureSearcher):
    """The same results as brute force, with the gate evaluated only where it can matter (RAILS Algorithm 1).

    An item's bound is its largest logit. A sample of the items, which is evaluated whole, tells for each query what
    share of the bounds will lie below its k-th score; where that is too little to pay, the query goes on as in brute
    force. For the others the items of the largest mean logits come next, and then, chunk by chunk, those whose bound
    reaches the k-th score found so far. Where bounds of rounded
    components (`Screen`), which hold a quarter of the bytes again, leave out nearly all items, logits are computed for
    the others alone. The result is certified: every item left out has a bound below the k-th score.

    Args:
        seeds: items of the largest mean logits that are evaluated first, at least k of them in any case.
        memory: MiB that a search may use besides the representations.
    """

    def __init__(self, seeds: int = 512, memory: int = 64) -> None:
        super().__init__(memory)
        if seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {seeds}")
        self.seeds = seeds

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`; it scores what it has to."""
        return cls(seeds=1)

    def prepare(self, watch: Stopwatch) -> None:
        """Also averages each item's components, and rounds them."""
        super().prepare(watch)
        with watch.step("mean components"):
            self._by_mean = ByMean(self._index)
        with watch.step("rounded components"):
            self._screen = Screen(self._index)

    def look(self, block: Block, k: int, tolerance: float) -> BlockResult:
        """See `MixtureSearcher.look`."""
        index = self._index
        sample = min(SAMPLE, -(-index.num_items // 16))
        scores = torch.empty(len(block), sample, device=block.rows.device)
        largest_logits = torch.empty_like(scores)
        for start, stop in index.chunks(block, last=sample):
            logits = index.logits(block, start, stop)
            scores[:, start:stop] = index.mix(block.gate, logits, start)
            largest_logits[:, start:stop] = logits[..., :-1].amax(dim=2)
        expected = scores.topk(-(-k * sample // index.num_items), dim=1).values[:, -1:]
        left_out = (largest_logits < expected).float().mean(dim=1)
        pays = left_out >= ENOUGH
        pays &= left_out[pays].sum() >= WORTHWHILE * len(block)
        found = []
        if not bool(pays.all()):
            places = (~pays).nonzero()[:, 0]
            others = block.take(places)
            best = Best(others, k, tolerance)
            best.add(scores[places], 0)
            found.append((places, _everything(index, others, best, sample)))
        few = pays & ((self._screen.of(block)(0, sample) < expected).float().mean(dim=1) >= SPARSE)
        for these, search in ((few, self._screened), (pays & ~few, self._bounded)):
            for places in torch.split(these.nonzero()[:, 0], index.queries_at_once(index.num_items)):
                if len(places):
                    found.append((places, search(block.take(places), scores[places], k, tolerance)))
        return joined(found)

    def _begun(self, block: Block, sampled: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Scores (b, N), -inf where none is known yet, with those of the largest mean logits; and the best (b, k)."""
        index, sample = self._index, sampled.shape[1]
        rows = self._by_mean(block, min(max(k, self.seeds), index.num_items))
        seeded = index.score(block, rows)
        scores = sampled.new_full((len(block), index.num_items), -torch.inf).scatter_(1, rows, seeded)
        scores[:, :sample] = sampled
        return scores, torch.cat([sampled, seeded.masked_fill(rows < sample, -torch.inf)], dim=1).topk(k, dim=1).values

    def _screened(self, block: Block, sampled: Tensor, k: int, tolerance: float) -> BlockResult:
        """Evaluates what rounded bounds do not leave out: logits, too, are computed for these items alone."""
        index, sample = self._index, sampled.shape[1]
        scores, highest = self._begun(block, sampled, k)
        screen, queries = self._screen.of(block), [block.take(row[None]) for row in torch.arange(len(block))]
        bounds = sampled.new_full((len(block),), -torch.inf)
        for begin in range(sample, index.num_items, SCREENED):
            end = min(begin + SCREENED, index.num_items)
            parts = [screen(*some) for some in index.chunks(block, begin, end)]
            reach, part = torch.cat(parts, dim=1), scores[:, begin:end]
            there = (reach >= highest[:, -1:] - tolerance) & part.isneginf()
            for row, query in enumerate(queries):
                items = there[row].nonzero()[:, 0]
                if len(items):
                    part[row, items] = index.score(query, items[None] + begin)[0]
            bounds = torch.maximum(bounds, reach.masked_fill(~part.isneginf(), -torch.inf).amax(dim=1))
            fresh = part.masked_fill(~there, -torch.inf)
            highest = torch.cat([highest, fresh], dim=1).topk(k, dim=1).values
        best = Best(block, k, tolerance)
        best.add(scores, 0)
        return BlockResult(best.rows, best.scores, bounds, (scores > -torch.inf).sum(dim=1))

    def _bounded(self, block: Block, sampled: Tensor, k: int, tolerance: float) -> BlockResult:
        """Evaluates what bounds do not leave out; the scores of the first items are known."""
        index, sample = self._index, sampled.shape[1]
        scores, highest = self._begun(block, sampled, k)
        bounds = sampled.new_full((len(block),), -torch.inf)
        for start, stop in index.chunks(block, first=sample):
            logits, part = index.logits(block, start, stop), scores[:, start:stop]
            reach = logits[..., :-1].amax(dim=2) + index.rounding
            there = (reach >= highest[:, -1:] - tolerance) & part.isneginf()
            fresh = torch.full_like(part, -torch.inf)
            fresh[there] = index.mix_some(block, logits, start, there)
            part.copy_(torch.maximum(part, fresh))
            bounds = torch.maximum(bounds, reach.masked_fill(~part.isneginf(), -torch.inf).amax(dim=1))
            highest = torch.cat([highest, fresh], dim=1).topk(k, dim=1).values
        best = Best(block, k, tolerance)
        best.add(scores, 0)
        return BlockResult(best.rows, best.scores, bounds, (scores > -torch.inf).sum(dim=1))


class TopKPerEmbd(MixtureSearcher):
    """Scores the union of the top items of every component logit (RAILS Algorithm 2).

    A query whose union has fewer than k items is searched with twice as many, as often as needed.

    Args:
        per_embedding: items of each of the P_Q P_X logits.
        memory: MiB that a search may use besides the representations.
        ann: how each of the items' components is indexed; None: all logits are looked at.
    """

    def __init__(self, per_embedding: int = 50, memory: int = 64, ann: IndexKind | None = None) -> None:
        super().__init__(memory)
        self.per_embedding = at_least_one("per_embedding", per_embedding)
        self.ann = ann

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(budget)

    def prepare(self, watch: Stopwatch) -> None:
        """Also builds the vector indices, if any."""
        super().prepare(watch)
        with watch.step("vector indices"):
            self._by_component = ByComponent(self._index, self.ann)

    def look(self, block: Block, k: int, tolerance: float) -> BlockResult:
        """See `MixtureSearcher.look`."""
        return self._scored(block, *self._by_component.at_least(block, self.affordable(self.per_embedding), k))


class TopKAvg(MixtureSearcher):
    """Scores the items of the largest mean logits (RAILS Algorithm 2); their bound says little: the largest logit.

    Args:
        average: items scored a query.
        memory: MiB that a search may use besides the representations.
        ann: how the items' mean components are indexed; None: all of them are looked at.
    """

    def __init__(self, average: int = 500, memory: int = 64, ann: IndexKind | None = None) -> None:
        super().__init__(memory)
        self.average = at_least_one("average", average)
        self.ann = ann

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(budget)

    def check(self, k: int) -> None:
        """See `Searcher.check`: no more than ``average``."""
        super().check(k)
        check_average(self.average, k)

    def prepare(self, watch: Stopwatch) -> None:
        """Also averages each item's components, and indexes them if so wished."""
        super().prepare(watch)
        with watch.step("mean components"):
            self._by_mean = ByMean(self._index, self.ann)

    def look(self, block: Block, k: int, tolerance: float) -> BlockResult:
        """See `MixtureSearcher.look`."""
        average = self.affordable(self.average)
        return self._scored(block, list(self._by_mean(block, average)), self._no_bound(block, average))


class TopKGate(MixtureSearcher):
    """Scores the items of the largest logits when weighted as the gate weights those of the query's best items.

    Not in the paper. The first items are those of the largest mean logits; the mean gate of the best of them stands in
    for the gate of all others, so that finding the next ones takes one dot product a pair. Its bound says little.

    Args:
        seeds: items scored first, by their mean logits.
        average: items scored then, by their weighted logits, at least k.
        memory: MiB that a search may use besides the representations.
    """

    def __init__(self, seeds: int = SEEDS, average: int = AVERAGE, memory: int = 64) -> None:
        super().__init__(memory)
        self.seeds, self.average = at_least_one("seeds", seeds), at_least_one("average", average)

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(1, budget)

    def check(self, k: int) -> None:
        """See `Searcher.check`: no more than ``average``."""
        super().check(k)
        check_average(self.average, k)

    def prepare(self, watch: Stopwatch) -> None:
        """Also averages each item's components."""
        super().prepare(watch)
        with watch.step("mean components"):
            self._by_gate = ByGate(self._index)

    def look(self, block: Block, k: int, tolerance: float) -> BlockResult:
        """See `MixtureSearcher.look`."""
        rows, scores = self._by_gate(block, self.seeds, self.average)
        calls = torch.full_like(block.rows, rows.shape[1])
        return BlockResult(rows, scores, self._no_bound(block, rows.shape[1]), calls)


class CombTopK(MixtureSearcher):
    """Scores the union of what `TopKPerEmbd` and `TopKAvg` score (RAILS §3.3, Theorem 3).

    Args:
        per_embedding: items of each of the P_Q P_X logits.
        average: items of the largest mean logits, at least k.
        memory: MiB that a search may use besides the representations.
        ann: how each of the items' components, and their mean, is indexed; None: all of them are looked at.
    """

    def __init__(
        self, per_embedding: int = 5, average: int = 200, memory: int = 64, ann: IndexKind | None = None
    ) -> None:
        super().__init__(memory)
        self.per_embedding = at_least_one("per_embedding", per_embedding)
        self.average = at_least_one("average", average)
        self.ann = ann

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`."""
        return cls(budget, budget)

    def check(self, k: int) -> None:
        """See `Searcher.check`: no more than ``average``."""
        super().check(k)
        check_average(self.average, k)

    def prepare(self, watch: Stopwatch) -> None:
        """Also averages each item's components, and builds the vector indices, if any."""
        super().prepare(watch)
        with watch.step("mean components"):
            self._by_mean = ByMean(self._index, self.ann)
        with watch.step("vector indices"):
            self._by_component = ByComponent(self._index, self.ann)

    def look(self, block: Block, k: int, tolerance: float) -> BlockResult:
        """See `MixtureSearcher.look`."""
        one, bounds = self._by_component(block, self.affordable(self.per_embedding))
        other = self._by_mean(block, self.affordable(self.average))
        rows = [torch.unique(torch.cat(pair)) for pair in zip(one, other, strict=True)]
        everything = torch.tensor([len(some) == self._index.num_items for some in rows], device=bounds.device)
        return self._scored(block, rows, bounds.masked_fill(everything, -torch.inf))


def at_least_one(name: str, value: int) -> int:
    """Refuses a number of items below 1."""
    if value < 1:
        raise ValueError(f"{name} is a number of items, at least 1; got {value}")
    return value


def check_average(average: int, k: int) -> None:
    """Refuses more results than the items of the largest mean logits."""
    if k > average:
        raise ValueError(f"k = {k} results need a budget of at least {k} scored items, got {average}")
