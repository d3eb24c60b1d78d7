"""The plan's estimate: cheap where a model is slow, right where its cost is known, without a trace."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from simzoo.core.records import Collection, Item, Query
from simzoo.core.reps import Reps
from simzoo.models.cmc import CMC
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.similarity import LearnedSimilarity
from simzoo.retrieval.commands import estimate
from tests.toy import toy_collection


class Clock:
    """Time that only the work below spends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("simzoo.retrieval.commands.estimate.time.perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize(
    ("each", "sizes", "said"),
    [(2.0, [1], "2:00:00"), (0.1, [1, 2, 4], "0:06:00"), (1e-6, [1, 2, 4, 8, 16, 32, 40], "0:00:00")],
)
def test_an_estimate_is_cheap_and_right(
    each: float, sizes: list[int], said: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """512 pairs of a large model took minutes before the first line: longer than what was estimated."""
    model, scored = CrossEncoder.tiny().eval(), []
    score = CrossEncoder.score

    def slow(self: CrossEncoder, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        assert candidates is not None
        scored.append(candidates.numel())
        clock.now += each * candidates.numel()
        return score(self, queries, items, candidates)

    monkeypatch.setattr(CrossEncoder, "score", slow)
    found = estimate.estimated(model, toy_collection(), 24, calls=3600).rows["time"]
    assert found.startswith(f"about {said} on this machine, judged by 40 items and {sizes[-1]} pair")
    assert scored == sizes


def test_the_last_size_counts(clock: Clock) -> None:
    """What is done once (a kernel that is compiled, a thread that starts) must not be multiplied by millions."""
    sizes = []

    def step(size: int) -> None:
        sizes.append(size)
        clock.now += 0.3 * (size == 1) + 0.01 * size

    each, size = estimate.timed(step, 1000)
    assert each == pytest.approx(0.01) and size == 16
    assert sizes == [1, 2, 4, 8, 16]
    assert estimate.timed(lambda size: None, 100)[1] == 100


@pytest.mark.parametrize("kind", [CrossEncoder, CMC])
def test_an_estimate_leaves_no_trace(kind: type[LearnedSimilarity]) -> None:
    """Truncated texts of the sample were counted twice, or those of earlier work forgotten."""
    model = kind.tiny().eval()
    assert model.text is not None
    model.text.truncated = 3
    long = [Item(f"i{n}", "boat river " * 400) for n in range(5)]
    collection = Collection("c", long, [Query("q", "boat " * 400)], [{0: 1}])
    found = estimate.estimated(model, collection, 1, 5).rows
    assert model.text.truncated == 3
    assert re.fullmatch(r"about \d+\.\d MB", found["representations"])


def test_bytes_are_those_of_the_representations(clock: Clock) -> None:
    """A disk that is filled by what was said to fit on it."""
    model, toy = CMC.tiny().eval(), toy_collection()
    with torch.inference_mode():
        items = model.encode_items(model.collate_items(toy.items))
        queries = model.encode_queries(model.collate_queries(toy.queries))
    copies = [Item(f"{copy} {item.id}", item.text, item.title) for copy in range(500) for item in toy.items]
    many = Collection("c", copies, toy.queries, [{0: 1}] * 24)
    found = estimate.estimated(model, many, 24, 0).rows["representations"]
    expected = (500 * sum(part.nbytes for part in items.values()) + sum(part.nbytes for part in queries.values())) / 1e6
    assert expected > 1 and float(found.split()[1].replace(",", "")) == pytest.approx(expected, abs=0.06)
