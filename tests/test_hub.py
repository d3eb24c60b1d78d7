"""Publishing and fetching through the real client, against a Hub on this machine that speaks its protocol."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simzoo.core.hub import file_sha256, write_manifest
from simzoo.models.formats import load
from simzoo.models.parts.tiny import tiny_backbone
from tests.hub_client import DOCUMENTS, QUERY, ROOT, Client, contents
from tests.loopback_hub import Fault, Hub, Repo
from tests.test_hypencoder_released import released

pytest_plugins = ["tests.hub_client"]


def test_what_is_pushed_is_what_is_pulled(hub: Hub, client: Client, checkpoint: Path, tmp_path: Path) -> None:
    """A file that is left out or changed on the way is noticed by whoever loads the model, long after."""
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "neighbours.npy").write_bytes(bytes(range(256)) * 20)
    client.hub("push", checkpoint, "me/tiny", "--include-index", tmp_path / "graph")
    assert hub.repos["me/tiny"].private, "a new repository is private unless it is asked for otherwise"
    assert len([r for r in hub.requests if "/commit/" in r]) == 1
    client.hub("pull", "me/tiny", "--to", tmp_path / "copy", home=tmp_path / "elsewhere")
    sent, got = contents(checkpoint), contents(tmp_path / "copy")
    assert got.pop("index/graph/neighbours.npy") == bytes(range(256)) * 20
    changed = {"README.md", "manifest.json"}
    assert {name: got[name] for name in got if name not in changed} == {n: sent[n] for n in sent if n not in changed}
    assert 'simzoo.load("me/tiny")' in got["README.md"].decode()
    hashes = json.loads(got["manifest.json"])["files"]
    assert hashes.keys() == got.keys() - {"manifest.json"} | {"index/graph/neighbours.npy"}


def test_a_dry_run_shows_and_sends_nothing(hub: Hub, client: Client, checkpoint: Path) -> None:
    """Somebody who only looks must not publish."""
    client.hub("push", checkpoint, "me/dry", "--dry-run", "--public")
    assert [r for r in hub.requests if not r.startswith("GET ")] == [] and "me/dry" not in hub.repos
    assert "public if it is new" in client.printed and "model.safetensors" in client.printed
    assert "## Limits" in client.printed and "model-index:" in client.printed
    hub.faults.append(Fault("/api/", 403))
    client.hub("push", checkpoint, "me/dry", "--dry-run")
    assert "what the commit would delete is not known: looking at me/dry failed: 403" in client.printed


def test_a_push_leaves_no_file_of_an_earlier_one(hub: Hub, client: Client, checkpoint: Path, tmp_path: Path) -> None:
    """A tokenizer or an index that stays behind from other weights is loaded with the new ones, without an error."""
    for name in ("graph", "cur"):
        (tmp_path / f"{name}.npy").write_bytes(name.encode() * 500)
    client.hub("push", checkpoint, "me/again", "--include-index", tmp_path / "graph.npy", tmp_path / "cur.npy")
    repo: Repo = hub.repos["me/again"]
    theirs = {".gitattributes": b"*.npy filter=lfs\n", "LICENSE": b"theirs"}
    repo.commit({**repo.commits[repo.branches["main"]], **theirs})
    client.hub("push", checkpoint, "me/again@v2", "--include-index", tmp_path / "cur.npy", "--dry-run")
    assert "deleted" in client.printed and "  index/graph.npy\n" in client.printed
    assert len(repo.commits) == 3, "a dry run changed something"
    client.hub("push", checkpoint, "me/again@v2", "--include-index", tmp_path / "cur.npy")
    assert len(repo.commits) == 4
    ours = {path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*") if path.is_file()} | {"README.md"}
    assert repo.commits[repo.branches["v2"]].keys() == ours | theirs.keys() | {"index/cur.npy"}
    assert "index/graph.npy" in repo.commits[repo.branches["main"]]
    hub.add("me/other", {"manifest.json": b"{", "old.txt": b"not ours, as far as is known"})
    client.hub("push", checkpoint, "me/other")
    assert "old.txt" in hub.repos["me/other"].commits[hub.repos["me/other"].branches["main"]]


def test_two_files_of_one_name_are_not_published(client: Client, checkpoint: Path, tmp_path: Path) -> None:
    """One of two graphs would be lost on the way; and a name without an owner is another repository's."""
    for folder in ("a", "b"):
        (tmp_path / folder / "graph").mkdir(parents=True)
        (tmp_path / folder / "graph" / "n.npy").write_bytes(folder.encode())
    with pytest.raises(RuntimeError, match=r"two files would become index/graph/n\.npy"):
        client.hub("push", checkpoint, "me/twice", "--include-index", *tmp_path.glob("*/graph"))
    with pytest.raises(RuntimeError, match="has no owner; expected org/name"):
        client.hub("push", checkpoint, "tiny")


