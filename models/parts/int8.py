"""Linear layers in whole numbers of 8 bits, for scoring on a CPU.

Weights have one scale an output, inputs one a token, found as they come. So a token's states depend on its own text
alone: a pair scores the same whatever else is in its batch, which searchers rely on. One scale for a whole batch, as
torch.ao's dynamic quantization has, would break that, and lose more.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from simzoo.core.int8 import Int8Matrix, rounded

__all__ = ["Int8Linear", "check_not_quantized", "quantized_layers"]


class Int8Linear(nn.Module):
    """A linear layer whose product is of whole numbers; it has no gradient.

    Args:
        layer: whose weights are rounded.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        values, steps = rounded(layer.weight.detach().float())
        self._matrix = Int8Matrix(values, steps[:, 0])
        bias: Tensor | None = layer.bias
        self._bias = torch.zeros(self.out_features) if bias is None else bias.detach().float().clone()

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out), in float32."""
        values, steps = rounded(x.flatten(0, -2))
        product = self._matrix(values)
        return torch.addcmul(self._bias, product, steps, out=product).view(*x.shape[:-1], self.out_features)


def quantized_layers(model: nn.Module) -> int:
    """Puts an `Int8Linear` in the place of every linear layer of a model.

    Returns:
        How many there were.
    """
    found = [(parent, name) for parent in model.modules() for name, child in parent.named_children() if _plain(child)]
    for parent, name in found:
        setattr(parent, name, Int8Linear(getattr(parent, name)))
    return len(found)


def check_not_quantized(model: nn.Module) -> None:
    """Refuses a model with an `Int8Linear`: its weights are no longer those that were trained."""
    if any(isinstance(part, Int8Linear) for part in model.modules()):
        raise ValueError(
            "the model is quantized, which is for scoring alone and not saved; save the one that `simzoo.load` gives "
            "without quantize"
        )


def _plain(module: nn.Module) -> bool:
    return type(module) is nn.Linear  # a subclass may compute something else
