"""The released ANNCUR models, [EMB]-CE, [CLS]-CE and dual encoder: Lightning checkpoints in the authors' layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from simzoo.core.hub import file_sha256, local_path
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.parts.backbone import BackboneConfig, Encoder
from simzoo.models.parts.pickles import load_tensors, mentions
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.parts.weights import fill, read_weights, weights_file

BERT = "google-bert/bert-base-uncased"
PAIR = "model.encoder.bert_model"
HEAD = "model.encoder.additional_linear"
TOWERS = ("model.input_encoder.bert_model", "model.label_encoder.bert_model")
SIDE_TOKENS = 128
"""Tokens of a mention and, with its [CLS], of an entity; in a pair the entity begins at this position."""

# In the files, but never read: the pooler, and positions that newer versions of transformers count themselves.
UNREAD = ("pooler.", "embeddings.position_ids", "embeddings.token_type_ids")


def is_released(place: Path) -> bool:
    """Whether a file, or a folder's one .ckpt, has the authors' keys; nothing is loaded."""
    file = _file(place)
    return file is not None and any(mentions(file, f"{prefix}.") for prefix in (PAIR, *TOWERS))


def load_released(checkpoint: str | Path, backbone: str = BERT) -> CrossEncoder | DualEncoder:
    """Loads released weights, in evaluation mode, on the CPU; which of the three models it is, the keys say.

    In pairs the entity always begins at position 128, whatever the mention's length (``item_position: fixed``).

    Args:
        checkpoint: a file, a folder with one .ckpt, or a name on the Hub.
        backbone: name or folder of the transformer whose configuration and tokenizer are used (its weights are
            replaced).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged or has other parameters.
    """
    place = local_path(checkpoint)
    file = _file(place)
    if file is None:
        raise FileNotFoundError(f"{place} is neither a .ckpt file nor a folder with one")
    state = load_tensors(file, "state_dict")
    model = _dual_encoder(state, file, backbone) if TOWERS[0] in _prefixes(state) else _pair(state, file, backbone)
    model.weights_sha256 = file_sha256(file)
    return model.eval()


def load_encoder(
    checkpoint: str | Path, backbone: str | None = None, tokens: TokenConfig | None = None
) -> CrossEncoder:
    """Loads an [EMB]-CE in Hugging Face's layout: config.json and the weights of an encoder alone.

    Nothing in such a folder (``nishantyadav/emb_crossenc_msmarco_miniLM``) tells it from a plain encoder, so it has to
    be asked for.

    Args:
        checkpoint: a folder, or a name on the Hub.
        backbone: name or folder of the transformer whose configuration and tokenizer are used; None: the checkpoint's
            own, which then needs model.safetensors.
        tokens: how texts become token ids; None: the tags of the other released models, at most 128 tokens a side.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: the weights do not fit the configuration.
    """
    file = weights_file(local_path(checkpoint))
    tensors = read_weights(file)
    first = "embeddings.word_embeddings.weight"
    prefix = next((name.removesuffix(f".{first}") for name in tensors if name.endswith(f".{first}")), "")
    state = {f"{PAIR}.{name.removeprefix(f'{prefix}.' if prefix else '')}": value for name, value in tensors.items()}
    model = CrossEncoder(BackboneConfig(backbone or str(checkpoint)), tokens or TokenConfig(), scoring="emb")
    fill({f"{PAIR}.": model.encoder.model}, _read(state), file)
    model.weights_sha256 = file_sha256(file)
    return model.eval()


def _pair(state: dict[str, Tensor], file: Path, backbone: str) -> CrossEncoder:
    scoring: Any = "cls" if HEAD in _prefixes(state) else "emb"
    tokens = TokenConfig(query_length=SIDE_TOKENS, item_length=SIDE_TOKENS - 1)
    model = CrossEncoder(BackboneConfig(backbone), tokens, scoring=scoring, item_position="fixed")
    places = {f"{PAIR}.": model.encoder.model}
    if model.head is not None:
        places[f"{HEAD}."] = model.head[-1]
    fill(places, _read(state), file)
    return model


def _dual_encoder(state: dict[str, Tensor], file: Path, backbone: str) -> DualEncoder:
    tokens = TokenConfig(query_length=SIDE_TOKENS, item_length=SIDE_TOKENS)
    model = DualEncoder(BackboneConfig(backbone), tokens, shared=False, pooling="cls", normalize=False)
    encoders: tuple[Encoder, Encoder] = (model.query_encoder, model.item_encoder)
    fill({f"{prefix}.": encoder.model for prefix, encoder in zip(TOWERS, encoders, strict=True)}, _read(state), file)
    return model


def _read(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without what is never read."""
    bert = tuple(f"{prefix}.{name}" for prefix in (PAIR, *TOWERS) for name in UNREAD)
    return {name: value for name, value in state.items() if not name.startswith(bert)}


def _prefixes(state: dict[str, Tensor]) -> set[str]:
    return {prefix for prefix in (HEAD, *TOWERS) if any(name.startswith(f"{prefix}.") for name in state)}


def _file(place: Path) -> Path | None:
    if place.is_file():
        return place
    found = sorted(place.glob("*.ckpt"))
    return found[0] if len(found) == 1 else None
