"""Cross-encoders: the transformer reads query and item together ([EMB]-CE and [CLS]-CE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from simzoo.core.records import Item, Query
from simzoo.core.reps import Ragged, Reps
from simzoo.losses import Loss
from simzoo.models.parts import papers
from simzoo.models.parts.backbone import BackboneConfig, Encoder, load_tokenizer
from simzoo.models.parts.packing import in_buckets, join_pairs
from simzoo.models.parts.tokenizing import TextTokenizer, TokenConfig
from simzoo.models.similarity import LearnedSimilarity, pair_by_pair
from simzoo.models.training import Optimization

__all__ = ["CrossEncoder"]


class CrossEncoder(LearnedSimilarity):
    """A transformer over the pair ``[CLS] query [SEP] item [SEP]`` (ANNCUR §2.6 and A.1).

    Args:
        backbone: the pretrained encoder.
        tokens: how texts become token ids.
        scoring: ``emb``: dot product of the mean of the states at the mention tags with the state at the item tag;
            ``cls``: dropout and a linear layer on the [CLS] state; ``pooled``: as ``cls``, after a linear layer and
            tanh, which is BERT's own head for pairs and that of most released cross-encoders.
        item_position: ``after_query``: the item's positions go on where the query's end; ``fixed``: they start at
            ``tokens.query_length`` always, as in the released ANNCUR models (the padding between is never computed).
        dropout: before the linear layer of ``cls``.
        tokens_per_batch: most tokens, padding included, that go through the transformer at once. None: 1,024 on a CPU,
            65,536 on a GPU.
        loss: what training minimises.
        optimization: optimiser and schedule.
        seed: of dropout; None: 0, on the command line seed_everything.
    """

    citation: ClassVar[str] = papers.ANNCUR
    text: TextTokenizer

    def __init__(
        self,
        backbone: BackboneConfig | None = None,
        tokens: TokenConfig | None = None,
        scoring: Literal["emb", "cls", "pooled"] = "emb",
        item_position: Literal["after_query", "fixed"] = "after_query",
        dropout: float = 0.1,
        tokens_per_batch: int | None = None,
        loss: Loss | None = None,
        optimization: Optimization | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(loss, optimization, seed)
        backbone, tokens = backbone or BackboneConfig(), tokens or TokenConfig()
        if scoring == "emb" and (tokens.mention_tags is None or tokens.item_tag is None):
            raise ValueError("scoring: emb reads the states at the tags; give tokens.mention_tags and tokens.item_tag")
        self.remember(
            backbone=backbone,
            tokens=tokens,
            scoring=scoring,
            item_position=item_position,
            dropout=dropout,
            tokens_per_batch=tokens_per_batch,
        )
        self.text = TextTokenizer(load_tokenizer(backbone), tokens)
        self.encoder = Encoder(backbone, tuple(self.text.tag_ids.values()))
        longest = tokens.query_length + tokens.item_length
        if longest > self.encoder.max_length:
            raise ValueError(
                f"query_length + item_length = {longest}, but {backbone.name} takes at most "
                f"{self.encoder.max_length} tokens"
            )
        self.item_offset = tokens.query_length if item_position == "fixed" else None
        width = self.encoder.width
        pooler = [nn.Linear(width, width), nn.Tanh()] if scoring == "pooled" else []
        self.head = None if scoring == "emb" else nn.Sequential(*pooler, nn.Dropout(dropout), nn.Linear(width, 1))
        self.tokens_per_batch = tokens_per_batch

    def collate_queries(self, queries: Sequence[Query]) -> Reps:
        """``ids`` (ragged): [CLS] ... [SEP]; ``tags`` (B, 2)."""
        return self.text.queries(queries)

    def collate_items(self, items: Sequence[Item]) -> Reps:
        """``ids`` (ragged): ... [SEP], without [CLS]; ``tags`` (M, 1)."""
        return self.text.items(items, cls=False)

    def encode_queries(self, tokens: Reps) -> Reps:
        """The token ids themselves."""
        return tokens

    def encode_items(self, tokens: Reps) -> Reps:
        """The token ids themselves."""
        return tokens

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """See `LearnedSimilarity.score`; real candidates are packed, padding costs nothing."""
        return pair_by_pair(self, queries, items, candidates)

    def score_pairs(self, queries: Reps, items: Reps, query_rows: Tensor, item_rows: Tensor) -> Tensor:
        """See `LearnedSimilarity.score_pairs`; pairs go through in order of length, by token budget."""
        query_ids, item_ids = queries["ids"], items["ids"]
        assert isinstance(query_ids, Ragged) and isinstance(item_ids, Ragged)

        def read(pairs: Tensor) -> Tensor:
            return self._score_bucket(queries, items, query_rows[pairs], item_rows[pairs])

        return in_buckets(query_ids.lengths[query_rows] + item_ids.lengths[item_rows], self.tokens_per_batch, read)

    def _score_bucket(self, queries: Reps, items: Reps, query_rows: Tensor, item_rows: Tensor) -> Tensor:
        query_ids, item_ids, query_tags, item_tags = queries["ids"], items["ids"], queries["tags"], items["tags"]
        assert isinstance(query_ids, Ragged) and isinstance(item_ids, Ragged)
        assert isinstance(query_tags, Tensor) and isinstance(item_tags, Tensor)
        ids, mask, second = join_pairs(query_ids, item_ids, query_rows, item_rows)
        start = query_ids.lengths[query_rows]
        positions = None
        if self.item_offset is not None:
            positions = torch.arange(ids.shape[1], device=ids.device) + second * (self.item_offset - start)[:, None]
        if self.head is not None:
            read = torch.zeros(len(ids), 1, dtype=torch.int64, device=ids.device)
            scores: Tensor = self.head(self.encoder.states_at(ids, mask, read, second, positions))[:, 0, 0]
            return scores
        read = torch.cat([query_tags[query_rows], start[:, None] + item_tags[item_rows]], dim=1)
        states = self.encoder.states_at(ids, mask, read, second, positions)
        return (states[:, :2].mean(dim=1) * states[:, 2]).sum(dim=1)

    @classmethod
    def tiny(cls) -> Self:
        """Width 16, two layers."""
        from simzoo.models.parts.tiny import tiny_backbone

        return cls(BackboneConfig(name=str(tiny_backbone())), TokenConfig(query_length=24, item_length=24))
