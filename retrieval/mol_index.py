"""A mixture of logits over the representations of all items: what its searchers share.

A similarity is a mixture of logits when it has a ``head`` (see `MixtureHead`) and its representations have the parts
``components`` and, where the gate sees raw vectors, ``gate``. No class is asked for by name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from datamodules.reps import Reps
from retrieval.scorer import Rows, Scores
from retrieval.searcher import SearchTask, top_order

CHUNK = 2048  # items at once: more of them do not fit a processor's cache
QUERIES = 64  # queries at once


class MixtureHead(Protocol):
    """What a searcher knows of a mixture of logits.

    Attributes:
        temperature: component logits are divided by it.
        gate: (logits (..., P, K), query part or None, item part or None) to scores (..., K) and probabilities; these
            are not negative and sum to 1, so that no score exceeds the largest of its logits.
    """

    temperature: float
    gate: nn.Module


@dataclass(frozen=True)
class Block:
    """Some queries.

    Attributes:
        raw: (b, P_Q, d).
        components: (b, P_Q, d), divided by the temperature, in single precision.
        gate: (b, P, 1), the gate's query part; None without one.
    """

    raw: Tensor
    components: Tensor
    gate: Tensor | None

    def __len__(self) -> int:
        return len(self.components)

    def take(self, places: Sequence[int]) -> Block:
        """The queries at ``places``."""
        chosen = list(places)
        return Block(self.raw[chosen], self.components[chosen], None if self.gate is None else self.gate[chosen])


class MixtureIndex:
    """Components and gate parts of all items, and the gate, in single and in double precision.

    Args:
        task: whose scorer was made from a mixture of logits (`Scorer.from_similarity`).
        memory: bytes that a search may use besides the representations.

    Raises:
        TypeError: it was made from something else.
        ValueError: representations that are not finite; the items are named.
    """

    def __init__(self, task: SearchTask, memory: int) -> None:
        represented = task.scorer.represented
        head: Any = None if represented is None else getattr(represented.similarity, "head", None)
        if represented is None or not (hasattr(head, "gate") and hasattr(head, "temperature")):
            kind = "a score matrix or function" if represented is None else type(represented.similarity).__name__
            raise TypeError(
                f"{kind} is no mixture of logits: this search reads component vectors. Use Exact, which only scores"
            )
        _check_finite("items", represented.items, task.collection.items)
        _check_finite("queries", represented.queries, task.collection.queries)
        device = getattr(represented.similarity, "device", "cpu")
        self._queries, self._query_gate = _parts(represented.queries, device)
        self.items, self._item_gate = _parts(represented.items, device)
        self._mixture: MixtureHead = head
        # The order of the results must not depend on how the pairs were batched, so the last word is in double.
        self._fine = copy.deepcopy(head.gate).double()
        self._memory = memory
        self.num_items, self.item_components, self.width = self.items.shape
        self.num_logits = self._queries.shape[1] * self.item_components
        self.highest = 1 / self._mixture.temperature
        """No logit exceeds it, but for rounding: components have length 1."""
        self.rounding = (2 * self.num_logits + 8) * torch.finfo(torch.float32).eps * self.highest
        """What rounding can add to a sum of logits with probabilities for weights."""

    def blocks(self, query_rows: Rows) -> Iterator[Block]:
        """The queries in blocks whose scores of all items take no more than half of the memory."""
        size = min(QUERIES, max(1, self._memory // (8 * self.num_items)))
        for rows in torch.split(torch.from_numpy(query_rows).to(self._queries.device), size):
            if len(rows):
                gate = None if self._query_gate is None else self._query_gate[rows][..., None].float()
                raw = self._queries[rows]
                yield Block(raw, raw.float() / self._mixture.temperature, gate)

    def chunks(self, block: Block) -> Iterator[tuple[int, int]]:
        """(first, last + 1) of the items in chunks that fit the other half of the memory."""
        hidden = sum(parameter.shape[0] for parameter in self._mixture.gate.parameters() if parameter.ndim == 2)
        floats = (len(block) + 4) * self.num_logits + self.item_components * self.width + hidden
        size = min(CHUNK, max(1, self._memory // (8 * floats)))
        for start in range(0, self.num_items, size):
            yield start, min(start + size, self.num_items)

    def logits(self, block: Block, start: int, stop: int) -> Tensor:
        """(b, P, C) logits of a block with the items from ``start`` to ``stop``, in one matrix product."""
        items = self.items[start:stop].transpose(0, 1).reshape(-1, self.width).float()
        product = block.components.reshape(-1, self.width) @ items.T
        return product.view(len(block), self.num_logits, stop - start)

    def mix(self, block: Block, place: int, logits: Tensor, items: slice | Tensor) -> Tensor:
        """(K,) scores of one query of the block with K items whose logits (P, K) are known."""
        query = None if block.gate is None else block.gate[place]
        item = None if self._item_gate is None else self._item_gate[items].float().T
        scores: Tensor = self._mixture.gate(logits, query, item)[0]
        return scores

    def score(self, block: Block, place: int, rows: Tensor) -> Tensor:
        """(K,) scores of one query of the block with the items ``rows`` (K,)."""
        query = block.components[place]
        parts = [self.mix(block, place, self._logits_of(query, few), few) for few in torch.split(rows, CHUNK)]
        return torch.cat(parts)

    def averages(self, block: Block, mean_items: Tensor) -> Tensor:
        """(b, N) mean logits: one dot product a pair (RAILS Eq. 6); ``mean_items`` is (N, d)."""
        return block.components.mean(dim=1) @ mean_items.T

    def mean_items(self) -> Tensor:
        """(N, d) mean component of each item."""
        return torch.cat([chunk.float().mean(dim=1) for chunk in torch.split(self.items, CHUNK)])

    def component_tops(self, block: Block, count: int) -> tuple[list[Tensor], Tensor]:
        """Union of the top ``count`` items of every logit (RAILS Algorithm 2, TopKPerEmbedding).

        Returns:
            For each query the rows, ascending, each once; and (b,) what no other item's score exceeds, -inf where there
            is none: the largest of the P logits that come next (Theorem 2).
        """
        lists = len(block) * self.num_logits
        values = torch.empty(lists, 0, device=self.items.device)
        rows = torch.empty(lists, 0, dtype=torch.int64, device=self.items.device)
        for start, stop in self.chunks(block):
            logits = self.logits(block, start, stop).view(lists, -1)
            best = largest(logits, min(count + 1, stop - start))
            values, rows = torch.cat([values, logits.gather(1, best)], dim=1), torch.cat([rows, best + start], dim=1)
            kept = largest(values, min(count + 1, values.shape[1]))
            values, rows = values.gather(1, kept), rows.gather(1, kept)
        bounds = values.view(len(block), self.num_logits, -1).amin(dim=2).amax(dim=1) + self.rounding
        rows = rows.gather(1, largest(values, min(count, self.num_items)))
        found = [torch.unique(some) for some in rows.view(len(block), -1)]
        everything = torch.tensor([len(some) == self.num_items for some in found], device=bounds.device)
        return found, bounds.masked_fill(everything, -torch.inf)

    def settle(
        self, block: Block, place: int, rows: Tensor, scores: Tensor, k: int, tolerance: float
    ) -> tuple[Rows, Scores, float]:
        """The top k of one query's scored items: those near or above the k-th are scored again, in double precision.

        Args:
            block: of queries.
            place: of the query in it.
            rows: (m,) items.
            scores: (m,) theirs, in single precision.
            k: at most m.
            tolerance: how far these may be off.

        Returns:
            Rows (k,) and scores (k,), ties by lower row, and the largest error seen.

        Raises:
            FloatingPointError: a score is not finite.
        """
        if not bool(scores.isfinite().all()):
            raise FloatingPointError("the gate gives scores that are not finite; look at the checkpoint's weights")
        near = (scores >= scores.topk(k).values[-1] - 2 * tolerance).nonzero()[:, 0]
        rows = rows[near]
        fine = torch.cat([self._fine_scores(block, place, few) for few in torch.split(rows, CHUNK)])
        error = float((fine - scores[near].double()).abs().max())
        items, exact = rows.cpu().numpy(), fine.float().cpu().numpy()
        order = top_order(exact[None], items[None], k)[0]
        return items[order], exact[order], error

    def _fine_scores(self, block: Block, place: int, rows: Tensor) -> Tensor:
        query = None if block.gate is None else block.gate[place].double()
        item = None if self._item_gate is None else self._item_gate[rows].double().T
        components = block.raw[place].double() / self._mixture.temperature
        scores: Tensor = self._fine(self._logits_of(components, rows), query, item)[0]
        return scores

    def _logits_of(self, query: Tensor, rows: Tensor) -> Tensor:
        """(P, K) logits of one query (P_Q, d) with the items ``rows`` (K,), in the query's precision."""
        items = self.items[rows].transpose(0, 1).reshape(-1, self.width).to(query.dtype)
        return (query @ items.T).view(self.num_logits, len(rows))


