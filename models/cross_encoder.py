"""Cross-encoders: the transformer reads query and item together ([EMB]-CE and [CLS]-CE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simzoo.core.records import Item, Query
from simzoo.core.reps import Ragged, Reps
from simzoo.losses import Loss
from simzoo.models.parts import papers
from simzoo.models.parts.backbone import BackboneConfig, Encoder, load_tokenizer
from simzoo.models.parts.packing import in_buckets, join_pairs
from simzoo.models.parts.pooling import mean_state
from simzoo.models.parts.prior import DualEncoderPrior, Prior
from simzoo.models.parts.tokenizing import TextTokenizer, TokenConfig
from simzoo.models.similarity import LearnedSimilarity, pair_by_pair
from simzoo.models.training import Optimization

__all__ = ["CrossEncoder"]

OPENING = 10.0
"""Gates are so many times their weights: steps of 5e-4, the size of Adam's for any weight, open one in 200 steps."""


class CrossEncoder(LearnedSimilarity):
    """A transformer over the pair ``[CLS] query [SEP] item [SEP]`` (ANNCUR §2.6 and A.1).

    With ``scoring: mean``, ``item_position: own`` and ``attention: gated`` it begins with the cosines of the dual
    encoder that its backbone starts from, and learns how much either text reads of the other. A ``prior`` adds the
    score of a frozen one, so that only what differs from it is to be learned.

    Args:
        backbone: the pretrained encoder.
        tokens: how texts become token ids.
        scoring: ``emb``: dot product of the mean of the states at the mention tags with the state at the item tag;
            ``cls``: dropout and a linear layer on the [CLS] state; ``pooled``: as ``cls``, after a linear layer and
            tanh, which is BERT's own head for pairs and that of most released cross-encoders; ``mean``: cosine of the
            means of the states of either text.
        item_position: ``after_query``: the item's positions go on where the query's end; ``fixed``: they start at
            ``tokens.query_length`` always, as in the released ANNCUR models (the padding between is never computed);
            ``own``: the item has its own [CLS], positions from 0 and the query's segment, as if it were read alone.
        attention: ``open``: every token reads all; ``gated``: of the other text, each head reads as much as a trained
            gate lets through, nothing at first. Needs a backbone that is built of BERT's layers.
        prior: a frozen dual encoder whose scaled score is added; its vectors are stored with the items. None: none.
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
        scoring: Literal["emb", "cls", "pooled", "mean"] = "emb",
        item_position: Literal["after_query", "fixed", "own"] = "after_query",
        dropout: float = 0.1,
        tokens_per_batch: int | None = None,
        attention: Literal["open", "gated"] = "open",
        prior: DualEncoderPrior | None = None,
        loss: Loss | None = None,
        optimization: Optimization | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(loss, optimization, seed)
        backbone, tokens = backbone or BackboneConfig(), tokens or TokenConfig()
        if scoring == "emb" and (tokens.mention_tags is None or tokens.item_tag is None):
            raise ValueError("scoring: emb reads the states at the tags; give tokens.mention_tags and tokens.item_tag")
        self.text = TextTokenizer(load_tokenizer(backbone), tokens)
        tags = tuple(self.text.tag_ids.values())
        self.encoder = Encoder(backbone, tags)
        longest = tokens.query_length + tokens.item_length
        if longest > self.encoder.max_length:
            raise ValueError(
                f"query_length + item_length = {longest}, but {backbone.name} takes at most "
                f"{self.encoder.max_length} tokens"
            )
        self.scoring = scoring
        self.item_position = item_position
        self.head = _head(scoring, self.encoder.width, dropout)
        self.tokens_per_batch = tokens_per_batch
        gates = (self.encoder.depth, self.encoder.heads) if attention == "gated" else None
        self.gates = None if gates is None else nn.Parameter(torch.zeros(gates))
        self.prior = None if prior is None else Prior(prior, backbone, tags, tokens_per_batch)
        self.remember(
            backbone=backbone,
            tokens=tokens,
            scoring=scoring,
            item_position=item_position,
            dropout=dropout,
            tokens_per_batch=tokens_per_batch,
            attention=attention,
            prior=None if self.prior is None else self.prior.config,
        )

    @property
    def plain(self) -> bool:
        """Whether the pair is read as BERT reads two texts, and the score is of tags or [CLS] alone."""
        packed = self.item_position == "after_query" and self.scoring != "mean"
        return packed and self.gates is None and self.prior is None

    def collate_queries(self, queries: Sequence[Query]) -> Reps:
        """``ids`` (ragged): [CLS] ... [SEP]; ``tags`` (B, 2)."""
        return self.text.queries(queries)

    def collate_items(self, items: Sequence[Item]) -> Reps:
        """``ids`` (ragged): ... [SEP], without [CLS] unless it is the item's own; ``tags`` (M, 1).

        With a prior also ``prior_ids`` (ragged): what the dual encoder reads.
        """
        tokens = self.text.items(items, cls=self.item_position == "own")
        if self.prior is not None:
            tokens["prior_ids"] = self.text.items(items, cls=True)["ids"]
        return tokens

    def encode_queries(self, tokens: Reps) -> Reps:
        """The token ids themselves, and with a prior its ``vector`` (B, h)."""
        return tokens if self.prior is None else {**tokens, "vector": self.prior.vectors(tokens["ids"])}

    def encode_items(self, tokens: Reps) -> Reps:
        """The token ids themselves, and with a prior its ``vector`` (M, h)."""
        if self.prior is None:
            return tokens
        kept = {name: part for name, part in tokens.items() if name != "prior_ids"}
        return {**kept, "vector": self.prior.vectors(tokens["prior_ids"])}

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """See `LearnedSimilarity.score`; real candidates are packed, padding costs nothing."""
        return pair_by_pair(self, queries, items, candidates)

    def score_pairs(self, queries: Reps, items: Reps, query_rows: Tensor, item_rows: Tensor) -> Tensor:
        """See `LearnedSimilarity.score_pairs`; pairs go through in order of length, by token budget."""
        query_ids, item_ids = queries["ids"], items["ids"]
        assert isinstance(query_ids, Ragged) and isinstance(item_ids, Ragged)

        def read(pairs: Tensor) -> Tensor:
            return self._score_bucket(queries, items, query_rows[pairs], item_rows[pairs])

        lengths = query_ids.lengths[query_rows] + item_ids.lengths[item_rows]
        scores = in_buckets(lengths, self.tokens_per_batch, read)
        if self.prior is None:
            return scores
        query, item = queries["vector"], items["vector"]
        assert isinstance(query, Tensor) and isinstance(item, Tensor)
        prior: Tensor = self.prior(query[query_rows], item[item_rows])
        return scores + prior

    def _score_bucket(self, queries: Reps, items: Reps, query_rows: Tensor, item_rows: Tensor) -> Tensor:
        query_ids, item_ids, query_tags, item_tags = queries["ids"], items["ids"], queries["tags"], items["tags"]
        assert isinstance(query_ids, Ragged) and isinstance(item_ids, Ragged)
        assert isinstance(query_tags, Tensor) and isinstance(item_tags, Tensor)
        ids, mask, second = join_pairs(query_ids, item_ids, query_rows, item_rows)
        start = query_ids.lengths[query_rows]
        types, positions = self._places(second, start)
        if self.scoring == "mean":
            states = self._states(ids, mask, second, types, positions)
            query, item = (mean_state(states, mask & (second == side)) for side in (0, 1))
            return F.cosine_similarity(query, item, dim=1)
        if self.head is not None:
            read = torch.zeros(len(ids), 1, dtype=torch.int64, device=ids.device)
            scores: Tensor = self.head(self._states(ids, mask, second, types, positions, read))[:, 0, 0]
            return scores
        read = torch.cat([query_tags[query_rows], start[:, None] + item_tags[item_rows]], dim=1)
        states = self._states(ids, mask, second, types, positions, read)
        return (states[:, :2].mean(dim=1) * states[:, 2]).sum(dim=1)

    def _places(self, second: Tensor, start: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Segments and positions (B, L) of the tokens of pairs whose items start at ``start`` (B,)."""
        if self.item_position == "after_query":
            return second, None
        own = self.item_position == "own"
        offset = 0 if own else self.text.config.query_length
        positions = torch.arange(second.shape[1], device=second.device) + second * (offset - start)[:, None]
        return None if own else second, positions

    def _states(
        self,
        ids: Tensor,
        mask: Tensor,
        second: Tensor,
        types: Tensor | None,
        positions: Tensor | None,
        read: Tensor | None = None,
    ) -> Tensor:
        """Last states at the tokens ``read`` (B, P), or at all."""
        if self.gates is None and read is not None:
            return self.encoder.states_at(ids, mask, read, types, positions)
        if self.gates is None:
            return self.encoder(ids, mask, types, positions)  # type: ignore[no-any-return]
        states = self.encoder.crossing(ids, mask, second, OPENING * self.gates, types, positions)
        return states if read is None else states.gather(1, read[..., None].expand(-1, -1, states.shape[-1]))

    def trained_state(self) -> dict[str, Tensor]:
        """See `TrainingLoop.trained_state`; the prior's frozen weights belong to it: they differ from the backbone."""
        found = super().trained_state()
        if self.prior is not None:
            found |= {f"prior.{name}": value for name, value in self.prior.kept_state().items()}
        return found

    @classmethod
    def tiny(cls) -> Self:
        """Width 16, two layers."""
        from simzoo.models.parts.tiny import tiny_backbone

        return cls(BackboneConfig(name=str(tiny_backbone())), TokenConfig(query_length=24, item_length=24))


def _head(scoring: str, width: int, dropout: float) -> nn.Sequential | None:
    """What is read of the [CLS] state; None where the score is of other states."""
    if scoring not in ("cls", "pooled"):
        return None
    pooler = [nn.Linear(width, width), nn.Tanh()] if scoring == "pooled" else []
    return nn.Sequential(*pooler, nn.Dropout(dropout), nn.Linear(width, 1))
