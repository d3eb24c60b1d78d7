"""Publishing a checkpoint folder on the Hugging Face Hub, in one commit."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simzoo.core.hub import (
    INDEX,
    MANIFEST,
    HubError,
    check_links,
    checkpoint_files,
    explained,
    file_sha256,
    parse_name,
    problems,
    read_manifest,
    timeout,
)
from simzoo.core.records import DataError
from simzoo.retrieval.hub.card import empty_sections, render
from simzoo.retrieval.hub.leaks import leaks


@dataclass(frozen=True)
class Upload:
    """One file of a push.

    Attributes:
        name: in the repository.
        content: a file here, or bytes that were made for the push.
        size: in bytes.
        sha256: of the content; empty for the manifest, which holds the others'.
    """

    name: str
    content: Path | bytes
    size: int
    sha256: str


@dataclass(frozen=True)
class Plan:
    """What a push would do.

    Attributes:
        repo: ``org/name``.
        branch: that gets the commit.
        private: who may see a repository that is made new.
        card: README.md as it will stand there.
        files: all that the commit puts there.
        stale: files of an earlier push that this one no longer has; the commit deletes them.
    """

    repo: str
    branch: str
    private: bool
    card: str
    files: tuple[Upload, ...]
    stale: tuple[str, ...] = ()

    def __str__(self) -> str:
        seen = "private" if self.private else "public"
        lines = [f"one commit to {self.repo} ({self.branch}), {seen} if it is new:"]
        lines += [f"  {file.size:>13,}  {file.sha256[:12]:12}  {file.name}" for file in self.files]
        lines += [f"  {'deleted':>13}  {'':12}  {name}" for name in self.stale]
        return "\n".join([*lines, f"  {sum(file.size for file in self.files):>13,}  bytes in all"])


def plan_push(folder: Path, repo: str, public: bool = False, index: Sequence[Path] = ()) -> Plan:
    """Checks a checkpoint folder and says what publishing it would upload; nothing is sent.

    Args:
        folder: the checkpoint's; all its files are part of the push.
        repo: ``org/name``, or ``org/name@branch``.
        public: a new repository can be seen by all.
        index: folders or files that a search needs besides (item representations, graph, embeddings); they become
            ``index/...``.

    Raises:
        DataError: the folder is no checkpoint, a file is not what its manifest says, a section of the card is empty, or
            two files would have the same name.
    """
    name, branch = parse_name(repo)
    if "/" not in name:
        raise DataError(f"cannot be published as {name!r}, which has no owner; expected org/name", folder)
    for needed in ("config.json", "model.safetensors"):
        if not (folder / needed).is_file():
            raise DataError(f"has no {needed}; expected a checkpoint folder", folder)
    if wrong := problems(folder):
        raise DataError(
            f"{'; '.join(wrong)}; restore it, or accept it with `simzoo hub verify --write {folder}`",
            folder,
        )
    card = rendered(folder, name)
    if empty := empty_sections(card):
        raise DataError(
            f"the card says nothing under {', '.join(empty)}; write it with `python evaluate.py card`, and push again",
            folder / "README.md",
        )
    files = [upload(path.relative_to(folder).as_posix(), path) for path in checkpoint_files(folder)]
    for extra in index:
        files += _index(extra)
    if told := leaks((file.name, file.content) for file in files if isinstance(file.content, Path)):
        raise DataError(f"{'; '.join(told)}; save it anew with `simzoo hub convert`, or take it out", folder)
    files = [file for file in files if file.name != "README.md"] + [made("README.md", card)]
    if twice := [name for name, times in Counter(file.name for file in files).items() if times > 1]:
        raise DataError(f"two files would become {twice[0]}; rename one, or include one of them", folder)
    files.append(manifest_of(files))
    return Plan(name, branch or "main", not public, card, tuple(sorted(files, key=lambda file: file.name)))


def rendered(folder: Path, name: str) -> str:
    """The card with the example that loads ``name``; one that was written by hand stays as it is."""
    try:
        return render(folder, name)
    except DataError:
        path = folder / "README.md"
        return path.read_text(encoding="utf-8") if path.is_file() else ""


def of_earlier_push(repo: str, branch: str) -> set[str]:
    """Files that an earlier push put on a branch, by the manifest there; what somebody else added is not among them.

    Raises:
        HubError: the Hub does not say; says what to do.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT

    with explained(f"looking at {repo}"), timeout(HF_HUB_DOWNLOAD_TIMEOUT):
        info = _head(repo, branch)
        there = {file.rfilename for file in info.siblings or ()} if info is not None else set()
        if MANIFEST not in there:
            return set()
        path = Path(hf_hub_download(repo, MANIFEST, revision=info.sha))
    try:
        return there & {MANIFEST, *read_manifest(path.parent)}
    except ValueError:  # a damaged one does not say what is ours
        return set()


