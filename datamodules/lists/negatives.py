"""Lists of a relevant item and negatives: mined ones, random ones, or those that the data offers."""

from __future__ import annotations

from collections.abc import Set
from typing import ClassVar

import numpy as np

from simzoo.core.candidates import Candidates, check_usable, num_missed
from simzoo.core.records import Collection, DataError
from simzoo.datamodules.lists.base import CollectionLists, Drawn, QueryLists, Rows, Scores, Shares
from simzoo.datamodules.sampling import Floats, Inclusion, draw, drawn_probability, positive_shares

__all__ = ["GivenNegatives", "HardNegatives", "Pool", "RandomNegatives"]

MISSED = "training queries have no relevant item among their mined candidates"
BEYOND = np.iinfo(np.int64).max
"""The rank of an item that no depth reaches."""
LEFT_OUT = "training queries have no relevant item that could be drawn: a corrected cross-entropy leaves them out"


class HardNegatives(QueryLists):
    """A relevant item and negatives of the same collection, most of them mined.

    Relevant items are never negatives. Where the miner has a teacher, its scores stand beside the labels, as the
    retriever's do, the relevant items' included.

    Args:
        hard: negatives drawn from the mined candidates.
        random: further negatives, drawn evenly from all items; they also stand in for hard ones that are lacking.
        depth: hard negatives come from the first so many mined candidates that are not relevant.
        fixed: so many of the hard negatives are always the retriever's first ones (CMC A.C).
        temperature: the others are drawn with probability proportional to exp(retriever's score / temperature), and the
            log of every item's probability is given to the loss (`Targets.log_q`); ``.inf``: evenly, and with that log.
            None: evenly, and without it.
        add_gold: a query whose relevant items the retriever missed gets one of them all the same; False: its list is
            what was found, which cross-entropy passes over. Such queries are counted either way.
        margin: a mined candidate that scores above the relevant item by more than this is taken for a false negative
            and dropped; None keeps all.
    """

    mines = True

    def __init__(
        self,
        hard: int = 15,
        random: int = 0,
        depth: int = 64,
        fixed: int = 0,
        temperature: float | None = None,
        add_gold: bool = True,
        margin: float | None = None,
    ) -> None:
        if hard < 1 or random < 0 or depth < 1 or not 0 <= fixed <= hard:
            raise ValueError(
                "hard and depth must be at least 1, random at least 0, fixed between 0 and hard; got "
                f"hard {hard}, random {random}, depth {depth}, fixed {fixed}"
            )
        if temperature is not None and not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.hard = hard
        self.random = random
        self.depth = depth
        self.fixed = fixed
        self.temperature = temperature
        self.add_gold = add_gold
        self.margin = margin

    def gives(self, miner: Set[str]) -> frozenset[str]:
        """See `TrainingLists.gives`: what the miner gives."""
        return frozenset(miner)

    def check(self, collection: Collection, mined: Candidates, needs: Set[str]) -> dict[str, int]:
        """See `TrainingLists.check`; counts what the retriever missed, and what cannot be drawn."""
        wanted = {
            "data.lists.temperature": self.temperature is not None and np.isfinite(self.temperature),
            "data.lists.margin": self.margin is not None,
            "the loss": "retriever" in needs,
        }
        asked = " and ".join(name for name, needed in wanted.items() if needed)
        check_usable(mined, collection, self.hard, asked)
        counts = {MISSED: num_missed(mined, collection)}
        if self.temperature is not None and not self.random:
            within = self.depth if self.hard > self.fixed else self.fixed
            pools = (Pool.of(self, collection, mined, row) for row in self.members(collection))
            counts[LEFT_OUT] = sum(bool((pool.ranks >= within).all()) for pool in pools)
        return counts

    def shares(self, part: CollectionLists) -> Shares:
        """See `QueryLists.shares`. Of draws without replacement the expected number, which is an upper bound."""
        positive = positive_shares([part.collection.relevant(row) for row in part.rows], len(part.collection.items))
        drawn = np.zeros_like(positive)
        for row in part.rows:
            pool = Pool.of(self, part.collection, part.mined(), row)
            rates = np.exp(pool.scaled - pool.scaled.max(initial=-np.inf))
            rates[: self.fixed] = 0
            rates *= (self.hard - self.fixed) / max(rates.sum(), np.finfo(float).tiny)
            rates[: self.fixed] = 1
            drawn[pool.rows] += rates.clip(max=1.0)
        drawn = drawn / max(len(part.rows), 1) + self.random / len(positive)
        return Shares(positive, positive + drawn)

    def draw(self, part: CollectionLists, row: int, rng: np.random.Generator) -> Drawn:
        """See `QueryLists.draw`."""
        mined = part.mined()
        pool = Pool.of(self, part.collection, mined, row)
        positive = rng.choice(pool.relevant, 1)
        if not self.add_gold and not np.isin(mined.items[row], pool.relevant).any():
            positive = positive[:0]
            if part.joining is self and not part.needs:
                return passed_over(pool, self.temperature is not None)
        places, kappa = draw(pool.scaled, self.hard, self.fixed, rng)
        hard = pool.rows[places]
        extra, chance = at_random(self.hard + self.random - len(hard), part, np.concatenate([pool.relevant, hard]), rng)
        rows = np.concatenate([positive, hard, extra])
        return Drawn(
            rows,
            pool.relevant,
            looked_up(rows, mined, row, teacher=True) if "teacher" in part.needs else None,
            looked_up(rows, mined, row, teacher=False) if "retriever" in part.needs else None,
            pool.inclusion(kappa, chance),
            by_score=self.temperature is not None,
        )


