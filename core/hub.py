"""Names to files: a folder, a file, an archive, or ``org/name@revision`` on the Hugging Face Hub; checked by sha256."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from simzoo.core.archives import ARCHIVES, unpacked
from simzoo.core.files import MOST_SETTINGS
from simzoo.core.released import Released, in_clone, released

MANIFEST = "manifest.json"
INDEX = "index"
"""Folder of a checkpoint that holds what a search needs besides the model."""

DOCUMENTS = ("README.md", "metrics.json")
MODEL_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "README.md")
OLD_WEIGHTS = ("*.bin", "*.ckpt", "*.pt", "*.pth", "HSTU-*")  # the files of RAILS have no ending
READ_WHOLE = (".json", ".txt", ".md", ".jinja", ".model")
NEVER_NEEDED = (f"{INDEX}/*", "onnx/*", "openvino/*", "*/onnx/*", "*/openvino/*", "runs/*")


class HubError(FileNotFoundError):
    """Files that the Hub did not give or take: says what failed and what to do."""


@lru_cache(maxsize=256)
def _sha256(path: Path, size: int, mtime_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_sha256(path: Path) -> str:
    """sha256 of a file; remembered while its size and time stay the same."""
    stat = path.stat()
    return _sha256(path, stat.st_size, stat.st_mtime_ns)


# -- names ----------------------------------------------------------------------------------------------------------


def parse_name(name: str) -> tuple[str, str | None]:
    """``org/name@revision`` to (org/name, revision or None).

    Raises:
        HubError: it cannot be a name on the Hub.
    """
    matched = re.fullmatch(r"([\w][\w.-]*(?:/[\w][\w.-]*)?)(?:@([\w][\w./-]*))?", name)
    if matched is None:
        raise HubError(
            f"there is no {name!r}: it is neither a folder nor a file here, and no name on the Hub; expected a path "
            "that exists, org/name, or org/name@revision"
        )
    return matched[1], matched[2]


def local_path(name: str | Path) -> Path:
    """Where the files of a checkpoint or backbone are, after fetching them if need be.

    Args:
        name: a folder; a file of a checkpoint folder, which stands for the folder; a single file of weights in a
            released layout; an archive (.zip, .tar, .tar.gz) of a checkpoint folder; ``org/name@revision``; or the name
            of a released checkpoint, ``wordnet-de``.

    Returns:
        A folder, or the single file of weights.

    Raises:
        HubError: there is no such file or folder, and the Hub does not give it.
        ValueError: the files are not what their manifest says, a link leads out of the folder, or an archive is
            refused.
    """
    path = Path(name).expanduser()
    if path.is_file():
        if path.name.endswith(ARCHIVES):
            return _checked(unpacked(path))
        return _checked(path.parent) if (path.parent / "config.json").is_file() else path
    if path.is_dir():
        return _checked(path)
    if (known := released(str(name))) is not None:
        return _released(known)
    return fetch(str(name))


def _released(known: Released) -> Path:
    """The folder of a released checkpoint: in the clone, or from the Hub at the commit and with the files released.

    Raises:
        HubError: it is in neither.
        ValueError: the Hub has other files under this commit.
    """
    if (folder := in_clone(known.name)) is not None:
        return _checked(folder)
    if known.hub is None:
        raise HubError(
            f"{known.name} lies in the folder checkpoints/ of simzoo's repository, and is not on the Hub: clone the "
            f"repository, and name the folder: path/to/simzoo/checkpoints/{known.name}"
        )
    folder = fetch(known.hub)
    if not (folder / MANIFEST).is_file() or file_sha256(folder / MANIFEST) != known.manifest:
        raise ValueError(f"{known.hub} does not hold the files that {known.name} was released with; it is not loaded")
    return folder


def fetch(name: str, everything: bool = False) -> Path:
    """The folder in the Hub's cache with a repository's files, which are fetched where they are missing.

    What was fetched once is found again without a connection; a broken download goes on where it was.

    Args:
        name: ``org/name`` or ``org/name@revision``.
        everything: also indexes, exports and weights in old formats; otherwise old formats only where there is nothing
            else.

    Raises:
        HubError: the Hub does not give the files; says what to do.
        ValueError: a file has another sha256 than the Hub or the manifest says; it is removed from the cache.
    """
    if everything:
        return _snapshot(name, None, ())
    folder = _snapshot(name, MODEL_FILES, NEVER_NEEDED)
    if not any(folder.glob("*.safetensors")) and not (folder / "modules.json").is_file():
        folder = _snapshot(name, (*MODEL_FILES, *OLD_WEIGHTS), NEVER_NEEDED)
    return folder


def _snapshot(name: str, allow: Sequence[str] | None, ignore: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT

    repo, revision = parse_name(name)
    with explained(f"fetching {name}"), timeout(HF_HUB_DOWNLOAD_TIMEOUT):
        allowed = None if allow is None else list(allow)
        folder = Path(snapshot_download(repo, revision=revision, allow_patterns=allowed, ignore_patterns=list(ignore)))
    return _checked(folder, in_cache=True)


@contextmanager
def timeout(seconds: float) -> Iterator[None]:
    """No request of the Hub's client waits longer for an answer; by itself it lets most of them wait for ever."""
    from huggingface_hub import get_session

    session: Any = get_session()
    before = session.event_hooks

    def limit(request: Any) -> None:
        asked = request.extensions.get("timeout") or {}
        request.extensions["timeout"] = {
            part: seconds if asked.get(part) is None else asked[part] for part in ("connect", "read", "write", "pool")
        }

    session.event_hooks = {**before, "request": [*before["request"], limit]}
    try:
        yield
    finally:
        session.event_hooks = before


