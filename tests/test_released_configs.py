"""Checkpoints of version 0.1.0, whose config.json has names that are others by now."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from simzoo.core.records import History, Item, Query
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.formats import load, save
from simzoo.models.formats.renamed import brought_forward
from simzoo.models.hypencoder import Hypencoder
from simzoo.models.late_interaction import PolyEncoder
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.similarity import LearnedSimilarity

ROOT = Path(__file__).parents[1]
CHECKPOINTS = ROOT / "checkpoints"
GOLDEN = ROOT / "tests" / "golden" / "version-0.1.0"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.json"))
SCORES = GOLDEN.parent / "version-0.1.0-scores.json"

QUERIES = [
    Query("q0", "they crossed the river in a small boat", (33, 38)),
    Query("q1", "he put his money into the bank", (26, 30)),
    Query("q2", "a financial institution"),
]
ITEMS = [
    Item("i0", "an open boat for shallow water", "punt"),
    Item("i1", "a financial institution that accepts deposits", "bank, depository"),
    Item("i2", "sloping land beside a body of water", "bank"),
    Item("i3", "very fast"),
]


@torch.inference_mode()
def scored(model: LearnedSimilarity) -> Tensor:
    """Scores of three queries against four items, which the model knows."""
    queries, items = QUERIES, ITEMS
    if "item_ids" in model.arguments:
        known = model.arguments["item_ids"]
        items = [Item(name, name) for name in known[5:9]]
        queries = [History.of(f"q{n}", known[n : n + 3], [0, 60, 7200 * (n + 1)]) for n in range(3)]
    reps = model.encode_queries(model.collate_queries(queries)), model.encode_items(model.collate_items(items))
    return model.score(*reps)


@pytest.mark.parametrize("name", NAMES)
def test_a_config_of_version_0_1_0_scores_as_it_did(name: str, tmp_path: Path) -> None:
    """A setting that is renamed and then not found takes its default: the model loads, and scores something else."""
    old = tmp_path / "old"
    shutil.copytree(CHECKPOINTS / name, old, ignore=shutil.ignore_patterns("manifest.json", "README.md"))
    shutil.copy(GOLDEN / f"{name}.json", old / "config.json")
    found = scored(load(old))
    # The scores were computed by version 0.1.0; another processor may add up in another order.
    expected = torch.tensor(json.loads(SCORES.read_text())[name])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    save(load(old, merge=False), tmp_path / "new")
    assert torch.equal(scored(load(tmp_path / "new")), found)
    assert torch.equal(scored(load(CHECKPOINTS / name)), found)


def test_every_released_checkpoint_has_its_old_config() -> None:
    """A test over a folder that lacks one tests nothing for it."""
    assert {path.parent.name for path in CHECKPOINTS.glob("*/config.json")} <= {*NAMES}
    assert json.loads(SCORES.read_text()).keys() == {*NAMES}


def test_old_names_of_arguments() -> None:
    """The names as version 0.1.0 wrote them, with values that are not the defaults: a default would hide a loss."""
    assert brought_forward(CrossEncoder, {"layout": "fixed", "dropout": 0.2}, "c") == {
        "item_position": "fixed",
        "dropout": 0.2,
    }
    assert brought_forward(CrossEncoder, {"layout": "packed"}, "c") == {"item_position": "after_query"}
    assert brought_forward(Hypencoder, {"cosine": 5.0}, "c") == {"begin_as_cosine": 5.0}
    assert brought_forward(PolyEncoder, {"cosine": None}, "c") == {"cosine_scale": None}
    with pytest.raises(ValueError, match=r"c: has cosine and cosine_scale, which is its name now"):
        brought_forward(PolyEncoder, {"cosine": 1.0, "cosine_scale": 2.0}, "c")


def test_a_fixed_item_position_of_version_0_1_0(tmp_path: Path) -> None:
    """No released checkpoint has `layout: fixed`; those that somebody converted from ANNCUR's files have."""
    model = CrossEncoder(CrossEncoder.tiny().arguments["backbone"], TokenConfig(30, 30), item_position="fixed").eval()
    save(model, tmp_path)
    (tmp_path / "manifest.json").unlink()
    text = (tmp_path / "config.json").read_text()
    assert '"item_position": "fixed"' in text
    (tmp_path / "config.json").write_text(text.replace('"item_position": "fixed"', '"layout": "fixed"'))
    assert torch.equal(scored(load(tmp_path)), scored(model))
    (tmp_path / "config.json").write_text(text.replace('"item_position": "fixed"', '"layout": "packed"'))
    assert not torch.equal(scored(load(tmp_path)), scored(model))
