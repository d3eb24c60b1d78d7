"""A Hub on this machine that speaks the Hub's own protocol, for the real client: HF_ENDPOINT names it.

Repositories and commits live in memory; a commit is visible as a whole or not at all. Large files go through the LFS
batch endpoint and are given out by redirect, with range requests. ``faults`` makes it answer as a Hub in trouble does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_loopback"
LARGE = 1000  # bytes from which a file goes through LFS, as *.safetensors do whatever their size
Files = dict[str, bytes]


@dataclass
class Repo:
    """One repository: commits by id, branches by name."""

    private: bool = False
    commits: dict[str, Files] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: Files, branch: str = "main") -> str:
        number = f"{len(self.commits)}".encode()
        name = hashlib.sha1(number + b"".join(f.encode() + b for f, b in sorted(files.items()))).hexdigest()
        self.commits[name] = files
        self.branches[branch] = name
        return name


@dataclass
class Fault:
    """What to do to requests whose path contains a text.

    Attributes:
        path: the text.
        status: answer with it; 0: stop answering.
        headers: of the answer.
        method: only of this kind.
        times: so often.
        after: bytes of the body to take or give before the connection breaks; None: an answer with ``status``.
    """

    path: str
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    method: str = ""
    times: int = 1_000
    after: int | None = None


class Hub(ThreadingHTTPServer):
    """The server; ``url`` is what HF_ENDPOINT is to be."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, Repo] = {}
        self.large: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.uploaded = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, name: str, files: Files, private: bool = False) -> str:
        """A repository (``datasets/org/name`` for a data set) with one commit."""
        repo = self.repos.setdefault(name, Repo(private, branches={}))
        for content in files.values():
            self.large[hashlib.sha256(content).hexdigest()] = content
        return repo.commit(files)


