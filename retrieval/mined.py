"""Candidates of a collection's queries: found by a first stage, in shards by any number of ranks, kept in one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simzoo.core.candidates import Candidates, Listed, relevant_rows
from simzoo.core.files import replacing
from simzoo.core.records import Collection, Query
from simzoo.core.shards import Shards, Worker
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.dense import Dense
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.topk import Rows, Scores

SHARD = 1024  # queries: what a kill can cost a rank


def mine(stage: FirstStage, collection: Collection, depth: int) -> Candidates:
    """The top ``depth`` items of every query (all items where there are fewer), and the gold item's score.

    The gold score is inf where no gold item is among them: the false-negative filter then drops nothing.

    Raises:
        ValueError: the first stage finds fewer for a query.
    """
    stage.index(Corpus.of(collection))
    return found_of(stage, collection, depth)


def found_of(stage: FirstStage, collection: Collection, depth: int) -> Candidates:
    """See `mine`; the first stage has indexed the collection's items."""
    depth = min(depth, len(collection.items))
    items, scores = stage.search(collection.queries, depth)
    found = (items >= 0).sum(axis=1)
    short = np.flatnonzero(found < depth)
    if short.size:
        raise ValueError(
            f"{collection.name}: {depth} candidates were asked for, but {type(stage).__name__} finds {found[short[0]]} "
            f"for query {collection.queries[short[0]].id!r}; every query has {found.min()}: mine less deep"
        )
    gold = np.full(len(collection.queries), np.inf, dtype=np.float32)
    for row in range(len(collection.queries)):
        its = scores[row][np.isin(items[row], collection.relevant(row))]
        if its.size:
            gold[row] = its.max()
    return Candidates(items, scores, gold)


def with_golds(found: Candidates, stage: FirstStage, collection: Collection) -> Candidates:
    """The candidates with the first stage's scores of every relevant item, NaN where it gives none.

    Those that it did not find are scored by their vectors, or else looked up in its ranking of all items.

    Args:
        found: what the first stage found for the collection's queries.
        stage: indexed.
        collection: the queries and items.
    """
    rows = relevant_rows(collection)
    values = np.full(rows.shape, np.nan, dtype=np.float32)
    for row, listed in enumerate(rows):
        relevant = listed[listed >= 0]
        same = relevant[:, None] == found.items[row]
        values[row, : len(relevant)] = np.where(same.any(axis=1), found.scores[row][same.argmax(axis=1)], np.nan)
        missed = ~same.any(axis=1)
        if missed.any() and np.isfinite(found.scores[row]).all():
            values[row, np.flatnonzero(missed)] = _own_scores(stage, collection.queries[row], relevant[missed])
    return replace(found, gold=Listed(rows, values))


def _own_scores(stage: FirstStage, query: Query, rows: Rows) -> Scores:
    """(K,) a first stage's scores of K items; NaN where it ranks an item nowhere."""
    if isinstance(stage, Dense):
        product: Scores = stage.embedder.vectors[rows] @ stage.embedder.encode([query])[0]
        return product
    ranked, scores = stage.search([query], len(stage.corpus))
    same = rows[:, None] == ranked[0]
    return np.where(same.any(axis=1), scores[0][same.argmax(axis=1)], np.float32(np.nan))


def mine_shards(path: Path, collection: Collection, found: Callable[[Collection], Candidates], worker: Worker) -> Path:
    """Has the candidates of a collection mined, unless they are there, each shard of its queries by one of the ranks.

    A rank that waits looks for files, so there is nothing that can time out; what a rank had in hand when it was killed
    is mined by another one.

    Args:
        path: of the file that holds them in the end.
        collection: the queries and items.
        found: mines for the queries of a part of it.
        worker: the rank.

    Returns:
        The folder of the shards, for whoever knows that all ranks are done with it, to remove.
    """
    folder = path.with_suffix(".shards")
    starts = range(0, len(collection.queries), SHARD)
    parts = [folder / f"{start:09d}.npz" for start in starts]
    shards = Shards(folder, parts, worker, path)
    if path.exists():
        return folder

    def one(number: int) -> None:
        rows = range(starts[number], min(starts[number] + SHARD, len(collection.queries)))
        write(parts[number], found(collection.with_queries(rows)))

    shards.make(one, f"mining {collection.name}")
    shards.finish(lambda: write(path, joined([read(part) for part in parts])))
    return folder


def joined(parts: Sequence[Candidates]) -> Candidates:
    """The candidates of all queries, of those of some after others."""
    found: dict[str, Any] = {}
    for name in (part.name for part in fields(Candidates)):
        values = [getattr(part, name) for part in parts]
        if values[0] is None:
            continue
        if isinstance(values[0], Listed):
            items = _stacked([value.items for value in values], -1)
            found[name] = Listed(items, _stacked([value.scores for value in values], np.nan))
        else:
            scored = values[0].dtype.kind == "f" and values[0].ndim == 2  # other arrays are equally wide
            found[name] = _stacked(values, -np.inf) if scored else np.concatenate(values)
    return Candidates(**found)


def _stacked(parts: Sequence[NDArray[Any]], nothing: float) -> NDArray[Any]:
    """Rows of all parts, which are as wide as the widest."""
    found = np.full((sum(map(len, parts)), max(part.shape[1] for part in parts)), nothing, parts[0].dtype)
    start = 0
    for part in parts:
        found[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return found


def write(path: Path, mined: Candidates) -> None:
    """Puts candidates into a file, as a whole."""
    kept = {"items": mined.items.astype(np.int32), "scores": mined.scores, "gold_scores": mined.gold_scores}
    for name, listed in (("gold", mined.gold), ("best", mined.best)):
        if listed is not None:
            kept |= {f"{name}_items": listed.items.astype(np.int32), f"{name}_values": listed.scores}
    for name in ("teacher", "gold_teacher"):
        if (scores := getattr(mined, name)) is not None:
            kept[name] = scores
    with replacing(path) as file:
        np.savez(file, **kept)  # type: ignore[arg-type]  # numpy's stub takes the names for its own options


def read(path: Path) -> Candidates:
    """What `write` wrote."""
    with np.load(path, allow_pickle=False) as kept:

        def listed(name: str) -> Listed | None:
            if f"{name}_items" not in kept.files:
                return None
            return Listed(kept[f"{name}_items"].astype(np.int64), kept[f"{name}_values"])

        teacher, gold_teacher = (kept[name] if name in kept.files else None for name in ("teacher", "gold_teacher"))
        items = kept["items"].astype(np.int64)
        golds = listed("gold")
        return Candidates(items, kept["scores"], kept["gold_scores"], teacher, golds, gold_teacher, listed("best"))
