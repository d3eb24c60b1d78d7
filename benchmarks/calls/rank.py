"""Numerical rank of score matrices, and their spectra.

    python -m benchmarks.calls.rank checkpoints/wordnet-emb-ce/noun.event.safetensors [...] [--plot docs/rank.svg]

Each matrix is centred by query (an offset that no ranking sees is not rank), and its
singular values are computed in float64. The rank at a tolerance is the number of singular values of at least that share
of the largest; the rank at an energy is the least number whose squares sum to that share of all.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from simzoo.retrieval.storage.score_matrix import ScoreMatrix

TOLERANCES = (0.1, 0.03, 0.01)
ENERGIES = (0.9, 0.99, 0.999)


def spectrum(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Singular values of (Q, N) scores, largest first, centred by query."""
    exact = scores.astype(np.float64)
    values: NDArray[np.float64] = np.linalg.svd(exact - exact.mean(axis=1, keepdims=True), compute_uv=False)
    return values


def main() -> None:
    """Prints a table; draws the spectra."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("matrices", nargs="+", type=Path)
    parser.add_argument("--plot", type=Path, default=None)
    options = parser.parse_args()
    named = {f"{path.parent.name}/{path.stem}": ScoreMatrix.load(path).scores for path in options.matrices}
    heads = [f"at {t:g} of the largest" for t in TOLERANCES] + [f"{100 * e:g} % of the energy" for e in ENERGIES]
    print(f"| matrix | size | {' | '.join(heads)} |")
    print(f"|{'---|' * (2 + len(heads))}")
    figure = Figure(figsize=(6, 4), layout="constrained")
    panel = figure.subplots()
    for name, scores in named.items():
        values = spectrum(scores)
        energy = np.cumsum(values**2) / (values**2).sum()
        cells = [int((values >= t * values[0]).sum()) for t in TOLERANCES]
        cells += [int(np.searchsorted(energy, e) + 1) for e in ENERGIES]
        print(f"| {name} | {scores.shape[0]} x {scores.shape[1]} | {' | '.join(map(str, cells))} |")
        panel.plot(np.arange(1, len(values) + 1), values / values[0], label=name)
    panel.set(xlabel="number", ylabel="singular value, share of the largest", yscale="log")
    panel.grid(alpha=0.3)
    panel.legend()
    if options.plot is not None:
        figure.savefig(options.plot, metadata={"Date": None})


if __name__ == "__main__":
    main()
