"""Publishing and fetching checkpoints: ``simzoo hub push | pull | list | verify | convert``."""

from __future__ import annotations

import json
import shutil
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simzoo.core.files import copy_folder
from simzoo.core.hub import (
    MANIFEST,
    check_links,
    checkpoint_files,
    explained,
    fetch,
    local_path,
    parse_name,
    problems,
    timeout,
    write_manifest,
)
from simzoo.core.progress import quiet, show_table
from simzoo.core.records import DataError
from simzoo.retrieval.results.output import check_parts

__all__ = ["ListedCheckpoint", "convert", "list_checkpoints", "main", "pull", "push", "verify"]


def push(
    checkpoint: Path,
    repo: str,
    public: bool = False,
    include_index: list[Path] | None = None,
    dry_run: bool = False,
    message: str = "",
) -> str:
    """Publishes a checkpoint folder on the Hub in one commit: all of it becomes visible at once, or nothing.

    What an earlier push put there and this one no longer has is deleted; files that others added stay.

    Args:
        checkpoint: the folder, with config.json, model.safetensors, tokenizer, metrics.json, README.md and other files.
        repo: org/name, or org/name@branch; made if there is none.
        public: a new repository can be seen by all; otherwise by you and your organisation alone.
        include_index: folders or files with item representations, a graph or embeddings; they become index/...
        dry_run: only show the plan and the card.
        message: of the commit.

    Returns:
        The address of the commit; empty after a dry run.
    """
    from simzoo.retrieval.hub.push import plan_push, publish

    return publish(plan_push(checkpoint, repo, public, include_index or ()), dry_run, message)


def push_index(
    index: Path, repo: str, texts: bool = False, public: bool = False, dry_run: bool = False, message: str = ""
) -> str:
    """Publishes an index on the Hub, to be opened by name: `simzoo.retrieval.hub.index.push_index`."""
    from simzoo.retrieval.hub import index as published  # it costs seconds, which the other verbs need not wait for

    return published.push_index(index, repo, texts, public, dry_run, message)


def pull(name: str, to: Path | None = None) -> Path:
    """Fetches all of a checkpoint into the Hub's cache, or finds it there, and checks every sha256.

    Args:
        name: org/name or org/name@revision; a folder, a file or an archive is only checked.
        to: copy it into this folder as well.

    Returns:
        Where it is.

    Raises:
        DataError: there are no files, or not those that the manifest names.
    """
    if to is not None:
        check_parts(to)
    place = _whole(name)
    if not place.is_file() and not any(path.name not in (".gitattributes", "README.md") for path in place.glob("*")):
        raise DataError(
            "holds no checkpoint; a push that broke off leaves a repository without files: push again", name
        )
    if to is not None and to.exists() and to.resolve().is_relative_to(place.resolve()):
        raise DataError("lies in the checkpoint itself; name another folder", to)
    if place.is_dir() and (wrong := problems(place)):
        raise DataError(f"{'; '.join(wrong)}; fetch it again", place)
    if to is not None:
        if place.is_dir():
            if to.exists():
                check_links(to)  # a copy would be written to where they lead
            copy_folder(place, to)
        else:
            to.mkdir(parents=True, exist_ok=True)
            shutil.copy2(place, to)
        place = to
    print(place)
    return place


@dataclass(frozen=True)
class ListedCheckpoint:
    """A checkpoint that `list_checkpoints` found.

    Attributes:
        name: what to load it by.
        kind: class of the similarity, where it is known.
        size: in bytes; None: the Hub does not say.
    """

    name: str
    kind: str
    size: int | None


def list_checkpoints(owner: str | None = None) -> list[ListedCheckpoint]:
    """Lists checkpoints: those in checkpoints/ and in the Hub's cache, or an owner's on the Hub.

    Args:
        owner: user or organisation on the Hub; None: what is on this machine.
    """
    found = _on_this_machine() if owner is None else _of_owner(owner)
    rows = [(one.name, one.kind, "-" if one.size is None else f"{one.size / 1e6:.1f}") for one in found]
    show_table(("name", "class", "MB"), rows)
    return found


def verify(checkpoint: str, write: bool = False) -> Path:
    """Checks a checkpoint: hashes, configuration, weights, tokenizer, card and the figures' weights.

    Args:
        checkpoint: a folder, or a name on the Hub.
        write: write manifest.json anew first, after a change that was meant.
    """
    # They cost seconds, which the other verbs and help need not wait for.
    from simzoo.models.formats import load
    from simzoo.retrieval.hub.card import empty_sections
    from simzoo.retrieval.hub.leaks import leaks

    if write:
        write_manifest(Path(checkpoint))
    place = _whole(checkpoint)
    wrong = problems(place) if (place / MANIFEST).is_file() else [f"{MANIFEST} is missing"]
    card = place / "README.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else ""
    wrong += [f"the card says nothing under {name}" for name in empty_sections(text)]
    wrong += leaks((path.relative_to(place).as_posix(), path) for path in checkpoint_files(place))
    model = load(place)
    try:
        figures = json.loads((place / "metrics.json").read_text(encoding="utf-8"))["sha256"]
    except (OSError, KeyError, TypeError, ValueError):
        wrong.append("metrics.json is missing or is not that of a card")
    else:
        if figures != model.weights_sha256:
            wrong.append("metrics.json has the figures of other weights")
    if wrong:
        raise DataError("; ".join(wrong), place)
    print(f"{place}: a {type(model).__name__}, whole and with a card")
    return place


