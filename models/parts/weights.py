"""Reading files of weights that others made, and putting every tensor in its place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from simzoo.models.parts.finite import check_finite
from simzoo.models.parts.pickles import load_tensors


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a file that torch.save made; nothing in it is run.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or holds more than tensors.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; fetch it again")
    if path.suffix == ".safetensors":
        check_header(path)
        tensors = load_file(path)
        check_finite(tensors, path)
        return tensors
    return load_tensors(path)


MOST_TENSORS = 20_000
"""That a model may make, however small they are: each takes memory of its own, and so do the modules around it."""


class Bounded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """No more numbers are made in this block than its files account for, whatever a configuration claims.

    Args:
        where: the model, for the message.
        most: how many; a file has at least a byte for each of its own.
        device: where they are counted; tensors on meta take no memory, but show what a model would take.
    """

    def __init__(self, where: Path, most: int, device: str = "cpu") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.where, self.most, self.device, self.made, self.tensors = where, most, torch.device(device), 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Counts before the memory is taken."""
        kwargs = kwargs or {}
        if func._schema.arguments and func._schema.arguments[0].name == "size":
            if torch.device(kwargs.get("device") or "cpu") == self.device:
                self.made += math.prod(args[0])
                self.tensors += 1
            if self.tensors > MOST_TENSORS:
                raise ValueError(
                    f"the configuration of {self.where} asks for more than {MOST_TENSORS:,} tensors; it is refused"
                )
            if self.made > self.most:
                raise ValueError(
                    f"the configuration of {self.where} asks for more than {self.most:,} numbers, which its files do "
                    "not hold; it is refused"
                )
        return func(*args, **kwargs)


def check_header(path: Path) -> None:
    """Reads the header of a .safetensors file, which has to agree with the file's size; no tensor is read.

    Raises:
        ValueError: it is damaged or claims more than there is.
    """
    try:
        with safe_open(path, framework="pt") as file:
            count = len(file.keys())
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}); fetch it again") from error
    if count > MOST_TENSORS:
        raise ValueError(f"{path} names {count:,} tensors, expected at most {MOST_TENSORS:,}; it is refused")


def weights_file(folder: Path) -> Path:
    """The file of weights of a folder in Hugging Face's layout.

    Raises:
        FileNotFoundError: it has none.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"{folder} has neither model.safetensors nor pytorch_model.bin")


def fill(places: Mapping[str, nn.Module], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copies tensors into modules; none may be missing or left over.

    Args:
        places: modules by the prefix, with its dot, that their parameters' names have in the file.
        tensors: of the file.
        path: of the file, for messages.

    Raises:
        ValueError: names or shapes differ.
    """
    wanted = {
        f"{prefix}{name}": value for prefix, module in places.items() for name, value in module.named_parameters()
    }
    copy_all(wanted, tensors, path)


def reshaped(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in the shapes of the places of the same names, where only dimensions of 1 differ."""
    found = dict(tensors)
    for name in wanted.keys() & tensors.keys():
        if tensors[name].squeeze().shape == wanted[name].squeeze().shape:
            found[name] = tensors[name].reshape(wanted[name].shape)
    return found


def copy_all(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copies tensors to the places of the same names; none may be missing or left over.

    Raises:
        ValueError: names or shapes differ.
    """
    missing, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or unknown:
        raise ValueError(f"{path} does not fit: missing {missing[:3]}, unknown {unknown[:3]}")
    with torch.no_grad():
        for name, place in wanted.items():
            if tensors[name].shape != place.shape:
                raise ValueError(
                    f"{path}: {name} has shape {tuple(tensors[name].shape)}, expected {tuple(place.shape)}"
                )
            place.copy_(tensors[name])
