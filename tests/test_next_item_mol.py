"""Mixture-of-Logits over sequence encoders."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from simzoo.core.batch import Batch
from simzoo.core.records import History, Item
from simzoo.losses import MutualInformation, Targets, UserL2
from simzoo.models.next_item_mol import NextItemMoL, user_number
from simzoo.models.parts.mixture import MixtureConfig
from simzoo.models.parts.sequence import SequenceConfig

HISTORIES = [History.of("7", ("i0", "i2", "i1"), None), History.of("ann", ("i4",), None)]
ITEMS = [Item(f"i{n}", "") for n in range(5)]


@pytest.fixture
def model() -> NextItemMoL:
    torch.manual_seed(0)
    return NextItemMoL.tiny().eval()


@torch.inference_mode()
def test_training_positions_end_where_search_begins(model: NextItemMoL) -> None:
    """If training scored another state than search does, the metrics of the two would disagree."""
    tokens = model.collate_queries(HISTORIES)
    last, every = model.encode_queries(tokens), model.encode_positions(tokens)
    for name, part in last.items():
        rows = every[name]
        assert isinstance(part, torch.Tensor) and isinstance(rows, torch.Tensor) and len(rows) == 4
        torch.testing.assert_close(part, rows[[2, 3]])


@torch.inference_mode()
def test_the_user_is_a_component(model: NextItemMoL) -> None:
    """Two users with the same history must be able to get different items."""
    items = model.encode_items(model.collate_items(ITEMS))
    same = [replace(HISTORIES[0], id=name) for name in ("1", "2", "8")]
    scores = model.score(model.encode_queries(model.collate_queries(same)), items)
    assert (scores[0] - scores[1]).abs().max() > 1e-4
    torch.testing.assert_close(scores[0], scores[2])  # 1 and 8 share the row of the table of 7


def test_users_have_one_number_everywhere() -> None:
    """Python's own hash of a string differs between processes: a checkpoint would forget its users."""
    assert user_number("42") == 42 and user_number("ann") == 3877663347
    assert user_number("\u0664") != 4 and user_number("9" * 30) < 2**32


def test_the_loss_has_its_three_parts(model: NextItemMoL) -> None:
    """A term that is left out changes no shape and raises nothing."""
    tokens, items = model.collate_queries(HISTORIES), model.collate_items(ITEMS)
    labels = torch.zeros(4, 5)
    labels[torch.arange(4), torch.tensor([2, 1, 3, 0])] = 1
    targets = Targets(labels, torch.ones(4, 5, dtype=torch.bool))
    batch = Batch(tokens, items, torch.arange(5)[None], targets, ["7", "ann"], every_position=True)
    model.log_dict = lambda *_, **__: None  # type: ignore[method-assign]
    whole = {}
    for gate, user in ((0.0, 0.0), (1.0, 0.0), (0.0, 1.0)):
        model.gate_loss, model.user_loss = MutualInformation(gate), UserL2(user)
        whole[gate, user] = model.training_loss(batch).item()
    assert model.head.users is not None
    expected = model.head.users.rows(tokens["users"]).square().sum(dim=(1, 2)).mean().item()  # type: ignore[arg-type]
    assert whole[0.0, 1.0] - whole[0.0, 0.0] == pytest.approx(expected, rel=1e-4)
    assert -3 < whole[1.0, 0.0] - whole[0.0, 0.0] < 0


def test_components_must_divide_the_width() -> None:
    """A grid that does not fit the encoder must be refused before the data is read, with what would fit."""
    encoder = SequenceConfig(width=10, length=4)
    with pytest.raises(ValueError, match="query vector of width 10 does not divide into 4 components; give a width"):
        NextItemMoL(["a"], encoder, MixtureConfig(query_components=4, item_components=5))
    with pytest.raises(ValueError, match="item vector of width 10 does not divide into 4 components of width 5"):
        NextItemMoL(["a"], encoder, MixtureConfig(query_components=2, item_components=4))
