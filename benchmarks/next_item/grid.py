"""Next-item recommendation: SASRec and HSTU with cosine and with Mixture-of-Logits, with and without L_MI, by seed.

    python -m benchmarks.next_item.grid --recipes configs/ml-100k --path data/ml-100k/ml-100k.inter \
        [--seeds 0 1 2] [--cells SASRec "SASRec + MoL" ...] [--users 10000] [--output out/next-item/ml-100k] \
        [--plot docs/mi_loss.svg] [--set trainer.max_epochs=10 ...]

Trains each cell's recipe with each seed, keeps the weights that are best on the validation split, and ranks each user's
last item: among all items that the user has not seen, and among 100 random ones of these (the SASRec paper's protocol).
What is finished is kept in ``--output`` and not done again; a run that was killed goes on at its last epoch. The table
holds means over seeds with their 95 % intervals (Student's t); one seed has none.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from matplotlib.figure import Figure
from scipy import stats

from simzoo import train
from simzoo.core.files import replacing
from simzoo.core.recipes import read_recipe
from simzoo.datamodules.next_items import NextItemLists
from simzoo.datamodules.training_data import TrainingData
from simzoo.models.formats import restore, save
from simzoo.models.next_item import NextItem, rank_metrics, target_ranks
from simzoo.retrieval.results.run_files import commit, versions


@dataclass(frozen=True)
class Cell:
    """A row of the table: a recipe, its encoder, whether it has gates, and the weight of their loss if not its own."""

    recipe: str
    encoder: str
    gates: bool = False
    gate_weight: float | None = None

    def folder(self, seed: int) -> str:
        """Of a run."""
        return f"{self.recipe}{'' if self.gate_weight is None else f'-mi-{self.gate_weight:g}'}-{seed}"


CELLS = {
    "SASRec, its own loss": Cell("sasrec_bce", "SASRec"),
    "SASRec": Cell("sasrec", "SASRec"),
    "SASRec + MoL": Cell("sasrec_mol", "SASRec", gates=True),
    "SASRec + MoL, no L_MI": Cell("sasrec_mol", "SASRec", gates=True, gate_weight=0.0),
    "SASRec + MoL, L_MI x 0.1": Cell("sasrec_mol", "SASRec", gates=True, gate_weight=0.1),
    "HSTU": Cell("hstu", "HSTU"),
    "HSTU + MoL": Cell("hstu_mol", "HSTU", gates=True),
    "HSTU + MoL, no L_MI": Cell("hstu_mol", "HSTU", gates=True, gate_weight=0.0),
}
PROTOCOLS = {"all items": None, "100 sampled": 100}
SHOWN = {"all items": ("hr@1", "hr@10", "hr@50", "hr@200", "ndcg@10", "mrr"), "100 sampled": ("hr@10", "ndcg@10")}
ENTROPIES = {"train/entropy_of_mean_gate": "of the mean gate", "train/mean_entropy_of_gates": "of a gate, mean"}
BLOCK = 64  # users ranked together


class History(Callback):
    """Appends what was logged in an epoch, and its seconds, to a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.start = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
        line = {"epoch": trainer.current_epoch, "seconds": time.perf_counter() - self.start, **logged}
        with self.path.open("a") as stream:
            stream.write(json.dumps(line) + "\n")


def history(folder: Path) -> list[dict[str, float]]:
    """One dictionary an epoch; of an epoch that was begun twice, the last."""
    lines = (json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines())
    return list({line["epoch"]: line for line in lines}.values())


def settings(recipe: Path, path: Path, seed: int, gate_weight: float | None, folder: Path) -> dict[str, Any]:
    """The recipe's, with the run's data, seed and folder; its callbacks are the benchmark's own."""
    found = read_recipe(recipe)
    found["seed_everything"] = found["model"]["init_args"]["seed"] = found["data"]["seed"] = seed
    found["data"]["source"]["init_args"]["path"] = str(path.resolve())
    if gate_weight is not None:
        gates = {"class_path": "MutualInformation", "init_args": {"weight": gate_weight}}
        found["model"]["init_args"]["gate_loss"] = gates
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    found["trainer"] |= {"default_root_dir": str(folder), **quiet}
    for key in ("output", "monitor", "resume_every"):
        del found[key]
    return found


def trained(folder: Path, config: dict[str, Any], changes: Sequence[str]) -> tuple[NextItem, TrainingData]:
    """Trains, or goes on; the model with the best weights, and the data."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    cli = train.main(["--config", str(folder / "recipe.yaml"), *(f"--{change}" for change in changes)], run=False)
    plain = {"dirpath": folder, "enable_version_counter": False}
    best = ModelCheckpoint(filename="best", monitor="val/ndcg@10", mode="max", **plain)
    resume = ModelCheckpoint(filename="resume", save_on_train_epoch_end=True, **plain)
    cli.trainer.callbacks += [History(folder / "history.jsonl"), best, resume]
    kept = folder / "resume.ckpt"
    cli.trainer.fit(cli.model, cli.datamodule, ckpt_path=kept if kept.exists() else None, weights_only=True)
    restore(cli.model, folder / "best.ckpt")
    save(cli.model, folder / "release")
    return cli.model.eval(), cli.datamodule


@torch.inference_mode()
def tested(model: NextItem, data: TrainingData, users: int | None) -> dict[str, dict[str, float]]:
    """By protocol the mean of each metric over the users' last items."""
    found = {}
    collection = data.collections("test")[0].sample(users)
    for protocol, negatives in PROTOCOLS.items():
        lists = NextItemLists(val_negatives=negatives).validation(collection, model, data.seed)
        ranks = []
        for start in range(0, len(lists), BLOCK):
            batch = lists.batch(range(start, min(start + BLOCK, len(lists))), epoch=0)
            ranks.append(target_ranks(model.list_scores(batch), batch.targets.labels, batch.targets.mask))
        found[protocol] = {name: float(column.mean()) for name, column in rank_metrics(torch.cat(ranks)).items()}
    return found


