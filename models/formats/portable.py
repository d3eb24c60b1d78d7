"""Checkpoints that hold all that they need, and nothing of the machine that they were written on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from simzoo.core.hub import MODEL_FILES
from simzoo.models.parts.backbone import BackboneConfig, packaged
from simzoo.models.parts.pretrained import NAMES_OF_CODE

BACKBONE = "backbone"
"""Folder of a checkpoint with its backbone, where that is known by no name but a place on the writer's machine."""

INSIDE = f"./{BACKBONE}"
"""What config.json calls it."""

PLACES = (
    "_name_or_path",
    "name_or_path",
    "tokenizer_file",
    "vocab_file",
    "merges_file",
    "special_tokens_map_file",
    "added_tokens_file",
    "sp_model_file",
)
"""Settings of transformers that hold a place on the writer's machine, and that nothing needs."""


def is_local(config: BackboneConfig) -> bool:
    """Whether a backbone is known by a place on this machine."""
    return packaged(config.name) is None and Path(config.name).expanduser().exists()


def keep_backbone(source: Path, folder: Path) -> None:
    """Copies what a backbone consists of: settings, tokenizer and weights.

    Args:
        source: the backbone's folder.
        folder: the checkpoint's, in which it becomes ``backbone``.
    """
    kept = folder / BACKBONE
    kept.mkdir()
    for pattern in MODEL_FILES:
        for path in source.glob(pattern):
            if path.name not in ("README.md", "manifest.json", "metrics.json"):
                shutil.copyfile(path, kept / path.name)
    without_places(kept)


def with_own_backbone(arguments: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Arguments whose backbone is a folder that the reader has, where it is part of the checkpoint."""
    backbone = arguments.get("backbone")
    if not isinstance(backbone, dict) or backbone.get("name") != INSIDE:
        return arguments
    return {**arguments, "backbone": {**backbone, "name": str(folder / BACKBONE)}}


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes a tokenizer without the places that it was read from."""
    tokenizer.save_pretrained(folder)
    without_places(folder)


def without_places(folder: Path) -> None:
    """Takes `PLACES`, and names of code, out of the settings of transformers in a folder."""
    unneeded = (*PLACES, *NAMES_OF_CODE)
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        if any(key in settings for key in unneeded):
            kept = {key: value for key, value in settings.items() if key not in unneeded}
            path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
