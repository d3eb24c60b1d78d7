"""What makes the weights of Hypencoder's small networks from the queries' token states (§3.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SHIFT = 2.0  # more than any mean token state has in one dimension

Scale = Literal["paper", "released"]


class HyperGroup(nn.Module):
    """G hyperhead matrices of one shape (rows, width), made by the same few batched operations.

    Args:
        size: G.
        rows: of each matrix, the queries of its attention.
        width: of each matrix, its keys and its values.
        scale: what the attention's scores are divided by, see `Hypencoder`.
    """

    def __init__(self, size: int, rows: int, width: int, scale: Scale) -> None:
        super().__init__()
        self.divisor = math.sqrt(width if scale == "paper" else rows)
        self.queries = nn.Parameter(torch.empty(size, rows, width))
        self.projection = nn.Parameter(torch.empty(size, width, width))
        self.offset = nn.Parameter(torch.empty(size * width))  # one dimension: the optimiser decays no biases
        self.base = nn.Parameter(torch.empty(size, rows, width))

    def forward(self, keys_values: Tensor, mask: Tensor) -> Tensor:
        """The matrices of B queries.

        Args:
            keys_values: (B, L, 2 G width), all keys and then all values.
            mask: (B, L) bool, True at real tokens.

        Returns:
            (G, B, rows, width).
        """
        size, rows, width = self.base.shape
        attended = self.attended(keys_values, mask).reshape(size, -1, width)
        offset = self.offset.view(size, 1, width)
        if offset.requires_grad:
            # With one query it would be the very memory of the base's gradient, and adding up batches would count both.
            offset.register_hook(torch.clone)  # type: ignore[no-untyped-call]
        projected = torch.baddbmm(offset, attended, self.projection.mT)
        return projected.view(size, -1, rows, width) + self.base[:, None]

    def attended(self, keys_values: Tensor, mask: Tensor) -> Tensor:
        """What is projected: (G, B, rows, width), after relu and layer norm."""
        size, _, width = self.base.shape
        num_queries, length = mask.shape
        keys, values = keys_values.view(num_queries, length, 2, size, width).permute(2, 3, 0, 1, 4)
        attended = F.scaled_dot_product_attention(
            self.queries[:, None].expand(-1, num_queries, -1, -1).to(keys.dtype),
            keys,
            values,
            attn_mask=mask[None, :, None, :],
            scale=1 / self.divisor,
        )
        return F.layer_norm(F.relu(attended), (width,))


class Hyperhead(nn.Module):
    """From a query's token states to the matrices of its q-net (§3.3).

    For each matrix: K = E theta_K + b and V = E theta_V + b, H = softmax(Q K^T / s) V over the real tokens, layer norm
    without parameters of relu(H), a linear layer, plus a learned base. All K and V come from one product.

    Args:
        width: h, of a token's state.
        shapes: (rows, width) of each matrix, the weights before the biases.
        num_weights: how many of them are weights.
        scale: see `Hypencoder`.
    """

    def __init__(self, width: int, shapes: Sequence[tuple[int, int]], num_weights: int, scale: Scale) -> None:
        super().__init__()
        self.num_weights = num_weights
        kinds = list(dict.fromkeys(shapes))
        self.sizes = [shapes.count(kind) * 2 * kind[1] for kind in kinds]
        self.groups = nn.ModuleList(HyperGroup(shapes.count(kind), *kind, scale) for kind in kinds)
        self.keys_values = nn.Linear(width, sum(self.sizes))
        # Where matrix i is made: its group, and its place there.
        self.places = [(kinds.index(shape), shapes[:i].count(shape)) for i, shape in enumerate(shapes)]
        with torch.no_grad():
            for i in range(len(shapes)):
                self._initialise(self.parameters_of(i), i < num_weights)

    def forward(self, states: Tensor, mask: Tensor) -> list[Tensor]:
        """The matrices of B queries.

        Args:
            states: (B, L, h).
            mask: (B, L) bool, True at real tokens, at least one in every row.

        Returns:
            (B, rows, width) each, in the order of ``shapes``.
        """
        parts = self.keys_values(states).split(self.sizes, dim=-1)
        made = [group(part, mask) for group, part in zip(self.groups, parts, strict=True)]
        return [made[group][place] for group, place in self.places]

    def parameters_of(self, matrix: int) -> dict[str, Tensor]:
        """Views of the parameters that make one matrix, by name: what a loader of other layouts fills.

        ``{key,value}.weight`` (width, h), ``{key,value}.bias`` (width,), ``query`` (rows, width), ``projection.weight``
        (width, width), ``projection.bias`` (width,), ``base`` (rows, width).
        """
        number, place = self.places[matrix]
        group = self.groups[number]
        assert isinstance(group, HyperGroup)
        size, _, width = group.base.shape
        start = sum(self.sizes[:number]) + place * width
        key, value = slice(start, start + width), slice(start + size * width, start + (size + 1) * width)
        return {
            "key.weight": self.keys_values.weight[key],
            "key.bias": self.keys_values.bias[key],
            "value.weight": self.keys_values.weight[value],
            "value.bias": self.keys_values.bias[value],
            "query": group.queries[place],
            "projection.weight": group.projection[place],
            "projection.bias": group.offset.view(size, width)[place],
            "base": group.base[place],
        }

    @torch.no_grad()
    def begin_as_cosine(self, scale: float) -> None:
        """Parameters with which a q-net's score is nearly ``scale`` times a cosine.

        The last matrix: equal attention to all tokens, and values that are the token states, shifted so that relu keeps
        them. Layer norm takes the shift away again and leaves the mean state, centred and of length sqrt(width). The
        core blocks: so small that their residuals and layer norms leave an item's vector, normalised likewise. Centring
        takes one direction of many from both.
        """
        width = self.keys_values.in_features
        *blocks, last = (self.parameters_of(i) for i in range(self.num_weights))
        for name in ("query", "projection.bias", "base"):
            nn.init.zeros_(last[name])
        nn.init.eye_(last["value.weight"])
        nn.init.constant_(last["value.bias"], SHIFT)
        last["projection.weight"].copy_(torch.eye(width) * (scale / width))
        for block in blocks:
            nn.init.normal_(block["base"], std=1 / width)
        for i in range(self.num_weights, len(self.places)):
            for name in ("projection.weight", "projection.bias"):
                nn.init.zeros_(self.parameters_of(i)[name])

    @staticmethod
    def _initialise(parameters: dict[str, Tensor], is_weight: bool) -> None:
        """As the released code does: a new q-net is nearly its base; its 768 is the matrix's width here."""
        width = parameters["base"].shape[1]
        nn.init.normal_(parameters["query"], std=10)
        if is_weight:
            nn.init.normal_(parameters["base"], std=math.sqrt(2 / width))
            nn.init.normal_(parameters["projection.weight"], std=1 / width**2)
            for name in ("projection.bias", "key.bias", "value.bias"):
                nn.init.zeros_(parameters[name])
        else:
            nn.init.zeros_(parameters["base"])
            for name in ("projection.weight", "projection.bias"):
                nn.init.uniform_(parameters[name], -1 / math.sqrt(width), 1 / math.sqrt(width))