def passed_over(pool: Pool, by_score: bool) -> Drawn:
    """A list without a relevant item for a loss of labels alone: one negative is as good as many, and costs less."""
    return Drawn(pool.rows[:1], pool.relevant, inclusion=pool.inclusion(-np.inf, 0.0), by_score=by_score)


class Pool:
    """What a query's hard negatives are drawn from.

    Attributes:
        relevant: (G,) rows of the relevant items.
        rows: (N,) rows of items, best first.
        scaled: (N,) the retriever's scores over the temperature, 0 for uniform draws.
        ranks: (G,) places that the relevant items would have in ``rows``.
        gold_scaled: (G,) their scores over the temperature.
    """

    def __init__(
        self, lists: HardNegatives, relevant: Rows, rows: Rows, scaled: Floats, ranks: Rows, gold_scaled: Floats
    ) -> None:
        self.lists = lists
        self.relevant = relevant
        self.rows = rows
        self.scaled = scaled
        self.ranks = ranks
        self.gold_scaled = gold_scaled

    @classmethod
    def of(cls, lists: HardNegatives, collection: Collection, mined: Candidates, row: int) -> Pool:
        """The pool of the query at ``row``."""
        relevant = np.array(collection.relevant(row), dtype=np.int64)
        items, scores = mined.items[row], mined.scores[row].astype(np.float64)
        keep = ~np.isin(items, relevant)
        if lists.margin is not None:
            keep &= scores <= mined.gold_scores[row] + lists.margin
        gold = looked_up(relevant, mined, row, teacher=False).astype(np.float64)
        # A relevant item that the retriever missed stands where its score puts it, if before the last one found.
        behind = keep & (scores >= gold[:, None])
        ranks = np.where(behind.sum(axis=1) < keep.sum(), behind.sum(axis=1), BEYOND)
        ranks[~np.isfinite(gold)] = BEYOND
        found = items == relevant[:, None]
        before: Rows = np.cumsum(keep) - keep
        ranks = np.where(found.any(axis=1), before[found.argmax(axis=1)], ranks)
        items, scores = items[keep][: lists.depth], scores[keep][: lists.depth]
        if lists.temperature is None or np.isinf(lists.temperature):
            return cls(lists, relevant, items, np.zeros(len(items)), ranks, np.zeros(len(relevant)))
        return cls(lists, relevant, items, scores / lists.temperature, ranks, gold / lists.temperature)

    def inclusion(self, kappa: float, chance: float) -> Inclusion:
        """With which probability items came into the list; the relevant ones as if they were like the others."""
        scaled = np.concatenate([self.scaled, self.gold_scaled])
        ranks = np.concatenate([np.arange(len(self.rows)), self.ranks])
        drawn = np.where(ranks < self.lists.depth, drawn_probability(np.nan_to_num(scaled), kappa), 0.0)
        drawn[ranks < self.lists.fixed] = 1.0
        return Inclusion(np.concatenate([self.rows, self.relevant]), drawn, chance)


