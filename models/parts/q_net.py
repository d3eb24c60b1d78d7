"""The small network that Hypencoder makes of a query, which scores the items' vectors (§3.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simzoo.core.reps import Reps
from simzoo.models.parts.kernels import covered

__all__ = ["QNet", "QNetConfig"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,  # in place, as it is given a product that nothing else needs
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
}

Norm = Literal["before_residual", "after_residual", "none"]

MOST_WIDTH = 1024  # of a state that a GPU's registers hold, a tile at a time


@dataclass
class QNetConfig:
    """The small network that a query becomes (§3.4).

    Attributes:
        widths: width of each core block's output; as many core blocks as widths. A bias-free linear layer to one
            number follows them, so "6-layer" in the paper is six widths.
        activation: of the core blocks.
        residual: add a core block's input to its output; its widths must be equal then.
        residual_on_last: also in the last core block.
        norm: layer norm, without parameters, ``before_residual`` (the released code) or ``after_residual`` (Eq. 6);
            ``none``: no norm.
        dropout: on each core block's input.
    """

    widths: tuple[int, ...] = (384,) * 6
    activation: Literal["relu", "tanh", "sigmoid", "gelu", "leaky_relu"] = "relu"
    residual: bool = True
    residual_on_last: bool = False
    norm: Norm = "before_residual"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"q_net.widths needs one positive width for each core block, got {list(self.widths)}")
        if self.residual_on_last and not self.residual:
            raise ValueError("q_net.residual_on_last needs q_net.residual")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"q_net.dropout is a probability in [0, 1), got {self.dropout}")


class QNet(nn.Module):
    """Applies B queries' networks; it has no parameters of its own.

    Args:
        config: its blocks.
        width: of an item's vector.

    Attributes:
        shapes: (rows, width) of every weight (out, in), then of every bias (1, out).
        names: ``weight_0`` ... ``weight_n``, ``bias_0`` ... in that order.
    """

    def __init__(self, config: QNetConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.activation = ACTIVATIONS[config.activation]
        blocks = len(config.widths)
        widths = (width, *config.widths)
        self.residuals = [config.residual] * (blocks - 1) + [config.residual_on_last]
        for i, residual in enumerate(self.residuals):
            if residual and widths[i] != widths[i + 1]:
                raise ValueError(
                    f"q_net.widths: core block {i} maps {widths[i]} to {widths[i + 1]} numbers and cannot add its "
                    f"input; items are {width} wide, got widths {list(config.widths)}: make them equal or set "
                    "q_net.residual to false"
                )
        outs = (*widths[1:], 1)
        self.shapes = [*zip(outs, widths, strict=True), *((1, out) for out in widths[1:])]
        self.names = [*(f"weight_{i}" for i in range(blocks + 1)), *(f"bias_{i}" for i in range(blocks))]

    def forward(self, weights: Reps, x: Tensor) -> Tensor:
        """Scores.

        Args:
            weights: ``weight_i`` (B, out, in) and ``bias_i`` (B, 1, out).
            x: (B, K, h) vectors of items.

        Returns:
            (B, K).
        """
        matrices = [part for part in weights.values() if isinstance(part, Tensor)]
        if self._fits_kernel(x) and covered(x, *matrices):
            return self._fused(weights, x)
        norm, activation = self.config.norm, self.activation
        for i, residual in enumerate(self.residuals):
            weight, bias = weights[f"weight_{i}"], weights[f"bias_{i}"]
            assert isinstance(weight, Tensor) and isinstance(bias, Tensor)
            y = activation(torch.baddbmm(bias, F.dropout(x, self.config.dropout, self.training), weight.mT))
            if norm == "before_residual":
                y = F.layer_norm(y, y.shape[-1:])
            if residual and not y.requires_grad:
                y += x  # one pass over memory less: beside the products, these are the cost
            elif residual:
                y = y + x
            if norm == "after_residual":
                y = F.layer_norm(y, y.shape[-1:])
            x = y
        last = weights[f"weight_{len(self.residuals)}"]
        assert isinstance(last, Tensor)
        return torch.bmm(x, last.mT)[..., 0]

    def _fits_kernel(self, x: Tensor) -> bool:
        config = self.config
        square = set(config.widths) == {x.shape[-1]} and x.shape[-1] <= MOST_WIDTH
        return square and config.activation == "relu" and not (self.training and config.dropout)

    def _fused(self, weights: Reps, x: Tensor) -> Tensor:
        from simzoo.models.parts.kernels.q_net import q_net_scores  # it imports triton

        found = [weights[name] for name in self.names]
        parts = [part for part in found if isinstance(part, Tensor)]
        blocks = len(self.residuals)
        return q_net_scores(x, parts[:blocks], parts[blocks + 1 :], parts[blocks], self.config.norm, self.residuals)
