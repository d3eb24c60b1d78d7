"""Re-rankers as the Hugging Face Hub has them: any sequence classification model of transformers over the pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from simzoo.core.records import Item, Query
from simzoo.core.reps import Ragged, Reps
from simzoo.losses import Loss
from simzoo.models.parts.backbone import BackboneConfig, load_tokenizer
from simzoo.models.parts.classifier import Classifier
from simzoo.models.parts.packing import in_buckets
from simzoo.models.parts.pairs import PairTokenizer, longest_first, templated
from simzoo.models.similarity import LearnedSimilarity, pair_by_pair
from simzoo.models.training import Optimization

__all__ = ["SequenceClassifier"]


class SequenceClassifier(LearnedSimilarity):
    """A transformer and its own head over query and item in the tokenizer's own template; the score is the logit.

    Pairs are cut as transformers cuts them: the longer text first. `simzoo.models.cross_encoder.CrossEncoder` has
    other heads and gives each text a room of its own, for BERT and its kin alone.

    Args:
        backbone: a sequence classification model with one output, or an encoder, which gets a new head.
        max_length: most tokens of a pair, special ones included; None: what the backbone takes.
        mention_marks: put before and after a query's mention, as text; None: the mention is not marked.
        query_prompt: put before every query, as some models want it.
        tokens_per_batch: most tokens, padding included, that go through the transformer at once. None: 1,024 on a CPU,
            65,536 on a GPU.
        loss: what training minimises.
        optimization: optimiser and schedule.
        seed: of dropout; None: 0, on the command line seed_everything.

    Raises:
        ValueError: the backbone has several outputs, or ``max_length`` does not fit it.
    """

    citation: ClassVar[str] = """\
@misc{nogueira2019passage,
  title         = {Passage Re-ranking with BERT},
  author        = {Nogueira, Rodrigo and Cho, Kyunghyun},
  year          = {2019},
  eprint        = {1901.04085},
  archivePrefix = {arXiv}
}"""

    text: PairTokenizer

    def __init__(
        self,
        backbone: BackboneConfig | None = None,
        max_length: int | None = None,
        mention_marks: tuple[str, str] | None = None,
        query_prompt: str = "",
        tokens_per_batch: int | None = None,
        loss: Loss | None = None,
        optimization: Optimization | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(loss, optimization, seed)
        backbone = backbone or BackboneConfig()
        self.remember(
            backbone=backbone,
            max_length=max_length,
            mention_marks=mention_marks,
            query_prompt=query_prompt,
            tokens_per_batch=tokens_per_batch,
        )
        tokenizer = load_tokenizer(backbone)
        self.encoder = Classifier(backbone, tokenizer.pad_token_id)
        longest = min(self.encoder.max_length, tokenizer.model_max_length)
        if max_length is not None and max_length > longest:
            raise ValueError(f"max_length is {max_length}, but {backbone.name} takes at most {longest} tokens")
        self.text = PairTokenizer(tokenizer, backbone.name, max_length or longest, mention_marks, query_prompt)
        self.gives_segments = "token_type_ids" in tokenizer.model_input_names
        self.tokens_per_batch = tokens_per_batch

    def collate_queries(self, queries: Sequence[Query]) -> Reps:
        """``ids`` (B, ragged), without special tokens."""
        return self.text.queries(queries)

    def collate_items(self, items: Sequence[Item]) -> Reps:
        """``ids`` (M, ragged), without special tokens."""
        return self.text.items(items)

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
        query, item = queries["ids"], items["ids"]
        assert isinstance(query, Ragged) and isinstance(item, Ragged)
        template = self.text.template
        left, right = longest_first(query.lengths[query_rows], item.lengths[item_rows], self.text.room)

        def read(pairs: Tensor) -> Tensor:
            asked = query, query_rows[pairs], left[pairs]
            offered = item, item_rows[pairs], right[pairs]
            ids, mask, segments = templated(template, asked, offered, self.encoder.pad)
            scores: Tensor = self.encoder(ids, mask, segments if self.gives_segments else None)
            return scores

        return in_buckets(left + right + template.added, self.tokens_per_batch, read)

    @classmethod
    def tiny(cls) -> Self:
        """Width 16, two layers, a new head whose scores differ."""
        from simzoo.models.parts.tiny import tiny_backbone

        model = cls(BackboneConfig(name=str(tiny_backbone())), max_length=48, mention_marks=("[", "]"))
        with torch.no_grad():
            for value in model.encoder.model.classifier.parameters():
                value.mul_(10)
        return model
