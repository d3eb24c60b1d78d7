"""The parts of Mixture-of-Logits: component vectors, gate and temperature, over any raw query and item vectors.

Layout: component logits are (..., P, K), components before candidates, P = P_Q P_X flattened query-major: what is done
per candidate then runs over contiguous memory, and the gate's layers are plain matrix products from the left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simzoo.core.reps import Reps
from simzoo.core.targets import Targets
from simzoo.models.parts.kernels import covered
from simzoo.models.parts.layers import GatedLinear, HashedUsers, linear, two_layers
from simzoo.models.parts.search_gate import SearchGate

__all__ = ["Gate", "MixtureConfig", "MoLHead", "mol_scores", "positive_gates"]

EPSILON = 1e-6
PAIRS = 4096  # pairs scored at once: bounds the memory of their gathered components
LISTED_PAIRS = 65_536  # the same for whole lists, where no gradient is asked for
MOST_LOGITS, MOST_HIDDEN = 64, 256  # of a pair: what a GPU's registers hold, a tile of pairs at a time

ProjectionKind = Literal["none", "linear", "geglu", "swiglu"]


@dataclass
class MixtureConfig:
    """A grid of P_Q x P_X components and its gate (RAILS §2; Tables of hyper-parameters in the appendix).

    Attributes:
        query_components: P_Q, hashed user ids included.
        item_components: P_X.
        width: d_P, of a component vector. None: the raw vector is cut into equal parts (projection ``none`` only).
        query_projection: from the raw query vector to the components: ``none`` cuts it into parts, ``geglu`` and
            ``swiglu`` are a gated layer of ``hidden`` units and a linear one.
        item_projection: the same for an item.
        hidden: units of the gated layer.
        temperature: the logits are divided by it, before gate and sum.
        gate_hidden: units of each of the gate's networks.
        query_gate: the gate also sees the raw query vector.
        item_gate: the gate also sees the raw item vector.
        gate_dropout: on the gate's probabilities, which are then made to sum to 1 again.
        cross_dropout: on the logits that the gate sees.
        item_gate_dropout: on the raw item vector that the gate sees.
        query_dropout: on the raw query vector before its projection.
        item_dropout: on the raw item vector before its projection.
        user_hashes: sizes of the hash tables of user ids; each gives one of the query components, the last ones.
        user_dropout: on the user embeddings.
    """

    query_components: int = 4
    item_components: int = 4
    width: int | None = None
    query_projection: ProjectionKind = "none"
    item_projection: ProjectionKind = "none"
    hidden: int = 512
    temperature: float = 0.05
    gate_hidden: int = 128
    query_gate: bool = False
    item_gate: bool = False
    gate_dropout: float = 0.2
    cross_dropout: float = 0.0
    item_gate_dropout: float = 0.0
    query_dropout: float = 0.0
    item_dropout: float = 0.0
    user_hashes: tuple[int, ...] = ()
    user_dropout: float = 0.5

    def __post_init__(self) -> None:
        if self.query_components <= len(self.user_hashes) or self.item_components < 1:
            raise ValueError(
                f"a grid of {self.query_components} x {self.item_components} components with {len(self.user_hashes)} "
                "for user ids: each side needs at least one of its own"
            )
        if not self.temperature > 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")
        kinds = (self.query_projection, self.item_projection)
        if self.width is None and set(kinds) != {"none"}:
            raise ValueError(f"projections {kinds[0]} and {kinds[1]} need the width of a component: give width")
        shares = (self.gate_dropout, self.cross_dropout, self.item_gate_dropout)
        for share in (*shares, self.query_dropout, self.item_dropout, self.user_dropout):
            if not 0 <= share < 1:
                raise ValueError(f"a dropout is a share in [0, 1), got {share}")

    @property
    def logits(self) -> int:
        """P = P_Q P_X."""
        return self.query_components * self.item_components


def mol_scores(logits: Tensor, gating: Tensor, dropout: float = 0.0) -> tuple[Tensor, Tensor]:
    """phi = sum_p pi_p logit_p with pi = softmax(SiLU(g)) (RAILS Eq. 2, ``glu_silu``).

    Args:
        logits: (..., P, K), already divided by the temperature.
        gating: (..., P, K), g.
        dropout: share of the probabilities that are dropped; the others are scaled to sum to 1.

    Returns:
        Scores (..., K), and the probabilities (..., P, K).
    """
    gates = F.softmax(F.silu(gating), dim=-2)
    if dropout:
        gates = F.dropout(gates, dropout)
        gates = gates / gates.sum(dim=-2, keepdim=True).clamp_min(EPSILON)
    return (gates * logits).sum(dim=-2), gates


def positive_gates(gates: Tensor, targets: Targets) -> Tensor:
    """(M, P) probabilities of the M positive pairs of a batch, of (B, P, K) ones of the first K candidates."""
    return gates.transpose(1, 2)[((targets.labels > 0) & targets.mask)[:, : gates.shape[2]]]


class Gate(nn.Module):
    """How much each component logit of a pair counts: g = query part * item part + cross part (RAILS §2.1).

    A part that is left out is the factor 1; without both of them, as for question answering, g is the cross part.

    Args:
        config: sizes and dropouts.
        query_width: of the raw query vector.
        item_width: of the raw item vector.
    """

    def __init__(self, config: MixtureConfig, query_width: int, item_width: int) -> None:
        super().__init__()
        size, self.hidden = config.logits, config.gate_hidden
        self.query = two_layers(query_width, self.hidden, size) if config.query_gate else None
        self.item = two_layers(item_width, self.hidden, size, config.item_gate_dropout) if config.item_gate else None
        self.cross_dropout = nn.Dropout(config.cross_dropout)
        self.cross_in = linear(size, self.hidden)
        self.cross_out = linear(self.hidden, size)
        self.dropout = config.gate_dropout

    @property
    def num_logits(self) -> int:
        """P."""
        return self.cross_out.out_features

    @property
    def cross(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weight (H, P) and bias (H,) of the cross part's first layer, weight (P, H) and bias (P,) of its second."""
        return self.cross_in.weight, self.cross_in.bias, self.cross_out.weight, self.cross_out.bias

    def forward(self, logits: Tensor, query: Tensor | None, item: Tensor | None) -> tuple[Tensor, Tensor]:
        """Scores and probabilities.

        Args:
            logits: (..., P, K).
            query: (..., P, K or 1), the query part, which `MoLHead.queries` computed once; None without one.
            item: (..., P, K), the item part, which `MoLHead.items` computed once; None without one.

        Returns:
            Scores (..., K) and probabilities (..., P, K), which are not negative and sum to 1 over P.
        """
        hidden = (self.cross_in.weight @ self.cross_dropout(logits)).add_(self.cross_in.bias[:, None])
        hidden = F.silu(hidden, inplace=not hidden.requires_grad)
        gating = (self.cross_out.weight @ hidden).add_(self.cross_out.bias[:, None])
        if query is not None and item is not None:
            gating = torch.addcmul(gating, query, item)
        else:
            for part in (query, item):
                gating = gating if part is None else gating + part
        return mol_scores(logits, gating, self.dropout if self.training else 0.0)

    def for_search(self, order: Tensor) -> SearchGate:
        """The same gate for logits in another order: ``order`` (P,) holds the old place of each new one."""
        return SearchGate(self.cross, order)


