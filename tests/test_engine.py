"""The engine: what users hold. Growth, kinds of similarities, folders, kills, and messages."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from simzoo.core.locks import InUse, locked
from simzoo.core.records import DataError, History, Item, Query
from simzoo.models.cmc import CMC
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.first_stages import lexical
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.lexical import BM25, text_of
from simzoo.retrieval.first_stages.vector_index import HNSW, IVF, IVFPQ, Flat
from simzoo.retrieval.remote import Remote
from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.searchers.cur import CUR
from simzoo.retrieval.searchers.exact import Exact, Rerank, Retrieve
from simzoo.retrieval.searchers.graph_search import GraphSearch, RandomItems
from tests.forks import killed_at
from tests.test_remote import Server, server  # noqa: F401
from tests.toy import toy_collection

ITEMS = list(toy_collection(num_items=60).items)
QUERIES = [query.text for query in toy_collection().queries[:6]]
ANCHORS = [query.text for query in toy_collection("other").queries]


def words(text: str) -> set[str]:
    return set(text.split())


def overlap(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Shared words, and a little for the letters, so that few pairs tie."""
    return [len(words(q) & words(t)) + sum(map(ord, t)) % 97 / 1000 for q, t in pairs]


def embed(texts: Sequence[str]) -> NDArray[np.float32]:
    """A text's words as a vector."""
    rows = [np.sum([np.random.default_rng(list(w.encode())).normal(size=8) for w in t.split()], axis=0) for t in texts]
    return np.array(rows, dtype=np.float32)


def best(query: str, items: Sequence[Item], k: int) -> list[str]:
    """By scoring everything."""
    scores = overlap([(query, f"{item.title} {item.text}".strip()) for item in items])
    order = sorted(range(len(items)), key=lambda row: (-np.float32(scores[row]), row))
    return [items[row].id for row in order[:k]]


def ids(hits: Any) -> list[str]:
    return [hit.id for hit in hits]


def test_the_lines_of_the_readme(tmp_path: Path) -> None:
    """Add, save, load in another process's stead, search, update, remove."""
    engine = Engine(overlap, embed, Exact())
    engine.add([item.id for item in ITEMS], [item.text for item in ITEMS], titles=[item.title for item in ITEMS])
    engine.save(tmp_path / "index")
    engine = Engine.load(tmp_path / "index", overlap, embed)
    for query in QUERIES:
        hits = engine.search(query, k=5)
        assert ids(hits) == best(query, ITEMS, 5) and hits.calls == 60
        assert hits[0].text == hits[0].item.text and hits[0].item in ITEMS
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len(engine) == 60 and "i3" in engine and engine["i3"] == ITEMS[3] and "none" not in engine
    first = best(QUERIES[0], ITEMS, 2)
    engine.remove([first[0]])
    assert ids(engine.search(QUERIES[0], 1)) == [first[1]]
    engine.update([first[1]], ["zzz"])
    assert first[1] not in ids(engine.search(QUERIES[0], 5)) and engine[first[1]].text == "zzz"
    with pytest.raises(KeyError, match="no item"):
        engine[first[0]]
    engine.compact()
    again = Engine.load(tmp_path / "index", overlap, embed)
    assert ids(again.search(QUERIES[0], 9)) == ids(engine.search(QUERIES[0], 9)) and len(again) == 59


def test_results_say_how_they_were_found() -> None:
    """A number of calls without the searcher and the size of the index can be compared with nothing."""
    engine = Engine(overlap, embed, AXN(budget=20, rounds=2))
    engine.add(ITEMS)
    one, *others = engine.search(QUERIES, 5)
    assert len(others) == 5 and one.calls == 20 and one.milliseconds > 0
    assert one.found["search"]["class"] == "AXN" and one.found["search"]["arguments"]["budget"] == 20
    assert one.found["exact_vector_index"] is True and one.found["items"] == 60
    assert {"scoring", "query vectors"} <= one.steps.keys() and sum(one.steps.values()) <= one.milliseconds
    alone = engine.search(QUERIES[0], 5)
    assert ids(alone) == ids(one) and [h.score for h in alone] == [h.score for h in one]


