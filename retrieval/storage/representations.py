"""Representations on disk: written in blocks, resumable at any moment, read memory-mapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from simzoo.core.files import replacing
from simzoo.core.progress import progress
from simzoo.core.records import DataError
from simzoo.core.reps import Ragged, Reps, num_rows

Encode = Callable[[Sequence[Sequence[Any]]], Iterator[Reps]]


def records_sha256(records: Sequence[Any]) -> str:
    """Of all that the records say, in their order."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(repr(record).encode())
    return digest.hexdigest()


class RepresentationStore:
    """The representations of a list of records in a folder, made by one checkpoint.

    Blocks are written one by one under their final names by renaming; when all are there they become one file a part,
    which is memory-mapped. A build that is killed at any moment goes on where it was and ends with the same bytes.

    Args:
        folder: where.
        records: what is represented.
        checkpoint: sha256 of the weights, or any name of the encoder.
        block: records a block.
    """

    def __init__(self, folder: Path, records: Sequence[Any], checkpoint: str, block: int = 2048) -> None:
        if not records:
            raise DataError("there are no records to represent", folder)
        self.folder = folder
        self.records = records
        self.block = block
        self.identity = {"records": records_sha256(records), "checkpoint": checkpoint, "block": block}

    def build(self, encode: Encode, description: str) -> Reps:
        """Encodes what is missing and opens the store.

        Args:
            encode: blocks of records to their representations, on the CPU, one after the other.
            description: what the progress bar calls it.

        Raises:
            DataError: the folder holds representations of other records or of another checkpoint.
        """
        self._claim()
        if not (self.folder / "parts.json").exists():
            starts = range(0, len(self.records), self.block)
            missing = [start for start in starts if not self._path(start).exists()]
            encoded = encode([self.records[start : start + self.block] for start in missing])
            for start in progress(missing, description):
                self._write(start, next(encoded))
            self._join(starts)
        return self.open()

    def open(self) -> Reps:
        """The representations, memory-mapped.

        Raises:
            DataError: the store is not finished, or a file of it is missing or cut short.
        """
        path = self.folder / "parts.json"
        if not path.exists():
            raise DataError("the store is not finished; build it again, it goes on where it was", self.folder)
        reps: Reps = {}
        for name, ragged in json.loads(path.read_text()).items():
            values = self._map(f"{name}.npy")
            reps[name] = Ragged(values, self._map(f"{name}.offsets.npy")) if ragged else values
        if num_rows(reps) != len(self.records):
            raise DataError(
                f"holds {num_rows(reps)} rows, expected {len(self.records)}; remove the folder", self.folder
            )
        return reps

    def _map(self, name: str) -> torch.Tensor:
        path = self.folder / name
        try:
            # Copy-on-write: torch wants a writable array, and "r+" would lengthen a file that was cut short.
            return torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
        except (OSError, ValueError) as error:
            raise DataError(f"is missing or cut short ({error}); remove the folder and build again", path) from error

    def _claim(self) -> None:
        path = self.folder / "manifest.json"
        if path.exists():
            found = json.loads(path.read_text())
            differing = [key for key, value in self.identity.items() if found.get(key) != value]
            if differing:
                raise DataError(
                    f"was made with other {' and '.join(differing)}; choose another folder or remove it", path
                )
            return
        with replacing(path) as file:
            file.write(json.dumps(self.identity).encode())

    def _path(self, start: int) -> Path:
        return self.folder / f"block-{start:010d}.npz"

    def _write(self, start: int, reps: Reps) -> None:
        arrays: dict[str, NDArray[Any]] = {}
        for name, part in reps.items():
            if isinstance(part, Ragged):
                arrays |= {f"{name}.values": part.values.numpy(), f"{name}.lengths": part.lengths.numpy()}
            else:
                arrays[name] = part.numpy()

        with replacing(self._path(start)) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    def _join(self, starts: Sequence[int]) -> None:
        """One file a part, written block by block, so that no more than one block is in memory."""
        ragged: dict[str, bool] = {}
        with np.load(self._path(0), allow_pickle=False) as first:
            for key in first.files:
                ragged[key.removesuffix(".values").removesuffix(".lengths")] = key.endswith((".values", ".lengths"))
        for name, is_ragged in ragged.items():
            self._join_part(f"{name}.values" if is_ragged else name, self.folder / f"{name}.npy", starts)
            if is_ragged:
                lengths = np.concatenate([self._block(start, f"{name}.lengths") for start in starts])
                offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
                np.save(self.folder / f"{name}.offsets.npy", offsets)
        with replacing(self.folder / "parts.json") as file:
            file.write(json.dumps(ragged).encode())
        for start in starts:
            self._path(start).unlink()

    def _join_part(self, key: str, path: Path, starts: Sequence[int]) -> None:
        sizes = [self._block(start, key).shape for start in starts]
        first = self._block(starts[0], key)
        joined = open_memmap(path, "w+", first.dtype, (sum(size[0] for size in sizes), *first.shape[1:]))
        at = 0
        for start, size in zip(starts, sizes, strict=True):
            joined[at : at + size[0]] = self._block(start, key)
            at += size[0]
        joined.flush()

    def _block(self, start: int, key: str) -> NDArray[Any]:
        with np.load(self._path(start), allow_pickle=False) as block:
            found: NDArray[Any] = block[key]
        return found
