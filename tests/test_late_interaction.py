"""Late interaction against loops as the formulas are written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from simzoo.core.reps import Ragged, Reps
from simzoo.models import late_interaction
from simzoo.models.late_interaction import PolyEncoder, SumOfMax
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TokenConfig
from tests.toy import toy_collection

COLLECTION = toy_collection(num_items=9, num_queries=4)
LISTS = torch.tensor([[3, 1, -1], [0, 8, 8], [-1, -1, 2], [5, 6, 7]])


def reps(model: PolyEncoder | SumOfMax) -> tuple[Reps, Reps]:
    queries = model.encode_queries(model.collate_queries(COLLECTION.queries))
    return queries, model.encode_items(model.collate_items(COLLECTION.items))


def tokens_of(part: Tensor | Ragged, row: int) -> Tensor:
    assert isinstance(part, Ragged)
    return part.values[part.offsets[row] : part.offsets[row + 1]]


@torch.inference_mode()
def test_sum_of_max_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding that takes part in a maximum, or a maximum over the wrong side, still ranks plausibly."""
    model = SumOfMax.tiny().eval()
    queries, items = reps(model)
    expected = torch.empty(4, 9)
    for q in range(4):
        for i in range(9):
            products = tokens_of(queries["vectors"], q) @ tokens_of(items["vectors"], i).T
            expected[q, i] = sum(max(row) for row in products.tolist())
    for products_at_once in (late_interaction.PRODUCTS, 64):
        monkeypatch.setattr(late_interaction, "PRODUCTS", products_at_once)
        torch.testing.assert_close(model.score(queries, items), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(
            model.score(queries, items, torch.tensor([[4, -1, 4]]))[:, ::2],
            expected[:, [4, 4]],
            atol=1e-5,
            rtol=1e-5,
        )
        listed = model.score(queries, items, LISTS)
        wanted = expected.gather(1, LISTS.clamp_min(0)).masked_fill(LISTS < 0, -torch.inf)
        torch.testing.assert_close(listed, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cosine", [None, 5.0])
@torch.inference_mode()
def test_poly_encoder_by_hand(cosine: float | None) -> None:
    """Both attentions, as written: a softmax over the wrong axis trains too, and so do lengths instead of cosines."""
    model = PolyEncoder(
        BackboneConfig(name=str(tiny_backbone())), TokenConfig(24, 24), codes=3, cosine_scale=cosine
    ).eval()
    queries, items = reps(model)
    for q, query in enumerate(COLLECTION.queries):
        ids = model.collate_queries([query])["ids"]
        assert isinstance(ids, Ragged)
        padded, mask = ids.pad()
        states = model.query_encoder(padded.long(), mask)[0]
        vectors = torch.stack([(states @ code).softmax(0) @ states for code in model.codes])
        for i in range(9):
            item = items["vector"][i]  # type: ignore[index]
            assert isinstance(item, Tensor)
            logits = vectors @ item if cosine is None else cosine * F.cosine_similarity(vectors, item[None])
            expected = logits.softmax(0) @ logits
            torch.testing.assert_close(model.score(queries, items)[q, i], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", [PolyEncoder, SumOfMax])
def test_gradients_reach_everything_that_is_trained(kind: type[PolyEncoder | SumOfMax]) -> None:
    """A detached part keeps its random start, and the rest learns around it."""
    model = kind.tiny()
    for candidates in (None, torch.tensor([[0, 1, 2]]), LISTS):
        model.zero_grad()
        scores = model.score(*reps(model), candidates)
        scores[scores.isfinite()].square().sum().backward()
        own = [name for name, p in model.named_parameters() if "encoder" not in name and p.grad is None]
        assert not own and any(p.grad is not None for name, p in model.named_parameters() if "encoder" in name)


@pytest.mark.parametrize(
    ("setting", "message"), [({"codes": 0}, "at least 1; got 0"), ({"cosine_scale": 0.0}, "got 0.0")]
)
def test_settings_that_cannot_be_are_refused(setting: dict[str, Any], message: str) -> None:
    """An empty softmax gives NaN far from its cause; cosines times 0 give every item the same score."""
    with pytest.raises(ValueError, match=message):
        PolyEncoder(**setting)
