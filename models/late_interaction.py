"""Late interaction: queries and items are encoded alone, several vectors of them meet in the score."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simzoo.core.reps import Ragged, Reps, take
from simzoo.losses import Loss
from simzoo.models.parts import papers
from simzoo.models.parts.backbone import BackboneConfig, Encoder
from simzoo.models.parts.packing import in_buckets, lists_of_pairs
from simzoo.models.parts.pooling import Pooling, each_text, each_token, pooled
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.similarity import pair_by_pair
from simzoo.models.towers import TwoTowers
from simzoo.models.training import Optimization

__all__ = ["PolyEncoder", "SumOfMax"]

PRODUCTS = 1 << 24  # products of token vectors held at once


class PolyEncoder(TwoTowers):
    """m learned codes read a query's tokens; the item's vector reads the m vectors (Humeau et al., 2020, §4.4).

    With l_i the dot product of vector i with the item's, the score is the sum of softmax(l)_i l_i.

    Args:
        backbone: the pretrained encoder.
        tokens: how texts become token ids.
        shared: one encoder for queries and items; otherwise two, each with its own adapters.
        codes: m.
        pooling: of an item's tokens.
        cosine_scale: l_i is so many times a cosine, for encoders that were trained on cosines; None: a dot product of
            the vectors as they are, as in the paper.
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
        shared: bool = True,
        codes: int = 64,
        pooling: Pooling = "mean",
        cosine_scale: float | None = None,
        tokens_per_batch: int | None = None,
        loss: Loss | None = None,
        optimization: Optimization | None = None,
        seed: int | None = None,
    ) -> None:
        if codes < 1:
            raise ValueError(f"codes is the number of vectors of a query, at least 1; got {codes}")
        if cosine_scale is not None and not cosine_scale > 0:
            raise ValueError(
                f"cosine_scale is what a cosine is multiplied by, a positive number or null; got {cosine_scale}"
            )
        super().__init__(
            backbone or BackboneConfig(),
            tokens or TokenConfig(),
            shared,
            tokens_per_batch,
            loss,
            optimization,
            seed,
            codes=codes,
            pooling=pooling,
            cosine_scale=cosine_scale,
        )
        self.codes = nn.Parameter(torch.randn(codes, self.query_encoder.width) * self.query_encoder.width**-0.5)
        self.pooling: Pooling = pooling
        self.cosine_scale = cosine_scale

    def encode_queries(self, tokens: Reps) -> Reps:
        """``{"vectors": (B, m, h)}``."""

        def read(padded: Tensor, mask: Tensor) -> Tensor:
            states = self.query_encoder(padded, mask)
            weights = (self.codes @ states.mT).masked_fill(~mask[:, None], -torch.inf).softmax(dim=2)
            vectors: Tensor = weights @ states
            return vectors if self.cosine_scale is None else self.cosine_scale * F.normalize(vectors, dim=2)

        return {"vectors": each_text(tokens["ids"], self.tokens_per_batch, read, tuple(self.codes.shape))}

    def encode_items(self, tokens: Reps) -> Reps:
        """``{"vector": (M, h)}``."""
        vectors = pooled(self.item_encoder, tokens["ids"], self.pooling, self.tokens_per_batch)
        return {"vector": vectors if self.cosine_scale is None else F.normalize(vectors, dim=1)}

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """See `LearnedSimilarity.score`."""
        vectors, item = queries["vectors"], items["vector"]
        assert isinstance(vectors, Tensor) and isinstance(item, Tensor)
        if candidates is None or candidates.shape[0] == 1:
            listed = item if candidates is None else item[candidates[0]]
            logits = vectors @ listed.T
        else:
            logits = vectors @ F.embedding(candidates.clamp_min(0), item).mT
        scores = (logits.softmax(dim=1) * logits).sum(dim=1)
        return scores if candidates is None else scores.masked_fill(candidates < 0, -torch.inf)

    def score_pairs(self, queries: Reps, items: Reps, query_rows: Tensor, item_rows: Tensor) -> Tensor:
        """See `LearnedSimilarity.score_pairs`; a query's m vectors are read once for all its items."""
        rows, candidates, row, column = lists_of_pairs(query_rows, item_rows)
        return self.score(take(queries, rows), items, candidates)[row, column]

    @classmethod
    def tiny(cls) -> Self:
        """Width 16, two layers, three codes."""
        from simzoo.models.parts.tiny import tiny_backbone

        tokens = TokenConfig(query_length=24, item_length=24)
        return cls(BackboneConfig(name=str(tiny_backbone())), tokens, codes=3)


