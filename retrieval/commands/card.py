"""``evaluate.py card``: the card of a checkpoint, from its evaluation runs."""

from __future__ import annotations

from pathlib import Path

from simzoo.retrieval.hub.card import About, write_card


def card(checkpoint: Path, runs: list[Path], about: About) -> None:
    """Writes the card (README.md), metrics.json and manifest.json of a checkpoint from its evaluation runs.

    Args:
        checkpoint: a checkpoint folder.
        runs: output folders of ``evaluate.py run`` with this checkpoint.
        about: what no file says: data, recipe, limits, and the example's texts.
    """
    write_card(checkpoint, runs, about)
    print(f"written: {checkpoint / 'README.md'}")
