"""CMC's Tables 1, 2, 4 and 12 on WordNet without titles.

    python -m benchmarks.cmc_train
    python -m benchmarks.cmc rerank [--worlds noun.event verb.communication] [--queries 200] [--depth 512]
    python -m benchmarks.cmc pipeline [--queries 50] [--pairs 8 16 64] [--lists 64 256 512]

``rerank``: what the dual encoder's first ``depth`` items become when poly-encoder, sum-of-max and each variant of CMC
put them into order. ``pipeline``: the cross-encoder's accuracy on the first items of the dual encoder, and of CMC over
more of them. Every row ranks the same random sample of each world's queries. A row that is in ``--output`` already is
not measured again, so that a killed run goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.cmc_train import DE, VARIANTS, Vectors
from datamodules.records import Collection
from datamodules.reps import Reps
from datamodules.wordnet import find_wordnet, load_wordnet
from models.similarity import LearnedSimilarity
from retrieval.dense import Dense
from retrieval.evaluation import evaluate, similarity_scorer, split_queries
from retrieval.metrics import accuracy, interval, retrieved
from retrieval.scorer import Rows, Scorer
from retrieval.search_exact import Rerank, Retrieve
from retrieval.searcher import Searcher, SearchTask, top_order

KS = (1, 4, 8, 16, 32, 64)
METRICS = [f"R@{k}" for k in KS]
SEEDS = [name for name in VARIANTS if name.startswith("seed-")]
NONE: Rows = np.empty(0, dtype=np.int64)
Row = dict[str, Any]


class Results:
    """Measured rows, by name and world, in a JSON file that is rewritten after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}

    def of(self, name: str, world: str, measure: Callable[[], Row]) -> None:
        """Measures a row unless it is there."""
        key = f"{name} | {world}"
        if key not in self.rows:
            self.rows[key] = measure()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.rows, indent=1) + "\n")
            print(key, flush=True)

    def pooled(self, name: str, column: str) -> np.ndarray[Any, Any]:
        """Values of all worlds' queries, or one a world."""
        found = [row[column] for key, row in self.rows.items() if key.startswith(f"{name} | ")]
        return np.concatenate([np.atleast_1d(np.array(values, dtype=float)) for values in found])


def measured(task: SearchTask, searcher: Searcher, item_bytes: float) -> Row:
    """Per-query values, milliseconds a query and bytes an item."""
    found = evaluate(task, searcher, max(KS), METRICS)
    values = {name: found.values[name].tolist() for name in (*METRICS, "milliseconds")}
    if "accuracy (normalised)" in found.values:
        values["normalised"] = found.values["accuracy (normalised)"].tolist()
    return values | {"bytes": item_bytes}


def bytes_of(items: Reps, collection: Collection) -> float:
    """Bytes of an item's representation."""
    return sum(part.nbytes for part in items.values()) / len(collection.items)


def cmc_scorer(name: str, collection: Collection, output: Path) -> Scorer:
    """A trained variant over the stored vectors of its frozen encoder, normalised as it would do itself."""
    vectors = Vectors(VARIANTS[name].start, output / "vectors")
    reps = [
        {"vector": torch.nn.functional.normalize(torch.as_tensor(vectors(records)["vector"]), dim=1)}  # type: ignore[arg-type]
        for records in (collection.queries, collection.items)
    ]
    return Scorer.from_similarity(LearnedSimilarity.from_pretrained(output / name), *reps)


def rerank(collections: list[Collection], queries: int, depth: int, output: Path) -> None:
    """Tables 1, 4 and 12."""
    results = Results(output / "rerank.json")
    dense = Dense(DE)
    others = {"poly-encoder": "out/wordnet-poly-encoder/release", "sum-of-max": "out/wordnet-sum-of-max/release"}
    for collection in collections:
        rows, _ = split_queries(collection, min(queries, len(collection.queries)), seed=0)
        nothing = Scorer(lambda *_: NONE, len(collection.queries), len(collection.items))
        searcher = Rerank(dense, min(depth, len(collection.items)))

        def of(scorer: Scorer, collection: Collection = collection, rows: Rows = rows, by: Searcher = searcher) -> Row:
            assert scorer.represented is not None
            size = bytes_of(scorer.represented.items, collection)
            return measured(SearchTask(collection, scorer, rows, NONE), by, size)

        results.of(
            "dual encoder",
            collection.name,
            lambda c=collection, r=rows, s=nothing: measured(  # type: ignore[misc]
                SearchTask(c, s, r, NONE), Retrieve(dense), 4 * dense.similarity.query_encoder.width
            ),
        )
        for name, folder in others.items():
            if Path(folder, "config.json").exists():
                results.of(
                    name,
                    collection.name,
                    lambda f=folder, c=collection, of=of: of(  # type: ignore[misc]
                        similarity_scorer(LearnedSimilarity.from_pretrained(f), c)
                    ),
                )
        for name in VARIANTS:
            if (output / name / "config.json").exists():
                results.of(
                    name,
                    collection.name,
                    lambda n=name, c=collection, of=of: of(cmc_scorer(n, c, output)),  # type: ignore[misc]
                )
    print(table(results))