class SumOfMax(TwoTowers):
    """The sum over a query's tokens of the largest dot product with an item's tokens (ColBERT §3; MaxSim).

    Args:
        backbone: the pretrained encoder.
        tokens: how texts become token ids.
        shared: one encoder for queries and items; otherwise two, each with its own adapters.
        width: of a token's vector, after a linear layer; None: the encoder's own states.
        normalize: token vectors have length 1.
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
        shared: bool = True,
        width: int | None = 128,
        normalize: bool = True,
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
            width=width,
            normalize=normalize,
        )
        self.projection = None if width is None else nn.Linear(self.query_encoder.width, width, bias=False)
        self.normalize = normalize

    def encode_queries(self, tokens: Reps) -> Reps:
        """``{"vectors": (B, ragged, d)}``, one for each token."""
        return self._vectors(self.query_encoder, tokens["ids"])

    def encode_items(self, tokens: Reps) -> Reps:
        """``{"vectors": (M, ragged, d)}``, one for each token."""
        return self._vectors(self.item_encoder, tokens["ids"])

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """See `LearnedSimilarity.score`."""
        query, item = queries["vectors"], items["vectors"]
        assert isinstance(query, Ragged) and isinstance(item, Ragged)
        if candidates is None:
            return self._against_all(query, item)
        if candidates.shape[0] == 1:
            scores = self._against_all(query, item.take(candidates[0].clamp_min(0)))
            return scores.masked_fill(candidates < 0, -torch.inf)
        return pair_by_pair(self, queries, items, candidates)

    def score_pairs(self, queries: Reps, items: Reps, query_rows: Tensor, item_rows: Tensor) -> Tensor:
        """See `LearnedSimilarity.score_pairs`; pairs of like size go together."""
        query, item = queries["vectors"], items["vectors"]
        assert isinstance(query, Ragged) and isinstance(item, Ragged)

        def read(pairs: Tensor) -> Tensor:
            left, asked = query.take(query_rows[pairs]).pad()
            right, there = item.take(item_rows[pairs]).pad()
            best = (left @ right.mT).masked_fill(~there[:, None], -torch.inf).amax(dim=2)
            return best.masked_fill(~asked, 0.0).sum(dim=1).float()

        return in_buckets(query.lengths[query_rows] * item.lengths[item_rows], PRODUCTS // 16, read)

    def _against_all(self, query: Ragged, item: Ragged) -> Tensor:
        """(B, M): one matrix product of all tokens, and the largest of each item's columns."""
        owners = torch.repeat_interleave(torch.arange(len(query), device=query.values.device), query.lengths)
        asked = query.values[query.offsets[0] : query.offsets[-1]]
        per_item = max(1, int(item.lengths.max()) * max(len(asked), 1)) if len(item) else 1
        columns = []
        for rows in torch.split(torch.arange(len(item), device=owners.device), max(1, PRODUCTS // per_item)):
            some = item.take(rows)
            segments = torch.repeat_interleave(torch.arange(len(rows), device=owners.device), some.lengths)
            products = asked @ some.values.T
            best = products.new_full((len(asked), len(rows)), -torch.inf)
            best = best.scatter_reduce(1, segments.expand_as(products), products, "amax")
            columns.append(best.new_zeros(len(query), len(rows)).index_add(0, owners, best))
        return torch.cat(columns, dim=1) if columns else asked.new_zeros(len(query), 0)

    def _vectors(self, encoder: Encoder, ids: Tensor | Ragged) -> Reps:
        def read(padded: Tensor, mask: Tensor) -> Tensor:
            states = encoder(padded, mask)
            vectors: Tensor = states if self.projection is None else self.projection(states)
            return F.normalize(vectors, dim=-1) if self.normalize else vectors

        width = encoder.width if self.projection is None else self.projection.out_features
        return {"vectors": each_token(ids, self.tokens_per_batch, read, (width,))}

    @classmethod
    def tiny(cls) -> Self:
        """Width 16, two layers, vectors of width 8."""
        from simzoo.models.parts.tiny import tiny_backbone

        tokens = TokenConfig(query_length=24, item_length=24)
        return cls(BackboneConfig(name=str(tiny_backbone())), tokens, width=8)
