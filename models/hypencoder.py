"""Hypencoder: the query becomes the weights of a small network, which scores the items' vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from datamodules.reps import Ragged, Reps, num_rows
from losses import Loss
from models.backbone import BackboneConfig
from models.packing import buckets, token_budget
from models.pooling import Pooling, pooled
from models.similarity import Optimization
from models.tokens import TokenConfig
from models.two_towers import TwoTowers

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,  # in place, as it is given a product that nothing else needs
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "leaky_relu": F.leaky_relu,
}

SHIFT = 2.0  # more than any mean token state has in one dimension
Q_NETS_AT_ONCE = 64  # bounds what lies between the attention and the finished weights: several times the weights
# Numbers in one hidden state of all q-nets: a CPU's caches should hold what stands between the products, a GPU wants
# few large ones. However many queries there are, reading the weights must not dominate: so many items at least.
HIDDEN_AT_ONCE = {"cpu": 2**19, "cuda": 2**25}
ITEMS_AT_LEAST = 256
PAIRS_AT_ONCE = 2**14  # padding included
# Devices that take each query alone: a CPU keeps its weights in the caches while all its candidates pass.
ALONE = frozenset({"cpu"})

Scale = Literal["paper", "released"]
Norm = Literal["before_residual", "after_residual", "none"]


@dataclass
class QNetConfig:
    """The small network that a query becomes (§3.4).

    Attributes:
        widths: width of each core block's output; as many core blocks as widths. A bias-free linear layer to one
            number follows them, so "6-layer" in the paper is six widths.
        activation: of the core blocks.
        residual: add a core block's input to its output; its widths must be equal then.
        residual_on_last: also in the last core block.
        norm: layer norm, without parameters, ``before_residual`` (the released code) or ``after_residual`` (Eq. 6);
            ``none``: no norm.
        dropout: on each core block's input.
    """

    widths: tuple[int, ...] = (384,) * 6
    activation: Literal["relu", "tanh", "sigmoid", "gelu", "leaky_relu"] = "relu"
    residual: bool = True
    residual_on_last: bool = False
    norm: Norm = "before_residual"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1:
            raise ValueError(f"q_net.widths needs one positive width for each core block, got {list(self.widths)}")
        if self.residual_on_last and not self.residual:
            raise ValueError("q_net.residual_on_last needs q_net.residual")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"q_net.dropout is a probability in [0, 1), got {self.dropout}")


class QNet(nn.Module):
    """Applies B queries' networks; it has no parameters of its own.

    Args:
        config: its blocks.
        width: of an item's vector.

    Attributes:
        shapes: (rows, width) of every weight (out, in), then of every bias (1, out).
        names: ``weight_0`` ... ``weight_n``, ``bias_0`` ... in that order.
    """

    def __init__(self, config: QNetConfig, width: int) -> None:
        super().__init__()
        self.config = config
        self.activation = ACTIVATIONS[config.activation]
        blocks = len(config.widths)
        widths = (width, *config.widths)
        self.residuals = [config.residual] * (blocks - 1) + [config.residual_on_last]
        for i, residual in enumerate(self.residuals):
            if residual and widths[i] != widths[i + 1]:
                raise ValueError(
                    f"q_net.widths: core block {i} maps {widths[i]} to {widths[i + 1]} numbers and cannot add its "
                    f"input; items are {width} wide, got widths {list(config.widths)}: make them equal or set "
                    "q_net.residual to false"
                )
        outs = (*widths[1:], 1)
        self.shapes = [*zip(outs, widths, strict=True), *((1, out) for out in widths[1:])]
        self.names = [*(f"weight_{i}" for i in range(blocks + 1)), *(f"bias_{i}" for i in range(blocks))]

    def forward(self, weights: Reps, x: Tensor) -> Tensor:
        """Scores.

        Args:
            weights: ``weight_i`` (B, out, in) and ``bias_i`` (B, 1, out).
            x: (B, K, h) vectors of items.

        Returns:
            (B, K).
        """
        norm, activation = self.config.norm, self.activation
        for i, residual in enumerate(self.residuals):
            weight, bias = weights[f"weight_{i}"], weights[f"bias_{i}"]
            assert isinstance(weight, Tensor) and isinstance(bias, Tensor)
            y = activation(torch.baddbmm(bias, F.dropout(x, self.config.dropout, self.training), weight.mT))
            if norm == "before_residual":
                y = F.layer_norm(y, y.shape[-1:])
            if residual and not y.requires_grad:
                y += x  # one pass over memory less: beside the products, these are the cost
            elif residual:
                y = y + x
            if norm == "after_residual":
                y = F.layer_norm(y, y.shape[-1:])
            x = y
        last = weights[f"weight_{len(self.residuals)}"]
        assert isinstance(last, Tensor)
        return torch.bmm(x, last.mT)[..., 0]


class HyperGroup(nn.Module):
    """G hyperhead matrices of one shape (rows, width), made by the same few batched operations.

    Args:
        size: G.
        rows: of each matrix, the queries of its attention.
        width: of each matrix, its keys and its values.
        scale: what the attention's scores are divided by, see `Hypencoder`.
    """

    def __init__(self, size: int, rows: int, width: int, scale: Scale) -> None:
        super().__init__()
        self.divisor = math.sqrt(width if scale == "paper" else rows)
        self.queries = nn.Parameter(torch.empty(size, rows, width))
        self.projection = nn.Parameter(torch.empty(size, width, width))
        self.offset = nn.Parameter(torch.empty(size * width))  # one dimension: the optimiser decays no biases
        self.base = nn.Parameter(torch.empty(size, rows, width))

    def forward(self, keys_values: Tensor, mask: Tensor) -> Tensor:
        """The matrices of B queries.

        Args:
            keys_values: (B, L, 2 G width), all keys and then all values.
            mask: (B, L) bool, True at real tokens.

        Returns:
            (G, B, rows, width).
        """
        size, rows, width = self.base.shape
        attended = self.attended(keys_values, mask).reshape(size, -1, width)
        projected = torch.baddbmm(self.offset.view(size, 1, width), attended, self.projection.mT)
        return projected.view(size, -1, rows, width) + self.base[:, None]

    def attended(self, keys_values: Tensor, mask: Tensor) -> Tensor:
        """What is projected: (G, B, rows, width), after relu and layer norm."""
        size, _, width = self.base.shape
        num_queries, length = mask.shape
        keys, values = keys_values.view(num_queries, length, 2, size, width).permute(2, 3, 0, 1, 4)
        attended = F.scaled_dot_product_attention(
            self.queries[:, None].expand(-1, num_queries, -1, -1).to(keys.dtype),
            keys,
            values,
            attn_mask=mask[None, :, None, :],
            scale=1 / self.divisor,
        )
        return F.layer_norm(F.relu(attended), (width,))


class Hyperhead(nn.Module):
    """From a query's token states to the matrices of its q-net (§3.3).

    For each matrix: K = E theta_K + b and V = E theta_V + b, H = softmax(Q K^T / s) V over the real tokens, layer norm
    without parameters of relu(H), a linear layer, plus a learned base. All K and V come from one product.

    Args:
        width: h, of a token's state.
        shapes: (rows, width) of each matrix, the weights before the biases.
        num_weights: how many of them are weights.
        scale: see `Hypencoder`.
    """

    def __init__(self, width: int, shapes: Sequence[tuple[int, int]], num_weights: int, scale: Scale) -> None:
        super().__init__()
        self.num_weights = num_weights
        kinds = list(dict.fromkeys(shapes))
        self.sizes = [shapes.count(kind) * 2 * kind[1] for kind in kinds]
        self.groups = nn.ModuleList(HyperGroup(shapes.count(kind), *kind, scale) for kind in kinds)
        self.keys_values = nn.Linear(width, sum(self.sizes))
        # Where matrix i is made: its group, and its place there.
        self.places = [(kinds.index(shape), shapes[:i].count(shape)) for i, shape in enumerate(shapes)]
        with torch.no_grad():
            for i in range(len(shapes)):
                self._initialise(self.parameters_of(i), i < num_weights)

    def forward(self, states: Tensor, mask: Tensor) -> list[Tensor]:
        """The matrices of B queries.

        Args:
            states: (B, L, h).
            mask: (B, L) bool, True at real tokens, at least one in every row.

        Returns:
            (B, rows, width) each, in the order of ``shapes``.
        """
        parts = self.keys_values(states).split(self.sizes, dim=-1)
        made = [group(part, mask) for group, part in zip(self.groups, parts, strict=True)]
        return [made[group][place] for group, place in self.places]

    def parameters_of(self, matrix: int) -> dict[str, Tensor]:
        """Views of the parameters that make one matrix, by name: what a loader of other layouts fills.

        ``{key,value}.weight`` (width, h), ``{key,value}.bias`` (width,), ``query`` (rows, width), ``projection.weight``
        (width, width), ``projection.bias`` (width,), ``base`` (rows, width).
        """
        number, place = self.places[matrix]
        group = self.groups[number]
        assert isinstance(group, HyperGroup)
        size, _, width = group.base.shape
        start = sum(self.sizes[:number]) + place * width
        key, value = slice(start, start + width), slice(start + size * width, start + (size + 1) * width)
        return {
            "key.weight": self.keys_values.weight[key],
            "key.bias": self.keys_values.bias[key],
            "value.weight": self.keys_values.weight[value],
            "value.bias": self.keys_values.bias[value],
            "query": group.queries[place],
            "projection.weight": group.projection[place],
            "projection.bias": group.offset.view(size, width)[place],
            "base": group.base[place],
        }

    @torch.no_grad()
    def begin_as_cosine(self, scale: float) -> None:
        """Parameters with which a q-net's score is nearly ``scale`` times a cosine.

        The last matrix: equal attention to all tokens, and values that are the token states, shifted so that relu keeps
        them. Layer norm takes the shift away again and leaves the mean state, centred and of length sqrt(width). The
        core blocks: so small that their residuals and layer norms leave an item's vector, normalised likewise. Centring
        takes one direction of many from both.
        """
        width = self.keys_values.in_features
        *blocks, last = (self.parameters_of(i) for i in range(self.num_weights))
        for name in ("query", "projection.bias", "base"):
            nn.init.zeros_(last[name])
        nn.init.eye_(last["value.weight"])
        nn.init.constant_(last["value.bias"], SHIFT)
        last["projection.weight"].copy_(torch.eye(width) * (scale / width))
        for block in blocks:
            nn.init.normal_(block["base"], std=1 / width)
        for i in range(self.num_weights, len(self.places)):
            for name in ("projection.weight", "projection.bias"):
                nn.init.zeros_(self.parameters_of(i)[name])

    @staticmethod
    def _initialise(parameters: dict[str, Tensor], is_weight: bool) -> None:
        """As the released code does: a new q-net is nearly its base; its 768 is the matrix's width here."""
        width = parameters["base"].shape[1]
        nn.init.normal_(parameters["query"], std=10)
        if is_weight:
            nn.init.normal_(parameters["base"], std=math.sqrt(2 / width))
            nn.init.normal_(parameters["projection.weight"], std=1 / width**2)
            for name in ("projection.bias", "key.bias", "value.bias"):
                nn.init.zeros_(parameters[name])
        else:
            nn.init.zeros_(parameters["base"])
            for name in ("projection.weight", "projection.bias"):
                nn.init.uniform_(parameters[name], -1 / math.sqrt(width), 1 / math.sqrt(width))


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
        cosine: a new model scores (nearly) so many times the cosine of the query's mean token state and the item's
            vector, see `Hyperhead.begin_as_cosine`; None: it scores at random, as in the released code.
        tokens_per_batch: most tokens, padding included, that go through the transformer at once. None: 1,024 on a CPU,
            65,536 on a GPU.
        loss: what training minimises.
        optimization: optimiser and schedule.
        seed: of dropout.

    Raises:
        ValueError: ``cosine`` with a q-net whose blocks cannot begin as the identity.
    """

    def __init__(
        self,
        backbone: BackboneConfig | None = None,
        tokens: TokenConfig | None = None,
        shared: bool = True,
        pooling: Pooling = "cls",
        q_net: QNetConfig | None = None,
        scale: Scale = "paper",
        cosine: float | None = None,
        tokens_per_batch: int | None = None,
        loss: Loss | None = None,
        optimization: Optimization | None = None,
        seed: int = 0,
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
            cosine=cosine,
        )
        width = self.query_encoder.width
        self.q_net = QNet(q_net, width)
        self.hyperhead = Hyperhead(width, self.q_net.shapes, len(q_net.widths) + 1, scale)
        if cosine is not None:
            if q_net.norm != "after_residual" or not q_net.residual_on_last:
                raise ValueError(
                    "cosine needs q_net.norm after_residual and q_net.residual_on_last, so that core blocks with small "
                    f"weights are the identity; got {q_net.norm} and {q_net.residual_on_last}"
                )
            self.hyperhead.begin_as_cosine(cosine)
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
            states[bucket, : real.shape[1]] = self.query_encoder(padded.long(), real)
        slices = zip(torch.split(states, Q_NETS_AT_ONCE), torch.split(mask, Q_NETS_AT_ONCE), strict=True)
        parts = [self.hyperhead(*part) for part in slices]
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
        from models.tiny import tiny_backbone

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
