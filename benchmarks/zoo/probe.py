"""What a recipe will take: a few steps of it on a small part of its data."""

from __future__ import annotations

import json
import math
import re
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from lightning import Callback

from simzoo import train
from simzoo.core.records import Collection
from simzoo.datamodules.readers.wordnet import TRAIN_WORLDS, find_wordnet, load_wordnet
from simzoo.retrieval.storage.encoding import encode_items, encode_queries

STEPS = 6  # of which the first one is not counted
WORLDS = ["verb.body", "verb.consumption"]
PAIRS = 8, 16  # queries and items whose pairs are scored


@dataclass(frozen=True)
class Rates:
    """What was measured, and what it has to be multiplied by.

    Attributes:
        step: seconds a step.
        steps: of the whole recipe.
        preparing: seconds of tokenising and mining the whole of it.
        pair: seconds to score a pair.
    """

    step: float
    steps: int
    preparing: float
    pair: float

    @property
    def hours(self) -> float:
        """Of preparing and training."""
        return (self.preparing + self.steps * self.step) / 3600


class Clock(Callback):
    """When batches began."""

    def __init__(self) -> None:
        self.begun = time.perf_counter()
        self.batches: list[float] = []
        self.total = 0

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Before anything is tokenised or mined."""
        self.begun = time.perf_counter()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A batch is at hand; on a GPU the one before it may still be at work."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.batches.append(time.perf_counter())
        batches = trainer.num_training_batches
        self.total = int(batches) if math.isfinite(batches) else 0  # a stream has no end that is known


def reduced(recipe: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A recipe with few queries and steps, which writes into ``folder`` alone."""
    small: dict[str, Any] = json.loads(json.dumps(recipe))
    data, trainer = small["data"], small.setdefault("trainer", {})
    for key in ("source", "lists", "miner"):
        if isinstance(data.get(key), str):
            data[key] = {"class_path": data[key]}
    for key in ("output", "monitor", "resume_every", "patience", "release"):
        small.pop(key, None)
    trainer.update(
        max_steps=STEPS,
        max_epochs=-1,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
    )
    own = small["model"].get("init_args") or {}
    for part, key in ((own.get("backbone"), "start"), (own.get("prior"), "checkpoint")):
        if part:
            part[key] = None  # not trained yet, perhaps; steps take as long from anywhere
    for key in ("val_check_interval", "check_val_every_n_epoch", "limit_train_batches"):
        trainer.pop(key, None)
    if _class(data.get("source")) == "WordNet":
        data["source"].setdefault("init_args", {})["train_worlds"] = WORLDS
        data["max_train_queries"] = STEPS * data.get("batch_size", 8)
    if "init_args" in (data.get("miner") or {}):
        data["miner"]["init_args"].pop("folder", None)
    if "records" in data["lists"].get("init_args", {}):
        data["lists"]["init_args"]["records"] = [str(lessons(folder))]
    return small


def lessons(folder: Path, items: int = 64) -> Path:
    """Records like those of `evaluate.py teach`, with scores at random."""
    rng, path = np.random.default_rng(0), folder / "lessons.jsonl"
    world = load_wordnet(find_wordnet(), only=WORLDS[:1])[WORLDS[0]]
    with path.open("w", encoding="utf-8") as file:
        for query in world.queries[:512]:
            rows = rng.choice(len(world.items), items, replace=False)
            listed = [
                {"id": world.items[r].id, "content": world.items[r].text, "score": rng.normal(), "type": "negative"}
                for r in rows
            ]
            listed[0]["type"] = "positive"
            file.write(json.dumps({"query": {"id": query.id, "content": query.text}, "items": listed}) + "\n")
    return path


