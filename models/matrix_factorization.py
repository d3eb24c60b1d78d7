"""Transductive matrix factorization: a free vector a training query and a free vector an item (AXN §2.1, MF_TRNS)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from simzoo.core.records import DataError, Item, Query
from simzoo.core.reps import Reps
from simzoo.losses import Loss, SquaredError
from simzoo.models.parts import papers
from simzoo.models.parts.row_adam import RowAdam
from simzoo.models.similarity import LearnedSimilarity, inner_products
from simzoo.models.training import Optimization

__all__ = ["MatrixFactorization"]

BLOCK = 1 << 16  # rows of start vectors copied at once
SCALE = 0.1  # of random start vectors: their products have this squared as deviation


class MatrixFactorization(LearnedSimilarity):
    """U and V of a sparse score matrix G ~ U V^T, free parameters, by squared error on its entries (AXN Eq. 3).

    Records are known by their ids. An item that was not there at training is refused. A query that was not has the mean
    of the trained queries' vectors: the items' average score, which is all that is known of them before one is scored.
    AXN fits its vector to the scores of the items that it has seen, and looks at this one only where ``weight`` is not
    0, its solver is centred, or no first stage is named; ``Dense(queries=...)`` takes the query vectors of the dual
    encoder that the tables started from in its place, as the paper does.

    Training holds 4 d bytes for each row of U and V, moments for the rows that entries of the matrix name (`RowAdam`),
    and 24 bytes a row for the ids' keys: for 5 million items at d = 768, 15.4 GB and 6.1 GB more for each million items
    that the matrix names. Ids are kept as 64-bit hashes, in the weights.

    Args:
        item_ids: the items' ids, by row; the command line takes them from the data.
        query_ids: the training queries' ids, by row; likewise.
        width: d, where nothing is given to start from.
        start: folder with ``items.npy`` (N, d) and ``queries.npy`` (Q, d), vectors to start from, as ``evaluate.py
            sparse_matrix --vectors`` writes them; None: random ones.
        items: N of a checkpoint, whose ids are in its weights; None: as many as ``item_ids``.
        queries: Q of a checkpoint; None: as many as ``query_ids``.
        loss: what training minimises; None: `SquaredError`.
        optimization: optimiser and schedule; weight decay is on the rows of a step alone.
        seed: of the random vectors; None: 0, on the command line seed_everything.
    """

    citation: ClassVar[str] = papers.AXN
    is_inner_product: ClassVar[bool] = True

    item_keys: Tensor
    query_keys: Tensor
    item_vectors: nn.Parameter
    query_vectors: nn.Parameter

    def __init__(
        self,
        item_ids: list[str] | None = None,
        query_ids: list[str] | None = None,
        width: int = 64,
        start: Path | None = None,
        items: int | None = None,
        queries: int | None = None,
        loss: Loss | None = None,
        optimization: Optimization | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(loss or SquaredError(), optimization, seed)
        keys = {"item": _keys("item", item_ids, items), "query": _keys("query", query_ids, queries)}
        given = {} if start is None else {name: _opened(start, name, len(rows)) for name, rows in keys.items()}
        width = given["item"].shape[1] if given else width
        if width < 1 or len({part.shape[1] for part in given.values()}) > 1:
            raise ValueError(f"vectors of items and queries have one width of at least 1, got {width}, start {start}")
        self.remember(width=width, items=len(keys["item"]), queries=len(keys["query"]))
        generator = torch.Generator().manual_seed(self.seed)
        for name, rows in keys.items():
            table = torch.empty(len(rows), width)
            if given:
                for first in range(0, len(rows), BLOCK):
                    table[first : first + BLOCK] = torch.from_numpy(np.array(given[name][first : first + BLOCK]))
            elif item_ids is not None:  # a checkpoint's are read after this
                table.normal_(0.0, SCALE * width**-0.25, generator=generator)
            self.register_parameter(f"{name}_vectors", nn.Parameter(table))
            self.register_buffer(f"{name}_keys", torch.from_numpy(rows))

    def collate_queries(self, queries: Sequence[Query]) -> Reps:
        """``{"row": (B,)}``, -1 for a query that was not trained on."""
        return {"row": torch.from_numpy(self._query_rows.of([query.id for query in queries]))}

    def collate_items(self, items: Sequence[Item]) -> Reps:
        """``{"row": (M,)}``.

        Raises:
            DataError: an item was not there at training.
        """
        rows = self._item_rows.of([item.id for item in items])
        unknown = np.flatnonzero(rows < 0)
        if unknown.size:
            raise DataError(
                f"item {items[unknown[0]].id!r} ({unknown.size} of {len(items)}) is not among the "
                f"{len(self.item_keys)} that the factorization was trained with; train again, or use "
                "InductiveMatrixFactorization, which reads texts"
            )
        return {"row": torch.from_numpy(rows)}

    def encode_queries(self, tokens: Reps) -> Reps:
        """``{"vector": (B, d)}``."""
        rows = tokens["row"]
        assert isinstance(rows, Tensor)
        vectors = self._looked_up(self.query_vectors, rows.clamp_min(0))
        unknown = rows < 0
        if unknown.any():
            vectors = torch.where(unknown[:, None], self.query_vectors.mean(dim=0), vectors)
        return {"vector": vectors}

    def encode_items(self, tokens: Reps) -> Reps:
        """``{"vector": (M, d)}``."""
        rows = tokens["row"]
        assert isinstance(rows, Tensor)
        return {"vector": self._looked_up(self.item_vectors, rows)}

    def score(self, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
        """Dot products; see `LearnedSimilarity.score`."""
        return inner_products(queries, items, candidates)

    def make_optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """See `TrainingLoop.make_optimizer`."""
        return RowAdam(groups, lr=self.optimization.lr, betas=self.optimization.betas)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """A group for each table."""
        decay = self.optimization.weight_decay
        return [{"params": [table], "weight_decay": decay} for table in (self.query_vectors, self.item_vectors)]

    def trained_state(self) -> dict[str, Tensor]:
        """See `TrainingLoop.trained_state`; the ids' keys as well."""
        return super().trained_state() | {"item_keys": self.item_keys, "query_keys": self.query_keys}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses a checkpoint whose rows are of other records, which would fit and score nonsense."""
        for name in ("item_keys", "query_keys"):
            held = checkpoint["state_dict"].get(name)
            if held is not None and not torch.equal(held.cpu(), getattr(self, name).cpu()):
                raise ValueError(f"the checkpoint has rows of others ({name}) than the data, or in another order")
        super().on_load_checkpoint(checkpoint)

    @staticmethod
    def _looked_up(table: Tensor, rows: Tensor) -> Tensor:
        """(M, d); the gradient is sparse, so that a step touches the rows that it has looked up."""
        return F.embedding(rows, table, sparse=True)

    @cached_property
    def _item_rows(self) -> _Rows:
        return _Rows(self.item_keys)

    @cached_property
    def _query_rows(self) -> _Rows:
        return _Rows(self.query_keys)

    @classmethod
    def tiny(cls) -> Self:
        """The items i0 to i4 and the queries q0 to q2, width 8."""
        model = cls([f"i{n}" for n in range(5)], [f"q{n}" for n in range(3)], 8)
        with torch.no_grad():  # products of about 1: those of a start are so small that bf16 would lose their order
            for table in (model.item_vectors, model.query_vectors):
                table.div_(SCALE)
        return model


class _Rows:
    """Rows of ids, by their keys."""

    def __init__(self, keys: Tensor) -> None:
        found: NDArray[np.int64] = keys.cpu().numpy()
        self._order = np.argsort(found, kind="stable")
        self._sorted = found[self._order]

    def of(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """(M,) rows, -1 for an id that is not there."""
        asked = _hashed(ids)
        places = np.searchsorted(self._sorted, asked).clip(max=len(self._sorted) - 1)
        found: NDArray[np.int64] = np.where(self._sorted[places] == asked, self._order[places], -1)
        return found


def _hashed(ids: Sequence[str]) -> NDArray[np.int64]:
    """(M,) 64-bit hashes."""
    joined = b"".join(hashlib.blake2b(name.encode(), digest_size=8).digest() for name in ids)
    return np.frombuffer(joined, dtype="<i8").astype(np.int64)


def _keys(kind: str, ids: Sequence[str] | None, count: int | None) -> NDArray[np.int64]:
    """The keys of ids; of a checkpoint's, zeros in whose place they are read."""
    if not ids:
        if not count or count < 0:
            raise ValueError(
                f"MatrixFactorization has a row for each {kind} and needs their ids; use a data source that knows "
                "them: ScoredPairs"
            )
        return np.zeros(count, dtype=np.int64)
    if count not in (None, len(ids)):
        raise ValueError(f"{len(ids)} {kind} ids were given, but {count} rows; leave out the number")
    keys = _hashed(ids)
    if len(np.unique(keys)) != len(keys):
        raise ValueError(f"{kind} ids stand more than once: {len(keys) - len(np.unique(keys))} of {len(keys)}")
    return keys


def _opened(start: Path, name: str, count: int) -> NDArray[Any]:
    """Start vectors (count, d), mapped.

    Raises:
        DataError: there are none, or of another number.
    """
    path = start / {"item": "items.npy", "query": "queries.npy"}[name]
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(
            f"start: no vectors ({error}); evaluate.py sparse_matrix --vectors writes them", path
        ) from error
    if found.ndim != 2 or len(found) != count or found.dtype != np.float32:
        raise DataError(f"start: expected ({count}, d) float32 vectors, got {found.shape} {found.dtype}", path)
    return found
