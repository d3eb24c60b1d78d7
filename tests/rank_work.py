"""Trainings of which two processes are two ranks, for the tests that look at what they mine and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from lightning import Callback, Trainer

from simzoo.core.candidates import Candidates
from simzoo.core.records import Collection
from simzoo.datamodules.training_data import TrainingData
from simzoo.retrieval import mined, mining
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.mining import MineCandidates
from tests.ports import free_port
from tests.test_mining import student
from tests.toy import toy

ROOT = Path(__file__).parents[1]
Found = Callable[[Any, Collection, int], Candidates]


def ranks(folder: Path, stage: str, accident: str = "") -> list[subprocess.Popen[str]]:
    """Two processes as torchrun would start them; each trains two epochs of two joint batches a collection."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "NODE_RANK": "0"}
    started = []
    for rank in range(2):
        own = {"LOCAL_RANK": str(rank), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "tests.rank_work", str(folder), stage, accident]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(words, cwd=ROOT, env={**os.environ, **shared, **own}, **pipes))
    return started


class Watch(Callback):
    """What each rank was handed, at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_fit_end(self, trainer: Trainer, pl_module: Any) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        np.savez(self.folder / f"rank-{trainer.global_rank}.npz", **given(data))


def given(data: TrainingData) -> dict[str, np.ndarray[Any, Any]]:
    """All candidates by what they are."""
    found = {}
    for split in ("train", "dev"):
        for index, part in enumerate(data.parts(split)):  # type: ignore[arg-type]
            if part.candidates is None:  # nothing is validated
                continue
            found[f"{split} {index} items"] = part.candidates.items
            found[f"{split} {index} scores"] = part.candidates.scores
            if part.candidates.gold is not None:
                found[f"{split} {index} gold"] = part.candidates.gold.scores
    return found


def train(folder: Path, stage: str, accident: str = "", **settings: Any) -> TrainingData:
    """Says in a log who mined for how many queries."""
    whole, mined.SHARD = mined.SHARD, 5
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    find: Found = mining.found_of

    def logged(first_stage: Any, part: Collection, depth: int) -> Candidates:
        if rank == 1 and accident == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1 and accident == "error":
            raise ValueError("no memory is left")
        with (folder / "log").open("a") as log:
            log.write(json.dumps([rank, part.name, part.queries[0].id]) + "\n")
        return find(first_stage, part, depth)

    mining.found_of = logged
    content = mining._content
    mining._content = lambda model: content(model) + "on another processor" * rank
    miner = MineCandidates(BM25() if stage == "BM25" else None, depth=10, every_n_epochs=int(stage != "BM25"))
    data = toy()
    fit = Trainer(
        **{"max_epochs": 2, **settings},
        accelerator="cpu",
        callbacks=[miner, Watch(folder)],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        use_distributed_sampler=False,
    )
    fit.fit(student(), datamodule=data)
    mining.found_of, mined.SHARD, mining._content = find, whole, content
    return data


if __name__ == "__main__":
    train(Path(sys.argv[1]), sys.argv[2], sys.argv[3], strategy="ddp", devices=2)