SEARCHERS = {
    "AXN": lambda: AXN(budget=20, rounds=3),
    "AXN, BM25": lambda: AXN(first_stage=BM25(), budget=20, rounds=3, normalize=True),
    "CUR": lambda: CUR(20, anchor_queries=8, anchor_items=10),
    "Rerank": lambda: Rerank(Dense(), 15),
    "BM25": lambda: Rerank(BM25(), 15),
    "Retrieve": lambda: Retrieve(Dense()),
    "GraphSearch": lambda: GraphSearch(entry_points=RandomItems(10), breadth=4),
    "Exact": Exact,
}


@pytest.mark.parametrize("name", SEARCHERS)
def test_an_index_that_grew_equals_one_built_at_once(name: str, tmp_path: Path) -> None:
    """Flat: by additions, removals and updates, with searches in between, and opened again."""
    grown = Engine(overlap, embed, SEARCHERS[name](), anchors=ANCHORS, folder=tmp_path / "grown")
    grown.add(ITEMS[:30])
    grown.search(QUERIES, 5)
    grown.add(ITEMS[30:50])
    grown.search(QUERIES, 5)
    grown.add([("gone", "boat river"), ("i50", "old")])
    grown.search(QUERIES, 5)
    grown.remove(["gone"])
    grown.update(ITEMS[50:51])
    grown.add(ITEMS[51:])
    whole = Engine(overlap, embed, SEARCHERS[name](), anchors=ANCHORS)
    whole.add(ITEMS)
    opened = Engine.load(tmp_path / "grown", overlap, embed)
    if name not in ("CUR", "AXN, BM25"):  # they keep the anchors that they have drawn, as their docs say
        assert shown(grown) == shown(whole)
    if name not in ("CUR", "GraphSearch"):  # they choose among rows, of which a removed one is one
        assert shown(opened) == shown(whole)
    opened.compact()
    assert shown(opened) == shown(whole)


def shown(engine: Engine) -> list[list[tuple[str, float]]]:
    return [[(hit.id, hit.score) for hit in hits] for hits in engine.search(QUERIES, 5)]


@pytest.mark.parametrize(
    "kind", [Flat(), HNSW(8, 40, 64), IVF(8, 8), IVFPQ(8, 8, 2, 8)], ids=lambda k: type(k).__name__
)
def test_every_vector_index_grows_and_forgets(kind: Any, tmp_path: Path) -> None:
    """With all lists probed the results are those of a scan, also after opening, removing and compacting."""
    many = [
        Item(f"{n}", " ".join(np.random.default_rng(n).choice(ANCHORS[0].split() + QUERIES, 3))) for n in range(300)
    ]
    engine = Engine(None, embed, Retrieve(Dense()), index=kind, folder=tmp_path / "a")
    flat = Engine(None, embed, Retrieve(Dense()), index=Flat())
    for one in (engine, flat):
        one.add(many[:280])
        one.add(many[280:])
        one.remove([str(n) for n in range(0, 300, 9)])
        one.update([("1", QUERIES[0])])
    for _ in range(2):
        opened = Engine.load(tmp_path / "a", embedder=embed)
        found, expected = (ids(one.search(QUERIES[1], 20)) for one in (opened, flat))
        assert len(set(found) & set(expected)) >= 18 if isinstance(kind, HNSW) else found == expected
        opened.compact()


@pytest.mark.parametrize("kind", [CrossEncoder, DualEncoder, CMC])
def test_models_of_the_zoo_rank_as_they_do_alone(kind: Any, tmp_path: Path) -> None:
    """Representations on disk, in rows that were added, removed and copied, must score as fresh ones."""
    model = kind.tiny().eval()
    engine = Engine(model, DualEncoder.tiny().eval(), Rerank(BM25(), 40), folder=tmp_path / "index")
    engine.add(ITEMS[:25])
    engine.add(ITEMS[25:40])
    engine.remove([item.id for item in ITEMS[:10]])
    model = engine._similarity.model  # type: ignore[union-attr]
    expected = sorted(model.rank(QUERIES[0], ITEMS[10:40]), key=lambda pair: (-pair[1], pair[0]))
    for one in (engine, Engine.load(tmp_path / "index")):
        hits = one.search(QUERIES[0], 30)
        np.testing.assert_allclose([hit.score for hit in hits], [score for _, score in expected], atol=1e-4)
        assert {hit.id for hit in hits[:5]} == {ITEMS[10 + row].id for row, _ in expected[:5]}


