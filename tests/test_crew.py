"""Who shares a command's work, and what it says it will take before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simzoo import evaluate
from simzoo.core.crew import Crew
from simzoo.core.shards import Worker
from simzoo.models.dual_encoder import DualEncoder
from simzoo.retrieval.commands import estimate
from simzoo.retrieval.commands.estimate import Estimate
from simzoo.retrieval.judge import SimilarityJudge
from tests.test_evaluate import world  # noqa: F401  a fixture

COMMANDS = {
    "run": ("--search", "Rerank", "--search.budget", "5"),
    "encode": (),
    "matrix": ("--queries", "12"),
    "sparse_matrix": ("--queries", "12", "--sampling", "Uniform", "--sampling.number", "30"),
    "teach": ("--split", "test",),
}  # fmt: skip


def given(world: Path, name: str, *options: str) -> list[str]:  # noqa: F811
    data = ["--data", "BEIR", "--data.root", str(world / "data")]
    return [name, "--checkpoint", str(world / "de"), *data, *COMMANDS[name], *options]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_plan_says_what_it_takes_and_does_nothing(
    name: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    """A plan that begins the work, or whose cost is of another time than it names."""
    monkeypatch.setattr(estimate, "peak_memory", lambda: 7_000_000)
    place = f"simzoo.retrieval.commands.{ {'run': 'parts'}.get(name, name) }.estimated"
    asked: list[tuple[int, int]] = []

    def known(similarity: Any, collection: Any, queries: int, calls: int) -> Estimate:
        asked.append((queries, calls))
        return Estimate(2_000_000, 5400, 3, 4)

    monkeypatch.setattr(place, known)
    evaluate.main([*given(world, name), "--output", str(tmp_path / "out"), "--plan", "true", "--price", "2"])
    said = capsys.readouterr().err
    pairs = {"run": (24, 120), "encode": (0, 0), "matrix": (12, 480), "sparse_matrix": (12, 30), "teach": (24, 504)}
    assert asked == [pairs[name]]
    assert "1:30:00" in said and "about 3.00 at 2 an hour" in said and "MB on the host" in said
    size = {"encode": 7, "matrix": 9}.get(name, 9)
    assert f"about {size} MB on the host" in said
    assert not list(tmp_path.iterdir())


def test_items_are_encoded_once(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """A store of another name than `run` looks for would be made in vain."""
    evaluate.main(given(world, "encode", "--output", str(tmp_path / "store")))
    monkeypatch.setattr(DualEncoder, "encode_items", lambda *_: pytest.fail("they are there"))
    monkeypatch.setattr("simzoo.retrieval.commands.parts.estimated", lambda *_: Estimate(0, 0, 0, 0))
    where = ["--output", str(tmp_path / "out"), "--store", str(tmp_path / "store"), "--k", "3"]
    evaluate.main(given(world, "run", *where))


def test_a_late_worker_finds_the_work_done(world: Path, tmp_path: Path) -> None:  # noqa: F811
    """Another rank's output file, or a store of its own, behind the first one's back."""
    output = ["--output", str(tmp_path / "m.safetensors")]
    evaluate.main(given(world, "matrix", *output))
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    words = given(world, "matrix", *output, "--overwrite", "true")
    parsed = evaluate.parser(words).parse_args(words)
    options = dict(evaluate.parser(words).instantiate(parsed)["matrix"])
    for name in ("config", "runner", "workers"):
        options.pop(name)
    evaluate.command("matrix")(**options, worker=Worker(1, 2))
    assert [path for path in before if not path.exists()] == []
    after = [path for path in tmp_path.rglob("*") if path.is_file() and path not in before]
    new = {path.relative_to(tmp_path).parts[0] for path in after}
    assert new == {"m.shards.items"}  # which it encodes to be ready, where it cannot know


def test_crews_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that takes itself for the first of one writes the output of several."""
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        Crew("local", 0)
    with pytest.raises(ValueError, match=r"RANK and WORLD_SIZE are not set; start with: torchrun"):
        Crew("torchrun").run(rank, {})
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert Crew("torchrun").run(rank, {}) == Worker(1, 2)
    with pytest.raises(ValueError, match="torchrun started 2 workers, but 3 are asked for"):
        Crew("torchrun", 3).run(rank, {})
    with pytest.raises(ValueError, match="of 2 workers one has a number from 0 on, got 2"):
        Worker(2, 2)


def rank(worker: Worker) -> Worker:
    return worker


def test_workers_fill_one_store(tmp_path: Path) -> None:
    """Two judges over one store: the second one reads what the first has made, to the last bit."""
    from tests.toy import toy_collection

    model, items = DualEncoder.tiny().eval(), toy_collection().items
    first = SimilarityJudge.of(model, items, tmp_path / "store", worker=Worker(0, 2))
    second = SimilarityJudge.of(model, items, tmp_path / "store", worker=Worker(1, 2))
    alone = SimilarityJudge.of(model, items)
    for judge in (first, second):
        assert judge.items["vector"].equal(alone.items["vector"])  # type: ignore[union-attr]
    assert not (tmp_path / "store" / "work").exists()
