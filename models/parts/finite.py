"""Weights and settings that are no numbers, or that make none."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor


def check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuses weights that are NaN or infinite: some scores would be too, others would look right.

    Raises:
        ValueError: names the first tensor with such a value.
    """
    for name, value in tensors.items():
        # One pass without a mask: the smallest and the largest are NaN where any is.
        if value.is_floating_point() and value.numel() and not all(map(math.isfinite, value.detach().aminmax())):
            raise ValueError(
                f"{path}: {name} holds NaN or infinity; the weights are damaged or their training diverged"
            )


def check_numbers(settings: Any, path: Path, key: str = "") -> None:
    """Refuses settings of a model under which its outputs are NaN, or are no outputs, whatever its weights are.

    Args:
        settings: what a config.json holds.
        path: of that file, for the message.
        key: of ``settings`` itself, where it is a part of the whole.

    Raises:
        ValueError: names the first such setting.
    """
    if isinstance(settings, dict):
        for name, value in settings.items():
            if name != "label2id":  # whose names are the labels' own
                check_numbers(value, path, name)
    elif isinstance(settings, list):
        for value in settings:
            check_numbers(value, path, key)
    elif isinstance(settings, int | float) and not isinstance(settings, bool):
        wanted = "a finite number" if settings != settings or abs(settings) == math.inf else _beyond(settings, key)
        if wanted:
            raise ValueError(f"{path}: {key} is {settings!r:.40}, expected {wanted}; it is refused")


def _beyond(value: float, key: str) -> str:
    """What a setting's number should be, by what transformers names them; empty: it is, or anything may be."""
    for pattern, least, most, wanted in _RANGES:
        if pattern.search(key) and not least <= value <= most:
            return wanted
    return ""


_SMALLEST = 1e-30
"""Less than this single precision loses beside the square of anything."""

_RANGES = (
    (re.compile(r"(^|_)eps(ilon)?$"), _SMALLEST, 1.0, "a number above 0 and at most 1"),
    (re.compile(r"dropout|_pdrop$|_dropout_prob$"), 0.0, 1.0, "a share between 0 and 1"),
    (re.compile(r"(^|_)theta$"), _SMALLEST, math.inf, "a number above 0"),
    (re.compile(r"^(hidden_size|intermediate_size|vocab_size|d_model)$"), 1, math.inf, "a whole number above 0"),
    (re.compile(r"^num_(hidden_layers|attention_heads|key_value_heads)$"), 1, math.inf, "a whole number above 0"),
    (re.compile(r"^initializer_range$"), 0.0, math.inf, "a number of at least 0"),
)
"""Settings by the ends of their names, in all families of models."""
