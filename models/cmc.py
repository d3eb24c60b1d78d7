"""CMC: a query and all its candidates compared with each other by shallow self-attention."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simzoo.core.reps import Ragged, Reps
from simzoo.losses import Loss
from simzoo.models.parts import papers
from simzoo.models.parts.backbone import BackboneConfig, Encoder
from simzoo.models.parts.pooling import Pooling, pooled
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.towers import TwoTowers
from simzoo.models.training import Optimization

__all__ = ["CMC", "ComparingLayer"]

Skip = Literal["sum", "mean", "gated", "none"]
GATE_START = -5.0  # of the released code: the layer begins almost as the identity


class ComparingLayer(nn.TransformerEncoderLayer):
    """A post-norm transformer layer with CMC's extra skip connection, in memory linear in the number of candidates.

    Parameters are those of PyTorch's layer; only the forward pass is its own, because PyTorch's fast path keeps the
    whole (L, L) matrix of attention.

    Args:
        width: h.
        heads: attention heads.
        feedforward: width of the feed-forward part.
        dropout: on attention, activations and both outputs.
        skip: ``sum``: x + layer(x) (CMC §3.1); ``gated``: s layer(x) + (1 - s) x with a learned s = sigmoid(w), as in
            the released code; ``mean``: s = 1/2, as in its recipe; ``none``.
    """

    def __init__(self, width: int, heads: int, feedforward: int, dropout: float, skip: Skip) -> None:
        super().__init__(width, heads, feedforward, dropout, activation=F.relu, batch_first=True)
        self.heads = heads
        self.skip = skip
        self.gate = nn.Parameter(torch.tensor(GATE_START)) if skip == "gated" else None

    def forward(self, states: Tensor, real: Tensor | None) -> Tensor:  # type: ignore[override]
        """One layer.

        Args:
            states: (B, L, h).
            real: (B, L) bool, False at padding; None where there is none.

        Returns:
            (B, L, h); what stands at padding has no meaning.
        """
        layer: Tensor = self.norm1(states + self.dropout1(self._attend(states, real)))
        layer = self.norm2(layer + self._ff_block(layer))
        if self.skip == "sum":
            return states + layer
        if self.skip == "mean":
            return (states + layer) / 2
        if self.gate is not None:
            share = torch.sigmoid(self.gate)
            return share * layer + (1 - share) * states
        return layer

    def _attend(self, states: Tensor, real: Tensor | None) -> Tensor:
        attention = self.self_attn
        size = (*states.shape[:2], 3, self.heads, -1)
        projected = F.linear(states, attention.in_proj_weight, attention.in_proj_bias).view(size)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=None if real is None else real[:, None, None, :],
            dropout_p=attention.dropout if self.training else 0.0,
        )
        mixed: Tensor = attention.out_proj(context.transpose(1, 2).reshape(states.shape))
        return mixed


class CMC(TwoTowers):
    """Comparing multiple candidates (CMC §3.1): <out_q, out_j> after self-attention over [h_q; h_1; ...; h_K].

    Candidates see each other, without positions: a score depends on the whole list, but not on its order. Candidate
    vectors are computed once and stored, one each.

    Args:
        backbone: the pretrained encoder.
        tokens: how texts become token ids.
        shared: one encoder for queries and candidates; the paper has two.
        pooling: the [CLS] state, as in the paper, or the mean over the tokens.
        normalize: L2-normalise the encoders' vectors, for encoders that were trained on cosines.
        layers: self-attention layers.
        heads: attention heads.
        feedforward: width of the feed-forward parts.
        skip: the extra skip connection of each layer: ``sum`` (the paper), ``gated`` or ``mean`` (the released code),
            ``none``; see `ComparingLayer`.
        dropout: of the self-attention layers.
        tokens_per_batch: most tokens, padding included, that go through the transformer at once. None: 1,024 on a CPU,
            65,536 on a GPU.
        loss: what training minimises.
        optimization: optimiser and schedule.
        seed: of dropout; None: 0, on the command line seed_everything.
    """

    citation: ClassVar[str] = papers.CMC
    pointwise: ClassVar[bool] = False

    def __init__(
        self,
        backbone: BackboneConfig | None = None,
        tokens: TokenConfig | None = None,
        shared: bool = False,
        pooling: Pooling = "cls",
        normalize: bool = False,
        layers: int = 2,
        heads: int = 4,
        feedforward: int = 2048,
        skip: Skip = "sum",
        dropout: float = 0.1,
        tokens_per_batch: int | None = None,
        loss: Loss | None = None,
        optimization: Optimization | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            backbone or BackboneConfig(),
            tokens or TokenConfig(),
            shared,
            tokens_per_batch,
            loss,
            optimization,
            seed,
            pooling=pooling,
            normalize=normalize,
            layers=layers,
            heads=heads,
            feedforward=feedforward,
            skip=skip,
            dropout=dropout,
        )
        width = self.query_encoder.width
        if layers < 1 or width % heads:
            raise ValueError(f"CMC needs at least one layer and heads that divide {width}, got {layers} and {heads}")
        self.layers = nn.ModuleList(ComparingLayer(width, heads, feedforward, dropout, skip) for _ in range(layers))
        self.pooling: Pooling = pooling
        self.normalize = normalize

    def encode_queries(self, tokens: Reps) -> Reps:
        """``{"vector": (B, h)}``."""
        return {"vector": self._vectors(self.query_encoder, tokens["ids"])}

    def encode_items(self, tokens: Reps) -> Reps:
        """``{"vector": (M, h)}``."""
        return {"vector": self._vectors(self.item_encoder, tokens["ids"])}

    def _vectors(self, encoder: Encoder, ids: Tensor | Ragged) -> Tensor:
        vectors = pooled(encoder, ids, self.pooling, self.tokens_per_batch)
        return F.normalize(vectors, dim=1) if self.normalize else vectors

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """See `LearnedSimilarity.score`: each row of candidates is one list, compared as a whole."""
        query, item = queries["vector"], items["vector"]
        assert isinstance(query, Tensor) and isinstance(item, Tensor)
        if candidates is None:
            candidates = torch.arange(len(item), device=item.device)[None]
        listed = item[candidates.clamp_min(0)].expand(len(query), -1, -1)
        states = torch.cat([query[:, None], listed], dim=1)
        there = (candidates >= 0).expand(len(query), -1)
        real = None if bool(there.all()) else F.pad(there, (1, 0), value=True)
        for layer in self.layers:
            states = layer(states, real)
        scores = torch.einsum("bd,bkd->bk", states[:, 0], states[:, 1:])
        return scores.masked_fill(~there, -torch.inf)

    @classmethod
    def tiny(cls) -> Self:
        """Width 16, two layers of each kind."""
        from simzoo.models.parts.tiny import tiny_backbone

        tokens = TokenConfig(query_length=24, item_length=24)
        return cls(BackboneConfig(name=str(tiny_backbone())), tokens, heads=2, feedforward=32)
