"""Training on several ranks as if it were one: their batches together are the batch of a step.

Every rank computes its share of the joint loss, such that the mean over the ranks, which is what data-parallel training
takes of the gradients, is the loss of the joint batch. In a single process all of it does nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from simzoo.core.reps import Ragged, Reps


def world_size() -> int:
    """Processes that train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Number of this process among them."""
    return distributed.get_rank() if world_size() > 1 else 0


def share_of_mean(value: Tensor, count: Tensor) -> Tensor:
    """This rank's share of a mean over the terms of all ranks.

    Args:
        value: scalar, the mean over the terms that this rank has.
        count: scalar, how many these are.

    Returns:
        Scalar; its mean over the ranks is the mean over all their terms.
    """
    if world_size() == 1:
        return value
    own = count.detach().to(value.device, torch.float64)
    total = own.clone()
    distributed.all_reduce(total)
    return value * (own * world_size() / total.clamp_min(1)).to(value.dtype)


def joint(own: Tensor) -> Tensor:
    """The rows of all ranks, rank after rank; gradients reach this rank's own ones alone.

    A term of the loss that every rank computes of all rows goes through `once`.

    Args:
        own: (n, ...), n may differ between ranks.

    Returns:
        (N, ...).
    """
    if world_size() == 1:
        return own
    counts = _counts(len(own), own.device)
    parts = _cut(_gathered(_padded(own.detach(), max(counts))), counts)
    parts[rank()] = own
    return torch.cat(parts)


def once(term: Tensor) -> Tensor:
    """This rank's share of a term that all ranks compute of `joint` rows: the same value, all of the gradient."""
    if world_size() == 1:
        return term
    return term * world_size() - term.detach() * (world_size() - 1)


def gather_reps(own: Reps, counts: list[int]) -> Reps:
    """The representations of all ranks, rank after rank, through which gradients flow back to who encoded them.

    Args:
        own: of this rank's rows.
        counts: rows of each rank, known to all.

    Returns:
        Representations of ``sum(counts)`` rows.
    """
    return {name: _gather_part(part, counts) for name, part in own.items()}


def _gather_part(part: Tensor | Ragged, counts: list[int]) -> Tensor | Ragged:
    if isinstance(part, Tensor):
        return torch.cat(_cut(_through(_padded(part, max(counts))), counts))
    lengths = _gather_part(part.lengths, counts)
    assert isinstance(lengths, Tensor)
    sizes = [int(own.sum()) for own in torch.split(lengths, counts)]
    values = torch.cat(_cut(_through(_padded(part.values, max(sizes))), sizes))
    return Ragged(values, F.pad(lengths.cumsum(0), (1, 0)))


def _through(own: Tensor) -> Tensor:
    found: Tensor = _Gather.apply(own)  # type: ignore[no-untyped-call]
    return found


class _Gather(torch.autograd.Function):
    """(n, ...) of each of W ranks to (W n, ...); backwards every rank gets the sum of all gradients of its own rows."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        return _gathered(own)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        own = gradient.new_empty(gradient.shape[0] // world_size(), *gradient.shape[1:])
        distributed.reduce_scatter_tensor(own, gradient.contiguous())
        return own


def _gathered(own: Tensor) -> Tensor:
    found = own.new_empty(world_size() * own.shape[0], *own.shape[1:])
    distributed.all_gather_into_tensor(found, own.contiguous())
    return found


def _counts(own: int, device: torch.device) -> list[int]:
    found: list[int] = _gathered(torch.tensor([own], device=device)).tolist()
    return found


def _padded(rows: Tensor, count: int) -> Tensor:
    """(count, ...): rows of nothing behind the rows that there are, because ranks exchange equal sizes."""
    return torch.cat([rows, rows.new_zeros(count - len(rows), *rows.shape[1:])])


def _cut(padded: Tensor, counts: list[int]) -> list[Tensor]:
    parts = padded.reshape(len(counts), len(padded) // len(counts), *padded.shape[1:])
    return [part[:count] for part, count in zip(parts, counts, strict=True)]
