"""Vector indices: on disk, with removed rows, and what is promised about ties and short lists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from simzoo.core.records import DataError
from simzoo.retrieval.first_stages import vector_search
from simzoo.retrieval.first_stages.segmented_index import SegmentedIndex
from simzoo.retrieval.first_stages.vector_index import HNSW, IVF, IVFPQ, Auto, FaissKind, Flat, open_index
from simzoo.retrieval.first_stages.vector_search import VectorIndex

Floats = NDArray[np.float32]
RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(30, 16))
VECTORS = (CENTRES[RNG.integers(30, size=1500)] + 0.3 * RNG.normal(size=(1500, 16))).astype(np.float32)
QUERIES = (CENTRES[RNG.integers(30, size=20)] + 0.3 * RNG.normal(size=(20, 16))).astype(np.float32)
KINDS = [Flat(), HNSW(8, 40, 64), IVF(40, 8), IVFPQ(40, 8, 4, 4)]
named = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)


def exact(queries: Floats, vectors: Floats, k: int, removed: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """By a stable sort of all inner products in double precision."""
    scores = (queries.astype(np.float64) @ vectors.T.astype(np.float64)).astype(np.float32)
    if removed is not None:
        scores[:, removed] = -np.inf
    return np.argsort(-scores, axis=1, kind="stable")[:, :k]


def recall(found: NDArray[np.int64], expected: NDArray[np.int64]) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), expected.tolist())]))  # noqa: B905


@named
def test_what_is_saved_is_opened_with_the_same_results(kind: FaissKind, tmp_path: Path) -> None:
    """Probes, breadths and codes must come back too, or a saved index is another one."""
    built = kind.build(VECTORS)
    built.save(tmp_path)
    opened = open_index(tmp_path, VECTORS)
    for one, other in zip(built.search(QUERIES, 10), opened.search(QUERIES, 10), strict=True):
        np.testing.assert_array_equal(one, other)
    assert recall(opened.search(QUERIES, 10)[0], exact(QUERIES, VECTORS, 10)) > 0.9
    with pytest.raises(DataError, match=r"expected \(1499, 16\)"):
        open_index(tmp_path, VECTORS[1:])


def test_an_index_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    """A mapping of a short file ends the process at the first touch of the missing part."""
    IVF(40).build(VECTORS).save(tmp_path)
    path = tmp_path / "index.faiss"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(DataError, match="is no whole vector index"):
        open_index(tmp_path, VECTORS)
    (tmp_path / "settings.json").write_text('{"class": "os.system", "arguments": {}}')
    with pytest.raises(DataError, match=r"is no whole vector index \('os.system'\)"):
        open_index(tmp_path, VECTORS)


@named
@pytest.mark.parametrize("k", [1, 10, 400])
def test_removed_rows_are_never_found(kind: FaissKind, k: int, tmp_path: Path) -> None:
    """The best items of every query are removed: filtering afterwards would leave nothing."""
    removed = np.zeros(len(VECTORS), dtype=bool)
    removed[np.unique(exact(QUERIES, VECTORS, 40))] = True
    kind.build(VECTORS).save(tmp_path)
    for index in (kind.build(VECTORS), open_index(tmp_path, VECTORS)):
        rows, scores = index.search(QUERIES, k, removed)
        assert rows.min() >= 0 and not removed[rows].any() and np.isfinite(scores).all()
        assert all(len(set(row)) == k for row in rows.tolist())
        if index.exact:
            np.testing.assert_array_equal(rows, exact(QUERIES, VECTORS, k, removed))


@named
def test_lists_end_where_the_items_end(kind: FaissKind) -> None:
    """Row -1 is the last item to numpy: it may stand only behind the last real one, with -inf."""
    removed = np.ones(len(VECTORS), dtype=bool)
    removed[[5, 900, 17]] = False
    rows, scores = kind.build(VECTORS).search(QUERIES, 6, removed)
    assert sorted(rows[0, :3].tolist()) == [5, 17, 900] and (rows[:, 3:] == -1).all()
    assert np.isneginf(scores[:, 3:]).all() and np.isfinite(scores[:, :3]).all()
    removed[:] = True
    assert (kind.build(VECTORS).search(QUERIES, 6, removed)[0] == -1).all()
    assert kind.build(VECTORS).search(QUERIES[:0], 6)[0].shape == (0, 6)


@named
def test_added_vectors_are_found(kind: FaissKind, tmp_path: Path) -> None:
    """Also after opening, when the file is mapped and cannot grow; a flat index equals one built at once."""
    kind.build(VECTORS[:1200]).save(tmp_path)
    grown = open_index(tmp_path, VECTORS[:1200])
    grown.add(VECTORS[1200:])
    rows, scores = grown.search(QUERIES, 10)
    whole = kind.build(VECTORS).search(QUERIES, 10)[0]
    if grown.exact:
        np.testing.assert_array_equal(rows, whole)
    expected = exact(QUERIES, VECTORS, 10)
    assert recall(rows, expected) > recall(whole, expected) - 0.05
    np.testing.assert_allclose(scores, np.einsum("bd,bkd->bk", QUERIES, VECTORS[rows]), rtol=1e-5)


@named
@pytest.mark.parametrize("cut", [1500, 900])
def test_a_pool_is_about_the_nearest(kind: FaissKind, cut: int) -> None:
    """Rows of a later part are counted from its start; a removed row in a pool would be scored."""
    parts = [(0, kind.build(VECTORS[:cut]))] + ([(cut, kind.build(VECTORS[cut:]))] if cut < len(VECTORS) else [])
    removed = np.zeros(len(VECTORS), dtype=bool)
    removed[exact(QUERIES, VECTORS, 3)] = True
    rows, _ = SegmentedIndex(VECTORS, parts).near(QUERIES, 50, removed)
    assert rows.shape == (20, 50) and not removed[rows[rows >= 0]].any()
    found = recall(rows, exact(QUERIES, VECTORS, 50, removed))
    assert found == 1 if isinstance(kind, Flat) else found > (0.9 if type(kind) is IVF else 0.6)


@named
def test_copies_come_by_row(kind: FaissKind) -> None:
    """A batch, a block or a list must not decide which of two equal items is shown first."""
    vectors = np.random.default_rng(3).permutation(np.repeat(VECTORS[:50], 30, axis=0))
    for k in (7, 45):
        rows, scores = kind.build(vectors).search(QUERIES, k)
        last = scores[:, -1:]
        best = exact(QUERIES, vectors, k)
        for row, query in enumerate(QUERIES):
            above = rows[row][scores[row] > last[row]].tolist()
            assert above == sorted(
                above, key=lambda i: (-np.float32(query.astype(float) @ vectors[i].astype(float)), i)
            )
        if isinstance(kind, Flat):
            np.testing.assert_array_equal(rows, best)
            alone = [kind.build(vectors).search(query[None], k)[0][0] for query in QUERIES]
            np.testing.assert_array_equal(rows, alone)


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: type(kind).__name__)
def test_thousands_of_copies_cost_no_scan(kind: FaissKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """One tie at the k-th place cast all vectors to double precision: 15 GB at 5 million items."""
    vectors = np.concatenate([VECTORS, np.repeat(VECTORS[:1], 3000, axis=0)])
    index = kind.build(vectors)
    looked: list[int] = []
    score = VectorIndex._scored

    def counting(self: VectorIndex, queries: Floats, rows: NDArray[np.int64]) -> object:
        looked.append(rows.shape[1])
        return score(self, queries, rows)

    monkeypatch.setattr(VectorIndex, "_scored", counting)
    monkeypatch.setattr(vector_search, "scan", lambda *_: pytest.fail("scanned all vectors"))
    rows, _ = index.search(10 * VECTORS[:1], 5)
    assert len(set(rows[0].tolist())) == 5 and max(looked) <= 16 * (4 * 5 + 64)


def test_sizes_choose_the_index() -> None:
    """A scan of millions takes seconds a query; k-means over a thousand items finds nothing better than a scan."""
    assert Auto(1500).build(VECTORS).exact and not Auto(1499).build(VECTORS).exact
    assert Auto().of(200_000) == Flat() and Auto().of(200_001) == IVF()
    index = IVF().build(VECTORS)
    assert index._index.nlist == 155  # 4 sqrt(1500)
    assert recall(index.search(QUERIES, 10)[0], exact(QUERIES, VECTORS, 10)) > 0.9


def test_settings_that_cannot_work_are_refused() -> None:
    """faiss' own words for them name C++ lines."""
    with pytest.raises(ValueError, match="at least 256 vectors, got 255"):
        IVFPQ(4).build(VECTORS[:255])
    with pytest.raises(ValueError, match="code_bytes = 5 does not divide the 16 dimensions"):
        IVFPQ(4, code_bytes=5).build(VECTORS)
    with pytest.raises(ValueError, match="refine of at least 1"):
        IVFPQ(refine=0)
    with pytest.raises(ValueError, match="IVFPQ needs at least one list"):
        IVFPQ(lists=0)


WITHOUT_FAISS = """
import sys
sys.modules["faiss"] = None
import numpy as np
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.vector_index import IVF
from simzoo.retrieval.searchers.exact import Retrieve
engine = Engine(None, lambda texts: np.array([[len(text), 1] for text in texts]), Retrieve(Dense()))
engine.add(["a", "b"], ["short", "a longer one"])
print([hit.id for hit in engine.search("x", 2)])
try:
    IVF(1).build(np.eye(2, dtype=np.float32))
except ImportError as error:
    print(error)
"""


def test_a_scan_needs_no_faiss() -> None:
    """The smallest installation has none: what it does not need must not be imported."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_FAISS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "['b', 'a']",
        "a vector index other than Flat needs faiss, which the extra cpu or gpu brings: pip install 'simzoo[cpu]'",
    ]


@pytest.mark.gpu
@named
def test_a_gpu_finds_the_same(kind: FaissKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy on the GPU must search with the same settings."""
    fast = kind.build(VECTORS).search(QUERIES, 10)
    monkeypatch.setattr(vector_search, "gpus", int)
    slow = kind.build(VECTORS).search(QUERIES, 10)
    assert recall(fast[0], slow[0]) > 0.95
