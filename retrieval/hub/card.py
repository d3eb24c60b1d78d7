"""Model cards: README.md of a checkpoint folder, made from its config.json and metrics.json."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from simzoo.core.hub import write_manifest
from simzoo.core.records import DataError
from simzoo.models.formats import load, similarity_class
from simzoo.models.similarity import LearnedSimilarity
from simzoo.retrieval.results.run_files import read_metrics, write_text

SHOWN = ("accuracy", "accuracy (ambiguous)", "nDCG@10", "R@10", "R@64")
KEPT = (
    "data",
    "searcher",
    "queries",
    "metrics",
    "cost",
    "bytes",
    "index_seconds",
    "index_calls",
    "command",
    "commit",
    "versions",
)
SECTIONS = ("What it is", "Use", "Data", "Recipe", "Results", "Cost", "Limits", "Citation")


@dataclass
class About:
    """What no file of a checkpoint says by itself.

    Attributes:
        data: what it was trained on, and what it has not seen.
        recipe: how it was trained.
        limits: what it is not good for.
        query: of the example.
        documents: of the example.
        license: of the weights, as the Hub names it (apache-2.0, mit, cc-by-4.0, other); none is claimed unasked.
    """

    data: str
    recipe: str
    limits: str
    query: str = "a flat-bottomed boat"
    documents: tuple[str, ...] = ("an open boat for shallow water", "a financial institution")
    license: str = ""


def write_card(folder: Path, runs: Sequence[Path], about: About) -> None:
    """Writes metrics.json, with what the runs measured, README.md and manifest.json.

    Args:
        folder: the checkpoint's.
        runs: output folders of ``evaluate.py run`` with this checkpoint's weights.
        about: the parts that are told, not measured.

    Raises:
        DataError: no runs, or a run of other weights.
    """
    model = load(folder)
    measured = []
    for run in runs:
        found = read_metrics(run)
        if found["checkpoint"]["sha256"] != model.weights_sha256:
            raise DataError(f"was run with other weights than {folder} has; evaluate it again", run)
        measured.append({key: found[key] for key in KEPT if key in found})
    if not measured:
        raise DataError("a card needs at least one run of this checkpoint", folder)
    described = {"sha256": model.weights_sha256, "about": asdict(about), "runs": measured}
    write_text(folder / "metrics.json", json.dumps(described, indent=2) + "\n")
    write_text(folder / "README.md", render(folder, f"checkpoints/{folder.name}"))
    write_manifest(folder)


def render(folder: Path, name: str) -> str:
    """The card of a checkpoint folder, as text.

    Args:
        folder: with config.json and the metrics.json of `write_card`.
        name: what the example loads: where the checkpoint will be found.

    Raises:
        DataError: there is no such metrics.json.
        ValueError: config.json names no similarity of this project.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    path = folder / "metrics.json"
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
        about, runs = About(**described["about"]), described["runs"]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"no card can be made of it ({error!r}); write it with `python evaluate.py card`", path
        ) from error
    cls = similarity_class(folder)
    title = name.rpartition("/")[2]
    parts = {
        "What it is": _what(folder, cls, config),
        "Use": _use(config, name, about),
        "Data": about.data,
        "Recipe": about.recipe,
        "Results": "\n\n".join(
            [
                "Means with 95 % bootstrap intervals over queries.",
                _table(runs),
                *(f"    {run['command']}" for run in runs),
            ]
        ),
        "Cost": _cost(folder, runs),
        "Limits": about.limits,
        "Citation": f"```bibtex\n{cls.citation}\n```" if cls.citation else "",
    }
    assert tuple(parts) == SECTIONS
    body = "\n\n".join(f"## {heading}\n\n{part}" for heading, part in parts.items())
    return str(ModelCard(f"---\n{_metadata(cls, config, title, about, runs).to_yaml()}\n---\n\n# {title}\n\n{body}\n"))


