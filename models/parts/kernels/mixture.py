"""Mixture-of-Logits in one kernel: logits, gate, softmax and weighting of a tile of pairs, without a stop in memory.

The plain form writes the P logits of a pair, its hidden units and its gate to memory and reads them again, several
times each. Here they stay in registers; what is written is one score a pair.
"""

from __future__ import annotations

import torch
from torch import Tensor

from simzoo.models.parts.kernels.language import constexpr, jit, power_of_two, precision, tl

__all__ = ["mixture_scores"]

PAIRS = 64  # of a tile: their hidden units are what fills the registers
QUERIES = 4  # of a tile, at most
DEPTH = 32  # of a component, at once


@jit
def _kernel(  # type: ignore[no-untyped-def]
    query,
    item,
    query_gate,
    item_gate,
    weight_in,
    bias_in,
    weight_out,
    bias_out,
    scores,
    queries,
    items,
    TEMPERATURE: constexpr,
    WIDTH: constexpr,
    PARTS_Q: constexpr,
    PARTS_X: constexpr,
    HIDDEN: constexpr,
    HAS_QUERY_GATE: constexpr,
    HAS_ITEM_GATE: constexpr,
    TILE_Q: constexpr,
    TILE_X: constexpr,
    GRID_Q: constexpr,
    GRID_X: constexpr,
    UNITS: constexpr,
    STEP: constexpr,
    PRECISION: constexpr,
):
    """Scores of TILE_Q queries with TILE_X items; GRID_Q x GRID_X, UNITS are powers of two that hold the real sizes."""
    first_x = tl.program_id(0).to(tl.int64) * TILE_X
    first_q = tl.program_id(1).to(tl.int64) * TILE_Q
    left = tl.arange(0, TILE_X * GRID_X)
    right = tl.arange(0, TILE_Q * GRID_Q)
    left_row, left_part = first_x + left // GRID_X, left % GRID_X
    right_row, right_part = first_q + right // GRID_Q, right % GRID_Q
    left_there = (left_row < items) & (left_part < PARTS_X)
    right_there = (right_row < queries) & (right_part < PARTS_Q)
    left_at = (left_row * PARTS_X + left_part) * WIDTH
    right_at = (right_row * PARTS_Q + right_part) * WIDTH
    products = tl.zeros((TILE_X * GRID_X, TILE_Q * GRID_Q), tl.float32)
    for start in range(0, WIDTH, STEP):
        place = start + tl.arange(0, STEP)
        inside = place < WIDTH
        x = tl.load(item + left_at[:, None] + place[None, :], left_there[:, None] & inside[None, :], 0.0)
        q = tl.load(query + right_at[None, :] + place[:, None], right_there[None, :] & inside[:, None], 0.0)
        products = tl.dot(x, q, products, input_precision=PRECISION)
    # (item, item's part, query, query's part) to pairs (query, item) of logits (query's part, item's part).
    grid = tl.reshape(products / TEMPERATURE, (TILE_X, GRID_X, TILE_Q, GRID_Q))
    logits = tl.reshape(tl.permute(grid, (2, 0, 3, 1)), (TILE_Q * TILE_X, GRID_Q * GRID_X))

    cell = tl.arange(0, GRID_Q * GRID_X)
    cell_q, cell_x = cell // GRID_X, cell % GRID_X
    real = (cell_q < PARTS_Q) & (cell_x < PARTS_X)
    number = cell_q * PARTS_X + cell_x
    unit = tl.arange(0, UNITS)
    used = unit < HIDDEN
    size = PARTS_Q * PARTS_X
    into = tl.load(weight_in + unit[None, :] * size + number[:, None], used[None, :] & real[:, None], 0.0)
    hidden = (
        tl.dot(logits, into.to(tl.float32), input_precision=PRECISION) + tl.load(bias_in + unit, used, 0.0)[None, :]
    )
    hidden = hidden * tl.sigmoid(hidden)
    out = tl.load(weight_out + number[None, :] * HIDDEN + unit[:, None], real[None, :] & used[:, None], 0.0)
    gating = (
        tl.dot(hidden, out.to(tl.float32), input_precision=PRECISION) + tl.load(bias_out + number, real, 0.0)[None, :]
    )
    gating = tl.reshape(gating, (TILE_Q, TILE_X, GRID_Q * GRID_X))

    row_q, row_x = first_q + tl.arange(0, TILE_Q), first_x + tl.arange(0, TILE_X)
    there_q, there_x = row_q < queries, row_x < items
    if HAS_QUERY_GATE:
        at = row_q[:, None] * size + number[None, :]
        of_query = tl.load(query_gate + at, there_q[:, None] & real[None, :], 0.0)
    if HAS_ITEM_GATE:
        at = row_x[:, None] * size + number[None, :]
        of_item = tl.load(item_gate + at, there_x[:, None] & real[None, :], 0.0)
    if HAS_QUERY_GATE and HAS_ITEM_GATE:
        gating += of_query[:, None, :] * of_item[None, :, :]
    elif HAS_QUERY_GATE:
        gating += of_query[:, None, :]
    elif HAS_ITEM_GATE:
        gating += of_item[None, :, :]
    gating = tl.where(real[None, None, :], gating * tl.sigmoid(gating), float("-inf"))
    gates = tl.exp(gating - tl.max(gating, axis=2)[:, :, None])
    mixed = tl.sum(gates * tl.reshape(logits, (TILE_Q, TILE_X, GRID_Q * GRID_X)), axis=2) / tl.sum(gates, axis=2)
    tl.store(scores + row_q[:, None] * items + row_x[None, :], mixed, there_q[:, None] & there_x[None, :])


