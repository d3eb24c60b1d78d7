"""Long work in small, for the tests that kill it: each function does one kind in a folder, and goes on where it was.

What it leaves at last is in ``folder / "done"``, made only when all is.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import torch
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import save_file

from simzoo.core.files import replacing
from simzoo.core.hub import file_sha256
from simzoo.core.interrupts import stopping
from simzoo.core.records import Item, Query
from simzoo.core.reps import Ragged, Reps
from simzoo.datamodules.training_data import TrainingData
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.durable import Durable, resolve
from simzoo.models.formats import load, save
from simzoo.models.training import Optimization
from simzoo.retrieval import teaching
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.first_stages.lexical import BM25
from simzoo.retrieval.hub import commands
from simzoo.retrieval.scorer import Scorer
from simzoo.retrieval.searchers.exact import Exact
from simzoo.retrieval.storage import generation, graph, score_matrix, texts
from simzoo.retrieval.storage.representations import RepresentationStore
from simzoo.retrieval.storage.score_matrix import build_matrix
from simzoo.train import Release, main
from tests.forks import forked
from tests.ports import free_port
from tests.test_recipes import ROOT, interactions, overlay
from tests.test_training import trainer as make_trainer
from tests.toy import toy, toy_collection

BLOCK = 8
PAUSE = 0.01  # seconds of a block: makes room for a kill
ITEMS = [Item(str(row), "boat") for row in range(200)]


def train(name: str) -> None:
    """Two epochs of twelve steps, kept every second, with the best weights released."""
    _trained(Path(name), toy())


def train_workers(name: str) -> None:
    """The same, with two processes that make batches ahead."""
    _trained(Path(name), toy(workers=2))


def train_ranks(name: str) -> None:
    """The same, of joint batches of two ranks; this process is either of them."""
    own = os.getpid() % 2
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "NODE_RANK": "0"}

    def rank(number: int) -> None:
        os.environ["LOCAL_RANK"] = str(number)
        if number != own:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the process that is killed
        _trained(Path(name), toy(batch_size=2), strategy="ddp", devices=2)

    other = forked(partial(rank, 1 - own))
    rank(own)
    if status := os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]):
        raise ValueError(f"the other rank ended with status {status}")


def _trained(folder: Path, data: TrainingData, **settings: Any) -> None:
    model = CrossEncoder.tiny()
    model.optimization = Optimization(lr=1e-3)
    kept = folder / "checkpoints"
    best = ModelCheckpoint(kept, "best", "val/mrr", mode="max", enable_version_counter=False)
    steps = ModelCheckpoint(kept, "resume", every_n_train_steps=2, enable_version_counter=False)
    with Durable() as durable:
        fit = make_trainer(folder, best, steps, Release(folder / "release"), durable, **settings)
        fit.fit(model, datamodule=data, ckpt_path=resolve(fit, "last"))
    if not fit.is_global_zero:
        return
    # Weights of the last step are those of the trainer's last state: the release took the best ones into the model.
    validated = torch.load(kept / "best.ckpt", weights_only=True)["global_step"]
    last = torch.load(kept / "resume.ckpt", weights_only=True)
    folder.joinpath("done").mkdir(exist_ok=True)
    save_file(last["state_dict"], folder / "done" / "last.safetensors")
    save_file(load(folder / "release").trained_state(), folder / "done" / "released.safetensors")
    (folder / "done" / "steps.json").write_text(json.dumps([validated, last["global_step"]]))


def store(name: str) -> None:
    """Representations of 200 items in blocks of 8."""

    def encode(blocks: Sequence[Sequence[Item]]) -> Iterator[Reps]:
        for block in blocks:
            time.sleep(PAUSE)
            numbers = torch.tensor([float(item.id) + 1 for item in block])
            yield {"vector": numbers[:, None].repeat(1, 64), "ids": Ragged.of([[int(n)] * 3 for n in numbers])}

    reps = RepresentationStore(Path(name) / "store", ITEMS, "m", block=BLOCK).build(encode, "encoding")
    ids = reps["ids"]
    assert isinstance(reps["vector"], torch.Tensor) and isinstance(ids, Ragged)
    _done(Path(name), vector=reps["vector"].numpy(), ids=ids.values.numpy(), offsets=ids.offsets.numpy())


def neighbours(name: str) -> None:
    """A graph over 200 items in blocks of 8."""
    graph.BLOCK = BLOCK
    slow, search = graph._block, graph._block

    def pausing(*arguments: object) -> graph.Neighbors:
        time.sleep(PAUSE)
        return search(*arguments)  # type: ignore[arg-type]

    graph._block = pausing
    vectors = np.random.default_rng(0).normal(size=(len(ITEMS), 6)).astype(np.float32)
    try:
        found = graph.build_graph(vectors, graph.GraphConfig(5, folder=Path(name) / "graph"))
    finally:
        graph._block = slow
    _done(Path(name), neighbours=np.asarray(found))


def matrix(name: str) -> None:
    """Exact scores of 24 queries with 40 items in shards of two queries."""
    collection, truth = toy_collection(), np.random.default_rng(1).normal(size=(24, 40)).astype(np.float32)

    rows = {query.id: row for row, query in enumerate(collection.queries)}

    def scorer_of(queries: Sequence[Query]) -> Scorer:
        own = np.array([rows[query.id] for query in queries])

        def score(query_rows: np.ndarray, item_rows: np.ndarray) -> np.ndarray:
            time.sleep(PAUSE)
            return truth[own[query_rows], item_rows]

        return Scorer(score, len(queries), 40)

    made = build_matrix(scorer_of, collection, np.arange(24), "m", Path(name) / "shards", query_block=2, item_block=20)
    made.save(Path(name) / "matrix.safetensors")
    _done(Path(name), scores=made.scores)


def teach(name: str) -> None:
    """A teacher's records of 24 queries, two a file."""
    teaching.BLOCK = 2
    torch.manual_seed(0)
    teacher = CrossEncoder.tiny().eval()
    paths = teaching.write_lessons(teacher, toy_collection(), BM25(), Path(name) / "lessons", 5, 3, 0)
    _done(Path(name), **{path.stem: np.frombuffer(path.read_bytes(), np.uint8) for path in paths})


