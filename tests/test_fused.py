"""Reciprocal rank fusion, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simzoo.core.records import Item, Query
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.fused import Fused
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.settings import first_stages
from simzoo.retrieval.stored_settings import read, written
from simzoo.retrieval.topk import Rows, Scores
from tests.test_searchers import problem, task_of


class Says(FirstStage):
    """The same for every query."""

    def __init__(self, rows: list[int], scores: list[float]) -> None:
        self.rows, self.scores = rows, scores

    def prepare(self) -> None:
        pass

    def find(self, queries: Sequence[Query], k: int) -> tuple[Rows, Scores]:
        rows, scores = np.array(self.rows)[:k], np.array(self.scores, dtype=np.float32)[:k]
        return np.tile(rows, (len(queries), 1)), np.tile(scores, (len(queries), 1))


CORPUS = Corpus([Item(str(row), "x") for row in range(6)])


def test_fusion_by_its_formula() -> None:
    """1 / (60 + rank), ranks from 1: from 0 the first places would weigh more than the paper's."""
    stage = Fused([Says([4, 2, 0], [9, 5, 1]), Says([2, 5], [0.3, -0.2])])
    stage.index(CORPUS)
    rows, scores = stage.search([Query("1", "x"), Query("2", "x")], 5)
    assert rows.tolist() == [[2, 4, 5, 0, -1]] * 2
    np.testing.assert_allclose(scores[0, :4], [1 / 62 + 1 / 61, 1 / 61, 1 / 62, 1 / 63], rtol=1e-6)
    assert scores[0, 4] == -np.inf


def test_items_that_tie_gain_nothing_by_their_order() -> None:
    """BM25 gives most items 0, in the order of their rows: low rows would rise for no reason."""
    stage = Fused([Says([3, 0, 1, 2], [7, 0, 0, 0]), Says([2, 1], [np.nan, np.nan])], constant=1)
    stage.index(CORPUS)
    rows, scores = stage.search([Query("1", "x")], 4)
    assert rows.tolist() == [[2, 1, 3, 0]]
    np.testing.assert_allclose(scores[0], [1 / 5 + 1 / 2, 1 / 5 + 1 / 3, 1 / 2, 1 / 5], rtol=1e-6)


def test_fused_is_a_first_stage_of_axn(tmp_path: Path) -> None:
    """Its parts are indexed, grown and told of; a removed item stays away."""
    matrix, dense = problem(3, 20, 60, 8, 0.3)
    removed = np.zeros(60, dtype=bool)
    removed[::7] = True
    task = task_of(matrix, 10, removed)
    task.corpus = replace(task.corpus, items=[Item(str(row), f"river {row % 9}") for row in range(60)])
    searcher = AXN(dense, Fused([BM25(), dense]), budget=20, rounds=4)
    searcher.index(task.corpus)
    found = searcher.search(task.queries, 5)
    assert (found.calls == 20).all()
    assert not any(removed[items].any() for items in map(list, task.judge.asked.values()) if items)
    assert {type(stage).__name__ for stage in first_stages(searcher)} == {"Fused", "BM25", "Vectors"}
    again = read(written(Fused([BM25()], depth=7), FirstStage), tmp_path, FirstStage)
    assert again.identity() == Fused([BM25()], depth=7).identity()
    with pytest.raises(ValueError, match="at least one first stage to fuse"):
        Fused([])
