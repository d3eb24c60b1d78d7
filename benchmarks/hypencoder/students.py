"""What benchmarks.hypencoder.train compares: BE-Base and Hypencoder, behind a query encoder or on states at hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.hypencoder.frozen import DE
from simzoo.core.reps import Reps
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.hypencoder import Hypencoder
from simzoo.models.parts.backbone import BackboneConfig, Encoder, LoRA
from simzoo.models.parts.hyperhead import Hyperhead
from simzoo.models.parts.packing import buckets
from simzoo.models.parts.pooling import mean_state
from simzoo.models.parts.q_net import QNet, QNetConfig
from simzoo.models.parts.tokenizing import TokenConfig

WIDTH = 384
COSINE = 20.0
"""Both students begin with so many times wordnet-de's cosine, as it was trained."""
ENCODER, TOKENS = BackboneConfig(lora=LoRA(16, 32), dropout=0.0, start=DE), TokenConfig(query_length=64, item_length=64)
AT_ONCE = 256
"""Tokens that go through the encoder at once: a batch's queries are short, and padded to few lengths."""
SLOWER = 0.05
"""Of the learning rate, for a hyperhead's projections and bases."""


class BEBase(nn.Module):
    """A linear map of the query's mean state, another of the item's vector, and a dot product.

    Both vectors are normalised and both maps begin as the identity.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.item = nn.Linear(width, width), nn.Linear(width, width)
        for layer in (self.query, self.item):
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, states: Tensor, mask: Tensor, vectors: Tensor) -> Tensor:
        """(B, K) scores of (B, L, h) states and (B, K, h) vectors."""
        query = self.query(F.normalize(mean_state(states, mask), dim=-1))
        scores: Tensor = (self.item(F.normalize(vectors, dim=-1)) @ query[:, :, None])[..., 0]
        return COSINE * scores


class Frozen(nn.Module):
    """A Hypencoder's hyperhead and q-net, on states and vectors at hand.

    For a list shorter than a matrix has rows, as in training, the q-net's weights are not made: what would be projected
    to them meets projected vectors instead.
    """

    def __init__(self, hyperhead: Hyperhead, q_net: QNet) -> None:
        super().__init__()
        self.hyperhead, self.q_net = hyperhead, q_net

    def forward(self, states: Tensor, mask: Tensor, vectors: Tensor) -> Tensor:
        """(B, K) scores of (B, L, h) states and (B, K, h) vectors."""
        if vectors.shape[1] > vectors.shape[2]:
            weights: Reps = dict(zip(self.q_net.names, self.hyperhead(states, mask), strict=True))
            scores: Tensor = self.q_net(weights, vectors)
            return scores
        head, blocks = self.hyperhead, len(self.q_net.residuals)
        parts = head.keys_values(states).split(head.sizes, dim=-1)
        groups = [group.attended(part, mask).unbind() for group, part in zip(head.groups, parts, strict=True)]
        attended = [groups[group][place] for group, place in head.places]
        parameters = [head.parameters_of(i) for i in range(len(attended))]

        def matrix(i: int) -> Tensor:
            own = parameters[i]
            return F.linear(attended[i], own["projection.weight"], own["projection.bias"]) + own["base"]

        x = vectors
        for i in range(blocks):
            own = parameters[i]
            fixed = x @ (own["base"] + own["projection.bias"]).mT
            y = torch.bmm(x @ own["projection.weight"], attended[i].mT) + fixed + matrix(blocks + 1 + i)
            x = F.layer_norm(x + F.relu(y), x.shape[-1:])
        return torch.bmm(x, matrix(blocks).mT)[..., 0]


class Encoded(nn.Module):
    """A student behind a query encoder that is trained with it."""

    def __init__(self, encoder: Encoder, student: nn.Module) -> None:
        super().__init__()
        self.encoder, self.student = encoder, student

    def forward(self, ids: Tensor, mask: Tensor, vectors: Tensor) -> Tensor:
        """(B, K) scores of (B, L) token ids and (B, K, h) vectors."""
        lengths = mask.sum(dim=1)
        states = torch.zeros(*mask.shape, self.encoder.width)
        for rows in buckets(lengths, AT_ONCE):
            longest = int(lengths[rows].max())
            states[rows, :longest] = self.encoder(ids[rows, :longest].long(), mask[rows, :longest])
        scores: Tensor = self.student(states, mask, vectors)
        return scores


def untrained(depth: int, seed: int) -> Hypencoder:
    """A Hypencoder with wordnet-de's encoder and scores."""
    torch.manual_seed(seed)
    q_net = _q_net(depth, WIDTH)
    return Hypencoder(ENCODER, TOKENS, pooling="mean", q_net=q_net, scale="released", begin_as_cosine=COSINE).eval()


def untrained_wide(depth: int, seed: int) -> nn.Module:
    """A student as it begins on the states and vectors of `FirstAndLast`, with their cosines as scores.

    Depth 0 is BE-Base.
    """
    torch.manual_seed(seed)
    if depth == 0:
        return BEBase(2 * WIDTH)
    q_net = QNet(_q_net(depth, 2 * WIDTH), 2 * WIDTH)
    hyperhead = Hyperhead(2 * WIDTH, q_net.shapes, depth + 1, "released")
    hyperhead.begin_as_cosine(COSINE)
    return Frozen(hyperhead, q_net)


def _q_net(depth: int, width: int) -> QNetConfig:
    return QNetConfig((width,) * depth, norm="after_residual", residual_on_last=True)


def untrained_student(depth: int, seed: int, encoded: bool) -> tuple[nn.Module, Hypencoder | None]:
    """A student as it begins, with a query encoder or without; and the Hypencoder whose parts it trains, if it is one.

    Depth 0 is BE-Base.
    """
    hypencoder = untrained(depth, seed) if depth else None
    student: nn.Module = BEBase(WIDTH) if hypencoder is None else Frozen(hypencoder.hyperhead, hypencoder.q_net)
    return (Encoded(DualEncoder(ENCODER, TOKENS).query_encoder.eval(), student) if encoded else student), hypencoder


def parameter_groups(student: nn.Module, lr: float, encoder_lr: float) -> list[dict[str, Any]]:
    """A hyperhead's projections and bases move slower: their steps add up over a row in each weight that they make."""
    fast, slow, encoder = [], [], []
    for name, parameter in student.named_parameters():
        is_slow = name.endswith(("projection", "offset", "base"))
        group = encoder if name.startswith("encoder.") else slow if is_slow else fast
        group += [parameter] if parameter.requires_grad else []
    groups = (fast, lr), (slow, lr * SLOWER), (encoder, encoder_lr)
    return [{"params": parameters, "lr": rate} for parameters, rate in groups if parameters]
