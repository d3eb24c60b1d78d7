"""Dual encoder: one vector a query, one vector an item, a dot product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from torch import Tensor
from torch.nn import functional as F

from datamodules.records import Item, Query
from datamodules.reps import Ragged, Reps
from losses import Loss
from models.backbone import BackboneConfig, Encoder, load_tokenizer
from models.pooling import Pooling, pooled
from models.similarity import LearnedSimilarity, Optimization, inner_products
from models.tokens import TextEncoder, TokenConfig


class DualEncoder(LearnedSimilarity):
    """Two transformers, or one shared, pooled to one vector each (ANNCUR §2.1, A.3).

    Args:
        backbone: the pretrained encoder.
        tokens: how texts become token ids.
        shared: one encoder for queries and items; otherwise two, each with its own adapters.
        pooling: mean over all real tokens, or the [CLS] state.
        normalize: L2-normalise the vectors, so that scores are cosines.
        tokens_per_batch: most tokens, padding included, that go through the transformer at once. None: 1,024 on a CPU,
            65,536 on a GPU.
        loss: what training minimises.
        optimization: optimiser and schedule.
        seed: of dropout.
    """

    text: TextEncoder

    is_inner_product: ClassVar[bool] = True

    def __init__(
        self,
        backbone: BackboneConfig | None = None,
        tokens: TokenConfig | None = None,
        shared: bool = True,
        pooling: Pooling = "mean",
        normalize: bool = True,
        tokens_per_batch: int | None = None,
        loss: Loss | None = None,
        optimization: Optimization | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(loss, optimization, seed)
        backbone, tokens = backbone or BackboneConfig(), tokens or TokenConfig()
        self.remember(
            backbone=backbone,
            tokens=tokens,
            shared=shared,
            pooling=pooling,
            normalize=normalize,
            tokens_per_batch=tokens_per_batch,
        )
        self.text = TextEncoder(load_tokenizer(backbone), tokens)
        tags = tuple(self.text.tag_ids.values())
        self.query_encoder = Encoder(backbone, tags)
        self.item_encoder = self.query_encoder if shared else Encoder(backbone, tags)
        self.pooling: Pooling = pooling
        self.normalize = normalize
        self.tokens_per_batch = tokens_per_batch

    def collate_queries(self, queries: Sequence[Query]) -> Reps:
        """Token ids with [CLS] and [SEP]."""
        return self.text.queries(queries)

    def collate_items(self, items: Sequence[Item]) -> Reps:
        """Token ids with [CLS] and [SEP]."""
        return self.text.items(items, cls=True)

    def encode_queries(self, tokens: Reps) -> Reps:
        """``{"vector": (B, h)}``."""
        return {"vector": self._vectors(self.query_encoder, tokens["ids"])}

    def encode_items(self, tokens: Reps) -> Reps:
        """``{"vector": (M, h)}``."""
        return {"vector": self._vectors(self.item_encoder, tokens["ids"])}

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """Dot products; see `LearnedSimilarity.score`."""
        return inner_products(queries, items, candidates)

    def _vectors(self, encoder: Encoder, ids: Tensor | Ragged) -> Tensor:
        vectors = pooled(encoder, ids, self.pooling, self.tokens_per_batch)
        return F.normalize(vectors, dim=1) if self.normalize else vectors

    @classmethod
    def tiny(cls) -> Self:
        """Width 16, two layers."""
        from models.tiny import tiny_backbone

        return cls(BackboneConfig(name=str(tiny_backbone())), TokenConfig(query_length=24, item_length=24))
