"""The layouts of released models: synthetic files of exactly their keys, scored by a slow reference."""

from __future__ import annotations

import argparse
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

from simzoo.core.records import Item, Query
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.formats import anncur as anncur_released
from simzoo.models.formats import lightning_ir, load, save
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.similarity import LearnedSimilarity

QUERIES = [Query("q0", "the boat lay on the river bank", (4, 8)), Query("q1", "banks")]
ITEMS = [Item("i0", "a small boat", "boat"), Item("i1", "the land beside a river"), Item("i2", "z")]
TEXTS = ["a small boat", "the land beside a river", "z"]
CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 2e-4}


def scores(model: LearnedSimilarity, queries: list[Query], items: list[Item]) -> Tensor:
    with torch.inference_mode():
        reps = model.encode_queries(model.collate_queries(queries)), model.encode_items(model.collate_items(items))
        return model.score(*reps)


# -- ANNCUR -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT with 512 positions, as bert-base-uncased has them, and the tiny vocabulary."""
    folder = tmp_path_factory.mktemp("bert")
    config = BertConfig.from_pretrained(tiny_backbone())
    config.max_position_embeddings = 512
    torch.manual_seed(3)
    model = BertModel(config)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(10 if value.ndim > 1 else 1)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_backbone()).save_pretrained(folder)
    return folder


