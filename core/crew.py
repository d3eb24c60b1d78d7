"""Several processes that do the same call, each as one of its workers: on this machine, under torchrun, or on Ray."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal, TypeVar

from simzoo.core.extras import extra
from simzoo.core.progress import say
from simzoo.core.shards import Worker

__all__ = ["Crew", "Runner"]

Runner = Literal["local", "torchrun", "ray"]
T = TypeVar("T")


@dataclass(frozen=True)
class Crew:
    """Who does a piece of work whose parts any number of workers can take (`core.shards`).

    Attributes:
        runner: local: processes on this machine, this one among them; torchrun: the processes that torchrun started,
            of which this is one; ray: this process, and tasks on the Ray cluster that ``RAY_ADDRESS`` or
            ``ray.init()`` finds, whose machines see the same folders.
        workers: how many, this process included; None: one, or all that torchrun started.

    Raises:
        ValueError: fewer than one, or another number than torchrun started.

    Examples:
        >>> Crew().run(lambda word, worker: f"{word} by {worker.rank + 1} of {worker.workers}", {"word": "done"})
        'done by 1 of 1'
    """

    runner: Runner = "local"
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")

    def run(self, work: Callable[..., T], options: Mapping[str, Any]) -> T:
        """Calls ``work(worker=..., **options)`` in every process; what it returns in this one.

        A worker that fails leaves its part to the others. When this one is done, all is.

        Args:
            work: a function of a module; of the same module that the others can import.
            options: its arguments, which can be pickled.

        Raises:
            MissingExtraError: Ray is not installed.
            ValueError: torchrun has not started this process, or another number of them.
        """
        if self.runner == "torchrun":
            worker = self._of_torchrun()
            _take_device(int(os.environ.get("LOCAL_RANK", "0")))
            return work(worker=worker, **options)
        helpers = _local if self.runner == "local" else _on_ray
        workers = self.workers or 1
        if workers == 1:
            return work(worker=Worker(), **options)
        with _sharing_cores(workers), helpers(work, options, workers):
            return work(worker=Worker(0, workers), **options)

    def _of_torchrun(self) -> Worker:
        if not {"RANK", "WORLD_SIZE"} <= os.environ.keys():
            raise ValueError(
                "runner torchrun is for processes that torchrun started, and RANK and WORLD_SIZE are not set; start "
                "with: torchrun --nproc_per_node 2 -m simzoo evaluate ... --runner torchrun"
            )
        worker = Worker(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        if self.workers not in (None, worker.workers):
            raise ValueError(f"torchrun started {worker.workers} workers, but {self.workers} are asked for")
        return worker


@contextmanager
def _local(work: Callable[..., Any], options: Mapping[str, Any], workers: int) -> Iterator[None]:
    """The other processes of this machine, which end with the block, and with this process."""
    context = multiprocessing.get_context("spawn")  # a copy of this process would have its threads' locks
    helpers = [
        context.Process(target=_help, args=(work, dict(options), Worker(rank, workers)), daemon=True)
        for rank in range(1, workers)
    ]
    for helper in helpers:
        helper.start()
    try:
        yield
    finally:
        for rank, helper in enumerate(helpers, start=1):
            if helper.exitcode:
                say(f"worker {rank} ended with status {helper.exitcode}; the others did its part")
            helper.terminate()
            helper.join()


def _help(work: Callable[..., Any], options: dict[str, Any], worker: Worker) -> None:
    """What a process of `_local` does."""
    _end_with_parent()
    _take_device(worker.rank)
    try:
        with _sharing_cores(worker.workers):
            work(worker=worker, **options)
    except Exception as error:
        sys.exit(f"worker {worker.rank}: {type(error).__name__}: {error}")


def _end_with_parent() -> None:
    """Ends this process at once when the one that started it does, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="the end of the first worker", daemon=True).start()


@contextmanager
def _on_ray(work: Callable[..., Any], options: Mapping[str, Any], workers: int) -> Iterator[None]:
    """Tasks on a Ray cluster; one whose process dies is begun again."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers
    ray = extra("ray", "ray", "--runner ray")
    begun = not ray.is_initialized()
    if begun:
        ray.init(log_to_driver=False)
    share = 1 if ray.cluster_resources().get("GPU", 0) else 0
    task = ray.remote(num_cpus=1, num_gpus=share, max_retries=3)(_task)
    tasks = [task.remote(work, dict(options), Worker(rank, workers), os.getcwd()) for rank in range(1, workers)]
    try:
        yield
        for rank, one in enumerate(tasks, start=1):
            ready, _ = ray.wait([one], timeout=0)
            if ready and (told := ray.get(one)):
                say(f"worker {rank} failed, the others did its part: {told}")
    finally:
        for one in tasks:
            ray.cancel(one, force=True)
        if begun:
            ray.shutdown()


def _task(work: Callable[..., Any], options: dict[str, Any], worker: Worker, folder: str) -> str:
    """What a task of `_on_ray` does, in the folder where the command was typed; says why it failed."""
    os.chdir(Path(folder))
    try:
        work(worker=worker, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@contextmanager
def _sharing_cores(workers: int) -> Iterator[None]:
    """Torch takes all cores of a machine; several workers on it take a share each."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // workers))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _take_device(number: int) -> None:
    """A worker's own GPU, where there are several."""
    import torch

    if torch.cuda.device_count() > 1:
        torch.cuda.set_device(number % torch.cuda.device_count())
