"""What similarities share whose transformers read a query and an item apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simzoo.core.records import Item, Query
from simzoo.core.reps import Reps
from simzoo.losses import Loss
from simzoo.models.parts.backbone import BackboneConfig, Encoder, load_tokenizer
from simzoo.models.parts.tokenizing import TextTokenizer, TokenConfig
from simzoo.models.similarity import LearnedSimilarity
from simzoo.models.training import Optimization

__all__ = ["TwoTowers"]


class TwoTowers(LearnedSimilarity):
    """A query's and an item's tokens go through a transformer each, or through one that they share.

    Args:
        backbone: the pretrained encoder.
        tokens: how texts become token ids.
        shared: one encoder for queries and items; otherwise two, each with its own adapters. None: one, and it is no
            option of the subclass.
        tokens_per_batch: most tokens, padding included, that go through a transformer at once; see
            `simzoo.models.parts.packing.token_budget` for None.
        loss: what training minimises.
        optimization: optimiser and schedule.
        seed: of dropout; None: 0, on the command line seed_everything.
        **own: further arguments of the subclass, to be remembered.
    """

    text: TextTokenizer

    def __init__(
        self,
        backbone: BackboneConfig,
        tokens: TokenConfig,
        shared: bool | None,
        tokens_per_batch: int | None,
        loss: Loss | None,
        optimization: Optimization | None,
        seed: int | None,
        **own: Any,
    ) -> None:
        super().__init__(loss, optimization, seed)
        chosen = {} if shared is None else {"shared": shared}
        self.remember(backbone=backbone, tokens=tokens, **chosen, tokens_per_batch=tokens_per_batch, **own)
        self.text = TextTokenizer(load_tokenizer(backbone), tokens)
        tags = tuple(self.text.tag_ids.values())
        self.query_encoder = Encoder(backbone, tags)
        for side in ("query_length", "item_length"):
            length, most = getattr(tokens, side), self.query_encoder.max_length
            if length > most:
                raise ValueError(f"tokens.{side} is {length}, but {backbone.name} takes at most {most} tokens")
        self.item_encoder = self.query_encoder if shared in (True, None) else Encoder(backbone, tags)
        self.tokens_per_batch = tokens_per_batch

    def collate_queries(self, queries: Sequence[Query]) -> Reps:
        """Token ids with [CLS], the prefix if there is one, and [SEP]."""
        return self.text.queries(queries)

    def collate_items(self, items: Sequence[Item]) -> Reps:
        """Token ids with [CLS], the prefix if there is one, and [SEP]."""
        return self.text.items(items, cls=True)
