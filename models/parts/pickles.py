"""Files of torch.save and old Lightning checkpoints, read without running anything that is in them.

A pickle is a program. This reader knows tensors, OrderedDict and a short list of names that stand for settings and are
replaced by empty stand-ins; any other name is refused before anything is called. Sizes are checked against the file's
own before memory is taken.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch
from torch import Tensor

from simzoo.models.parts.finite import check_finite

STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
STAND_INS = (
    "utils.config Config",  # ANNCUR's settings
    "argparse Namespace",
    "pytorch_lightning.utilities.parsing AttributeDict",
    "pytorch_lightning.callbacks.model_checkpoint ModelCheckpoint",
    "pytorch_lightning.callbacks.early_stopping EarlyStopping",
    "numpy.core.multiarray scalar",
    "numpy dtype",
    "_codecs encode",
    "pathlib PosixPath",
    "pathlib Path",
)
"""Names in old checkpoints whose values nothing here needs; module and name as a pickle has them."""

ZIP = b"PK\x03\x04"
MAGIC = 0x1950A86A20F9469CFC6C  # first number of torch's format before the zip files
PUTS = {"PUT", "BINPUT", "LONG_BINPUT"}


class _Sealed(type):
    def __setattr__(cls, name: str, value: Any) -> NoReturn:
        raise pickle.UnpicklingError("the file tries to change a stand-in")


class StandIn(dict[Any, Any], metaclass=_Sealed):
    """Takes the place of an object whose class is not loaded; swallows what it is made of."""

    __slots__ = ()

    def __new__(cls, *args: Any) -> StandIn:  # noqa: D102
        return super().__new__(cls)

    def __init__(self, *args: Any) -> None:
        super().__init__()

    def __setstate__(self, state: Any) -> None:
        """Nothing is kept."""

    def append(self, value: Any) -> None:
        """Nothing is kept."""

    extend = append


class _Function:
    """A function that a pickle may call and cannot change."""

    __slots__ = ("_call",)
    _call: Callable[..., Any]

    def __init__(self, call: Callable[..., Any]) -> None:
        object.__setattr__(self, "_call", call)

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise pickle.UnpicklingError("the file tries to change a function")

    def __call__(self, *args: Any) -> Any:
        return self._call(*args)


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Tensor:
    if not isinstance(storage, Tensor) or not isinstance(offset, int):
        raise pickle.UnpicklingError("a tensor is made of something else than a storage")
    return torch.as_strided(storage, size, stride, offset)  # refuses what lies outside of the storage


def _parameter(value: Tensor, *rest: Any) -> Tensor:
    return value


ALLOWED: dict[str, Any] = {
    "collections OrderedDict": OrderedDict,
    "torch Size": _Function(lambda *args: tuple(*args)),
    "torch._utils _rebuild_tensor_v2": _Function(_tensor),
    "torch._utils _rebuild_parameter": _Function(_parameter),
    **dict.fromkeys(STAND_INS, StandIn),
}


class _Reader(pickle.Unpickler):
    """Looks every name up in `ALLOWED`; what a persistent id names comes from ``storage``."""

    def __init__(self, data: bytes, storage: Callable[[torch.dtype, str, int], Tensor]) -> None:
        super().__init__(io.BytesIO(data))
        self._storage = storage

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        if (found := ALLOWED.get(f"{module} {name}")) is None:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which is neither a tensor nor a known setting and is not loaded"
            )
        return found

    def persistent_load(self, pid: Any) -> Tensor:
        match pid:
            case ("storage", torch.dtype() as dtype, str() as key, str(), int() as count, *_) if count >= 0:
                return self._storage(dtype, key, count)
        raise pickle.UnpicklingError("a persistent id is not that of a tensor's storage")


def load_pickle(path: Path) -> Any:
    """What a file of torch.save holds: plain values, tensors (on the CPU) and stand-ins.

    Raises:
        ValueError: the file is damaged, claims more than it holds, or names anything else.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4)
            file.seek(0)
            return _from_zip(file) if start == ZIP else _from_stream(file, path.stat().st_size)
    except MemoryError as error:
        raise ValueError(f"{path} is refused: it claims more memory than there is") from error
    # Whatever a hostile file brings about inside the unpickler is a refusal: nothing of ours runs in there.
    except Exception as error:
        raise ValueError(
            f"{path} is refused: it is damaged or holds more than tensors ({str(error) or type(error).__name__}); "
            "fetch it again, from a source that you know"
        ) from error


