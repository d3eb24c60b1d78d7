"""A dual encoder that is not trained, and whose outputs are computed once and kept: what students are trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from simzoo.core.records import Item, Query
from simzoo.core.reps import Ragged, Reps
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.formats import load
from simzoo.models.parts.pooling import each_text, each_token, mean_state
from simzoo.retrieval.first_stages.first_stage import FirstStage
from simzoo.retrieval.first_stages.vector_index import Flat
from simzoo.retrieval.storage.encoding import encode_items, encode_queries
from simzoo.retrieval.storage.representations import RepresentationStore, records_sha256
from simzoo.retrieval.topk import Rows, Scores

DE = "checkpoints/wordnet-de"
KEPT = Path("out/frozen")


class FrozenEncoder:
    """Vectors and token states of a dual encoder, kept in a folder under the records' own digest.

    Args:
        checkpoint: the dual encoder.
        folder: where.
    """

    def __init__(self, checkpoint: str = DE, folder: Path = KEPT) -> None:
        model = load(checkpoint)
        assert isinstance(model, DualEncoder)
        model.normalize = False
        self.model = model
        self.folder = folder
        self.width = model.query_encoder.width

    def vectors(self, records: Sequence[Query] | Sequence[Item]) -> Tensor:
        """(N, h), pooled but not normalised."""
        sha256 = self.model.weights_sha256
        if isinstance(records[0], Item):
            reps = encode_items(self.model, records, self._place(records), sha256)  # type: ignore[arg-type]
        else:
            store = RepresentationStore(self._place(records), records, sha256)
            reps = store.build(lambda blocks: (encode_queries(self.model, block) for block in blocks), "queries")
        vectors = reps["vector"]
        assert isinstance(vectors, Tensor)
        return vectors

    def states(self, queries: Sequence[Query]) -> Ragged:
        """Of each token of N queries, (h) in half precision."""

        def encode(blocks: Sequence[Sequence[Query]]) -> Iterator[Reps]:
            for block in blocks:
                with torch.inference_mode():
                    ids = self.model.collate_queries(block)["ids"]
                    states = each_token(ids, None, self.model.query_encoder, (self.width,))
                yield {"states": Ragged(states.values.half(), states.offsets)}

        identity = f"{self.model.weights_sha256} states"
        store = RepresentationStore(self._place(queries, "-states"), queries, identity, 512)
        states = store.build(encode, "token states of queries")["states"]
        assert isinstance(states, Ragged)
        return states

    def ids(self, records: Sequence[Query] | Sequence[Item]) -> Ragged:
        """Token ids of N queries or items, for encoders that are trained further; they are not kept."""
        collate: Any = self.model.collate_items if isinstance(records[0], Item) else self.model.collate_queries
        ids = collate(records)["ids"]
        assert isinstance(ids, Ragged)
        return ids

    def _place(self, records: Sequence[Any], kind: str = "") -> Path:
        return self.folder / f"{self.model.weights_sha256[:8]}-{records_sha256(records)[:16]}{kind}"


class FirstAndLast(FrozenEncoder):
    """Vectors and states of twice the width: the last layer's, and behind them those of the token embeddings.

    The embeddings are computed anew: they are a table that is looked up.
    """

    def vectors(self, records: Sequence[Query] | Sequence[Item]) -> Tensor:
        """(N, 2 h)."""
        with torch.inference_mode():
            ids = self.ids(records)
            first = each_text(ids, None, lambda *text: mean_state(self._embedded(*text), text[1]), (self.width,))
        return torch.cat([super().vectors(records), first], dim=1)

    def states(self, queries: Sequence[Query]) -> Ragged:
        """Of each token of N queries, (2 h) in half precision."""
        last = super().states(queries)
        with torch.inference_mode():
            first = each_token(self.ids(queries), None, self._embedded, (self.width,))
        return Ragged(torch.cat([last.values, first.values.half()], dim=1), last.offsets)

    def _embedded(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.model.query_encoder.lower(ids, mask, 0)


class Nearest(FirstStage):
    """What `Dense` finds with a frozen encoder, from what is kept."""

    def __init__(self, frozen: FrozenEncoder) -> None:
        self.frozen = frozen

    def prepare(self) -> None:
        """See `FirstStage.prepare`."""
        self._index = Flat().build(F.normalize(self.frozen.vectors(self.corpus.items)).numpy())

    def find(self, queries: Sequence[Query], k: int) -> tuple[Rows, Scores]:
        """See `FirstStage.find`."""
        return self._index.search(F.normalize(self.frozen.vectors(queries)).numpy(), k)

    def identity(self) -> str:
        """That of `Dense`: what one mined, the other need not mine again."""
        return f"Dense {self.frozen.model.weights_sha256} {Flat()}"
