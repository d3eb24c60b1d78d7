"""The contract, for every registered system: a class that some recipe names, with a ``tiny()``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from simzoo.core.records import History, Item
from simzoo.core.registry import find
from simzoo.core.reps import num_rows, take
from simzoo.models.formats import load, save
from simzoo.models.similarity import LearnedSimilarity

ROOT = Path(__file__).parents[1]

# Texts and histories at once, so that systems of both kinds run on the same records.
QUERIES = [
    History("q0", "the boat lay on the river bank", (4, 8), items=("i1", "i3", "i0"), times=(5, 70, 90_000)),
    History("q1", "banks", items=("i4",), times=(7,)),
    History("q2", "a b c river d e f boats g h i", (6, 11), items=("i2", "i2", "i0", "i4"), times=(1, 2, 400, 401)),
]
ITEMS = [
    Item("i0", "a small boat", "boat"),
    Item("i1", "the land beside a river, a river, a river", "bank, side"),
    Item("i2", "z"),
    Item("i3", "x y", "boats"),
    Item("i4", "money bank", ""),
]


def registered() -> list[type[LearnedSimilarity]]:
    """Classes named by the recipes' model.class_path."""
    recipes = [yaml.safe_load(path.read_text()) for path in ROOT.glob("configs/**/*.yaml")]
    named = {find(recipe["model"]["class_path"]) for recipe in recipes if "class_path" in recipe.get("model", {})}
    return [getattr(importlib.import_module(known.module), known.name) for known in sorted(filter(None, named))]


@pytest.fixture(params=registered(), ids=lambda cls: cls.__name__)
def similarity(request: pytest.FixtureRequest) -> LearnedSimilarity:
    model: LearnedSimilarity = request.param.tiny()
    return model.eval()


def reps(model: LearnedSimilarity, queries: Any = QUERIES, items: Any = ITEMS) -> tuple[Any, Any]:
    return model.encode_queries(model.collate_queries(queries)), model.encode_items(model.collate_items(items))


@torch.inference_mode()
def test_scores_tell_items_and_queries_apart(similarity: LearnedSimilarity) -> None:
    """A model whose score ignores one side, or is constant, would pass every equality below."""
    scores = similarity.score(*reps(similarity))
    assert scores.shape == (3, 5)
    assert scores.std(dim=0).min() > 1e-4
    assert scores.std(dim=1).min() > 1e-4


@torch.inference_mode()
def test_padding_invariance(similarity: LearnedSimilarity) -> None:
    """A score that depends on what else is in the batch: padding leaks through a mask or a pooling."""
    together = similarity.score(*reps(similarity))
    for i, query in enumerate(QUERIES):
        for j, item in enumerate(ITEMS if similarity.pointwise else []):
            alone = similarity.score(*reps(similarity, [query], [item]))
            torch.testing.assert_close(alone[0, 0], together[i, j], atol=2e-5, rtol=1e-5)
        alone = similarity.score(*reps(similarity, [query], ITEMS))
        torch.testing.assert_close(alone[0], together[i], atol=2e-5, rtol=1e-5)


@torch.inference_mode()
def test_both_doors_agree(similarity: LearnedSimilarity) -> None:
    """Training scores lists, searchers score pairs: a model must not learn one thing and search with another."""
    queries, items = reps(similarity)
    rows = torch.tensor([[2, 0, 4], [1, 3, 0]]).flatten()
    query_rows = torch.tensor([0, 0, 0, 2, 2, 2])
    if not similarity.pointwise:
        with pytest.raises(TypeError, match="whole candidate lists"):
            similarity.score_pairs(queries, items, query_rows, rows)
        return
    lists = similarity.score(take(queries, torch.tensor([0, 2])), items, rows.view(2, 3))
    pairs = similarity.score_pairs(queries, items, query_rows, rows)
    torch.testing.assert_close(pairs.view(2, 3), lists, atol=2e-5, rtol=1e-5)