def load_tensors(path: Path, *keys: str) -> dict[str, Tensor]:
    """The dictionary of tensors in a file of torch.save.

    Args:
        path: the file.
        *keys: where in the file the dictionary stands, for example "state_dict"; none: it is the file.

    Raises:
        ValueError: as `load_pickle`, or there is no such dictionary.
    """
    found = load_pickle(path)
    for key in keys:
        found = dict.get(found, key) if isinstance(found, dict) else None
    held = dict(dict.items(found)) if isinstance(found, dict) else None  # a file may put its own `items` on one
    if held is None or not all(isinstance(name, str) and isinstance(value, Tensor) for name, value in held.items()):
        where = f" under {'.'.join(keys)}" if keys else ""
        raise ValueError(f"{path} is refused: there is no dictionary of tensors{where}")
    check_finite(held, path)
    return held


def _read(data: bytes, storage: Callable[[torch.dtype, str, int], Tensor]) -> tuple[Any, int]:
    """The first pickle in some bytes, and where it ends."""
    end = 0
    for opcode, argument, position in pickletools.genops(data):
        # The unpickler makes room for as many values as the highest number says.
        if opcode.name in PUTS and isinstance(argument, int) and argument > len(data):
            raise pickle.UnpicklingError(f"it numbers {argument:,} values in {len(data):,} bytes")
        end = (position or 0) + 1
    return _Reader(data[:end], storage).load(), end


def _from_zip(file: BinaryIO) -> Any:
    size = file.seek(0, io.SEEK_END)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        # Torch stores its records as they are: what is packed, or claims more than the file, is made to fill memory.
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise pickle.UnpicklingError("its records are compressed, which torch.save does not do")
        if sum(entry.file_size for entry in entries) > size:
            raise pickle.UnpicklingError(f"its records claim more than the file's {size:,} bytes")
        names = [entry.filename for entry in entries if entry.filename.endswith("/data.pkl")]
        if len(names) != 1:
            raise pickle.UnpicklingError(f"it has {len(names)} records data.pkl, expected one")
        root = names[0].removesuffix("data.pkl")
        if f"{root}byteorder" in archive.NameToInfo and archive.read(f"{root}byteorder") != b"little":
            raise pickle.UnpicklingError("its numbers are big-endian, which is not supported")
        known: dict[str, Tensor] = {}

        def storage(dtype: torch.dtype, key: str, count: int) -> Tensor:
            if key not in known:
                record = archive.read(f"{root}data/{key}")
                if len(record) != count * dtype.itemsize:
                    raise pickle.UnpicklingError(
                        f"storage {key} claims {count:,} values of {dtype} and has {len(record):,} bytes"
                    )
                known[key] = torch.frombuffer(bytearray(record), dtype=dtype) if record else torch.empty(0, dtype=dtype)
            return known[key]

        return _read(archive.read(names[0]), storage)[0]


def _from_stream(file: BinaryIO, size: int) -> Any:
    data = file.read()
    none: Callable[..., Tensor] = _refuse_storage
    place = 0
    for expected in (MAGIC, 1001, None):
        found, length = _read(data[place:], none)
        if expected is not None and found != expected:
            raise pickle.UnpicklingError("it was not made by torch.save")
        place += length
    known: dict[str, Tensor] = {}

    def storage(dtype: torch.dtype, key: str, count: int) -> Tensor:
        if key not in known:
            claimed = sum(value.nbytes for value in known.values()) + count * dtype.itemsize
            if claimed > size:
                raise pickle.UnpicklingError(f"storages claim {claimed:,} bytes, the file has {size:,}")
            known[key] = torch.empty(count, dtype=dtype)
        return known[key]

    found, length = _read(data[place:], storage)
    place += length
    keys, length = _read(data[place:], none)
    place += length
    for key in keys:
        (count,) = struct.unpack_from("<q", data, place)
        target = known[key]
        if count != target.numel() or place + 8 + target.nbytes > len(data):
            raise pickle.UnpicklingError(f"storage {key} is cut short")
        if count:
            target.copy_(torch.frombuffer(bytearray(data[place + 8 : place + 8 + target.nbytes]), dtype=target.dtype))
        place += 8 + target.nbytes
    return found


def _refuse_storage(*args: Any) -> NoReturn:
    raise pickle.UnpicklingError("a tensor stands where none belongs")


def mentions(path: Path, text: str) -> bool:
    """Whether a file of torch.save holds a text, such as a parameter's name; nothing in it is interpreted."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")]
            size = path.stat().st_size
            return any(
                text.encode() in archive.read(entry)
                for entry in names
                if entry.compress_type == zipfile.ZIP_STORED and entry.file_size <= size
            )
    except (zipfile.BadZipFile, OSError, EOFError, IndexError, NotImplementedError, RuntimeError, UnicodeError):
        with path.open("rb") as file:  # the format before the zip files has the names in front
            return text.encode() in file.read(16_000_000)