def test_a_dual_encoder_alone_keeps_one_set_of_vectors(tmp_path: Path) -> None:
    """Twice the disk for the same numbers."""
    engine = Engine(DualEncoder.tiny().eval(), folder=tmp_path)
    engine.add(ITEMS)
    engine.search(QUERIES[0])
    assert set(engine._items.opened.columns.generation.columns) == {"texts", "vectors"}
    assert shown(Engine.load(tmp_path)) == shown(engine)


def test_other_weights_are_refused(tmp_path: Path) -> None:
    """Vectors of another model look like vectors."""
    torch.manual_seed(1)
    engine = Engine(DualEncoder.tiny().eval(), folder=tmp_path / "index")
    engine.add(ITEMS)
    with pytest.raises(DataError, match=r"made with the similarity DualEncoder.*but is given CrossEncoder"):
        Engine(CrossEncoder.tiny().eval(), DualEncoder.tiny().eval(), folder=tmp_path / "index")
    with pytest.raises(DataError, match=r"made with the embedder .*but is given embed"):
        Engine.load(tmp_path / "index", embedder=embed)


def test_a_scorer_behind_http(server: Server, tmp_path: Path) -> None:  # noqa: F811
    """It fails twice and is asked again; its address in a file is not called by itself."""
    server.failures = [503, "hang up"]
    remote = Remote(server.url, batch=16, wait=0.01)
    engine = Engine(remote, search=Exact(), folder=tmp_path / "index")
    engine.add(ITEMS)
    lengths = sorted((len(f"{item.title} {item.text}") for item in ITEMS), reverse=True)
    assert [hit.score for hit in engine.search("anything", 7)] == lengths[:7]
    assert {asked["pairs"] for asked in server.asked} == {16, 12}
    asked = len(server.asked)
    with pytest.raises(DataError, match=r"made with the function 'http://127\.0\.0\.1:\d+/score' as its similarity"):
        Engine.load(tmp_path / "index")
    assert len(server.asked) == asked
    assert len(Engine.load(tmp_path / "index", remote).search("anything", 7)) == 7


def test_records_of_every_form() -> None:
    """Ids of one's own, whole numbers, iterators; the same items each time."""

    def stream() -> Iterator[tuple[str, str]]:
        yield from ((item.id, item.text) for item in ITEMS)

    forms: list[Any] = [
        stream(),
        [{"id": item.id, "text": item.text} for item in ITEMS],
        [(item.id, item.text, "") for item in ITEMS],
        [Item(item.id, item.text) for item in ITEMS],
    ]
    for form in forms:
        engine = Engine(overlap, search=Exact())
        engine.add(form)
        assert ids(engine.search(QUERIES[0], 60)) == best(QUERIES[0], [Item(i.id, i.text) for i in ITEMS], 60)
    engine.add(np.arange(3), ["boat a", "boat b", "boat c"])
    assert "2" in engine
    engine.remove([2])  # type: ignore[list-item]
    assert "2" not in engine


def test_vectors_at_hand_are_taken() -> None:
    """Five million vectors are not made again."""
    asked: list[int] = []

    def counting(texts: Sequence[str]) -> NDArray[np.float32]:
        asked.append(len(texts))
        return embed(texts)

    engine = Engine(None, counting, Retrieve(Dense()))
    engine.add(ITEMS, vectors=embed([f"{item.title} {item.text}" for item in ITEMS]))
    assert not asked
    plain = Engine(None, embed, Retrieve(Dense()))
    plain.add(ITEMS)
    assert shown(engine) == shown(plain)


