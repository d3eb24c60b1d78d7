"""What transformers reads of a folder in its layout, with no code of the folder's own, and without asking to run it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerBase, dynamic_module_utils
from transformers.utils.import_utils import DummyObject

from simzoo.core.files import read_object
from simzoo.core.hub import HubError
from simzoo.models.parts.finite import check_finite
from simzoo.models.parts.tokenizer_bounds import check_normalizer, check_tokenizer, usable
from simzoo.models.parts.weights import Bounded

FIRST_TEXTS = ("a", "The boat, 12.", f"{'a' * 30}! {' ' * 30}b", "\u00e9\u4e2d\U0001f6a3")
"""What a tokenizer is tried on, so that one that breaks down is refused when it is loaded."""

MOST_PARTS = 10_000
"""Layers, heads, labels or experts of a configuration."""

NAMES_OF_CODE = ("auto_map", "processor_class")
"""Settings that name classes to load besides; nothing here needs them, and what is saved must not pass them on."""


ELSEWHERE = ("configuration_files", "backbone", "use_pretrained_backbone", "quantization_config")
"""Settings of a config.json that name other files, other models, or another program to read the weights."""

TOKENIZERS_ELSEWHERE = ("fast_tokenizer_files", "tokenizer_file", "vocab_file", "merges_file", "spm_file")
"""Settings of a tokenizer that name its files: it is read from those in its folder that have the usual names."""


@contextmanager
def unasked() -> Iterator[None]:
    """transformers asks nobody whether to run a folder's code: it refuses.

    Where it calls itself it drops trust_remote_code, and would ask; with no time to answer it does not.
    """
    seconds, dynamic_module_utils.TIME_OUT_REMOTE_CODE = dynamic_module_utils.TIME_OUT_REMOTE_CODE, 0
    try:
        yield
    finally:
        dynamic_module_utils.TIME_OUT_REMOTE_CODE = seconds


@contextmanager
def quiet() -> Iterator[None]:
    """No bars and no report of missing weights: what is missing is checked, and said, here."""
    logging: Any = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def readable(name: str, what: str) -> Iterator[None]:
    """What transformers raises about a file it cannot read, of whatever kind, becomes one error that names the file.

    Args:
        name: of the backbone, for the message.
        what: is read, for the message.
    """
    try:
        with unasked(), usable(name):
            yield
    except HubError:
        raise
    except Exception as error:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise ValueError(
            f"backbone {name!r}: its {what} cannot be read, or needs code of its own, which is not run: {reason}"
        ) from error


def read_config(folder: Path, name: str, **settings: Any) -> Any:
    """A folder's configuration.

    Args:
        folder: in Hugging Face's layout.
        name: for messages.
        settings: take the place of those in the file.

    Raises:
        ValueError: it cannot be read, needs code of its own, or asks for more layers than there can be.
    """
    with readable(name, "configuration"):
        found = read_object(folder / "config.json", "fetch it again")
        _check_counts(found, folder / "config.json")
        _check_names(found, folder / "config.json", ELSEWHERE)
        config: Any = AutoConfig.from_pretrained(folder, trust_remote_code=False, **settings)
        for setting in NAMES_OF_CODE:
            vars(config).pop(setting, None)
    return config


def read_tokenizer(folder: Path, name: str) -> PreTrainedTokenizerBase:
    """A folder's fast tokenizer.

    Args:
        folder: in Hugging Face's layout.
        name: for messages.

    Raises:
        ValueError: it cannot be read, needs code of its own, or is none.
    """
    config = read_config(folder, name)  # by itself it would go on without one that is refused
    with readable(name, "tokenizer"):
        check_tokenizer(folder / "tokenizer.json")
        for file in ("tokenizer_config.json", "config.json"):
            if (folder / file).is_file():
                settings = read_object(folder / file, "fetch it again")
                _check_tokenizer_class(settings, folder / file)
                _check_names(settings, folder / file, TOKENIZERS_ELSEWHERE)
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, config=config, use_fast=True, trust_remote_code=False
        )
        for setting in NAMES_OF_CODE:
            tokenizer.init_kwargs.pop(setting, None)
            vars(tokenizer).pop(f"_{setting}", None)
        check_normalizer(tokenizer, folder)  # as it came to be, from whichever file
        highest, known = max(tokenizer.get_vocab().values(), default=0), getattr(config, "vocab_size", None)
        if isinstance(known, int) and highest >= known:
            raise ValueError(
                f"it has a token of id {highest:,}, and the model of its config.json only {known:,} tokens"
            )
        tokenizer([*FIRST_TEXTS])
    return tokenizer


def _check_names(settings: dict[str, Any], path: Path, names: Collection[str]) -> None:
    """Refuses settings that make transformers read other files, or weights from elsewhere."""
    for name in names:
        if (given := settings.get(name)) and given != ["tokenizer.json"]:
            raise ValueError(f"{path}: {name} names other files, {given!r:.80}, which are not read; take it out")


def _check_counts(config: Any, path: Path) -> None:
    """Refuses a number of layers, heads or labels of which transformers would make lists until memory ends."""
    for key, value in config.items():
        if isinstance(value, dict):
            _check_counts(value, path)
        elif isinstance(value, int) and value > MOST_PARTS and re.search("layer|head|label|expert|stage", key):
            raise ValueError(f"{path}: {key} is {value:,}, expected at most {MOST_PARTS:,}; it is refused")


def _check_tokenizer_class(settings: dict[str, Any], path: Path) -> None:
    """Refuses a class of transformers that is no tokenizer; it would be loaded, with whatever that brings about."""
    named = settings.get("tokenizer_class")
    found = getattr(transformers, named, None) if isinstance(named, str) else None
    if found is None or isinstance(found, DummyObject):  # which says what package is missing, and loads nothing
        return
    if not (isinstance(found, type) and issubclass(found, PreTrainedTokenizerBase)):
        raise ValueError(f"{path}: tokenizer_class {named!r} is no tokenizer")


def read_transformer(
    folder: Path, config: Any, name: str, kind: Any = AutoModel, may_lack: Callable[[Any, str], bool] | None = None
) -> tuple[Any, list[str]]:
    """The transformer of a configuration, with the weights of the folder's model.safetensors and of no other file.

    Args:
        folder: in Hugging Face's layout.
        config: of `read_config`.
        name: for messages.
        kind: the family of classes of which the configuration chooses one: AutoModel, or one with a head.
        may_lack: whether the file may do without a parameter, of the model and its name, which begins at random then;
            None: a pooler's alone.

    Returns:
        The model, and the names of the parameters that the file lacks.

    Raises:
        ValueError: the file does not hold what config.json asks for, or other weights are named.
    """
    if getattr(config, "transformers_weights", None) or (folder / "adapter_config.json").exists():
        raise ValueError(
            f"backbone {name!r}: it names other weights than its model.safetensors (transformers_weights in "
            "config.json, or adapter_config.json), which are not loaded; save it with all its weights in one file"
        )
    weights = folder / "model.safetensors"
    with readable(name, "weights"), quiet():
        with Bounded(folder, weights.stat().st_size, "meta"), torch.device("meta"):
            planned = kind.from_config(config, trust_remote_code=False, attn_implementation="eager")
        model, found = kind.from_pretrained(
            folder,
            config=config,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
            attn_implementation="sdpa" if planned._supports_sdpa else "eager",  # never what the file names
        )
    missing = sorted(found["missing_keys"])
    for key in missing:
        if not (key.startswith("pooler.") if may_lack is None else may_lack(model, key)):
            raise ValueError(f"backbone {name!r}: {weights} has no {key}, which its config.json asks for")
    check_finite(dict(model.named_parameters()), weights)
    return model, missing


def most_tokens(model: nn.Module, config: Any) -> int:
    """The longest sequence that a transformer has positions for."""
    limits = [getattr(config, "max_position_embeddings", None)]
    for name, part in model.named_modules():
        # RoBERTa and its kin begin to count behind the padding's own position.
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding) and part.padding_idx is not None:
            limits.append(part.num_embeddings - part.padding_idx - 1)
    return min((limit for limit in limits if isinstance(limit, int) and limit > 0), default=sys.maxsize)
