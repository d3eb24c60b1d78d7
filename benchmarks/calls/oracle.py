"""CUR of a known score matrix: ANNCUR's middle matrix beside the oracle's, which has seen all scores (ANNCUR B.2).

    python -m benchmarks.calls.oracle checkpoints/wordnet-emb-ce/noun.event.safetensors --queries 50 \
        --items 25 50 100 [--rcond 1e-6] [--retrieved 50] [--top 10] [--seeds 3]

Some queries are anchors, the others are tested: R are the anchor queries' rows, C the anchor items' columns. ANNCUR
takes U = pinv(M[anchor queries, anchor items]), the oracle U = pinv(C) M pinv(R), the best there is for these rows and
columns: it tells what their choice costs apart from the ill-conditioned inverse. For each the table says how far C U R
is from the test queries' scores (Frobenius norm of the difference over that of the scores), and Top-k-Recall of the
best items by it. Nothing is re-ranked, and no calls are counted: the oracle is no search.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simzoo.retrieval.storage.score_matrix import ScoreMatrix
from simzoo.retrieval.topk import Rows, top_columns

Doubles = NDArray[np.float64]


def anncur(scores: Doubles, anchor_queries: Rows, anchor_items: Rows, rcond: float) -> Doubles:
    """C pinv(M[anchor queries, anchor items]) R (Q, N) of scores M (Q, N), without singular values below the cut-off.

    Args:
        scores: M (Q, N).
        anchor_queries: (k_q,) rows.
        anchor_items: (k_i,) columns.
        rcond: the cut-off, as a share of the largest.
    """
    middle = np.linalg.pinv(scores[np.ix_(anchor_queries, anchor_items)], rcond=rcond)
    found: Doubles = scores[:, anchor_items] @ middle @ scores[anchor_queries]
    return found


def oracle(scores: Doubles, anchor_queries: Rows, anchor_items: Rows, rcond: float) -> Doubles:
    """C pinv(C) M pinv(R) R (Q, N): M projected on the anchor items' columns and on the anchor queries' rows.

    For arguments see `anncur`. Computed as two projections on singular vectors: pinv(C) itself may be huge.
    """
    left = _basis(scores[:, anchor_items], rcond)
    right = _basis(scores[anchor_queries].T, rcond)
    found: Doubles = left @ (left.T @ scores @ right) @ right.T
    return found


def _basis(columns: Doubles, rcond: float) -> Doubles:
    """Orthonormal columns that span those given, but for singular values below the cut-off."""
    vectors, values, _ = np.linalg.svd(columns, full_matrices=False)
    return vectors[:, values > rcond * values[:1]]


def error(scores: Doubles, approximate: Doubles) -> float:
    """Frobenius norm of the difference, as a share of that of the scores."""
    return float(np.linalg.norm(approximate - scores) / np.linalg.norm(scores))


def recall(scores: Doubles, approximate: Doubles, top: int, retrieved: int) -> float:
    """Share of the true top items among the best so many by approximate scores, mean over the rows (Q, N)."""
    exact, found = top_columns(scores, top), top_columns(approximate, retrieved)
    return float(np.mean([np.isin(mine, others).mean() for mine, others in zip(exact, found, strict=True)]))


def compared(
    scores: Doubles, queries: int, items: int, rcond: float, top: int, retrieved: int, seed: int
) -> NDArray[np.float64]:
    """(2, 2): error and recall of ANNCUR and of the oracle on the queries that are no anchors.

    Raises:
        ValueError: there are not enough queries or items.
    """
    if not 0 < queries < scores.shape[0] or not 0 < items <= scores.shape[1]:
        raise ValueError(
            f"{queries} anchor queries and {items} anchor items do not fit a matrix of {scores.shape[0]} queries, of "
            f"which some are tested, and {scores.shape[1]} items"
        )
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(len(scores), queries, replace=False))
    columns = np.sort(rng.choice(scores.shape[1], items, replace=False))
    tested = np.setdiff1d(np.arange(len(scores)), rows)
    found = [method(scores, rows, columns, rcond)[tested] for method in (anncur, oracle)]
    return np.array([[error(scores[tested], one), recall(scores[tested], one, top, retrieved)] for one in found])


def main() -> None:
    """Prints a table a matrix."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("matrices", nargs="+", type=Path)
    parser.add_argument("--queries", nargs="+", type=int, required=True, help="k_q")
    parser.add_argument("--items", nargs="+", type=int, required=True, help="k_i")
    parser.add_argument("--rcond", type=float, default=1e-6)
    parser.add_argument("--top", type=int, default=10)
    parser.add_argument("--retrieved", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(
        "| matrix | k_q | k_i | error, ANNCUR | oracle "
        f"| Top-{options.top}-Recall@{options.retrieved}, ANNCUR | oracle |"
    )
    print(f"|{'---|' * 7}")
    for path in options.matrices:
        scores = ScoreMatrix.load(path).scores.astype(np.float64)
        for queries in options.queries:
            for items in options.items:
                settings = queries, items, options.rcond, options.top, options.retrieved
                means = np.mean([compared(scores, *settings, seed) for seed in range(options.seeds)], axis=0)
                cells = " | ".join(f"{value:.3f}" for value in means.T.flatten())
                print(f"| {path.parent.name}/{path.stem} | {queries} | {items} | {cells} |")


if __name__ == "__main__":
    main()
