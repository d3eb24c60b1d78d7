"""Dual encoder: one vector a query, one vector an item, a dot product."""

from __future__ import annotations

from typing import ClassVar, Self

from torch import Tensor
from torch.nn import functional as F

from simzoo.core.reps import Ragged, Reps
from simzoo.losses import Loss
from simzoo.models.parts import papers
from simzoo.models.parts.backbone import BackboneConfig, Encoder
from simzoo.models.parts.pooling import Pooling, pooled
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.similarity import inner_products
from simzoo.models.towers import TwoTowers
from simzoo.models.training import Optimization

__all__ = ["DualEncoder"]


class DualEncoder(TwoTowers):
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
        seed: of dropout; None: 0, on the command line seed_everything.
    """

    citation: ClassVar[str] = papers.ANNCUR
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
        )
        self.pooling: Pooling = pooling
        self.normalize = normalize

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
        from simzoo.models.parts.tiny import tiny_backbone

        return cls(BackboneConfig(name=str(tiny_backbone())), TokenConfig(query_length=24, item_length=24))
