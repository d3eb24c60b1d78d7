"""CMC's Tables 1, 2, 4 and 12 on WordNet.

    python -m benchmarks.cmc.train
    python -m benchmarks.cmc.tables rerank [--worlds noun.event ...] [--queries 100] [--depth 512] [--sum-of-max DIR]
    python -m benchmarks.cmc.tables pipeline [--titles] [--worlds noun.event ...] [--queries 50] [--pairs 8 16 64]

``rerank``: what the dual encoder's first ``depth`` items become when poly-encoder, sum-of-max and each variant of CMC
put them into order, without titles; DIR is a trained checkpoint of sum-of-max. ``pipeline``: the cross-encoder's
accuracy on the first items of the dual encoder, and of CMC over more of them. Every row ranks the same random sample of
each world's queries. A row that is in ``--output`` already is not measured again, so that a killed run goes on. Times
are processor time, which is that of one thread where OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from numpy.typing import NDArray

from benchmarks.cmc.train import VARIANTS, stored
from benchmarks.hypencoder.frozen import DE, FrozenEncoder, Nearest
from simzoo.core.records import Collection, Query
from simzoo.core.reps import Reps
from simzoo.datamodules.readers.wordnet import TEST_WORLDS, find_wordnet, load_wordnet
from simzoo.models.formats import load
from simzoo.models.late_interaction import SumOfMax
from simzoo.models.parts.backbone import BackboneConfig, LoRA
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.similarity import LearnedSimilarity
from simzoo.models.towers import TwoTowers
from simzoo.retrieval.corpus import Corpus
from simzoo.retrieval.evaluation import split_queries
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.results.metrics import accuracy, interval, retrieved
from simzoo.retrieval.results.run_files import write_text
from simzoo.retrieval.results.significance import paired_randomization
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.storage.encoding import encode_items
from simzoo.retrieval.topk import Rows, top_order

KS = (1, 4, 8, 16, 32, 64)
SEEDS = [name for name in VARIANTS if name.startswith("seed-")]
FIRST, UNTRAINED, TRAINED = "dual encoder", "sum-of-max, not trained", "sum-of-max"
Row = dict[str, Any]
Values = NDArray[np.float64]


class Results:
    """Measured rows, by name and world, in a JSON file that is rewritten after each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, Row] = json.loads(path.read_text()) if path.exists() else {}

    def lacks(self, name: str, world: str) -> bool:
        """Whether a row is still to be measured."""
        return f"{name} | {world}" not in self.rows

    def add(self, world: str, rows: Mapping[str, Row]) -> None:
        """Keeps rows, all of them or none."""
        self.rows |= {f"{name} | {world}": row for name, row in rows.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps(self.rows, indent=1) + "\n")
        print(f"{world}: {', '.join(rows)}", flush=True)

    def names(self, worlds: Sequence[str]) -> list[str]:
        """Those that were measured on all of these worlds."""
        found = dict.fromkeys(key.partition(" | ")[0] for key in self.rows)
        return [name for name in found if not any(self.lacks(name, world) for world in worlds)]

    def pooled(self, name: str, column: str, worlds: Sequence[str]) -> Values:
        """Values of all the worlds' queries, or one a world."""
        found = [self.rows[f"{name} | {world}"][column] for world in worlds]
        return np.concatenate([np.atleast_1d(np.array(values, dtype=float)) for values in found])

    def hits(self, name: str, k: int, worlds: Sequence[str]) -> Values:
        """1 for each query whose gold item is among the first k, otherwise 0."""
        return (self.pooled(name, "rank", worlds) <= k).astype(float)


def row_of(kept: Rows, collection: Collection, rows: Rows, spent: float, item_bytes: float) -> Row:
    """The place of each query's gold item in its list, None where it is not in it; milliseconds and bytes."""
    places = [
        int(np.isin(found, collection.relevant(row)).argmax()) + 1 if there else None
        for found, row, there in zip(kept, rows.tolist(), retrieved(kept, collection, rows), strict=True)
    ]
    return {"rank": places, "milliseconds": spent, "bytes": item_bytes}


def reranked(model: LearnedSimilarity, items: Reps, collection: Collection, rows: Rows, found: Rows) -> Row:
    """What the model makes of the lists (B, K); the time is that of the scores, encodings excluded."""
    scorer = SimilarityJudge(model, items).scorer([collection.queries[row] for row in rows])
    start = time.process_time()
    scores = np.concatenate([scorer.score_lists(np.array([i]), found[i : i + 1]) for i in range(len(rows))])
    spent = 1000 * (time.process_time() - start) / len(rows)
    kept = np.take_along_axis(found, top_order(scores, found, found.shape[1]), axis=1)
    size = sum(part.nbytes for part in items.values()) / len(collection.items)
    return row_of(kept, collection, rows, spent, size)