@pytest.mark.parametrize(
    ("add", "said"),
    [
        (lambda e: e.add(["a", "b"], ["x"]), "got 2, 1, 1"),
        (lambda e: e.add("text"), "got one text"),
        (lambda e: e.add(["a"], "x"), "got one text"),
        (lambda e: e.add([("a", "x"), "b"]), "record 1 is 'b'; expected an Item"),
        (lambda e: e.add([("a", None)]), "record 0: the text is None; expected text"),
        (lambda e: e.add([("", "x")]), "record 0: the id is ''"),
        (lambda e: e.add([(True, "x")]), "record 0: the id is True"),
        (lambda e: e.add([("a", "x"), ("a", "y")]), "'a' is given twice"),
        (lambda e: e.add([("i1", "x")]), "'i1' is there already; update it"),
        (lambda e: e.update([("new", "x")]), "no item 'new' to update"),
        (lambda e: e.remove(["new"]), "no item 'new'"),
        (lambda e: e.remove("i1"), r"write \['i1'\]"),
        (lambda e: e.add([("a", "\ud800")]), "half of a character"),
        (lambda e: e.add([("a", "x")], vectors=np.zeros((1, 9))), "columns .*vectors.* differ"),
        (lambda e: e.add([("a", "x")], vectors=np.zeros((2, 8))), "2 vectors were given for 1 records"),
        (lambda e: e.add([("a", "x")], vectors=np.full((1, 8), np.nan)), "not finite"),
        (lambda e: e.search("", 3), "is empty"),
        (lambda e: e.search(3, 3), "not iterable|expected a text"),
        (lambda e: e.search(["a", 3], 3), "query 1 is 3; expected a text"),
        (lambda e: e.search("a", 0), "at least 1; got 0"),
        (lambda e: e.search("a", 21), "k = 21 results need a budget"),
    ],
)
def test_bad_input_is_refused_and_leaves_the_index_as_it_was(add: Any, said: str) -> None:
    """What went wrong, where, and what was expected; and not a single item of the addition."""
    engine = Engine(overlap, embed, AXN(budget=20, rounds=2))
    engine.add(ITEMS)
    before = shown(engine)
    with pytest.raises((ValueError, TypeError), match=said):
        add(engine)
    assert shown(engine) == before and len(engine) == 60


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """At once, and not after an hour of encoding."""
    with pytest.raises(ValueError, match="AXN needs a similarity"):
        Engine(embedder=embed, search=AXN())
    with pytest.raises(TypeError, match="a similarity is the name or folder"):
        Engine(7)
    with pytest.raises(TypeError, match="CrossEncoder is no inner product"):
        Engine(overlap, CrossEncoder.tiny().eval())
    with pytest.raises(ValueError, match="training mode"):
        Engine(CrossEncoder.tiny().train())
    with pytest.raises(ValueError, match="holds no items: add some first"):
        Engine(overlap, search=Exact()).search("boat")
    with pytest.raises(ValueError, match="shape"):
        Engine(overlap, lambda texts: np.zeros(len(texts))).add(ITEMS)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    engine = Engine(overlap, search=Exact())
    engine.add(ITEMS)
    with pytest.raises(DataError, match="is there already"):
        engine.save(tmp_path / "there")
    with pytest.raises(DataError, match="holds no index"):
        Engine.load(tmp_path / "there")


def test_a_settings_file_names_nothing_of_somebody_else(tmp_path: Path) -> None:
    """A class path in a downloaded file would be imported and called."""
    engine = Engine(overlap, search=Exact())
    engine.add(ITEMS)
    engine.save(tmp_path / "index")
    path = tmp_path / "index" / "settings.json"
    settings = json.loads(path.read_text())
    for evil in ("os.system", "Engine", "Remote", "subprocess.Popen", None, {"class": "Exact"}):
        path.write_text(json.dumps(settings | {"search": {"class": evil, "arguments": {"args": "x"}}}))
        with pytest.raises(DataError, match=r"settings\.json: names the class .*; expected one of AXN"):
            Engine.load(tmp_path / "index", overlap)
    path.write_text(json.dumps(settings | {"search": {"class": "AXN", "arguments": {"budget": -1}}}))
    with pytest.raises(DataError, match=r"AXN cannot be made of its settings: .*budget -1 is too small"):
        Engine.load(tmp_path / "index", overlap)
    path.write_text("{")
    with pytest.raises(DataError, match=r"settings\.json: is damaged"):
        Engine.load(tmp_path / "index", overlap)


