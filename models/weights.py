"""Reading files of weights that others made, and putting every tensor in its place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from models.unpickle import load_tensors


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
        return load_file(path)
    return load_tensors(path)


def check_header(path: Path) -> None:
    """Reads the header of a .safetensors file, which has to agree with the file's size; no tensor is read.

    Raises:
        ValueError: it is damaged or claims more than there is.
    """
    try:
        with safe_open(path, framework="pt"):
            pass
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file ({error}); fetch it again") from error


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