def empty_sections(card: str) -> list[str]:
    """The required sections of a card that are missing or say nothing."""
    text = re.sub(r"<!--.*?-->", "", card, flags=re.DOTALL).replace("[More Information Needed]", "")
    parts = re.split(r"^## +(.*?) *$", text, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    return [
        name for name in SECTIONS if not re.search(r"\w", found.get(name, "").replace("[More Information Needed]", ""))
    ]


def _task(cls: type[LearnedSimilarity], config: dict[str, Any]) -> tuple[str | None, list[str]]:
    """The Hub's tag for what a model is used for, and the tags beside it."""
    if "backbone" not in config["arguments"]:
        return None, []  # the Hub has none for recommendation
    if cls.is_inner_product:
        return "sentence-similarity", ["feature-extraction"]
    return "text-ranking", []


def _metadata(
    cls: type[LearnedSimilarity], config: dict[str, Any], title: str, about: About, runs: Sequence[dict[str, Any]]
) -> ModelCardData:
    task, tags = _task(cls, config)
    results = [
        EvalResult(
            task_type=task or "recommendation",
            dataset_type=run["data"]["name"],
            dataset_name=run["data"]["name"],
            metric_type=name,
            metric_value=round(run["metrics"][name]["mean"], 4),
            metric_args={"searcher": run["searcher"]["name"], "command": run["command"]},
        )
        for run in runs
        for name in SHOWN
        if name in run["metrics"]
    ]
    backbone = config["arguments"].get("backbone")
    return ModelCardData(
        license=about.license or None,
        library_name="simzoo",
        base_model=backbone["name"] if backbone and not backbone["name"].startswith("./") else None,
        tags=["simzoo", "learned-similarity", cls.__name__, *tags],
        pipeline_tag=task,
        model_name=title,
        eval_results=results,
    )


def _what(folder: Path, cls: type[LearnedSimilarity], config: dict[str, Any]) -> str:
    size = (folder / "model.safetensors").stat().st_size
    backbone = config["arguments"].get("backbone")
    if backbone is None:
        return f"`{cls.__name__}`: weights of its own ({size:,} bytes), without a pretrained backbone."
    return (
        f"`{cls.__name__}` on `{backbone['name']}` (model.safetensors sha256 `{backbone['sha256']}`). This folder "
        f"holds what differs from that backbone ({size:,} bytes): adapters, tag embeddings and heads."
    )


def _use(config: dict[str, Any], name: str, about: About) -> str:
    lines = [
        "import simzoo",
        "",
        f'model = simzoo.load("{name}")',
        f"documents = {json.dumps(list(about.documents), ensure_ascii=False)}",
        f"for row, score in model.rank({json.dumps(about.query, ensure_ascii=False)}, documents):",
        '    print(f"{score:7.3f}  {documents[row]}")',
    ]
    if "item_ids" in config["arguments"]:  # it ranks items by what a user did
        lines = [
            "import simzoo",
            "from simzoo import History, Item",
            "",
            f'model = simzoo.load("{name}")',
            'known = model.arguments["item_ids"][:5]',
            'print(model.rank(History.of("me", known[:3], [0, 60, 120]), [Item(name, name) for name in known]))',
        ]
    return "```python\n" + "\n".join(lines) + "\n```"


def _table(runs: Sequence[dict[str, Any]]) -> str:
    names = [name for name in SHOWN if any(name in run["metrics"] for run in runs)]
    rows = [f"| data | searcher | queries | {' | '.join(names)} |", f"|{'---|' * (len(names) + 3)}"]
    for run in runs:
        values = [run["metrics"].get(name) for name in names]
        cells = ["-" if v is None else f"{v['mean']:.3f} ({v['low']:.3f} to {v['high']:.3f})" for v in values]
        head = [run["data"]["name"], run["searcher"]["name"], str(run["queries"])]
        rows.append(f"| {' | '.join([*head, *cells])} |")
    return "\n".join(rows)


def _cost(folder: Path, runs: Sequence[dict[str, Any]]) -> str:
    rows = [
        "A call is one scored pair; milliseconds and calls are means a query; bytes are those of the representations.",
        "",
        "| data | searcher | calls | ms | indexing, s | bytes |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        cost = [f"{run['cost'][name]['mean']:,.0f}" for name in ("calls", "milliseconds")]
        kept = sum(run["bytes"].values()) if "bytes" in run else None
        cells = [*cost, f"{sum(run['index_seconds'].values()):.1f}", "-" if kept is None else f"{kept:,}"]
        rows.append(f"| {' | '.join([run['data']['name'], run['searcher']['name'], *cells])} |")
    return "\n".join(rows)
