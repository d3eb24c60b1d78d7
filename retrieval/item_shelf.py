"""What first stages have made of the items of an index folder, beside them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from simzoo.core.files import sync_folder
from simzoo.core.locks import InUse
from simzoo.core.records import DataError
from simzoo.retrieval.index_folder import IndexFolder, Opened, same_items
from simzoo.retrieval.storage.checksums import check, described

SHELF = "made-"  # before the number of the generation that first names a folder


class ItemShelf:
    """Folders that first stages have made of the items of one generation, for whoever opens it next; see `Shelf`.

    They go when items are added: they were made of other items then.

    Args:
        store: the folder of the index.
        opened: the generation.
    """

    def __init__(self, store: IndexFolder, opened: Opened) -> None:
        self._store = store
        self._opened = opened

    def get(self, name: str) -> Path | None:
        """See `Shelf.get`; a folder that is damaged counts as none."""
        made = self._opened.generation.extras.get("shelf", {}).get(name)
        if made is None:
            return None
        folder: Path = self._opened.columns.folder / made["folder"]
        try:
            for file, expected in made["files"].items():
                check(folder / file, expected)
        except (DataError, OSError):
            return None
        return folder

    def put(self, name: str, write: Callable[[Path], None]) -> Path | None:
        """See `Shelf.put`; None where another process writes, or has changed the items, or this one may not write."""
        with suppress(InUse, PermissionError), self._store.writing() as now:
            if not same_items(now, self._opened):
                return None
            generation = now.generation
            made = f"{SHELF}{generation.number + 1:06d}"
            folder = now.columns.folder / made
            write(folder)
            files = sorted(path for path in folder.iterdir() if path.is_file())
            for path in [*files, folder]:
                sync_folder(path)
            sync_folder(now.columns.folder)
            entry = {"folder": made, "files": {path.name: described(path) for path in files}}
            extras = {**generation.extras, "shelf": {**generation.extras.get("shelf", {}), name: entry}}
            replace(generation, number=generation.number + 1, extras=extras).write(self._store.folder)
            return folder
        return None
