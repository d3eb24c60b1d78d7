"""Small layers that Mixture-of-Logits is built of."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn


class GatedLinear(nn.Module):
    """act(x W_1 + b_1) * (x W_2 + b_2): GEGLU and SwiGLU.

    Args:
        width: of the input.
        hidden: of the output.
        kind: GELU or SiLU for act.
    """

    def __init__(self, width: int, hidden: int, kind: Literal["geglu", "swiglu"]) -> None:
        super().__init__()
        self.both = nn.Linear(width, 2 * hidden)
        nn.init.normal_(self.both.weight, std=0.02)
        nn.init.zeros_(self.both.bias)
        self.act = nn.GELU() if kind == "geglu" else nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to (..., hidden)."""
        gate, value = self.both(x).chunk(2, dim=-1)
        gated: Tensor = self.act(gate) * value
        return gated


class HashedUsers(nn.Module):
    """One embedding of a user id from each of several hash tables; row 0 of a table is padding.

    Args:
        sizes: of the tables.
        width: of an embedding.
        dropout: on the embeddings.
    """

    def __init__(self, sizes: tuple[int, ...], width: int, dropout: float) -> None:
        super().__init__()
        tables = [nn.Embedding(size + 1, width, padding_idx=0) for size in sizes]
        for table in tables:
            # Short ones: components are normalised, so that long ones would hardly turn.
            nn.init.xavier_normal_(table.weight)
        self.tables = nn.ModuleList(tables)
        self.sizes = sizes
        self.dropout = nn.Dropout(dropout)

    def rows(self, users: Tensor) -> Tensor:
        """Embeddings (B, U, width) of user ids (B,), without dropout: what `simzoo.losses.mixture.user_l2` takes."""
        found = [table(users % size + 1) for table, size in zip(self.tables, self.sizes, strict=True)]
        return torch.stack(found, dim=1)

    def forward(self, users: Tensor) -> Tensor:
        """(B, U, width)."""
        dropped: Tensor = self.dropout(self.rows(users))
        return dropped


def linear(width: int, out: int, bias: bool = True) -> nn.Linear:
    """A linear layer that begins as the mixture's do: Xavier's weights, no bias."""
    layer = nn.Linear(width, out, bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def two_layers(width: int, hidden: int, out: int, dropout: float = 0.0) -> nn.Sequential:
    """Dropout, a linear layer, SiLU, and a linear layer without bias."""
    return nn.Sequential(nn.Dropout(dropout), linear(width, hidden), nn.SiLU(), linear(hidden, out, bias=False))
