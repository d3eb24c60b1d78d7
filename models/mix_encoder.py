"""MixEncoder: candidates read the query's tokens in its last layers, without changing them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from simzoo.core.reps import Ragged, Reps, num_rows, take
from simzoo.losses import Loss
from simzoo.models.parts import papers
from simzoo.models.parts.backbone import BackboneConfig, pretrained_layers
from simzoo.models.parts.packing import lists_of_pairs
from simzoo.models.parts.pooling import each_text, each_token
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.towers import TwoTowers
from simzoo.models.training import Optimization

__all__ = ["Interaction", "MixEncoder"]

NUMBERS = 1 << 25  # of the widest activations, held at once


class Interaction(nn.Module):
    """What candidates do at one layer of the query's encoder (Yang et al., 2023, §3.3).

    A candidate's context vectors attend to the query's tokens and to each other. Its summary of the query is an
    attention over the tokens as well, asked by the mean of the context vectors, and gated with the summary so far.

    Args:
        layer: a layer of the pretrained encoder, whose weights are the first ones of all parts but the gate.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        own: Any = layer
        attention = own.attention.self
        self.heads: int = attention.num_attention_heads
        self.query, self.key, self.value = attention.query, attention.key, attention.value
        self.summary_query = deepcopy(attention.query)
        self.mixed, self.norm = own.attention.output.dense, own.attention.output.LayerNorm
        self.intermediate, self.output = own.intermediate, own.output
        width: int = attention.query.in_features
        self.gate = nn.Linear(3 * width, width)

    def forward(
        self, keys: Tensor, values: Tensor, mask: Tensor, contexts: Tensor, summary: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One layer.

        Args:
            keys: (B, L, h) of the query's tokens.
            values: (B, L, h) of the query's tokens.
            mask: (B, L) bool, True at real tokens.
            contexts: (B, K, c, h) vectors of the candidates.
            summary: (B, K, h) the query as each candidate has seen it so far.

        Returns:
            New contexts and summaries.
        """
        hint = contexts.mean(dim=2)
        read = self._attend(self.query(contexts), keys, values, mask, self.key(contexts), self.value(contexts))
        seen = self.mixed(self._attend(self.summary_query(hint)[:, :, None], keys, values, mask)[:, :, 0])
        share = torch.sigmoid(self.gate(torch.cat([hint, seen, summary], dim=-1)))
        attended = self.norm(contexts + self.mixed(read))
        gated = self.norm(share * seen + (1 - share) * summary)
        return self.output(self.intermediate(attended), attended), self.output(self.intermediate(gated), gated)

    def _attend(
        self,
        asked: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor,
        own_keys: Tensor | None = None,
        own_values: Tensor | None = None,
    ) -> Tensor:
        """(B, K, n, h): one softmax over the query's tokens (B, L, h) and the candidate's own vectors (B, K, c, h)."""
        query = self._split(asked) / (asked.shape[-1] // self.heads) ** 0.5
        tokens, real = self._split(keys)[:, None], mask[:, None, None, None]
        logits = (query @ tokens.mT).masked_fill(~real, -torch.inf)
        size = logits.shape[-1]
        if own_keys is not None:
            logits = torch.cat([logits, query @ self._split(own_keys).mT], dim=-1)
        weights = logits.softmax(dim=-1)
        read = weights[..., :size] @ self._split(values)[:, None]
        if own_values is not None:
            read = read + weights[..., size:] @ self._split(own_values)
        mixed: Tensor = read.transpose(-2, -3).flatten(-2)
        return mixed

    def _split(self, part: Tensor) -> Tensor:
        """(..., L, h) to (..., heads, L, h / heads)."""
        heads: Tensor = part.reshape(*part.shape[:-1], self.heads, -1).transpose(-2, -3)
        return heads


class MixEncoder(TwoTowers):
    """Light-weight cross-attention from candidates to a query that is encoded once (Yang et al., 2023).

    The score is the dot product of the candidate, the mean of its vectors after the last interaction, with its summary
    of the query. As in CMC's comparison, one vector a candidate and one interaction, at the last layer, are the
    default.

    Args:
        backbone: the pretrained encoder; built of BERT's layers.
        tokens: how texts become token ids.
        contexts: c, vectors of an item, each pooled by a learned code.
        interactions: the last so many layers, in which candidates read the query.
        tokens_per_batch: most tokens, padding included, that go through the transformer at once. None: 1,024 on a CPU,
            65,536 on a GPU.
        loss: what training minimises.
        optimization: optimiser and schedule.
        seed: of dropout; None: 0, on the command line seed_everything.
    """

    citation: ClassVar[str] = papers.CMC

    def __init__(
        self,
        backbone: BackboneConfig | None = None,
        tokens: TokenConfig | None = None,
        contexts: int = 1,
        interactions: int = 1,
        tokens_per_batch: int | None = None,
        loss: Loss | None = None,
        optimization: Optimization | None = None,
        seed: int | None = None,
    ) -> None:
        backbone = backbone or BackboneConfig()
        super().__init__(
            backbone,
            tokens or TokenConfig(),
            None,
            tokens_per_batch,
            loss,
            optimization,
            seed,
            contexts=contexts,
            interactions=interactions,
        )
        if contexts < 1 or not 1 <= interactions <= self.query_encoder.depth:
            raise ValueError(
                f"MixEncoder needs at least one context vector and between 1 and {self.query_encoder.depth} "
                f"interactions, got {contexts} and {interactions}"
            )
        width = self.query_encoder.width
        self.codes = nn.Parameter(torch.randn(contexts, width) * width**-0.5)
        self.interactions = nn.ModuleList(Interaction(layer) for layer in pretrained_layers(backbone, interactions))

    def encode_queries(self, tokens: Reps) -> Reps:
        """``{"keys", "values"}``, (B, ragged, interactions, h) each: what candidates read, one for each token."""
        size = len(self.interactions)

        def read(padded: Tensor, mask: Tensor) -> Tensor:
            return torch.stack(self.query_encoder.keys_and_values(padded, mask, size), dim=2)

        both = each_token(tokens["ids"], self.tokens_per_batch, read, (2, size, self.query_encoder.width))
        return {name: Ragged(both.values[:, i], both.offsets) for i, name in enumerate(("keys", "values"))}

    def encode_items(self, tokens: Reps) -> Reps:
        """``{"contexts": (M, c, h)}``."""

        def read(padded: Tensor, mask: Tensor) -> Tensor:
            states = self.item_encoder(padded, mask)
            weights = (self.codes @ states.mT).masked_fill(~mask[:, None], -torch.inf).softmax(dim=2)
            contexts: Tensor = weights @ states
            return contexts

        return {"contexts": each_text(tokens["ids"], self.tokens_per_batch, read, tuple(self.codes.shape))}

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """See `LearnedSimilarity.score`."""
        size, contexts = num_rows(queries), items["contexts"]
        assert isinstance(contexts, Tensor)
        if candidates is None:
            candidates = torch.arange(len(contexts), device=contexts.device)[None]
        candidates = candidates.expand(size, -1)
        step = max(1, NUMBERS // max(1, candidates.shape[1] * 4 * contexts[0].numel()))
        parts = [
            self._score(take(queries, rows), contexts, candidates[rows])
            for rows in torch.split(torch.arange(size, device=contexts.device), step)
        ]
        return torch.cat(parts).masked_fill(candidates < 0, -torch.inf)

    def _score(self, queries: Reps, contexts: Tensor, candidates: Tensor) -> Tensor:
        keys, values = queries["keys"], queries["values"]
        assert isinstance(keys, Ragged) and isinstance(values, Ragged)
        (padded_keys, mask), (padded_values, _) = keys.pad(), values.pad()
        listed = contexts[candidates.clamp_min(0)]
        summary = torch.zeros_like(listed[:, :, 0])
        for number, interaction in enumerate(self.interactions):
            listed, summary = interaction(padded_keys[:, :, number], padded_values[:, :, number], mask, listed, summary)
        return (listed.mean(dim=2) * summary).sum(dim=-1)

    def score_pairs(self, queries: Reps, items: Reps, query_rows: Tensor, item_rows: Tensor) -> Tensor:
        """See `LearnedSimilarity.score_pairs`; a query's tokens are read once for all its items."""
        rows, candidates, row, column = lists_of_pairs(query_rows, item_rows)
        return self.score(take(queries, rows), items, candidates)[row, column]

    @classmethod
    def tiny(cls) -> Self:
        """Width 16, two layers, an interaction at each, two vectors an item."""
        from simzoo.models.parts.tiny import tiny_backbone

        tokens = TokenConfig(query_length=24, item_length=24)
        return cls(BackboneConfig(name=str(tiny_backbone())), tokens, contexts=2, interactions=2)
