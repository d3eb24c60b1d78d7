"""The released Hypencoder weights, ``jfkback/hypencoder.{2,4,6,8}_layer``, in the authors' own file layout."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from simzoo.core.hub import file_sha256, local_path
from simzoo.models.hypencoder import Hypencoder
from simzoo.models.parts.backbone import BackboneConfig, resolve_backbone
from simzoo.models.parts.pretrained import read_config
from simzoo.models.parts.q_net import Norm, QNetConfig
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.parts.weights import copy_all, read_weights, reshaped, weights_file

__all__ = ["is_released", "load_released"]

# The authors' name of each parameter of matrix i among the weights (or biases), j among all, weights first.
NAMES = {
    "key.weight": "key_projections.{j}.weight",
    "key.bias": "key_projections.{j}.bias",
    "value.weight": "value_projections.{j}.weight",
    "value.bias": "value_projections.{j}.bias",
    "query": "{kind}_query_embeddings.{i}",
    "projection.weight": "{kind}_hyper_projection.{i}.weight",
    "projection.bias": "{kind}_hyper_projection.{i}.bias",
    "base": "hyper_base_{base}.{i}",
}
# In the file, but never read: the pooler, and positions that newer versions of transformers count themselves.
UNREAD = re.compile(r"(query|passage)_encoder\.transformer\.(pooler\..*|embeddings\.(position_ids|token_type_ids))")


def is_released(folder: Path) -> bool:
    """Whether a folder's config.json is of the authors' layout."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and {"query_encoder_kwargs", "passage_encoder_kwargs"} <= config.keys()


def load_released(
    checkpoint: str | Path, backbone: str | None = None, query_length: int = 64, item_length: int = 512
) -> Hypencoder:
    """Loads released weights, in evaluation mode, on the CPU.

    The attention scale and the norm are the released code's, which differ from the paper's (`Hypencoder`,
    `QNetConfig`). Item texts are ``title + " " + text``, without tags.

    Args:
        checkpoint: folder, or name on the Hugging Face Hub.
        backbone: name or folder of the transformer whose configuration and tokenizer are used; None: the one that
            config.json names (its weights are then replaced).
        query_length: most tokens of a query; the authors use 64, and 512 out of domain.
        item_length: most tokens of an item, here as for queries no more than the backbone takes.

    Raises:
        FileNotFoundError: a file is missing, or the name is not to be had from the Hub.
        ValueError: config.json asks for what is not known here, or the weights do not fit it.
    """
    folder = local_path(checkpoint)
    path = folder / "config.json"
    if not is_released(folder):
        raise ValueError(f"{path} is missing or is not the configuration of a released Hypencoder")
    config = json.loads(path.read_text())
    query, item = config["query_encoder_kwargs"], config["passage_encoder_kwargs"]
    name = backbone or query["model_name_or_path"]
    if backbone is None and item.get("model_name_or_path", name) != name:
        raise ValueError(f"{path}: queries and passages have different transformers: {name} and {item}")
    shared = bool(config.get("shared_encoder", False))
    width, q_net = _q_net(query["converter_kwargs"], path)
    most = read_config(resolve_backbone(BackboneConfig(name)), name).max_position_embeddings
    model = Hypencoder(
        BackboneConfig(name),
        TokenConfig(min(query_length, most), min(item_length, most), mention_tags=None, item_tag=None),
        shared=shared,
        pooling=item.get("pooling_type", "cls"),
        q_net=q_net,
        scale="released",
    )
    if (found := model.query_encoder.width) != width:
        raise ValueError(f"{path}: vector_dimensions begin with {width}, but {name} is {found} wide")
    weights = weights_file(folder)
    _fill(model, read_weights(weights), weights)
    model.weights_sha256 = file_sha256(weights)
    return model.eval()


def _q_net(arguments: dict[str, Any], path: Path) -> tuple[int, QNetConfig]:
    """Width of an item's vector, and the q-net; defaults are those of the released code."""
    known = dict(arguments)
    dimensions = known.pop("vector_dimensions", [])
    if len(dimensions) < 3 or dimensions[-1] != 1:
        raise ValueError(f"{path}: vector_dimensions must be [width, one a core block, 1], got {dimensions}")
    residual = known.pop("do_residual", True)
    on_last = known.pop("do_residual_on_last", False)
    norm: Norm = "before_residual" if known.pop("layer_norm_before_residual", True) else "after_residual"
    dropout = known.pop("dropout_prob", 0.1)
    config = QNetConfig(
        widths=tuple(dimensions[1:-1]),
        activation=known.pop("activation_type", "relu"),
        residual=residual,
        residual_on_last=residual if on_last is None else on_last,
        norm=norm if known.pop("do_layer_norm", True) else "none",
        dropout=dropout if known.pop("do_dropout", False) else 0.0,
    )
    if known:
        raise ValueError(f"{path}: converter_kwargs holds {sorted(known)}, which this version does not know")
    return dimensions[0], config


def _fill(model: Hypencoder, tensors: dict[str, Tensor], path: Path) -> None:
    """Copies every tensor to its place; none may be missing or left over."""
    wanted = _wanted(model)
    if model.item_encoder is model.query_encoder:  # tied: the same tensors again, or left out
        tensors = {name: value for name, value in tensors.items() if not name.startswith("passage_encoder.")}
    found = {name: value for name, value in tensors.items() if not UNREAD.fullmatch(name)}
    if len(model.q_net.residuals) + 1 != (matrices := sum("weight_query_embeddings." in name for name in found)):
        raise ValueError(
            f"{path} does not fit its config.json, which asks for {len(model.q_net.residuals)} core layers and a last "
            f"one, while the file has {matrices} in all"
        )
    copy_all(wanted, reshaped(found, wanted), path)  # the authors' matrices have a dimension for the batch


def _wanted(model: Hypencoder) -> dict[str, Tensor]:
    """Every parameter of a model, or a view of its part, under the authors' name."""
    encoders = {"query": model.query_encoder}
    if model.item_encoder is not model.query_encoder:
        encoders["passage"] = model.item_encoder
    wanted: dict[str, Tensor] = {
        f"{side}_encoder.transformer.{name}": value
        for side, encoder in encoders.items()
        for name, value in encoder.model.named_parameters()
    }
    for j, name in enumerate(model.q_net.names):
        kind, _, i = name.partition("_")
        base = "matrices" if kind == "weight" else "vectors"
        for part, place in model.hyperhead.parameters_of(j).items():
            wanted["query_encoder." + NAMES[part].format(kind=kind, base=base, i=i, j=j)] = place
    return wanted
