"""Training checkpoints on disk: written beside their target and renamed, the last two kept, read only when whole."""

from __future__ import annotations

import os
import pickle
import re
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import CheckpointIO

NEEDED = ("state_dict", "loops", "global_step")
RESUMED = ("epoch", "pytorch-lightning_version")
"""What a trainer needs besides."""

KINDS = {"state_dict": dict, "loops": dict, "global_step": int, "epoch": int, "pytorch-lightning_version": str}
KINDS |= {"callbacks": dict}
LISTS = ("optimizer_states", "lr_schedulers")
SCRATCH = (".writing-", ".keeping-")
"""How files begin that are not finished. Lightning reads versions out of names that have ``hpc_ckpt_`` in them."""


class CheckpointFiles(CheckpointIO):
    """How a trainer writes and reads its checkpoints.

    A file is written beside its target, synced and renamed, so that its name stands for a whole file at any moment.
    What it replaces is kept as ``NAME.previous.ckpt``. A full disk leaves both.

    Only files in folders that this process has written to are removed: which ones a trainer takes for its older
    checkpoints is said by the file that it went on from, which others may have made.

    Attributes:
        written: the last file that this process wrote; None: none yet.
    """

    def __init__(self) -> None:
        self.written: Path | None = None
        self._own: set[Path] = set()  # folders

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Replaces a checkpoint.

        Raises:
            OSError: it could not be written; says what is kept.
        """
        if storage_options is not None:
            raise TypeError("training checkpoints are written to this machine's disks and take no storage_options")
        path = on_disk(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(f"{SCRATCH[0]}{os.getpid()}.tmp")
        try:
            _write(checkpoint, scratch)
            _keep(path)
            os.replace(scratch, path)
            _sync_folder(path.parent)
        except OSError as error:
            kept = "the one before it is kept" if path.exists() else "there is none before it"
            reason = error.strerror or type(error).__name__
            raise OSError(error.errno, f"{reason}; this checkpoint was not written, {kept}", str(path)) from error
        finally:
            scratch.unlink(missing_ok=True)
        self.written = path
        self._own.add(path.parent.resolve())

    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: bool | None = None) -> Any:
        """See `read`; it is on the CPU, and no code in it is run, whatever the arguments say."""
        found = read(path)
        if missing := [key for key in RESUMED if key not in found]:
            raise ValueError(f"{path} cannot be gone on from: it lacks {', '.join(missing)}")
        return found

    def remove_checkpoint(self, path: str | Path) -> None:
        """Removes a checkpoint, and what it replaced; what lies elsewhere stays, and so does what is no checkpoint."""
        path = on_disk(path)
        if path.parent.resolve() in self._own and path.suffix == ".ckpt":
            for one in (path, previous(path)):
                one.unlink(missing_ok=True)


def previous(path: Path) -> Path:
    """Where the checkpoint is kept that ``path`` replaced."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def on_disk(path: str | Path) -> Path:
    """The path of a training checkpoint.

    Raises:
        ValueError: an address or a name in a registry.
    """
    if "://" in str(path) or str(path).startswith("registry"):
        raise ValueError(
            f"{path}: training checkpoints are read and written on this machine's disks only; fetch it first"
        )
    return Path(path).expanduser()


