"""Token sequences to one vector each."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from datamodules.reps import Ragged
from models.backbone import Encoder
from models.packing import buckets, token_budget

Pooling = Literal["mean", "cls"]


def pooled(encoder: Encoder, ids: Tensor | Ragged, pooling: Pooling, tokens_per_batch: int | None) -> Tensor:
    """One vector a sequence.

    Args:
        encoder: the transformer.
        ids: N sequences of token ids.
        pooling: mean over all real tokens, or the [CLS] state.
        tokens_per_batch: most tokens, padding included, that go through the transformer at once; see
            `models.packing.token_budget` for None.

    Returns:
        (N, h).
    """
    assert isinstance(ids, Ragged)
    parts, rows = [], []
    for bucket in buckets(ids.lengths, token_budget(tokens_per_batch, ids.values.device)):
        padded, mask = ids.take(bucket).pad()
        if pooling == "cls":
            read = torch.zeros(len(bucket), 1, dtype=torch.int64, device=padded.device)
            parts.append(encoder.states_at(padded.long(), mask, read)[:, 0])
        else:
            hidden = encoder(padded.long(), mask)
            weights = mask[..., None].to(hidden.dtype)
            parts.append((hidden * weights).sum(dim=1) / weights.sum(dim=1))
        rows.append(bucket)
    if not parts:
        return torch.empty(0, encoder.width)
    return torch.cat(parts)[torch.argsort(torch.cat(rows))]
