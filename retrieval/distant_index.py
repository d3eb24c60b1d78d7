"""An index on the Hub, which others have made."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from simzoo.core.files import copy_folder
from simzoo.core.hub import MANIFEST, HubError, fetch, parse_name, problems
from simzoo.core.records import DataError
from simzoo.retrieval.index_extras import check_extras
from simzoo.retrieval.storage.generation import GENERATION, Generation
from simzoo.retrieval.stored_settings import SETTINGS


def fetched_index(name: str | Path) -> tempfile.TemporaryDirectory[str] | None:
    """A copy of an index on the Hub: what is added to it goes nowhere else, least of all into the Hub's cache.

    Every file is compared with the manifest and with what the Hub says of it. Files of faiss, which does not defend
    itself, are not read: vectors are scanned until a compaction builds an index over them.

    Args:
        name: ``org/name`` or ``org/name@revision``.

    Returns:
        The copy; None for a folder that is here, and for what can be no name.

    Raises:
        HubError: the Hub does not give it.
        DataError: it is no index, or a file is not what the manifest says.
        ValueError: a link leads out of it.
    """
    if isinstance(name, Path) or Path(name).expanduser().exists():
        return None
    try:
        parse_name(name)
    except HubError:
        return None
    place = fetch(name, everything=True)
    for needed in (SETTINGS, GENERATION, MANIFEST):
        if not (place / needed).is_file():
            raise DataError(
                f"has no {needed}: {name} is no index that was published with `simzoo hub push-index`", place
            )
    if wrong := problems(place):
        raise DataError(f"{'; '.join(wrong)}; fetch it again", place)
    found = tempfile.TemporaryDirectory(prefix="simzoo-engine-")
    try:
        folder = Path(found.name)
        copy_folder(place, folder)
        generation = Generation.read(folder)
        check_extras(folder / GENERATION, generation)
        replace(generation, extras={**generation.extras, "parts": []}).write(folder)
    except BaseException:
        found.cleanup()
        raise
    return found
