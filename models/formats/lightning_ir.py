"""Models of lightning-ir whose architecture is one of ours: mono cross-encoders, DPR and ColBERT bi-encoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from simzoo.core.hub import file_sha256
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.late_interaction import SumOfMax
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.parts.weights import fill, read_weights, weights_file

BERT = "google-bert/bert-base-uncased"
KINDS = ("mono", "lir-mono", "lir-dpr", "col", "lir-col")
POOLING = {"first": "cls", "mean": "mean"}
UNREAD = ("pooler.", "embeddings.position_ids", "embeddings.token_type_ids")


def is_model(place: Path) -> bool:
    """Whether a folder's config.json is lightning-ir's, of a kind that is known here."""
    try:
        config = json.loads((place / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") in KINDS and "backbone_model_type" in config


def load(place: Path, backbone: str = BERT) -> CrossEncoder | DualEncoder | SumOfMax:
    """Loads a model, in evaluation mode, on the CPU.

    Args:
        place: its folder.
        backbone: name or folder of the transformer whose configuration and tokenizer are used (its weights are
            replaced).

    Raises:
        FileNotFoundError: the folder has no weights.
        ValueError: its settings ask for what ours does not compute, or the weights do not fit.
    """
    config = json.loads((place / "config.json").read_text(encoding="utf-8"))
    if config["backbone_model_type"] != "bert":
        raise ValueError(f"{place}: its backbone is {config['backbone_model_type']!r}, expected bert")
    file = weights_file(place)
    tensors = _plain(read_weights(file))
    room = int(config.get("max_position_embeddings", 512))
    query, item = (min(config.get(f"{side}_length") or room, room) for side in ("query", "doc"))
    if config["model_type"] in ("mono", "lir-mono"):
        _expect(place, config, scoring_strategy="rank")
        pooled = "bert_pool.0.weight" in tensors
        tokens = TokenConfig(query, min(item, room - query), mention_tags=None, item_tag=None)
        scoring: Any = "pooled" if pooled else "cls"
        pair = CrossEncoder(BackboneConfig(backbone), tokens, scoring=scoring)
        assert pair.head is not None
        if config.get("pooling_strategy", "first") not in ("first", "bert_pool"):
            raise ValueError(
                f"{place}: pooling {config['pooling_strategy']!r} is not supported; expected first or bert_pool"
            )
        tensors.setdefault("linear.bias", torch.zeros(1))
        places: dict[str, nn.Module] = {"": pair.encoder.model, "linear.": pair.head[-1]}
        if pooled:
            places["bert_pool.0."] = pair.head[0]
        model: CrossEncoder | DualEncoder | SumOfMax = pair
    else:
        tokens = TokenConfig(query, item, mention_tags=None, item_tag=None)
        model, places = _bi_encoder(place, config, tensors, BackboneConfig(backbone), tokens)
    fill(places, tensors, file)
    model.weights_sha256 = file_sha256(file)
    return model.eval()


def _bi_encoder(
    place: Path, config: dict[str, Any], tensors: dict[str, Tensor], backbone: BackboneConfig, tokens: TokenConfig
) -> tuple[DualEncoder | SumOfMax, dict[str, nn.Module]]:
    _expect(place, config, add_marker_tokens=False, query_expansion=False, doc_expansion=False)
    _expect(place, config, sparsification=None, sparsification_strategy=None)
    cosine = config.get("similarity_function") == "cosine"
    normalize = cosine or bool(config.get("normalize")) or config.get("normalization_strategy") == "l2"
    if config["model_type"] == "lir-dpr":
        _expect(place, config, projection=None)
        # Newer versions write both, but read the plain one alone.
        sides = [config.get(f"{side}_pooling_strategy", "first") for side in ("query", "doc")]
        ways = {config.get("pooling_strategy", way) for way in sides}
        if len(ways) != 1 or not ways <= POOLING.keys():
            raise ValueError(f"{place}: pooling {sorted(ways)} is not supported; expected first or mean on both sides")
        pooling: Any = POOLING[ways.pop()]
        dual = DualEncoder(backbone, tokens, pooling=pooling, normalize=normalize)
        return dual, {"": dual.query_encoder.model}
    _expect(
        place, config, projection="linear_no_bias", query_aggregation_function="sum", doc_aggregation_function="max"
    )
    _expect(place, config, query_mask_scoring_tokens=None, doc_mask_scoring_tokens=None)
    if "projection.weight" not in tensors:
        raise ValueError(f"{place}: there is no projection.weight among its weights")
    late = SumOfMax(backbone, tokens, width=len(tensors["projection.weight"]), normalize=normalize)
    assert late.projection is not None
    return late, {"": late.query_encoder.model, "projection.": late.projection}


def _expect(place: Path, config: dict[str, Any], **wanted: Any) -> None:
    for key, value in wanted.items():
        if config.get(key, value) != value:
            raise ValueError(f"{place}: {key} is {config[key]!r}, expected {value!r}: our scores would differ")


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without the backbone's prefix and what is never read."""
    plain = {name.removeprefix("bert."): value for name, value in tensors.items()}
    return {name: value for name, value in plain.items() if not name.startswith(UNREAD)}
