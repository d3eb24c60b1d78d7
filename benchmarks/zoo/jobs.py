"""What there is to train (zoo.yaml): in which order, with which files, and how far it is."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from simzoo.core.hub import file_sha256
from simzoo.core.recipes import read_recipe

RELEASED = "checkpoints/"
OUTPUTS = "out/"


@dataclass(frozen=True)
class Places:
    """Where a run of the zoo reads and writes.

    Attributes:
        root: what recipes call ``out/``: logs, training checkpoints, candidates, lessons; a folder a model.
        into: what recipes call ``checkpoints/``, of the models that the zoo trains.
    """

    root: Path
    into: Path


@dataclass(frozen=True)
class Job:
    """A model to train.

    Attributes:
        name: of the checkpoint.
        recipe: its file.
        needs: names of the zoo's models that recipe, lessons and evaluation read.
        before: command lines of evaluate.py that come before the training, without ``evaluate.py``.
        evaluate: options of ``evaluate.py run`` that come after it.
        about: data and limits, for the card.
        gpu: options of train.py with a GPU, by name.
    """

    name: str
    recipe: Path
    needs: frozenset[str] = frozenset()
    before: Sequence[str] = ()
    evaluate: Sequence[str] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    gpu: Mapping[str, Any] = field(default_factory=dict)


def read_jobs(path: Path) -> tuple[list[Job], Mapping[str, Any]]:
    """The jobs of a file, each behind those that it needs, and the GPU's options of all.

    Raises:
        ValueError: the file is no zoo, or jobs need each other.
    """
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not isinstance(content.get("models"), dict):
        raise ValueError(f"{path}: expected a key models, of recipes by the name of what they train")
    models = content["models"]
    jobs = []
    for name, given in models.items():
        unknown = set(given) - {"recipe", "before", "evaluate", "about", "gpu"}
        if "recipe" not in given or unknown:
            raise ValueError(f"{path}: {name} needs a recipe, and has no key {', '.join(sorted(unknown)) or 'more'}")
        recipe = Path(given["recipe"])
        texts = [
            yaml.safe_dump(read_recipe(recipe), width=10_000),
            *given.get("before", ()),
            *given.get("evaluate", ()),
        ]
        named = {found for text in texts for found in re.findall(rf"\b{RELEASED}([\w.-]+)", text)}
        jobs.append(Job(name, recipe, frozenset(named & set(models) - {name}), **_rest(given)))
    return ordered(jobs), (content.get("settings") or {}).get("gpu") or {}


def _rest(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != "recipe" and value is not None}


def ordered(jobs: Sequence[Job]) -> list[Job]:
    """Every job behind those that it needs, otherwise as given.

    Raises:
        ValueError: jobs need each other in a circle.
    """
    left, done = list(jobs), list[Job]()
    while left:
        known = {job.name for job in done}
        following = next((job for job in left if job.needs <= known), None)
        if following is None:
            raise ValueError(f"these recipes need each other in a circle: {', '.join(job.name for job in left)}")
        left.remove(following)
        done.append(following)
    return done


def chosen(jobs: Sequence[Job], only: Iterable[str] | None) -> list[Job]:
    """The jobs of these names.

    Raises:
        ValueError: there is no such job.
    """
    if only is None:
        return list(jobs)
    names = set(only)
    if unknown := names - {job.name for job in jobs}:
        raise ValueError(f"the zoo has no {', '.join(sorted(unknown))}; it has {', '.join(job.name for job in jobs)}")
    return [job for job in jobs if job.name in names]


def placed(value: Any, places: Places, names: frozenset[str]) -> Any:
    """A recipe, or a part of one, with the run's own folders.

    Args:
        value: parsed YAML, or a command line.
        places: the folders.
        names: of the models that are taken from ``places.into``; others are taken from where the recipe says.
    """
    if isinstance(value, dict):
        return {key: placed(part, places, names) for key, part in value.items()}
    if isinstance(value, list):
        return [placed(part, places, names) for part in value]
    if not isinstance(value, str):
        return value

    def moved(match: re.Match[str]) -> str:
        if match[1] is None:
            return f"{places.root}/"
        return str(places.into / match[1]) if match[1] in names else match[0]

    return re.sub(rf"(?<![\w/.])(?:{RELEASED}([\w.-]+)|{OUTPUTS})", moved, value)


@dataclass(frozen=True)
class State:
    """How far a job is, read from its folder.

    Attributes:
        job: which.
        places: the run's folders.
    """

    job: Job
    places: Places

    @property
    def folder(self) -> Path:
        """Of its training."""
        return self.places.root / self.job.name

    @property
    def released(self) -> Path:
        """Where train.py writes the best weights."""
        return self.folder / "release"

    @property
    def checkpoint(self) -> Path:
        """Where it is found when it is done."""
        return self.places.into / self.job.name

    @property
    def trained(self) -> bool:
        """Whether the training has ended."""
        return (self.folder / "trained.json").is_file()

    @property
    def installed(self) -> bool:
        """Whether the checkpoint holds what was trained."""
        weights = self.checkpoint / "model.safetensors"
        if not self.trained or not weights.is_file():
            return False
        known: bool = json.loads((self.folder / "trained.json").read_text()).get("installed") == file_sha256(weights)
        return known

    def runs(self) -> list[Path]:
        """Output folders of its evaluations."""
        return [self.folder / "runs" / str(number) for number in range(len(self.job.evaluate))]

    def is_measured(self, run: Path) -> bool:
        """Whether an evaluation was made with the weights that are installed."""
        path, weights = run / "metrics.json", self.checkpoint / "model.safetensors"
        if not path.is_file() or not self.installed:
            return False
        found: bool = json.loads(path.read_text())["checkpoint"]["sha256"] == file_sha256(weights)
        return found

    @property
    def done(self) -> bool:
        """Whether it is trained, evaluated and has its card."""
        carded = (self.folder / "carded").is_file()
        return self.installed and carded and all(self.is_measured(run) for run in self.runs())

    def carried(self) -> list[Path]:
        """What another machine needs to go on: checkpoints of a training in progress, results of a finished one."""
        if self.installed:
            kept = [*self.checkpoint.glob("*"), self.folder / "trained.json", self.folder / "carded"]
            kept += [path for run in self.runs() for path in (run / "metrics.json",)]
        else:
            kept = [*(self.folder / "checkpoints").glob("*.ckpt"), *self.released.glob("*")]
            kept = [path for path in kept if ".previous" not in path.name]
        return [path for path in [*kept, self.folder / "made_by.json"] if path.is_file()]


def made_by(recipe: Mapping[str, Any], options: Mapping[str, Any], needed: Mapping[str, str]) -> dict[str, Any]:
    """What a training depends on: a folder is gone on with only for the same.

    Args:
        recipe: as it was placed.
        options: over it.
        needed: sha256 of the weights that it reads, by name.
    """
    text = json.dumps(recipe, sort_keys=True)
    return {"recipe": hashlib.sha256(text.encode()).hexdigest(), "options": dict(options), "needs": dict(needed)}
