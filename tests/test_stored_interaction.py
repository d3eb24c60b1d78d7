"""MixEncoder and DeFormer against their formulas, pair by pair, with the transformer's own layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from simzoo.core.reps import Ragged, Reps
from simzoo.models.deformer import DeFormer
from simzoo.models.mix_encoder import MixEncoder
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.packing import lists_of_pairs
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TokenConfig
from tests.toy import toy_collection

COLLECTION = toy_collection(num_items=5, num_queries=3)


def ids(tokens: Reps) -> Tensor:
    """(1, L) of a single record."""
    found = tokens["ids"]
    assert isinstance(found, Ragged)
    return found.values.long()[None]


def through(layer: Any, hidden: Tensor) -> Tensor:
    """A transformer's layer as it is."""
    found = layer(hidden)
    states: Tensor = found[0] if isinstance(found, tuple) else found
    return states


def heads(states: Tensor, number: int) -> list[Tensor]:
    """(n, h) into (n, h / number) for each head."""
    return list(states.chunk(number, dim=1))


@torch.inference_mode()
def test_deformer_by_hand() -> None:
    """A layer left out, or the upper ones over one side alone, still gives scores."""
    model = DeFormer.tiny().eval()
    bert: Any = model.query_encoder.model
    scores = model.score(
        model.encode_queries(model.collate_queries(COLLECTION.queries)),
        model.encode_items(model.collate_items(COLLECTION.items)),
    )
    for q, query in enumerate(COLLECTION.queries):
        for i, item in enumerate(COLLECTION.items):
            sides = ids(model.collate_queries([query])), ids(model.collate_items([item]))
            apart = [through(bert.encoder.layer[0], bert.embeddings(side)) for side in sides]
            pair = through(bert.encoder.layer[1], torch.cat(apart, dim=1))
            expected = model.head[1](pair[0, 0])[0]
            torch.testing.assert_close(scores[q, i], expected, atol=1e-4, rtol=1e-4)


def interacted(layer: Any, bert: Any, hidden: Tensor, contexts: Tensor, summary: Tensor) -> tuple[Tensor, Tensor]:
    """One interaction of a candidate (c, h) with a query whose states at the layer's input are (L, h)."""
    keys, values = bert.attention.self.key(hidden), bert.attention.self.value(hidden)
    number, width = layer.heads, keys.shape[1] // layer.heads
    read, seen = [], []
    hint = contexts.mean(dim=0)
    sides = [layer.query(contexts), layer.key(contexts), layer.value(contexts), layer.summary_query(hint)[None]]
    for parts in zip(*(heads(side, number) for side in (*sides, keys, values)), strict=True):
        asked, own_key, own_value, question, key, value = parts
        weights = (asked @ torch.cat([key, own_key]).T / width**0.5).softmax(dim=1)
        read.append(weights @ torch.cat([value, own_value]))
        seen.append((question @ key.T / width**0.5).softmax(dim=1) @ value)
    new = layer.mixed(torch.cat(seen, dim=1))[0]
    share = torch.sigmoid(layer.gate(torch.cat([hint, new, summary])))
    attended = layer.norm(contexts + layer.mixed(torch.cat(read, dim=1)))
    gated = layer.norm(share * new + (1 - share) * summary)
    return layer.output(layer.intermediate(attended), attended), layer.output(layer.intermediate(gated), gated)


@torch.inference_mode()
def test_mix_encoder_by_hand() -> None:
    """Keys of the wrong layer, or candidates that read each other, train as well."""
    model = MixEncoder.tiny().eval()
    bert: Any = model.query_encoder.model
    items = model.encode_items(model.collate_items(COLLECTION.items))
    scores = model.score(model.encode_queries(model.collate_queries(COLLECTION.queries)), items)
    contexts = items["contexts"]
    assert isinstance(contexts, Tensor) and contexts.shape == (5, 2, 16)
    for i, item in enumerate(COLLECTION.items):
        tokens = ids(model.collate_items([item]))
        states = model.item_encoder(tokens, torch.ones_like(tokens, dtype=torch.bool))[0]
        expected = torch.stack([(states @ code).softmax(0) @ states for code in model.codes])
        torch.testing.assert_close(contexts[i], expected, atol=1e-5, rtol=1e-4)
    for q, query in enumerate(COLLECTION.queries):
        first = bert.embeddings(ids(model.collate_queries([query])))
        inputs = first[0], through(bert.encoder.layer[0], first)[0]
        for i in range(5):
            candidate, summary = contexts[i], torch.zeros(16)
            for layer, plain, hidden in zip(model.interactions, bert.encoder.layer, inputs, strict=True):
                candidate, summary = interacted(layer, plain, hidden, candidate, summary)
            torch.testing.assert_close(scores[q, i], candidate.mean(dim=0) @ summary, atol=1e-3, rtol=1e-3)


def test_pairs_as_lists() -> None:
    """A pair that comes back in another's place gets its score."""
    queries, items = torch.tensor([7, 2, 7, 7, 2]), torch.tensor([1, 4, 0, 1, 3])
    rows, candidates, row, column = lists_of_pairs(queries, items)
    assert rows.tolist() == [2, 7] and candidates.tolist() == [[4, 3, -1], [1, 0, 1]]
    assert candidates[row, column].tolist() == items.tolist() and rows[row].tolist() == queries.tolist()
    assert lists_of_pairs(queries[:0], items[:0])[1].shape == (0, 0)


def test_settings_are_checked() -> None:
    """A model without a layer for one of its two parts is another model."""
    backbone = BackboneConfig(str(tiny_backbone()))
    with pytest.raises(ValueError, match="between 1 and 1, got 2"):
        DeFormer(backbone, TokenConfig(24, 24), upper=2)
    with pytest.raises(ValueError, match="between 1 and 2 interactions, got 1 and 3"):
        MixEncoder(backbone, TokenConfig(24, 24), interactions=3)
