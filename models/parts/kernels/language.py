"""Triton's language, as far as it is installed: kernels import it from here, so that they can be read without it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = tl = None

if TYPE_CHECKING:
    constexpr = Any
else:
    constexpr = None if tl is None else tl.constexpr

__all__ = ["constexpr", "jit", "power_of_two", "precision", "tl"]


def jit(function: Any) -> Any:
    """The kernel of a function; in Triton's interpreter where TRITON_INTERPRET is set; the function without Triton."""
    return function if triton is None else triton.jit(function)


def power_of_two(number: int) -> int:
    """The smallest that is no smaller."""
    return 1 << (number - 1).bit_length()


def precision() -> str:
    """How products of single precision are computed: as torch is told to."""
    allowed = torch.backends.cuda.matmul.allow_tf32 and not os.environ.get("TRITON_INTERPRET")
    return "tf32" if allowed else "ieee"
