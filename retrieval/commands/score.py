"""``evaluate.py score``: metrics with intervals of a run that any program has written; no model is needed."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from simzoo.core.progress import show_table
from simzoo.retrieval.results import run_files
from simzoo.retrieval.results.metrics import interval
from simzoo.retrieval.results.other_runs import score_run
from simzoo.retrieval.results.output import check_folder


def score(
    trec: Path, qrels: Path, metrics: list[str] | None = None, output: Path | None = None, overwrite: bool = False
) -> None:
    """Metrics of a TREC run against judgements, with 95 % intervals over all judged queries, ordered as in trec_eval.

    Args:
        trec: the run: query, Q0, item, rank, score and tag between blanks.
        qrels: the judgements: query, 0, item and grade between blanks; or BEIR's qrels/test.tsv, with its header.
        metrics: names as ir-measures has them. None: nDCG@10, RR@10, R@1, R@10, R@64 and R@100, as deep as the run is.
        output: folder for metrics.json and per_query.jsonl, which ``evaluate.py compare`` takes; None: writes nothing.
        overwrite: replace results that are in the output folder; they are refused otherwise.
    """
    if output is not None:
        check_folder(output, overwrite)
    found = score_run(trec, qrels, metrics)
    means = {name: interval(values) for name, values in found.values.items()}
    rows = [(name, f"{mean:.4f}", f"{low:.4f} to {high:.4f}") for name, (mean, low, high) in means.items()]
    show_table(("metric", "mean", "95 % interval"), rows)
    print(f"{len(found.queries):,} judged queries")
    for note in found.notes:
        print(f"note: {note}")
    if output is None:
        return
    count = len(found.queries)
    described = {
        "checkpoint": {"name": None, "sha256": None},
        "data": {"name": str(qrels), "fingerprint": found.fingerprint, "notes": {}},
        "searcher": {"name": found.tag, "run": str(trec)},
        "queries": count,
        "metrics": {
            name: {"mean": mean, "low": low, "high": high, "queries": count}
            for name, (mean, low, high) in means.items()
        },
        "cost": {},
        "index_seconds": {},
        "index_calls": 0,
        "command": shlex.join(["python", *sys.argv]),
        "commit": run_files.commit(),
        "versions": run_files.versions(),
    }
    run_files.write_per_query(output, found.queries, {name: values.tolist() for name, values in found.values.items()})
    run_files.write_metrics(output, described)
    print(f"written: {output / 'metrics.json'}")
