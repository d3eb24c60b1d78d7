"""Records through a similarity, block by block, into memory or into a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from datamodules.records import Item, Query
from datamodules.reps import Reps, concat, to_device
from models.similarity import LearnedSimilarity
from retrieval.progress import progress
from retrieval.store import RepresentationStore

BLOCK = 2048  # records: bounds the memory of tokenising


def encode_queries(similarity: LearnedSimilarity, queries: Sequence[Query]) -> Reps:
    """Representations of all queries, on the CPU."""
    return _encode(_encoder(similarity, similarity.collate_queries, similarity.encode_queries), queries, "queries")


def encode_items(
    similarity: LearnedSimilarity, items: Sequence[Item], store: Path | None = None, checkpoint: str = ""
) -> Reps:
    """Representations of all items, on the CPU.

    Args:
        similarity: what encodes.
        items: N items.
        store: a folder that keeps them; encoding goes on where it was, and is not done again.
        checkpoint: sha256 of the similarity's weights, for the store.
    """
    encode = _encoder(similarity, similarity.collate_items, similarity.encode_items)
    if store is None:
        return _encode(encode, items, "items")
    return RepresentationStore(store, items, checkpoint, BLOCK).build(encode, f"encoding {len(items):,} items")


def _encoder(
    similarity: LearnedSimilarity, collate: Callable[[Any], Reps], encode: Callable[[Reps], Reps]
) -> Callable[[Sequence[Any]], Reps]:
    def encoded(records: Sequence[Any]) -> Reps:
        with torch.inference_mode():
            return to_device(encode(to_device(collate(records), similarity.device)), "cpu")

    return encoded


def _encode(encode: Callable[[Sequence[Any]], Reps], records: Sequence[Any], name: str) -> Reps:
    if not records:
        raise ValueError(f"there are no {name} to encode")
    starts = range(0, len(records), BLOCK)
    description = f"encoding {len(records):,} {name}"
    return concat([encode(records[start : start + BLOCK]) for start in progress(starts, description)])
