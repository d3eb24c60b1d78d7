"""Products of whole numbers of 8 bits on a CPU: a quarter of the bytes, and several times as fast where it has VNNI."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["HIGHEST", "ZERO", "Int8Matrix", "rounded"]

HIGHEST = 127
ZERO = 128
"""Whole numbers from -127 to 127 are kept with so much added, as unsigned bytes: what the processors multiply."""
TINY = 1e-30


def rounded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows as whole numbers times a step of their own.

    Args:
        rows: (N, d), finite.

    Returns:
        (N, d) uint8, whole numbers with `ZERO` added, and steps (N, 1): a row is about its numbers times its step, off
        by half a step.

    Examples:
        >>> values, steps = rounded(torch.tensor([[0.5, -1.0], [0.0, 0.0]]))
        >>> (values.int() - ZERO).tolist(), round(float(steps[0, 0]), 4)
        ([[64, -127], [0, 0]], 0.0079)
    """
    # No copy of the size of the rows but one: fresh memory costs more than the arithmetic.
    steps = torch.maximum(rows.amax(dim=1), -rows.amin(dim=1)).clamp_min_(TINY).div_(HIGHEST)[:, None]
    shifted = torch.addcmul(torch.tensor(ZERO + 0.5, device=rows.device), rows, 1 / steps)
    return shifted.to(torch.uint8), steps


class Int8Matrix:
    """A matrix that rows of whole numbers are multiplied with.

    On a processor with VNNI the product is one of whole numbers (oneDNN's); without it the same numbers come from one
    in single precision, which is not faster than with fractions: oneDNN's sums of 16 bits could overflow there.

    Args:
        values: (out, in) uint8, as `rounded` gives them.
        steps: (out,) that each column of the product is multiplied with; None: 1.

    Examples:
        >>> two = torch.tensor([[1, 2], [3, -4]]) + ZERO
        >>> Int8Matrix(two.to(torch.uint8))(two[:1].to(torch.uint8))
        tensor([[ 5., -5.]])
    """

    def __init__(self, values: Tensor, steps: Tensor | None = None) -> None:
        self._steps = torch.ones(len(values), device=values.device) if steps is None else steps.clone()
        self._whole = values.device.type == "cpu" and _has_vnni()
        if self._whole:
            signed = (values.to(torch.int16) - ZERO).to(torch.int8)
            self._packed = torch.ops.onednn.qlinear_prepack(signed, None)
            self._zeros = torch.zeros(len(values), dtype=torch.int64)
        else:
            self._packed = (values.float() - ZERO).T.contiguous()

    def __call__(self, rows: Tensor) -> Tensor:
        """(N, in) uint8 to (N, out) float32: the sums of products, exact up to 2^24 (1,040 columns), times steps."""
        if not self._whole:
            plain: Tensor = ((rows.float() - ZERO) @ self._packed).mul_(self._steps)
            return plain
        found: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows, 1.0, ZERO, self._packed, self._steps, self._zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return found


def _has_vnni() -> bool:
    onednn: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return onednn and torch.cpu._is_vnni_supported()
