"""Hypencoder: the query becomes the weights of a small network, which scores the items' vectors."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simzoo.core.reps import Ragged, Reps, num_rows
from simzoo.losses import Loss
from simzoo.models.parts import papers
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.hyperhead import HyperGroup, Hyperhead, Scale
from simzoo.models.parts.packing import buckets, read_once, token_budget
from simzoo.models.parts.pooling import Pooling, pooled
from simzoo.models.parts.q_net import QNet, QNetConfig
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.towers import TwoTowers
from simzoo.models.training import Optimization

__all__ = ["Hypencoder"]

Q_NETS_AT_ONCE = 64  # bounds what lies between the attention and the finished weights: several times the weights
# Numbers in one hidden state of all q-nets: a CPU's caches should hold what stands between the products, a GPU wants
# few large ones. However many queries there are, reading the weights must not dominate: so many items at least.
HIDDEN_AT_ONCE = {"cpu": 2**19, "cuda": 2**25}
ITEMS_AT_LEAST = 256
PAIRS_AT_ONCE = 2**14  # padding included
# Devices that take each query alone: a CPU keeps its weights in the caches while all its candidates pass.
ALONE = frozenset({"cpu"})


class Hypencoder(TwoTowers):
    """A query's representation is a small network, its q-net; an item's is a vector (Hypencoder §3).

    Args:
        backbone: the pretrained encoder.
        tokens: how texts become token ids.
        shared: one encoder for queries and items; otherwise two, each with its own adapters.
        pooling: an item's vector is its [CLS] state, or the mean over all its real tokens (§3.2).
        q_net: the small network.
        scale: the hyperhead's attention scores are divided by sqrt(width of the keys) (``paper``, §3.3) or by
            sqrt(rows of the matrix) (``released``), which leaves the last layer and all biases unscaled. The released
            weights need the latter.
        begin_as_cosine: a new model scores (nearly) so many times the cosine of the query's mean token state and the
            item's vector, see `Hyperhead.begin_as_cosine`; None: it scores at random, as in the released code.
        tokens_per_batch: most tokens, padding included, that go through the transformer at once. None: 1,024 on a CPU,
            65,536 on a GPU.
        loss: what training minimises.
        optimization: optimiser and schedule.
        seed: of dropout; None: 0, on the command line seed_everything.

    Raises:
        ValueError: ``begin_as_cosine`` with a q-net whose blocks cannot begin as the identity.
    """

    citation: ClassVar[str] = papers.HYPENCODER

    def __init__(
        self,
        backbone: BackboneConfig | None = None,
        tokens: TokenConfig | None = None,
        shared: bool = True,
        pooling: Pooling = "cls",
        q_net: QNetConfig | None = None,
        scale: Scale = "paper",
        begin_as_cosine: float | None = None,
        tokens_per_batch: int | None = None,
        loss: Loss | None = None,
        optimization: Optimization | None = None,
        seed: int | None = None,
    ) -> None:
        q_net = q_net or QNetConfig()
        super().__init__(
            backbone or BackboneConfig(),
            tokens or TokenConfig(),
            shared,
            tokens_per_batch,
            loss,
            optimization,
            seed,
            pooling=pooling,
            q_net=q_net,
            scale=scale,
            begin_as_cosine=begin_as_cosine,
        )
        width = self.query_encoder.width
        self.q_net = QNet(q_net, width)
        self.hyperhead = Hyperhead(width, self.q_net.shapes, len(q_net.widths) + 1, scale)
        if begin_as_cosine is not None:
            if q_net.norm != "after_residual" or not q_net.residual_on_last:
                raise ValueError(
                    "begin_as_cosine needs q_net.norm after_residual and q_net.residual_on_last, so that core blocks "
                    f"with small weights are the identity; got {q_net.norm} and {q_net.residual_on_last}"
                )
            self.hyperhead.begin_as_cosine(begin_as_cosine)
        self.pooling: Pooling = pooling

    def encode_queries(self, tokens: Reps) -> Reps:
        """The q-nets' weights: ``weight_i`` (B, out, in) and ``bias_i`` (B, 1, out).

        Raises:
            ValueError: a query has no tokens.
        """
        ids = tokens["ids"]
        assert isinstance(ids, Ragged)
        if (empty := (ids.lengths == 0).nonzero()).numel():
            raise ValueError(
                f"query row {int(empty[0])} of {len(ids)} has no tokens; a q-net is made from at least one: remove "
                "the query or give it a text"
            )
        _, mask = ids.pad()
        states = torch.zeros(*mask.shape, self.query_encoder.width, device=mask.device)
        for bucket in buckets(ids.lengths, token_budget(self.tokens_per_batch, ids.values.device)):
            padded, real = ids.take(bucket).pad()
            states[bucket, : real.shape[1]] = read_once(self.query_encoder, padded.long(), real)
        slices = zip(torch.split(states, Q_NETS_AT_ONCE), torch.split(mask, Q_NETS_AT_ONCE), strict=True)
        parts = [read_once(self.hyperhead, *part) for part in slices]
        whole = parts[0] if len(parts) == 1 else [torch.cat(matrices) for matrices in zip(*parts, strict=True)]
        return dict(zip(self.q_net.names, whole, strict=True))

    def encode_items(self, tokens: Reps) -> Reps:
        """``{"vector": (M, h)}``, not normalised."""
        return {"vector": pooled(self.item_encoder, tokens["ids"], self.pooling, self.tokens_per_batch)}

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """Each query's q-net on its candidates, in batched products; see `LearnedSimilarity.score`."""
        vectors = items["vector"]
        assert isinstance(vectors, Tensor)
        size = num_rows(queries)
        if size > 1 and vectors.device.type in ALONE and not torch.is_grad_enabled():  # training has short lists
            lists = [None] * size if candidates is None else torch.split(candidates.expand(size, -1), 1)
            rows = [_rows(queries, slice(row, row + 1)) for row in range(size)]
            return torch.cat([self.score(one, items, own) for one, own in zip(rows, lists, strict=True)])
        widest = max(width for _, width in self.q_net.shapes)
        hidden = HIDDEN_AT_ONCE.get(vectors.device.type, HIDDEN_AT_ONCE["cpu"])
        step = max(ITEMS_AT_LEAST, hidden // (max(size, 1) * widest))
        if candidates is None:
            blocks = [block.expand(size, -1, -1) for block in torch.split(vectors, step)]
            return torch.cat([self.q_net(queries, block) for block in blocks], dim=1)
        scores = [
            self.q_net(queries, F.embedding(block.clamp_min(0), vectors).expand(size, -1, -1))
            for block in torch.split(candidates, step, dim=1)
        ]
        return torch.cat(scores, dim=1).masked_fill(candidates < 0, -torch.inf)

    def score_pairs(self, queries: Reps, items: Reps, query_rows: Tensor, item_rows: Tensor) -> Tensor:
        """See `LearnedSimilarity.score_pairs`; a query's pairs become one list, so its weights are read once."""
        asked, counts = torch.unique(query_rows, return_counts=True)
        order = torch.argsort(query_rows, stable=True)
        scores = torch.empty(len(query_rows), device=query_rows.device)
        if query_rows.device.type in ALONE:
            for row, places in zip(asked.tolist(), torch.split(order, counts.tolist()), strict=True):
                found = self.score(_rows(queries, slice(row, row + 1)), items, item_rows[places][None])
                scores[places] = found[0].to(scores.dtype)
            return scores
        pairs = Ragged(order, F.pad(counts.cumsum(0), (1, 0)))
        for bucket in buckets(counts, PAIRS_AT_ONCE):
            places, real = pairs.take(bucket).pad()
            candidates = item_rows[places].masked_fill(~real, -1)
            scores[places[real]] = self.score(_rows(queries, asked[bucket]), items, candidates)[real].to(scores.dtype)
        return scores

    @classmethod
    def tiny(cls) -> Self:
        """Width 16, two layers; two core blocks."""
        from simzoo.models.parts.tiny import tiny_backbone

        tokens = TokenConfig(query_length=24, item_length=24)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = cls(BackboneConfig(name=str(tiny_backbone())), tokens, q_net=QNetConfig((16, 16)))
            # A new q-net hardly depends on its query, which would hide errors from the tests.
            for group in model.hyperhead.groups:
                assert isinstance(group, HyperGroup)
                nn.init.normal_(group.projection, std=0.1)
        return model


def _rows(queries: Reps, rows: Tensor | slice) -> Reps:
    """The queries at ``rows``; a slice copies nothing: their weights are large."""
    return {name: part[rows] for name, part in queries.items() if isinstance(part, Tensor)}