def probe(recipe: Mapping[str, Any], options: Mapping[str, Any]) -> Rates:
    """Measures a recipe.

    Args:
        recipe: parsed, with the folders of the run.
        options: over it.

    Raises:
        OSError, ValueError: what the recipe needs is not there.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder, clock = Path(scratch), Clock()
        whole = overlaid(recipe, options)
        path = folder / "recipe.yaml"
        path.write_text(yaml.safe_dump(reduced(whole, folder)))
        cli = train.main([f"--config={path}"], run=False)
        cli.trainer.callbacks.append(clock)  # type: ignore[attr-defined]
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        if len(clock.batches) < 2:
            raise ValueError(f"the probe made {len(clock.batches)} steps, too few to measure")
        step = float(np.median(np.diff(clock.batches[1:] if len(clock.batches) > 2 else clock.batches)))
        here = cli.datamodule.collections("train")
        pair = _seconds_a_pair(cli.model, here[0]) if here and cli.model.text is not None else 0.0
        queries = _queries(whole, cli.datamodule.source) or 0
        miner = whole["data"].get("miner")
        taught = isinstance(miner, dict) and "teacher" in (miner.get("init_args") or {})
        ratio = 1.0
        if queries and here:
            ratio = queries / sum(len(part.queries) for part in here)
            if not taught:  # mining is encoding items
                ratio = _items(whole) / sum(len(part.items) for part in here)
        preparing = (clock.batches[0] - clock.begun) * max(1.0, ratio)
        return Rates(step, steps_of(whole, queries, clock.total), preparing, pair)


def overlaid(recipe: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe with options of the command line, which leave out ``init_args``."""
    whole: dict[str, Any] = json.loads(json.dumps(recipe))
    for name, value in options.items():
        node, *_ = [whole]
        *path, last = name.split(".")
        for key in path:
            node = node.setdefault(key, {})
            node = node["init_args"] if "class_path" in node else node
        node[last] = value
    return whole


def steps_of(recipe: Mapping[str, Any], queries: int, batches: int) -> int:
    """Steps of a recipe.

    Args:
        recipe: parsed.
        queries: that it trains on; 0: not known, and an epoch has ``batches``.
        batches: of an epoch, where queries are not known.
    """
    trainer = recipe.get("trainer") or {}
    batches = math.ceil(queries / recipe["data"].get("batch_size", 8)) if queries else batches
    limit = trainer.get("limit_train_batches")
    batches = batches if limit is None else min(batches, limit) if isinstance(limit, int) else int(batches * limit)
    steps = batches * max(trainer.get("max_epochs") or 1, 1)
    most = trainer.get("max_steps") or -1
    return steps if most < 0 else most if (trainer.get("max_epochs") or -1) < 0 else min(steps, most)


def _queries(recipe: Mapping[str, Any], source: Any) -> int | None:
    """Queries that a recipe trains on; None: not of WordNet."""
    if _class(recipe["data"].get("source")) != "WordNet":
        return None
    total = sum(len(world.queries) for world in _worlds(recipe))
    return min(total, recipe["data"].get("max_train_queries") or total)


def _items(recipe: Mapping[str, Any]) -> int:
    """Items that a recipe's mining encodes: twice, if some queries see them without titles."""
    sides = 2 if 0 < recipe["data"].get("title_dropout", 0) < 1 else 1
    return sides * sum(len(world.items) for world in _worlds(recipe))


def _worlds(recipe: Mapping[str, Any]) -> list[Collection]:
    source = recipe["data"]["source"]
    given = source.get("init_args", {}) if isinstance(source, dict) else {}
    names = given.get("train_worlds") or TRAIN_WORLDS
    return list(load_wordnet(find_wordnet(), only=tuple(names)).values())


def _class(node: Any) -> str:
    return re.sub(r".*\.", "", node if isinstance(node, str) else node["class_path"]) if node else ""


@torch.inference_mode()
def _seconds_a_pair(model: Any, collection: Collection) -> float:
    model.eval()
    queries, items = PAIRS
    asked, found = encode_queries(model, collection.queries[:queries]), encode_items(model, collection.items[:items])
    start = time.perf_counter()
    model.score(asked, found)
    return (time.perf_counter() - start) / (min(queries, len(collection.queries)) * min(items, len(collection.items)))


def kept(path: Path, key: str, measure: Any) -> Rates:
    """What was measured before under this key, or what ``measure()`` finds, which is kept."""
    known = json.loads(path.read_text()) if path.is_file() else {}
    if key not in known:
        known[key] = asdict(measure())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(known, indent=2) + "\n")
    return Rates(**known[key])