def sum_of_max() -> SumOfMax:
    """Over wordnet-de's own token states."""
    backbone = BackboneConfig(lora=LoRA(), start=DE)
    model = SumOfMax(backbone, TokenConfig(query_length=64, item_length=64), width=None, tokens_per_batch=4096)
    model.query_encoder.merge()
    return model.eval()


def rerank(
    collections: list[Collection], queries: int, depth: int, sums: Mapping[str, Callable[[], TwoTowers]], output: Path
) -> None:
    """Tables 1, 4 and 12, with the named models of sum-of-max, which are loaded where they are to be measured."""
    results = Results(output / "rerank.json")
    frozen = cache(FrozenEncoder)
    dense = Nearest(frozen(DE))
    for collection in collections:
        world = collection.name
        rows, _ = split_queries(collection, min(queries, len(collection.queries)), seed=0)
        dense.index(Corpus.of(collection))
        asked = [collection.queries[row] for row in rows]
        start = time.process_time()
        found = dense.search(asked, min(depth, len(collection.items)))[0]
        spent = 1000 * (time.process_time() - start) / len(rows)
        if results.lacks(FIRST, world):
            results.add(world, {FIRST: row_of(found, collection, rows, spent, 4 * dense.frozen.width)})
        for name, variant in VARIANTS.items():
            if results.lacks(name, world) and (output / name / "config.json").exists():
                model = load(output / name)
                items = stored(model, frozen(variant.start), collection.items)
                results.add(world, {name: reranked(model, items, collection, rows, found)})
        for name, made in sums.items():
            if results.lacks(name, world):
                model = made()
                made_by = f"{name} {model.weights_sha256}"
                items = encode_items(model, collection.items, output / "token-states" / name / world, made_by)
                results.add(world, {name: reranked(model, items, collection, rows, found)})
    print(table(results, [collection.name for collection in collections]))


def table(results: Results, worlds: Sequence[str]) -> str:
    """Markdown: recalls over all worlds' queries, the seeds' mean with its standard deviation over seeds, gains."""
    heads = [*(f"R@{k}" for k in KS), "normalised accuracy", "milliseconds", "bytes an item"]
    lines = [f"| | {' | '.join(heads)} |", f"|{'---|' * (1 + len(heads))}"]
    names = results.names(worlds)
    there = np.isfinite(results.pooled(FIRST, "rank", worlds))
    means = {}
    for name in names:
        values = [results.hits(name, k, worlds) for k in KS]
        means[name] = [*(part.mean() for part in values), values[0][there].mean()]
        spent, size = (results.pooled(name, column, worlds).mean() for column in ("milliseconds", "bytes"))
        cells = " | ".join(f"{mean:.3f}" for mean in means[name])
        lines.append(f"| {name} | {cells} | {spent:.1f} | {size:,.0f} |")
    seeds = [name for name in names if name in SEEDS]
    if len(seeds) > 1:
        found = np.array([means[name] for name in seeds])
        spread = zip(found.mean(axis=0), found.std(axis=0, ddof=1), strict=True)
        lines.append(f"| {len(seeds)} seeds | {' | '.join(f'{mean:.3f} ± {std:.3f}' for mean, std in spread)} | | |")
    return "\n".join([*lines, "", *gains(results, worlds, seeds)])


def gains(results: Results, worlds: Sequence[str], seeds: list[str]) -> list[str]:
    """Points over the dual encoder, queries paired; CMC's hits are the means over its seeds.

    The last column is the mean change of log2 of the gold item's place, over the queries whose list has it.
    """
    lines = ["| gain over the dual encoder | R@1 | R@16 | R@64 | log2 of the place |", f"|{'---|' * 5}"]
    groups = ({"CMC": seeds} if seeds else {}) | {
        name: [name] for name in results.names(worlds) if name not in (*seeds, FIRST)
    }
    places = np.log2(results.pooled(FIRST, "rank", worlds))
    for label, members in groups.items():
        cells = []
        for k in (1, 16, 64):
            first = results.hits(FIRST, k, worlds)
            second = np.mean([results.hits(name, k, worlds) for name in members], axis=0)
            mean, low, high = (100 * value for value in interval(second - first))
            cells.append(f"{mean:+.1f} ({low:+.1f} to {high:+.1f}), p {paired_randomization(first, second):.4f}")
        changes = np.mean([np.log2(results.pooled(name, "rank", worlds)) for name in members], axis=0) - places
        cells.append("{:+.2f} ({:+.2f} to {:+.2f})".format(*interval(changes[np.isfinite(changes)])))
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def fed(
    dense: Nearest, comparing: Scorer, asked: list[Query], pairs: list[int], lists: list[int]
) -> dict[str, tuple[Rows, float]]:
    """The lists that the cross-encoder gets, by name, with the milliseconds a query that they took."""
    start = time.process_time()
    found = dense.search(asked, max(*lists, *pairs))[0]
    retrieval = 1000 * (time.process_time() - start) / len(asked)
    made = {f"dual encoder's {k}": (found[:, :k], retrieval) for k in pairs}
    for size in lists:
        start = time.process_time()
        scores = comparing.lists(found[:, :size])
        order = top_order(scores, found[:, :size], max(pairs))
        spent = retrieval + 1000 * (time.process_time() - start) / len(asked)
        kept = np.take_along_axis(found[:, :size], order, axis=1)
        made |= {f"CMC's {k} of {size}": (kept[:, :k], spent) for k in pairs if k < size}
    return made


