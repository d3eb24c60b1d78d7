"""What a generation of an index folder names besides its columns: hashes of ids, vector indices, kept states."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from simzoo.core.records import DataError
from simzoo.retrieval.storage.generation import Generation
from simzoo.retrieval.storage.texts import COLUMN, FIELDS


def check_extras(path: Path, generation: Generation) -> None:
    """Refuses extras that are not those of a whole index: what they leave out would not be found.

    Raises:
        DataError: says what is wrong.
    """
    extras, rows = generation.extras, generation.rows
    kept = extras.get("search")
    texts = generation.columns.get(COLUMN)
    try:
        for key in ("ids", "parts"):
            runs = [(int(start), int(stop)) for start, stop in extras.get(key, ())]
            stops = [0, *(stop for _, stop in runs)]
            follow = [start for start, _ in runs] == stops[:-1] and sorted(set(stops)) == stops
            # Behind the last part vectors are scanned.
            if not follow or stops[-1] > rows or (key == "ids" and stops[-1] < rows):
                raise ValueError(f"{key} do not make up {rows} rows")
        if kept is not None and not (
            re.fullmatch(r"search-\d+", kept["folder"]) and all(re.fullmatch(r"\w+", name) for name in kept["arrays"])
        ):
            raise ValueError("search names a folder elsewhere")
        for made in extras.get("shelf", {}).values():
            if not re.fullmatch(r"made-\d+", made["folder"]) or not all(
                re.fullmatch(r"\w[\w.-]*", name) for name in made["files"]
            ):
                raise ValueError("shelf names a folder or a file elsewhere")
        if rows and (texts is None or texts.fields != FIELDS or np.dtype(texts.dtype) != np.uint8):
            raise ValueError("there is no column of texts")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"is damaged ({error}); restore the folder from a copy or build anew", path) from error


def mentioned(generation: Generation) -> list[str]:
    """Names of the files and folders."""
    ids = [ids_file(*run) for run in generation.extras.get("ids", ())]
    search = generation.extras.get("search")
    parts = [part_folder(*part) for part in generation.extras.get("parts", ())]
    shelf = [made["folder"] for made in generation.extras.get("shelf", {}).values()]
    return ids + parts + shelf + ([] if search is None else [search["folder"]])


def ids_file(start: int, stop: int) -> str:
    """Of the hashes of the ids of some rows."""
    return f"ids-{start:012d}-{stop:012d}"


def part_folder(start: int, stop: int) -> str:
    """Of the vector index of some rows."""
    return f"index-{start:012d}-{stop:012d}"
