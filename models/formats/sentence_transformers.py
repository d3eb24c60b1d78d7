"""Models of sentence-transformers and PyLate, read from their folders without these packages."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING

from simzoo.core.hub import file_sha256
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.late_interaction import SumOfMax
from simzoo.models.parts.backbone import BackboneConfig, load_tokenizer
from simzoo.models.parts.pretrained import read_config, read_tokenizer
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.parts.weights import fill, read_weights
from simzoo.models.sequence_classifier import SequenceClassifier

log = logging.getLogger(__name__)

PAIR_HEADS = ("BertForSequenceClassification",)
"""Whose head is the pooler (linear, tanh), dropout and a linear layer on [CLS]."""


ENCODERS = ("Model", "ForMaskedLM", "ForPreTraining")
"""Endings of classes of transformers whose states can be pooled."""

VERY_LONG = 10**6
"""From this many tokens on, a tokenizer's limit says that there is none."""

COUNT_FROM_THE_PADDING = (
    "roberta",
    "xlm-roberta",
    "xlm-roberta-xl",
    "camembert",
    "mpnet",
    "data2vec-text",
    "longformer",
)
"""Model types whose positions begin behind the padding's own."""


@dataclass(frozen=True)
class Folder:
    """The JSON files of a sentence-transformers folder.

    Attributes:
        path: where.
        name: what it was asked for by; a saved copy names its backbone so.
    """

    path: Path
    name: str

    @cached_property
    def modules(self) -> list[tuple[str, Path]]:
        """(class without its package, folder) of each module."""
        found = self.json("modules.json") or []
        if any(not re.fullmatch(r"[\w-]*", module["path"]) for module in found):
            raise ValueError(f"{self.path / 'modules.json'} names a folder elsewhere; the model is refused")
        return [(module["type"].rpartition(".")[2], self.path / module["path"]) for module in found]

    @property
    def kinds(self) -> list[str]:
        """Class of each module."""
        return [kind for kind, _ in self.modules]

    def json(self, *place: str) -> Any:
        """A file's content; None where there is none."""
        path = self.path.joinpath(*place)
        try:
            return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{error.lineno}: broken JSON: {error.msg}; fetch it again") from error
        except (UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path}: broken JSON: {error}; fetch it again") from error

    def of(self, kind: str) -> tuple[dict[str, Any], Path]:
        """Configuration and folder of the one module of a class."""
        (place,) = (path for found, path in self.modules if found == kind)
        return json.loads((place / "config.json").read_text(encoding="utf-8")), place

    @cached_property
    def settings(self) -> dict[str, Any]:
        """config_sentence_transformers.json."""
        found: dict[str, Any] = self.json("config_sentence_transformers.json") or {}
        return found

    @property
    def max_tokens(self) -> int | None:
        """Most tokens that the folder says the model takes; None: it leaves that to the transformer."""
        limits = [
            (self.json("sentence_bert_config.json") or {}).get("max_seq_length"),
            (self.json("tokenizer_config.json") or {}).get("model_max_length"),
        ]
        found = [int(limit) for limit in limits if limit and limit < VERY_LONG]
        return min(found, default=None)

    @property
    def max_length(self) -> int:
        """Most tokens that the model takes."""
        config = read_config(self.path, self.name)
        most = getattr(config, "max_position_embeddings", None) or self.max_tokens or 512
        if config.model_type in COUNT_FROM_THE_PADDING:
            most -= config.pad_token_id + 1
        return min(most, self.max_tokens or most)

    def refuse(self, expected: str) -> ValueError:
        """What to raise where the modules are others."""
        return ValueError(f"{self.name}: modules {self.kinds} are not supported; expected {expected}")


def is_encoder(place: Path) -> bool:
    """Whether a folder holds modules that pool to one vector, or to a vector a token."""
    return (place / "modules.json").is_file() and not is_cross_encoder(place)


def is_cross_encoder(place: Path) -> bool:
    """Whether a folder holds a model that reads pairs."""
    if not (place / "config.json").is_file():
        return False
    folder = Folder(place, str(place))
    config = folder.json("config.json")
    heads = config.get("architectures") if isinstance(config, dict) else None
    pair_head = any(str(head).endswith("ForSequenceClassification") for head in heads or ())
    return pair_head or folder.settings.get("model_type") == "CrossEncoder"


def is_plain_encoder(place: Path) -> bool:
    """Whether a folder holds a transformer of the transformers library, without a word about how to pool it."""
    if not (place / "config.json").is_file() or (place / "modules.json").is_file():
        return False
    config = Folder(place, str(place)).json("config.json")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        return False
    return all(str(name).endswith(ENCODERS) for name in config.get("architectures") or ())