def convert(source: str, output: Path, layout: str = "simzoo") -> Path:
    """Turns a checkpoint of any layout that is known into another one.

    A checkpoint of this project becomes one of this version: its config.json names classes and arguments as they are
    called now, its weights and other files stay byte by byte.

    Args:
        source: what `simzoo.load` takes: a folder, a file, an archive or a name on the Hub.
        output: folder to write.
        layout: simzoo, this project's own; sentence-transformers, for SentenceTransformer or CrossEncoder; or onnx.
    """
    from simzoo.models import formats

    check_parts(output)
    place = local_path(source)
    if output.resolve() == place.resolve():
        raise DataError("this is the checkpoint itself; name another folder to write", output)
    if output.exists():
        check_links(output)
    # Adapters that were folded in cannot be written apart again.
    getattr(formats, LAYOUTS[layout])(formats.load(place, merge=layout != "simzoo"), output)
    if layout == "simzoo" and _is_own(place):
        for path in sorted(place.rglob("*")):
            if path.is_file() and path.name not in ("config.json", MANIFEST):
                to = output / path.relative_to(place)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, to)
        write_manifest(output)
    print(f"written: {output}")
    return output


LAYOUTS = {"simzoo": "save", "sentence-transformers": "save_sentence_transformer", "onnx": "save_onnx"}
"""Function of `simzoo.models.formats` by layout."""


def _is_own(place: Path) -> bool:
    config = place / "config.json"
    return config.is_file() and "format" in json.loads(config.read_text(encoding="utf-8"))


def _whole(name: str) -> Path:
    """Where a checkpoint is, with all its files."""
    return local_path(name) if Path(name).expanduser().exists() else fetch(name, everything=True)


def _on_this_machine() -> list[ListedCheckpoint]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    found = [_described(path.parent, str(path.parent)) for path in sorted(Path("checkpoints").glob("*/config.json"))]
    try:
        cached = scan_cache_dir()
    except CacheNotFound:
        return found
    for repo in sorted(cached.repos, key=lambda repo: repo.repo_id):
        for revision in repo.revisions if repo.repo_type == "model" else ():
            if (revision.snapshot_path / "config.json").is_file():
                found.append(_described(revision.snapshot_path, f"{repo.repo_id}@{revision.commit_hash}"))
    return found


def _described(folder: Path, name: str) -> ListedCheckpoint:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = config.get("class") or config.get("model_type") or ""
    except (OSError, ValueError, AttributeError):
        kind = "?"
    return ListedCheckpoint(
        name, str(kind).rpartition(".")[2], sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    )


def _of_owner(owner: str) -> list[ListedCheckpoint]:
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT

    parse_name(owner)
    with explained(f"listing the checkpoints of {owner}"), timeout(HF_HUB_DOWNLOAD_TIMEOUT):
        models = list(HfApi(library_name="simzoo").list_models(author=owner, filter="simzoo"))
    known = [(model, set(model.tags or ())) for model in models]
    return [
        ListedCheckpoint(model.id, ", ".join(sorted(t for t in tags if t[:1].isupper())), None) for model, tags in known
    ]


def parser() -> ArgumentParser:
    """The command line."""
    top = ArgumentParser(prog="simzoo hub", description=(__doc__ or "").split(":")[0], allow_abbrev=False)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable[..., object]) -> ArgumentParser:
        summary = (function.__doc__ or "").split("\n")[0]
        made = commands.add_parser(name, help=summary, description=summary, allow_abbrev=False)
        made.set_defaults(function=function)
        return made

    one = command("push", push)
    one.add_argument("checkpoint", type=Path, help="checkpoint folder")
    one.add_argument("repo", help="org/name or org/name@branch; made if there is none")
    one.add_argument("--public", action="store_true", help="a new repository can be seen by all")
    one.add_argument("--include-index", nargs="+", type=Path, metavar="PATH", help="what a search was indexed with")
    one.add_argument("--dry-run", action="store_true", help="only show the plan and the card")
    one.add_argument("--message", default="", help="of the commit")
    one = command("push-index", push_index)
    one.add_argument("index", type=Path, help="folder that an Engine has saved")
    one.add_argument("repo", help="org/name or org/name@branch; made if there is none")
    one.add_argument("--texts", action="store_true", help="publish the items' texts; otherwise their hashes")
    one.add_argument("--public", action="store_true", help="a new repository can be seen by all")
    one.add_argument("--dry-run", action="store_true", help="only show the plan and the card")
    one.add_argument("--message", default="", help="of the commit")
    one = command("pull", pull)
    one.add_argument("name", help="org/name or org/name@revision; a folder, file or archive is only checked")
    one.add_argument("--to", type=Path, metavar="FOLDER", help="copy it here as well")
    one = command("list", list_checkpoints)
    one.add_argument("owner", nargs="?", help="user or organisation on the Hub; none: what is on this machine")
    one = command("verify", verify)
    one.add_argument("checkpoint", help="a folder, or a name on the Hub")
    one.add_argument(
        "--write", action="store_true", help="write manifest.json anew first, after a change that was meant"
    )
    one = command("convert", convert)
    one.add_argument("source", help="a folder, a file, an archive or a name on the Hub, of any layout that is known")
    one.add_argument("output", type=Path, help="folder to write")
    one.add_argument("--layout", choices=LAYOUTS, default="simzoo", help="default: this project's own")
    return top


def main(args: list[str] | None = None) -> None:
    """Runs the command line."""
    options = vars(parser().parse_args(args))
    quiet()
    options.pop("function")(**options)
