"""Token sequences into batches with (almost) no padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from simzoo.core.reps import Ragged

ON_CPU = 1024  # what keeps the activations of a small encoder in the caches
ON_GPU = 65_536


_recompute: ContextVar[bool] = ContextVar("recompute", default=False)


@contextmanager
def recomputing(on: bool) -> Iterator[None]:
    """Within it, what is read of one batch of like length is forgotten, and read again when its gradient is due.

    So the memory of a training step is that of one such batch and of what is read of all, whatever the number of
    queries and items (gradient caching); it costs a second forward pass. Gradients are the same, and there is one
    exchange of them between ranks, because there is one backward pass.
    """
    before = _recompute.set(on)
    try:
        yield
    finally:
        _recompute.reset(before)


def read_once(read: Callable[..., Any], *args: Any) -> Any:
    """``read(*args)``; see `recomputing`."""
    if _recompute.get() and torch.is_grad_enabled():
        return checkpoint(read, *args, use_reentrant=False)
    return read(*args)


def token_budget(chosen: int | None, device: torch.device) -> int:
    """Tokens of one batch: what was chosen, or what suits the device."""
    return chosen or (ON_CPU if device.type == "cpu" else ON_GPU)


def buckets(lengths: Tensor, tokens: int) -> Iterator[Tensor]:
    """Rows in order of length, cut into batches of at most ``tokens`` padded tokens (at least one row each).

    Args:
        lengths: (N,) tokens of each sequence.
        tokens: budget of one batch, padding included.

    Yields:
        (n,) int64 rows.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    sizes = lengths[order].tolist()
    start = 0
    while start < len(sizes):
        count = max(1, tokens // max(sizes[start], 1))
        yield order[start : start + count]
        start += count


def in_buckets(
    lengths: Tensor, tokens: int | None, read: Callable[[Tensor], Tensor], shape: tuple[int, ...] = ()
) -> Tensor:
    """What is read of each of N sequences, which are read in batches of like length.

    Args:
        lengths: (N,) tokens of each sequence.
        tokens: budget of one batch, padding included; None: what suits the device (`token_budget`).
        read: of the rows (n,) of one batch to (n, *shape).
        shape: of what is read of one sequence.

    Returns:
        (N, *shape), in the order of ``lengths``, in the type that ``read`` gives; float32 where N is 0.
    """
    parts, rows = [], []
    for bucket in buckets(lengths, token_budget(tokens, lengths.device)):
        parts.append(read_once(read, bucket))
        rows.append(bucket)
    if not parts:
        return torch.empty(0, *shape, device=lengths.device)
    return torch.cat(parts)[torch.argsort(torch.cat(rows))]


def lists_of_pairs(query_rows: Tensor, item_rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pairs as candidate lists, one a query.

    Args:
        query_rows: (P,) rows of queries.
        item_rows: (P,) rows of items.

    Returns:
        The distinct query rows (B,), their candidates (B, K) with -1 for none, and each pair's row (P,) and column (P,)
        in those.
    """
    rows, row = torch.unique(query_rows, return_inverse=True)
    order = torch.argsort(row, stable=True)
    counts = torch.bincount(row, minlength=len(rows))
    starts = torch.repeat_interleave(counts.cumsum(0) - counts, counts)
    column = torch.empty_like(row)
    column[order] = torch.arange(len(row), device=row.device) - starts
    candidates = torch.full((len(rows), int(counts.max()) if len(rows) else 0), -1, device=row.device)
    candidates[row, column] = item_rows
    return rows, candidates, row, column


def join_pairs(left: Ragged, right: Ragged, left_rows: Tensor, right_rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each left sequence followed by its right one, in one pass without a loop over pairs.

    Args:
        left: sequences of ids.
        right: sequences of ids.
        left_rows: (B,) rows of ``left``.
        right_rows: (B,) rows of ``right``.

    Returns:
        ids (B, L) padded with 0, mask (B, L) bool, and second (B, L) int64, 1 at tokens of the right sequence.
    """
    left_lengths, right_lengths = left.lengths[left_rows], right.lengths[right_rows]
    total = left_lengths + right_lengths
    positions = torch.arange(int(total.max()), device=total.device)[None, :]
    mask = positions < total[:, None]
    second = (positions >= left_lengths[:, None]) & mask
    left_index = (left.offsets[left_rows][:, None] + positions).clamp_max(left.values.numel() - 1)
    right_index = right.offsets[right_rows][:, None] + positions - left_lengths[:, None]
    right_index = right_index.clamp(0, right.values.numel() - 1)
    ids = torch.where(second, right.values[right_index], left.values[left_index]).masked_fill(~mask, 0)
    return ids.long(), mask, second.long()
