"""Backbones: where an encoder's weights come from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import save
from simzoo.models.parts.backbone import BackboneConfig, LoRA
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TokenConfig

TOKENS = TokenConfig(query_length=24, item_length=24)


def backbone(rank: int = 2, start: Path | None = None) -> BackboneConfig:
    return BackboneConfig(str(tiny_backbone()), lora=LoRA(rank, 4), start=start and str(start))


def trained(folder: Path, **arguments: bool) -> DualEncoder:
    """A released dual encoder whose adapters are not at their start."""
    model = DualEncoder(backbone(), TOKENS, **arguments)
    torch.manual_seed(1)
    with torch.no_grad():
        for value in model.trained_state().values():
            value.normal_()
    save(model, folder)
    return model


def test_start_takes_the_trained_encoder(tmp_path: Path) -> None:
    """A cross-encoder that starts from a dual encoder must start from all of it, and need it no more when released."""
    source = trained(tmp_path / "de")
    model = CrossEncoder(backbone(start=tmp_path / "de"), TOKENS, scoring="cls")
    ours = dict(model.encoder.named_parameters())
    for name, value in source.query_encoder.named_parameters():
        assert torch.equal(ours[name], value), name
    save(model, tmp_path / "ce")
    assert json.loads((tmp_path / "ce" / "config.json").read_text())["arguments"]["backbone"]["start"] is None


def test_start_keeps_the_rows_of_new_prefix_tokens(tmp_path: Path) -> None:
    """MoL starts from a dual encoder without its prefix: the tags' rows must come over, and the prefix keep its own."""
    source = trained(tmp_path / "de")
    tokens = replace(TOKENS, query_prefix=("[PAD]",))
    fresh, model = (DualEncoder(backbone(start=start), tokens).query_encoder for start in (None, tmp_path / "de"))
    [(name, ours)] = [pair for pair in model.named_parameters() if "trainable_tokens" in pair[0]]
    assert torch.equal(ours[:3], dict(source.query_encoder.named_parameters())[name])
    assert torch.equal(ours[3:], dict(fresh.named_parameters())[name][3:])


def test_start_of_another_shape_is_refused(tmp_path: Path) -> None:
    """Taking what fits would leave the rest at random, unseen."""
    trained(tmp_path / "de")
    with pytest.raises(ValueError, match="another backbone or lora"):
        CrossEncoder(backbone(rank=3, start=tmp_path / "de"), TOKENS)
    trained(tmp_path / "two", shared=False)
    with pytest.raises(ValueError, match="two encoders"):
        CrossEncoder(backbone(start=tmp_path / "two"), TOKENS)
    with pytest.raises(FileNotFoundError, match="there is no"):
        CrossEncoder(backbone(start=tmp_path / "none"), TOKENS)
