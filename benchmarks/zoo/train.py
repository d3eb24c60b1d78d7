"""Trains the released models: every recipe of zoo.yaml behind those that it needs, with its evaluation and its card.

    python -m benchmarks.zoo.train --plan              what it takes, by recipe, from a probe of each
    python -m benchmarks.zoo.train                     all of it; killed or stopped, the same command goes on
    python -m benchmarks.zoo.train --only wordnet-de --budget-hours 3
    python -m benchmarks.zoo.train --gpu --minutes 9   a slice of at most so many minutes, to be called again
    python -m benchmarks.zoo.train --carry             the files that another machine needs to go on, and their size

out/train-zoo/zoo.log says what is done and when; each model's own log.txt beside its training has the loss. Finished
checkpoints lie in out/train-zoo/checkpoints, where later recipes look for them first; ``--into checkpoints`` puts them
into the repository.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.zoo.jobs import RELEASED, Job, Places, State, chosen, made_by, placed, read_jobs
from benchmarks.zoo.probe import Rates, kept, probe
from simzoo.core.hub import file_sha256
from simzoo.core.locks import locked
from simzoo.core.progress import quiet, show_table
from simzoo.core.recipes import read_recipe
from simzoo.models.formats import load, save
from simzoo.retrieval.hub.card import About, write_card
from simzoo.retrieval.results.run_files import commit, write_text

LARGE = 15_000_000  # bytes of weights above which they are stored as float16
CARRIED = 60_000_000  # bytes that may travel
PATIENCE = 90.0  # seconds that a stopped command has to write its checkpoint


class OutOfTimeError(Exception):
    """The time that was given is spent."""


class Zoo:
    """One run.

    Args:
        jobs: all of the zoo, in order.
        places: where it reads and writes.
        options: options of train.py for every recipe.
        deadline: seconds of `time.monotonic` at which it stops; None: never.
        gpu: the recipes' own options for a GPU are taken.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        places: Places,
        options: Mapping[str, Any],
        deadline: float | None = None,
        gpu: bool = False,
    ) -> None:
        self.jobs, self.places, self.common, self.deadline, self.gpu = jobs, places, options, deadline, gpu
        self.states = {job.name: State(job, places) for job in jobs}

    def say(self, text: str) -> None:
        """A line in the log and on standard output."""
        line = f"[{datetime.now():%Y-%m-%d %H:%M:%S}] {text}"
        print(line, flush=True)
        self.places.root.mkdir(parents=True, exist_ok=True)
        with (self.places.root / "zoo.log").open("a") as file:
            file.write(line + "\n")

    def options(self, job: Job) -> dict[str, Any]:
        """Options of train.py for a job."""
        return {**self.common, **(job.gpu if self.gpu else {})}

    def own(self) -> frozenset[str]:
        """Models that are read from where this run puts them."""
        return frozenset(name for name, state in self.states.items() if state.installed)

    def recipe(self, job: Job) -> dict[str, Any]:
        """A job's recipe with the run's folders."""
        found: dict[str, Any] = placed(read_recipe(job.recipe), self.places, self.own())
        return found

    def work(self, jobs: Sequence[Job]) -> None:
        """Does what is left of these jobs, in order.

        Raises:
            OutOfTimeError: the deadline has come.
            ValueError: a folder holds another training.
        """
        for number, job in enumerate(jobs, start=1):
            state, head = self.states[job.name], f"{number}/{len(jobs)} {job.name}"
            if missing := [name for name in sorted(job.needs) if not self._there(name)]:
                self.say(f"{head}: left out, it needs {', '.join(missing)}")
                continue
            if lacking := _lacking(self.recipe(job)):
                self.say(f"{head}: left out, there is no {lacking}")
                continue
            self._claim(state)
            if state.done:
                self.say(f"{head}: done before")
                continue
            if not state.trained:
                self.train(state, head)
            self.install(state, head)
            self.measure(state, head)
            self.say(f"{head}: done, {state.checkpoint}")

    def _there(self, name: str) -> bool:
        return self.states[name].installed or (Path(RELEASED) / name / "model.safetensors").is_file()

    def train(self, state: State, head: str) -> None:
        """Trains a model, or goes on training it.

        Raises:
            OutOfTimeError: the deadline has come.
        """
        options = self.options(state.job)
        write_text(state.folder / "recipe.yaml", yaml.safe_dump(self.recipe(state.job), sort_keys=False))
        for number, words in enumerate(state.job.before):
            mark = state.folder / f"before-{number}"
            if not mark.exists():
                self.say(f"{head}: {words.split()[0]} ({state.folder / 'log.txt'})")
                self.run(["evaluate.py", *shlex.split(placed(words, self.places, self.own()))], state)
                mark.touch()
        self.say(f"{head}: training ({state.folder / 'log.txt'})")
        words = ["train.py", "fit", "--config", str(state.folder / "recipe.yaml"), "--output", str(state.folder)]
        words += ["--release", str(state.released), "--ckpt_path", "last"]
        self.run([*words, *words_of(options)], state)
        write_text(state.folder / "trained.json", json.dumps({"commit": commit(), "seconds": _spent(state)}) + "\n")
        shutil.rmtree(state.folder / "checkpoints", ignore_errors=True)

    def _needed(self, job: Job) -> dict[str, str]:
        names = sorted(job.needs)
        folders = [self.places.into if self.states[name].installed else Path(RELEASED) for name in names]
        pairs = zip(names, folders, strict=True)
        return {name: file_sha256(folder / name / "model.safetensors") for name, folder in pairs}

    def _claim(self, state: State) -> None:
        made = made_by(self.recipe(state.job), self.options(state.job), self._needed(state.job))
        path = state.folder / "made_by.json"
        known = json.loads(path.read_text()) if path.is_file() else made
        if differing := [key for key, value in made.items() if known.get(key) != value]:
            raise ValueError(
                f"{state.folder}: this training was begun with other {' and '.join(differing)}; remove the folder to "
                "begin again, or give another --root"
            )
        write_text(path, json.dumps(made, indent=2) + "\n")

    def install(self, state: State, head: str) -> None:
        """Puts the trained weights where others look for them; as float16 where they are large."""
        if state.installed:
            return
        model = load(state.released, merge=False)
        large = (state.released / "model.safetensors").stat().st_size > LARGE
        save(model, state.checkpoint, torch.float16 if large else torch.float32)
        trained = json.loads((state.folder / "trained.json").read_text())
        trained["installed"] = file_sha256(state.checkpoint / "model.safetensors")
        write_text(state.folder / "trained.json", json.dumps(trained) + "\n")
        self.say(f"{head}: trained in {trained['seconds'] / 3600:.2f} h, installed as {state.checkpoint}")

    def measure(self, state: State, head: str) -> None:
        """Evaluates a model, and writes its card.

        Raises:
            OutOfTimeError: the deadline has come.
        """
        for words, output in zip(state.job.evaluate, state.runs(), strict=True):
            if not state.is_measured(output):
                shutil.rmtree(output, ignore_errors=True)
                self.say(f"{head}: evaluate.py run {words}")
                given = shlex.split(placed(words, self.places, self.own()))
                command = ["evaluate.py", "run", "--checkpoint", str(state.checkpoint), *given]
                self.run([*command, "--output", str(output)], state)
        if state.job.evaluate:
            trained, made = (json.loads((state.folder / f"{name}.json").read_text()) for name in ("trained", "made_by"))
            over = ", ".join(f"{name} {value}" for name, value in made["options"].items())
            recipe = f"`{state.job.recipe}`{f' with {over}' if over else ''}, by `make train-zoo` from commit "
            recipe += f"{trained['commit'] or 'unknown'}."
            about = {"data": "not told", "limits": "not told", **state.job.about, "recipe": recipe}
            write_card(state.checkpoint, state.runs(), About(**about))
        (state.folder / "carded").touch()

    def run(self, words: Sequence[str], state: State) -> None:
        """Runs one of the repository's programs, with its output in the job's log.

        Raises:
            OutOfTimeError: the deadline came before its end; it was told to stop, and writes its checkpoint.
            RuntimeError: it failed; the log says why.
        """
        if self.deadline is not None and time.monotonic() >= self.deadline:
            raise OutOfTimeError
        path, start = state.folder / "log.txt", time.monotonic()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as log:
            log.write(f"$ python {shlex.join(words)}\n")
            log.flush()
            child = subprocess.Popen([sys.executable, *words], stdout=log, stderr=subprocess.STDOUT)
            try:
                left = None if self.deadline is None else max(self.deadline - start, 0.0)
                status = child.wait(left)
            except subprocess.TimeoutExpired:
                _stopped(child)
                raise OutOfTimeError from None
            except BaseException:
                _stopped(child)
                raise
            finally:
                _add(state, time.monotonic() - start)
        if status:
            raise RuntimeError(f"{words[0]} ended with status {status}; {path} says why, the same command goes on")

    def plan(self, jobs: Sequence[Job]) -> list[tuple[str, ...]]:
        """Rows of the plan: what each job will take."""
        rows, total = [], 0.0
        rates: dict[str, Rates] = {}
        for job in self.jobs:
            wanted = job in jobs
            if not wanted and not any(job.name in other.needs and other.before for other in jobs):
                continue
            state = self.states[job.name]
            recipe, options = self.recipe(job), self.options(job)
            key = json.dumps(made_by(recipe, options, {"device": _device()}), sort_keys=True)
            try:
                if lacking := _lacking(recipe):
                    raise FileNotFoundError(f"there is no {lacking}")
                rates[job.name] = kept(self.places.root / "probe.json", key, lambda r=recipe, o=options: probe(r, o))
            except (OSError, ValueError) as error:
                rows.append((job.name, "-", "-", "-", "-", f"left out: {error}"[:200]))
                continue
            if not wanted:
                continue
            found, taught = rates[job.name], _teaching(job, rates)
            hours = 0.0 if state.trained else found.hours + taught / 3600
            total += hours
            done = "done" if state.done else "trained" if state.trained else ""
            cells = [
                f"{found.steps:,}",
                f"{found.step:.2f}",
                f"{(found.preparing + taught) / 3600:.2f}",
                f"{hours:.2f}",
            ]
            rows.append((job.name, *cells, done))
        return [*rows, ("all", "", "", "", f"{total:.2f}", "")]

    def carry(self) -> list[Path]:
        """What another machine needs to go on.

        Raises:
            ValueError: it is more than may travel.
        """
        files = [path for state in self.states.values() for path in state.carried()]
        left = [state for state in self.states.values() if not state.trained]
        if left:
            files += sorted(self.places.root.glob("candidates-*/**/*.npz"))
        if any(state.job.before for state in left):
            files += sorted(self.places.root.glob("lessons-*/*"))
        total = sum(path.stat().st_size for path in files)
        if total > CARRIED:
            largest = max(files, key=lambda path: path.stat().st_size)
            raise ValueError(f"{total / 1e6:.1f} MB, more than {CARRIED / 1e6:.0f}; the largest is {largest}")
        return files


