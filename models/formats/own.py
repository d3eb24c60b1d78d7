"""Released checkpoints: a folder with config.json, model.safetensors, tokenizer, metrics.json and README.md."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from simzoo.core.hub import file_sha256, local_path, write_manifest
from simzoo.core.settings import plain
from simzoo.models.checkpointing import read
from simzoo.models.formats.arguments import build, own_class
from simzoo.models.formats.portable import BACKBONE, INSIDE, is_local, keep_backbone, save_tokenizer, with_own_backbone
from simzoo.models.formats.renamed import brought_forward
from simzoo.models.parts.backbone import Encoder, packaged, resolve_backbone
from simzoo.models.parts.classifier import Classifier
from simzoo.models.parts.finite import check_finite
from simzoo.models.parts.weights import Bounded, read_weights
from simzoo.models.similarity import LearnedSimilarity

FORMAT = 1
TRAINING = ("loss", "optimization")
"""Parameters of every similarity that say how it is trained; a checkpoint does not hold them."""

TRANSFORMERS = (Encoder, Classifier)
"""Parts of a model whose adapters are folded in, and that compute in another dtype if asked to."""

SCRATCH = ".writing"
"""Folder inside a checkpoint that is being written, with what is not yet in its place."""

SPARE = 25_000_000
"""Numbers that a model may make besides the weights of its files: masks, positions, what is drawn."""


def save(model: LearnedSimilarity, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
    """Writes config.json, model.safetensors (what differs from the backbone), the tokenizer and manifest.json.

    A backbone that is a folder of this machine goes with it, as the folder ``backbone``.

    Args:
        model: a model whose `remember`ed arguments name its backbone, if it has one.
        folder: replaced file by file; other files in it (metrics.json, README.md) stay.
        dtype: of the stored weights; float16 halves the file.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> from simzoo import CrossEncoder, load, save
        >>> model = CrossEncoder.tiny().eval()
        >>> with TemporaryDirectory() as folder:
        ...     save(model, folder)
        ...     load(folder).rank("a boat", ["a ship"]) == model.rank("a boat", ["a ship"])
        True
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arguments, local = plain(model.arguments), None
    if "backbone" in arguments:
        backbone = resolve_backbone(model.arguments["backbone"])
        arguments["backbone"] |= {"sha256": file_sha256(backbone / "model.safetensors"), "start": None}
        local = backbone if is_local(model.arguments["backbone"]) else None
        if local is not None:
            arguments["backbone"] |= {"name": INSIDE, "revision": None}
    if arguments.get("prior"):
        arguments["prior"] |= {"checkpoint": None}  # its weights are among the model's
    config = {"format": FORMAT, "class": f"{type(model).__module__}.{type(model).__qualname__}", "arguments": arguments}
    state = model.trained_state()  # whole numbers in it (keys of rows) keep their type
    tensors = {n: (v.to(dtype) if v.is_floating_point() else v).contiguous().cpu() for n, v in state.items()}
    if not tensors:
        raise ValueError("nothing to save: the model's adapters were merged; save it before Encoder.merge()")
    # Inside the folder, which may be a disk of its own; a killed run's scratch is the same.
    scratch = folder / SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        save_file(tensors, scratch / "model.safetensors")
        (scratch / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        # safetensors makes its file for its owner alone, whatever the umask allows others.
        shutil.copymode(scratch / "config.json", scratch / "model.safetensors")
        if model.text is not None:
            save_tokenizer(model.text.tokenizer, scratch)
        if local is not None:
            keep_backbone(local, scratch)
            (folder / BACKBONE).mkdir(exist_ok=True)
        files = [path for path in sorted(scratch.rglob("*")) if path.is_file()]
        for file in files:
            with file.open("rb") as written:
                os.fsync(written.fileno())
        for file in files:
            os.replace(file, folder / file.relative_to(scratch))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    write_manifest(folder)


def load(
    checkpoint: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    merge: bool = True,
) -> LearnedSimilarity:
    """Loads a checkpoint, in evaluation mode.

    Args:
        checkpoint: a checkpoint of this project or in one of the layouts of `simzoo.models.formats.known`: a folder, a
            file of it, a single file of weights, an archive, or ``org/name@revision`` on the Hub
            (`simzoo.core.hub.local_path`).
        device: where the model is to be.
        dtype: what the transformers compute in; their outputs and all that follows stay float32.
        merge: fold LoRA adapters into the weights (faster; pass False to train on).

    Raises:
        FileNotFoundError: no such file, folder or name on the Hub, or a file of it is missing.
        ValueError: a file is damaged, of another format, or names a class that is not allowed.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> from simzoo import DualEncoder, load, save
        >>> with TemporaryDirectory() as folder:
        ...     save(DualEncoder.tiny(), folder)
        ...     model = load(folder)
        >>> type(model).__name__, model.training
        ('DualEncoder', False)
    """
    from simzoo.models.formats.known import layout_of

    name = str(checkpoint)
    place = packaged(name) or local_path(checkpoint)
    layout = layout_of(place)
    files = [place] if place.is_file() else [path for path in place.glob("*") if path.is_file()]
    try:
        with Bounded(place, sum(path.stat().st_size for path in files) + SPARE):
            model = _own(place, merge) if layout is None else layout.load(place, name)
    # Values of types that a class or a layout does not expect raise whatever they raise in it.
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{place}: its configuration cannot be used: {type(error).__name__}: {error}") from error
    return _in_dtype(model.eval(), dtype).to(device)


def _own(folder: Path, merge: bool) -> LearnedSimilarity:
    config, cls = read_config(folder), similarity_class(folder)
    where = f"{folder / 'config.json'}: arguments"
    arguments = with_own_backbone(brought_forward(cls, config["arguments"], where), folder)
    model = build(cls, arguments, where, skip=TRAINING)
    _load_weights(model, folder / "model.safetensors")
    model.weights_sha256 = file_sha256(folder / "model.safetensors")
    if merge:
        for part in list(model.modules()):
            if isinstance(part, TRANSFORMERS):
                part.merge()
    return model


def similarity_class(folder: Path) -> type[LearnedSimilarity]:
    """The class of the similarity in a checkpoint folder of this project; nothing else of it is loaded.

    Raises:
        FileNotFoundError: it has no config.json.
        ValueError: that is damaged, or names no similarity of this project.
    """
    name = read_config(folder)["class"]
    where = f"{folder / 'config.json'}: class"
    # What is abstract is refused, so that this is a class that can be made.
    return own_class(name, LearnedSimilarity, where, "similarity of this project's models")  # type: ignore[type-abstract]


def _in_dtype(model: LearnedSimilarity, dtype: torch.dtype) -> LearnedSimilarity:
    for part in list(model.modules()):
        if isinstance(part, TRANSFORMERS):
            part.to(dtype)
    return model


def read_config(folder: Path) -> dict[str, Any]:
    """The checked config.json of a checkpoint folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a checkpoint: it has no config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: broken JSON: {error.msg}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: broken JSON: {error}") from error
    if not isinstance(config, dict) or not {"format", "class", "arguments"} <= config.keys():
        raise ValueError(
            f"{path}: expected the keys format, class and arguments; is this a checkpoint of another system?"
        )
    if not isinstance(config["arguments"], dict):
        raise ValueError(f"{path}: arguments is {type(config['arguments']).__name__}, expected an object")
    if config["format"] != FORMAT:
        raise ValueError(f"{path}: format {config['format']!r}, this version reads {FORMAT}")
    return config


def _load_weights(model: LearnedSimilarity, path: Path) -> None:
    tensors = read_weights(path)
    expected = model.trained_state()
    if tensors.keys() != expected.keys():
        missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
        raise ValueError(f"{path} does not fit its config.json: missing {missing[:3]}, unknown {unknown[:3]}")
    with torch.no_grad():
        for name, value in tensors.items():
            if value.shape != expected[name].shape:
                raise ValueError(
                    f"{path}: {name} has shape {tuple(value.shape)}, expected {tuple(expected[name].shape)}"
                )
            expected[name].copy_(value)


def restore(model: LearnedSimilarity, path: Path) -> None:
    """Loads the trained parameters of a training checkpoint (.ckpt) into a model; no code in the file is run.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no training checkpoint, or one of another model.
    """
    state = read(path)["state_dict"]
    check_finite(state, path)
    expected = model.trained_state()
    if state.keys() != expected.keys():
        raise ValueError(f"{path} does not hold the parameters of this {type(model).__name__}")
    with torch.no_grad():
        for name, value in state.items():
            expected[name].copy_(value)