# -- hashes ---------------------------------------------------------------------------------------------------------


def write_manifest(folder: Path) -> None:
    """Writes manifest.json: size and sha256 of every file of a checkpoint folder.

    Raises:
        ValueError: a link leads out of the folder.
    """
    check_links(folder)
    files = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": file_sha256(path)}
        for path in checkpoint_files(folder)
    }
    text = json.dumps({"format": 1, "files": files}, indent=2, sort_keys=True) + "\n"
    scratch = folder / f".{MANIFEST}.tmp"
    scratch.write_text(text)
    scratch.replace(folder / MANIFEST)


def checkpoint_files(folder: Path) -> list[Path]:
    """Every file of a checkpoint folder but its manifest and hidden files, in order."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name != MANIFEST
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def read_manifest(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """Size and sha256 by file name; empty where there is no manifest.

    Raises:
        ValueError: the manifest is damaged, or names a file outside the folder.
    """
    path = folder / MANIFEST
    if not path.is_file():
        return {}
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        known = {str(name): {"size": int(f["size"]), "sha256": str(f["sha256"])} for name, f in files.items()}
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: is not a manifest ({type(error).__name__}: {error}); expected "
            '{"files": {name: {"size": ..., "sha256": ...}}}; fetch it again'
        ) from error
    for name in known:
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts or "\\" in name:
            raise ValueError(f"{path}: names {name!r}, which lies outside the folder; the checkpoint is refused")
    return known


def check_links(folder: Path) -> None:
    """Refuses a folder with a link that leads out of it: others would say which file is read, sent or replaced.

    A snapshot in the Hub's cache has its files in the ``blobs`` of the same repository, and may link there. What is
    neither a file nor a folder is refused too: reading a pipe or a device may never end.

    Raises:
        ValueError: a link leads elsewhere, or in a circle; or there is a pipe, a socket or a device.
    """
    root = folder.resolve()
    inside = [root, *(_blobs(place) for place in (root, *root.parents) if _is_snapshot(place))]
    for path in sorted(folder.rglob("*")):
        if not path.is_symlink():
            if not (path.is_file() or path.is_dir()):
                raise ValueError(f"{path} is a pipe, a socket or a device; the folder is refused: take it out")
            continue
        try:
            target = path.resolve()
        except (OSError, RuntimeError) as error:
            raise ValueError(f"{path} is a link that leads nowhere ({error}); the folder is refused") from error
        if not any(target.is_relative_to(place) for place in inside):
            raise ValueError(
                f"{path} is a link that leads out of its folder, to {target}; the folder is refused: put the file "
                "itself there"
            )


def _is_snapshot(place: Path) -> bool:
    return place.parent.name == "snapshots" and place.parent.parent.name.startswith("models--")


def _blobs(snapshot: Path) -> Path:
    return snapshot.parent.parent / "blobs"


def problems(folder: Path, whole: bool = True) -> list[str]:
    """What is wrong with a folder's files, by its manifest and by the names that the Hub's cache gives them.

    Args:
        folder: a checkpoint's.
        whole: look also at the documents, and for files that the manifest names and that are not there.

    Raises:
        ValueError: the manifest is damaged, or a link leads out of the folder.
    """
    check_links(folder)
    found = []
    for name, expected in read_manifest(folder).items():
        path = folder / name
        if not whole and (name in DOCUMENTS or not path.is_file()):
            continue
        if not path.is_file():
            found.append(f"{name} is missing")
        elif path.stat().st_size != expected["size"]:
            found.append(f"{name} has {path.stat().st_size:,} bytes, expected {expected['size']:,}")
        elif (sha256 := file_sha256(path)) != expected["sha256"]:
            found.append(f"{name} has sha256 {sha256}, expected {expected['sha256']}")
    for path in checkpoint_files(folder):
        # The Hub's cache keeps a large file under the sha256 that the Hub says it has.
        if path.is_symlink() and re.fullmatch(r"[0-9a-f]{64}", named := path.resolve().name):
            sha256 = file_sha256(path)
            if sha256 != named:
                found.append(f"{path.name} has sha256 {sha256}, but the Hub says {named}")
    return found


def _checked(folder: Path, in_cache: bool = False) -> Path:
    """The folder, if its files are in order; what is damaged is removed where the Hub's client put it, nowhere else."""
    for path in checkpoint_files(folder):
        if path.suffix in READ_WHOLE and (size := path.stat().st_size) > MOST_SETTINGS:
            raise ValueError(
                f"{path} has {size:,} bytes, expected settings of at most {MOST_SETTINGS:,}; it is refused"
            )
    wrong = problems(folder, whole=False)
    if not wrong:
        return folder
    removed = _removed(folder, wrong) if in_cache else []
    todo = (
        f"{', '.join(removed)} was removed from the cache: fetch it again; if it comes back the same, the repository "
        "itself is damaged"
        if removed
        else "restore the file; after a change of your own, `simzoo hub verify --write` accepts it"
    )
    raise ValueError(f"{folder}: {'; '.join(wrong)}. {todo[0].upper()}{todo[1:]}.")


