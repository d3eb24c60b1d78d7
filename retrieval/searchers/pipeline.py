"""Search in stages: each reranks what the one before it kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from simzoo.core.records import Query
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.judge import Judge, SimilarityJudge
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch
from simzoo.retrieval.topk import Rows, top_order

if TYPE_CHECKING:
    from simzoo.models.similarity import LearnedSimilarity

__all__ = ["Pipeline", "Stage"]


@dataclass
class Stage:
    """A similarity between the first stage and the one that is evaluated.

    Attributes:
        checkpoint: its checkpoint.
        keep: items that go on to the next stage.
    """

    checkpoint: str
    keep: int


class Pipeline(Searcher):
    """A first stage, any number of similarities that each keep the best, and the evaluated one on what is left.

    CMC between a dual encoder and a cross-encoder is one (CMC §4.2): the first stage's 512, CMC's 16 of them.
    Milliseconds are reported by stage; so are calls (lists, for a similarity that compares candidates with each other)
    and the bytes of the representations that a stage keeps. Normalised accuracy is over the queries whose gold item the
    first stage retrieved (CMC §5), whatever later stages kept.

    The representations of all items are held for each stage. Growing represents all items anew in the stages between.

    Args:
        first_stage: what retrieves.
        depth: items that it retrieves.
        stages: the similarities in between; each keeps fewer items than it is given.
    """

    budget: int

    def __init__(
        self, first_stage: FirstStage | None = None, depth: int = 512, stages: list[Stage] | None = None
    ) -> None:
        super().__init__()
        self.first_stage = first_stage or BM25()
        self.depth = depth
        self.stages = stages or []
        sizes = [depth, *(stage.keep for stage in self.stages)]
        if min(sizes) < 1 or sizes != sorted(sizes, reverse=True):
            raise ValueError(f"each stage keeps no more items than it is given, at least 1; got {sizes}")
        self.budget = sizes[-1]
        self._models: dict[str, LearnedSimilarity] = {}
        self._judges: list[Judge] = []
        self._reset()

    def _reset(self) -> None:
        self._asked = 0
        self._spent: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`; without a stage in between."""
        return cls(stage, budget)

    @property
    def truncated(self) -> int:
        """Texts that were longer than the models in between take."""
        return sum(judge.truncated for judge in self._judges)

    def prepare(self, watch: Stopwatch) -> None:
        """Indexes the first stage, and represents the items for each of the others."""
        with watch.step("first stage"):
            self.first_stage.index(self.corpus)
        self._represent(watch)

    def grow(self, start: int, watch: Stopwatch) -> None:
        """See `Searcher.grow`: as the first stage does; the stages between represent all items anew."""
        with watch.step("first stage"):
            self.first_stage.extend(self.corpus, start)
        if start < len(self.corpus):
            self._represent(watch)

    def _represent(self, watch: Stopwatch) -> None:
        from simzoo.models.formats import load
        from simzoo.models.similarity import fastest_device

        self._judges = []
        self._reset()
        for number, stage in enumerate(self.stages, start=2):
            with watch.step(_name(number, stage)):
                if stage.checkpoint not in self._models:
                    self._models[stage.checkpoint] = load(stage.checkpoint, fastest_device())
                self._judges.append(SimilarityJudge.of(self._models[stage.checkpoint], self.corpus.items))

    def find(self, scorer: Scorer, queries: Sequence[Query], k: int, watch: Stopwatch) -> Ranking:
        """See `Searcher.find`."""
        mine = Stopwatch()
        with mine.step("first stage"):
            items, _ = self.first_stage.search(queries, self.affordable(self.depth))
        retrieved = items
        for number, (stage, judge) in enumerate(zip(self.stages, self._judges, strict=True), start=2):
            name = _name(number, stage)
            with mine.step(name):
                between = judge.scorer(queries)
                items = _kept(between, items, stage.keep)
            self._count(name, between)
        with mine.step("scoring"):
            scores = scorer.lists(items)
        self._count("scoring", scorer)
        self._asked += len(queries)
        for step, seconds in mine.seconds.items():
            self._spent[step] = self._spent.get(step, 0.0) + seconds
            watch.seconds[step] += seconds
        ranking = self.ranked(scorer, items, scores, k)
        return replace(ranking, retrieved=retrieved)

    def _count(self, name: str, scorer: Scorer) -> None:
        self._calls[name] = self._calls.get(name, 0) + int(scorer.calls.sum())
        self._bytes[name] = self._bytes.get(name, 0) + scorer.representation_bytes

    def stage_costs(self) -> list[dict[str, Any]]:
        """Of each stage, means over the queries: pairs or lists scored, milliseconds; and bytes of representations."""
        between = [
            {"stage": _name(number, stage), "kept": stage.keep, **self._cost(_name(number, stage), judge)}
            for number, (stage, judge) in enumerate(zip(self.stages, self._judges, strict=True), start=2)
        ]
        judge = self.corpus.judge
        last = {"stage": "scoring", **({} if judge is None else self._cost("scoring", judge))}
        first = {"stage": "first stage", "kept": self.depth, "bytes": self.first_stage.representation_bytes}
        costs: list[dict[str, Any]] = [first, *between, last]
        return [
            cost | {"milliseconds": 1000 * self._spent.get(cost["stage"], 0.0) / max(self._asked, 1)} for cost in costs
        ]

    def _cost(self, name: str, judge: Judge) -> dict[str, Any]:
        counted = "pairs" if judge.pointwise else "lists"
        kept = judge.representation_bytes + self._bytes.get(name, 0)
        return {counted: self._calls.get(name, 0) / max(self._asked, 1), "bytes": kept}


def _kept(scorer: Scorer, items: Rows, count: int) -> Rows:
    """(B, count) or fewer, the best of (B, m) items; -1 for none stays behind."""
    return np.take_along_axis(items, top_order(scorer.lists(items), items, count), axis=1)


def _name(number: int, stage: Stage) -> str:
    return f"stage {number}, {stage.checkpoint}"