@contextmanager
def running() -> Iterator[Hub]:
    """A Hub that answers until the block ends."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()


def is_large(name: str, size: int) -> bool:
    """Whether a file goes through LFS."""
    return size > LARGE or name.endswith(".safetensors")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *arguments: Any) -> None:
        pass

    # -- plumbing -------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        self.query = parse_qs(parts.query)
        self.words = [unquote(word) for word in parts.path.strip("/").split("/")]
        wanted = f" {self.headers['Range']}" if self.headers.get("Range") else ""
        self.server.requests.append(f"{self.command} {parts.path}{wanted}")
        if self._fault(parts.path):
            return
        try:
            self._route()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = _serve

    def _fault(self, path: str) -> bool:
        for fault in self.server.faults:
            if fault.path in path and fault.method in ("", self.command) and fault.times > 0:
                fault.times -= 1
                if fault.after is not None:
                    self._break(fault)
                elif fault.status == 0:
                    time.sleep(30)
                else:
                    self._body()
                    self._answer({"error": "a fault"}, fault.status, fault.headers)
                return True
        return False

    def _break(self, fault: Fault) -> None:
        """Takes, or gives, part of a body and then says no more."""
        if self.command == "PUT":
            self.rfile.read(fault.after)
            self.server.uploaded.set()
            time.sleep(30)
        else:
            content = self.server.large[self.words[-1]]
            start = self._range(len(content))[0]
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            assert fault.after is not None
            self.wfile.write(content[start : start + fault.after])
            self.wfile.flush()
        self.close_connection = True

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        if "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _missing(self, code: str, status: int = 404) -> None:
        self._answer({"error": code}, status, {"X-Error-Code": code, "X-Error-Message": code})

    def _known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    # -- routes ---------------------------------------------------------------------------------------------------

    def _route(self) -> None:
        match self.words:
            case ["api", "repos", "create"]:
                self._create(json.loads(self._body()))
            case ["api", "validate-yaml"]:
                self._body()
                self._answer({"errors": [], "warnings": []})
            case ["api", "models"]:
                author = self.query.get("author", [""])[0]
                self._answer([self._info(name) for name in self.server.repos if name.startswith(f"{author}/")])
            case ["api", ("models" | "datasets") as kind, owner, name, *rest]:
                self._api(f"{owner}/{name}" if kind == "models" else f"datasets/{owner}/{name}", rest)
            case [owner, name, "info", "lfs", "objects", "batch"] if name.endswith(".git"):
                self._batch(f"{owner}/{name.removesuffix('.git')}")
            case ["lfs", oid]:
                self._large(oid)
            case ["lfs", oid, "verify"]:
                self._verify(oid)
            case ["datasets", owner, name, "resolve", revision, *path]:
                self._resolve(f"datasets/{owner}/{name}", revision, "/".join(path))
            case [owner, name, "resolve", revision, *path]:
                self._resolve(f"{owner}/{name}", revision, "/".join(path))
            case _:
                self._missing("Unknown")

    def _create(self, wanted: dict[str, Any]) -> None:
        if not self._known():
            return self._answer({"error": "Invalid username or password."}, 401)
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self.server.repos:
            return self._answer({"error": "exists", "url": f"{self.server.url}/{name}"}, 409)
        self.server.repos[name] = Repo(wanted.get("visibility") == "private")
        self.server.repos[name].commit({})
        self._answer({"url": f"{self.server.url}/{name}", "name": name, "id": name})

    def _api(self, name: str, rest: list[str]) -> None:
        repo = self._visible(name)
        if repo is None:
            return None
        match rest:
            case []:
                return self._answer(self._info(name))
            case ["revision", revision]:
                if (commit := self._commit(repo, revision)) is not None:
                    self._answer(self._info(name, commit))
            case ["tree", revision, *path]:
                if (commit := self._commit(repo, revision)) is not None:
                    self._answer(self._tree(repo.commits[commit], "/".join(path)))
            case ["paths-info", revision]:
                asked = self._asked(self._body())
                if (commit := self._commit(repo, revision)) is not None:
                    self._answer([e for e in self._tree(repo.commits[commit], "") if e["path"] in asked])
            case ["preupload", _]:
                files = json.loads(self._body())["files"]
                modes = {True: "lfs", False: "regular"}
                answer = [
                    {"path": f["path"], "uploadMode": modes[is_large(f["path"], f["size"])], "shouldIgnore": False}
                    for f in files
                ]
                self._answer({"files": answer})
            case ["commit", branch]:
                self._add_commit(name, repo, branch)
            case ["branch", branch]:
                self._body()
                repo.branches.setdefault(branch, repo.branches["main"])
                self._answer({})
            case _:
                self._missing("Unknown")

    def _asked(self, body: bytes) -> list[str]:
        if self.headers.get("Content-Type", "").startswith("application/json"):
            found: list[str] = json.loads(body)["paths"]
            return found
        return parse_qs(body.decode()).get("paths", [])

    def _visible(self, name: str) -> Repo | None:
        repo = self.server.repos.get(name)
        if repo is None or (repo.private and not self._known()):
            self._body()
            self._missing("RepoNotFound", 404 if self._known() else 401)
            return None
        return repo

    def _commit(self, repo: Repo, revision: str) -> str | None:
        commit = repo.branches.get(revision, revision)
        if commit not in repo.commits:
            self._missing("RevisionNotFound")
            return None
        return commit

    def _info(self, name: str, commit: str | None = None) -> dict[str, Any]:
        repo = self.server.repos[name]
        commit = commit or repo.branches["main"]
        files = repo.commits[commit]
        plain = name.removeprefix("datasets/")
        return {
            "_id": plain,
            "id": plain,
            "modelId": plain,
            "author": plain.split("/")[0],
            "sha": commit,
            "private": repo.private,
            "disabled": False,
            "gated": False,
            "downloads": 0,
            "likes": 0,
            "tags": ["simzoo", "CrossEncoder"],
            "siblings": [{"rfilename": path} for path in files],
            "lastModified": "2026-01-01T00:00:00.000Z",
        }

    def _tree(self, files: Files, under: str) -> list[dict[str, Any]]:
        entries = []
        for path, content in files.items():
            if under and not path.startswith(f"{under}/") and path != under:
                continue
            entry = {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            if is_large(path, len(content)):
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            entries.append(entry)
        folders = {path.rsplit("/", 1)[0] for path in files if "/" in path and path.startswith(under)}
        entries += [
            {"type": "directory", "path": f, "size": 0, "oid": hashlib.sha1(f.encode()).hexdigest()} for f in folders
        ]
        return entries

    # -- uploading ------------------------------------------------------------------------------------------------

    def _batch(self, name: str) -> None:
        objects = []
        for wanted in json.loads(self._body())["objects"]:
            oid = wanted["oid"]
            entry: dict[str, Any] = {"oid": oid, "size": wanted["size"]}
            if oid not in self.server.large:
                entry["actions"] = {
                    "upload": {"href": f"{self.server.url}/lfs/{oid}"},
                    "verify": {"href": f"{self.server.url}/lfs/{oid}/verify"},
                }
            objects.append(entry)
        self._answer({"transfer": "basic", "objects": objects})

    def _verify(self, oid: str) -> None:
        wanted = json.loads(self._body())
        found = self.server.large.get(oid)
        good = found is not None and len(found) == wanted["size"] and wanted["oid"] == oid
        self._answer({} if good else {"error": "the object is not what was announced"}, 200 if good else 400)

    def _add_commit(self, name: str, repo: Repo, branch: str) -> None:
        files = dict(repo.commits[repo.branches[branch]])
        for line in self._body().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                assert value["encoding"] == "base64"
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                if value["oid"] not in self.server.large:
                    return self._answer({"error": f"LFS object {value['oid']} was not uploaded"}, 400)
                files[value["path"]] = self.server.large[value["oid"]]
            elif entry["key"] == "deletedFile" and files.pop(value["path"], None) is None:
                return self._missing("EntryNotFound")
        commit = repo.commit(files, branch)
        self._answer({"success": True, "commitOid": commit, "commitUrl": f"{self.server.url}/{name}/commit/{commit}"})

    def _large(self, oid: str) -> None:
        if self.command == "PUT":
            content = self._body()
            if hashlib.sha256(content).hexdigest() != oid:
                return self._answer({"error": "the bytes have another sha256"}, 400)
            self.server.large[oid] = content
            self.server.uploaded.set()
            return self._answer({})
        self._give(self.server.large[oid], {})

    # -- downloading ----------------------------------------------------------------------------------------------

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repo = self._visible(name)
        commit = None if repo is None else self._commit(repo, revision)
        if repo is None or commit is None:
            return None
        content = repo.commits[commit].get(path)
        if content is None:
            return self._missing("EntryNotFound")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        if not is_large(path, len(content)):
            return self._give(content, headers)
        oid = hashlib.sha256(content).hexdigest()
        headers |= {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(content))}
        # Another host, as the real one: what is signed for storage must not be given the user's token.
        headers |= {"Location": f"{self.server.url.replace('127.0.0.1', 'localhost')}/lfs/{oid}", "Content-Length": "0"}
        self._answer(b"", 302, headers)

    def _give(self, content: bytes, headers: dict[str, str]) -> None:
        start, end = self._range(len(content))
        headers = {**headers, "Accept-Ranges": "bytes"}
        if self.command == "HEAD":
            headers["Content-Length"] = str(len(content))
        if "Range" in self.headers:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
            return self._answer(content[start:end], 206, headers)
        self._answer(content, 200, headers)

    def _range(self, size: int) -> tuple[int, int]:
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        return int(first or 0), min(size, int(last) + 1 if last else size)
