"""Recommendations of an engine: what a user has is left out, and new items need a vector."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from simzoo.core.records import DataError, History, Item
from simzoo.models.next_item import NextItem
from simzoo.models.next_item_mol import NextItemMoL
from simzoo.models.parts.sequence import SequenceConfig
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.searchers.exact import Exact, Rerank, Retrieve

IDS = [f"film {n}" for n in range(12)]


@pytest.fixture
def sasrec() -> NextItem:
    """SASRec over twelve films, with random weights."""
    return NextItem(IDS, SequenceConfig("sasrec", width=16, heads=2, length=6, dropout=0.0), seed=0).eval()


def ranked(model: NextItem, history: History) -> list[str]:
    """Ids of all items, best first, by the model alone."""
    with torch.no_grad():
        queries = model.encode_queries(model.collate_queries([history]))
        items = model.encode_items(model.collate_items([Item(name, name) for name in IDS]))
        scores = model.score(queries, items)[0]
    return [IDS[row] for row in scores.argsort(descending=True).tolist()]


@pytest.mark.parametrize("search", [Retrieve(Dense()), Exact()], ids=["vectors", "exact"])
def test_a_new_user_gets_what_is_new(sasrec: NextItem, search: Exact) -> None:
    """Films that a user has seen fill the first places, or take them away from others in the same call."""
    engine = Engine(sasrec, search=search)
    engine.add(IDS, IDS)
    users = [
        History.of("new", ["film 3", "film 1", "film 3"]),
        History.of("other", ["film 0", "film 2", "film 4", "film 6"]),
    ]
    for history, hits in zip(users, engine.search(users, k=4), strict=True):
        assert [hit.id for hit in hits] == [name for name in ranked(sasrec, history) if name not in history.items][:4]
    every = engine.search(users[0], k=30)
    assert len(every) == 10
    engine.remove(["film 1"])
    assert {hit.id for hit in engine.search(users[0], k=30)} == set(IDS) - {"film 1", "film 3"}


def test_what_cannot_be_recommended_is_said(sasrec: NextItem) -> None:
    """Fewer results than asked for, or a text taken for a user, without a word."""
    engine = Engine(sasrec, search=Rerank(Dense(), budget=5))
    engine.add(IDS, IDS)
    history = History.of("new", ["film 0", "film 1", "film 2"])
    assert len(engine.search(history, k=2)) == 2
    with pytest.raises(ValueError, match="3 results besides the 3 items of a history need a budget of 6"):
        engine.search(history, k=3)
    with pytest.raises(DataError, match="is a Query; NextItem needs a History"):
        engine.search("a film with boats", k=1)
    with pytest.raises(DataError, match="user 'new': item 'film 99' is unknown"):
        engine.search(History.of("new", ["film 99"]), k=1)


def test_an_item_added_later_needs_a_vector(sasrec: NextItem) -> None:
    """A model that has a row for each item knows nothing of a new one: a random row would be recommended."""
    engine = Engine(sasrec, search=Retrieve(Dense()))
    engine.add(IDS, IDS)
    with pytest.raises(DataError, match="item 'film 12' is unknown: it is not among the 12"):
        engine.add(["film 12"], ["a new film"])
    history = History.of("new", ["film 5"])
    best = engine.search(history, k=1)[0].id
    with torch.no_grad():
        like = sasrec.encode_items(sasrec.collate_items([Item(best, best)]))["vector"].numpy()
    engine.add(["film 12"], ["a new film like the best one"], vectors=np.asarray(like))
    assert {hit.id for hit in engine.search(history, k=2)} == {best, "film 12"}
    mixture = Engine(NextItemMoL.tiny().eval(), search=Exact())
    mixture.add([f"i{n}" for n in range(5)], ["a film"] * 5)
    with pytest.raises(ValueError, match="no embedder"):
        mixture.add(["i5"], ["a new film"], vectors=np.zeros((1, 16)))
    hits = mixture.search(History.of("new", ["i0", "i1"]), k=5)
    assert {hit.id for hit in hits} == {"i2", "i3", "i4"}
