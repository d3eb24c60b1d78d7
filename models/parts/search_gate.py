"""The gate of Mixture-of-Logits as searches evaluate it: pair by pair, its biases folded into the products."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["SearchGate"]


class SearchGate(nn.Module):
    """What `Gate.forward` computes in evaluation, in half of the time and memory.

    Logits come with a 1 behind them, which takes the first bias into the product. The second is the product's start,
    together with what does not depend on the logits.

    Args:
        cross: weight (H, P) and bias (H,) of the cross part's first layer, weight (P, H) and bias (P,) of its second.
        order: (P,) the trained place of each logit.
    """

    into: Tensor
    out: Tensor
    bias: Tensor

    def __init__(self, cross: tuple[Tensor, Tensor, Tensor, Tensor], order: Tensor) -> None:
        super().__init__()
        weight_in, bias_in, weight_out, bias_out = (part.detach() for part in cross)
        self.register_buffer("into", torch.cat([weight_in[:, order], bias_in[:, None]], dim=1).T.contiguous())
        self.register_buffer("out", weight_out[order].T.contiguous())
        self.register_buffer("bias", bias_out[order].clone())

    def probabilities(self, logits: Tensor, query: Tensor | None, item: Tensor | None) -> Tensor:
        """Those of `Gate.forward`.

        Args:
            logits: (..., P + 1), the last of which is 1.
            query: the query part, in a shape that is expanded to that of the logits; None without one.
            item: the item part, likewise.

        Returns:
            (..., P), which are not negative and sum to 1.
        """
        shape = (*logits.shape[:-1], len(self.bias))
        hidden = F.silu(logits.flatten(0, -2) @ self.into, inplace=True)
        if query is not None and item is not None:
            gating = torch.addcmul(self.bias, query, item)
        else:
            part = query if item is None else item
            gating = self.bias.repeat(*shape[:-1], 1) if part is None else self.bias + part
        gating = gating.expand(shape).contiguous().view(-1, len(self.bias)).addmm_(hidden, self.out)
        return F.silu(gating, inplace=True).softmax(dim=-1).view(shape)

    def scores(self, logits: Tensor, query: Tensor | None, item: Tensor | None) -> Tensor:
        """The scores (...) of `Gate.forward`; see `probabilities` for the arguments."""
        scores: Tensor = torch.linalg.vecdot(self.probabilities(logits, query, item), logits[..., :-1])
        return scores