def read(path: str | Path) -> dict[str, Any]:
    """A training checkpoint, on the CPU. No code in the file is run, and every byte is held against its checksum.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: an address; a file that is damaged, cut short, or no training checkpoint.
    """
    path = on_disk(path)
    if not path.is_file():
        if path.is_dir():
            raise ValueError(f"{path} is a folder; a training checkpoint is a .ckpt file{_found_in(path)}")
        raise FileNotFoundError(f"{path}: there is no such training checkpoint{_found_in(path.parent)}")
    try:
        _check_bytes(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except ValueError:
        raise
    except pickle.UnpicklingError as error:
        raise ValueError(f"{path} is refused: {_named_in(error)}") from error
    # Whatever a damaged or hostile file brings about inside torch's reader is a refusal.
    except Exception as error:
        raise ValueError(f"{path} cannot be read as a training checkpoint: {_first_line(error)}") from error
    missing = [key for key in NEEDED if key not in found] if isinstance(found, dict) else list(NEEDED)
    if missing:
        raise ValueError(
            f"{path} is no training checkpoint: it lacks {', '.join(missing)}; expected a .ckpt file that a run of "
            "train.py wrote"
        )
    _check_kinds(path, found)
    checkpoint: dict[str, Any] = found
    return checkpoint


def _check_kinds(path: Path, found: dict[str, Any]) -> None:
    """Refuses values on which Lightning would break down while it takes up a run."""
    wrong = [key for key, kind in KINDS.items() if key in found and not isinstance(found[key], kind)]
    for key in LISTS:
        states = found.get(key, [])
        if not isinstance(states, list) or not all(isinstance(state, dict) for state in states):
            wrong.append(key)
    if wrong:
        raise ValueError(
            f"{path} is no training checkpoint: {', '.join(wrong)} is of another kind than a run of train.py writes"
        )


def newest(paths: Iterable[Path]) -> tuple[Path | None, list[str]]:
    """The checkpoint among ``paths`` that was written last and is whole, and why newer ones were passed over."""
    with_time = [(path.stat().st_mtime_ns, path) for path in paths]
    reasons = []
    for _, path in sorted(with_time, reverse=True):
        try:
            read(path)
        except (OSError, ValueError) as error:
            reasons.append(str(error))
        else:
            return path, reasons
    return None, reasons


def remove_unfinished(folder: Path) -> None:
    """Removes what killed runs left half-written; only for who alone writes to the folder."""
    for start in SCRATCH:
        for path in folder.glob(f"{start}*.tmp"):
            path.unlink(missing_ok=True)


def _write(checkpoint: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        try:
            torch.save(checkpoint, file)
        except RuntimeError as error:
            # Torch's own complaint is about positions in the file; the full disk stands behind it.
            raise error.__context__ if isinstance(error.__context__, OSError) else error from None
        file.flush()
        os.fsync(file.fileno())


def _keep(path: Path) -> None:
    """Gives the checkpoint at ``path`` its second name, without taking the first one away where links are known."""
    if not path.exists():
        return
    link = path.with_name(f"{SCRATCH[1]}{os.getpid()}.tmp")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except OSError:
        os.replace(path, previous(path))
        return
    os.replace(link, previous(path))
    link.unlink(missing_ok=True)  # two names of one file are not renamed onto each other


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_bytes(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(4)
    if start != b"PK\x03\x04":
        raise ValueError(f"{path} is no training checkpoint: it does not begin as a file of torch.save does")
    try:
        with zipfile.ZipFile(path) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise ValueError(f"{path} is refused: its records are compressed, which torch.save does not do")
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        size = path.stat().st_size
        raise ValueError(f"{path} is cut short or damaged, it has {size:,} bytes{_instead_of(path)}") from error
    if damaged is not None:
        raise ValueError(f"{path} is damaged, the checksum of its record {damaged} is wrong{_instead_of(path)}")


def _instead_of(path: Path) -> str:
    kept = previous(path)
    if kept.is_file():
        with suppress(ValueError):
            _check_bytes(kept)
            return f"; the one before it is whole: go on from {kept}"
    return "; go on from another one (--ckpt_path last takes the newest whole one)"


def _found_in(folder: Path) -> str:
    names = sorted(path.name for path in folder.glob("*.ckpt"))
    if not names:
        return ""
    return f"; in {folder} there are {', '.join(names[:5])}"


def _named_in(error: Exception) -> str:
    """What a pickle asks for beyond tensors; torch's own message recommends reading it unsafely."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    what = f"it names {found[1]}" if found else "it holds more than tensors and plain values"
    return f"{what}, and nothing in a training checkpoint is run"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
