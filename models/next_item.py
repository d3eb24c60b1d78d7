"""Next-item recommendation: a sequence encoder's last state against the items' embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric

from simzoo.core.batch import Batch
from simzoo.core.records import DataError, History, Item, Query
from simzoo.core.reps import Ragged, Reps
from simzoo.losses import Loss
from simzoo.models.parts import papers
from simzoo.models.parts.packing import buckets, read_once, token_budget
from simzoo.models.parts.sequence import SequenceConfig, build_encoder
from simzoo.models.similarity import LearnedSimilarity, inner_products
from simzoo.models.training import Optimization

__all__ = ["NextItem", "rank_metrics", "target_ranks"]

HIT_RATES = (1, 10, 50, 200)


class NextItem(LearnedSimilarity):
    """SASRec or HSTU with a dot product or a cosine (RAILS §5.1, the baselines).

    A query is a `History`, an item is its row in the embedding table that the encoder reads, too.

    Args:
        item_ids: the items' ids, by row; the command line takes them from the data.
        encoder: the sequence encoder.
        normalize: L2-normalise states and item embeddings: the score is a cosine, and the loss wants a temperature of
            about 0.05. Otherwise the score is the dot product.
        tokens_per_batch: most positions, padding included, that go through the encoder at once: sequences of like
            length go together. None: what suits the device.
        loss: what training minimises: softmax over the sampled candidates, or over all (`SoftmaxCrossEntropy`), or
            `BinaryCrossEntropy`.
        optimization: optimiser and schedule.
        seed: of dropout; None: 0, on the command line seed_everything.
    """

    citation: ClassVar[str] = papers.RAILS
    is_inner_product: ClassVar[bool] = True

    def __init__(
        self,
        item_ids: list[str],
        encoder: SequenceConfig | None = None,
        normalize: bool = True,
        tokens_per_batch: int | None = None,
        loss: Loss | None = None,
        optimization: Optimization | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(loss, optimization, seed)
        if not item_ids:
            raise ValueError(
                f"{type(self).__name__} has a row for each item and needs their ids; use a data module that knows "
                "them, such as NextItems"
            )
        encoder = encoder or SequenceConfig()
        self.remember(item_ids=item_ids, encoder=encoder, normalize=normalize, tokens_per_batch=tokens_per_batch)
        self.item_ids = item_ids
        self.rows = {name: row for row, name in enumerate(item_ids, start=1)}
        if len(self.rows) != len(item_ids):
            raise ValueError(f"item_ids holds {len(item_ids) - len(self.rows)} ids more than once")
        self.encoder = build_encoder(encoder, len(item_ids))
        self.normalize = normalize
        self.tokens_per_batch = tokens_per_batch
        names = [*(f"hr@{k}" for k in HIT_RATES), "ndcg@10", "mrr"]
        self.means = nn.ModuleDict({name: MeanMetric() for name in names})

    def collate_queries(self, queries: Sequence[Query]) -> Reps:
        """``{"ids": rows of items, "times": seconds}``, ragged, of each history's last actions; times if they matter.

        ``next_times`` holds those of the actions that follow, where the encoder's biases begin at them.

        Raises:
            DataError: a query is no history, names an unknown item, or lacks the times that the encoder was built for.
        """
        histories = [self._checked(query) for query in queries]
        length = self.encoder.config.length
        ids = Ragged.of([[self._row(item, h) for item in h.items[-length:]] for h in histories])
        if not self.encoder.config.time_buckets:
            return {"ids": ids}
        tokens: Reps = {"ids": ids, "times": Ragged.of([(h.times or ())[-length:] for h in histories], torch.int64)}
        if self.encoder.config.bias_time == "next":
            following = [(*(h.times or ())[1:], h.now or 0)[-length:] for h in histories]
            tokens["next_times"] = Ragged.of(following, torch.int64)
        return tokens

    def collate_items(self, items: Sequence[Item]) -> Reps:
        """``{"row": (M,)}``.

        Raises:
            DataError: an item is unknown.
        """
        return {"row": torch.tensor([self._row(item.id) for item in items], dtype=torch.int64)}

    def encode_queries(self, tokens: Reps) -> Reps:
        """``{"vector": (B, D)}``, the state at the last action."""
        ids = tokens["ids"]
        assert isinstance(ids, Ragged)
        return {"vector": self._states(tokens)[ids.offsets[1:] - ids.offsets[0] - 1]}

    def encode_positions(self, tokens: Reps) -> Reps:
        """``{"vector": (T, D)}``, the states at all positions, sequence after sequence: what training predicts from."""
        return {"vector": self._states(tokens)}

    def encode_items(self, tokens: Reps) -> Reps:
        """``{"vector": (M, D)}``."""
        rows = tokens["row"]
        assert isinstance(rows, Tensor)
        return {"vector": self._scaled(self.encoder.item(rows))}

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """Dot products or cosines; see `LearnedSimilarity.score`."""
        return inner_products(queries, items, candidates)

    def list_scores(self, batch: Batch) -> Tensor:
        """Scores (B, K); in training every position of the histories is a query."""
        if not batch.every_position:
            return super().list_scores(batch)
        queries, items = self.encode_positions(batch.queries), self.encode_batch_items(batch)
        scores = self.score(queries, items, batch.candidates)
        if batch.shared is None:
            return scores
        return torch.cat([scores, self.score(queries, items, batch.shared[None])], dim=1)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """HR, NDCG and MRR of the next item among the candidates that the batch does not mask."""
        values: Mapping[str, Tensor] = {}
        if batch.query_ids:  # none: of a rank that has a batch fewer than the others
            values = rank_metrics(target_ranks(self.list_scores(batch), batch.targets.labels, batch.targets.mask))
        for name, module in self.means.items():
            mean: Any = module
            if name in values:
                mean.update(values[name])
            self.log(f"val/{name}", mean, prog_bar=name == "ndcg@10", batch_size=len(batch.query_ids))

    test_step = validation_step

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses a checkpoint whose rows are other items, which would fit and recommend nonsense."""
        if checkpoint["arguments"].get("item_ids", self.item_ids) != self.item_ids:
            raise ValueError(
                "the checkpoint was trained on other items than the data holds, or on another order of them"
            )
        super().on_load_checkpoint(checkpoint)

    def _states(self, tokens: Reps) -> Tensor:
        """(T, D) states of all positions, sequence after sequence."""
        ids = tokens["ids"]
        assert isinstance(ids, Ragged)
        times = [part for name in ("times", "next_times") if isinstance(part := tokens.get(name), Ragged)]
        numbers = Ragged(torch.arange(int(ids.lengths.sum()), device=ids.values.device), ids.offsets - ids.offsets[0])
        parts, places = [torch.empty(0, self.encoder.config.width, device=ids.values.device)], []
        for bucket in buckets(ids.lengths, token_budget(self.tokens_per_batch, ids.values.device)):
            padded, mask = ids.take(bucket).pad()
            states = read_once(self.encoder, padded.long(), *(part.take(bucket).pad()[0] for part in times))
            parts.append(self._scaled(states[mask]))
            places.append(numbers.take(bucket).values)
        return torch.cat(parts)[torch.argsort(torch.cat(places))] if places else parts[0]

    def _scaled(self, vectors: Tensor) -> Tensor:
        return F.normalize(vectors, dim=-1, eps=1e-6) if self.normalize else vectors

    def _checked(self, query: Query) -> History:
        if not isinstance(query, History):
            raise DataError(f"query {query.id!r} is a {type(query).__name__}; {type(self).__name__} needs a History")
        if self.encoder.config.time_buckets and query.times is None:
            raise DataError(f"user {query.id!r} has no times, but the encoder has time buckets: set time_buckets to 0")
        if self.encoder.config.bias_time == "next" and query.now is None:
            raise DataError(
                f"user {query.id!r}: the encoder wants to know when the next action happens (bias_time: next): set "
                "History.now"
            )
        return query

    def _row(self, item: str, history: History | None = None) -> int:
        row = self.rows.get(item)
        if row is None:
            where = "" if history is None else f"user {history.id!r}: "
            raise DataError(
                f"{where}item {item!r} is unknown: it is not among the {len(self.rows)} that the model knows"
            )
        return row

    @classmethod
    def tiny(cls) -> Self:
        """HSTU over the items i0 to i4, width 16, two blocks."""
        encoder = SequenceConfig("hstu", width=16, heads=2, length=8, dropout=0.0, time_buckets=32)
        return cls([f"i{n}" for n in range(5)], encoder)


def target_ranks(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """(B,) ranks from 1 of each row's one positive among the unmasked candidates.

    Ties and NaN count against it, so that a model that gives all items one score finds nothing.

    Args:
        scores: (B, K).
        labels: (B, K), > 0 at one place a row.
        mask: (B, K) bool, True where a candidate counts.
    """
    positive = labels > 0
    target = scores.masked_fill(~positive, -torch.inf).amax(dim=1, keepdim=True)
    return (~(scores < target) & mask & ~positive).sum(dim=1) + 1


def rank_metrics(ranks: Tensor) -> Mapping[str, Tensor]:
    """(B,) values of HR@k, NDCG@10 and MRR, by name, of ranks (B,) of the one relevant item."""
    gain = 1 / torch.log2(ranks + 1.0)
    hits = {f"hr@{k}": (ranks <= k).float() for k in HIT_RATES}
    return {**hits, "ndcg@10": gain * (ranks <= 10), "mrr": 1.0 / ranks}
