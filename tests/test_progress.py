"""What commands say while they work: quiet in log files but never for long, plain whatever the texts hold."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader

from simzoo.core import progress as shown
from simzoo.core.heartbeat import Heartbeat
from simzoo.models.formats import load

ROOT = Path(__file__).parents[1]
EVIL = "[/b] [red]x[/red] \x1b[31m \ud800"


class Lines:
    """What was printed on standard error so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.text, self._capsys = "", capsys

    def wait_for(self, text: str) -> None:
        """Goes on as soon as it is there."""
        for _ in range(2000):
            self.text += self._capsys.readouterr().err
            if text in self.text:
                return
            time.sleep(0.005)
        raise AssertionError(f"{text!r} never came; there is {self.text!r}")


def test_a_line_by_hand() -> None:
    """Rate and time left belong to the steps that were done, not to those of a run before."""
    assert shown.line("scoring:", 3, 10, 36) == "scoring: 3/10, 12.0 s each, 0:01:24 left"
    assert shown.line("scoring:", 900, 1000, 300) == "scoring: 900/1,000, 3.0/s, 0:00:33 left"
    assert shown.line("step", 900, 1000, 10, lately=20) == "step 900/1,000, 2.0/s, 0:00:50 left"
    assert shown.line("step", 900, None, 300) == "step 900, 3.0/s"
    assert shown.line("step", 0, 10, 61.2) == "step 0/10 after 0:01:01"
    assert shown.line("step", 0, 10, 0) == "step 0/10 after 0:00:00"


def test_lines_come_within_a_step(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A block of queries can take half an hour; who reads the log takes silence for a program that hangs."""
    monkeypatch.setattr(shown, "QUIET_SECONDS", 0.01)
    lines = Lines(capsys)
    for step in shown.progress(["a", "b"], "scoring"):
        lines.wait_for("scoring: 0/2 after 0:00:00\n" if step == "a" else "scoring: 1/2, ")
    lines.wait_for("scoring: done in 0:00:00\n")


def test_lines_end_with_the_work(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Work that failed must not go on telling how far it is."""
    monkeypatch.setattr(shown, "QUIET_SECONDS", 0.01)
    steps = shown.progress([1, 2], "scoring")
    next(steps)
    Lines(capsys).wait_for("scoring: 0/2")
    steps.close()  # type: ignore[attr-defined]
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_short_work_leaves_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Less than a minute is not worth a line; nor is work without steps an error."""
    assert list(shown.progress(range(100), "scoring")) == list(range(100))
    assert list(shown.progress([], "nothing")) == []
    assert capsys.readouterr().err == "" and shown.QUIET_SECONDS == 60


def test_progress_at_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One bar inside another (encoding queries while searching) must not end the work, nor brackets vanish."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    pairs = [(a, b) for a in shown.progress([1, 2], "outer [bold]") for b in shown.progress([3, 4], "inner")]
    assert pairs == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert "outer [bold]" in capsys.readouterr().err


def test_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """Rich takes brackets for markup: a name with them must not vanish from the plan."""
    shown.plan("plan [x]", {"scores [y]": "4 queries x 10 items = 40 pairs", "file": "1.5 MB [/z]"})
    lines = capsys.readouterr().err
    for text in ("plan [x]", "scores [y]", "40 pairs", "1.5 MB [/z]"):
        assert text in lines


def test_tables_show_what_texts_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """`[/b]` in an item ended the search in a traceback, an escape sequence would repaint the terminal."""
    shown.show_table(["[a]", "item"], [[EVIL, "boat\nriver"]], title=EVIL)
    out = capsys.readouterr().out
    assert "[a]" in out and out.count("[/b] [red]x[/red] \ufffd[31m \ufffd") == 2
    assert "boat" in out and "river" in out


class Line(LightningModule):
    """Learns nothing, in three steps, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.during: Callable[[], None] = lambda: None

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        self.log("loss", 0.25)
        self.during()
        return (self.weight * 0).sum() + 0.25

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None: ...

    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        return DataLoader([torch.zeros(1)] * 3)  # type: ignore[arg-type]

    val_dataloader = train_dataloader

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(folder: Path, model: Line, **options: bool) -> None:
    Trainer(
        max_epochs=2,
        logger=CSVLogger(folder, name="", version=""),
        log_every_n_steps=1,
        callbacks=[Heartbeat()],
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        accelerator="cpu",
        **options,  # type: ignore[arg-type]
    ).fit(model)


def test_training_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training without a terminal showed no loss for twenty minutes, and metrics.csv was empty all the while."""
    monkeypatch.setattr(shown, "QUIET_SECONDS", 0)
    model, seen = Line(), []

    def look() -> None:
        path = tmp_path / "metrics.csv"
        seen.append(len(list(csv.DictReader(path.open()))) if path.exists() else 0)

    model.during = look
    fit(tmp_path, model)
    lines = [re.sub(r"[\d.]+(/s| s each), \d:\d\d:\d\d", "RATE", line) for line in capsys.readouterr().err.splitlines()]
    own = [line for line in lines if line.startswith(("epoch", "validating"))]
    steps = [f"epoch {1 + step // 4}, step {step}/6, RATE left, loss 0.25" for step in range(1, 7)]
    checks = [[f"validating after step {step}: batch {n}/3" for n in (1, 2, 3)] for step in (3, 6)]
    assert own == [*steps[:3], *checks[0], *steps[3:], *checks[1]]
    assert seen[-1] >= 4, "what was logged before the last step was not on disk"


def test_training_is_quiet_for_a_minute_and_beside_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines between the redrawings of a bar make it jump."""
    fit(tmp_path / "a", Line())
    assert "epoch 1, step" not in capsys.readouterr().err
    monkeypatch.setattr(shown, "QUIET_SECONDS", 0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    fit(tmp_path / "b", Line(), enable_progress_bar=True)
    assert "epoch 1, step" not in capsys.readouterr().err
    fit(tmp_path / "c", Line(), enable_progress_bar=False)
    assert "epoch 1, step" in capsys.readouterr().err


def test_a_users_program_loads_without_a_warning() -> None:
    """README's first ten lines began with a FutureWarning about a name that the user never wrote."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        load(str(ROOT / "checkpoints" / "wordnet-de"))


def test_our_programs_load_without_noise() -> None:
    """A bar and a warning at each loading hide the one line that matters; a user's own program keeps its own."""
    code = (
        "import sys, simzoo; from simzoo.core.progress import quiet\n"
        "for ours in (False, True):\n"
        "    quiet() if ours else None\n"
        "    print('ours' if ours else 'theirs', file=sys.stderr)\n"
        "    simzoo.load('checkpoints/wordnet-de').query_encoder.model.is_gradient_checkpointing\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    theirs, _, ours = done.stderr.partition("ours\n")
    assert "FutureWarning" in theirs and ours == ""
