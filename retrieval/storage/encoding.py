"""Records through a similarity, block by block, into memory or into a store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from simzoo.core.progress import progress
from simzoo.core.records import Item, Query
from simzoo.core.reps import Reps, concat, to_device
from simzoo.core.shards import ALONE, Worker
from simzoo.retrieval.storage.representations import Encode, RepresentationStore

if TYPE_CHECKING:
    from simzoo.models.similarity import LearnedSimilarity

BLOCK = 2048  # records: bounds the memory of tokenising


def encode_queries(similarity: LearnedSimilarity, queries: Sequence[Query]) -> Reps:
    """Representations of all queries, on the CPU."""
    return _encode(_encoder(similarity, similarity.collate_queries, similarity.encode_queries), queries, "queries")


def encode_items(
    similarity: LearnedSimilarity,
    items: Sequence[Item],
    store: Path | None = None,
    checkpoint: str = "",
    worker: Worker = ALONE,
) -> Reps:
    """Representations of all items, on the CPU.

    Args:
        similarity: what encodes.
        items: N items.
        store: a folder that keeps them; encoding goes on where it was, and is not done again.
        checkpoint: what makes the representations, for the store: sha256 of the weights and the like.
        worker: which of several workers this process is, who fill the store together; without one each encodes all.
    """
    encode = _encoder(similarity, similarity.collate_items, similarity.encode_items)
    if store is None:
        return _encode(encode, items, "items")
    return RepresentationStore(store, items, checkpoint, BLOCK).build(encode, f"encoding {len(items):,} items", worker)


def _encoder(similarity: LearnedSimilarity, collate: Callable[[Any], Reps], encode: Callable[[Reps], Reps]) -> Encode:
    """Encodes blocks; the next one is tokenised in another thread meanwhile."""

    def encoded(blocks: Sequence[Sequence[Any]]) -> Iterator[Reps]:
        with ThreadPoolExecutor(1) as thread:
            ahead = deque(thread.submit(collate, block) for block in blocks[:1])
            for following in range(1, len(blocks) + 1):
                tokens = ahead.popleft().result()
                ahead.extend(thread.submit(collate, block) for block in blocks[following : following + 1])
                with torch.inference_mode():
                    reps = to_device(encode(to_device(tokens, similarity.device)), "cpu")
                yield reps

    return encoded


def _encode(encode: Encode, records: Sequence[Any], name: str) -> Reps:
    if not records:
        raise ValueError(f"there are no {name} to encode")
    blocks = [records[start : start + BLOCK] for start in range(0, len(records), BLOCK)]
    encoded = encode(blocks)
    return concat([next(encoded) for _ in progress(blocks, f"encoding {len(records):,} {name}")])
