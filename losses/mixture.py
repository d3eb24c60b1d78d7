"""Losses of Mixture-of-Logits: mutual information of the gates, size of the user embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from simzoo.losses.ranking import full

__all__ = ["MutualInformation", "UserL2", "entropy", "gate_entropies", "mutual_information", "user_l2"]


def entropy(probabilities: Tensor) -> Tensor:
    """Entropy (...) in nats of distributions (..., P); its gradient is finite at 0, which dropout makes of gates."""
    probabilities = full(probabilities)
    smallest = torch.finfo(probabilities.dtype).tiny
    return -(probabilities * probabilities.clamp_min(smallest).log()).sum(dim=-1)


def gate_entropies(gates: Tensor) -> tuple[Tensor, Tensor]:
    """H(mean pi), high when all components are used, and mean H(pi), low when each pair uses few of them.

    Args:
        gates: (M, P) probabilities of M pairs.

    Returns:
        Two scalars, in nats.
    """
    gates = full(gates)
    return entropy(gates.mean(dim=0)), entropy(gates).mean()


def mutual_information(gates: Tensor) -> Tensor:
    """L_MI = -H(mean pi) + mean H(pi): the negative mutual information of pair and component (RAILS §2.3).

    Args:
        gates: (M, P) probabilities of the M positive pairs.

    Returns:
        Scalar in [-log P, 0]; 0 where there are no pairs.

    Examples:
        >>> round(mutual_information(torch.eye(2)).item(), 4)  # each pair uses a component of its own: -log 2
        -0.6931
    """
    if not len(gates):
        return gates.sum()
    used, each = gate_entropies(gates)
    return each - used


def user_l2(embeddings: Tensor) -> Tensor:
    """Squared length of the user embeddings, summed over the hash tables and averaged over the users.

    Args:
        embeddings: (B, U, d) rows of U tables.

    Returns:
        Scalar.
    """
    return full(embeddings).square().sum(dim=(1, 2)).mean()


class MutualInformation(nn.Module):
    """`mutual_information`, weighted.

    Args:
        weight: alpha in the paper; 0 turns it off.

    Examples:
        >>> from simzoo import MutualInformation
        >>> round(MutualInformation(weight=10.0)(torch.eye(2)).item(), 4)
        -6.9315
    """

    def __init__(self, weight: float = 0.001) -> None:
        super().__init__()
        self.weight = _not_negative(weight)

    def forward(self, gates: Tensor) -> Tensor:
        """Weighted scalar of gates (M, P)."""
        return self.weight * mutual_information(gates)


class UserL2(nn.Module):
    """`user_l2`, weighted.

    Args:
        weight: 0 turns it off.

    Examples:
        >>> from simzoo import UserL2
        >>> UserL2(weight=0.1)(torch.full((2, 1, 10), 2.0)).item()  # a tenth of 10 times 2 squared
        4.0
    """

    def __init__(self, weight: float = 0.1) -> None:
        super().__init__()
        self.weight = _not_negative(weight)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Weighted scalar of embeddings (B, U, d)."""
        return self.weight * user_l2(embeddings)


def _not_negative(weight: float) -> float:
    if not weight >= 0:
        raise ValueError(f"the weight of a loss must not be negative, got {weight}")
    return weight