def table(results: Results) -> str:
    """Markdown: recalls over all worlds' queries, the seeds' mean with its standard deviation over seeds."""
    names = list(dict.fromkeys(key.partition(" | ")[0] for key in results.rows))
    seeds = [name for name in names if name in SEEDS]
    heads = [*METRICS, "normalised accuracy", "milliseconds", "bytes an item"]
    lines = [f"| | {' | '.join(heads)} |", f"|{'---|' * (1 + len(heads))}"]
    for name in names:
        cells = [f"{results.pooled(name, metric).mean():.3f}" for metric in METRICS]
        try:
            values = results.pooled(name, "normalised")
            cells.append("{:.3f} ({:.3f} to {:.3f})".format(*interval(values[np.isfinite(values)])))
        except KeyError:
            cells.append("-")
        cells += [f"{results.pooled(name, 'milliseconds').mean():.1f}", f"{results.pooled(name, 'bytes').mean():,.0f}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if len(seeds) > 1:
        means = [[np.nanmean(results.pooled(name, column)) for name in seeds] for column in (*METRICS, "normalised")]
        cells = [f"{np.mean(found):.3f} ± {np.std(found, ddof=1):.3f}" for found in means]
        lines.append(f"| CMC, {len(seeds)} seeds | {' | '.join(cells)} | | |")
    return "\n".join(lines)


def pipeline(
    collections: list[Collection],
    queries: int,
    pairs: list[int],
    lists: list[int],
    models: list[LearnedSimilarity],
    output: Path,
) -> None:
    """Table 2, with CMC and the cross-encoder, whose pairs are scored once for all rows.

    Times are processor time, which is that of one thread where OMP_NUM_THREADS=1; the cross-encoder's in a row is the
    mean time of a pair, times pairs.
    """
    results = Results(output / "pipeline.json")
    compare, cross = models
    dense = Dense(DE)
    for collection in collections:
        if all(f"dual encoder's {k} | {collection.name}" in results.rows for k in pairs):
            continue
        rows, _ = split_queries(collection, min(queries, len(collection.queries)), seed=0)
        comparing, scorer = similarity_scorer(compare, collection), similarity_scorer(cross, collection)
        dense.index(collection)
        start = time.process_time()
        found = dense.search(rows, max(*lists, *pairs))[0]
        retrieval = 1000 * (time.process_time() - start) / len(rows)
        fed: dict[str, tuple[Rows, float]] = {f"dual encoder's {k}": (found[:, :k], retrieval) for k in pairs}
        for size in lists:
            start = time.process_time()
            scores = comparing.score_lists(rows, found[:, :size])
            order = top_order(scores, found[:, :size], max(pairs))
            spent = retrieval + 1000 * (time.process_time() - start) / len(rows)
            kept = np.take_along_axis(found[:, :size], order, axis=1)
            fed |= {f"CMC's {k} of {size}": (kept[:, :k], spent) for k in pairs if k < size}
        start, before = time.process_time(), int(scorer.calls.sum())
        ranked = {name: scorer.score_lists(rows, kept) for name, (kept, _) in fed.items()}
        pair = 1000 * (time.process_time() - start) / (int(scorer.calls.sum()) - before)
        for name, (kept, spent) in fed.items():
            best = np.take_along_axis(kept, top_order(ranked[name], kept, 1), axis=1)[:, 0]
            hits = accuracy(best, collection, rows)
            row = {
                "accuracy": hits.tolist(),
                "recall": retrieved(kept, collection, rows).tolist(),
                "milliseconds": spent + pair * kept.shape[1],
                "before": spent,
            }
            results.of(name, collection.name, lambda row=row: row)  # type: ignore[misc]
    lines = ["| fed | recall | accuracy | milliseconds | of them before the cross-encoder |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(key.partition(" | ")[0] for key in results.rows):
        hits = "{:.3f} ({:.3f} to {:.3f})".format(*interval(results.pooled(name, "accuracy")))
        spent, before = (results.pooled(name, column).mean() for column in ("milliseconds", "before"))
        lines.append(f"| {name} | {results.pooled(name, 'recall').mean():.3f} | {hits} | {spent:.0f} | {before:.1f} |")
    print("\n".join(lines))


def main() -> None:
    """Measures what is missing and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rerank", "pipeline"])
    parser.add_argument("--worlds", nargs="+", default=["noun.event", "verb.communication"])
    parser.add_argument("--queries", type=int, default=None, help="of each world; 200 for rerank, 50 for pipeline")
    parser.add_argument("--depth", type=int, default=512)
    parser.add_argument("--pairs", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--lists", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--cmc", default="checkpoints/wordnet-cmc")
    parser.add_argument("--cross-encoder", default="checkpoints/wordnet-emb-ce")
    parser.add_argument("--output", type=Path, default=Path("out/cmc"))
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    read = load_wordnet(find_wordnet(), titles=False, only=options.worlds)
    collections = [read[name] for name in options.worlds]
    if options.what == "rerank":
        rerank(collections, options.queries or 200, options.depth, options.output)
    else:
        models = [LearnedSimilarity.from_pretrained(folder) for folder in (options.cmc, options.cross_encoder)]
        pipeline(collections, options.queries or 50, options.pairs, options.lists, models, options.output)


if __name__ == "__main__":
    main()
