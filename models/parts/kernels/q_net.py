"""A q-net's core block in one kernel: a query's weights against a tile of items, norm and residual in registers.

The plain form writes a block's products to memory and passes over them again for activation, norm and residual. Here a
tile keeps whole rows in registers, so that it can norm them, and writes them once. A block's states are the next one's
input; items go through in slices whose states fit a GPU's cache. The last block ends in the score itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from simzoo.models.parts.kernels.language import constexpr, jit, power_of_two, precision, tl

__all__ = ["q_net_scores"]

TILE = 1 << 15  # numbers of a tile of states, which its warps' registers hold
MOST_ITEMS = 64  # of a tile
WARPS = 8
WIDEST = 256  # columns of one product, at most
DEPTH = 32  # of the inner size of a product, at once
STATES = 1 << 25  # bytes of the states of a slice of items: they stay in a GPU's cache
EPSILON = 1e-5  # of torch's layer norm


@jit
def _kernel(  # type: ignore[no-untyped-def]
    states,
    weight,
    bias,
    last,
    found,
    items,
    states_stride,
    states_row,
    found_stride,
    WIDTH: constexpr,
    PARTS: constexpr,
    PART: constexpr,
    TILE: constexpr,
    STEP: constexpr,
    NORM: constexpr,
    RESIDUAL: constexpr,
    LAST: constexpr,
    EPSILON: constexpr,
    PRECISION: constexpr,
):
    """One query's block on TILE items: PARTS products of PART columns each, which stay in registers side by side.

    ``found`` is the next states (K, WIDTH), or with LAST the scores (K,).
    """
    row = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    query = tl.program_id(1).to(tl.int64)
    there = row < items
    at = states + query * states_stride + row * states_row
    matrix = weight + query * WIDTH * WIDTH
    column = tl.arange(0, PART)
    parts = ()
    for part in tl.static_range(PARTS):
        parts = parts + (tl.zeros((TILE, PART), tl.float32),)  # type: ignore[assignment]
    for start in range(0, WIDTH, STEP):
        place = start + tl.arange(0, STEP)
        inside = place < WIDTH
        x = tl.load(at[:, None] + place[None, :], there[:, None] & inside[None, :], 0.0)
        more = ()
        for part in tl.static_range(PARTS):
            out = part * PART + column
            w = tl.load(matrix + out[None, :] * WIDTH + place[:, None], (out < WIDTH)[None, :] & inside[:, None], 0.0)
            more = more + (tl.dot(x, w, parts[part], input_precision=PRECISION),)  # type: ignore[assignment]
        parts = more
    # Activation, and the residual where the norm comes after it. Columns beyond WIDTH are 0 throughout.
    total = tl.zeros((TILE,), tl.float32)
    active = ()
    for part in tl.static_range(PARTS):
        out = part * PART + column
        y = parts[part] + tl.load(bias + query * WIDTH + out, out < WIDTH, 0.0).to(tl.float32)[None, :]
        y = tl.maximum(y, 0.0)
        if RESIDUAL and NORM == "after_residual":
            y += tl.load(at[:, None] + out[None, :], there[:, None] & (out < WIDTH)[None, :], 0.0).to(tl.float32)
        total += tl.sum(y, axis=1)
        active = active + (y,)  # type: ignore[assignment]
    mean = total / WIDTH
    scale = tl.zeros((TILE,), tl.float32)
    if NORM != "none":
        for part in tl.static_range(PARTS):
            away = tl.where((part * PART + column < WIDTH)[None, :], active[part] - mean[:, None], 0.0)
            scale += tl.sum(away * away, axis=1)
        scale = tl.rsqrt(scale / WIDTH + EPSILON)
    score = tl.zeros((TILE,), tl.float32)
    for part in tl.static_range(PARTS):
        out = part * PART + column
        mask = there[:, None] & (out < WIDTH)[None, :]
        y = active[part]
        if NORM != "none":
            y = (y - mean[:, None]) * scale[:, None]
        if RESIDUAL and NORM != "after_residual":
            y += tl.load(at[:, None] + out[None, :], mask, 0.0).to(tl.float32)
        if LAST:
            end = tl.load(last + query * WIDTH + out, out < WIDTH, 0.0).to(tl.float32)
            score += tl.sum(y * end[None, :], axis=1)
        else:
            goal = found + query * found_stride + row[:, None] * WIDTH + out[None, :]
            tl.store(goal, y.to(found.dtype.element_ty), mask)
    if LAST:
        tl.store(found + query * found_stride + row, score.to(found.dtype.element_ty), there)


def q_net_scores(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], last: Tensor, norm: str, residuals: Sequence[bool]
) -> Tensor:
    """Scores (B, K); what `QNet.forward` computes in evaluation with relu.

    Args:
        x: (B, K, h) vectors of items; may be expanded along B.
        weights: (B, h, h) of each core block (out, in), of the type of ``x``.
        biases: (B, 1, h) of each.
        last: (B, 1, h), the layer to one number.
        norm: ``before_residual``, ``after_residual`` or ``none``.
        residuals: of each core block.
    """
    size, length, width = x.shape
    scores = torch.empty(size, length, dtype=x.dtype, device=x.device)
    step = max(MOST_ITEMS, STATES // max(1, 2 * size * width * x.element_size()))
    for start in range(0, length, step):
        states = x[:, start : start + step]
        states = states if states.stride(2) == 1 else states.contiguous()
        for number, (weight, bias, residual) in enumerate(zip(weights, biases, residuals, strict=True)):
            ends = number == len(weights) - 1
            found = scores[:, start : start + step] if ends else states.new_empty(states.shape)
            _block(states, weight, bias, last, found, norm, residual, ends)
            states = found
    return scores


def _block(
    states: Tensor, weight: Tensor, bias: Tensor, last: Tensor, found: Tensor, norm: str, residual: bool, ends: bool
) -> None:
    size, length, width = states.shape
    part = columns(width)
    items = max(16, min(MOST_ITEMS, TILE // power_of_two(width)))
    _kernel[(-(-length // items), size)](
        states,
        weight.contiguous(),
        bias.contiguous(),
        last.contiguous(),
        found,
        length,
        states.stride(0),
        states.stride(1),
        found.stride(0),
        WIDTH=width,
        PARTS=-(-width // part),
        PART=part,
        TILE=items,
        STEP=DEPTH,
        NORM=norm,
        RESIDUAL=residual,
        LAST=ends,
        EPSILON=EPSILON,
        PRECISION=precision(),
        num_warps=WARPS,
    )


def columns(width: int) -> int:
    """Columns of one product, a power of two: one that divides the width where it is large enough to pay."""
    divisor = min(WIDEST, width & -width)
    return divisor if divisor >= WIDEST // 4 else max(16, min(WIDEST, power_of_two(width)))
