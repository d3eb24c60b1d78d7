"""The layouts of other people's checkpoints that are loaded as they are: what tells them apart, and who loads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simzoo.models.formats import anncur as anncur_released
from simzoo.models.formats import cmc as cmc_released
from simzoo.models.formats import hypencoder as hypencoder_released
from simzoo.models.formats import lightning_ir
from simzoo.models.formats import rails as rails_released
from simzoo.models.formats import sentence_transformers as sentence_transformer
from simzoo.models.similarity import LearnedSimilarity


@dataclass(frozen=True)
class Layout:
    """One layout.

    Attributes:
        name: what messages call it.
        matches: whether a folder, or a single file of weights, has this layout; reads no more than it must.
        load: of the folder or file, and of the name it was asked for by, which a saved copy will name in its turn.
    """

    name: str
    matches: Callable[[Path], bool]
    load: Callable[[Path, str], LearnedSimilarity]


LAYOUTS: tuple[Layout, ...] = (
    Layout("sentence-transformers encoder", sentence_transformer.is_encoder, sentence_transformer.load_encoder),
    Layout(
        "sentence-transformers cross-encoder",
        sentence_transformer.is_cross_encoder,
        sentence_transformer.load_cross_encoder,
    ),
    Layout("lightning-ir", lightning_ir.is_model, lambda place, name: lightning_ir.load(place)),
    Layout("Hypencoder", hypencoder_released.is_released, lambda place, name: hypencoder_released.load_released(place)),
    Layout("RAILS", rails_released.is_released, lambda place, name: rails_released.load_released(place)),
    Layout("CMC", cmc_released.is_released, lambda place, name: cmc_released.load_released(place)),
    Layout("Hugging Face encoder", sentence_transformer.is_plain_encoder, sentence_transformer.load_plain_encoder),
    Layout("ANNCUR", anncur_released.is_released, lambda place, name: anncur_released.load_released(place)),
)
"""The first that matches is taken. A folder of this project's own format matches none."""


def layout_of(place: Path) -> Layout | None:
    """The layout of a folder or file; None: this project's own.

    Raises:
        ValueError: a single file that no layout knows.
    """
    found = next((layout for layout in LAYOUTS if layout.matches(place)), None)
    if found is None and place.is_file():
        known = ", ".join(layout.name for layout in LAYOUTS)
        raise ValueError(f"{place} is no checkpoint file of a known layout ({known}); name a checkpoint folder")
    return found
