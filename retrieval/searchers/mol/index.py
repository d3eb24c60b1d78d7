"""A mixture of logits over the representations of all items: what its searchers share.

A similarity is a mixture of logits when it has a ``head`` (see `MixtureHead`) and its representations have the parts
``components`` and, where the gate sees raw vectors, ``gate``. No class is asked for by name.

Layout: component logits are (b, C, P), pair by pair, P = P_X P_Q item-major, for b queries and C items. So one matrix
product fills them without a copy of the items, those of single pairs can be gathered, and the gate's layers, whose
matrix products are faster by a half than with the components first, run over contiguous memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from simzoo.core.records import Query
from simzoo.core.reps import Reps, take
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.topk import Rows, Scores, top_order

LOGITS = 1 << 18  # logits at once: more of them do not fit a processor's cache
PAIRS = 4096  # pairs whose gate is evaluated at once, for the same reason
CHUNK = 512  # items at once, at most
GATHERED = 1 << 22  # bytes of gathered items at once
QUERIES = 64  # queries at once
SEGMENT = 1 << 16  # items whose scores are held at once, where those of all need not be
GROUP = 32  # scores whose maximum is looked at first, where few of many are wanted


class SearchGate(Protocol):
    """A gate for logits (..., P + 1), of which the last is 1, and the gate's two precomputed parts."""

    def probabilities(self, logits: Tensor, query: Tensor | None, item: Tensor | None) -> Tensor:
        """Probabilities (..., P)."""

    def scores(self, logits: Tensor, query: Tensor | None, item: Tensor | None) -> Tensor:
        """Scores (...): the logits weighted with these."""


