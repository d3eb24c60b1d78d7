"""Hypencoder against its formulas, one weight, one query and one item at a time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.hypencoder import students as hypencoder_students
from benchmarks.hypencoder.students import Encoded, Frozen
from simzoo.core.records import DataError, Item, Query
from simzoo.core.reps import Ragged, take
from simzoo.models import hypencoder
from simzoo.models.formats import load, save
from simzoo.models.hypencoder import Hypencoder
from simzoo.models.parts.backbone import BackboneConfig, LoRA
from simzoo.models.parts.hyperhead import Hyperhead
from simzoo.models.parts.q_net import QNet, QNetConfig
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TokenConfig

QUERIES = [Query("q0", "the boat lay on the river bank", (4, 8)), Query("q1", "banks"), Query("q2", "money, a river")]
ITEMS = [Item(f"i{n}", text) for n, text in enumerate(["a small boat", "z", "river bank river bank", "x y", "money"])]
CLOSE: dict[str, Any] = {"atol": 1e-4, "rtol": 1e-4}  # scores reach 20


def tiny(seed: int = 0, **settings: Any) -> Hypencoder:
    """Random weights of a size at which every part of the formulas matters."""
    torch.manual_seed(seed)
    settings.setdefault("q_net", QNetConfig((16, 16, 16)))
    settings.setdefault("backbone", BackboneConfig(str(tiny_backbone())))
    model = Hypencoder(tokens=TokenConfig(24, 24), **settings).eval()
    with torch.no_grad():
        for name, parameter in model.hyperhead.named_parameters():
            # Rows of H are much alike; were the base not larger, a relu layer would be dead or alive as a whole.
            parameter.normal_(std=0.1 if "projection" in name else 0.5)
    return model


def norm(x: Tensor) -> Tensor:
    """Layer norm without parameters, by its definition."""
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(dim=-1, keepdim=True) + 1e-5)


def naive_matrix(parameters: dict[str, Tensor], states: Tensor, divisor: float) -> Tensor:
    """§3.3 for one matrix of one query: (rows, width) from its own (L, h) states."""
    keys = states @ parameters["key.weight"].T + parameters["key.bias"]
    values = states @ parameters["value.weight"].T + parameters["value.bias"]
    attended = torch.softmax(parameters["query"] @ keys.T / divisor, dim=1) @ values
    projected = norm(attended.clamp_min(0)) @ parameters["projection.weight"].T + parameters["projection.bias"]
    return projected + parameters["base"]


def naive_score(weights: list[Tensor], biases: list[Tensor], config: QNetConfig, item: Tensor) -> Tensor:
    """§3.4 for one query and one item."""
    named = {"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh, "sigmoid": torch.nn.Sigmoid}
    activation = (named | {"gelu": torch.nn.GELU, "leaky_relu": torch.nn.LeakyReLU})[config.activation]()
    x = item
    for i, bias in enumerate(biases):
        y = activation(weights[i] @ x + bias)
        if config.norm == "before_residual":
            y = norm(y)
        if config.residual_on_last if i == len(biases) - 1 else config.residual:
            y = y + x
        if config.norm == "after_residual":
            y = norm(y)
        x = y
    return (weights[-1] @ x)[0]


@torch.inference_mode()
def naive_scores(model: Hypencoder, config: QNetConfig, scale: str) -> Tensor:
    """(B, M): each query alone, each matrix alone, each item alone."""
    ids = model.collate_queries(QUERIES)["ids"]
    vectors = model.encode_items(model.collate_items(ITEMS))["vector"]
    assert isinstance(ids, Ragged) and isinstance(vectors, Tensor)
    blocks = len(config.widths)
    scores = torch.empty(len(QUERIES), len(ITEMS))
    for b in range(len(QUERIES)):
        padded, mask = ids.take(torch.tensor([b])).pad()
        states = model.query_encoder(padded.long(), mask)[0]
        matrices = []
        for i in range(2 * blocks + 1):
            parameters = model.hyperhead.parameters_of(i)
            rows, width = parameters["base"].shape
            matrices.append(naive_matrix(parameters, states, math.sqrt(width if scale == "paper" else rows)))
        biases = [matrix[0] for matrix in matrices[blocks + 1 :]]
        for m, vector in enumerate(vectors):
            scores[b, m] = naive_score(matrices[: blocks + 1], biases, config, vector)
    return scores


@torch.inference_mode()
def scores_of(model: Hypencoder, candidates: Tensor | None = None) -> Tensor:
    queries = model.encode_queries(model.collate_queries(QUERIES))
    return model.score(queries, model.encode_items(model.collate_items(ITEMS)), candidates)


@pytest.mark.parametrize(
    ("scale", "config"),
    [
        ("paper", QNetConfig((16, 16, 16))),
        ("released", QNetConfig((16, 16, 16))),
        ("released", QNetConfig((16, 16), norm="after_residual", activation="gelu", residual_on_last=True)),
        ("paper", QNetConfig((16, 16, 5), activation="tanh")),
        ("paper", QNetConfig((8, 24), residual=False, norm="none", activation="sigmoid")),
        ("released", QNetConfig((7,), activation="leaky_relu")),
    ],
)
def test_scores_are_those_of_the_formulas(scale: Any, config: QNetConfig) -> None:
    """A fused projection cut at the wrong place still trains; released weights would give nonsense on it."""
    model = tiny(q_net=config, scale=scale)
    expected = naive_scores(model, config, scale)
    assert expected.std(dim=0).min() > 1e-3 and expected.std(dim=1).min() > 1e-3
    torch.testing.assert_close(scores_of(model), expected, **CLOSE)


def test_the_two_scales_differ() -> None:
    """An option that does nothing: released weights would be scored with the paper's scale."""
    paper, released = tiny(scale="paper"), tiny(scale="released")
    assert (scores_of(paper) - scores_of(released)).abs().max() > 1e-2


