"""What a teacher thinks of retrieved and random items, as files to train on: resumable, one file a block of queries."""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from simzoo.core.files import read_object, replacing
from simzoo.core.records import Collection, DataError
from simzoo.core.shards import ALONE, Shards, Worker, writing
from simzoo.models.similarity import LearnedSimilarity
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.judge import Judge, SimilarityJudge
from simzoo.retrieval.topk import Rows

BLOCK = 256  # queries a file


def write_lessons(
    teacher: LearnedSimilarity,
    collection: Collection,
    first_stage: FirstStage,
    folder: Path,
    top: int,
    random: int,
    seed: int,
    worker: Worker = ALONE,
) -> list[Path]:
    """Writes the records of a collection in the layout that `simzoo.datamodules.lists.FromFiles` reads.

    A record has the query's relevant items, the first ``top`` others that the first stage finds, and ``random`` more;
    all items, where a collection has fewer. Several workers write one file each in turn.

    Returns:
        The files, in order; those that are there already are not written again.

    Raises:
        DataError: the folder holds records that were made otherwise.
        InUse: another process teaches into the folder.
    """
    name = hashlib.sha256(collection.fingerprint.encode()).hexdigest()[:12]
    made_by = {
        "collection": collection.name,
        "teacher": teacher.weights_sha256,
        "first_stage": first_stage.identity(),
        "top": top,
        "random": random,
        "seed": seed,
    }
    rows = [row for row in range(len(collection.queries)) if collection.relevant(row)]
    starts = range(0, len(rows), BLOCK)
    paths = [folder / f"{name}-{start:08d}.jsonl.gz" for start in starts]

    @cache
    def judge() -> Judge:
        first_stage.index(Corpus.of(collection))
        place = None if worker.alone else folder.with_name(f"{folder.name}.items") / name
        return SimilarityJudge.of(teacher, collection.items, place, worker=worker)

    def teach(number: int) -> None:
        block = rows[starts[number] : starts[number] + BLOCK]
        records = _records(collection, block, judge(), first_stage, top, random, seed)
        # Without a time stamp, so that the same records are the same bytes.
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        with replacing(paths[number]) as file:
            file.write(gzip.compress(text.encode(), mtime=0))

    with writing(folder, worker):
        _claim(folder / f"{name}.json", made_by)
        shards = Shards(folder, paths, worker)
        shards.make(teach, f"teaching on {collection.name}")
        if worker.first:
            shards.check()
            shards.clean()
    return paths


def _claim(path: Path, made_by: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        found = read_object(path, "remove it and begin again")
        differing = [key for key, value in made_by.items() if found.get(key) != value]
        if differing:
            raise DataError(f"was made with other {' and '.join(differing)}; choose another folder", path)
        return
    with replacing(path) as file:
        file.write((json.dumps(made_by, indent=2) + "\n").encode())


def _records(
    collection: Collection, rows: list[int], judge: Judge, first_stage: FirstStage, top: int, random: int, seed: int
) -> list[dict[str, Any]]:
    most = max(len(collection.relevant(row)) for row in rows)
    queries = [collection.queries[row] for row in rows]
    found, _ = first_stage.search(queries, min(top + most, len(collection.items)))
    lists = [_list(collection, row, near, top, random, seed) for row, near in zip(rows, found, strict=True)]
    columns = np.full((len(rows), max(map(len, lists))), -1, dtype=np.int64)
    for place, entry in enumerate(lists):
        columns[place, : len(entry)] = entry
    scores = judge.scorer(queries).lists(columns)
    records = []
    for row, entry, values in zip(rows, lists, scores, strict=True):
        query, relevant = collection.queries[row], set(collection.relevant(row))
        asked: dict[str, Any] = {"id": query.id, "content": query.text}
        if query.mention is not None:
            asked["mention"] = list(query.mention)
        items = [
            {
                "id": collection.items[item].id,
                "title": collection.items[item].title,
                "content": collection.items[item].text,
                "score": float(value),
                "type": "positive" if item in relevant else "negative",
            }
            for item, value in zip(entry, values, strict=False)
        ]
        records.append({"query": asked, "items": items})
    return records


def _list(collection: Collection, row: int, near: Rows, top: int, random: int, seed: int) -> list[int]:
    """Rows of one record's items: the relevant ones first."""
    relevant = collection.relevant(row)
    best = [int(item) for item in near if item >= 0 and item not in relevant][:top]
    others = np.setdiff1d(np.arange(len(collection.items)), [*relevant, *best])
    drawn = np.random.default_rng([seed, row]).choice(others, min(random, len(others)), replace=False)
    return [*relevant, *best, *drawn.tolist()]
