"""``evaluate.py tune``: a searcher's settings, chosen on queries that are not reported on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import yaml

from simzoo.core.files import replacing
from simzoo.core.progress import show_table
from simzoo.core.records import Collection, DataError, Query
from simzoo.core.startup import importing
from simzoo.datamodules.sources import Source
from simzoo.retrieval.commands.parts import dtype_of, judge_of, loaded, single
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.evaluation import split_queries
from simzoo.retrieval.results.output import check_file
from simzoo.retrieval.searcher import Searcher
from simzoo.retrieval.searchers.axn import AXN
from simzoo.retrieval.storage.score_matrix import ScoreMatrix
from simzoo.retrieval.stored_settings import rewrite_search
from simzoo.retrieval.topk import Scores
from simzoo.retrieval.tuning import Trial, changed, recipe, settings, tuned


def tune(
    data: Source,
    checkpoint: str | None = None,
    search: Searcher | None = None,
    index: Path | None = None,
    output: Path | None = None,
    k: int = 10,
    dev: int = 50,
    queries: int | None = None,
    seed: int = 0,
    exact: Path | None = None,
    weights: list[float] = [0.0, 0.2, 0.5, 0.8],  # noqa: B006  the command line shows it, and nothing writes to it
    strengths: list[float] = [0.01, 0.1, 1.0],  # noqa: B006
    rconds: list[float] = [1e-6, 1e-4, 1e-3, 1e-2, 1e-1],  # noqa: B006
    store: Path | None = None,
    bf16: bool = False,
    quantize: Literal["int8"] | None = None,
    overwrite: bool = False,
) -> None:
    """Chooses lambda, the solver's ridge or the cut-off by Top-k-Recall on dev queries, and writes the choice down.

    Dev queries are a sample of the anchors that the data brings; where it brings none, of the test split's queries
    without those that ``run`` evaluates with the same ``queries`` and ``seed``. The others of them stay anchors.

    Args:
        data: the data; its test split must be one collection.
        checkpoint: as in ``run``; not with an index.
        search: the searcher with its budget and rounds; if none is given, that of the index, or AXN.
        index: folder that an `Engine` has saved: the choice is written into it, and ``search --index`` follows it.
        output: YAML file for ``run --config`` and ``search --config``; needed without an index.
        k: how many of the exact best items count.
        dev: how many dev queries.
        queries: so many queries are held out, as ``run`` evaluates them. None: all of the test split.
        seed: of both samples.
        exact: exact scores made by ``evaluate.py matrix``, among them the dev queries'. None: recall is of the best
            that any setting has found.
        weights: lambdas to try, of AXN.
        strengths: of ridges to try, of AXN.
        rconds: cut-offs to try, of CUR, AdaCUR and ItemCUR.
        store: folder that keeps the items' representations.
        bf16: compute the transformers in bfloat16: for hardware that has it.
        quantize: int8 for products of whole numbers of 8 bits in the transformers: faster on a CPU, other digits.
        overwrite: replace the output file; it is refused otherwise.
    """
    if (index is None) == (checkpoint is None):
        raise DataError("what is tuned is missing: give --index, or --checkpoint, and not both")
    if output is None and index is None:
        raise DataError("give --output, a YAML file for the choice")
    if output is not None:
        check_file(output, overwrite)
    collection = single(data)
    asked, anchors = _dev_queries(collection, dev, queries, seed)
    if index is not None:
        with importing():
            from simzoo.retrieval.engine import Engine

        engine = Engine.load(index, search=None if search is None else changed(search))
        given, corpus = engine.searcher, engine.corpus
        taken = {query.id for query in corpus.anchors}
        asked = [query for query in asked if query.id not in taken]
        if not asked:
            raise DataError("all dev queries are anchors of the index; name other queries with --data or --seed")
    else:
        given = search or AXN()
        assert checkpoint is not None
        judge = judge_of(loaded(checkpoint, bf16, quantize), given, collection, len(asked), store, dtype_of(bf16))
        corpus = Corpus.of(collection, judge, anchors=anchors)
    known = None if exact is None else _exact(exact, collection, asked)
    trials = tuned(settings(given, weights, strengths, rconds), corpus, asked, k, known)
    _show(trials, k, len(asked), known is not None)
    best = trials[0].searcher
    if output is not None:
        with replacing(output) as file:
            file.write(yaml.safe_dump({"search": recipe(best)}, sort_keys=False).encode())
        print(f"written: {output}")
    if index is not None:
        rewrite_search(index, best)
        print(f"written into: {index}")


def _dev_queries(collection: Collection, dev: int, queries: int | None, seed: int) -> tuple[list[Query], list[Query]]:
    """Dev queries, and the other ones that are not evaluated."""
    _, others = split_queries(collection, queries, seed)
    every = list(collection.anchors or [collection.queries[row] for row in others])
    if not 1 <= dev <= len(every):
        raise DataError(
            f"--dev {dev}: {collection.name} has {len(every)} queries that are not evaluated; evaluate fewer "
            "(--queries), or take fewer dev queries"
        )
    order = np.random.default_rng(seed).permutation(len(every)).tolist()
    return [every[row] for row in sorted(order[:dev])], [every[row] for row in sorted(order[dev:])]


def _exact(path: Path, collection: Collection, asked: list[Query]) -> Scores:
    """Rows of the matrix for the dev queries.

    Raises:
        DataError: it lacks one, or was made with other data.
    """
    found = ScoreMatrix.load(path)
    found.of(collection)
    places = {name: place for place, name in enumerate(found.query_ids)}
    missing = [query.id for query in asked if query.id not in places]
    if missing:
        raise DataError(f"lacks {len(missing)} of {len(asked)} dev queries, for example {missing[0]!r}", path)
    rows: Scores = found.scores[[places[query.id] for query in asked]]
    return rows


def _show(trials: list[Trial], k: int, size: int, exact: bool) -> None:
    of = "the exact best" if exact else "the best that any setting found"
    rows = [(trial.named, f"{trial.mean:.4f}", f"{trial.low:.4f} to {trial.high:.4f}") for trial in trials]
    show_table(("setting", f"Top-{k}-Recall", "95 % interval"), rows, f"{size} dev queries, recall of {of}")
