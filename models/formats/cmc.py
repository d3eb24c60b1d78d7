"""Checkpoints of CMC's released code (``yc-song/cmc``), in the authors' own file layout."""

from __future__ import annotations

import re
from pathlib import Path

from torch import Tensor, nn

from simzoo.core.hub import file_sha256, local_path
from simzoo.models.cmc import CMC, Skip
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.pickles import load_tensors, mentions
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.parts.weights import copy_all, reshaped

BERT = "google-bert/bert-base-uncased"
LAYERS = "extend_multi_transformerencoder.layers"
# In the files, but never read: parts of other models and the layer that the others are copies of; BERT's pooler, and
# positions that newer versions of transformers count themselves.
UNREAD = re.compile(
    r"extend_multi_(transformerencoderlayer|linearhead|token_type_embeddings)\..*"
    r"|(mention|entity)_encoder\.(pooler\..*|embeddings\.(position_ids|token_type_ids))"
)


def is_released(place: Path) -> bool:
    """Whether a file, or a folder's pytorch_model.bin, has the authors' keys; nothing is loaded."""
    file = _file(place)
    return file.is_file() and file.suffix in (".bin", ".pt", ".pth") and mentions(file, f"{LAYERS}.")


def _file(place: Path) -> Path:
    return place / "pytorch_model.bin" if place.is_dir() else place


def load_released(
    checkpoint: str | Path, backbone: str = BERT, heads: int = 4, query_length: int = 128, item_length: int = 128
) -> CMC:
    """Loads a checkpoint, in evaluation mode, on the CPU.

    The skip connection is what the file holds: a learned gate in each layer, the gate's fixed half where there is none,
    or none where the layers are PyTorch's own.

    Args:
        checkpoint: the file, a folder with a ``pytorch_model.bin``, or the name of such a folder on the Hub.
        backbone: name or folder of the transformer whose configuration and tokenizer are used (its weights are
            replaced).
        heads: of the self-attention layers, which the weights do not tell; the authors' recipe has 4.
        query_length: most tokens of a query, tags included; the authors use half of 256.
        item_length: most tokens of an item.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, holds more than weights and settings, or has other parameters.
    """
    path = _file(local_path(checkpoint))
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; name the file, or a folder with a pytorch_model.bin")
    tensors = {_plain(name): value for name, value in load_tensors(path, "sd").items()}
    tensors = {name: value for name, value in tensors.items() if not UNREAD.fullmatch(name)}
    numbers = {int(found[1]) for name in tensors if (found := re.match(rf"{LAYERS}\.(\d+)\.", name))}
    inner = "encoder_layer." if any(".encoder_layer." in name for name in tensors) else ""
    first = tensors.get(f"{LAYERS}.0.{inner}linear1.weight")
    if first is None:
        raise ValueError(f"{path} is not a released CMC: it has no {LAYERS}.0, but {sorted(tensors)[:3]}")
    gated = f"{LAYERS}.0.weight" in tensors
    skip: Skip = "gated" if gated else "mean" if inner else "none"
    model = CMC(
        BackboneConfig(backbone),
        TokenConfig(query_length, item_length),
        layers=len(numbers),
        heads=heads,
        feedforward=first.shape[0],
        skip=skip,
    )
    wanted = _wanted(model, inner)
    copy_all(wanted, reshaped(tensors, wanted), path)  # a gate may have a dimension of 1 more
    model.weights_sha256 = file_sha256(path)
    return model.eval()


def _plain(name: str) -> str:
    """The newest of the authors' names of a parameter."""
    return name.removeprefix("module.").replace("extend_multi.", "extend_multi_")


def _wanted(model: CMC, inner: str) -> dict[str, Tensor]:
    """Every parameter of a model under the authors' name."""
    sides: dict[str, nn.Module] = {
        "mention_encoder": model.query_encoder.model,
        "entity_encoder": model.item_encoder.model,
    }
    wanted: dict[str, Tensor] = {
        f"{side}.{name}": value for side, module in sides.items() for name, value in module.named_parameters()
    }
    for number, layer in enumerate(model.layers):
        for name, value in layer.named_parameters():
            own = "weight" if name == "gate" else f"{inner}{name}"
            wanted[f"{LAYERS}.{number}.{own}"] = value
    return wanted