def load_plain_encoder(place: Path, name: str) -> DualEncoder:
    """A transformer alone, with mean pooling, as sentence-transformers takes it."""
    log.warning(
        "%s does not say how its states become a vector: their mean is taken, as sentence-transformers does", name
    )
    folder = Folder(place, name)
    model = DualEncoder(BackboneConfig(name), _plain_tokens(folder), pooling="mean", normalize=False)
    model.weights_sha256 = file_sha256(place / "model.safetensors")
    return model


def load_encoder(place: Path, name: str) -> DualEncoder | SumOfMax:
    """An encoder with mean or cls pooling, or one of ColBERT's kind.

    Raises:
        ValueError: it has modules or settings that compute something else.
    """
    folder = Folder(place, name)
    if "Pooling" not in folder.kinds:
        return _late_interaction(folder)
    if folder.kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise folder.refuse("Transformer, Pooling and at most Normalize")
    mode: Any = _pooling(folder)
    model = DualEncoder(
        BackboneConfig(name), _plain_tokens(folder), pooling=mode, normalize="Normalize" in folder.kinds
    )
    model.weights_sha256 = file_sha256(place / "model.safetensors")
    return model


def load_cross_encoder(place: Path, name: str) -> CrossEncoder | SequenceClassifier:
    """A cross-encoder with one score: a linear layer on the [CLS] state, or a head of transformers for sequences.

    Scores are those before sentence-transformers' activation function (often a sigmoid, which changes no order).

    Raises:
        ValueError: other modules, or several labels.
    """
    folder = Folder(place, name)
    config = folder.json("config.json")
    head = (config.get("architectures") or [""])[0]
    model: CrossEncoder | SequenceClassifier
    if folder.kinds == ["Transformer", "Pooling", "Dense"] and _pooling(folder) == "cls":
        dense, where = folder.of("Dense")
        _only(folder, dense, out_features=1, bias=True, activation_function="torch.nn.modules.linear.Identity")
        model = CrossEncoder(BackboneConfig(name), _pair_tokens(folder), scoring="cls")
        assert model.head is not None
        fill({"linear.": model.head[-1]}, read_weights(where / "model.safetensors"), where)
    elif folder.kinds not in ([], ["Transformer"]):
        raise folder.refuse("Transformer alone, or with cls Pooling and Dense")
    elif head in PAIR_HEADS and not _prompt(folder, ()):
        model = _bert_pairs(folder)
    else:
        model = SequenceClassifier(BackboneConfig(name), folder.max_tokens, query_prompt=_prompt(folder, ()))
    model.weights_sha256 = file_sha256(place / "model.safetensors")
    return model


def _bert_pairs(folder: Folder) -> CrossEncoder:
    """BERT's head for sequences, as ours."""
    path = folder.path / "model.safetensors"
    model = CrossEncoder(BackboneConfig(folder.name), _pair_tokens(folder), scoring="pooled")
    assert model.head is not None
    tensors = read_weights(path)
    own = {key: value for key, value in tensors.items() if key.startswith(("bert.pooler.", "classifier."))}
    if own["classifier.weight"].shape[0] != 1:
        raise ValueError(f"{folder.name}: has {own['classifier.weight'].shape[0]} labels, expected one score")
    fill({"bert.pooler.dense.": model.head[0], "classifier.": model.head[-1]}, own, path)
    return model


def _plain_tokens(folder: Folder) -> TokenConfig:
    """Texts as they are, between the tokens that the folder's tokenizer puts around one."""
    tokenizer = read_tokenizer(folder.path, folder.name)
    encoded = tokenizer("a")
    around = [token for token, place in zip(encoded.tokens(), encoded.sequence_ids(), strict=True) if place is None]
    if around != [tokenizer.cls_token, tokenizer.sep_token]:
        raise ValueError(
            f"{folder.name}: its tokenizer puts {around} around a text, expected one token before and one behind it"
        )
    settings = folder.json("sentence_bert_config.json") or {}
    if settings.get("do_lower_case") and tokenizer("A")["input_ids"] != encoded["input_ids"]:
        raise ValueError(f"{folder.name}: do_lower_case of sentence_bert_config.json is not supported")
    return TokenConfig(
        query_length=folder.max_length,
        item_length=folder.max_length,
        mention_tags=None,
        item_tag=None,
        query_prompt=_prompt(folder, ("query",)),
        item_prompt=_prompt(folder, ("document", "passage", "corpus")),
    )