class MoLHead(nn.Module):
    """Components, gate and temperature over raw query and item vectors, wherever those come from.

    Args:
        config: the grid and the gate.
        query_width: of the raw query vector.
        item_width: of the raw item vector.

    Raises:
        ValueError: a raw vector does not divide into its components.
    """

    def __init__(self, config: MixtureConfig, query_width: int, item_width: int) -> None:
        super().__init__()
        own = config.query_components - len(config.user_hashes)
        width = config.width or _part("query", query_width, own)
        self.width = width
        self.temperature = config.temperature
        self.query_projection = _projection("query", config, query_width, own, width)
        self.item_projection = _projection("item", config, item_width, config.item_components, width)
        self.users = HashedUsers(config.user_hashes, width, config.user_dropout) if config.user_hashes else None
        self.gate = Gate(config, query_width, item_width)

    def queries(self, vectors: Tensor, users: Tensor | None = None) -> Reps:
        """Representations of B raw query vectors.

        Args:
            vectors: (B, query width).
            users: (B,) ids, where the config has hash tables for them.

        Returns:
            ``components`` (B, P_Q, d_P), each of length 1; and ``gate`` (B, P) where the gate sees the query.

        Raises:
            ValueError: user ids are missing, or not wanted.
        """
        if (users is None) != (self.users is None):
            raise ValueError("user ids must be given where user_hashes names tables for them, and only there")
        components = self.query_projection(vectors).unflatten(-1, (-1, self.width))
        if self.users is not None and users is not None:
            components = torch.cat([components, self.users(users)], dim=1)
        return _reps(components, self.gate.query, vectors)

    def items(self, vectors: Tensor) -> Reps:
        """Representations of M raw item vectors (M, item width): ``components`` (M, P_X, d_P), ``gate`` (M, P)."""
        return _reps(self.item_projection(vectors).unflatten(-1, (-1, self.width)), self.gate.item, vectors)

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scores (B, K) and gate probabilities (B, P, K); see `LearnedSimilarity.score` for the arguments."""
        query, item = _dense(queries, "components") / self.temperature, _dense(items, "components")
        query_gate, item_gate = _gate_part(queries), _gate_part(items)
        if candidates is not None:
            # As an embedding, because the gradient of plain indexing is added up one row after another.
            rows = candidates.clamp_min(0)
            item = F.embedding(rows, item.flatten(1)).view(*rows.shape, *item.shape[1:])
            item_gate = None if item_gate is None else F.embedding(rows, item_gate)
        else:
            item, item_gate = item[None], None if item_gate is None else item_gate[None]
        scores, gates = self._score_lists(query, item, query_gate, item_gate)
        return (scores if candidates is None else scores.masked_fill(candidates < 0, -torch.inf)), gates

    def scores(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """The scores (B, K) of `score` alone: in one kernel where `covered` says so and all queries have one list."""
        small = self.gate.num_logits <= MOST_LOGITS and self.gate.hidden <= MOST_HIDDEN
        if small and not self.training and (candidates is None or candidates.shape[0] == 1):
            query, item = _dense(queries, "components"), _dense(items, "components")
            gates, cross = (_gate_part(queries), _gate_part(items)), self.gate.cross
            if covered(query, item) and covered(*cross, *(gate for gate in gates if gate is not None)):
                return self._fused(query, item, gates, cross, candidates)
        return self.score(queries, items, candidates)[0]

    def _fused(
        self,
        query: Tensor,
        item: Tensor,
        gates: tuple[Tensor | None, Tensor | None],
        cross: tuple[Tensor, Tensor, Tensor, Tensor],
        candidates: Tensor | None,
    ) -> Tensor:
        from simzoo.models.parts.kernels.mixture import mixture_scores  # it imports triton

        query_gate, item_gate = gates
        if candidates is None:
            return mixture_scores(query, item, self.temperature, cross, query_gate, item_gate)
        rows = candidates[0].clamp_min(0)
        item_gate = None if item_gate is None else item_gate[rows]
        scores = mixture_scores(query, item[rows], self.temperature, cross, query_gate, item_gate)
        return scores.masked_fill(candidates < 0, -torch.inf)

    def _score_lists(
        self, query: Tensor, item: Tensor, query_gate: Tensor | None, item_gate: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """B queries with (B, K) items of their own, or with (1, K) shared ones."""
        size, lists, length = len(query), *item.shape[:2]
        few = size if torch.is_grad_enabled() else max(1, LISTED_PAIRS // max(1, length))
        if few < size:  # for the memory
            parts = []
            for rows in torch.split(torch.arange(size, device=query.device), few):
                own = rows if lists > 1 else slice(None)
                gate_parts = [None if part is None else part[at] for part, at in ((query_gate, rows), (item_gate, own))]
                parts.append(self._score_lists(query[rows], item[own], *gate_parts))
            return torch.cat([scores for scores, _ in parts]), torch.cat([gates for _, gates in parts])
        if lists == 1:  # as a broadcast product, whose result is laid out as the gate wants it
            logits = query.transpose(0, 1)[:, None] @ item[0].permute(1, 2, 0)
        else:
            logits = torch.einsum("bnd,bkmd->nmbk", query, item)
        # The gate's layers are then one matrix product over all pairs.
        shape = (query.shape[1] * item.shape[2], size, length)
        scores, gates = self.gate(
            logits.reshape(shape[0], -1),
            None if query_gate is None else query_gate.T[:, :, None].expand(shape).flatten(1),
            None if item_gate is None else item_gate.permute(2, 0, 1).expand(shape).flatten(1),
        )
        return scores.view(shape[1:]), gates.view(shape).transpose(0, 1)

    def score_pairs(self, queries: Reps, items: Reps, query_rows: Tensor, item_rows: Tensor) -> Tensor:
        """Scores (M,) of M pairs of rows; see `LearnedSimilarity.score_pairs`."""
        query, item = _dense(queries, "components") / self.temperature, _dense(items, "components")
        query_gate, item_gate = _gate_part(queries), _gate_part(items)
        parts = []
        for q, i in zip(torch.split(query_rows, PAIRS), torch.split(item_rows, PAIRS), strict=True):
            logits = torch.einsum("knd,kmd->nmk", query[q], item[i]).flatten(0, 1)
            gates = [None if gate is None else gate[rows].T for gate, rows in ((query_gate, q), (item_gate, i))]
            parts.append(self.gate(logits, *gates)[0])
        return torch.cat(parts)


def _dense(reps: Reps, name: str) -> Tensor:
    part = reps[name]
    assert isinstance(part, Tensor)
    return part


def _gate_part(reps: Reps) -> Tensor | None:
    return _dense(reps, "gate") if "gate" in reps else None


def _reps(components: Tensor, gate: nn.Module | None, vectors: Tensor) -> Reps:
    # float(): under autocast the norm would be taken of rounded squares.
    reps: Reps = {"components": F.normalize(components.float(), dim=-1, eps=EPSILON)}
    return reps if gate is None else reps | {"gate": gate(vectors)}


def _part(side: str, width: int, parts: int) -> int:
    if width % parts:
        raise ValueError(
            f"a {side} vector of width {width} does not divide into {parts} components; give a width and a projection"
        )
    return width // parts


def _projection(
    side: Literal["query", "item"], config: MixtureConfig, raw: int, components: int, width: int
) -> nn.Module:
    kind = config.query_projection if side == "query" else config.item_projection
    dropout = nn.Dropout(config.query_dropout if side == "query" else config.item_dropout)
    if kind == "none":
        if raw != components * width:
            raise ValueError(
                f"a {side} vector of width {raw} does not divide into {components} components of width {width}: make "
                f"it {components * width} wide, or set {side}_projection"
            )
        return dropout
    if kind == "linear":
        return nn.Sequential(dropout, linear(raw, components * width))
    gated = GatedLinear(raw, config.hidden, kind)
    return nn.Sequential(dropout, gated, linear(config.hidden, components * width))
