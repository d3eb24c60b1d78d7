"""The released CMC layout, on small files made in it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel

import simzoo
from simzoo.core.records import Item, Query
from simzoo.models.cmc import CMC
from simzoo.models.formats.cmc import load_released
from simzoo.models.formats.known import layout_of
from simzoo.models.parts.tiny import tiny_backbone

LAYERS = "extend_multi_transformerencoder.layers"


def released(kind: str, seed: int = 0) -> tuple[dict[str, Tensor], list[nn.TransformerEncoderLayer]]:
    """Weights under the authors' names, and the layers that they came from."""
    torch.manual_seed(seed)
    state: dict[str, Tensor] = {}
    for side in ("mention_encoder", "entity_encoder"):
        bert = AutoModel.from_pretrained(tiny_backbone())
        with torch.no_grad():
            for parameter in bert.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        state |= {f"{side}.{name}": value for name, value in bert.state_dict().items()}
        state[f"{side}.embeddings.position_ids"] = torch.arange(64)[None]
    layers = [nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True) for _ in range(2)]
    inner = "" if kind == "none" else "encoder_layer."
    for number, layer in enumerate(layers):
        state |= {f"{LAYERS}.{number}.{inner}{name}": value for name, value in layer.state_dict().items()}
        if kind == "gated":
            state[f"{LAYERS}.{number}.weight"] = torch.tensor([float(number)])
    state |= {f"extend_multi_transformerencoderlayer.{n}": v for n, v in layers[0].state_dict().items()}
    state |= {"extend_multi_linearhead.weight": torch.randn(1, 16), "extend_multi_linearhead.bias": torch.zeros(1)}
    state["extend_multi_token_type_embeddings.weight"] = torch.randn(2, 16)
    return state, layers


def load(path: Path, **options: Any) -> CMC:
    return load_released(path, str(tiny_backbone()), heads=2, query_length=24, item_length=24, **options)


@pytest.mark.parametrize("kind", ["gated", "mean", "none"])
@torch.inference_mode()
def test_scores_are_those_of_the_authors_layers(kind: str, tmp_path: Path) -> None:
    """A layer in the wrong place, a gate that is not applied, or swapped encoders load without complaint otherwise."""
    state, layers = released(kind)
    torch.save({"opt": argparse.Namespace(lr=1e-5), "sd": state, "epoch": 3}, tmp_path / "pytorch_model.bin")
    model = load(tmp_path)
    queries, items = {"vector": torch.randn(2, 16)}, {"vector": torch.randn(5, 16)}
    states = torch.cat([queries["vector"][:, None], items["vector"].expand(2, -1, -1)], dim=1)
    for number, layer in enumerate(layers):
        share = {"gated": torch.sigmoid(torch.tensor(float(number))), "mean": 0.5, "none": 1.0}[kind]
        states = share * layer(states) + (1 - share) * states
    expected = torch.einsum("bd,bkd->bk", states[:, 0], states[:, 1:])
    torch.testing.assert_close(model.score(queries, items), expected, atol=1e-4, rtol=1e-4)
    for side, encoder in (("mention", model.query_encoder), ("entity", model.item_encoder)):
        found = dict(encoder.model.named_parameters())["encoder.layer.1.output.dense.weight"]
        assert torch.equal(found, state[f"{side}_encoder.encoder.layer.1.output.dense.weight"])


def test_older_and_parallel_names(tmp_path: Path) -> None:
    """Files that were saved from nn.DataParallel, or before a class was taken apart, have other names."""
    state, _ = released("mean")
    older = {f"module.{name.replace('extend_multi_', 'extend_multi.', 1)}": value for name, value in state.items()}
    torch.save({"sd": state}, tmp_path / "new.bin")
    torch.save({"sd": older}, tmp_path / "old.bin")
    new, old = load(tmp_path / "new.bin"), load(tmp_path / "old.bin")
    for name, value in new.state_dict().items():
        assert torch.equal(value, old.state_dict()[name]), name


@torch.inference_mode()
def test_saved_in_this_projects_layout(tmp_path: Path) -> None:
    """What was converted must score as what was loaded."""
    torch.save({"sd": released("gated")[0]}, tmp_path / "pytorch_model.bin")
    found = layout_of(tmp_path)
    assert found is not None and found.name == "CMC"
    model = load(tmp_path)
    simzoo.save(model, tmp_path / "own")
    again = simzoo.load(tmp_path / "own")
    documents: list[str | Item] = ["the bank of a river", "a small boat", "money"]
    assert again.rank(Query("q", "boats at sea", (0, 5)), documents) == model.rank(
        Query("q", "boats at sea", (0, 5)), documents
    )


class Hostile:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("true",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: {"sd": state, "opt": Hostile()},
            r"posix\.system, which is neither a tensor nor a known setting",
        ),
        (
            lambda state: {"sd": {k: v for k, v in state.items() if not k.startswith("extend_multi")}},
            "not a released CMC",
        ),
        (lambda state: {"sd": state | {"surprise": torch.zeros(1)}}, r"unknown \['surprise'\]"),
        (lambda state: {"sd": {k: v for k, v in state.items() if "norm1" not in k}}, r"missing \['.*norm1"),
        (lambda state: {"sd": state | {f"{LAYERS}.1.encoder_layer.norm1.bias": torch.zeros(7)}}, "has shape"),
        (lambda state: {"sd": "weights"}, "no dictionary of tensors under sd"),
    ],
)
def test_bad_files_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    """A file of weights is a program unless its reader forbids it; a part left random still gives scores."""
    torch.save(change(released("mean")[0]), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The path in the message is what the user can look at."""
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin is missing"):
        load(tmp_path)
