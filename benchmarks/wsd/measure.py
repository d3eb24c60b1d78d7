"""F1 on the unified word-sense evaluation framework, by set, with the order of senses as a prior and without it.

    python -m benchmarks.wsd.measure --root $SIMZOO_DATA/wsd --checkpoints checkpoints/wordnet-de

The prior's weight is the one with the best F1 on semeval2007, the usual set for that; figures of settings that were
chosen so are to be read without it ("others"). Scores are kept in out/wsd, by weights and data, so that a second run
chooses anew in seconds.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simzoo.core.files import replacing
from simzoo.core.progress import progress, quiet, show_table
from simzoo.core.records import Collection
from simzoo.datamodules.readers.wsd import WSD_SETS
from simzoo.datamodules.sources import WSD
from simzoo.models.formats import load
from simzoo.models.similarity import fastest_device
from simzoo.retrieval.evaluation import accuracies
from simzoo.retrieval.judge import SimilarityJudge
from simzoo.retrieval.searchers.rank_prior import prior_scores
from simzoo.retrieval.topk import Rows, Scores, top_order

DEV = "semeval2007"
BLOCK = 256  # queries scored between two signs of life
WEIGHTS = (0.0, *(2.0**power for power in range(-5, 6)))
"""Of the prior, in deviations of the scores within a list."""


def senses(collection: Collection) -> Rows:
    """(Q, K) rows of each query's senses, the most frequent first, -1 behind the last."""
    width = max(map(len, collection.candidates))
    return np.array([[*listed, *[-1] * (width - len(listed))] for listed in collection.candidates], dtype=np.int64)


def scored(checkpoint: str, collection: Collection, kept: Path) -> Scores:
    """(Q, K) scores of each query's senses, -inf where there is none."""
    model = load(checkpoint, fastest_device())
    name = hashlib.sha256(f"{model.weights_sha256} {collection.fingerprint}".encode()).hexdigest()[:20]
    path, columns = kept / f"{name}.npy", senses(collection)
    if not path.exists():
        judge = SimilarityJudge.of(model, collection.items)
        blocks = [slice(start, start + BLOCK) for start in range(0, len(columns), BLOCK)]
        parts = [
            judge.scorer(collection.queries[block]).lists(columns[block])
            for block in progress(blocks, f"{Path(checkpoint).name} on {collection.name}")
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.save(file, np.concatenate(parts))
    found: Scores = np.load(path)
    return found


def f1(scores: Scores, collection: Collection) -> dict[str, NDArray[np.float64]]:
    """What is right of each query, NaN where it does not count: of all, of each set, of words with several senses."""
    columns = senses(collection)
    best = np.take_along_axis(columns, top_order(scores, columns, 1), axis=1)
    return accuracies(best, collection, np.arange(len(columns)), None)


def deviation(scores: Scores) -> float:
    """Of the scores from their list's mean, over all lists of several senses."""
    real = np.isfinite(scores)
    counts = real.sum(axis=1)
    values = np.where(real, scores, 0.0)
    centred = np.where(real, scores - (values.sum(axis=1) / counts.clip(min=1))[:, None], 0.0)[counts > 1]
    return float(np.sqrt(np.square(centred).sum() / counts[counts > 1].sum()))


def chosen_weight(scores: Scores, collection: Collection) -> float:
    """The weight of the prior with the best F1 on the set for that; the smallest of equal ones.

    Raises:
        ValueError: the set is not there.
    """
    if DEV not in collection.parts:
        raise ValueError(f"the prior's weight is chosen on {DEV}, which {collection.name} lacks")
    dev = np.array([part == DEV for part in collection.parts])
    unit = deviation(scores[dev])
    figures = [
        np.nanmean(f1(prior_scores(scores, unit * weight), collection)[f"accuracy ({DEV})"]) for weight in WEIGHTS
    ]
    return unit * WEIGHTS[int(np.argmax(figures))]


def row(name: str, scores: Scores, collection: Collection) -> list[str]:
    """Cells of the table: F1 in percent of each set, of all, of all but the set for choosing, of several senses."""
    found = f1(scores, collection)
    others = np.array([part != DEV for part in collection.parts])
    columns = [found[f"accuracy ({part})"] for part in WSD_SETS]
    columns += [found["accuracy"], found["accuracy"][others]]
    columns += [found["accuracy (ambiguous)"], found["accuracy (ambiguous)"][others]]
    return [name, *(f"{100 * np.nanmean(column):.1f}" for column in columns)]


def measure(checkpoints: Sequence[str], root: Path, titles: bool, kept: Path) -> list[list[str]]:
    """The table's rows of models with or without titles; the first is of the first sense."""
    collection = WSD(root, titles=titles).collections("test")[0]
    columns = senses(collection)
    first = np.where(columns >= 0, -np.arange(columns.shape[1]), -np.inf).astype(np.float32)
    shown = "with titles" if titles else "without titles"
    rows = [row("first sense", first, collection)]
    for checkpoint in checkpoints:
        scores = scored(checkpoint, collection, kept)
        name = f"{Path(checkpoint).name}, {shown}"
        weight = chosen_weight(scores, collection)
        rows.append(row(name, scores, collection))
        rows.append(row(f"{name}, prior {weight:.3g}", prior_scores(scores, weight), collection))
    return rows


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True, help="the folder that holds a folder a set")
    parser.add_argument("--checkpoints", nargs="+", default=["checkpoints/wordnet-de"], metavar="CHECKPOINT")
    parser.add_argument("--titles", choices=("with", "without", "both"), default="both")
    parser.add_argument("--kept", type=Path, default=Path("out/wsd"), help="folder of the scores")
    options = parser.parse_args()
    quiet()
    shown = {"with": (True,), "without": (False,), "both": (False, True)}[options.titles]
    rows: list[list[str]] = []
    for titles in shown:
        found = measure(options.checkpoints, options.root, titles, options.kept)
        rows += found[1:] if rows else found
    head = ["model", *WSD_SETS, "all", "others", "several senses", "others' several senses"]
    show_table(head, rows)


if __name__ == "__main__":
    main()
