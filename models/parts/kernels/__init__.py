"""Fused kernels for GPUs, and when they stand in for the plain forms.

They are written in Triton and checked against the plain forms in its interpreter, but were never run on a GPU. Until
they are, they have to be asked for: by SIMZOO_KERNELS=1 in the environment. ``pytest -m gpu tests/test_kernels.py``
compares them there, ``benchmarks/kernels.py`` measures them.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from torch import Tensor

__all__ = ["covered"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def covered(*tensors: Tensor) -> bool:
    """Whether a kernel takes these: of one floating type, on a CUDA device, without gradients and autocast.

    Examples:
        >>> covered(torch.zeros(2, 3))
        False
    """
    first = tensors[0]
    if not first.is_cuda or first.dtype not in DTYPES or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda"):
        return False
    alike = all(one.device == first.device and one.dtype == first.dtype for one in tensors)
    return alike and os.environ.get("SIMZOO_KERNELS") == "1" and find_spec("triton") is not None