def _removed(snapshot: Path, wrong: list[str]) -> list[str]:
    """Removes damaged files of a snapshot in the Hub's cache, whose links `check_links` found in order; their names."""
    removed = []
    for path in checkpoint_files(snapshot):
        if path.is_symlink() and any(line.startswith(f"{path.relative_to(snapshot).as_posix()} ") for line in wrong):
            path.resolve().unlink(missing_ok=True)
            path.unlink()
            removed.append(path.name)
    return removed


# -- errors ---------------------------------------------------------------------------------------------------------


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Turns what the Hub's client raises into a `HubError` that says what to do.

    Args:
        doing: what is tried, for example "fetching org/name".
    """
    from huggingface_hub.errors import HfHubHTTPError

    # The client's own base of all its network errors, whichever HTTP library it is built on.
    http_error: Any = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
    try:
        yield
    except HubError:
        raise
    except (http_error, OSError, RuntimeError, ValueError) as error:
        raise HubError(f"{doing} failed: {advice(error)}") from error


def advice(error: BaseException) -> str:
    """What went wrong between us and the Hub, and what to do, from an error and its causes."""
    from huggingface_hub import constants

    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    for link in chain:
        if (response := getattr(link, "response", None)) is not None:
            return _of_status(link, response)
    if re.search(r"\bxet", str(error), re.IGNORECASE):
        return f"Xet, by which the client sends large files, broke off; HF_HUB_DISABLE_XET=1 does without it ({error})"
    names = {base.__name__ for link in chain for base in type(link).__mro__}
    if "OfflineModeIsEnabled" in names or constants.is_offline_mode():
        return "HF_HUB_OFFLINE is set, and the cache does not have all of it; unset it and fetch it once"
    if "TimeoutException" in names or "TimeoutError" in names:
        return (
            f"{constants.ENDPOINT} did not answer in time; check the connection and try again, it goes on where it "
            "was; for a slow connection set HF_HUB_DOWNLOAD_TIMEOUT to more seconds"
        )
    if "ConnectError" in names or "NetworkError" in names or "RemoteProtocolError" in names:
        return (
            f"the connection to {constants.ENDPOINT} cannot be made or broke off; check it, a proxy, and HF_ENDPOINT "
            "if it is set, and try again: it goes on where it was"
        )
    if any(text in str(error) for text in ("Invalid pointer path", "Invalid filename")):
        return f"the repository lists a file outside its own folder and is refused ({str(error).splitlines()[0]})"
    if "HFValidationError" in names:
        return f"that is no name on the Hub ({error}); expected org/name or org/name@revision"
    return f"{type(error).__name__}: {error}"


def _of_status(error: BaseException, response: Any) -> str:
    status, kind = response.status_code, type(error).__name__
    if status == 401:
        return (
            "the Hub does not know this user, or there is no such repository (it answers both with 401). Check the "
            "name; for a private repository log in with `hf auth login` or set HF_TOKEN to a valid token"
        )
    if status == 403:
        return (
            "403, access is forbidden: use a token that may do this (writing needs one with write access, "
            "`hf auth login`), or ask the owner for access on the repository's page"
        )
    if status == 404:
        what = {"RevisionNotFoundError": "revision", "RemoteEntryNotFoundError": "file"}.get(kind, "repository")
        return f"404, there is no such {what} on the Hub; check the spelling of the name and of the revision"
    if status == 429:
        seconds = str(response.headers.get("Retry-After", ""))
        wait = f"wait {seconds} seconds" if seconds.isdigit() else "wait some minutes"
        return f"429, too many requests: {wait} and try again, it goes on where it was; logged in, the limit is higher"
    if status >= 500:
        return f"the Hub itself has a fault ({status}); nothing is wrong here: try again in some minutes"
    return f"the Hub answered {status}: {str(error).strip().splitlines()[0]}"
