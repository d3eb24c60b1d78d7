"""The loggers of a run: CSV always, the others where their packages are installed."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simzoo import train


def test_a_missing_logger_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A traceback out of Lightning, after the data was read, instead of the line that says what to install."""
    monkeypatch.setattr(train, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"wandb, mlflow: not installed; pip install 'simzoo\[wandb,mlflow\]'"):
        train.loggers_of(tmp_path, ["wandb", "mlflow"])


def test_the_values_are_in_the_csv_file(tmp_path: Path) -> None:
    """A run without a trace, because no logger was asked for."""
    (logger,) = train.loggers_of(tmp_path / "run", [])
    logger.log_metrics({"val/mrr": 0.5}, step=3)
    logger.save()
    (path,) = (tmp_path / "run" / "logs").rglob("metrics.csv")
    assert list(csv.DictReader(path.open())) == [{"step": "3", "val/mrr": "0.5"}]


def test_mlflow_keeps_the_values_in_the_run_s_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """MLflow 3 refuses folders of files, Lightning's default; by default its artifacts go to the current folder."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    *_, logger = train.loggers_of(Path("out/run"), ["mlflow"])
    logger.log_metrics({"val/mrr": 0.5}, step=3)
    logger.finalize("success")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/out/run/mlflow.db")
    experiment = client.get_experiment_by_name("simzoo")
    assert experiment.artifact_location == str(tmp_path / "out" / "run" / "mlruns")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.metrics == {"val/mrr": 0.5}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_tensorboard_keeps_the_values_in_the_run_s_folder(tmp_path: Path) -> None:
    """Curves that lie where no one looks, or are not there."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    *_, logger = train.loggers_of(tmp_path / "run", ["tensorboard"])
    logger.log_metrics({"val/mrr": 0.5}, step=3)
    logger.finalize("success")
    (file,) = (tmp_path / "run" / "tensorboard").rglob("events.*")
    read = events.EventAccumulator(str(file.parent))
    read.Reload()
    assert [(value.step, value.value) for value in read.Scalars("val/mrr")] == [(3, 0.5)]
