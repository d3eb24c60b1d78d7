"""A mixture of logits over the representations of all items: what its searchers share.

A similarity is a mixture of logits when it has a ``head`` (see `MixtureHead`) and its representations have the parts
``components`` and, where the gate sees raw vectors, ``gate``. No class is asked for by name.

Layout: component logits are (P, b, C), components first, P = P_X P_Q item-major, then b queries and C items. So one
matrix product fills them without a copy of the items, and the gate's layers run over contiguous memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from datamodules.reps import Reps
from retrieval.scorer import Rows, Scores
from retrieval.searcher import SearchTask, top_order

CHUNK = 512  # items at once: more of them do not fit a processor's cache
PAIRS = 4096  # pairs whose gate is evaluated at once, for the same reason
GATHERED = 1 << 18  # numbers of gathered items at once
QUERIES = 64  # queries at once


class MixtureGate(Protocol):
    """The gate of a mixture of logits.

    Its probabilities are not negative and sum to 1, so that no score exceeds the largest of its logits.
    """

    def scores(self, logits: Tensor, query: Tensor | None, item: Tensor | None) -> Tensor:
        """Scores (...) of logits (P, ...) and the gate's two precomputed parts."""

    def reordered(self, order: Tensor) -> Any:
        """The same gate, a module, for logits in another order."""

    def parameters(self) -> Iterator[Tensor]:
        """Weights."""


class MixtureHead(Protocol):
    """What a searcher knows of a mixture of logits.

    Attributes:
        temperature: component logits are divided by it.
        gate: mixes the logits of a pair.
    """

    temperature: float
    gate: MixtureGate


