"""Representations: named tensors that share their first dimension, dense or ragged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Ragged", "Reps", "concat", "num_rows", "take", "to_device"]


@dataclass(frozen=True)
class Ragged:
    """N sequences of different lengths, end to end.

    Attributes:
        values: (T, ...) all values: numbers, or vectors of one width.
        offsets: (N + 1,) int64; sequence i is ``values[offsets[i]:offsets[i + 1]]``.

    Examples:
        >>> ids = Ragged.of([[5, 6, 7], [8]])
        >>> ids.lengths.tolist(), ids.pad()[0].tolist()
        ([3, 1], [[5, 6, 7], [8, 0, 0]])
    """

    values: Tensor
    offsets: Tensor

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]], dtype: torch.dtype = torch.int32) -> Ragged:
        """From a list of lists."""
        lengths = torch.tensor([0, *(len(s) for s in sequences)], dtype=torch.int64)
        values = torch.tensor([v for s in sequences for v in s], dtype=dtype)
        return cls(values, lengths.cumsum(0))

    def __len__(self) -> int:
        return self.offsets.numel() - 1

    @property
    def lengths(self) -> Tensor:
        """(N,) int64."""
        return self.offsets.diff()

    def take(self, rows: Tensor) -> Ragged:
        """The sequences at ``rows`` (M,), in that order."""
        lengths = self.lengths[rows]
        offsets = torch.zeros(rows.numel() + 1, dtype=torch.int64, device=self.offsets.device)
        torch.cumsum(lengths, 0, out=offsets[1:])
        starts = self.offsets[rows] - offsets[:-1]
        index = torch.arange(int(offsets[-1]), device=offsets.device) + torch.repeat_interleave(starts, lengths)
        return Ragged(self.values[index], offsets)

    def pad(self, value: int = 0) -> tuple[Tensor, Tensor]:
        """(N, L, ...) values padded on the right, and the (N, L) bool mask of real ones; L is the longest length."""
        lengths = self.lengths
        positions = torch.arange(int(lengths.max()) if len(self) else 0, device=self.offsets.device)
        mask = positions < lengths[:, None]
        shape = (*mask.shape, *self.values.shape[1:])
        padded = torch.full(shape, value, dtype=self.values.dtype, device=self.values.device)
        padded[mask] = self.values[self.offsets[0] : self.offsets[-1]]
        return padded, mask

    @property
    def nbytes(self) -> int:
        """Bytes of values and offsets."""
        return self.values.nbytes + self.offsets.nbytes

    def to(self, device: torch.device | str) -> Ragged:
        """On another device."""
        return Ragged(self.values.to(device), self.offsets.to(device))


Reps = dict[str, Tensor | Ragged]


def num_rows(reps: Reps) -> int:
    """The shared first dimension."""
    sizes = {len(part) for part in reps.values()}
    if len(sizes) != 1:
        raise ValueError(f"the parts of a representation must share their first dimension, got {sorted(sizes)}")
    return sizes.pop()


def take(reps: Reps, rows: Tensor) -> Reps:
    """The representations at ``rows`` (M,)."""
    return {name: part.take(rows) if isinstance(part, Ragged) else part[rows] for name, part in reps.items()}


def concat(parts: Sequence[Reps]) -> Reps:
    """Representations one after another."""
    joined: Reps = {}
    for name in parts[0]:
        columns = [part[name] for part in parts]
        if isinstance(columns[0], Ragged):
            ragged = [c for c in columns if isinstance(c, Ragged)]
            lengths = torch.cat([torch.zeros(1, dtype=torch.int64), *(c.lengths for c in ragged)])
            joined[name] = Ragged(torch.cat([c.values for c in ragged]), lengths.cumsum(0))
        else:
            joined[name] = torch.cat([c for c in columns if isinstance(c, Tensor)])
    return joined


def to_device(reps: Reps, device: torch.device | str) -> Reps:
    """All parts on another device."""
    return {name: part.to(device) for name, part in reps.items()}