class MixtureGate(Protocol):
    """The gate of a mixture of logits.

    Its probabilities are not negative and sum to 1, so that no score exceeds the largest of its logits.
    """

    num_logits: int
    """P."""

    def for_search(self, order: Tensor) -> Any:
        """The same gate, a module and `SearchGate`, for logits in another order."""


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
        components: (b, P_Q, d), divided by the temperature, in single precision.
        gate: (b, P), the gate's query part; None without one.
        rows: (b,) among the queries of the batch.
        raw: (b, P_Q, d), as they are represented.
    """

    components: Tensor
    gate: Tensor | None
    rows: Tensor
    raw: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: Tensor) -> Block:
        """The queries at ``places``."""
        gate = None if self.gate is None else self.gate[places]
        return Block(self.components[places], gate, self.rows[places], self.raw[places])


class MixtureIndex:
    """Components and gate parts of all items that are there, and the gate, in single and in double precision.

    The items are numbered without removed ones; `live` has their rows in the corpus.

    Args:
        corpus: whose judge was made from a mixture of logits (`SimilarityJudge`).
        memory: bytes that a search may use besides the representations.

    Raises:
        TypeError: it was made from something else.
        ValueError: representations that are not finite; the items are named.
    """

    def __init__(self, corpus: Corpus, memory: int) -> None:
        judge = corpus.judge
        similarity: Any = judge.similarity if isinstance(judge, SimilarityJudge) else None
        head: Any = getattr(similarity, "head", None)
        if not isinstance(judge, SimilarityJudge) or not (hasattr(head, "gate") and hasattr(head, "temperature")):
            kind = "a score matrix or function" if similarity is None else type(similarity).__name__
            raise TypeError(
                f"{kind} is no mixture of logits: this search reads component vectors. Use Exact, which only scores"
            )
        self.live = corpus.live
        reps = judge.items if corpus.gone is None else take(judge.items, torch.from_numpy(self.live))
        _check_representations("items", reps, lambda row: corpus.items[self.live[row]].id)
        device = getattr(similarity, "device", "cpu")
        self.items, item_gate = _parts(reps, device)
        self.temperature: float = head.temperature
        self.num_items, self.item_components, self.width = self.items.shape
        self.num_logits = head.gate.num_logits
        self.query_components = self.num_logits // self.item_components
        order = torch.arange(self.num_logits, device=device).view(self.query_components, -1).T.flatten()
        self._order, self._device = order, device
        self._gate: SearchGate = head.gate.for_search(order)
        # The order of the results must not depend on how the pairs were batched, so the last word is in double.
        self._fine: SearchGate = head.gate.for_search(order).double()
        self._item_gate = None if item_gate is None else item_gate.float()[:, order]
        self._memory = memory
        self.highest = 1 / self.temperature
        """No logit exceeds it, but for rounding: components have length 1."""
        self.rounding = (2 * self.num_logits + 8) * torch.finfo(torch.float32).eps * self.highest
        """What rounding can add to a sum of logits with probabilities for weights."""

    def blocks(self, queries: Reps, records: Sequence[Query]) -> Iterator[Block]:
        """The queries' representations in blocks.

        Raises:
            ValueError: some are not finite; the queries are named.
        """
        _check_representations("queries", queries, lambda row: records[row].id)
        raw, gate = _parts(queries, self._device)
        gate = None if gate is None else gate.float()[:, self._order]
        for rows in torch.split(torch.arange(len(raw), device=raw.device), self.queries_at_once(SEGMENT)):
            some = raw[rows]
            yield Block(some.float() / self.temperature, None if gate is None else gate[rows], rows, some)

    def queries_at_once(self, held: int) -> int:
        """Queries of which so many scores take no more than half of the memory."""
        return min(QUERIES, max(1, self._memory // (8 * min(held, self.num_items))))

    def ranges(self, queries: int) -> Iterator[tuple[int, int]]:
        """Ranges of all items of which a score for each of the queries takes no more than half of the memory."""
        size = max(1, self._memory // (8 * queries))
        for start in range(0, self.num_items, size):
            yield start, min(start + size, self.num_items)

    def chunks(
        self, block: Block, first: int = 0, last: int | None = None, size: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """Ranges of items from ``first`` to before ``last``: of ``size``, or as suits the gate, in half the memory."""
        each = len(block) * self.num_logits
        size = min(CHUNK, LOGITS // each) if size is None else size
        size = max(1, min(size, self._memory // (16 * each)))
        last = self.num_items if last is None else last
        for start in range(first, last, size):
            yield start, min(start + size, last)

    def ceiling(self, block: Block) -> Tensor:
        """(b,) what no score exceeds, whatever the item."""
        return torch.full((len(block),), self.highest + self.rounding, device=block.rows.device)

    def logits(self, block: Block, start: int, stop: int) -> Tensor:
        """(b, C, P + 1) logits of a block with the items from ``start`` to ``stop``, and a 1 behind each pair's."""
        products = self.items[start:stop].float().flatten(0, 1) @ block.components.flatten(0, 1).T
        by_item = products.view(stop - start, self.item_components, len(block), self.query_components)
        return self._with_one(by_item.permute(2, 0, 1, 3))

    def _with_one(self, by_pair: Tensor) -> Tensor:
        """(..., P + 1) of (..., P_X, P_Q): the one pass that brings the gate's layers what they read."""
        pairs = by_pair.shape[:-2]
        made = by_pair.new_empty(*pairs, self.num_logits + 1)
        made[..., :-1].view(by_pair.shape).copy_(by_pair)
        made[..., -1] = 1
        return made

    def mix(self, gate: Tensor | None, logits: Tensor, start: int) -> Tensor:
        """(b, C) scores of queries with C items from ``start`` on, whose gate part and `logits` are known."""
        size = logits.shape[1]
        item = None if self._item_gate is None else self._item_gate[start : start + size]
        step = max(1, PAIRS // size)
        parts = [
            self._gate.scores(some, None if gate is None else gate[first : first + step, None], item)
            for first, some in zip(range(0, len(logits), step), torch.split(logits, step), strict=True)
        ]
        return torch.cat(parts)

    def mix_some(self, block: Block, logits: Tensor, start: int, there: Tensor) -> Tensor:
        """(M,) scores of the M pairs ``there`` (b, C) of queries and C items from ``start`` on, of `logits`."""
        flat, parts = logits.flatten(0, 1), []
        for pairs in torch.split(there.flatten().nonzero()[:, 0], PAIRS):
            query, item = pairs // logits.shape[1], pairs % logits.shape[1] + start
            gates = [
                None if gate is None else gate.index_select(0, rows)
                for gate, rows in ((block.gate, query), (self._item_gate, item))
            ]
            parts.append(self._gate.scores(flat.index_select(0, pairs), *gates))
        return torch.cat(parts)

    def score(self, block: Block, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """(b, m) scores of each query with m items of its own."""
        gate = self._gate if dtype == torch.float32 else self._fine
        return torch.cat([gate.scores(*parts) for parts in self._gathered(block, rows, dtype)], dim=1)

    def mean_gates(self, block: Block, rows: Tensor) -> Tensor:
        """(b, P_X, P_Q) probabilities of the gate, each query's mean over m items of its own."""
        found = torch.cat([self._gate.probabilities(*parts) for parts in self._gathered(block, rows)], dim=1)
        return found.mean(dim=1).view(len(block), self.item_components, self.query_components)

    def _gathered(
        self, block: Block, rows: Tensor, dtype: torch.dtype = torch.float32
    ) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None]]:
        """Logits (b, m', P + 1), and the gate's two parts, of each query with m items of its own, a few at once."""
        queries = block.raw.to(dtype).transpose(1, 2) / self.temperature
        query_gate = None if block.gate is None else block.gate[:, None].to(dtype)
        bytes_each = len(block) * self.item_components * self.width * dtype.itemsize
        for some in torch.split(rows, max(1, GATHERED // bytes_each), dim=1):
            products = torch.bmm(self.items[some].to(dtype).flatten(1, 2), queries)
            logits = self._with_one(products.view(*some.shape, self.item_components, self.query_components))
            yield logits, query_gate, None if self._item_gate is None else self._item_gate[some].to(dtype)

    def settle(
        self, block: Block, rows: Tensor, scores: Tensor, k: int, tolerance: float
    ) -> tuple[Rows, Scores, float]:
        """The top k of each query's scored items: those near or above the k-th are scored again, in double precision.

        Args:
            block: of queries.
            rows: (b, m) items.
            scores: (b, m) theirs, in single precision; -inf for none.
            k: at most the number of scored items.
            tolerance: how far these may be off.

        Returns:
            Rows (b, k) and scores (b, k), ties by lower row, and the largest error seen.

        Raises:
            FloatingPointError: a score is not finite.
        """
        check_finite(scores)
        coarse, columns = reaching(scores, kth_largest(scores, k) - 2 * tolerance)
        near = rows.gather(1, columns)
        fine = self.score(block, near, torch.float64)
        there = ~coarse.isneginf()
        error = float((fine - coarse.double())[there].abs().max())
        exact = fine.masked_fill(~there, -torch.inf).float().cpu().numpy()
        items = near.cpu().numpy()
        order = top_order(exact, items, k)
        return np.take_along_axis(items, order, axis=1), np.take_along_axis(exact, order, axis=1), error


class Largest:
    """The largest of each row of scores (R, N), as their columns go by; ties go to the lower column.

    Args:
        rows: R.
        count: how many are wanted.
        device: of the scores.

    Attributes:
        values: (R, m), the largest so far; m is ``count`` where so many went by.
        columns: (R, m) theirs, ascending.
    """

    def __init__(self, rows: int, count: int, device: torch.device) -> None:
        self.count = count
        self.values = torch.empty(rows, 0, device=device)
        self.columns = torch.empty(rows, 0, dtype=torch.int64, device=device)

    def add(self, scores: Tensor, first: int) -> None:
        """Takes the columns (R, C) from ``first`` on, which follow those before."""
        if self.values.shape[1] == self.count:
            new, columns = reaching(scores, self.values.amin(dim=1, keepdim=True))
        else:
            columns = largest(scores, min(self.count, scores.shape[1]))
            new = scores.gather(1, columns)
        values, columns = torch.cat([self.values, new], 1), torch.cat([self.columns, columns + first], 1)
        kept = largest(values, min(self.count, values.shape[1]))
        self.values, self.columns = values.gather(1, kept), columns.gather(1, kept)


def largest(scores: Tensor, k: int) -> Tensor:
    """(R, k) columns of the largest scores in each row of (R, C), ascending; ties go to the lower column."""
    rows, number = scores.shape
    if number == k:
        return torch.arange(k, device=scores.device).expand(rows, -1)
    if number > 4 * GROUP * (k + 1):  # the k + 1 largest lie in the groups of the k + 1 largest maxima
        whole = number // GROUP * GROUP
        groups = scores[:, :whole].view(rows, -1, GROUP).amax(dim=2).topk(k + 1, dim=1).indices
        members = (groups[..., None] * GROUP + torch.arange(GROUP, device=scores.device)).flatten(1)
        rest = torch.arange(whole, number, device=scores.device).expand(rows, -1)
        members = torch.cat([members, rest], dim=1)
        values, columns = scores.gather(1, members).topk(k + 1, dim=1)
        columns = members.gather(1, columns)
    else:
        values, columns = scores.topk(k + 1, dim=1)
    unsure = (values[:, k] == values[:, k - 1]).nonzero()[:, 0]
    if len(unsure):
        columns[unsure, :k] = scores[unsure].sort(dim=1, descending=True, stable=True).indices[:, :k]
    return columns[:, :k].sort(dim=1).values


def kth_largest(scores: Tensor, k: int) -> Tensor:
    """(R, 1) of the rows of (R, C)."""
    return scores.gather(1, largest(scores, k)).amin(dim=1, keepdim=True)


def check_finite(scores: Tensor) -> None:
    """Refuses NaN and infinity in (R, C); -inf stands for no score.

    Raises:
        FloatingPointError: a score is not finite.
    """
    if not bool((scores.amax(dim=1) < torch.inf).all()):  # a maximum passes NaN on
        raise FloatingPointError("the gate gives scores that are not finite; look at the checkpoint's weights")


def reaching(scores: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """Values (R, m) and columns (R, m), ascending, of the scores (R, C) that reach each row's threshold (R, 1).

    Shorter rows are padded with -inf. For thresholds that few reach: the maxima of groups are looked at first.
    """
    scores, number = scores.contiguous(), scores.shape[1]
    whole = number // GROUP * GROUP
    groups = scores[:, :whole].view(len(scores), -1, GROUP)
    row, group = (groups.amax(dim=2) >= thresholds).nonzero(as_tuple=True)
    members = group[:, None] * GROUP + torch.arange(GROUP, device=scores.device)
    rest = torch.arange(len(scores), device=scores.device)[:, None] * number
    rest = rest + torch.arange(whole, number, device=scores.device)
    flat = torch.cat([(row[:, None] * number + members).flatten(), rest.flatten()])
    flat = flat[scores.flatten()[flat] >= thresholds.flatten()[flat // number]].sort().values
    row, counts = flat // number, torch.bincount(flat // number, minlength=len(scores))
    place = torch.arange(len(flat), device=scores.device) - (counts.cumsum(0) - counts)[row]
    values = scores.new_full((len(scores), int(counts.max())), -torch.inf)
    columns = torch.zeros(values.shape, dtype=torch.int64, device=scores.device)
    values[row, place], columns[row, place] = scores.flatten()[flat], flat % number
    return values, columns


def _parts(reps: Reps, device: Any) -> tuple[Tensor, Tensor | None]:
    components, gate = reps["components"], reps.get("gate")
    assert isinstance(components, Tensor) and (gate is None or isinstance(gate, Tensor))
    return components.to(device), None if gate is None else gate.to(device)


def _check_representations(kind: str, reps: Reps, name: Callable[[int], str]) -> None:
    bad: list[int] = []
    for part in reps.values():
        assert isinstance(part, Tensor)
        for start, chunk in zip(range(0, len(part), CHUNK), torch.split(part, CHUNK), strict=True):
            bad += ((~chunk.isfinite().flatten(1).all(dim=1)).nonzero()[:, 0] + start).tolist()
    rows = sorted(set(bad))
    if rows:
        names = ", ".join(name(row) for row in rows[:5])
        raise ValueError(
            f"{len(rows)} {kind} have representations that are not finite: {names}{', ...' * (len(rows) > 5)}; "
            "look at their texts, or at the checkpoint"
        )