@torch.inference_mode()
def test_permuting_candidates_permutes_scores(similarity: LearnedSimilarity) -> None:
    """Sorting by length and scattering back must return every score to its own pair."""
    queries, items = reps(similarity)
    order = torch.tensor([3, 1, 4, 0, 2])
    straight = similarity.score(queries, items, torch.arange(5).expand(3, 5))
    shuffled = similarity.score(queries, items, order.expand(3, 5))
    torch.testing.assert_close(shuffled, straight[:, order], atol=2e-5, rtol=1e-5)


@torch.inference_mode()
def test_missing_candidates_score_minus_infinity(similarity: LearnedSimilarity) -> None:
    """A padded candidate that gets a real score could be retrieved."""
    queries, items = reps(similarity)
    scores = similarity.score(queries, items, torch.tensor([[0, -1], [1, 2], [-1, 3]]))
    assert torch.isneginf(scores).tolist() == [[False, True], [False, False], [True, False]]
    full = similarity.score(queries, items)
    if similarity.pointwise:
        torch.testing.assert_close(scores[1], full[1, 1:3], atol=2e-5, rtol=1e-5)


@torch.inference_mode()
def test_taking_representations_apart(similarity: LearnedSimilarity) -> None:
    """A store keeps representations in blocks: rows taken out must be the rows encoded."""
    queries, items = reps(similarity)
    assert num_rows(queries) == 3 and num_rows(items) == 5
    rows = torch.tensor([4, 1])
    direct = reps(similarity, QUERIES, [ITEMS[4], ITEMS[1]])[1]
    torch.testing.assert_close(
        similarity.score(queries, take(items, rows)), similarity.score(queries, direct), atol=2e-5, rtol=1e-5
    )


@torch.inference_mode()
def test_bf16_ranks_alike(similarity: LearnedSimilarity) -> None:
    """Half precision may lose digits, not the sense: scores stay within bf16's rounding of a few layers."""
    scores = similarity.score(*reps(similarity))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = similarity.score(*reps(similarity)).float()
    assert torch.corrcoef(torch.stack([scores.flatten(), half.flatten()]))[0, 1] > 0.99


def test_gradients_reach_every_trained_parameter(similarity: LearnedSimilarity) -> None:
    """A parameter without a gradient is never trained, and DDP waits for it for ever."""
    similarity.train()
    scores = similarity.score(*reps(similarity))
    torch.nn.functional.cross_entropy(scores, torch.tensor([0, 1, 2])).backward()
    without = [n for n, p in similarity.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []


@torch.inference_mode()
def test_saved_and_loaded_scores_are_equal(similarity: LearnedSimilarity, tmp_path: Path) -> None:
    """A weight or setting that is not saved comes back as its default, silently."""
    for parameter in similarity.parameters():
        if parameter.requires_grad:
            parameter.add_(torch.randn_like(parameter), alpha=0.01)
    expected = similarity.score(*reps(similarity))
    save(similarity, tmp_path / "model")
    loaded = load(tmp_path / "model")
    torch.testing.assert_close(loaded.score(*reps(loaded)), expected, atol=1e-6, rtol=1e-6)


@torch.inference_mode()
def test_rank_orders_documents(similarity: LearnedSimilarity) -> None:
    """`rank` must return each document once, best first, under its own row."""
    ranked = similarity.rank(QUERIES[0], ITEMS)
    scores = similarity.score(*reps(similarity, QUERIES[:1]))[0]
    assert sorted(row for row, _ in ranked) == list(range(5))
    assert [row for row, _ in ranked] == torch.argsort(scores, descending=True).tolist()
    if similarity.text is not None:
        assert sorted(row for row, _ in similarity.rank("boat", ["a boat", "the bank"])) == [0, 1]


def test_gradients_share_no_memory(similarity: LearnedSimilarity) -> None:
    """Of one query they may be views of one another, which autograd does not see: two batches add up to more then."""
    queries, items = reps(similarity, QUERIES[:1], ITEMS[:1])
    similarity.score(queries, items).sum().backward()
    grads = {name: one.grad for name, one in similarity.named_parameters() if one.grad is not None}
    assert grads
    places: dict[int, str] = {}
    for name, grad in grads.items():
        place = (grad.coalesce().values() if grad.is_sparse else grad).untyped_storage().data_ptr()
        assert place not in places, f"{name} and {places[place]}"
        places[place] = name
