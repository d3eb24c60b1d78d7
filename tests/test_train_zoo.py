"""The zoo's training: order, resumption, deadline, plan; on recipes of tiny models."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.zoo import probe as probing
from benchmarks.zoo import train as zoo_train
from benchmarks.zoo.jobs import Job, Places, State, chosen, ordered, placed, read_jobs
from benchmarks.zoo.train import OutOfTimeError, Zoo
from simzoo import evaluate, train
from simzoo.core.hub import file_sha256
from simzoo.datamodules.readers.wordnet import find_wordnet
from simzoo.models.formats import load
from simzoo.models.parts.tiny import tiny_backbone

ROOT = Path(__file__).parents[1]
ZOO = ROOT / "benchmarks" / "zoo" / "zoo.yaml"
EVALUATION = "--data WordNet --data.world verb.weather --queries 4 --k 3 --search Exact"


def recipe(model: dict[str, Any], lists: dict[str, Any], **trainer: Any) -> dict[str, Any]:
    tokens = {"query_length": 24, "item_length": 24}
    backbone = {"name": str(tiny_backbone()), **model.pop("backbone", {})}
    worlds = {"train_worlds": ["verb.weather"], "dev_worlds": ["verb.competition"]}
    return {
        "seed_everything": 1,
        "model": {"init_args": {"backbone": backbone, "tokens": tokens, **model.pop("init_args", {})}, **model},
        "data": {
            "source": {"class_path": "WordNet", "init_args": worlds},
            "lists": lists,
            "miner": {"class_path": "MineCandidates", "init_args": {"first_stage": {"class_path": "BM25"}, "depth": 8}},
            "batch_size": 4,
            "val_depth": 8,
            "max_train_queries": 16,
            "max_val_queries": 4,
        },
        "trainer": {"max_epochs": 1, "limit_train_batches": 2, "enable_progress_bar": False, **trainer},
        "output": "out/anything",
        "monitor": "val/mrr",
        "resume_every": 1,
    }


HARD = {"class_path": "HardNegatives", "init_args": {"hard": 3}}
FILES = {"class_path": "FromFiles", "init_args": {"records": ["out/lessons-tiny"], "positive_type": "positive"}}


@pytest.fixture
def zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo of three, the last one first in the file: a student of the judge that starts from the dual encoder."""
    find_wordnet()
    monkeypatch.chdir(tmp_path)
    lora = {"lora": {"rank": 2, "alpha": 4}}
    student = recipe(
        {"class_path": "DualEncoder", "init_args": {"loss": {"class_path": "MatchLoss"}}, "backbone": dict(lora)},
        FILES,
        max_steps=2,
        max_epochs=-1,
        limit_train_batches=None,
    )
    judge = recipe({"class_path": "CrossEncoder", "backbone": {**lora, "start": "checkpoints/tiny-de"}}, HARD)
    recipes = {
        "student": student,
        "judge": judge,
        "de": recipe({"class_path": "DualEncoder", "backbone": dict(lora)}, HARD),
    }
    for name, content in recipes.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    teach = "teach --checkpoint checkpoints/tiny-judge --data WordNet --data.train_worlds [verb.weather] --top 4"
    models: dict[str, Any] = {
        "tiny-student": {
            "before": [f"{teach} --random 0 --queries 8 --output out/lessons-tiny"],
            "recipe": "student.yaml",
        },
        "tiny-judge": {"recipe": "judge.yaml", "evaluate": [EVALUATION], "about": {"data": "d", "limits": "l"}},
        "tiny-de": {"recipe": "de.yaml", "evaluate": [EVALUATION], "gpu": {"data.batch_size": 8}},
    }
    settings = {"gpu": {"trainer.precision": "bf16-mixed", "trainer.accelerator": "cpu"}}
    path = tmp_path / "zoo.yaml"
    path.write_text(yaml.safe_dump({"settings": settings, "models": models}, sort_keys=False))
    return path


class InProcess(Zoo):
    """Runs the programs here, which spares their start; ends before the call of a number."""

    calls: list[str]
    most = 99

    def run(self, words: Sequence[str], state: State) -> None:
        if len(self.calls) == self.most:
            raise OutOfTimeError
        self.calls.append(" ".join([*words[:2], state.job.name]))
        {"train.py": train.main, "evaluate.py": evaluate.main}[words[0]](list(words[1:]))