def largest(scores: Tensor, k: int) -> Tensor:
    """(R, k) columns of the largest scores in each row of (R, C), ascending; ties go to the lower column."""
    values, columns = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    if scores.shape[1] > k:
        unsure = (values[:, k] == values[:, k - 1]).nonzero()[:, 0]
        if len(unsure):
            columns[unsure, :k] = scores[unsure].sort(dim=1, descending=True, stable=True).indices[:, :k]
    return columns[:, :k].sort(dim=1).values


def _parts(reps: Reps, device: Any) -> tuple[Tensor, Tensor | None]:
    components, gate = reps["components"], reps.get("gate")
    assert isinstance(components, Tensor) and (gate is None or isinstance(gate, Tensor))
    return components.to(device), None if gate is None else gate.to(device)


def _check_finite(kind: str, reps: Reps, records: Sequence[Any]) -> None:
    bad: list[int] = []
    for part in reps.values():
        assert isinstance(part, Tensor)
        for start, chunk in zip(range(0, len(part), CHUNK), torch.split(part, CHUNK), strict=True):
            bad += ((~chunk.isfinite().flatten(1).all(dim=1)).nonzero()[:, 0] + start).tolist()
    rows = sorted(set(bad))
    if rows:
        names = ", ".join(records[row].id for row in rows[:5])
        raise ValueError(
            f"{len(rows)} {kind} have representations that are not finite: {names}{', ...' * (len(rows) > 5)}; "
            "look at their texts, or at the checkpoint"
        )