def lightning(path: Path, state: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint as the authors' version of Lightning wrote it, settings class and all."""

    class Config:
        def __init__(self) -> None:
            self.base_lr = 1e-5

    module = types.ModuleType("utils.config")
    module.Config = Config  # type: ignore[attr-defined]
    Config.__module__, Config.__qualname__ = "utils.config", "Config"
    monkeypatch.setitem(sys.modules, "utils", types.ModuleType("utils"))
    monkeypatch.setitem(sys.modules, "utils.config", module)
    settings = {"config": Config(), "args": argparse.Namespace(seed=1)}
    held = {"epoch": 3, "global_step": 9, "pytorch-lightning_version": "1.4.2", "state_dict": state}
    torch.save({**held, "hyper_parameters": settings}, path)
    return path


def random_bert(folder: Path, prefix: str, seed: int) -> dict[str, Tensor]:
    """Keys of an old BertModel under a prefix: with its pooler and the position ids that newer ones leave out."""
    torch.manual_seed(seed)
    state = AutoModel.from_pretrained(folder).state_dict()
    found = {f"{prefix}.{name}": value + 0.05 * torch.randn_like(value) for name, value in state.items()}
    return {**found, f"{prefix}.embeddings.position_ids": torch.arange(512)[None]}


def filled_bert(folder: Path, state: dict[str, Tensor], prefix: str) -> Any:
    model = AutoModel.from_pretrained(folder).eval()
    own = {name.removeprefix(f"{prefix}."): value for name, value in state.items() if name.startswith(f"{prefix}.")}
    own.pop("embeddings.position_ids")
    model.load_state_dict(own)
    return model


def side(folder: Path, text: str) -> list[int]:
    ids: list[int] = AutoTokenizer.from_pretrained(folder)(text, add_special_tokens=False).input_ids
    return ids


def mention_ids(folder: Path, query: Query) -> list[int]:
    """[CLS] left [Ms] mention [Me] right [SEP]; without a mention the first tag stands before the text."""
    vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
    cls, sep, opening, closing = (vocabulary[t] for t in ("[CLS]", "[SEP]", "[unused0]", "[unused1]"))
    if query.mention is None:
        return [cls, opening, *side(folder, query.text), sep]
    a, b = query.mention
    left, mention, right = (side(folder, part) for part in (query.text[:a], query.text[a:b], query.text[b:]))
    return [cls, *left, opening, *mention, closing, *right, sep]


def entity_ids(folder: Path, item: Item) -> list[int]:
    vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
    return [*side(folder, item.title), vocabulary["[unused2]"], *side(folder, item.text), vocabulary["[SEP]"]]


@torch.inference_mode()
def slow_pair(folder: Path, state: dict[str, Tensor], query: Query, item: Item) -> float:
    """The released layout, pair by pair: 128 places for the mention, pads between, entity from position 128 on."""
    model = filled_bert(folder, state, anncur_released.PAIR)
    vocabulary = AutoTokenizer.from_pretrained(folder).get_vocab()
    ids = torch.zeros(255, dtype=torch.int64)
    left, right = mention_ids(folder, query), entity_ids(folder, item)
    ids[: len(left)], ids[128 : 128 + len(right)] = torch.tensor(left), torch.tensor(right)
    types = (torch.arange(255) >= 128).long() * (ids != 0)
    states = model(input_ids=ids[None], attention_mask=(ids != 0).long()[None], token_type_ids=types[None])
    hidden = states.last_hidden_state[0]
    if f"{anncur_released.HEAD}.weight" in state:
        head = state[f"{anncur_released.HEAD}.weight"], state[f"{anncur_released.HEAD}.bias"]
        return float(hidden[0] @ head[0][0] + head[1])
    opening = (ids == vocabulary["[unused0]"]).nonzero()[0, 0]
    closing = opening if query.mention is None else (ids == vocabulary["[unused1]"]).nonzero()[0, 0]
    entity = 128 + right.index(vocabulary["[unused2]"])
    return float((hidden[opening] + hidden[closing]) / 2 @ hidden[entity])


@pytest.mark.parametrize("head", [False, True], ids=["emb", "cls"])
@pytest.mark.parametrize("as_folder", [False, True])
def test_released_pairs_score_as_their_layout_says(
    head: bool, as_folder: bool, bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions or segments that are off by one give scores that look right and rank wrong."""
    state = random_bert(bert, anncur_released.PAIR, seed=5)
    if head:
        state |= {f"{anncur_released.HEAD}.weight": torch.randn(1, 16), f"{anncur_released.HEAD}.bias": torch.randn(1)}
    path = lightning(tmp_path / "model.ckpt", state, monkeypatch)
    model = anncur_released.load_released(tmp_path if as_folder else path, backbone=str(bert))
    expected = torch.tensor([[slow_pair(bert, state, query, item) for item in ITEMS] for query in QUERIES])
    torch.testing.assert_close(scores(model, QUERIES, ITEMS), expected, **CLOSE)


@torch.inference_mode()
def test_released_dual_encoder_scores_as_its_layout_says(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Towers that are swapped, or vectors that are normalised, still give plausible scores."""
    query_side, item_side = anncur_released.TOWERS
    state = random_bert(bert, query_side, 6) | random_bert(bert, item_side, 7)
    path = lightning(tmp_path / "model.ckpt", state, monkeypatch)
    model = anncur_released.load_released(path, backbone=str(bert))
    cls = AutoTokenizer.from_pretrained(bert).cls_token_id
    towers = filled_bert(bert, state, query_side), filled_bert(bert, state, item_side)
    left = [towers[0](torch.tensor([mention_ids(bert, q)])).last_hidden_state[0, 0] for q in QUERIES]
    right = [towers[1](torch.tensor([[cls, *entity_ids(bert, i)]])).last_hidden_state[0, 0] for i in ITEMS]
    torch.testing.assert_close(scores(model, QUERIES, ITEMS), torch.stack(left) @ torch.stack(right).T, **CLOSE)


def test_released_weights_become_ours(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is converted must need neither the old file nor another score."""
    state = random_bert(bert, anncur_released.PAIR, seed=5)
    path = lightning(tmp_path / "model.ckpt", state, monkeypatch)
    model = anncur_released.load_released(path, backbone=str(bert))
    save(model, tmp_path / "ours")
    path.unlink()
    again = load(tmp_path / "ours")
    torch.testing.assert_close(scores(again, QUERIES, ITEMS), scores(model, QUERIES, ITEMS))


def test_released_weights_are_known_by_their_keys(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """load takes the file as it was downloaded; a checkpoint of something else is not taken for one."""
    defaults = anncur_released.load_released.__defaults__
    monkeypatch.setattr(anncur_released.load_released, "__defaults__", (str(bert),))
    assert defaults == (anncur_released.BERT,)
    path = lightning(tmp_path / "model.ckpt", random_bert(bert, anncur_released.PAIR, seed=5), monkeypatch)
    assert isinstance(load(path), CrossEncoder)
    other = lightning(tmp_path / "other.ckpt", {"net.weight": torch.zeros(2)}, monkeypatch)
    with pytest.raises(ValueError, match="no checkpoint file of a known layout"):
        load(other)
    lacking = random_bert(bert, anncur_released.PAIR, seed=5)
    lacking.pop(f"{anncur_released.PAIR}.encoder.layer.1.output.dense.bias")
    with pytest.raises(ValueError, match=r"does not fit: missing \['model\.encoder\.bert_model\.encoder\.layer\.1"):
        load(lightning(path, lacking, monkeypatch))


def test_an_encoder_in_hugging_faces_layout(bert: Path) -> None:
    """A folder that holds an encoder alone is [EMB]-CE only if it is asked for."""
    model = anncur_released.load_encoder(bert)
    expected = CrossEncoder(BackboneConfig(str(bert)), TokenConfig(), scoring="emb").eval()
    torch.testing.assert_close(scores(model, QUERIES, ITEMS), scores(expected, QUERIES, ITEMS))


# -- lightning-ir -----------------------------------------------------------------------------------------------------


def lightning_ir_folder(folder: Path, extra: dict[str, Tensor], **settings: Any) -> dict[str, Tensor]:
    """config.json and weights as lightning-ir saves them: the backbone's settings and its own in one."""
    own = {**json.loads((tiny_backbone() / "config.json").read_text()), "backbone_model_type": "bert", **settings}
    (folder / "config.json").write_text(json.dumps(own))
    torch.manual_seed(8)
    state = AutoModel.from_pretrained(tiny_backbone()).state_dict()
    tensors = {f"bert.{name}": value + 0.05 * torch.randn_like(value) for name, value in state.items()} | extra
    torch.save(tensors, folder / "pytorch_model.bin")
    return tensors


def states(tensors: dict[str, Tensor], left: str, right: str | None = None) -> Tensor:
    """Last hidden states (L, h) of [CLS] left [SEP] or [CLS] left [SEP] right [SEP]."""
    model = AutoModel.from_pretrained(tiny_backbone()).eval()
    model.load_state_dict({n.removeprefix("bert."): v for n, v in tensors.items() if n.startswith("bert.")})
    ids = [2, *side(tiny_backbone(), left), 3]
    vocabulary = AutoTokenizer.from_pretrained(tiny_backbone()).get_vocab()
    ids[0], ids[-1] = vocabulary["[CLS]"], vocabulary["[SEP]"]
    second = [] if right is None else [*side(tiny_backbone(), right), vocabulary["[SEP]"]]
    types = torch.tensor([[0] * len(ids) + [1] * len(second)])
    with torch.inference_mode():
        found: Tensor = model(input_ids=torch.tensor([[*ids, *second]]), token_type_ids=types).last_hidden_state[0]
    return found


def test_lightning_ir_models(tmp_path: Path) -> None:
    """The same encoder under three heads: a head that is passed over, or read for another, still gives numbers."""
    plain = [Query("q", text) for text in TEXTS[:2]], [Item("i", text) for text in TEXTS]
    head = {"linear.weight": torch.randn(1, 16)}
    lengths = {"query_length": 24, "doc_length": 24}
    tensors = lightning_ir_folder(tmp_path, head, model_type="mono", scoring_strategy="rank", **lengths)
    mono = lightning_ir.load(tmp_path, str(tiny_backbone()))
    expected = [[float(states(tensors, q, i)[0] @ head["linear.weight"][0]) for i in TEXTS] for q in TEXTS[:2]]
    torch.testing.assert_close(scores(mono, *plain), torch.tensor(expected), **CLOSE)

    tensors = lightning_ir_folder(
        tmp_path,
        {},
        model_type="lir-dpr",
        projection=None,
        similarity_function="dot",
        pooling_strategy="mean",
        query_pooling_strategy="first",  # as version 0.0.6 writes them, and does not read them
        doc_pooling_strategy="first",
        **lengths,
    )
    dpr = lightning_ir.load(tmp_path, str(tiny_backbone()))
    vectors = [states(tensors, text).mean(dim=0) for text in TEXTS]
    torch.testing.assert_close(scores(dpr, *plain), torch.stack(vectors[:2]) @ torch.stack(vectors).T, **CLOSE)

    head = {"projection.weight": torch.randn(8, 16)}
    settings = {
        "model_type": "col",
        "projection": "linear_no_bias",
        "normalization_strategy": "l2",
        **lengths,
    }
    tensors = lightning_ir_folder(tmp_path, head, **settings)
    col = lightning_ir.load(tmp_path, str(tiny_backbone()))
    several = [torch.nn.functional.normalize(states(tensors, t) @ head["projection.weight"].T, dim=1) for t in TEXTS]
    expected = [[float((q @ i.T).amax(dim=1).sum()) for i in several] for q in several[:2]]
    torch.testing.assert_close(scores(col, *plain), torch.tensor(expected), **CLOSE)

    lightning_ir_folder(tmp_path, {}, **settings)
    with pytest.raises(ValueError, match=r"no projection\.weight"):
        load(tmp_path)
    lightning_ir_folder(tmp_path, head, **settings, query_mask_scoring_tokens="punctuation")
    with pytest.raises(ValueError, match="query_mask_scoring_tokens is 'punctuation', expected None"):
        load(tmp_path)
    lightning_ir_folder(tmp_path, {}, model_type="lir-dpr", projection="linear", **lengths)
    with pytest.raises(ValueError, match="projection is 'linear', expected None: our scores would differ"):
        load(tmp_path)
