"""What transformers reads of a folder in its layout, with no code of the folder's own, and without asking to run it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerBase, dynamic_module_utils
from transformers.utils.import_utils import DummyObject

from simzoo.core.hub import HubError

NAMES_OF_CODE = ("auto_map", "processor_class")
"""Settings that name classes to load besides; nothing here needs them, and what is saved must not pass them on."""


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
def readable(name: str, what: str) -> Iterator[None]:
    """What transformers raises about a file it cannot read, of whatever kind, becomes one error that names the file.

    Args:
        name: of the backbone, for the message.
        what: is read, for the message.
    """
    try:
        with unasked():
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
        ValueError: it cannot be read, or needs code of its own.
    """
    with readable(name, "configuration"):
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
        for file in ("tokenizer_config.json", "config.json"):
            _check_tokenizer_class(folder / file)
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, config=config, use_fast=True, trust_remote_code=False
        )
        for setting in NAMES_OF_CODE:
            tokenizer.init_kwargs.pop(setting, None)
            vars(tokenizer).pop(f"_{setting}", None)
    return tokenizer


def _check_tokenizer_class(path: Path) -> None:
    """Refuses a class of transformers that is no tokenizer; it would be loaded, with whatever that brings about."""
    named = json.loads(path.read_text(encoding="utf-8")).get("tokenizer_class") if path.is_file() else None
    found = getattr(transformers, named, None) if isinstance(named, str) else None
    if found is None or isinstance(found, DummyObject):  # which says what package is missing, and loads nothing
        return
    if not (isinstance(found, type) and issubclass(found, PreTrainedTokenizerBase)):
        raise ValueError(f"{path}: tokenizer_class {named!r} is no tokenizer")
