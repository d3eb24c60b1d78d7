"""What `make docs` does besides turning pages into HTML: the API reference, and links to what lies outside of docs/."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.structure.files import File, Files

import simzoo
from simzoo.core.registry import Known, find, subclasses

GROUPS = {
    "Similarities": "LearnedSimilarity",
    "Searchers": "Searcher",
    "First stages": "FirstStage",
    "Vector indexes": "IndexKind",
    "Sources": "Source",
    "Training lists": "TrainingLists",
    "Miners": "Miner",
    "Teachers": "Teacher",
    "Losses": "Loss",
}
OUTSIDE = re.compile(r"\[([^\]]*)\]\(\.\./([^)#\s]+)[^)]*\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the API reference, whose entries are found as `import simzoo` finds them."""
    files.append(File.generated(config, "api.md", content=reference()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Names the files of the repository that a page links to, which the site does not hold."""
    return OUTSIDE.sub(
        lambda match: f"{match[1]} (`{match[2]}`)" if match[1] not in match[2] else f"`{match[2]}`", markdown
    )


def reference() -> str:
    """A heading for each kind of class, and under it an entry for each class that `simzoo` names."""
    grouped = {title: subclasses(base) for title, base in GROUPS.items()}
    listed = {known.name for group in grouped.values() for known in group}
    rest = [find(name) for name in simzoo.__all__ if name not in listed]
    lines = ["# API reference", "What `import simzoo` names, from the docstrings."]
    for title, group in {"Engine and data": [known for known in rest if known], **grouped}.items():
        lines += [f"## {title}", *(f"::: {known.path}" for known in group if _public(known))]
    return "\n\n".join(lines) + "\n"


def _public(known: Known) -> bool:
    return known.name in simzoo.__dir__()