def pipeline(
    collections: list[Collection],
    queries: int,
    pairs: list[int],
    lists: list[int],
    models: tuple[TwoTowers, LearnedSimilarity],
    output: Path,
) -> None:
    """Table 2, with CMC and the cross-encoder, whose pairs are scored once for all rows.

    The cross-encoder's time in a row is the mean time of a pair, times pairs.
    """
    results = Results(output / "pipeline.json")
    compare, cross = models
    dense = Nearest(FrozenEncoder())
    for collection in collections:
        if not results.lacks(f"dual encoder's {max(pairs)}", collection.name):
            continue
        rows, _ = split_queries(collection, min(queries, len(collection.queries)), seed=0)
        dense.index(Corpus.of(collection))
        asked = [collection.queries[row] for row in rows]
        comparing = SimilarityJudge(compare, stored(compare, dense.frozen, collection.items)).scorer(asked)
        lists_of = fed(dense, comparing, asked, pairs, lists)
        scorer = SimilarityJudge.of(cross, collection.items).scorer(asked)
        start = time.process_time()
        ranked = {name: scorer.lists(kept) for name, (kept, _) in lists_of.items()}
        pair = 1000 * (time.process_time() - start) / int(scorer.calls.sum())
        measured = {}
        for name, (kept, spent) in lists_of.items():
            best = np.take_along_axis(kept, top_order(ranked[name], kept, 1), axis=1)[:, 0]
            measured[name] = {
                "accuracy": accuracy(best, collection, rows).tolist(),
                "recall": retrieved(kept, collection, rows).tolist(),
                "milliseconds": spent + pair * kept.shape[1],
                "before": spent,
            }
        results.add(collection.name, measured)
    print(pipeline_table(results, [collection.name for collection in collections], f"dual encoder's {max(pairs)}"))


def pipeline_table(results: Results, worlds: Sequence[str], whole: str) -> str:
    """Markdown; latency is relative to the cross-encoder on the longest list of the dual encoder's."""
    lines = ["| fed | recall | accuracy | milliseconds | of them before | relative |", f"|{'---|' * 6}"]
    slowest = results.pooled(whole, "milliseconds", worlds).mean()
    for name in results.names(worlds):
        hits = "{:.3f} ({:.3f} to {:.3f})".format(*interval(results.pooled(name, "accuracy", worlds)))
        recall, spent, before = (
            results.pooled(name, column, worlds).mean() for column in ("recall", "milliseconds", "before")
        )
        lines.append(f"| {name} | {recall:.3f} | {hits} | {spent:.0f} | {before:.1f} | {spent / slowest:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measures what is missing and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["rerank", "pipeline"])
    parser.add_argument("--worlds", nargs="+", default=TEST_WORLDS)
    parser.add_argument("--sum-of-max", default=None, help="rerank: a trained checkpoint, for a row of its own")
    parser.add_argument("--titles", action="store_true", help="pipeline: items are shown with their titles")
    parser.add_argument("--queries", type=int, default=None, help="of each world; 100 for rerank, 50 for pipeline")
    parser.add_argument("--depth", type=int, default=512)
    parser.add_argument("--pairs", type=int, nargs="+", default=[8, 16, 64])
    parser.add_argument("--lists", type=int, nargs="+", default=[64, 256, 512])
    parser.add_argument("--cmc", default="checkpoints/wordnet-cmc")
    parser.add_argument("--cross-encoder", default="checkpoints/wordnet-emb-ce")
    parser.add_argument("--output", type=Path, default=Path("out/cmc"))
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    read = load_wordnet(find_wordnet(), titles=options.titles, only=options.worlds)
    collections = [read[name] for name in options.worlds]
    if options.what == "rerank":
        sums: dict[str, Callable[[], TwoTowers]] = {UNTRAINED: cache(sum_of_max)}
        if options.sum_of_max is not None:
            sums[TRAINED] = cache(partial(TwoTowers.from_pretrained, options.sum_of_max))
        rerank(collections, options.queries or 100, options.depth, sums, options.output)
    else:
        models = load(options.cmc), load(options.cross_encoder)
        shown = "titled" if options.titles else "untitled"
        pipeline(collections, options.queries or 50, options.pairs, options.lists, models, options.output / shown)


if __name__ == "__main__":
    main()
