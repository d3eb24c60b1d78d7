"""Sequence encoders for next-item recommendation: SASRec and HSTU, from items' rows to a state at every position."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["HSTU", "SASRec", "SequenceConfig", "SequenceEncoder", "build_encoder"]

BUCKET = 0.301  # natural-log width of a bucket of time differences, as in the released HSTU


@dataclass
class SequenceConfig:
    """Sizes of a sequence encoder.

    Attributes:
        architecture: sasrec (Kang and McAuley, 2018) or hstu (Zhai et al., 2024).
        width: of states and item embeddings.
        blocks: attention blocks.
        heads: attention heads; they share the width.
        length: most actions that are read, the last ones.
        dropout: of the input and within the blocks.
        hidden: width of SASRec's feed-forward layers; None: ``width``.
        time_buckets: HSTU: buckets of the time between two actions, on a logarithmic scale, 128 in the released models;
            0: positions only, for data without times.
        bias_time: HSTU: what a time difference begins at: the last action that a state has seen, or the next one, that
            it predicts, as in the released models. The latter must be known when the model is asked (`History.now`).
        output_length: positions kept beyond ``length``, 11 in the released models: no action is read there, but HSTU
            divides its attention by ``length`` + ``output_length``.
        aligned: whether positions are counted from the first action read, or so that the last one is always at
            ``length`` - 1 (SASRec's own code pads on the left, which does this).
        norms: SASRec: ``learned``, layer norms with a scale and a shift, and one behind the last block, as its authors
            have them; ``plain``, without scale and shift, and none behind the last block, as RAILS's authors have them.
    """

    architecture: Literal["sasrec", "hstu"] = "sasrec"
    width: int = 64
    blocks: int = 2
    heads: int = 1
    length: int = 50
    dropout: float = 0.2
    hidden: int | None = None
    time_buckets: int = 0
    bias_time: Literal["last", "next"] = "last"
    output_length: int = 0
    aligned: Literal["first", "last"] = "first"
    norms: Literal["learned", "plain"] = "learned"

    def __post_init__(self) -> None:
        if min(self.width, self.blocks, self.heads, self.length, self.hidden or 1) < 1 or self.width % self.heads:
            raise ValueError(f"sizes must be at least 1, and heads ({self.heads}) must divide width ({self.width})")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is a probability below 1, got {self.dropout}")
        if self.time_buckets < 0 or (self.time_buckets and self.architecture != "hstu"):
            raise ValueError(f"time_buckets is 0 or more, and for hstu only, got {self.time_buckets}")
        if self.output_length < 0 or (self.bias_time == "next" and not self.time_buckets):
            raise ValueError(
                f"output_length is 0 or more, got {self.output_length}; bias_time: next needs time_buckets"
            )
        if self.norms == "plain" and self.architecture != "sasrec":
            raise ValueError(f"norms: plain is a choice of sasrec; {self.architecture} has no learned norms anyway")

    @property
    def positions(self) -> int:
        """``length`` + ``output_length``."""
        return self.length + self.output_length


class SequenceEncoder(nn.Module, ABC):
    """Item rows to states; position i sees the positions up to i and predicts the item at i + 1.

    Args:
        config: sizes.
        num_items: M; items have the rows 1 to M, 0 is padding.
    """

    def __init__(self, config: SequenceConfig, num_items: int) -> None:
        super().__init__()
        self.config = config
        self.num_items = num_items
        self.item = nn.Embedding(num_items + 1, config.width, padding_idx=0)
        self.position = nn.Embedding(config.positions, config.width)
        self.dropout = nn.Dropout(config.dropout)
        nn.init.trunc_normal_(self.item.weight, std=0.02)
        nn.init.trunc_normal_(self.position.weight, std=config.width**-0.5)
        with torch.no_grad():
            self.item.weight[0] = 0

    def forward(self, ids: Tensor, times: Tensor | None = None, next_times: Tensor | None = None) -> Tensor:
        """States of padded sequences.

        Args:
            ids: (B, L) items' rows in the order of time, 0 for padding, which stands on the left or on the right.
            times: (B, L) seconds; anything at padding. Needed if the encoder has time buckets.
            next_times: (B, L) seconds of the action after each. Needed if ``bias_time`` is ``next``.

        Returns:
            (B, L, D), zero at padding. Neither the amount of padding nor its side changes the other states.

        Raises:
            ValueError: a sequence is longer than ``length`` or all padding, a row is unknown, or times are missing.
        """
        self._check(ids, times, next_times)
        mask = ids > 0
        places = mask.cumsum(dim=1) - 1
        if self.config.aligned == "last":
            places = places + self.config.length - mask.sum(dim=1, keepdim=True)
        x = self.item(ids) * math.sqrt(self.config.width) + self.position(places.clamp_min(0))
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()
        asked = times if next_times is None else next_times
        return self.states(self.dropout(x), mask, causal & mask[:, None], times, asked) * mask[..., None]

    @abstractmethod
    def states(self, x: Tensor, mask: Tensor, visible: Tensor, times: Tensor | None, asked: Tensor | None) -> Tensor:
        """The blocks.

        Args:
            x: (B, L, D) embeddings.
            mask: (B, L) bool, False at padding; states there may be anything finite.
            visible: (B, L, L) bool: whether position i may see position j.
            times: (B, L) seconds.
            asked: (B, L) seconds, when each state is asked for a prediction.

        Returns:
            (B, L, D).
        """

    def _check(self, ids: Tensor, times: Tensor | None, next_times: Tensor | None) -> None:
        if ids.shape[1] > self.config.length:
            raise ValueError(f"sequences of {ids.shape[1]} items, but the encoder was built for {self.config.length}")
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) <= self.num_items:
            raise ValueError(f"items have the rows 1 to {self.num_items}, got {int(ids.min())} to {int(ids.max())}")
        empty = torch.nonzero(~(ids > 0).any(dim=1))[:, 0].tolist()
        if empty:
            raise ValueError(f"sequences {empty[:5]} of the batch are empty: nothing but padding")
        if self.config.time_buckets and times is None:
            raise ValueError(
                "the encoder has time buckets, but no times were given; set time_buckets to 0 without them"
            )
        if (self.config.bias_time == "next") != (next_times is not None):
            raise ValueError(f"times of the next actions go with bias_time: next, but it is {self.config.bias_time}")


class SASRec(SequenceEncoder):
    """Self-attentive sequential recommendation (Kang and McAuley, 2018, §III).

    The queries of the attention are normalised, keys and values are not. ``norms`` says whether a layer norm follows
    the last block.
    """

    def __init__(self, config: SequenceConfig, num_items: int) -> None:
        super().__init__(config, num_items)
        self.blocks = nn.ModuleList(SASRecBlock(config) for _ in range(config.blocks))
        self.norm = _norm(config) if config.norms == "learned" else nn.Identity()

    def states(self, x: Tensor, mask: Tensor, visible: Tensor, times: Tensor | None, asked: Tensor | None) -> Tensor:
        """See `SequenceEncoder.states`."""
        # Softmax over nothing is NaN: padding on the left sees itself.
        visible = visible | torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
        for block in self.blocks:
            x = block(x, visible[:, None])
        normed: Tensor = self.norm(x)
        return normed


class SASRecBlock(nn.Module):
    """Causal attention and a feed-forward layer for each position, both with residual connections."""

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.hidden or config.width
        self.heads = config.heads
        self.rate = config.dropout
        self.norm = _norm(config)
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        self.feed_norm = _norm(config)
        self.feed = nn.Sequential(
            nn.Linear(width, hidden),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(hidden, width),
            nn.Dropout(config.dropout),
        )
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.xavier_normal_(part.weight)
                nn.init.zeros_(part.bias)

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:
        """(B, L, D) states and (B, 1, L, L) visibility to (B, L, D)."""
        normed = self.norm(x)
        query, (key, value) = self.query(normed), self.key_value(x).chunk(2, dim=2)
        query, key, value = (_split(part, self.heads) for part in (query, key, value))
        rate = self.rate if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, visible, rate)
        x = self.feed_norm(normed + self.output(attended.transpose(1, 2).flatten(2)))
        fed: Tensor = self.feed(x)
        return x + fed


def _norm(config: SequenceConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.width, eps=1e-8, elementwise_affine=config.norms == "learned")


class HSTU(SequenceEncoder):
    """Hierarchical sequential transduction units (Zhai et al., 2024, §3.2), as in RAILS.

    By default time differences are those between the two actions: a state knows no time later than its own. The
    released code takes the time of the action that is to be predicted (``bias_time: next``).
    """

    def __init__(self, config: SequenceConfig, num_items: int) -> None:
        super().__init__(config, num_items)
        self.blocks = nn.ModuleList(HSTUBlock(config) for _ in range(config.blocks))

    def states(self, x: Tensor, mask: Tensor, visible: Tensor, times: Tensor | None, asked: Tensor | None) -> Tensor:
        """See `SequenceEncoder.states`."""
        x = x * mask[..., None]
        places = torch.arange(x.shape[1], device=x.device)
        apart = (places[:, None] - places).clamp_min(0)
        buckets = None
        if self.config.time_buckets:
            assert times is not None and asked is not None
            # float64: float32 resolves today's seconds to about a minute, but the difference is taken in whole ones.
            between = (asked[:, :, None] - times[:, None]).abs().clamp_min(1).double()
            buckets = (between.log() / BUCKET).long().clamp_max(self.config.time_buckets)
        for block in self.blocks:
            x = block(x, visible[:, None], apart, buckets)
        return x


class HSTUBlock(nn.Module):
    """Gated attention whose weights are SiLU(q k + bias) / length, each for itself: no softmax over the positions."""

    def __init__(self, config: SequenceConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.length = config.positions
        self.uvqk = nn.Linear(config.width, 4 * config.width, bias=False)
        self.output = nn.Linear(config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.position_bias = nn.Parameter(0.02 * torch.randn(config.positions))
        self.time_bias = nn.Parameter(0.02 * torch.randn(config.time_buckets + 1)) if config.time_buckets else None
        nn.init.normal_(self.uvqk.weight, std=0.02)
        nn.init.xavier_uniform_(self.output.weight)

    def forward(self, x: Tensor, visible: Tensor, apart: Tensor, buckets: Tensor | None) -> Tensor:
        """The block.

        Args:
            x: (B, L, D) states.
            visible: (B, 1, L, L) bool.
            apart: (L, L) how many positions j stands before i.
            buckets: (B, L, L) buckets of the time between i and j.

        Returns:
            (B, L, D).
        """
        u, v, q, k = F.silu(self.uvqk(_normed(x))).chunk(4, dim=2)
        v, q, k = (_split(part, self.heads) for part in (v, q, k))
        bias = _looked_up(self.position_bias, apart)[None]
        if buckets is not None:
            assert self.time_bias is not None
            bias = bias + _looked_up(self.time_bias, buckets)
        weights = F.silu(q @ k.transpose(2, 3) + bias[:, None]) * visible / self.length
        attended = (weights @ v).transpose(1, 2).flatten(2)
        changed: Tensor = self.output(self.dropout(u * _normed(attended)))
        return x + changed


class _LookUp(torch.autograd.Function):
    """Entries of a vector; the gradient is a weighted count, which is several times faster than that of indexing."""

    @staticmethod
    def forward(ctx: Any, vector: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.size = len(vector)
        return vector.take(index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        counted = torch.bincount(index.flatten(), grads[0].flatten(), ctx.size)
        return counted.to(grads[0].dtype), None


def _looked_up(vector: Tensor, index: Tensor) -> Tensor:
    found: Tensor = _LookUp.apply(vector, index)  # type: ignore[no-untyped-call]
    return found


def _split(x: Tensor, heads: int) -> Tensor:
    """(B, L, D) to (B, heads, L, D / heads)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def _normed(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


def build_encoder(config: SequenceConfig, num_items: int) -> SequenceEncoder:
    """The encoder that a config names, with random weights."""
    return {"sasrec": SASRec, "hstu": HSTU}[config.architecture](config, num_items)
