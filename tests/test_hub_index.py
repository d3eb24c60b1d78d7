"""A whole index on the Hub: pushed, opened by name, without texts unless they are asked for, and hostile ones."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from simzoo.core.records import DataError
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.hub.index import staged
from simzoo.retrieval.searchers.cur import CUR
from simzoo.retrieval.searchers.exact import Rerank, Retrieve
from tests.hub_client import Client
from tests.loopback_hub import Files, Hub
from tests.test_engine import ITEMS, QUERIES, embed, overlap

pytest_plugins = ["tests.hub_client"]

SECRET = "zebrafish"
SEARCH = """
from simzoo import Engine
engine = Engine.load({name!r})
value = [[(hit.id, hit.score, hit.text) for hit in hits] for hits in engine.search({queries!r}, 5)]
"""


def built(folder: Path) -> Engine:
    """Sixty items by a model at hand, of which one was removed and one was another before."""
    torch.manual_seed(0)
    engine = Engine(DualEncoder.tiny().eval(), search=Retrieve(Dense()), folder=folder)
    engine.add([*ITEMS[:50], ("gone", SECRET), ("i50", SECRET)])
    engine.remove(["gone"])
    engine.update([ITEMS[50]])
    engine.add(ITEMS[51:])
    return engine


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "index"
    built(folder)
    return folder


def shown(engine: Engine) -> list[list[tuple[str, float, str]]]:
    return [[(hit.id, hit.score, hit.text) for hit in hits] for hits in engine.search(QUERIES, 5)]


def pushed(hub: Hub, name: str) -> Files:
    repo = hub.repos[name]
    return repo.commits[repo.branches["main"]]


def test_an_index_is_opened_by_name_and_has_no_texts(index: Path, hub: Hub, client: Client, tmp_path: Path) -> None:
    """Texts that their owner has not published, in a column, a removed row, a vocabulary or a kept state."""
    client.hub("push-index", index, "me/bare", "--dry-run")
    assert "me/bare" not in hub.repos and "no texts" in client.printed
    client.hub("push-index", index, "me/bare")
    assert hub.repos["me/bare"].private
    files = pushed(hub, "me/bare")
    model = ("similarity/", "README.md")
    held = b"".join(content for name, content in files.items() if not name.startswith(model))
    for text in (SECRET, *(item.text for item in ITEMS), *(item.title for item in ITEMS if len(item.title) > 3)):
        assert text.encode() not in held, text
    for item in ITEMS:
        assert hashlib.sha256(f"{item.title}\0{item.text}".encode()).digest() in held
    found = client.run(SEARCH.format(name="me/bare", queries=QUERIES), tmp_path / "elsewhere")
    own = shown(Engine.load(index))
    assert [[name for name, _, _ in hits] for hits in found] == [[name for name, _, _ in hits] for hits in own]
    for mine, theirs in zip(own, found, strict=True):
        assert [score for _, score, _ in theirs] == pytest.approx([score for _, score, _ in mine], rel=1e-5)
        assert {text for _, _, text in theirs} == {""}
    assert 'Engine.load("me/bare")' in files["README.md"].decode()
    assert json.loads(files["manifest.json"])["files"].keys() == files.keys() - {"manifest.json"}


def test_with_texts_it_is_whole_and_grows_apart(index: Path, hub: Hub, client: Client, tmp_path: Path) -> None:
    """What is added to a stranger's index would be written into the Hub's cache, and be there for everybody."""
    client.hub("push-index", index, "me/whole", "--texts")
    files = pushed(hub, "me/whole")
    assert not any(SECRET.encode() in content for content in files.values()), "what was removed is published"
    code = SEARCH.format(name="me/whole@main", queries=QUERIES)
    found = client.run(code, tmp_path / "elsewhere")
    assert [[(name, text) for name, _, text in hits] for hits in found] == [
        [(name, text) for name, _, text in hits] for hits in shown(Engine.load(index))
    ]
    grown = f"""
