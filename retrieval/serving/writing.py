"""What changes the index: one after the other, in a thread of its own, so that searches go on meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from simzoo.core.locks import InUse
from simzoo.core.records import DataError, Item
from simzoo.retrieval.engine import Engine
from simzoo.retrieval.serving.refusal import Busy, Refused

T = TypeVar("T")
PATIENCE = 5.0  # seconds to wait for another writer; the search thread is one while it keeps what a searcher has made
PAUSE = 0.1  # seconds between two attempts


class Writer:
    """Writes in the order in which they came; a result means that it is on disk.

    Args:
        engine: what is written to.
        max_writes: writes that wait at most, the one at work included.
    """

    def __init__(self, engine: Engine, max_writes: int) -> None:
        self._engine = engine
        self._room = threading.BoundedSemaphore(max_writes)
        self._pool = ThreadPoolExecutor(1, "simzoo write")

    def add(self, items: Sequence[Item]) -> Future[int]:
        """Adds items; how many there are then.

        Raises:
            Busy: too many writes wait. From the future: `Refused`, an id is there already; `Busy`, another process
                writes.
        """
        return self._submit(lambda: self._engine.add(items), [item.id for item in items], there=False)

    def update(self, items: Sequence[Item]) -> Future[int]:
        """Replaces items; likewise, but each has to be there."""
        return self._submit(lambda: self._engine.update(items), [item.id for item in items], there=True)

    def remove(self, ids: Sequence[str]) -> Future[int]:
        """Removes items; likewise, and each has to be there."""
        return self._submit(lambda: self._engine.remove(ids), ids, there=True)

    def compact(self) -> Future[int]:
        """Copies the index without what was removed."""
        return self._submit(self._engine.compact, (), there=True)

    def close(self) -> None:
        """Carries out what waits, and ends."""
        self._pool.shutdown()

    def _submit(self, write: Callable[[], None], ids: Sequence[str], there: bool) -> Future[int]:
        if not self._room.acquire(blocking=False):
            raise Busy("too many writes wait")
        try:
            done = self._pool.submit(self._carry_out, write, ids, there)
        except RuntimeError:  # the pool was shut down
            self._room.release()
            raise Busy("the server is being stopped") from None
        done.add_done_callback(lambda _: self._room.release())
        return done

    def _carry_out(self, write: Callable[[], None], ids: Sequence[str], there: bool) -> int:
        self._check(ids, there)
        end = time.monotonic() + PATIENCE
        while True:
            try:
                write()
                return len(self._engine)
            except InUse:
                if time.monotonic() > end:
                    raise Busy("another process writes to the index") from None
                time.sleep(PAUSE)
            except DataError:
                # Another process may have written since this one has looked.
                self._engine.refresh()
                self._check(ids, there)
                raise

    def _check(self, ids: Sequence[str], there: bool) -> None:
        """Refuses ids that are there, or are not, before anything is represented or written.

        Raises:
            Refused: says which.
        """
        for name in ids:
            if (name in self._engine) != there:
                raise Refused(
                    404 if there else 409,
                    f"there is no item {name!r}; nothing was changed"
                    if there
                    else f"item {name!r} is there already; nothing was changed: update it",
                )