@dataclass(frozen=True)
class Block:
    """b queries.

    Attributes:
        components: (P_Q, b, d), divided by the temperature, in single precision.
        gate: (P, b), the gate's query part; None without one.
        rows: (b,) among all queries.
    """

    components: Tensor
    gate: Tensor | None
    rows: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: Sequence[int]) -> Block:
        """The queries at ``places``."""
        chosen = list(places)
        gate = None if self.gate is None else self.gate[:, chosen]
        return Block(self.components[:, chosen], gate, self.rows[chosen])


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
        self._queries, query_gate = _parts(represented.queries, device)
        self.items, item_gate = _parts(represented.items, device)
        self.temperature: float = head.temperature
        self.num_items, self.item_components, self.width = self.items.shape
        self.query_components = self._queries.shape[1]
        self.num_logits = self.query_components * self.item_components
        order = torch.arange(self.num_logits, device=device).view(self.query_components, -1).T.flatten()
        self._gate: MixtureGate = head.gate.reordered(order)
        # The order of the results must not depend on how the pairs were batched, so the last word is in double.
        self._fine: MixtureGate = head.gate.reordered(order).double()
        self._query_gate = None if query_gate is None else query_gate.float().T[order]
        self._item_gate = None if item_gate is None else item_gate.float().T[order]
        self._memory = memory
        self.highest = 1 / self.temperature
        """No logit exceeds it, but for rounding: components have length 1."""
        self.rounding = (2 * self.num_logits + 8) * torch.finfo(torch.float32).eps * self.highest
        """What rounding can add to a sum of logits with probabilities for weights."""

    def blocks(self, query_rows: Rows) -> Iterator[Block]:
        """The queries in blocks whose scores of all items take no more than half of the memory."""
        size = min(QUERIES, max(1, self._memory // (8 * self.num_items)))
        for rows in torch.split(torch.from_numpy(query_rows).to(self._queries.device), size):
            if len(rows):
                components = self._queries[rows].float().transpose(0, 1).contiguous() / self.temperature
                yield Block(components, None if self._query_gate is None else self._query_gate[:, rows], rows)

    def chunks(self, block: Block) -> Iterator[tuple[int, int]]:
        """(first, last + 1) of the items in chunks that fit the other half of the memory."""
        size = min(CHUNK, max(1, self._memory // (16 * len(block) * self.num_logits)))
        for start in range(0, self.num_items, size):
            yield start, min(start + size, self.num_items)

    def logits(self, block: Block, start: int, stop: int) -> Tensor:
        """(P, b, C) logits of a block with the items from ``start`` to ``stop``."""
        items = self.items[start:stop].float().permute(1, 2, 0)
        queries = block.components.flatten(0, 1).expand(self.item_components, -1, -1)
        return torch.bmm(queries, items).view(self.num_logits, len(block), stop - start)

    def mix(self, gate: Tensor | None, logits: Tensor, start: int) -> Tensor:
        """(b, C) scores of queries with C items from ``start`` on, whose logits (P, b, C) and gate part are known."""
        number, size = logits.shape[1:]
        item = None if self._item_gate is None else self._item_gate[:, None, start : start + size]
        step = max(1, PAIRS // size)
        parts = []
        for first in range(0, number, step):
            some = slice(first, first + step)
            query = None if gate is None else gate[:, some, None]
            parts.append(self._gate.scores(logits[:, some].contiguous(), query, item))
        return torch.cat(parts)

    def mix_some(self, block: Block, logits: Tensor, start: int, places: Tensor, columns: Tensor) -> Tensor:
        """(M,) scores of M pairs of a query and one of C items from ``start`` on, whose logits (P, b, C) are known."""
        flat = logits.flatten(1)
        parts = []
        for query, item in zip(torch.split(places, PAIRS), torch.split(columns, PAIRS), strict=True):
            gates = [
                None if gate is None else gate.index_select(1, rows)
                for gate, rows in ((block.gate, query), (self._item_gate, item + start))
            ]
            parts.append(self._gate.scores(flat.index_select(1, query * logits.shape[2] + item), *gates))
        return torch.cat(parts)

    def score(self, block: Block, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """(b, m) scores of each query with m items of its own."""
        gate = self._gate if dtype == torch.float32 else self._fine
        queries = self._queries[block.rows].to(dtype).transpose(1, 2) / self.temperature
        query_gate = None if block.gate is None else block.gate[..., None].to(dtype)
        parts = []
        for some in torch.split(rows, max(1, GATHERED // (len(block) * self.item_components * self.width)), dim=1):
            items = self.items[some].to(dtype).flatten(1, 2)
            logits = torch.bmm(items, queries).view(*some.shape, -1).permute(2, 0, 1).contiguous()
            item_gate = None if self._item_gate is None else self._item_gate[:, some].to(dtype)
            parts.append(gate.scores(logits, query_gate, item_gate))
        return torch.cat(parts, dim=1)

    def settle(
        self, block: Block, rows: Tensor | None, scores: Tensor, k: int, tolerance: float
    ) -> tuple[Rows, Scores, float]:
        """The top k of each query's scored items: those near or above the k-th are scored again, in double precision.

        Args:
            block: of queries.
            rows: (b, m) items; None: all items, in order.
            scores: (b, m) theirs, in single precision; -inf for none.
            k: at most the number of scored items.
            tolerance: how far these may be off.

        Returns:
            Rows (b, k) and scores (b, k), ties by lower row, and the largest error seen.

        Raises:
            FloatingPointError: a score is not finite.
        """
        if bool((scores.isnan() | scores.isposinf()).any()):
            raise FloatingPointError("the gate gives scores that are not finite; look at the checkpoint's weights")
        threshold = scores.topk(k, dim=1).values[:, -1:] - 2 * tolerance
        count = int((scores >= threshold).sum(dim=1).max())
        coarse, columns = scores.topk(count, dim=1)
        near = columns if rows is None else rows.gather(1, columns)
        fine = self.score(block, near, torch.float64)
        there = ~coarse.isneginf()
        error = float((fine - coarse.double())[there].abs().max())
        exact = fine.masked_fill(~there, -torch.inf).float().cpu().numpy()
        items = near.cpu().numpy()
        order = top_order(exact, items, k)
        return np.take_along_axis(items, order, axis=1), np.take_along_axis(exact, order, axis=1), error


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
