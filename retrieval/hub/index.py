"""Publishing a whole index on the Hub, to be opened by name: ``Engine.load("org/name")``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simzoo.core.files import copy_folder
from simzoo.core.hub import checkpoint_files, parse_name
from simzoo.core.records import DataError
from simzoo.core.released import released
from simzoo.models.formats import load
from simzoo.models.formats import save as save_model
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.first_stages.vector_index import Flat
from simzoo.retrieval.hub.leaks import leaks
from simzoo.retrieval.hub.push import Plan, made, manifest_of, publish, upload
from simzoo.retrieval.index_folder import IndexFolder, Opened
from simzoo.retrieval.storage.texts import COLUMN
from simzoo.retrieval.stored_settings import MODELS, SETTINGS, settings_of

__all__ = ["push_index"]


def push_index(
    index: Path, repo: str, texts: bool = False, public: bool = False, dry_run: bool = False, message: str = ""
) -> str:
    """Publishes an index on the Hub in one commit, for `Engine.load` by name.

    It has vectors, ids, the settings and what searchers keep. Without texts it has their hashes in place of the items'
    texts and titles, and searchers that read texts are refused. What was removed from the index is not part of it, nor
    are faiss's files, which nobody should read from a stranger. A model that is named by a path goes along.

    Args:
        index: folder that an `Engine` has saved.
        repo: org/name, or org/name@branch; made if there is none.
        texts: publish the items' texts, and the anchors', too.
        public: a new repository can be seen by all.
        dry_run: only show the plan and the card.
        message: of the commit.

    Returns:
        The address of the commit; empty after a dry run.

    Raises:
        DataError: the index is empty or damaged; or without texts it cannot be searched, or would tell them.
        HubError: the Hub does not take it.
    """
    name, branch = parse_name(repo)
    if "/" not in name:
        raise DataError(f"cannot be published as {name!r}, which has no owner; expected org/name", index)
    with tempfile.TemporaryDirectory(prefix="simzoo-push-") as scratch:
        stage = Path(scratch) / "index"
        staged(index, stage, texts)
        return publish(_plan(stage, name, branch or "main", public, texts), dry_run, message)


def staged(index: Path, stage: Path, texts: bool) -> None:
    """Makes the folder that is to be published, and opens it, as whoever fetches it will.

    Raises:
        DataError: see `push_index`.
    """
    settings = settings_of(index)
    source = IndexFolder(index, Flat()).read()
    if not source.count:
        raise DataError("holds no items; add some first", index)
    if not texts:
        _check_withholding(index, settings, source)
    IndexFolder(stage, Flat()).extract(source, texts)
    shared = settings["embedder"] == settings["similarity"]  # one model is both
    for side in MODELS if not shared else ("similarity",):
        if settings[side] is not None and "checkpoint" in settings[side]:
            settings[side] = _named_for_all(index, stage, side, settings[side])
    settings["embedder"] = settings["similarity"] if shared else settings["embedder"]
    (stage / SETTINGS).write_text(json.dumps(settings, indent=1), encoding="utf-8")
    if not any(kept is not None and "function" in kept for kept in (settings[side] for side in MODELS)):
        Engine.load(stage).prepare()


def _check_withholding(index: Path, settings: Mapping[str, Any], source: Opened) -> None:
    """Refuses what cannot be without the items' texts, or would tell them.

    Raises:
        DataError: says what.
    """
    todo = "publish it with its texts (--texts), or build one without"
    for side in MODELS:
        if settings[side] is not None and "function" in settings[side]:
            raise DataError(f"its {side} is a function, which reads texts; {todo}", index)
    if settings["anchors"]:
        raise DataError(f"keeps {len(settings['anchors'])} anchors, which are texts of queries; {todo}", index)
    for name, column in source.generation.columns.items():
        if name != COLUMN and not np.issubdtype(np.dtype(column.dtype), np.floating):
            raise DataError(
                f"keeps {name.removeprefix('judge.')!r} of the items in whole numbers, such as the ids of their "
                f"tokens, of which their texts can be made; {todo}",
                index,
            )


def _named_for_all(index: Path, stage: Path, side: str, kept: Mapping[str, str]) -> dict[str, str]:
    """What the settings say of a model: its name on the Hub, or a folder of the index, into which it is copied."""
    name = kept["checkpoint"]
    if name and (released(name) is not None or not Path(name).expanduser().exists()):
        return dict(kept)
    target = stage / MODELS[side]
    if name:
        save_model(load(name), target)
    else:
        copy_folder(index / MODELS[side], target)
    return {**kept, "checkpoint": "", "sha256": load(target).weights_sha256}


def _plan(stage: Path, name: str, branch: str, public: bool, texts: bool) -> Plan:
    files = [upload(path.relative_to(stage).as_posix(), path) for path in checkpoint_files(stage)]
    if told := leaks((file.name, file.content) for file in files if isinstance(file.content, Path)):
        raise DataError(f"{'; '.join(told)}; take it out", stage)
    card = _card(stage, name, texts)
    files = [*files, made("README.md", card)]
    files.append(manifest_of(files))
    return Plan(name, branch, not public, card, tuple(sorted(files, key=lambda file: file.name)))


def _card(stage: Path, name: str, texts: bool) -> str:
    settings, opened = settings_of(stage), IndexFolder(stage, Flat()).read()
    needs = [side for side in MODELS if settings[side] is not None and "function" in settings[side]]
    given = "".join(f", {side}=your_{side}" for side in needs)
    said = {
        side: "none"
        if kept is None
        else kept.get("function") or kept["checkpoint"] or f"{kept['class']}, in this repository"
        for side, kept in ((side, settings[side]) for side in MODELS)
    }
    held = "ids, texts and vectors" if texts else "ids, vectors and the sha256 of each text, but no texts"
    return f"""---
library_name: simzoo
tags: [simzoo-index]
---
# {name.rpartition("/")[2]}

An index of {opened.count:,} items for [simzoo](https://pypi.org/project/simzoo/): {held}.

```python
from simzoo import Engine

engine = Engine.load("{name}"{given})
```

| part | |
|---|---|
| similarity | {said["similarity"]} |
| embedder | {said["embedder"]} |
| searcher | {settings["search"]["class"]} |
"""