@pytest.mark.parametrize(("pairs", "alone"), [(1, True), (1, False), (3, False), (100, False)])
def test_many_queries_and_items_in_blocks(pairs: int, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of queries, of candidates and of pairs are joined again, as on a CPU and as on a GPU: one off by one mixes
    up queries.
    """
    model = tiny()
    whole = scores_of(model)
    monkeypatch.setattr(hypencoder, "Q_NETS_AT_ONCE", 2)
    monkeypatch.setitem(hypencoder.HIDDEN_AT_ONCE, "cpu", 100)
    monkeypatch.setattr(hypencoder, "ITEMS_AT_LEAST", 2)
    monkeypatch.setattr(hypencoder, "PAIRS_AT_ONCE", pairs)
    monkeypatch.setattr(hypencoder, "ALONE", {"cpu"} if alone else set())
    torch.testing.assert_close(scores_of(model), whole, **CLOSE)
    torch.testing.assert_close(scores_of(model, torch.tensor([[4, 0, 2]])), whole[:, [4, 0, 2]], **CLOSE)
    query_rows, item_rows = torch.tensor([2, 0, 2, 2, 0, 2, 0, 2]), torch.tensor([0, 4, 1, 1, 3, 4, 0, 2])
    with torch.inference_mode():
        queries = model.encode_queries(model.collate_queries(QUERIES))
        items = model.encode_items(model.collate_items(ITEMS))
        pairs = model.score_pairs(queries, items, query_rows, item_rows)
        none = model.score_pairs(queries, items, query_rows[:0], item_rows[:0])
    torch.testing.assert_close(pairs, whole[query_rows, item_rows], **CLOSE)
    assert none.shape == (0,)


@torch.inference_mode()
def test_what_stands_at_padding_changes_nothing() -> None:
    """States at padding are arbitrary; an attention that sees them makes a score depend on the batch."""
    head = Hyperhead(6, QNet(QNetConfig((6, 6)), 6).shapes, 3, "paper")
    for parameter in head.parameters():
        parameter.normal_()
    states = torch.randn(2, 5, 6)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    disturbed = states.masked_fill(~mask[..., None], 1e3)
    alone = head(states[1:, :2], mask[1:, :2])
    for one, other, single in zip(head(states, mask), head(disturbed, mask), alone, strict=True):
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(one[1:], single, **CLOSE)


@torch.inference_mode()
def test_mean_pooling_leaves_padding_out() -> None:
    """The authors' mean pooling sums the padding: an item's vector would depend on its neighbours."""
    model = tiny(pooling="mean")
    together = model.encode_items(model.collate_items(ITEMS))["vector"]
    ids = model.collate_items(ITEMS[1:2])["ids"]
    assert isinstance(ids, Ragged) and isinstance(together, Tensor)
    padded, mask = ids.pad()
    torch.testing.assert_close(together[1], model.item_encoder(padded.long(), mask)[0].mean(dim=0), **CLOSE)


@pytest.mark.parametrize("shared", [True, False])
def test_gradients_move_every_parameter(shared: bool) -> None:
    """A part that is cut off from the loss, or has a gradient of zero, is never trained."""
    lora = BackboneConfig(str(tiny_backbone()), lora=LoRA(rank=2, alpha=4))
    model = tiny(backbone=lora, shared=shared).train()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)  # they start at 0, which stops the gradient of lora_A
    queries = model.encode_queries(model.collate_queries(QUERIES))
    scores = model.score(queries, model.encode_items(model.collate_items(ITEMS)))
    torch.nn.functional.cross_entropy(scores, torch.tensor([0, 2, 4])).backward()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    still = [name for name, p in trained.items() if p.grad is None or not p.grad.abs().max() > 0]
    assert still == []
    assert any(name.startswith("item_encoder.") for name in trained) is not shared


@torch.inference_mode()
def test_a_new_model_can_begin_as_a_cosine() -> None:
    """A start that only resembles the dual encoder's scores: the student begins worse than what it is compared with."""
    torch.manual_seed(0)
    net = QNet(QNetConfig((192, 192), norm="after_residual", residual_on_last=True), 192)
    head = Hyperhead(192, net.shapes, 3, "released")
    head.begin_as_cosine(20.0)
    states, mask = torch.randn(4, 5, 192) / 4, torch.ones(4, 5, dtype=torch.bool)
    vectors = states.mean(dim=1)[:3] + torch.randn(3, 192) / 8
    scores = net(dict(zip(net.names, head(states, mask), strict=True)), vectors.expand(4, -1, -1))
    means, vectors = (x - x.mean(dim=1, keepdim=True) for x in (states.mean(dim=1), vectors))
    expected = 20 * torch.cosine_similarity(means[:, None], vectors[None], dim=2)
    assert expected.max() - expected.min() > 10
    torch.testing.assert_close(scores, expected, atol=0.4, rtol=0)
    with pytest.raises(ValueError, match="after_residual"):
        tiny(begin_as_cosine=20.0)


@torch.inference_mode()
def test_short_lists_of_the_frozen_experiment_are_scored_alike() -> None:
    """A student that is trained with another formula than it is used with: what it learns is lost."""
    model = tiny(q_net=QNetConfig((16, 16), norm="after_residual", residual_on_last=True))
    states, vectors = torch.randn(2, 5, 16), torch.randn(2, 20, 16)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    student = Frozen(model.hyperhead, model.q_net)
    long = student(states, mask, vectors)
    assert long.std() > 0.1
    torch.testing.assert_close(student(states, mask, vectors[:, :8]), long[:, :8], **CLOSE)


def test_a_students_own_encoder_reads_queries_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries that are encoded in order of length and left there: each student would learn for another's texts."""
    monkeypatch.setattr(hypencoder_students, "AT_ONCE", 12)
    model = tiny()
    ids, mask = model.collate_queries(QUERIES)["ids"].pad()
    vectors = torch.randn(len(QUERIES), 4, 16)
    one_by_one = [
        Frozen(model.hyperhead, model.q_net)(
            model.query_encoder(row[real][None].long(), real[None][:, real]), real[None][:, real], items[None]
        )
        for row, real, items in zip(ids, mask, vectors, strict=True)
    ]
    student = Encoded(model.query_encoder, Frozen(model.hyperhead, model.q_net))
    torch.testing.assert_close(student(ids.float(), mask, vectors), torch.cat(one_by_one), **CLOSE)


def test_two_encoders_are_saved_and_loaded(tmp_path: Path) -> None:
    """Two wrapped encoders with adapters of their own: one must not come back as the other."""
    lora = BackboneConfig(str(tiny_backbone()), lora=LoRA(rank=2, alpha=4))
    model = tiny(backbone=lora, shared=False, pooling="mean", scale="released")
    with torch.no_grad():
        for parameter in (*model.query_encoder.parameters(), *model.item_encoder.parameters()):
            if parameter.requires_grad:
                parameter.normal_(std=0.1)
    expected = scores_of(model)
    save(model, tmp_path / "model")
    torch.testing.assert_close(scores_of(load(tmp_path / "model")), expected, **CLOSE)


def test_dropout_is_for_training_alone() -> None:
    """A q-net that drops inputs in search gives another ranking each time."""
    model = tiny(q_net=QNetConfig((16, 16), dropout=0.5), backbone=BackboneConfig(str(tiny_backbone()), dropout=0.0))
    torch.testing.assert_close(scores_of(model), scores_of(model))
    model.train()
    assert not torch.equal(scores_of(model), scores_of(model))


def test_an_empty_query_is_refused() -> None:
    """A softmax over no tokens is NaN, and NaN weights score every item as NaN."""
    with pytest.raises(DataError, match="query 'q' is empty"):
        Query("q", " ")
    model = tiny()
    ids = model.collate_queries(QUERIES)["ids"]
    assert isinstance(ids, Ragged)
    holed = Ragged(ids.values, torch.cat([ids.offsets[:2], ids.offsets[1:]]))
    with pytest.raises(ValueError, match="query row 1 of 4 has no tokens"):
        model.encode_queries({"ids": holed})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"widths": ()}, "one positive width"),
        ({"widths": (16, 0)}, "one positive width"),
        ({"residual": False, "residual_on_last": True}, "residual_on_last needs"),
        ({"dropout": 1.0}, "dropout"),
        ({"widths": (16, 8, 8)}, r"core block 1 maps 16 to 8 .* items are 16 wide"),
    ],
)
def test_impossible_q_nets_are_refused(settings: dict[str, Any], message: str) -> None:
    """A residual between unequal widths fails in the first training step otherwise, or broadcasts."""
    with pytest.raises(ValueError, match=message):
        QNet(QNetConfig(**{"widths": (16, 16)} | settings), 16)