class RandomNegatives(QueryLists):
    """A relevant item and items drawn evenly from the others of the collection.

    Args:
        negatives: how many; 0 for lists that get their negatives from the other queries (`InBatch`).
    """

    def __init__(self, negatives: int = 15) -> None:
        if negatives < 0:
            raise ValueError(f"negatives must be at least 0, got {negatives}")
        self.negatives = negatives

    def shares(self, part: CollectionLists) -> Shares:
        """See `QueryLists.shares`."""
        positive = positive_shares([part.collection.relevant(row) for row in part.rows], len(part.collection.items))
        return Shares(positive, positive + self.negatives / len(positive))

    def draw(self, part: CollectionLists, row: int, rng: np.random.Generator) -> Drawn:
        """See `QueryLists.draw`."""
        relevant = np.array(part.collection.relevant(row), dtype=np.int64)
        positive = rng.choice(relevant, 1)
        extra, chance = at_random(self.negatives, part, relevant, rng)
        inclusion = Inclusion(np.empty(0, dtype=np.int64), np.empty(0), chance)
        return Drawn(np.concatenate([positive, extra]), relevant, inclusion=inclusion)


class GivenNegatives(QueryLists):
    """A relevant item and negatives that the data itself offers for the query, with the data's scores if it has any.

    Args:
        negatives: how many; where the data offers more they are drawn evenly, where it offers fewer random items of the
            collection stand in.
    """

    counted: ClassVar[bool] = False

    def __init__(self, negatives: int = 7) -> None:
        if negatives < 0:
            raise ValueError(f"negatives must be at least 0, got {negatives}")
        self.negatives = negatives

    def gives(self, miner: Set[str]) -> frozenset[str]:
        """See `TrainingLists.gives`: the data's scores are a teacher's."""
        return frozenset({"teacher"})

    def draw(self, part: CollectionLists, row: int, rng: np.random.Generator) -> Drawn:
        """See `QueryLists.draw`.

        Raises:
            DataError: the loss needs scores, and the data has none for the query.
        """
        collection = part.collection
        relevant = np.array(collection.relevant(row), dtype=np.int64)
        positive = rng.choice(relevant, 1)
        offered = np.array(collection.candidates[row] if collection.candidates else (), dtype=np.int64)
        pool = offered[~np.isin(offered, relevant)]
        given = pool if len(pool) <= self.negatives else rng.choice(pool, self.negatives, replace=False)
        extra, _ = at_random(self.negatives - len(given), part, np.concatenate([relevant, given]), rng)
        rows = np.concatenate([positive, given, extra])
        if "teacher" not in part.needs:
            return Drawn(rows, relevant)
        if not collection.scores or not np.isfinite(collection.scores[row]).any():
            raise DataError(
                f"{collection.name}: the loss needs a teacher's scores, but query {collection.queries[row].id!r} has "
                "none: give the data a column of scores, or choose another loss"
            )
        known = dict(zip(collection.candidates[row], collection.scores[row], strict=True))
        teacher = np.array([known.get(int(item), np.nan) for item in rows], dtype=np.float32)
        return Drawn(rows, relevant, teacher)


def at_random(count: int, part: CollectionLists, taken: Rows, rng: np.random.Generator) -> tuple[Rows, float]:
    """Draws ``count`` items, or as many as are left, evenly and without replacement from those that are not taken.

    Returns:
        Their rows, and the probability with which each of what is left was drawn.
    """
    num_items = len(part.collection.items)
    left = num_items - len(np.unique(taken))
    missing = max(min(count, left), 0)
    # Rejection needs few rounds: the items taken are few among all.
    extra = np.empty(0, dtype=np.int64)
    while len(extra) < missing:
        drawn = rng.integers(num_items, size=2 * missing + 8)
        drawn = drawn[~np.isin(drawn, taken)]
        extra = np.concatenate([extra, drawn])
        extra = extra[np.sort(np.unique(extra, return_index=True)[1])]
    return extra[:missing], missing / left if left else 0.0


def looked_up(rows: Rows, mined: Candidates, row: int, teacher: bool) -> Scores:
    """Scores (K,) of a query's items: the retriever's or the teacher's; NaN where there is none."""
    values = mined.teacher if teacher else mined.scores
    if values is None:
        raise ValueError("a teacher's scores are missing: give data.miner a teacher")
    known, scores = mined.items[row], values[row]
    if mined.gold is not None:
        golds = mined.gold_teacher if teacher else mined.gold.scores
        if golds is not None:
            known, scores = np.concatenate([known, mined.gold.items[row]]), np.concatenate([scores, golds[row]])
    if not len(known):
        return np.full(rows.shape, np.nan, dtype=np.float32)
    same = rows[:, None] == known
    return np.where(same.any(axis=1), scores[same.argmax(axis=1)], np.float32(np.nan))
