"""Model cards: README.md and metrics.json of a checkpoint folder, from its config and its evaluation runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from datamodules.records import DataError
from models.similarity import LearnedSimilarity
from retrieval.run_files import read_metrics, write_text

SHOWN = ("accuracy", "accuracy (ambiguous)", "nDCG@10", "R@64")


def write_card(folder: Path, runs: Sequence[Path], note: str) -> None:
    """Writes metrics.json, with what the runs measured, and README.md.

    Args:
        folder: the checkpoint's.
        runs: output folders of ``evaluate.py run`` with this checkpoint's weights.
        note: how it was trained and what it is not good for.

    Raises:
        DataError: no runs, or a run of other weights.
    """
    model = LearnedSimilarity.from_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    measured = []
    for run in runs:
        found = read_metrics(run)
        if found["checkpoint"]["sha256"] != model.weights_sha256:
            raise DataError(f"was run with other weights than {folder} has; evaluate it again", run)
        measured.append(found)
    if not measured:
        raise DataError("a card needs at least one run of this checkpoint", folder)
    kept = (
        "data",
        "searcher",
        "queries",
        "metrics",
        "cost",
        "index_seconds",
        "index_calls",
        "command",
        "commit",
        "versions",
    )
    write_text(
        folder / "metrics.json",
        json.dumps({"sha256": model.weights_sha256, "runs": [{k: run[k] for k in kept} for run in measured]}, indent=2)
        + "\n",
    )
    write_text(folder / "README.md", str(_card(folder, config, measured, note)))


def _card(folder: Path, config: dict[str, Any], runs: Sequence[dict[str, Any]], note: str) -> ModelCard:
    backbone = config["arguments"]["backbone"]
    results = [
        EvalResult(
            task_type="text-ranking",
            dataset_type=run["data"]["name"],
            dataset_name=run["data"]["name"],
            metric_type=name,
            metric_value=round(run["metrics"][name]["mean"], 4),
            metric_args={"searcher": run["searcher"]["name"]},
        )
        for run in runs
        for name in SHOWN
        if name in run["metrics"]
    ]
    data = ModelCardData(
        license="apache-2.0",
        library_name="simzoo",
        base_model=backbone["name"],
        model_name=folder.name,
        eval_results=results,
    )
    class_name = config["class"].rpartition(".")[2]
    lines = [
        f"# {folder.name}",
        f"`{class_name}` on `{backbone['name']}` (model.safetensors sha256 `{backbone['sha256']}`). This folder holds "
        "what differs from that backbone: adapters, tag embeddings and heads.",
        "## Use",
        "```python\nfrom models.similarity import LearnedSimilarity\n\n"
        f'model = LearnedSimilarity.from_pretrained("checkpoints/{folder.name}")\n'
        'print(model.rank("a flat-bottomed boat", ["an open boat for shallow water", "a financial institution"]))\n```',
        "## Training and limits",
        note,
        "## Results",
        "Means with 95 % bootstrap intervals over queries.",
        _table(runs),
        *(f"    {run['command']}" for run in runs),
    ]
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(lines) + "\n")


def _table(runs: Sequence[dict[str, Any]]) -> str:
    names = [name for name in SHOWN if any(name in run["metrics"] for run in runs)]
    rows = [f"| data | searcher | queries | {' | '.join(names)} | calls | ms |", f"|{'---|' * (len(names) + 5)}"]
    for run in runs:
        values = [run["metrics"].get(name) for name in names]
        cells = ["-" if v is None else f"{v['mean']:.3f} ({v['low']:.3f} to {v['high']:.3f})" for v in values]
        cost = [f"{run['cost'][name]['mean']:.0f}" for name in ("calls", "milliseconds")]
        head = [run["data"]["name"], run["searcher"]["name"]]
        rows.append(f"| {' | '.join([*head, str(run['queries']), *cells, *cost])} |")
    return "\n".join(rows)
