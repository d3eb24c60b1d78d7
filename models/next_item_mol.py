"""Next-item recommendation with Mixture-of-Logits: a sequence encoder's states against the items' embeddings."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from simzoo.core.batch import Batch
from simzoo.core.records import Query
from simzoo.core.reps import Ragged, Reps
from simzoo.losses import Loss, MutualInformation, UserL2
from simzoo.losses.mixture import gate_entropies
from simzoo.models.next_item import NextItem
from simzoo.models.parts import papers
from simzoo.models.parts.mixture import MixtureConfig, MoLHead, positive_gates
from simzoo.models.parts.sequence import SequenceConfig
from simzoo.models.ranks import joint, once, share_of_mean
from simzoo.models.training import Optimization

__all__ = ["NextItemMoL"]


class NextItemMoL(NextItem):
    """SASRec or HSTU with Mixture-of-Logits instead of one dot product (RAILS §2.2 and §5.1).

    The raw query vector is the encoder's state, its mean and variance normalised; the raw item vector is the item's
    embedding, which the encoder reads, too.

    Args:
        item_ids: the items' ids, by row; the command line takes them from the data.
        encoder: the sequence encoder.
        mixture: the grid of components and its gate; None: 4 x 4 components of a quarter of the encoder's width.
        tokens_per_batch: most positions, padding included, that go through the encoder at once; None: what suits the
            device.
        gate_loss: what training adds for the gates of the positive pairs.
        user_loss: what training adds for the embeddings of user ids, where the mixture has some.
        loss: what training minimises; the mixture has its own temperature, so the loss wants 1.
        optimization: optimiser and schedule.
        seed: of dropout; None: 0, on the command line seed_everything.
    """

    citation: ClassVar[str] = papers.RAILS
    is_inner_product: ClassVar[bool] = False

    def __init__(
        self,
        item_ids: list[str],
        encoder: SequenceConfig | None = None,
        mixture: MixtureConfig | None = None,
        tokens_per_batch: int | None = None,
        gate_loss: MutualInformation | None = None,
        user_loss: UserL2 | None = None,
        loss: Loss | None = None,
        optimization: Optimization | None = None,
        seed: int | None = None,
    ) -> None:
        encoder = encoder or SequenceConfig()
        super().__init__(item_ids, encoder, False, tokens_per_batch, loss, optimization, seed)
        mixture = mixture or _default(encoder.width)
        self.remember(item_ids=item_ids, encoder=encoder, mixture=mixture, tokens_per_batch=tokens_per_batch)
        self.head = MoLHead(mixture, encoder.width, encoder.width)
        self.gate_loss = gate_loss or MutualInformation()
        self.user_loss = user_loss or UserL2()

    def collate_queries(self, queries: Sequence[Query]) -> Reps:
        """See `NextItem.collate_queries`; and ``users`` (B,), where the mixture has components for user ids."""
        tokens = super().collate_queries(queries)
        if self.head.users is None:
            return tokens
        return {**tokens, "users": torch.tensor([user_number(query.id) for query in queries], dtype=torch.int64)}

    def encode_queries(self, tokens: Reps) -> Reps:
        """``components`` (B, P_Q, d_P); ``gate`` (B, P) where the gate sees the query."""
        ids = tokens["ids"]
        assert isinstance(ids, Ragged)
        return self.head.queries(self._states(tokens)[ids.offsets[1:] - ids.offsets[0] - 1], _users(tokens))

    def encode_positions(self, tokens: Reps) -> Reps:
        """See `encode_queries`; a query for each of T positions."""
        ids, users = tokens["ids"], _users(tokens)
        assert isinstance(ids, Ragged)
        return self.head.queries(self._states(tokens), None if users is None else users.repeat_interleave(ids.lengths))

    def encode_items(self, tokens: Reps) -> Reps:
        """``components`` (M, P_X, d_P); ``gate`` (M, P) where the gate sees the item."""
        rows = tokens["row"]
        assert isinstance(rows, Tensor)
        return self.head.items(self.encoder.item(rows))

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """See `LearnedSimilarity.score`."""
        return self.head.score(queries, items, candidates)[0]

    def score_pairs(self, queries: Reps, items: Reps, query_rows: Tensor, item_rows: Tensor) -> Tensor:
        """See `LearnedSimilarity.score_pairs`."""
        return self.head.score_pairs(queries, items, query_rows, item_rows)

    def training_loss(self, batch: Batch) -> Tensor:
        """The loss of the scores, that of the positives' gates, and that of the user embeddings."""
        queries, items = self.encode_positions(batch.queries), self.encode_batch_items(batch)
        scores, gates = self.head.score(queries, items, batch.candidates)
        used = joint(positive_gates(gates, batch.targets))
        if batch.shared is not None:
            scores = torch.cat([scores, self.head.score(queries, items, batch.shared[None])[0]], dim=1)
        names = "train/entropy_of_mean_gate", "train/mean_entropy_of_gates"
        entropies = dict(zip(names, gate_entropies(used.detach()), strict=True))
        self.log_dict(entropies, on_step=False, on_epoch=True, batch_size=len(used))
        loss = self.loss_of_scores(scores, batch.targets) + once(self.gate_loss(used))
        users = _users(batch.queries)
        if self.head.users is not None and users is not None:
            rows = self.head.users.rows(users)
            counted = len(rows) if bool(batch.targets.labels.any()) else 0  # an empty share: a batch without positives
            loss = loss + share_of_mean(self.user_loss(rows), torch.tensor(counted))
        return loss

    def _scaled(self, vectors: Tensor) -> Tensor:
        return F.layer_norm(vectors, vectors.shape[-1:], eps=1e-6)

    @classmethod
    def tiny(cls) -> Self:
        """SASRec over the items i0 to i4, width 16; 3 x 2 components of width 8, one of them for user ids."""
        encoder = SequenceConfig(width=16, heads=2, length=8, dropout=0.0)
        mixture = MixtureConfig(
            query_components=3,
            item_components=2,
            width=8,
            query_projection="swiglu",
            item_projection="linear",
            hidden=16,
            gate_hidden=16,
            query_gate=True,
            item_gate=True,
            user_hashes=(7,),
            temperature=0.5,  # random states are small, and 0.05 would magnify their rounding
        )
        return cls([f"i{n}" for n in range(5)], encoder, mixture)


def user_number(user: str) -> int:
    """What the hash tables take of a user's id: the number that it is, or else the CRC-32 of its name."""
    return int(user) if user.isascii() and user.isdecimal() and len(user) < 19 else zlib.crc32(user.encode())


def _users(tokens: Reps) -> Tensor | None:
    users = tokens.get("users")
    assert isinstance(users, Tensor | None)
    return users


def _default(width: int) -> MixtureConfig:
    return MixtureConfig(
        width=max(1, width // 4), query_projection="swiglu", item_projection="linear", query_gate=True, item_gate=True
    )
