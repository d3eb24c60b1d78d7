"""The representation store: the same bytes however often it is killed, and only for the records it was made for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from simzoo.core.records import DataError, Item
from simzoo.core.reps import Ragged, Reps
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.similarity import LearnedSimilarity
from simzoo.retrieval.storage.encoding import encode_items
from simzoo.retrieval.storage.representations import Encode, RepresentationStore
from tests.toy import toy_collection

ITEMS = [Item(str(i), "boat " * (1 + i % 5)) for i in range(23)]


class Killed(Exception):
    pass


def encode(records: Sequence[Item]) -> Reps:
    numbers = torch.tensor([float(r.id) for r in records])
    return {
        "vector": torch.stack([numbers, -numbers], dim=1),
        "ids": Ragged.of([[int(r.id)] * (1 + int(r.id) % 3) for r in records]),
    }


def blockwise(encode: Callable[[Sequence[Item]], Reps]) -> Encode:
    return lambda blocks: map(encode, blocks)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("survived", range(6))
def test_killed_builds_end_with_the_same_bytes(tmp_path: Path, survived: int) -> None:
    """A build that dies after any block, in the middle of writing one or of joining them, must go on."""
    left = survived

    def dying(records: Sequence[Item]) -> Reps:
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        return encode(records)

    broken = RepresentationStore(tmp_path / "a", ITEMS, "m", block=4)
    with pytest.raises(Killed):
        broken.build(blockwise(dying), "x")
    (tmp_path / "a" / "block-0000000004.npz.99.tmp").write_bytes(b"half")
    (tmp_path / "a" / "vector.npy").write_bytes(b"half")
    calls = []
    reps = RepresentationStore(tmp_path / "a", ITEMS, "m", block=4).build(
        blockwise(lambda r: (calls.append(len(r)), encode(r))[1]), "x"
    )
    assert len(calls) == 6 - survived
    RepresentationStore(tmp_path / "b", ITEMS, "m", block=4).build(blockwise(encode), "x")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    whole = encode(ITEMS)
    assert torch.equal(reps["vector"], whole["vector"])  # type: ignore[arg-type]
    rows = torch.tensor([22, 0, 7])
    assert torch.equal(reps["ids"].take(rows).values, whole["ids"].take(rows).values)  # type: ignore[union-attr]


def test_a_finished_store_encodes_nothing(tmp_path: Path) -> None:
    """Its whole point."""
    RepresentationStore(tmp_path, ITEMS, "m").build(blockwise(encode), "x")

    def never(records: Sequence[Item]) -> Reps:
        raise AssertionError

    assert len(RepresentationStore(tmp_path, ITEMS, "m").build(blockwise(never), "x")["ids"]) == 23


def test_other_records_or_weights_are_refused(tmp_path: Path) -> None:
    """Vectors of another model or of yesterday's corpus look like vectors."""
    RepresentationStore(tmp_path, ITEMS, "m").build(blockwise(encode), "x")
    with pytest.raises(DataError, match="other checkpoint"):
        RepresentationStore(tmp_path, ITEMS, "n").build(blockwise(encode), "x")
    with pytest.raises(DataError, match="other records"):
        RepresentationStore(tmp_path, ITEMS[:-1], "m").build(blockwise(encode), "x")
    whole = (tmp_path / "vector.npy").read_bytes()
    (tmp_path / "vector.npy").write_bytes(whole[:-8])
    with pytest.raises(DataError, match=r"vector\.npy: is missing or cut short"):
        RepresentationStore(tmp_path, ITEMS, "m").open()
    with pytest.raises(DataError, match="not finished"):
        RepresentationStore(tmp_path / "none", ITEMS, "m").open()
    with pytest.raises(DataError, match="no records"):
        RepresentationStore(tmp_path / "none", [], "m")


@pytest.mark.parametrize("kind", [CrossEncoder, DualEncoder])
def test_stored_representations_score_alike(kind: type[LearnedSimilarity], tmp_path: Path) -> None:
    """Token ids and vectors must come back as they went in."""
    collection, model = toy_collection(), kind.tiny().eval()
    queries = model.encode_queries(model.collate_queries(collection.queries[:3]))
    direct, stored = encode_items(model, collection.items), encode_items(model, collection.items, tmp_path, "m")
    with torch.inference_mode():
        scores = [model.score(queries, items).numpy() for items in (direct, stored)]
    np.testing.assert_allclose(*scores, atol=1e-6)
