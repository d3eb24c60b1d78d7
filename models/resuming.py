"""What a trainer would leave out when it goes on from a checkpoint: the validation that was due when it was written."""

from __future__ import annotations

from typing import Any


def owe_validation(loops: dict[str, Any]) -> None:
    """Rewrites a checkpoint's progress, so that a validation that was due, or under way, is made from its beginning.

    A checkpoint is written at the end of a batch, before the validation that follows the batch. Lightning takes up such
    a run behind the validation: the epoch's metrics are missing, and with them its weights among the best ones. It does
    go back for a validation whose first batch was begun, and where none is due it passes that over.

    Args:
        loops: ``checkpoint["loops"]["fit_loop"]``, changed in place.
    """
    batches, validation = loops["epoch_loop.batch_progress"], loops["epoch_loop.val_loop.batch_progress"]
    at_batch_end = batches["total"]["completed"] == batches["total"]["processed"] - 1
    if not at_batch_end and validation["is_last_batch"]:
        return
    if at_batch_end:
        for progress in (batches["total"], batches["current"]):
            progress["completed"] += 1
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
    validation["total"] |= {"ready": 1, "started": 1, "processed": 0, "completed": 0}
    validation["current"] |= {"ready": 0, "started": 0, "processed": 0, "completed": 0}
    validation["is_last_batch"] = False


def owes_epoch_end(loops: dict[str, Any]) -> bool:
    """Whether the epoch's last batch was taken, and what follows it was not: validation and the best weights."""
    return bool(loops["epoch_loop.batch_progress"]["is_last_batch"]) and (
        loops["epoch_progress"]["total"]["processed"] < loops["epoch_progress"]["total"]["started"]
    )
