"""Token sequences to one vector each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from simzoo.core.reps import Ragged
from simzoo.models.parts.backbone import Encoder
from simzoo.models.parts.packing import buckets, in_buckets, read_once, token_budget

__all__ = ["Pooling", "each_text", "each_token", "mean_state", "pooled"]

Pooling = Literal["mean", "cls"]


def mean_state(states: Tensor, mask: Tensor) -> Tensor:
    """(B, h), means of states (B, L, h) over their real tokens, at which the mask (B, L) is True or 1."""
    weights = mask[..., None].to(states.dtype)
    mean: Tensor = (states * weights).sum(dim=1) / weights.sum(dim=1)
    return mean


def each_text(
    ids: Tensor | Ragged,
    tokens_per_batch: int | None,
    read: Callable[[Tensor, Tensor], Tensor],
    shape: tuple[int, ...],
) -> Tensor:
    """What is read of each of N sequences, which go through in order of length.

    Args:
        ids: N sequences of token ids.
        tokens_per_batch: most tokens, padding included, that go through at once; see
            `simzoo.models.parts.packing.token_budget` for None.
        read: of padded ids (n, L) and their mask (n, L) to (n, *shape).
        shape: of what is read of one sequence.

    Returns:
        (N, *shape).
    """
    assert isinstance(ids, Ragged)

    def read_rows(rows: Tensor) -> Tensor:
        padded, mask = ids.take(rows).pad()
        return read(padded.long(), mask)

    return in_buckets(ids.lengths, tokens_per_batch, read_rows, shape)


def each_token(
    ids: Tensor | Ragged,
    tokens_per_batch: int | None,
    read: Callable[[Tensor, Tensor], Tensor],
    shape: tuple[int, ...],
) -> Ragged:
    """What is read of each token of N sequences.

    Args:
        ids: N sequences of token ids.
        tokens_per_batch: as in `each_text`.
        read: of padded ids (n, L) and their mask (n, L) to (n, L, *shape).
        shape: of what is read of one token.

    Returns:
        N sequences of values of that shape.
    """
    assert isinstance(ids, Ragged)
    starts = ids.offsets[:-1] - ids.offsets[0]
    parts, places = [torch.empty(0, *shape, device=starts.device)], [starts[:0]]
    for bucket in buckets(ids.lengths, token_budget(tokens_per_batch, ids.values.device)):
        padded, mask = ids.take(bucket).pad()
        parts.append(read_once(read, padded.long(), mask)[mask])
        places.append((starts[bucket][:, None] + torch.arange(mask.shape[1], device=mask.device))[mask])
    return Ragged(torch.cat(parts)[torch.argsort(torch.cat(places))], ids.offsets - ids.offsets[0])


def pooled(encoder: Encoder, ids: Tensor | Ragged, pooling: Pooling, tokens_per_batch: int | None) -> Tensor:
    """One vector a sequence.

    Args:
        encoder: the transformer.
        ids: N sequences of token ids.
        pooling: mean over all real tokens, or the [CLS] state.
        tokens_per_batch: most tokens, padding included, that go through the transformer at once; see
            `simzoo.models.parts.packing.token_budget` for None.

    Returns:
        (N, h).
    """

    def read(padded: Tensor, mask: Tensor) -> Tensor:
        if pooling == "cls":
            first = torch.zeros(len(padded), 1, dtype=torch.int64, device=padded.device)
            return encoder.states_at(padded, mask, first)[:, 0]
        return mean_state(encoder(padded, mask), mask)

    return each_text(ids, tokens_per_batch, read, (encoder.width,))
