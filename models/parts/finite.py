"""Weights that are no numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

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