def _head(repo: str, branch: str) -> Any:
    """What stands on a branch, or on the main one, with whose files a new branch begins; None: no such repository."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    api = HfApi(library_name="simzoo")
    try:
        return api.model_info(repo, revision=branch)
    except RevisionNotFoundError:
        return api.model_info(repo)
    except RepositoryNotFoundError as error:
        if error.response.status_code == 404:  # it may also stand for 401
            return None
        raise


def publish(plan: Plan, dry_run: bool, message: str) -> str:
    """Shows a plan, with what its commit would delete, and carries it out.

    Args:
        plan: as it was made.
        dry_run: only show it, and the card.
        message: of the commit.

    Returns:
        The address of the commit; empty after a dry run.

    Raises:
        HubError: the Hub does not take it.
    """
    try:
        published = of_earlier_push(plan.repo, plan.branch)
    except HubError as error:
        if not dry_run:
            raise
        published = set()
        print(f"what the commit would delete is not known: {error}")
    plan = replace(plan, stale=tuple(sorted(published - {file.name for file in plan.files})))
    print(plan)
    if dry_run:
        print(f"\n{plan.card}")
        return ""
    address = carry_out(plan, message)
    print(f"published: {address}")
    return address


def carry_out(plan: Plan, message: str = "") -> str:
    """Uploads a plan's files and makes them visible in one commit; what was uploaded before is not sent again.

    The same commit deletes what an earlier push put there and this one does not.

    Returns:
        The address of the commit.

    Raises:
        HubError: the Hub does not take it; says what to do. Nothing of it is visible then.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT

    api = HfApi(library_name="simzoo")
    operations: list[Any] = [CommitOperationAdd(file.name, file.content) for file in plan.files]
    operations += [CommitOperationDelete(name) for name in plan.stale]
    with explained(f"publishing {plan.repo}"), timeout(6 * HF_HUB_DOWNLOAD_TIMEOUT):
        api.create_repo(plan.repo, private=plan.private, exist_ok=True)
        if plan.branch != "main":
            api.create_branch(plan.repo, branch=plan.branch, exist_ok=True)
        done = api.create_commit(
            plan.repo, operations, revision=plan.branch, commit_message=message or f"Upload of {plan.repo} with simzoo"
        )
    return done.commit_url


def manifest_of(files: Sequence[Upload]) -> Upload:
    """manifest.json: size and sha256 of the other files of a push."""
    hashes = {file.name: {"size": file.size, "sha256": file.sha256} for file in files}
    return made(MANIFEST, json.dumps({"format": 1, "files": hashes}, indent=2, sort_keys=True) + "\n")


def upload(name: str, path: Path) -> Upload:
    """A file of this machine."""
    return Upload(name, path, path.stat().st_size, file_sha256(path))


def made(name: str, text: str) -> Upload:
    """A file that was made for the push."""
    content = text.encode()
    return Upload(name, content, len(content), hashlib.sha256(content).hexdigest())


def _index(extra: Path) -> list[Upload]:
    if extra.is_dir():
        check_links(extra)
    if extra.is_file():
        return [upload(f"{INDEX}/{extra.name}", extra)]
    if not extra.is_dir():
        raise DataError("is neither a file nor a folder; name what a search was indexed with", extra)
    found = [path for path in sorted(extra.rglob("*")) if path.is_file()]
    if not found:
        raise DataError("is an empty folder; name what a search was indexed with", extra)
    return [upload(f"{INDEX}/{extra.name}/{path.relative_to(extra).as_posix()}", path) for path in found]