def measured(folder: Path, config: dict[str, Any], changes: Sequence[str], users: int | None) -> dict[str, Any]:
    """What a run's metrics.json holds; trains and tests first if there is none."""
    kept = folder / "metrics.json"
    asked = {"config": config, "changes": list(changes), "users": users}
    if kept.exists():
        found: dict[str, Any] = json.loads(kept.read_text())
        if found["asked"] != asked:
            raise SystemExit(f"error: {kept} is of other settings; name another --output, or remove {folder}")
        return found
    model, data = trained(folder, config, changes)
    start = time.perf_counter()
    metrics = tested(model, data, users)
    past = history(folder)
    found = {
        "asked": asked,
        "metrics": metrics,
        "epochs": len(past),
        "best_epoch": max(past, key=lambda line: line.get("val/ndcg@10", 0.0))["epoch"],
        "train_seconds": sum(line["seconds"] for line in past),
        "test_seconds": time.perf_counter() - start,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "commit": commit(),
        "versions": versions(),
        "threads": torch.get_num_threads(),
    }
    with replacing(kept) as file:
        file.write(json.dumps(found, indent=2).encode())
    return found


def shown(values: Sequence[float]) -> str:
    """Mean, and its 95 % interval over the seeds."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.4f}"
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return f"{mean:.4f} ({mean - half:.4f} to {mean + half:.4f})"


def table(runs: dict[str, list[dict[str, Any]]], protocol: str) -> str:
    """Markdown."""
    names = SHOWN[protocol]
    lines = [f"| {protocol} | seeds | {' | '.join(name.upper() for name in names)} |", f"|{'---|' * (2 + len(names))}"]
    for cell, found in runs.items():
        columns = [shown([run["metrics"][protocol][name] for run in found]) for name in names]
        lines.append(f"| {cell} | {len(found)} | {' | '.join(columns)} |")
    return "\n".join(lines)


def plot(runs: dict[str, list[Path]], path: Path) -> None:
    """Entropies of the gates of positive pairs over training, a panel an encoder, a colour a weight of L_MI."""
    figure = Figure(figsize=(8, 3.8), layout="constrained")
    mixtures = {CELLS[name]: folders for name, folders in runs.items() if CELLS[name].gates}
    encoders = list(dict.fromkeys(cell.encoder for cell in mixtures))
    panels = figure.subplots(1, len(encoders), sharey=True, squeeze=False)[0]
    weights = list(dict.fromkeys(cell.gate_weight for cell in mixtures))
    for cell, folders in mixtures.items():
        panel = panels[encoders.index(cell.encoder)]
        weight = "as in the recipe" if cell.gate_weight is None else f"x {cell.gate_weight:g}"
        colour = f"C{weights.index(cell.gate_weight)}"
        for name, style in zip(ENTROPIES, ("-", "--"), strict=True):
            seeds = [[line[name] for line in history(folder)] for folder in folders]
            values = np.mean([seed[: min(map(len, seeds))] for seed in seeds], axis=0)
            label = f"{ENTROPIES[name]}, L_MI {weight}"
            panel.plot(np.arange(1, len(values) + 1), values, style, color=colour, label=label)
    for panel, encoder in zip(panels, encoders, strict=True):
        panel.set(title=encoder, xlabel="epoch")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("entropy in nats")
    lines = {line.get_label(): line for panel in panels for line in panel.get_lines()}
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(weights), fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Runs what is missing; prints the tables; draws the entropies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", type=Path, required=True)
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--cells", nargs="+", choices=list(CELLS), default=None)
    parser.add_argument("--users", type=int, default=None, help="test on a fixed random sample of so many users")
    parser.add_argument("--output", type=Path, default=None)
    parser.add_argument("--plot", type=Path, default=None)
    parser.add_argument("--set", nargs="+", default=[], help="changes to every recipe, as on train.py's command line")
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    output = options.output or Path("out/next-item") / options.recipes.name
    cells = options.cells or [name for name, c in CELLS.items() if (options.recipes / f"{c.recipe}.yaml").exists()]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in cells}
    folders: dict[str, list[Path]] = {name: [] for name in cells}
    for seed in options.seeds:
        for name in cells:
            cell = CELLS[name]
            folder = output / cell.folder(seed)
            config = settings(options.recipes / f"{cell.recipe}.yaml", options.path, seed, cell.gate_weight, folder)
            run = measured(folder, config, options.set, options.users)
            runs[name].append(run)
            folders[name].append(folder)
            best = f"best epoch {run['best_epoch']} of {run['epochs']}, {run['train_seconds']:.0f} s"
            print(f"{name}, seed {seed}: {best}; {json.dumps(run['metrics'])}", flush=True)
    for protocol in PROTOCOLS:
        print(f"\n{table(runs, protocol)}")
    if options.plot is not None:
        plot(folders, options.plot)


if __name__ == "__main__":
    main()