def pull(name: str) -> None:
    """A checkpoint from the loopback Hub into a cache, and a copy of it."""
    huggingface_hub.constants.HF_HUB_CACHE = str(Path(name) / "cache")
    place = commands.pull("org/tiny-ce", Path(name) / "copy")
    load(place)
    files = [path for path in sorted(place.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    _done(Path(name), **{path.name: np.frombuffer(file_sha256(path).encode(), np.uint8) for path in files})


def overlap(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Shared words."""
    return [float(len(set(query.split()) & set(text.split()))) for query, text in pairs]


def add(name: str) -> None:
    """Sixty items into an engine's folder, in two additions."""
    items = toy_collection(num_items=60).items
    for part in (items[:30], items[30:]):
        engine = Engine(overlap, folder=Path(name) / "index")
        if part[0].id not in engine:
            engine.add(part)
    _shown(Path(name), engine)


def remove(name: str) -> None:
    """The same, of which every third is removed again, in four removals, and the rest compacted."""
    items = toy_collection(num_items=60).items
    engine = Engine(overlap, folder=Path(name) / "index")
    if items[1].id not in engine:
        engine.add(items)
    for start in range(0, 60, 15):
        if there := [item.id for item in items[start : start + 15 : 3] if item.id in engine]:
            engine.remove(there)
    engine.compact()
    _shown(Path(name), engine)


def served(name: str) -> None:
    """A server before an engine that is filled and emptied through it; its address is in ``folder / "url"``."""
    from simzoo.retrieval.serving.server import Server
    from simzoo.retrieval.serving.settings import ServerSettings

    server = Server(Engine(overlap, search=Exact(), folder=Path(name) / "index"), ServerSettings(port=0))
    with replacing(Path(name) / "url") as file:
        file.write(server.url.encode())
    server.run()


def _shown(folder: Path, engine: Engine) -> None:
    """Which items there are, and what is found."""
    there = [item.id for item in toy_collection(num_items=60).items if item.id in engine]
    found = [[(hit.id, hit.score) for hit in engine.search(word, k=20)] for word in ("boat", "river bank")]
    folder.joinpath("done").mkdir(exist_ok=True)
    (folder / "done" / "engine.json").write_text(json.dumps([len(engine), there, found]))


def release(name: str) -> None:
    """A model, saved over an older release of other weights, many times."""
    folder = Path(name)
    for seed in (*range(1, 10), 0):
        torch.manual_seed(seed)
        save(CrossEncoder.tiny(), folder / "release")
    _done(folder, **{key: value.numpy() for key, value in load(folder / "release").trained_state().items()})


def signalled(name: str, when: str, number: str, how_often: str) -> None:
    """A training that sends itself a signal: at a step, as it starts, or as it validates; or SLURM's two."""
    if number == "requeue":
        _under_slurm(Path(name))

    class Send(Callback):
        def send(self, place: str) -> None:
            if place == when:
                signals = [signal.SIGUSR1, signal.SIGTERM] if number == "requeue" else [int(number)] * int(how_often)
                for one in signals:
                    os.kill(os.getpid(), one)

        def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
            self.send("start")

        def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
            self.send(str(trainer.global_step))

        def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
            self.send(f"epoch {trainer.current_epoch}")

        def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
            self.send("validation")

    with Durable(["python", "train.py", "fit", "--ckpt_path", "old", "--config=a b.yaml"]) as durable:
        keep = ModelCheckpoint(Path(name), "resume", every_n_train_steps=5, enable_version_counter=False)
        fit = make_trainer(Path(name), Send(), keep, durable)
        fit.fit(CrossEncoder.tiny(), datamodule=toy())
    print("the end")


def _under_slurm(folder: Path) -> None:
    """What Lightning looks for, and a scontrol that writes its words down."""
    tasks = {"SLURM_NTASKS": "1", "SLURM_JOB_NAME": "training", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}
    os.environ |= {**tasks, "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "PATH": f"{folder}:{os.environ['PATH']}"}
    control = folder / "scontrol"
    control.write_text(f'#!/bin/sh\necho "$@" >> {folder}/scontrol.log\n')
    control.chmod(0o755)


def fit(name: str, epochs: str, *options: str) -> None:
    """The command line of train.py on a small recipe, kept every step."""
    recipe = ROOT / "configs" / "ml-100k" / "sasrec.yaml"
    data = Path(name) / "data.inter"
    interactions(data, "recbole")
    changed = [f"--data.source.path={data}", "--resume_every=1", f"--trainer.max_epochs={epochs}"]
    args = [*overlay(recipe, Path(name)), *changed, *options]
    sys.orig_argv[:] = ["python", "train.py", *args]
    main(args)


def stopped(name: str, work: str) -> None:
    """A kind of work as a command runs it, which waits for a signal once it has begun to write."""
    folder = Path(name)

    def pausing(path: Path) -> Any:
        if path.suffix in (".npy", ".gz") or path.name == "generation.json":
            (folder / "begun").touch()
            time.sleep(60)
        return replacing(path)

    for module in (score_matrix, teaching, generation, texts):
        module.replacing = pausing  # type: ignore[attr-defined]
    with stopping(["simzoo", "evaluate", "a b"]):
        globals()[work](name)


def _done(folder: Path, **arrays: np.ndarray) -> None:
    folder.joinpath("done").mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / "done" / f"{name}.npy", array)
