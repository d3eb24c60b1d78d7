"""SIGTERM and Ctrl-C in training: a status, a line that says how to go on, and a checkpoint to go on from."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simzoo.models.checkpointing import read
from tests.forks import ROOT, Forks


@pytest.mark.parametrize(
    ("when", "number", "how_often", "step"),
    [
        ("7", signal.SIGTERM, 1, 8),  # the batch is finished, and kept
        ("11", signal.SIGTERM, 1, 12),  # the last batch of an epoch, whose validation is due
        ("7", signal.SIGINT, 1, 8),
        ("7", signal.SIGINT, 2, 5),  # at once
        ("validation", signal.SIGTERM, 1, 10),
        ("start", signal.SIGINT, 1, None),
        ("start", signal.SIGTERM, 1, None),  # where candidates are mined for the first time
        ("epoch 1", signal.SIGTERM, 1, 10),  # and where they are mined again
    ],
)
def test_a_signal_ends_a_training_with_its_status_and_one_line(
    when: str, number: signal.Signals, how_often: int, step: int | None, forks: Forks, tmp_path: Path
) -> None:
    """SIGTERM ended with status 0, as if all were done; Ctrl-C with up to 60 lines of traceback."""
    run = forks.run("tests.fault_work:signalled", tmp_path, when, int(number), how_often, output=tmp_path / "log")
    assert run.wait() == 128 + number, run.words()
    assert "the end" not in run.words() and "Traceback" not in run.words()
    last, path = run.words().splitlines()[-1], tmp_path / "resume.ckpt"
    if step is None:
        again = "python train.py fit --ckpt_path old '--config=a b.yaml'"
        assert last == f"stopped by {number.name}; there is no checkpoint yet, begin again with: {again}"
        return
    assert last == f"stopped by {number.name}; go on with: python train.py fit '--config=a b.yaml' --ckpt_path {path}"
    assert read(path)["global_step"] == step


def test_the_command_line_is_stopped_and_goes_on(forks: Forks, tmp_path: Path) -> None:
    """A job that the cluster ends must not look done, must leave no release, and must go on by one option."""
    run = forks.start("tests.fault_work:fit", tmp_path, "40", output=tmp_path / "first")
    end = time.monotonic() + 60
    while not list(tmp_path.glob("out/**/resume.ckpt")):
        assert time.monotonic() < end, run.words()
        time.sleep(0.01)
    os.kill(run.pid, signal.SIGTERM)
    assert run.wait() == 143, run.words()
    said = run.words().splitlines()[-1]
    [kept] = tmp_path.glob("out/**/resume.ckpt")
    assert said.startswith("stopped by SIGTERM; go on with: python train.py fit --config ")
    assert said.endswith(f" --ckpt_path {kept}")
    assert not list(tmp_path.glob("out/**/model.safetensors"))
    done = read(kept)["global_step"]
    run = forks.run("tests.fault_work:fit", tmp_path, "40", "--ckpt_path", "last", output=tmp_path / "second")
    assert run.wait() == 0, run.words()
    assert "going on from " in run.words()
    assert read(kept)["global_step"] > done
    assert list(tmp_path.glob("out/**/model.safetensors"))


def test_slurm_queues_the_job_again_as_lightning_does(forks: Forks, tmp_path: Path) -> None:
    """Taken from Lightning, the requeue signal would end the job for good; behind it SLURM sends SIGTERM."""
    run = forks.run("tests.fault_work:signalled", tmp_path, "7", "requeue", 1, output=tmp_path / "log")
    assert run.wait() == 143, run.words()
    assert (tmp_path / "scontrol.log").read_text() == "requeue 7\n"
    assert read(tmp_path / "hpc_ckpt_1.ckpt")["global_step"] == 7
    run = forks.run("tests.fault_work:signalled", tmp_path, "never", "requeue", 1, output=tmp_path / "again")
    assert run.wait() == 0, run.words()
    assert "hpc_ckpt_1.ckpt" in run.words()


@pytest.mark.parametrize("release", ["file", "file/below"])
def test_a_release_that_cannot_be_written_is_refused_first(release: str, forks: Forks, tmp_path: Path) -> None:
    """It was found out after all the training."""
    (tmp_path / "file").write_text("")
    run = forks.run("tests.fault_work:fit", tmp_path, "1", "--release", tmp_path / release, output=tmp_path / "words")
    assert run.wait() == 1, run.words()
    assert run.words().splitlines()[-1] == f"error: release: {tmp_path / 'file'} is a file; name a folder"
    assert not list(tmp_path.glob("out/**/*.ckpt"))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gone.ckpt", "there is no such training checkpoint"),
        ("http://127.0.0.1:9/evil.ckpt", "training checkpoints are read and written on this machine's disks"),
        ("log", "is no training checkpoint: it does not begin as a file of torch.save does"),
        (".", "is a folder; a training checkpoint is a .ckpt file"),
    ],
)
def test_a_ckpt_path_that_is_none_is_one_line(path: str, message: str, forks: Forks, tmp_path: Path) -> None:
    """Tracebacks of torch's reader; an address was fetched and unpickled."""
    (tmp_path / "log").write_text("no checkpoint")
    where = path if "://" in path else str(tmp_path / path)
    run = forks.run("tests.fault_work:fit", tmp_path, "1", "--ckpt_path", where, output=tmp_path / "words")
    assert run.wait() == 1, run.words()
    assert "Traceback" not in run.words()
    [said] = [line for line in run.words().splitlines() if line.startswith("error: ")]
    assert message in said


@pytest.mark.parametrize("words", [["train.py", "fit"], ["-m", "simzoo", "train", "fit"]])
def test_ctrl_c_while_it_imports_is_silent(words: list[str]) -> None:
    """Sixty lines of other people's modules, for who has seen a typing error in the command."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", *words],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.endswith(" torch._C\n") or " numpy" in line:
            break
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait() == -signal.SIGINT
    assert "Traceback" not in rest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("work", ["matrix", "teach", "add"])
def test_other_commands_stop_with_one_line(work: str, number: signal.Signals, forks: Forks, tmp_path: Path) -> None:
    """Ctrl-C printed up to 30 lines of traceback, from which nobody learns that the same command goes on."""
    run = forks.start("tests.fault_work:stopped", tmp_path, work, output=tmp_path / "log")
    end = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < end, run.words()
        time.sleep(0.01)
    os.kill(run.pid, number)
    assert run.wait() == 128 + number, run.words()
    said = "what was finished is kept, go on with: simzoo evaluate 'a b'"
    assert run.words().splitlines()[-1] == f"stopped by {number.name}; {said}"
    assert "Traceback" not in run.words()
    assert not list(tmp_path.rglob("writer.lock")) and not list(tmp_path.rglob("*.tmp"))
    run = forks.run(f"tests.fault_work:{work}", tmp_path, output=tmp_path / "log")
    assert run.wait() == 0, run.words()
