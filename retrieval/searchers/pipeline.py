"""Search in stages: each reranks what the one before it kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from simzoo.models.formats import load
from simzoo.models.similarity import fastest_device
from simzoo.retrieval.evaluation import similarity_scorer
from simzoo.retrieval.first_stages.first_stage import BM25, FirstStage
from simzoo.retrieval.scorer import Rows, Scorer
from simzoo.retrieval.searcher import Ranking, Searcher, Stopwatch, check_budget, top_order


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
    and the bytes of the representations that a stage keeps.

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
        self._scorers: list[Scorer] = []
        self._spent: dict[str, float] = {}
        self._asked = 0

    @classmethod
    def tiny(cls, stage: Any, budget: int) -> Self:
        """See `Searcher.tiny`; without a stage in between."""
        return cls(stage, budget)

    def prepare(self, watch: Stopwatch) -> None:
        """Indexes the first stage, and represents the collection for each of the others."""
        check_budget(self.depth, self.budget, len(self.task.collection.items))
        with watch.step("first stage"):
            self.first_stage.index(self.task.collection)
        self._scorers, self._spent, self._asked = [], {}, 0
        for number, stage in enumerate(self.stages, start=2):
            with watch.step(_name(number, stage)):
                model = load(stage.checkpoint, fastest_device())
                self._scorers.append(similarity_scorer(model, self.task.collection))

    def search(self, query_rows: Rows, k: int) -> Ranking:
        """See `Searcher.search`."""
        check_budget(self.budget, k, len(self.task.collection.items))
        watch = Stopwatch()
        with watch.step("first stage"):
            items, _ = self.first_stage.search(query_rows, self.depth)
        for number, (stage, scorer) in enumerate(zip(self.stages, self._scorers, strict=True), start=2):
            with watch.step(_name(number, stage)):
                scores = scorer.score_lists(query_rows, items)
                items = np.take_along_axis(items, top_order(scores, items, stage.keep), axis=1)
                scorer.forget(query_rows)
        with watch.step("scoring"):
            scores = self.task.scorer.score_lists(query_rows, items)
        self._asked += len(query_rows)
        self._spent = {step: self._spent.get(step, 0.0) + seconds for step, seconds in watch.seconds.items()}
        return self.ranked(query_rows, items, scores, k, watch)

    def stage_costs(self) -> list[dict[str, Any]]:
        """Of each stage, means over the queries: pairs or lists scored, milliseconds; and bytes of representations."""
        between = [
            {"stage": _name(number, stage), "kept": stage.keep, **_calls(scorer, self._asked)}
            for number, (stage, scorer) in enumerate(zip(self.stages, self._scorers, strict=True), start=2)
        ]
        last = {"stage": "scoring", **_calls(self.task.scorer, self._asked)}
        costs: list[dict[str, Any]] = [{"stage": "first stage", "kept": self.depth}, *between, last]
        return [
            cost | {"milliseconds": 1000 * self._spent.get(cost["stage"], 0.0) / max(self._asked, 1)} for cost in costs
        ]


def _calls(scorer: Scorer, asked: int) -> dict[str, Any]:
    counted = "pairs" if scorer.pointwise else "lists"
    return {counted: int(scorer.calls.sum()) / max(asked, 1), "bytes": scorer.representation_bytes}


def _name(number: int, stage: Stage) -> str:
    return f"stage {number}, {stage.checkpoint}"
