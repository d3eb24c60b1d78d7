"""Inductive matrix factorization: a small network on a frozen dual encoder's vectors (AXN §2.1, MF_IND)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from simzoo.core.records import Item, Query
from simzoo.core.reps import Reps
from simzoo.losses import Loss, SquaredError
from simzoo.models.parts import papers
from simzoo.models.parts.backbone import BackboneConfig, Encoder
from simzoo.models.parts.pooling import Pooling, pooled
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.similarity import inner_products
from simzoo.models.towers import TwoTowers
from simzoo.models.training import Optimization

__all__ = ["InductiveMatrixFactorization"]

SKIP = -5.0  # w_skip at the start (A.2.2): the network's part is sigmoid(-5), 0.7 %


class InductiveMatrixFactorization(TwoTowers):
    """out = s mlp(x) + (1 - s) x, s = sigmoid(w_skip), on the vectors x of a dual encoder that stays as it is.

    mlp(x) = b2 + W2 gelu(b1 + W1 x) with W1: d -> 2d (AXN A.2.2); a network for queries and one for items. It reads
    texts, so that items and queries that were not there at training have vectors, too. Collating runs the dual encoder,
    since its vectors never change: training runs it once a record.

    Args:
        backbone: the dual encoder's; ``start`` names its checkpoint.
        tokens: how texts become token ids, as the dual encoder has them.
        shared: one encoder for queries and items; otherwise two.
        pooling: mean over all real tokens, or the [CLS] state, as the dual encoder has it.
        normalize: L2-normalise x, as the dual encoder does it; the output is not normalised.
        tokens_per_batch: most tokens, padding included, that go through the transformer at once. None: 1,024 on a CPU,
            65,536 on a GPU.
        loss: what training minimises; None: `SquaredError`.
        optimization: optimiser and schedule.
        seed: of dropout; None: 0, on the command line seed_everything.
    """

    citation: ClassVar[str] = papers.AXN
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
            loss or SquaredError(),
            optimization,
            seed,
            pooling=pooling,
            normalize=normalize,
        )
        self.pooling: Pooling = pooling
        self.normalize = normalize
        # What differs from the named backbone goes with a checkpoint, trained or not.
        self._kept = [name for name, value in self.named_parameters() if value.requires_grad]
        for encoder in (self.query_encoder, self.item_encoder):
            encoder.requires_grad_(False)
        width = self.query_encoder.width
        self.query_network, self.item_network = _Network(width), _Network(width)
        self.train()

    def train(self, mode: bool = True) -> Self:
        """Training mode of the networks alone: dropout would change the dual encoder's vectors."""
        super().train(mode)
        for encoder in (self.query_encoder, self.item_encoder):
            encoder.eval()
        return self

    def collate_queries(self, queries: Sequence[Query]) -> Reps:
        """``{"base": (B, d)}``, the dual encoder's vectors."""
        return {"base": self._base(self.query_encoder, super().collate_queries(queries))}

    def collate_items(self, items: Sequence[Item]) -> Reps:
        """``{"base": (M, d)}``, the dual encoder's vectors."""
        return {"base": self._base(self.item_encoder, super().collate_items(items))}

    def encode_queries(self, tokens: Reps) -> Reps:
        """``{"vector": (B, d)}``."""
        return {"vector": self.query_network(tokens["base"])}

    def encode_items(self, tokens: Reps) -> Reps:
        """``{"vector": (M, d)}``."""
        return {"vector": self.item_network(tokens["base"])}

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """Dot products; see `LearnedSimilarity.score`."""
        return inner_products(queries, items, candidates)

    def trained_state(self) -> dict[str, Tensor]:
        """See `TrainingLoop.trained_state`; the dual encoder's own weights as well; nothing, if these are merged."""
        held = dict(self.named_parameters())
        if not held.keys() >= set(self._kept):
            return {}
        return {name: held[name].detach() for name in self._kept} | super().trained_state()

    @torch.no_grad()
    def _base(self, encoder: Encoder, tokens: Reps) -> Tensor:
        ids = tokens["ids"].to(self.device)
        vectors = pooled(encoder, ids, self.pooling, self.tokens_per_batch)
        return (nn.functional.normalize(vectors, dim=1) if self.normalize else vectors).cpu()

    @classmethod
    def tiny(cls) -> Self:
        """Width 16, two layers; the networks have half a say."""
        from simzoo.models.parts.tiny import tiny_backbone

        tokens = TokenConfig(query_length=24, item_length=24)
        model = cls(BackboneConfig(name=str(tiny_backbone())), tokens)
        with torch.no_grad():
            for network in (model.query_network, model.item_network):
                network.skip.zero_()
        return model


class _Network(nn.Module):
    """Two layers with a skip connection, whose share is learned."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, 2 * width)
        self.out = nn.Linear(2 * width, width)
        self.skip = nn.Parameter(torch.tensor(SKIP))

    def forward(self, base: Tensor) -> Tensor:
        """(N, d) to (N, d)."""
        share = torch.sigmoid(self.skip)
        made: Tensor = share * self.out(nn.functional.gelu(self.hidden(base))) + (1 - share) * base
        return made
