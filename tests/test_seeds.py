"""One seed on the command line for everything that draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from simzoo import train
from simzoo.models.parts.tiny import tiny_backbone


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line imports the tests' source because the user allows it."""
    monkeypatch.setenv("SIMZOO_ALLOW", "tests.toy")


RECIPE = """
seed_everything: 1
model:
  class_path: simzoo.models.dual_encoder.DualEncoder
  init_args:
    backbone: {{name: {backbone}, dropout: 0.1}}
    tokens: {{query_length: 24, item_length: 24}}
    optimization: {{lr: 1.0e-3}}
data:
  source: {{class_path: tests.toy.ToySource}}
  lists: {{class_path: simzoo.datamodules.lists.HardNegatives, init_args: {{hard: 3}}}}
  miner:
    class_path: simzoo.retrieval.mining.MineCandidates
    init_args:
      first_stage: {{class_path: simzoo.retrieval.first_stages.lexical.BM25}}
      depth: 8
  batch_size: 4
trainer:
  max_epochs: 1
  limit_train_batches: 3
  limit_val_batches: 1
  accelerator: cpu
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  enable_model_summary: false
  default_root_dir: {folder}
"""
STREAMED = """
model:
  class_path: simzoo.models.dual_encoder.DualEncoder
  init_args:
    backbone: {{name: {backbone}}}
    tokens: {{query_length: 24, item_length: 24}}
data:
  source: {{class_path: tests.toy.ToySource}}
  lists: {{class_path: simzoo.datamodules.lists.FromFiles, init_args: {{records: [a.jsonl]}}}}
"""


@pytest.fixture(scope="module")
def backbone() -> Path:
    return tiny_backbone()


def fitted(folder: Path, backbone: Path, *options: str) -> tuple[train.CLI, torch.Tensor]:
    """A run of the command line, and all weights that it trained."""
    folder.mkdir()
    (folder / "recipe.yaml").write_text(RECIPE.format(backbone=backbone, folder=folder))
    cli = train.main(["fit", "--config", str(folder / "recipe.yaml"), *options])
    return cli, torch.cat([value.flatten() for value in cli.model.trained_state().values()])


def used(cli: train.CLI) -> tuple[int, int]:
    return cli.model.seed, cli.datamodule.seed


def test_runs_differ_by_seed_alone(tmp_path: Path, backbone: Path) -> None:
    """Runs of several seeds that are one run: their spread is 0, and a table calls it certainty."""
    runs = {}
    for name, options in {"1": [], "7": ["--seed_everything=7"], "again": ["--seed_everything=7"]}.items():
        cli, weights = fitted(tmp_path / name, backbone, *options)
        assert used(cli) == ((1, 1) if name == "1" else (7, 7))
        runs[name] = weights
    assert torch.equal(runs["7"], runs["again"])
    assert not torch.equal(runs["1"], runs["7"])


def test_a_seed_that_is_set_stays(tmp_path: Path, backbone: Path) -> None:
    """Seeds of one part are varied alone in ablations; 0 is as good a seed as any other."""
    cli, _ = fitted(tmp_path / "a", backbone, "--seed_everything=7", "--data.seed=0")
    assert used(cli) == (7, 0)
    saved = tmp_path / "a" / "config.yaml"
    found = yaml.safe_load(saved.read_text())
    assert [found["model"]["init_args"]["seed"], found["data"]["seed"]] == [7, 0]
    again, _ = fitted(tmp_path / "b", backbone, f"--config={saved}", "--seed_everything=5")
    assert used(again) == (7, 0)


@pytest.mark.parametrize(
    ("options", "seeds"),
    [
        ([], (0, 0, 0)),
        (["--seed_everything=7"], (7, 7, 7)),
        (["--seed_everything=7", "--data.source.seed=3"], (7, 7, 3)),
        (["--seed_everything=7", "--model.seed=3", "--data.seed=0"], (3, 0, 7)),
        (["--seed_everything=false"], (0, 0, 0)),
    ],
)
def test_nested_data_is_seeded_and_shown(
    options: list[str], seeds: tuple[int, ...], tmp_path: Path, backbone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A seed that --print_config does not show, or that a source within the data module does not get."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(STREAMED.format(backbone=backbone))
    (tmp_path / "a.jsonl").touch()
    cli: Any = train.main([f"--config={recipe}", *options], run=False)
    assert (*used(cli), cli.datamodule.source.seed) == seeds
    with pytest.raises(SystemExit):
        train.main(["fit", f"--config={recipe}", *options, "--print_config"])
    shown = yaml.safe_load(capsys.readouterr().out)
    data = shown["data"]
    found = shown["model"]["init_args"]["seed"], data["seed"], data["source"]["init_args"]["seed"]
    assert found == (seeds if "--seed_everything=false" not in options else (None, None, None))


def test_a_random_seed_is_drawn_once(tmp_path: Path, backbone: Path) -> None:
    """``seed_everything: true`` draws a number; a run that does not say which cannot be repeated."""
    cli, _ = fitted(tmp_path / "a", backbone, "--seed_everything=true")
    found = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())
    assert used(cli) == (found["seed_everything"],) * 2
    assert type(found["seed_everything"]) is int
    assert [found["model"]["init_args"]["seed"], found["data"]["seed"]] == [found["seed_everything"]] * 2
