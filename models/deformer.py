"""DeFormer: a cross-encoder whose lower layers read query and item apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from simzoo.core.records import Item
from simzoo.core.reps import Ragged, Reps
from simzoo.losses import Loss
from simzoo.models.parts import papers
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.packing import in_buckets
from simzoo.models.parts.pooling import each_token
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.similarity import pair_by_pair
from simzoo.models.towers import TwoTowers
from simzoo.models.training import Optimization

__all__ = ["DeFormer"]


class DeFormer(TwoTowers):
    """The decomposed transformer (Cao et al., 2020, §3): lower layers apart, upper ones over the pair.

    An item's representation is the states of all its tokens after the lower layers; a linear layer on the pair's [CLS]
    state gives the score, as in [CLS]-CE.

    Args:
        backbone: the pretrained encoder; built of BERT's layers.
        tokens: how texts become token ids; an item has no [CLS] of its own.
        upper: layers that read the pair; all below them read either side alone.
        dropout: before the linear layer.
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
        upper: int = 2,
        dropout: float = 0.1,
        tokens_per_batch: int | None = None,
        loss: Loss | None = None,
        optimization: Optimization | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            backbone or BackboneConfig(),
            tokens or TokenConfig(),
            None,
            tokens_per_batch,
            loss,
            optimization,
            seed,
            upper=upper,
            dropout=dropout,
        )
        depth = self.query_encoder.depth
        if not 1 <= upper < depth:
            raise ValueError(f"upper must leave a layer to read texts alone: between 1 and {depth - 1}, got {upper}")
        self.lower = depth - upper
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(self.query_encoder.width, 1))

    def collate_items(self, items: Sequence[Item]) -> Reps:
        """Token ids with [SEP] behind, and no [CLS]: the pair has the query's."""
        return self.text.items(items, cls=False)

    def encode_queries(self, tokens: Reps) -> Reps:
        """``{"states": (B, ragged, h)}`` after the lower layers."""

        def read(padded: Tensor, mask: Tensor) -> Tensor:
            return self.query_encoder.lower(padded, mask, self.lower)

        return {"states": each_token(tokens["ids"], self.tokens_per_batch, read, (self.query_encoder.width,))}

    def encode_items(self, tokens: Reps) -> Reps:
        """``{"states": (M, ragged, h)}`` after the lower layers."""
        return self.encode_queries(tokens)

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """See `LearnedSimilarity.score`."""
        return pair_by_pair(self, queries, items, candidates)

    def score_pairs(self, queries: Reps, items: Reps, query_rows: Tensor, item_rows: Tensor) -> Tensor:
        """See `LearnedSimilarity.score_pairs`; pairs of like length go through the upper layers together."""
        query, item = queries["states"], items["states"]
        assert isinstance(query, Ragged) and isinstance(item, Ragged)

        def read(pairs: Tensor) -> Tensor:
            # Padding may stand between the two: their positions went into the lower layers already.
            (left, asked), (right, there) = query.take(query_rows[pairs]).pad(), item.take(item_rows[pairs]).pad()
            first = torch.zeros(len(left), 1, dtype=torch.int64, device=left.device)
            states = torch.cat([left, right], dim=1), torch.cat([asked, there], dim=1)
            scores: Tensor = self.head(self.query_encoder.upper(*states, first, self.lower))[:, 0, 0]
            return scores.float()

        return in_buckets(query.lengths[query_rows] + item.lengths[item_rows], self.tokens_per_batch, read)

    @classmethod
    def tiny(cls) -> Self:
        """Width 16, one layer apart and one together."""
        from simzoo.models.parts.tiny import tiny_backbone

        tokens = TokenConfig(query_length=24, item_length=24)
        return cls(BackboneConfig(name=str(tiny_backbone())), tokens, upper=1)