engine.add(["new"], ["boat boat boat"])
engine.save({str(tmp_path / "grown")!r})
value = [len(engine), len(Engine.load("me/whole")), len(Engine.load({str(tmp_path / "grown")!r}))]
"""
    assert client.run(code + grown, tmp_path / "elsewhere") == [61, 60, 61]
    client.hub("pull", "me/whole", "--to", tmp_path / "pulled")
    assert shown(Engine.load(tmp_path / "pulled")) == shown(Engine.load(index))


def with_function() -> Engine:
    return Engine(overlap, embed)


def with_tokens() -> Engine:
    return Engine(CrossEncoder.tiny().eval(), DualEncoder.tiny().eval(), Rerank(Dense(), 10))


def with_words() -> Engine:
    return Engine(search=Retrieve(BM25()))


def with_anchors() -> Engine:
    return Engine(DualEncoder.tiny().eval(), search=CUR(10, anchor_queries=2, anchor_items=4), anchors=QUERIES)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (with_function, "similarity is a function"),
        (with_tokens, "'ids' of the items in whole numbers"),
        (with_words, "was published without texts"),
        (with_anchors, "6 anchors, which are texts"),
    ],
)
def test_what_cannot_be_without_texts_is_not_published_so(
    kind: Callable[[], Engine], said: str, tmp_path: Path
) -> None:
    """Tokens are texts in other letters; and a search over empty texts finds something, too."""
    engine = kind()
    engine.add(ITEMS[:12])
    engine.save(tmp_path / "index")
    with pytest.raises(DataError, match=said):
        staged(tmp_path / "index", tmp_path / "stage", texts=False)
    staged(tmp_path / "index", tmp_path / "whole", texts=True)
    given = {"similarity": overlap, "embedder": embed} if kind is with_function else {}
    assert shown(Engine.load(tmp_path / "whole", **given)) == shown(Engine.load(tmp_path / "index", **given))


def test_withheld_texts_are_not_taken_for_empty_ones(index: Path, tmp_path: Path) -> None:
    """Another similarity, handed over later, would score empty texts without a word; items added later have theirs."""
    staged(index, tmp_path / "stage", texts=False)
    engine = Engine.load(tmp_path / "stage")
    with pytest.raises(DataError, match="was published without texts"):
        engine.corpus.items[0]
    assert engine["i3"].text == ""
    engine.add(["new"], ["boat"])
    engine.remove(["i1"])
    engine.compact()
    again = Engine.load(tmp_path / "stage")
    assert len(again) == 60 and again["new"].text == "boat" and again["i3"].text == ""
    staged(tmp_path / "stage", tmp_path / "twice", texts=False)
    content = b"".join(path.read_bytes() for path in (tmp_path / "twice").glob("data-*/texts"))
    for text in (b"boat", b"\xff" + b"\xff"):
        assert text not in content
    assert hashlib.sha256(f"{ITEMS[3].title}\0{ITEMS[3].text}".encode()).digest() in content


def test_a_checkpoint_of_this_machine_goes_along(tmp_path: Path, index: Path) -> None:
    """Its path means nothing to others, and tells them the name of a folder."""
    shutil.copytree(index / "similarity", tmp_path / "private-name")
    engine = Engine(str(tmp_path / "private-name"), search=Retrieve(Dense()))
    engine.add(ITEMS[:12])
    engine.save(tmp_path / "index")
    staged(tmp_path / "index", tmp_path / "stage", texts=True)
    assert "private-name" in (tmp_path / "index" / "settings.json").read_text()
    assert "private-name" not in (tmp_path / "stage" / "settings.json").read_text()
    shutil.rmtree(tmp_path / "private-name")
    assert len(Engine.load(tmp_path / "stage").search("boat", 3)) == 3


def changed(files: Files, name: str, change: Callable[[Any], Any], fitting: bool = True) -> Files:
    """A repository with one other JSON file, and a manifest that fits it, as its author can write one."""
    content = json.dumps(change(json.loads(files[name]))).encode()
    files = {**files, name: content}
    if fitting:
        manifest = json.loads(files["manifest.json"])
        manifest["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        files["manifest.json"] = json.dumps(manifest).encode()
    return files


def with_extras(**more: Any) -> Callable[[Any], Any]:
    return lambda generation: {**generation, "extras": {**generation["extras"], **more}}


def test_a_strangers_index_is_refused_like_a_strangers_checkpoint(
    index: Path, hub: Hub, client: Client, tmp_path: Path
) -> None:
    """Paths that lead elsewhere, classes that call out, and files of faiss, which crash who reads them."""
    client.hub("push-index", index, "me/fine")
    files = pushed(hub, "me/fine")
    search = {"class": "Retrieve", "arguments": {"stage": {"class": "os.system", "arguments": {}}}}
    away = {"folder": "made-1/../../x", "files": {}}
    refused = {
        "data": (changed(files, "generation.json", lambda g: {**g, "data": "../../data"}), "is no folder of an index"),
        "shelf": (changed(files, "generation.json", with_extras(shelf={"x": away})), "shelf names a folder"),
        "list": (changed(files, "generation.json", with_extras(shelf=[])), "is damaged"),
        "class": (changed(files, "settings.json", lambda s: {**s, "search": search}), "names the class"),
        "unfit": (
            changed(files, "generation.json", dict, fitting=False) | {"settings.json": b"{}"},
            "settings.json has 2 bytes",
        ),
        "none": ({"README.md": b"nothing"}, "is no index that was published"),
    }
    for name, (content, said) in refused.items():
        hub.add(f"evil/{name}", content)
        with pytest.raises(RuntimeError, match=said):
            client.run(SEARCH.format(name=f"evil/{name}", queries=QUERIES), tmp_path / name)
    part = [0, json.loads(files["generation.json"])["rows"]]
    folder = f"{json.loads(files['generation.json'])['data']}/index-{part[0]:012d}-{part[1]:012d}"
    faiss = changed(files, "generation.json", with_extras(parts=[part]))
    settings = {"class": "IVF", "arguments": {}, "count": part[1], "width": 8, "file": {}}
    hub.add(
        "evil/faiss",
        {**faiss, f"{folder}/settings.json": json.dumps(settings).encode(), f"{folder}/index.faiss": b"x" * 99},
    )
    fine, evil = (
        client.run(SEARCH.format(name=name, queries=QUERIES), tmp_path / "faiss") for name in ("me/fine", "evil/faiss")
    )
    assert fine == evil