def words_of(options: Mapping[str, Any]) -> list[str]:
    """Options as words of a command line."""
    values = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    return [f"--{name}={value}" for name, value in values.items()]


def _lacking(recipe: Mapping[str, Any]) -> str | None:
    """A data file that a recipe names and that is not there."""
    source = recipe["data"].get("source")
    given = (source.get("init_args") or {}) if isinstance(source, dict) else {}
    named = [given[key] for key in ("path", "root") if given.get(key)]
    return next((str(path) for path in named if not Path(path).exists()), None)


def _teaching(job: Job, rates: Mapping[str, Rates]) -> float:
    """Seconds of the lessons before a training, from what a pair takes its teacher."""
    seconds = 0.0
    for words in job.before:
        given = shlex.split(words)
        named = dict(zip(given[1::2], given[2::2], strict=False))
        teacher = rates.get(named.get("--checkpoint", "").removeprefix(RELEASED))
        pairs = int(named.get("--queries", 0)) * (1 + int(named.get("--top", 16)) + int(named.get("--random", 4)))
        seconds += pairs * teacher.pair if teacher else 0.0
    return seconds


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{torch.get_num_threads()} threads"


def _stopped(child: subprocess.Popen[bytes]) -> None:
    """Asks a program to stop, which training does behind a checkpoint, and ends it if it does not."""
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _spent(state: State) -> float:
    path = state.folder / "seconds"
    return float(path.read_text()) if path.is_file() else 0.0