def opened(path: Path, gpu: bool = False, most: int = 99) -> InProcess:
    jobs, common = read_jobs(path)
    places = Places(Path("out/run"), Path("out/run/checkpoints"))
    found = InProcess(jobs, places, common if gpu else {}, gpu=gpu)
    found.calls, found.most = [], most
    return found


def test_a_small_zoo(zoo: Path) -> None:
    """A student that is trained before its teacher, or from an older one, or a run that begins again when killed."""
    first = opened(zoo, gpu=True, most=4)
    assert [job.name for job in first.jobs] == ["tiny-de", "tiny-judge", "tiny-student"]
    with pytest.raises(OutOfTimeError):
        first.work(first.jobs)
    done = ["train.py fit tiny-de", "evaluate.py run tiny-de", "train.py fit tiny-judge", "evaluate.py run tiny-judge"]
    assert first.calls == done
    second = opened(zoo, gpu=True)
    second.work(second.jobs)
    assert second.calls == ["evaluate.py teach tiny-student", "train.py fit tiny-student"]
    third = opened(zoo, gpu=True)
    third.work(third.jobs)
    assert third.calls == []
    into = Path("out/run/checkpoints")
    assert sorted(path.name for path in into.iterdir()) == ["tiny-de", "tiny-judge", "tiny-student"]
    made = json.loads(Path("out/run/tiny-judge/made_by.json").read_text())
    assert made["needs"] == {"tiny-de": file_sha256(into / "tiny-de" / "model.safetensors")}
    started = yaml.safe_load(Path("out/run/tiny-judge/recipe.yaml").read_text())
    assert started["model"]["init_args"]["backbone"]["start"] == "out/run/checkpoints/tiny-de"
    card = (into / "tiny-de" / "README.md").read_text()
    assert "data.batch_size 8" in card and "verb.weather" in card and 'load("checkpoints/tiny-de")' in card
    assert type(load(into / "tiny-student")).__name__ == "DualEncoder"
    assert "3/3 tiny-student: done" in Path("out/run/zoo.log").read_text()
    carried = {str(path) for path in third.carry()}
    assert "out/run/checkpoints/tiny-judge/model.safetensors" in carried
    assert not any("candidates" in path or "lessons" in path for path in carried)


def test_what_is_there_is_not_gone_on_with_for_another_recipe(zoo: Path) -> None:
    """A changed recipe that goes on from the old one's steps gives a checkpoint that neither of them made."""
    first = opened(zoo, most=1)
    with pytest.raises(OutOfTimeError):
        first.work(chosen(first.jobs, ["tiny-de"]))
    content = yaml.safe_load(Path("de.yaml").read_text())
    content["data"]["lists"]["init_args"]["hard"] = 2
    Path("de.yaml").write_text(yaml.safe_dump(content))
    again = opened(zoo)
    with pytest.raises(ValueError, match="tiny-de: this training was begun with other recipe; remove the folder"):
        again.work(chosen(again.jobs, ["tiny-de"]))
    with pytest.raises(ValueError, match="the zoo has no tiny-ce; it has tiny-de, tiny-judge"):
        chosen(again.jobs, ["tiny-ce"])


def test_a_program_is_stopped_at_the_deadline(tmp_path: Path) -> None:
    """A program that is killed outright loses the steps since its last checkpoint; one that runs on, the machine."""
    code = (
        "import pathlib, signal, sys, time; here = pathlib.Path(sys.argv[1]);"
        "signal.signal(signal.SIGTERM, lambda *_: (here.write_text('kept'), sys.exit(143)));"
        "print('begun', flush=True); time.sleep(60)"
    )
    state = State(Job("a", Path("a.yaml")), Places(tmp_path, tmp_path))
    run = Zoo([state.job], state.places, {}, deadline=time.monotonic() + 3)
    with pytest.raises(OutOfTimeError):
        run.run(["-c", code, str(tmp_path / "kept")], state)
    assert (tmp_path / "kept").read_text() == "kept"
    assert "begun" in (tmp_path / "a" / "log.txt").read_text()
    with pytest.raises(OutOfTimeError):
        run.run(["-c", "raise SystemExit(1)"], state)
    run.deadline = None
    with pytest.raises(RuntimeError, match=r"status 1; .*log\.txt says why"):
        run.run(["-c", "raise SystemExit(1)"], state)


