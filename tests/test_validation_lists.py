"""Validation over all items of a collection."""

from __future__ import annotations

import numpy as np
import pytest
from lightning import Trainer

from simzoo.core.records import Collection, Item, Query
from simzoo.datamodules.lists import HardNegatives
from simzoo.datamodules.sources import Source, Split
from simzoo.datamodules.training_data import TrainingData
from simzoo.models.dual_encoder import DualEncoder

WORDS = ["oar", "sail", "mast", "keel", "hull", "rudder", "anchor", "deck", "bow", "stern", "punt", "kayak"]


class Boats(Source):
    """Twelve items; queries with one to three relevant ones, and one with none."""

    def read(self, split: Split) -> list[Collection]:
        items = [Item(f"d{row}", f"a {word} of a boat") for row, word in enumerate(WORDS)]
        queries = [Query(f"q{place}", f"{WORDS[place]} {WORDS[place + 1]}") for place in range(5)]
        judged = [{place: 1, place + 1: 2, (7 * place) % 12: 1} for place in range(4)]
        return [Collection("boats", items, queries, [*judged, {3: 0}])]


def test_every_query_is_ranked_with_all_items() -> None:
    """Chosen by the first ranks of another retriever, the best step is the one that agrees with that retriever."""
    model, source = DualEncoder.tiny().eval(), Boats()
    data = TrainingData(source, HardNegatives(hard=1), batch_size=2, val_depth=None)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", enable_checkpointing=False, **quiet)  # type: ignore[arg-type]
    [found] = trainer.validate(model, data, verbose=False)
    [collection] = source.collections("dev")
    precisions, hits, reciprocal = [], [], []
    for query, judged in zip(collection.queries, collection.judgements, strict=True):
        relevant = {row for row, grade in judged.items() if grade > 0}
        order = [row for row, _ in model.rank(query, list(collection.items))]
        precisions.append(len(relevant & set(order[: len(relevant)])) / max(1, len(relevant)))
        hits.append(order[0] in relevant)
        reciprocal.append(max((1 / (place + 1) for place, row in enumerate(order) if row in relevant), default=0))
    assert found["val/r_precision"] == pytest.approx(np.mean(precisions))
    assert found["val/accuracy"] == pytest.approx(np.mean(hits))
    assert found["val/mrr"] == pytest.approx(np.mean(reciprocal))
    assert 0 < np.mean(precisions) < 1 and np.mean(precisions) not in (np.mean(hits), np.mean(reciprocal))


def test_a_depth_of_nothing_is_refused() -> None:
    """0 once meant "all" elsewhere; here a validation over no candidates would find everything missed."""
    with pytest.raises(ValueError, match="val_depth must be at least 1"):
        TrainingData(Boats(), HardNegatives(hard=1), val_depth=0)