def _add(state: State, seconds: float) -> None:
    write_text(state.folder / "seconds", f"{_spent(state) + seconds:.1f}\n")


def parsed(args: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", action="store_true", help="print what it takes, and end")
    parser.add_argument("--carry", action="store_true", help="print what another machine needs to go on, and end")
    parser.add_argument("--only", nargs="+", metavar="MODEL", help="these models; what they need must be there")
    parser.add_argument("--budget-hours", type=float, help="stop after so many hours; the same command goes on")
    parser.add_argument("--minutes", type=float, help="stop after so many minutes; the same command goes on")
    parser.add_argument("--gpu", action="store_true", help="bf16 and large batches, as zoo.yaml says")
    parser.add_argument("--root", type=Path, default=Path("out/train-zoo"), help="folder of the run")
    parser.add_argument("--into", type=Path, help="folder of finished checkpoints; checkpoints in the root by default")
    parser.add_argument("--zoo", type=Path, default=Path(__file__).with_name("zoo.yaml"), help="what there is to train")
    return parser.parse_args(args)


def main(args: Sequence[str] | None = None) -> int:
    """Trains, plans or lists; the exit status: 75 where time ran out and there is more to do."""
    begun, options = time.monotonic(), parsed(args)
    quiet()
    jobs, common = read_jobs(options.zoo)
    limits = [hours * 3600 for hours in (options.budget_hours,) if hours] + [m * 60 for m in (options.minutes,) if m]
    deadline = begun + min(limits) if limits else None
    places = Places(options.root, options.into or options.root / "checkpoints")
    zoo = Zoo(jobs, places, common if options.gpu else {}, deadline, options.gpu)
    wanted = chosen(jobs, options.only)
    if options.carry:
        files = zoo.carry()
        print("\n".join(str(path) for path in files))
        print(f"{sum(path.stat().st_size for path in files) / 1e6:.1f} MB in {len(files)} files", file=sys.stderr)
        return 0
    if options.plan:
        head = ("model", "steps", "s a step", "h before", "h in all", "")
        show_table(head, zoo.plan(wanted), f"on {_device()}; evaluations come on top")
        return 0
    with locked(places.root):
        try:
            zoo.work(wanted)
        except OutOfTimeError:
            zoo.say("time is up; the same command goes on")
            return 75
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"error: {error}")