def test_anchors_of_every_kind_come_back(tmp_path: Path) -> None:
    """A history without its items is a text."""
    anchors = [Query("a", "boat river", (0, 4), "boat"), History.of("u", ["i1", "i2"], [1, 2]), "plain"]
    engine = Engine(overlap, search=Exact(), anchors=anchors, folder=tmp_path)  # type: ignore[arg-type]
    engine.add(ITEMS)
    assert Engine.load(tmp_path, overlap).anchors == engine.anchors
    assert engine.anchors[:2] == anchors[:2]


def test_the_parts_of_an_engine_serve_another_collection() -> None:
    """Items of one collection in the index of the next, or one searcher that two indexes overwrite in turn."""
    empty = Engine(lambda pairs: [float(len(item)) for _, item in pairs], anchors=["boat"])
    first, second = empty.without_items(), empty.without_items()
    first.add(["a"], ["a boat"])
    second.add(["b"], ["a long river"])
    assert [hit.id for hit in first.search("boat")] == ["a"] and [hit.id for hit in second.search("river")] == ["b"]
    assert not len(empty) and [query.text for query in second.anchors] == ["boat"]
    with pytest.raises(ValueError, match="only an engine without items"):
        first.without_items()


def test_anchors_can_be_set_later(tmp_path: Path) -> None:
    """Anchors that nobody stores are gone at the next opening, and CUR with them; the item embeddings must be anew."""
    engine = Engine(overlap, embed, SEARCHERS["CUR"](), folder=tmp_path / "a")
    engine.add(ITEMS)
    with pytest.raises(ValueError, match="anchor_queries = 8, but "):
        engine.search(QUERIES[0], 5)
    engine.set_anchors(ANCHORS)
    whole = Engine(overlap, embed, SEARCHERS["CUR"](), anchors=ANCHORS)
    whole.add(ITEMS)
    assert shown(engine) == shown(whole)
    assert shown(Engine.load(tmp_path / "a", overlap, embed)) == shown(whole)
    again = Engine(overlap, embed, SEARCHERS["CUR"](), folder=tmp_path / "a")
    assert again.anchors == whole.anchors and shown(again) == shown(whole)
    other = [f"{ANCHORS[0]} {number}" for number in range(8)]
    engine.set_anchors(other)
    whole = Engine(overlap, embed, SEARCHERS["CUR"](), anchors=other)
    whole.add(ITEMS)
    assert shown(engine) == shown(whole) == shown(Engine.load(tmp_path / "a", overlap, embed))
    with locked(tmp_path / "a"), pytest.raises(InUse, match="being written by process"):
        engine.set_anchors(ANCHORS)
    assert engine.anchors == whole.anchors
    with pytest.raises(TypeError, match="anchor 0 is 3"):
        engine.set_anchors([3])  # type: ignore[list-item]


