"""Representations on disk: written in blocks, resumable at any moment, read memory-mapped."""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import write_array_header_2_0
from numpy.typing import NDArray

from simzoo.core.files import read_object, remove_scratch, replacing, reserve
from simzoo.core.locks import InUse, left_over, locked
from simzoo.core.records import DataError
from simzoo.core.reps import Ragged, Reps, num_rows
from simzoo.core.shards import ALONE, Shards, Worker, writing
from simzoo.retrieval.storage.checksums import check, described

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
    which is memory-mapped. A build that is killed at any moment goes on where it was and ends with the same bytes. One
    process builds; a second one is refused while it does. Files are checked at opening by their sizes and by a
    checksum of samples (`checksums.sample_sha256`), by `verify` whole.

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
        self.identity = {"format": 2, "records": records_sha256(records), "checkpoint": checkpoint, "block": block}

    def build(self, encode: Encode, description: str, worker: Worker = ALONE) -> Reps:
        """Encodes what is missing and opens the store.

        Args:
            encode: blocks of records to their representations, on the CPU, one after the other.
            description: what the progress bar calls it.
            worker: which of several workers this process is, who encode one block each in turn.

        Raises:
            DataError: the folder holds representations of other records or of another checkpoint, or is damaged.
            InUse: another process builds it.
            OSError: no room is left; what was encoded is kept.
        """
        starts = range(0, len(self.records), self.block)
        if self._finished():
            self._claim()
            with suppress(InUse, PermissionError):  # whoever has it cleans up; who may not write need not
                self._clean(starts)
            return self.open()
        with writing(self.folder, worker):
            self._claim()
            if not self._finished():
                self._make(encode, starts, description, worker)
        if worker.first:
            self._clean(starts)
        return self.open()

    def _make(self, encode: Encode, starts: range, description: str, worker: Worker) -> None:
        shards = Shards(self.folder, [self._path(start) for start in starts], worker, self.folder / "parts.json")
        blocks = [self.records[start : start + self.block] for start in starts]
        if worker.alone:  # it knows what comes next, and tokenises it meanwhile
            encoded = encode([block for block, path in zip(blocks, shards.paths, strict=True) if not path.exists()])
            shards.make(lambda number: self._write(starts[number], next(encoded)), description)
        else:
            shards.make(lambda number: self._write(starts[number], next(encode([blocks[number]]))), description)
        shards.finish(lambda: self._join(starts))
        if worker.first:
            shards.clean()

    def open(self) -> Reps:
        """The representations, memory-mapped.

        Raises:
            DataError: the store is not finished, or a file of it is missing, cut short or not what was written.
        """
        parts, files = self._parts()
        for name, expected in files.items():
            check(self.folder / name, expected)
        reps: Reps = {}
        for name, ragged in parts.items():
            values = self._map(f"{name}.npy")
            reps[name] = Ragged(values, self._map(f"{name}.offsets.npy")) if ragged else values
        if num_rows(reps) != len(self.records):
            raise DataError(
                f"holds {num_rows(reps)} rows, expected {len(self.records)}; remove the folder", self.folder
            )
        return reps

    def verify(self) -> None:
        """Reads every byte.

        Raises:
            DataError: a file is not what was written.
        """
        for name, expected in self._parts()[1].items():
            check(self.folder / name, expected, every_byte=True)

    def _finished(self) -> bool:
        return (self.folder / "parts.json").exists()

    def _parts(self) -> tuple[dict[str, bool], dict[str, dict[str, str | int]]]:
        """Whether each part is ragged, and what its files should be."""
        path = self.folder / "parts.json"
        if not path.exists():
            raise DataError("the store is not finished; build it again, it goes on where it was", self.folder)
        found = read_object(path, "remove the folder and build again")
        parts, files = found.get("parts"), found.get("files")
        if isinstance(parts, dict) and isinstance(files, dict):
            names = {f"{name}.npy" for name in parts} | {
                f"{name}.offsets.npy" for name, ragged in parts.items() if ragged
            }
            if names and names == files.keys() and not any("/" in name for name in names):
                return parts, files
        raise DataError("does not name the store's files; remove the folder and build again", path)

    def _clean(self, starts: Sequence[int]) -> None:
        """Removes blocks that were joined, which a kill may have left, and half-written files."""
        leftovers = [path for path in map(self._path, starts) if path.exists()]
        if leftovers or left_over(self.folder):
            with locked(self.folder):
                for path in leftovers:
                    path.unlink(missing_ok=True)
                remove_scratch(self.folder)

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
            found = read_object(path, "remove the folder and build again")
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
        names = []
        for name, is_ragged in ragged.items():
            names.append(f"{name}.npy")
            self._join_part(f"{name}.values" if is_ragged else name, self.folder / names[-1], starts)
            if is_ragged:
                names.append(f"{name}.offsets.npy")
                lengths = np.concatenate([self._block(start, f"{name}.lengths") for start in starts])
                with replacing(self.folder / names[-1]) as file:
                    np.save(file, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
        with replacing(self.folder / "parts.json") as file:
            files = {name: described(self.folder / name) for name in names}
            file.write(json.dumps({"parts": ragged, "files": files}).encode())

    def _join_part(self, key: str, path: Path, starts: Sequence[int]) -> None:
        first = self._block(starts[0], key)
        shape = sum(len(self._block(start, key)) for start in starts), *first.shape[1:]
        # Written, not mapped: a full disk is an error of write(), but a bus error of a mapped page.
        with replacing(path) as file:
            header = {"descr": first.dtype.str, "fortran_order": False, "shape": shape}
            write_array_header_2_0(file, header)
            reserve(file, file.tell() + math.prod(shape) * first.dtype.itemsize)
            for start in starts:
                file.write(np.ascontiguousarray(self._block(start, key)).data)

    def _block(self, start: int, key: str) -> NDArray[Any]:
        path = self._path(start)
        try:
            with np.load(path, allow_pickle=False) as block:
                found: NDArray[Any] = block[key]
        except (KeyError, OSError, ValueError, MemoryError, zipfile.BadZipFile) as error:
            reason = str(error) or type(error).__name__
            raise DataError(f"is damaged ({reason}); remove it, and it is made again", path) from error
        return found