def test_an_empty_section_is_not_published(client: Client, checkpoint: Path, tmp_path: Path) -> None:
    """A card without limits is the one that its readers would need."""
    (tmp_path / "c").mkdir()
    for name, content in contents(checkpoint).items():
        (tmp_path / "c" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "c" / name).write_bytes(content)
    described = json.loads((tmp_path / "c" / "metrics.json").read_text())
    described["about"]["limits"] = "<!-- to be written -->"
    (tmp_path / "c" / "metrics.json").write_text(json.dumps(described))
    with pytest.raises(RuntimeError, match=r"metrics.json has .* bytes, expected"):
        client.hub("push", tmp_path / "c", "me/empty")
    write_manifest(tmp_path / "c")
    with pytest.raises(RuntimeError, match="the card says nothing under Limits"):
        client.hub("push", tmp_path / "c", "me/empty")


def test_pushed_pulled_loaded_by_revision_and_offline(
    hub: Hub, client: Client, checkpoint: Path, tmp_path: Path
) -> None:
    """The circle that everybody walks; the second time without a connection."""
    client.hub("push", checkpoint, "me/circle@v1")
    code = f"""
import simzoo
value = simzoo.load("me/circle@v1").rank({QUERY!r}, {DOCUMENTS!r})
"""
    found = client.run(code)
    own = load(checkpoint).rank(QUERY, DOCUMENTS)
    assert [row for row, _ in found] == [row for row, _ in own]
    assert [score for _, score in found] == pytest.approx([score for _, score in own], rel=1e-5)
    start = client.run(f"""
import torch
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.parts.tokenizing import TokenConfig
started = CrossEncoder(BackboneConfig({str(tiny_backbone())!r}, start="me/circle@v1"), TokenConfig(24, 24))
value = started.encoder.model.embeddings.word_embeddings.weight[5].tolist()
""")
    known = load(checkpoint).encoder.model.embeddings.word_embeddings.weight[5]
    assert start == known.tolist(), "training does not start from the weights of the name"
    with pytest.raises(RuntimeError, match="there is no such revision"):
        client.run(code.replace("v1", "v2"))
    client.hub("verify", "me/circle@v1")
    client.hub("list")
    assert "me/circle@" in client.printed
    client.hub("list", "me")
    assert "me/circle" in client.printed
    (tmp_path / "d" / "qrels").mkdir(parents=True)
    (tmp_path / "d" / "corpus.jsonl").write_text(
        "".join(json.dumps({"_id": f"i{i}", "text": text}) + "\n" for i, text in enumerate(DOCUMENTS))
    )
    (tmp_path / "d" / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": QUERY}) + "\n")
    (tmp_path / "d" / "qrels" / "test.tsv").write_text("q\ti1\t1\n")
    env = {**client.env, "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    words = ["evaluate.py", "run", "--checkpoint", "me/circle@v1", "--data", "BEIR", "--data.root", str(tmp_path / "d")]
    words += ["--output", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    first = (tmp_path / "out" / "run.trec").read_text().split()
    assert first[2] == f"i{own[0][0]}" and float(first[4]) == pytest.approx(own[0][1], rel=1e-5)


def test_an_upload_that_is_cut_leaves_nothing_and_can_be_repeated(
    hub: Hub, client: Client, checkpoint: Path, tmp_path: Path
) -> None:
    """Half a model on the Hub is downloaded by somebody before it is whole."""
    hub.large.clear()
    hub.faults.append(Fault("/lfs/", method="PUT", after=200, times=1))
    words = [sys.executable, "-m", "simzoo", "hub", "push", str(checkpoint), "me/cut"]
    process = subprocess.Popen(words, cwd=ROOT, env=client.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert hub.uploaded.wait(300), "the upload never began"
    process.send_signal(signal.SIGKILL)
    process.wait()
    repo: Repo = hub.repos["me/cut"]
    assert all(files == {} for files in repo.commits.values()), "a part of the model is visible"
    with pytest.raises(RuntimeError, match=r"config\.json"):
        client.run('import simzoo; simzoo.load("me/cut")')
    hub.faults.clear()
    client.hub("push", checkpoint, "me/cut")
    assert repo.commits[repo.branches["main"]]["model.safetensors"] == (checkpoint / "model.safetensors").read_bytes()


def test_a_broken_download_goes_on(hub: Hub, client: Client, checkpoint: Path, tmp_path: Path) -> None:
    """Who has a bad connection would else begin a large model again and again."""
    hub.add("me/long", contents(checkpoint))
    oid = file_sha256(checkpoint / "model.safetensors")
    hub.faults.append(Fault(f"/lfs/{oid}", method="GET", after=500, times=1))
    pieces = "import huggingface_hub.constants as c; value, c.DOWNLOAD_CHUNK_SIZE = c.DOWNLOAD_CHUNK_SIZE, {}"
    usual = client.run(pieces.format(100))  # the client keeps whole pieces of what it was given
    client.hub("pull", "me/long", home=tmp_path)
    client.run(pieces.format(usual))
    asked = [request.removeprefix(f"GET /lfs/{oid}") for request in hub.requests if f"GET /lfs/{oid}" in request]
    assert asked == ["", " bytes=500-"]
    hub.requests.clear()
    client.hub("pull", "me/long", home=tmp_path)
    assert hub.requests == ["GET /api/models/me/long/revision/main"], "what is there is fetched again"
    hub.faults.append(Fault("/", 500))
    client.hub("pull", "me/long", home=tmp_path)


@pytest.mark.parametrize("where", ["storage", "manifest"])
def test_a_wrong_hash_is_refused_and_forgotten(
    where: str, hub: Hub, client: Client, checkpoint: Path, tmp_path: Path
) -> None:
    """Weights with a flipped bit load like any others; and a cache that keeps them is damaged for good."""
    files = contents(checkpoint)
    oid = file_sha256(checkpoint / "model.safetensors")
    harmed = files["model.safetensors"][:-1] + b"\x7f"
    name = f"me/flipped-{where}"
    if where == "storage":
        hub.add(name, files)
        hub.large[oid] = harmed
        message = "but the Hub says"
    else:
        hub.add(name, {**files, "model.safetensors": harmed})
        message = "model.safetensors has sha256"
    with pytest.raises(RuntimeError, match=message) as refused:
        client.hub("pull", name, home=tmp_path)
    assert "removed from the cache: fetch it again" in str(refused.value)
    hub.large[oid] = files["model.safetensors"]
    hub.add(name, files)
    client.hub("pull", name, home=tmp_path)


@pytest.mark.parametrize(
    ("status", "headers", "message"),
    [
        (401, {}, "log in with `hf auth login` or set HF_TOKEN"),
        (403, {}, "use a token that may do this"),
        (404, {"X-Error-Code": "RepoNotFound"}, "no such repository on the Hub; check the spelling"),
        (429, {"Retry-After": "17"}, "wait 17 seconds and try again"),
        (500, {}, r"the Hub itself has a fault \(500\); nothing is wrong here: try again"),
        (0, {}, "did not answer in time; check the connection and try again, it goes on where it was"),
    ],
)
@pytest.mark.parametrize("verb", ["push", "pull"])
def test_a_hub_in_trouble_says_what_to_do(
    verb: str,
    status: int,
    headers: dict[str, str],
    message: str,
    hub: Hub,
    client: Client,
    checkpoint: Path,
    tmp_path: Path,
) -> None:
    """A traceback of a network library tells nobody whether to wait, to log in or to mend a name."""
    hub.add("me/there", contents(checkpoint))
    hub.faults.append(Fault("/api/", status, headers))
    words: list[str | Path] = ["push", checkpoint, "me/new"] if verb == "push" else ["pull", "me/there"]
    client.run(f"import huggingface_hub.constants as c; c.HF_HUB_DOWNLOAD_TIMEOUT = {0.5 if status == 0 else 10}")
    with pytest.raises(RuntimeError, match=message) as told:
        client.hub(*words, home=tmp_path)
    assert "HubError: " in str(told.value) and "me/" in str(told.value)


@pytest.mark.parametrize(
    ("verb", "path", "method", "message"),
    [
        ("push", "/lfs/", "PUT", "403, access is forbidden: use a token that may do this"),
        ("push", "/commit/", "POST", "403, access is forbidden: use a token that may do this"),
        ("pull", "/resolve/", "HEAD", "403, access is forbidden"),
        ("pull", "/lfs/", "GET", "403, access is forbidden"),
    ],
)
def test_a_refusal_on_the_way_says_what_to_do_and_leaves_nothing(
    verb: str, path: str, method: str, message: str, hub: Hub, client: Client, checkpoint: Path, tmp_path: Path
) -> None:
    """A token that may read but not write is found out in the middle of an upload."""
    files = contents(checkpoint)
    hub.add("me/there", files)
    hub.faults.append(Fault(path, 403, method=method))
    hub.large = {} if verb == "push" else hub.large
    words: list[str | Path] = ["push", checkpoint, "me/half"] if verb == "push" else ["pull", "me/there"]
    with pytest.raises(RuntimeError, match=message):
        client.hub(*words, home=tmp_path)
    if verb == "push":
        assert all(found == {} for found in hub.repos["me/half"].commits.values())
        hub.faults.clear()
        with pytest.raises(RuntimeError, match="me/half: holds no checkpoint; a push that broke off"):
            client.hub("pull", "me/half", home=tmp_path)


def test_without_xet_large_files_can_be_published_all_the_same(hub: Hub, client: Client, checkpoint: Path) -> None:
    """The client takes Xet wherever its package is installed, and does not say how to do without."""
    pytest.importorskip("hf_xet")
    push = "from simzoo.retrieval.hub.commands import push; from pathlib import Path; "
    push += f"push(Path({str(checkpoint)!r}), 'me/large')"
    setting = "import huggingface_hub.constants as c; c.HF_HUB_DISABLE_XET = {}\n"
    try:
        with pytest.raises(RuntimeError, match="HF_HUB_DISABLE_XET=1 does without it"):
            client.run(setting.format(False) + push)
        assert all(files == {} for files in hub.repos["me/large"].commits.values())
    finally:
        client.run(setting.format(True) + push)
    assert "model.safetensors" in hub.repos["me/large"].commits[hub.repos["me/large"].branches["main"]]


@pytest.mark.parametrize("name", ["no such place", "../up/x", "a/b/c", "x/y@"])
def test_what_is_no_name_is_said(name: str, client: Client) -> None:
    """A misspelt folder must not be looked for on the Hub."""
    with pytest.raises(RuntimeError, match="it is neither a folder nor a file here, and no name on the Hub"):
        client.hub("pull", name)


def test_a_listing_that_leads_outside_is_refused(hub: Hub, client: Client, checkpoint: Path, tmp_path: Path) -> None:
    """A repository must not write to its reader's home."""
    hub.add("me/outside", {**contents(checkpoint), "../../../../../escaped.json": b"{}"})
    with pytest.raises(RuntimeError, match="lists a file outside its own folder and is refused"):
        client.hub("pull", "me/outside", home=tmp_path / "a" / "b")
    assert not list(tmp_path.rglob("escaped.json"))


def test_a_beir_set_comes_from_the_hub(hub: Hub, client: Client, tmp_path: Path) -> None:
    """--data.name is the one line in which a stranger evaluates on a public collection."""
    corpus = [{"_id": f"i{i}", "title": "", "text": text} for i, text in enumerate(DOCUMENTS)]
    lines = lambda rows: "".join(json.dumps(row) + "\n" for row in rows).encode()  # noqa: E731
    head = "---\nconfigs:\n" + "".join(
        f"- config_name: {name}\n  data_files:\n  - split: {name}\n    path: {name}.jsonl\n"
        for name in ("corpus", "queries")
    )
    hub.add(
        "datasets/BeIR/fiqa",
        {
            "README.md": f"{head}---\n".encode(),
            "corpus.jsonl": lines(corpus),
            "queries.jsonl": lines([{"_id": "q", "title": "", "text": QUERY}]),
        },
    )
    qrels = b"query-id\tcorpus-id\tscore\nq\ti1\t1\n"
    hub.add("datasets/BeIR/fiqa-qrels", {"test.tsv": qrels, "README.md": b"---\nlicense: mit\n---\n"})
    code = """
from simzoo.datamodules.sources import BEIR
(found,) = BEIR(name="fiqa").collections("test")
value = [found.name, len(found.items), found.judgements]
"""
    made = tmp_path / "hypencoder"
    released(made)
    hub.add("jfkback/hypencoder.2_layer", contents(made))
    line = ["run", "--checkpoint", "jfkback/hypencoder.2_layer", "--data", "BEIR", "--data.name", "fiqa"]
    client.run(f"from simzoo import evaluate; evaluate.main({[*line, '--output', str(tmp_path / 'out')]!r})")
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["data"]["name"] == "fiqa"
    name, items, judgements = client.run(code)
    assert (name, items, judgements) == ("fiqa", 3, [{"1": 1}])
    with pytest.raises(RuntimeError, match=r"BeIR/nosuch-qrels: cannot load split 'test' from the Hub: .*"):
        client.run(code.replace("fiqa", "nosuch"))