def _prompt(folder: Folder, names: tuple[str, ...]) -> str:
    """The first prompt of these names that there is, else the one that is the default."""
    prompts = folder.settings.get("prompts") or {}
    found = [prompts[name] for name in (*names, folder.settings.get("default_prompt_name")) if name in prompts]
    return next((str(prompt) for prompt in found if prompt is not None), "")


def _pair_tokens(folder: Folder) -> TokenConfig:
    """A quarter of the room for the query, and the tags that the folder's tokenizer puts before the texts of a pair."""
    encoded = read_tokenizer(folder.path, folder.name)("a", "a")
    added = [token for token, side in zip(encoded.tokens(), encoded.sequence_ids(), strict=True) if side is None]
    if len(added) < 3:
        raise ValueError(f"{folder.name}: its tokenizer puts {added} around a pair, expected [CLS] and two [SEP]")
    cls, *between = added
    sep = between[-1]
    first, second = (tuple(part) for part in (between[: between.index(sep)], between[between.index(sep) + 1 : -1]))
    if len(second) > 1 or sep in second:
        raise ValueError(
            f"{folder.name}: puts {[cls, *between]} around a pair, expected at most one tag before the item"
        )
    room = folder.max_length
    return TokenConfig(
        query_length=room // 4,
        item_length=room - room // 4,
        mention_tags=None,
        item_tag=second[0] if second else None,
        query_prefix=first,
    )


def _late_interaction(folder: Folder) -> SumOfMax:
    """Transformer, Dense a token and normalisation: what ColBERT, PyLate and MultiVectorEncoder share."""
    if [kind for kind in folder.kinds if kind not in ("MultiVectorMask", "Normalize")] != ["Transformer", "Dense"]:
        raise folder.refuse("Transformer and Dense, of PyLate or of MultiVectorEncoder, or an encoder with Pooling")
    dense, where = folder.of("Dense")
    _only(folder, dense, bias=False, activation_function="torch.nn.modules.linear.Identity")
    mask = folder.of("MultiVectorMask")[0] if "MultiVectorMask" in folder.kinds else {}
    settings = {**folder.settings, **mask}
    pylate = "MultiVectorMask" not in folder.kinds
    if settings.get("skiplist_words") or settings.get("do_query_expansion", pylate):
        raise ValueError(
            f"{folder.name}: fills queries up with [MASK] or leaves out punctuation (do_query_expansion, "
            "skiplist_words), which SumOfMax does not do: its scores would differ"
        )
    backbone = BackboneConfig(folder.name)
    known = load_tokenizer(backbone).get_vocab()
    prefixes = [settings.get(f"{side}_prefix") or "" for side in ("query", "document")]
    # PyLate's own, "[Q] ", is a token with its space.
    query, item = [(prefix if prefix in known else prefix.strip(),) if prefix else () for prefix in prefixes]
    prompts = settings.get("prompts") or {}
    tokens = TokenConfig(
        query_length=min(settings.get("query_length") or folder.max_length, folder.max_length),
        item_length=min(settings.get("document_length") or folder.max_length, folder.max_length),
        mention_tags=None,
        item_tag=None,
        query_prompt=prompts.get("query", ""),
        item_prompt=prompts.get("document", ""),
        query_prefix=query,
        item_prefix=item,
    )
    normalize = pylate or "Normalize" in folder.kinds
    model = SumOfMax(backbone, tokens, width=dense["out_features"], normalize=normalize)
    assert model.projection is not None
    fill({"linear.": model.projection}, read_weights(where / "model.safetensors"), where)
    model.weights_sha256 = file_sha256(folder.path / "model.safetensors")
    return model


def _pooling(folder: Folder) -> str:
    config, place = folder.of("Pooling")
    legacy = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
    modes = config.get("pooling_mode") or [mode for mode, key in legacy.items() if config.get(key)]
    modes = [modes] if isinstance(modes, str) else list(modes)
    others = [key for key in config if key.startswith("pooling_mode_") and key not in legacy.values() and config[key]]
    if len(modes) != 1 or modes[0] not in legacy or others or not config.get("include_prompt", True):
        raise ValueError(f"{place}: pooling {[*modes, *others]} is not supported; expected mean or cls pooling alone")
    return str(modes[0])


def _only(folder: Folder, config: dict[str, Any], **expected: Any) -> None:
    for key, value in expected.items():
        if config.get(key) != value:
            raise ValueError(f"{folder.name}: its Dense has {key} {config.get(key)!r}, expected {value!r}")
    if config.get("use_residual"):
        raise ValueError(f"{folder.name}: its Dense adds its input (use_residual), which is not supported")