def test_the_plan_of_a_small_zoo(zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that leaves out recipes, or steps of them, lets somebody begin what cannot be ended."""
    options = ["--zoo", str(zoo), "--root", "out/run", "--plan"]
    assert zoo_train.main(options) == 0
    shown = capsys.readouterr().out
    rows = [line.split("│")[1:-1] for line in shown.splitlines() if "tiny-" in line]
    assert [cells[0].strip() for cells in rows] == ["tiny-de", "tiny-judge", "tiny-student"]
    assert [cells[1].strip() for cells in rows] == ["2", "2", "2"]
    known = json.loads(Path("out/run/probe.json").read_text())
    assert len(known) == 3 and all(rates["step"] > 0 for rates in known.values())
    assert not Path("out/run/tiny-de").exists()
    assert zoo_train.main([*options[:-1], "--minutes", "0.00001"]) == 75


@pytest.mark.parametrize(
    ("trainer", "queries", "steps"),
    [
        ({"max_epochs": 1, "limit_train_batches": 5}, 100, 5),
        ({"max_epochs": 2, "limit_train_batches": 50}, 100, 26),
        ({"max_epochs": 3}, 0, 21),
        ({"max_epochs": -1, "max_steps": 40}, 100, 40),
        ({"max_epochs": 1, "max_steps": 40}, 100, 13),
    ],
)
def test_steps_of_recipes(trainer: dict[str, Any], queries: int, steps: int) -> None:
    """By hand, in batches of 8 (13 of 100 queries), or 7 batches where the queries are not known."""
    assert probing.steps_of({"trainer": trainer, "data": {"batch_size": 8}}, queries, 7) == steps


def test_folders_are_placed() -> None:
    """A path that is half rewritten trains from, or over, a released checkpoint."""
    places = Places(Path("r"), Path("r/c"))
    given = {
        "a": ["checkpoints/x", "checkpoints/xy", "my/checkpoints/x"],
        "b": "--to out/l --from checkpoints/x",
        "c": 1,
    }
    expected = {"a": ["r/c/x", "checkpoints/xy", "my/checkpoints/x"], "b": "--to r/l --from r/c/x", "c": 1}
    assert placed(given, places, frozenset({"x"})) == expected
    with pytest.raises(ValueError, match="in a circle: a, b"):
        ordered([Job("a", Path("a"), frozenset({"b"})), Job("b", Path("b"), frozenset({"a"}))])


def test_the_zoo_is_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A released checkpoint that no recipe makes any more; a misspelt option, seen when the GPU is rented."""
    monkeypatch.chdir(ROOT)
    jobs, common = read_jobs(ZOO)
    names = [job.name for job in jobs]
    assert {path.parent.name for path in ROOT.glob("checkpoints/*/config.json")} <= set(names)
    for earlier, later in (("wordnet-de", "wordnet-emb-ce"), ("wordnet-emb-ce", "wordnet-de-match")):
        assert names.index(earlier) < names.index(later)
    run = Zoo(jobs, Places(Path("out/none"), Path("checkpoints")), common, gpu=True)
    parsed: set[str] = set()
    for job in jobs:
        assert job.evaluate and set(job.about) == {"data", "limits"}
        content = yaml.safe_load(job.recipe.read_text())
        assert content["output"] == f"out/{job.name}" or job.name == "wordnet-mol"
        if not parsed >= set(job.gpu):  # each option once: parsing takes seconds
            parsed |= set(job.gpu)
            words = zoo_train.words_of(run.options(job))
            with pytest.raises(SystemExit) as ended:
                train.main(["fit", f"--config={job.recipe}", *words, "--print_config"])
            assert ended.value.code == 0
            shown = yaml.safe_load(capsys.readouterr().out)
            assert shown["data"]["batch_size"] == job.gpu["data.batch_size"]
            assert shown["trainer"]["precision"] == "bf16-mixed" and shown["trainer"]["accelerator"] == "gpu"