def test_more_layers_than_the_checkpoint_has(tmp_path: Path) -> None:
    """A config that asks for more than the file holds must not start the rest at random."""
    save(tiny(), tmp_path)
    config = (tmp_path / "config.json").read_text()
    assert "16,\n        16,\n        16\n" in config
    (tmp_path / "manifest.json").unlink()  # which refuses any change
    (tmp_path / "config.json").write_text(config.replace("16,\n        16\n", "16,\n        16,\n        16\n"))
    with pytest.raises(ValueError, match=r"hyperhead.* has shape \(3, 16, 16\), expected \(4, 16, 16\)"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(config)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: value for name, value in tensors.items() if "groups.1" not in name}, tmp_path / "model.safetensors"
    )
    with pytest.raises(ValueError, match=r"missing \['hyperhead\.groups\.1"):
        load(tmp_path)


def test_taking_queries_apart_keeps_their_nets() -> None:
    """A searcher takes queries by row: every part of a q-net must go with its query."""
    model = tiny()
    with torch.inference_mode():
        queries = model.encode_queries(model.collate_queries(QUERIES))
        items = model.encode_items(model.collate_items(ITEMS))
        some = model.score(take(queries, torch.tensor([2, 0])), items)
    assert set(queries) == {f"weight_{i}" for i in range(4)} | {f"bias_{i}" for i in range(3)}
    torch.testing.assert_close(some, scores_of(model)[[2, 0]], **CLOSE)