def mixture_scores(
    query: Tensor,
    item: Tensor,
    temperature: float,
    cross: tuple[Tensor, Tensor, Tensor, Tensor],
    query_gate: Tensor | None = None,
    item_gate: Tensor | None = None,
) -> Tensor:
    """Scores (B, N) of B queries with N items; what `MoLHead.score` computes in evaluation (RAILS Eq. 2).

    Args:
        query: (B, P_Q, d) components, not yet divided by the temperature.
        item: (N, P_X, d), of the same type.
        temperature: that divides the logits.
        cross: weight (H, P) and bias (H,), weight (P, H) and bias (P,) of the gate's two layers, in single precision.
        query_gate: (B, P) the gate's query part, in single precision; None without one.
        item_gate: (N, P), likewise.
    """
    query, item = query.contiguous(), item.contiguous()
    (size_q, parts_q, width), (size_x, parts_x) = query.shape, item.shape[:2]
    grid_q = power_of_two(parts_q)
    grid_x = max(power_of_two(parts_x), 16 // grid_q)  # the least inner size of a product
    tile_q = min(QUERIES, power_of_two(size_q))
    hidden = len(cross[1])
    scores = torch.empty(size_q, size_x, device=query.device)
    tile_x = PAIRS // tile_q
    parts = [None if part is None else part.contiguous() for part in (query_gate, item_gate)]
    _kernel[(-(-size_x // tile_x), -(-size_q // tile_q))](
        query,
        item,
        *(scores if part is None else part for part in parts),  # a pointer that is never read
        *(part.contiguous() for part in cross),
        scores,
        size_q,
        size_x,
        TEMPERATURE=temperature,
        WIDTH=width,
        PARTS_Q=parts_q,
        PARTS_X=parts_x,
        HIDDEN=hidden,
        HAS_QUERY_GATE=query_gate is not None,
        HAS_ITEM_GATE=item_gate is not None,
        TILE_Q=tile_q,
        TILE_X=tile_x,
        GRID_Q=grid_q,
        GRID_X=grid_x,
        UNITS=max(16, power_of_two(hidden)),
        STEP=DEPTH,
        PRECISION=precision(),
    )
    return scores
