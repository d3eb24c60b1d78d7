"""Drawing negatives by a retriever's scores, and the probability with which an item came into a list or a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]


def draw(scores: Floats, count: int, fixed: int, rng: np.random.Generator) -> tuple[Rows, float]:
    """Draws without replacement, each time with probability proportional to exp(score) of what is left.

    Args:
        scores: (N,) best first, divided by the temperature; zeros for uniform draws.
        count: how many; all where there are fewer.
        fixed: the first so many are taken always, and count among ``count``.
        rng: of the noise.

    Returns:
        The places drawn, fixed ones first, and kappa: the largest score plus Gumbel noise that was not drawn. It is
        -inf where nothing is left, and inf where nothing was drawn.
    """
    # The largest of the scores plus Gumbel noise are a sample by softmax without replacement.
    noisy = scores + rng.gumbel(size=len(scores))
    noisy[:fixed] = np.inf
    order = np.argsort(-noisy, kind="stable")
    if count <= fixed:
        return order[:count], np.inf
    return order[:count], float(noisy[order[count]]) if count < len(scores) else -np.inf


def drawn_probability(scores: Floats, kappa: float) -> Floats:
    """P(score + Gumbel noise > kappa): with which items of these scores (N,) were drawn, kappa being given."""
    with np.errstate(over="ignore"):
        probability: Floats = -np.expm1(-np.exp(scores - kappa))
    return probability


@dataclass(frozen=True)
class Inclusion:
    """With which probability each item came into a query's list.

    pi = a + (1 - a) b, for a the probability of being drawn by score (1 for items that are always there, 0 beyond the
    depth) and b that of being drawn at random: exact in a, of first order in b. A list L of one relevant item g and n
    draws by score, kappa given, has the probability p(g) times that of the others' being drawn times that of the rest's
    staying below kappa, which does not depend on which item of L is g. So P(g | L) is proportional to p(g) / a_g.

    Attributes:
        rows: (N,) items that may be drawn by score, relevant ones included.
        drawn: (N,) a of each.
        random: b.
    """

    rows: Rows
    drawn: Floats
    random: float

    def of(self, rows: Rows) -> Floats:
        """pi of any items, in their shape."""
        a = np.zeros(rows.shape)
        if len(self.rows):
            order = np.argsort(self.rows, kind="stable")
            places = np.searchsorted(self.rows, rows, sorter=order).clip(max=len(order) - 1)
            found = order[places]
            a = np.where(self.rows[found] == rows, self.drawn[found], 0.0)
        return a + (1 - a) * self.random


def batch_probability(shares: Floats, queries: int) -> Floats:
    """1 - (1 - p)^(B - 1): with which an item is in a batch by one of the B - 1 other queries.

    Args:
        shares: p, the probability with which one query brings the item.
        queries: B.
    """
    with np.errstate(divide="ignore"):
        probability: Floats = -np.expm1((queries - 1) * np.log1p(-shares.clip(max=1.0))) if queries > 1 else 0 * shares
    return probability


def positive_shares(relevant: Sequence[Sequence[int]], num_items: int) -> Floats:
    """(N,) share of the training positives that each item is, a query's relevant ones being drawn evenly."""
    shares = np.zeros(num_items)
    for rows in relevant:
        shares[list(rows)] += 1 / len(rows)
    return shares / max(len(relevant), 1)


def logs(probability: Floats) -> Floats:
    """Logs, -inf of 0."""
    with np.errstate(divide="ignore"):
        found: Floats = np.log(probability)
    return found
