"""Mixture-of-Logits for text: several vectors of a query and of an item, and a gate that mixes their dot products."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simzoo.core.batch import Batch
from simzoo.core.reps import Ragged, Reps
from simzoo.losses import Loss, MutualInformation
from simzoo.losses.mixture import gate_entropies
from simzoo.models.parts import papers
from simzoo.models.parts.backbone import BackboneConfig, Encoder
from simzoo.models.parts.mixture import MixtureConfig, MoLHead, positive_gates
from simzoo.models.parts.pooling import each_text
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.ranks import joint, once
from simzoo.models.towers import TwoTowers
from simzoo.models.training import Optimization

__all__ = ["MoL", "ParameterizedPooling"]


class ParameterizedPooling(nn.Module):
    """P vectors of a text: for each a distribution over the encoder's outputs, computed from the first one (RAILS A.2).

    Args:
        width: h, of the encoder's outputs.
        vectors: P.
        length: most tokens of a text; the distribution is over their positions.
        hidden: inner width.
    """

    def __init__(self, width: int, vectors: int, length: int, hidden: int = 256) -> None:
        super().__init__()
        self.shape = length, vectors
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.SiLU(), nn.Linear(hidden, length * vectors)
        )

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """States (B, L, h) and mask (B, L), True at real tokens, to (B, P h): the P vectors end to end."""
        weights: Tensor = self.mlp(states[:, 0]).float().unflatten(1, self.shape)[:, : mask.shape[1]]
        weights = F.softmax(weights.masked_fill(~mask[..., None], -torch.inf), dim=1)
        return torch.einsum("blp,blh->bph", weights, states).flatten(1)


class MoL(TwoTowers):
    """A gated sum of the dot products of P_Q query vectors with P_X item vectors (RAILS §2.2 and A.2).

    The raw vector that the gate may see is the pooled ones end to end, before they are made of length 1.

    Args:
        backbone: the pretrained encoder.
        tokens: how texts become token ids; query_prefix and item_prefix are the paper's aggregation tokens, one a
            component. None: the default with tokens from [unused10] on.
        mixture: the grid of components and its gate.
        shared: one encoder for queries and items; otherwise two, each with its own adapters.
        tokens_per_batch: most tokens, padding included, that go through the transformer at once. None: 1,024 on a CPU,
            65,536 on a GPU.
        gate_loss: what training adds for the gates of the positive pairs.
        loss: what training minimises.
        optimization: optimiser and schedule.
        seed: of dropout; None: 0, on the command line seed_everything.
    """

    citation: ClassVar[str] = papers.RAILS

    def __init__(
        self,
        backbone: BackboneConfig | None = None,
        tokens: TokenConfig | None = None,
        mixture: MixtureConfig | None = None,
        shared: bool = True,
        tokens_per_batch: int | None = None,
        gate_loss: MutualInformation | None = None,
        loss: Loss | None = None,
        optimization: Optimization | None = None,
        seed: int | None = None,
    ) -> None:
        mixture = mixture or MixtureConfig()
        tokens = tokens or _with_prefixes(TokenConfig(), mixture)
        if mixture.user_hashes:
            raise ValueError("a text query has no user id: leave mixture.user_hashes empty")
        super().__init__(
            backbone or BackboneConfig(),
            tokens,
            shared,
            tokens_per_batch,
            loss,
            optimization,
            seed,
            mixture=mixture,
        )
        width, sides = self.query_encoder.width, (mixture.query_components, mixture.item_components)
        self.query_pooling = ParameterizedPooling(width, sides[0], tokens.query_length)
        self.item_pooling = ParameterizedPooling(width, sides[1], tokens.item_length)
        self.head = MoLHead(mixture, sides[0] * width, sides[1] * width)
        self.gate_loss = gate_loss or MutualInformation()

    def encode_queries(self, tokens: Reps) -> Reps:
        """``components`` (B, P_Q, d_P); ``gate`` (B, P) where the gate sees the query."""
        return self.head.queries(self._vectors(self.query_encoder, self.query_pooling, tokens["ids"]))

    def encode_items(self, tokens: Reps) -> Reps:
        """``components`` (M, P_X, d_P); ``gate`` (M, P) where the gate sees the item."""
        return self.head.items(self._vectors(self.item_encoder, self.item_pooling, tokens["ids"]))

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """See `LearnedSimilarity.score`."""
        return self.head.scores(queries, items, candidates)

    def score_pairs(self, queries: Reps, items: Reps, query_rows: Tensor, item_rows: Tensor) -> Tensor:
        """See `LearnedSimilarity.score_pairs`."""
        return self.head.score_pairs(queries, items, query_rows, item_rows)

    def training_loss(self, batch: Batch) -> Tensor:
        """The loss of the scores and that of the positives' gates, whose entropies are logged."""
        queries, items = self.encode_queries(batch.queries), self.encode_batch_items(batch)
        scores, gates = self.head.score(queries, items, batch.candidates)
        used = joint(positive_gates(gates, batch.targets))
        if len(used):
            names = "train/entropy_of_mean_gate", "train/mean_entropy_of_gates"
            self.log_dict(dict(zip(names, gate_entropies(used.detach()), strict=True)), batch_size=len(used))
        return self.loss_of_scores(scores, batch.targets) + once(self.gate_loss(used))

    def _vectors(self, encoder: Encoder, pooling: ParameterizedPooling, ids: Tensor | Ragged) -> Tensor:
        return each_text(
            ids,
            self.tokens_per_batch,
            lambda padded, mask: pooling(encoder(padded, mask), mask),
            (encoder.width * pooling.shape[1],),
        )

    @classmethod
    def tiny(cls) -> Self:
        """Width 16, two layers, 2 x 3 components of width 8, a gate with all its parts."""
        from simzoo.models.parts.tiny import tiny_backbone

        tokens = TokenConfig(
            query_length=24,
            item_length=24,
            mention_tags=None,
            item_tag=None,
            query_prefix=("[unused0]", "[unused1]"),
            item_prefix=("[unused2]",),
        )
        mixture = MixtureConfig(
            query_components=2,
            item_components=3,
            width=8,
            query_projection="swiglu",
            item_projection="linear",
            hidden=16,
            gate_hidden=16,
            query_gate=True,
            item_gate=True,
        )
        return cls(BackboneConfig(name=str(tiny_backbone())), tokens, mixture)


def _with_prefixes(tokens: TokenConfig, mixture: MixtureConfig) -> TokenConfig:
    count = mixture.query_components + mixture.item_components
    names = tuple(f"[unused{10 + place}]" for place in range(count))
    return replace(
        tokens, query_prefix=names[: mixture.query_components], item_prefix=names[mixture.query_components :]
    )
