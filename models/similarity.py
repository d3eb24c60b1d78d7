"""The contract that every learned similarity fulfils."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from simzoo.core.batch import Batch
from simzoo.core.records import Item, Query
from simzoo.core.reps import Ragged, Reps, num_rows, take
from simzoo.models.parts.tokenizing import Tokenizing
from simzoo.models.ranks import gather_reps, rank
from simzoo.models.training import TrainingLoop

__all__ = ["LearnedSimilarity", "fastest_device", "inner_products", "pair_by_pair"]


def inner_products(queries: Reps, items: Reps, candidates: Tensor | None) -> Tensor:
    """`LearnedSimilarity.score` for a similarity that is the inner product of the parts named ``vector``."""
    query, item = queries["vector"], items["vector"]
    assert isinstance(query, Tensor) and isinstance(item, Tensor)
    if torch.is_autocast_enabled(query.device.type):
        # The loss takes differences of scores, which bf16 rounds to two digits.
        with torch.autocast(query.device.type, enabled=False):
            return inner_products({"vector": query.float()}, {"vector": item.float()}, candidates)
    if candidates is None:
        return query @ item.T
    if candidates.shape[0] == 1:
        scores = query @ item[candidates[0]].T
    else:
        # As an embedding, because the gradient of plain indexing is added up one row after another.
        scores = torch.einsum("bd,bkd->bk", query, F.embedding(candidates.clamp_min(0), item))
    return scores.masked_fill(candidates < 0, -torch.inf)


def pair_by_pair(similarity: LearnedSimilarity, queries: Reps, items: Reps, candidates: Tensor | None) -> Tensor:
    """`LearnedSimilarity.score` for a similarity whose `score_pairs` does the work; only real candidates are scored."""
    size = num_rows(queries)
    if candidates is None:
        candidates = torch.arange(num_rows(items), device=similarity.device)[None]
    candidates = candidates.expand(size, -1)
    real = candidates >= 0
    query_rows = torch.arange(size, device=candidates.device)[:, None].expand_as(candidates)[real]
    pairs = similarity.score_pairs(queries, items, query_rows, candidates[real])
    scores = pairs.new_full(candidates.shape, -torch.inf)
    scores[real] = pairs
    return scores


def fastest_device() -> str:
    """The GPU, where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


class LearnedSimilarity(TrainingLoop, ABC):
    """Scores a query against an item; subclasses say how.

    A representation (`Reps`) is a dict of tensors or ragged sequences that share their first dimension.

    Args:
        loss: what training minimises.
        optimization: optimiser and schedule.
        seed: of dropout; see `TrainingLoop`.
    """

    pointwise: ClassVar[bool] = True
    """Whether a score depends on its own query and item only, so that candidates may be scored in chunks."""

    is_inner_product: ClassVar[bool] = False
    """Whether the score is <query["vector"], item["vector"]>, so that a vector index may search it."""

    citation: ClassVar[str]
    """The paper that the system is from, as BibTeX: a section of every card."""

    text: Tokenizing | None = None
    """How texts become token ids, where there are texts."""

    weights_sha256: str = ""
    """sha256 of the weights file that the model was loaded from; empty for a model at hand."""

    # -- the three verbs, and the tokenising before them ---------------------------------------------------------------

    @abstractmethod
    def collate_queries(self, queries: Sequence[Query]) -> Reps:
        """Tokenises B queries: what `encode_queries` takes. Done once for each query."""

    @abstractmethod
    def collate_items(self, items: Sequence[Item]) -> Reps:
        """Tokenises M items: what `encode_items` takes. Done once for each item."""

    @abstractmethod
    def encode_queries(self, tokens: Reps) -> Reps:
        """Representations of B tokenised queries."""

    @abstractmethod
    def encode_items(self, tokens: Reps) -> Reps:
        """Representations of M tokenised items; this is what a store keeps."""

    @abstractmethod
    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """Scores of candidate lists.

        Args:
            queries: representations of B queries.
            items: representations of M items.
            candidates: (B, K) or (1, K) rows of ``items``, -1 for no candidate; None: every item for every query.

        Returns:
            (B, K), -inf where there is no candidate.
        """

    def score_pairs(self, queries: Reps, items: Reps, query_rows: Tensor, item_rows: Tensor) -> Tensor:
        """Scores of a flat list of pairs.

        Args:
            queries: representations of B queries.
            items: representations of M items.
            query_rows: (P,) rows of ``queries``.
            item_rows: (P,) rows of ``items``.

        Returns:
            (P,).

        Raises:
            TypeError: when the similarity is not pointwise.
        """
        if not self.pointwise:
            raise TypeError(
                f"{type(self).__name__} compares the candidates of a list with each other; it cannot score single "
                "pairs. Use it through a searcher that gives it whole candidate lists."
            )
        return self.score(take(queries, query_rows), items, item_rows[:, None])[:, 0]

    # -- training ------------------------------------------------------------------------------------------------------

    def list_scores(self, batch: Batch) -> Tensor:
        """Scores (B, K) of a training batch."""
        queries = self.encode_queries(batch.queries)
        return self.score(queries, self.encode_batch_items(batch), batch.candidates)

    def encode_batch_items(self, batch: Batch) -> Reps:
        """Representations of a batch's items; where ranks share them, each encodes its own and gets the others'.

        Gradients of the others' scores flow back. What is no more than tokens is not sent: every rank has them.
        """
        if batch.shares is None:
            return self.encode_items(batch.items)
        start, counts = sum(batch.shares[: rank()]), batch.shares
        own = self.encode_items(take(batch.items, torch.arange(start, start + counts[rank()], device=self.device)))
        parts = [part.values if isinstance(part, Ragged) else part for part in own.values()]
        if not any(part.is_floating_point() for part in parts):
            return self.encode_items(batch.items)
        return gather_reps(own, counts)

    # -- use -----------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def rank(self, query: str | Query, documents: Sequence[str | Item]) -> list[tuple[int, float]]:
        """Ranks documents for one query.

        Args:
            query: a text, or a `Query` with a mention.
            documents: texts or `Item` records.

        Returns:
            (row of the document, score), best first.

        Examples:
            >>> from simzoo import DualEncoder
            >>> model = DualEncoder.tiny().eval()
            >>> sorted(row for row, score in model.rank("a flat boat", ["a boat", "money in the bank"]))
            [0, 1]
        """
        queries = [Query("query", query) if isinstance(query, str) else query]
        items = [Item(str(i), d) if isinstance(d, str) else d for i, d in enumerate(documents)]
        reps = self.encode_queries(self.collate_queries(queries)), self.encode_items(self.collate_items(items))
        scores = self.score(*reps)[0]
        order = torch.argsort(scores, descending=True, stable=True).tolist()
        return [(row, float(scores[row])) for row in order]

    @classmethod
    @abstractmethod
    def tiny(cls) -> Self:
        """A tiny model with random weights, for the contract tests."""
