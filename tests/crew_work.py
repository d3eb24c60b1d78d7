"""A score matrix that is slow to make, for the tests that kill who makes it; says in a log who scored what."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from simzoo.core.crew import Crew
from simzoo.core.records import Query
from simzoo.core.shards import Worker
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.storage.score_matrix import build_matrix
from tests.toy import toy_collection

SHARDS = 48  # of two queries and ten items


def matrix(folder: str, pause: float, worker: Worker) -> None:
    """Exact scores of 24 queries with 40 items; the first worker begins when another one has."""
    collection, truth = toy_collection(), np.random.default_rng(1).normal(size=(24, 40)).astype(np.float32)
    rows = {query.id: row for row, query in enumerate(collection.queries)}

    def scorer_of(queries: Sequence[Query]) -> Scorer:
        own = np.array([rows[query.id] for query in queries])

        def score(query_rows: np.ndarray, item_rows: np.ndarray) -> np.ndarray:
            while worker.first and not worker.alone and not others(Path(folder)):
                time.sleep(0.01)
            with (Path(folder) / "log").open("a") as log:
                log.write(f"{os.getpid()} {own[query_rows[0]]}-{item_rows[0]}\n")
            time.sleep(pause)
            return truth[own[query_rows], item_rows]

        return Scorer(score, len(queries), 40)

    made = build_matrix(
        scorer_of, collection, np.arange(24), "m", Path(folder) / "shards", query_block=2, item_block=10, worker=worker
    )
    if worker.first:
        made.save(Path(folder) / "done" / "matrix.safetensors")


def others(folder: Path) -> set[int]:
    """Processes besides this one that have scored."""
    path = folder / "log"
    lines = path.read_text().splitlines() if path.exists() else []
    return {int(line.split()[0]) for line in lines} - {os.getpid()}


if __name__ == "__main__":
    from tests.crew_work import matrix as shared  # not as a part of the module __main__, which others do not have

    runner, workers, folder, pause = sys.argv[1:]
    Crew(runner, int(workers)).run(shared, {"folder": folder, "pause": float(pause)})  # type: ignore[arg-type]
