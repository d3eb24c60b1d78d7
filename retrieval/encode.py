"""Records through a similarity, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from datamodules.records import Item, Query
from datamodules.reps import Reps, concat, to_device
from models.similarity import LearnedSimilarity
from retrieval.progress import progress

BLOCK = 2048  # records: bounds the memory of tokenising


def encode_queries(similarity: LearnedSimilarity, queries: Sequence[Query]) -> Reps:
    """Representations of all queries, on the CPU."""
    return _encode(similarity.collate_queries, similarity.encode_queries, queries, similarity.device, "queries")


def encode_items(similarity: LearnedSimilarity, items: Sequence[Item]) -> Reps:
    """Representations of all items, on the CPU."""
    return _encode(similarity.collate_items, similarity.encode_items, items, similarity.device, "items")


def _encode(
    collate: Callable[[Any], Reps],
    encode: Callable[[Reps], Reps],
    records: Sequence[Any],
    device: torch.device,
    name: str,
) -> Reps:
    if not records:
        raise ValueError(f"there are no {name} to encode")
    parts = []
    with torch.inference_mode():
        for start in progress(range(0, len(records), BLOCK), f"encoding {len(records):,} {name}"):
            tokens = collate(records[start : start + BLOCK])
            parts.append(to_device(encode(to_device(tokens, device)), "cpu"))
    return concat(parts)