def test_bm25_is_kept_beside_the_items(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading and indexing a million texts at every opening; and weights of items that were added since."""
    engine = Engine(None, search=Retrieve(BM25()), folder=tmp_path)
    engine.add(ITEMS[:40])
    first = shown(engine)
    read: list[int] = []
    monkeypatch.setattr(lexical, "text_of", lambda item: read.append(1) or text_of(item))
    assert shown(Engine.load(tmp_path)) == first and not read
    engine.remove(["i3"])
    left = shown(Engine.load(tmp_path))
    assert not read and not any("i3" in [name for name, _ in hits] for hits in left)
    for path in tmp_path.rglob("made-*/*.npy"):
        path.write_bytes(b"x" * path.stat().st_size)
    assert shown(Engine.load(tmp_path)) == left and len(read) == 40
    engine.refresh()
    engine.add(ITEMS[40:])
    read.clear()
    assert shown(engine) == shown(Engine.load(tmp_path)) and len(read) == 60
    engine.compact()
    whole = Engine(None, search=Retrieve(BM25()))
    whole.add([item for item in ITEMS if item.id != "i3"])
    assert shown(engine) == shown(whole)
    assert len(list(tmp_path.rglob("made-*"))) == 1


def test_a_reader_without_the_right_to_write_uses_bm25(tmp_path: Path) -> None:
    """A search must not fail because its index cannot be kept."""
    engine = Engine(None, search=Retrieve(BM25()), folder=tmp_path)
    engine.add(ITEMS)
    with locked(tmp_path):
        found = shown(engine)
    assert found == shown(Engine.load(tmp_path))


def test_two_engines_on_one_folder(tmp_path: Path) -> None:
    """The second writer is refused by name; a reader keeps its items until it looks again."""
    writer = Engine(overlap, embed, Exact(), folder=tmp_path)
    writer.add(ITEMS[:30])
    reader = Engine.load(tmp_path, overlap, embed)
    before = shown(reader)
    writer.add(ITEMS[30:])
    writer.remove(["i1"])
    writer.compact()
    assert shown(reader) == before and len(reader) == 30
    reader.refresh()
    assert shown(reader) == shown(writer) and len(reader) == 59
    with locked(tmp_path), pytest.raises(InUse, match="being written by process"):
        reader.add([("new", "x")])
    reader.add([("new", "x")])
    with pytest.raises(DataError, match="'new' is there already"):
        writer.add([("new", "y")])


def changes(path: Path) -> None:
    engine = Engine(overlap, embed, Rerank(BM25(), 10), folder=path / "work")
    engine.add(ITEMS[:30])
    engine.update([("i3", "new text")])
    engine.save(path / "index")
    engine.search(QUERIES[0], 3)
    engine.remove(["i4"])


def test_a_kill_at_any_step_leaves_an_index_or_none(tmp_path: Path) -> None:
    """Also while it is saved: half a copy under the final name would be opened."""
    step, states = 0, set()
    while True:
        path = tmp_path / "x"
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        killed = killed_at(step, lambda: changes(tmp_path / "x"))
        if (path / "index").exists():
            engine = Engine.load(path / "index", overlap, embed)
            assert len(engine) in (29, 30) and engine["i3"].text == "new text"
            states.add(len(engine))
            shown(engine)
        if (path / "work" / "settings.json").exists():
            engine = Engine.load(path / "work", overlap, embed)
            assert len(engine) in (0, 30)
            if not len(engine):
                engine.add(ITEMS[:30])
            assert len(shown(engine)) == 6
        if not killed:
            break
        step += 3
    assert states == {29, 30}


@pytest.mark.parametrize("name", ["CUR", "AXN, BM25"])
def test_calls_that_were_paid_for_are_not_made_again(name: str, tmp_path: Path) -> None:
    """Scoring all items with the anchors at every opening: hours, for a cross-encoder and a million items."""
    paid: list[int] = []

    def counting(pairs: Sequence[tuple[str, str]]) -> list[float]:
        paid.append(len(pairs))
        return overlap(pairs)

    engine = Engine(counting, embed, SEARCHERS[name](), anchors=ANCHORS, folder=tmp_path)
    engine.add(ITEMS[:40])
    first = shown(engine)
    offline = sum(paid) - 20 * len(QUERIES)
    assert offline >= 8 * 40
    paid.clear()
    again = Engine.load(tmp_path, counting, embed)
    assert shown(again) == first and sum(paid) == 20 * len(QUERIES)
    again.add(ITEMS[40:])
    again.remove(["gone"] if "gone" in again else ["i59"])
    paid.clear()
    grown = shown(Engine.load(tmp_path, counting, embed))
    assert sum(paid) == 20 * len(QUERIES) + (8 * 19 if name == "CUR" else 0)
    assert shown(again) == grown
    paid.clear()
    other = Engine.load(tmp_path, counting, embed, CUR(20, anchor_queries=9, anchor_items=10))
    other.search(QUERIES[0], 5)
    assert sum(paid) >= 9 * 59  # another searcher's arrays are not taken for its own
