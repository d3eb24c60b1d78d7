"""The authors' file layout: made by hand with random weights, and scored by the formulas as written for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from simzoo.core.records import Item, Query
from simzoo.core.reps import Ragged, Reps
from simzoo.models.formats import load, save
from simzoo.models.formats.hypencoder import load_released
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.similarity import LearnedSimilarity

QUERIES = ["the boat lay on the river bank", "banks"]
ITEMS = [Item("i0", "a small boat", "boat"), Item("i1", "the land beside a river"), Item("i2", "z")]

GOLDEN = Path(__file__).parent / "golden" / "hypencoder"
TOLERANCE: dict[str, Any] = {"atol": 1e-4, "rtol": 1e-4}


def released(folder: Path, layers: int = 2, shared: bool = True, **converter: Any) -> dict[str, Tensor]:
    """Writes config.json and pytorch_model.bin with the keys and shapes of ``jfkback/hypencoder.{n}_layer``."""
    dimensions = [16] * (layers + 1) + [1]
    transformer = {"model_name_or_path": str(tiny_backbone()), "freeze_transformer": False}
    config = {
        "architectures": ["HypencoderDualEncoder"],
        "query_encoder_kwargs": {
            **transformer,
            "base_encoder_output_dim": 16,
            "converter_kwargs": {"vector_dimensions": dimensions, "activation_type": "relu", **converter},
            "embedding_representation": None,
        },
        "passage_encoder_kwargs": {**transformer, "pooling_type": "cls"},
        "shared_encoder": shared,
        "loss_type": ["margin_mse", "cross_entropy"],
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(1)
    bert = AutoModel.from_pretrained(tiny_backbone()).state_dict()
    encoders = {"query": {name: value + 0.1 * torch.randn_like(value) for name, value in bert.items()}}
    encoders["passage"] = encoders["query"]
    if not shared:
        encoders["passage"] = {name: value + 0.1 * torch.randn_like(value) for name, value in bert.items()}
    tensors = {f"{side}_encoder.transformer.{n}": v for side, part in encoders.items() for n, v in part.items()}
    weights = [(dimensions[i], dimensions[i + 1]) for i in range(layers + 1)]
    biases = [(dimensions[i + 1], 1) for i in range(layers)]
    head: dict[str, Tensor] = {}
    for kind, base, shapes in (("weight", "matrices", weights), ("bias", "vectors", biases)):
        for i, (wide, rows) in enumerate(shapes):
            head[f"hyper_base_{base}.{i}"] = torch.randn((1, rows, wide) if kind == "weight" else (1, wide)) / 2
            head[f"{kind}_query_embeddings.{i}"] = torch.randn(1, rows, wide)
            head[f"{kind}_hyper_projection.{i}.weight"] = torch.randn(wide, wide) / 10
            head[f"{kind}_hyper_projection.{i}.bias"] = torch.randn(wide) / 4
    for j, (wide, _) in enumerate([*weights, *biases]):
        for side in ("key", "value"):
            head[f"{side}_projections.{j}.weight"] = torch.randn(wide, 16) / 4
            head[f"{side}_projections.{j}.bias"] = torch.randn(wide) / 4
    tensors |= {f"query_encoder.{name}": value for name, value in head.items()}
    torch.save(tensors, folder / "pytorch_model.bin")
    return tensors


@torch.inference_mode()
def slow_scores(tensors: dict[str, Tensor], layers: int) -> Tensor:
    """Query by query and item by item, straight from the released tensors."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_backbone())

    def states(side: str, text: str) -> Tensor:
        prefix = f"{side}_encoder.transformer."
        bert = AutoModel.from_pretrained(tiny_backbone()).eval()
        bert.load_state_dict({n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)})
        ids = tokenizer(f"[CLS] {text} [SEP]", return_tensors="pt", add_special_tokens=False).input_ids
        found: Tensor = bert(ids).last_hidden_state[0]
        return found

    def matrix(kind: str, base: str, i: int, j: int, hidden: Tensor) -> Tensor:
        get = lambda name: tensors[f"query_encoder.{name}"]  # noqa: E731
        keys = F.linear(hidden, get(f"key_projections.{j}.weight"), get(f"key_projections.{j}.bias"))
        values = F.linear(hidden, get(f"value_projections.{j}.weight"), get(f"value_projections.{j}.bias"))
        query = get(f"{kind}_query_embeddings.{i}")[0]
        attention = torch.softmax(query @ keys.T / len(query) ** 0.5, dim=-1)
        made = F.layer_norm(F.relu(attention @ values), (keys.shape[1],))
        name = f"{kind}_hyper_projection.{i}"
        made = F.linear(made, get(f"{name}.weight"), get(f"{name}.bias"))
        return made + get(f"hyper_base_{base}.{i}").view(made.shape)

    scores = torch.empty(len(QUERIES), len(ITEMS))
    for q, text in enumerate(QUERIES):
        hidden = states("query", text)
        weights = [matrix("weight", "matrices", i, i, hidden) for i in range(layers + 1)]
        biases = [matrix("bias", "vectors", i, layers + 1 + i, hidden) for i in range(layers)]
        for m, item in enumerate(ITEMS):
            x = states("passage", f"{item.title} {item.text}".strip())[0]
            for i in range(layers):
                y = F.layer_norm(F.relu(x @ weights[i].T + biases[i][0]), (16,))
                x = y if i == layers - 1 else y + x
            scores[q, m] = weights[-1][0] @ x
    return scores


def scores_of(model: LearnedSimilarity) -> Tensor:
    with torch.inference_mode():
        queries = model.encode_queries(model.collate_queries([Query(str(i), q) for i, q in enumerate(QUERIES)]))
        return model.score(queries, model.encode_items(model.collate_items(ITEMS)))


@pytest.mark.parametrize(("layers", "shared"), [(2, True), (3, False)])
def test_released_weights_score_as_the_formulas_say(layers: int, shared: bool, tmp_path: Path) -> None:
    """A tensor in the wrong place, or the paper's scale, gives plausible scores and bad rankings."""
    tensors = released(tmp_path / "released", layers, shared)
    model = load(tmp_path / "released")
    expected = slow_scores(tensors, layers)
    assert expected.std(dim=0).min() > 1e-3 and expected.std(dim=1).min() > 1e-3
    torch.testing.assert_close(scores_of(model), expected, **TOLERANCE)
    save(model, tmp_path / "converted")
    torch.testing.assert_close(scores_of(load(tmp_path / "converted")), expected, **TOLERANCE)


def test_safetensors_without_the_tied_encoder(tmp_path: Path) -> None:
    """safetensors keeps tied weights once; the passage side must not be asked for then."""
    tensors = released(tmp_path)
    expected = scores_of(load_released(tmp_path))
    (tmp_path / "pytorch_model.bin").unlink()
    kept = {n: v.clone() for n, v in tensors.items() if not n.startswith("passage_encoder.")}
    save_file(kept, tmp_path / "model.safetensors")
    torch.testing.assert_close(scores_of(load_released(tmp_path)), expected)


def test_released_options_are_read(tmp_path: Path) -> None:
    """An option of the released q-net that is read as its default changes every score."""
    options = {"layer_norm_before_residual": False, "do_residual_on_last": None, "activation_type": "gelu"}
    released(tmp_path, **options)
    config = load_released(tmp_path).q_net.config
    assert (config.norm, config.residual, config.residual_on_last) == ("after_residual", True, True)
    assert (config.activation, config.dropout, config.widths) == ("gelu", 0.0, (16, 16))
    released(tmp_path, do_layer_norm=False, do_dropout=True, do_residual=False)
    config = load_released(tmp_path).q_net.config
    assert (config.norm, config.residual, config.dropout) == ("none", False, 0.1)


def _more_layers(folder: Path, tensors: dict[str, Tensor]) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["query_encoder_kwargs"]["converter_kwargs"]["vector_dimensions"].insert(0, 16)
    (folder / "config.json").write_text(json.dumps(config))


def _fewer_layers(folder: Path, tensors: dict[str, Tensor]) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["query_encoder_kwargs"]["converter_kwargs"]["vector_dimensions"].pop(0)
    (folder / "config.json").write_text(json.dumps(config))


def _unknown_option(folder: Path, tensors: dict[str, Tensor]) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["query_encoder_kwargs"]["converter_kwargs"]["gating"] = True
    (folder / "config.json").write_text(json.dumps(config))


def _wrong_shape(folder: Path, tensors: dict[str, Tensor]) -> None:
    tensors["query_encoder.key_projections.0.bias"] = torch.zeros(3)
    torch.save(tensors, folder / "pytorch_model.bin")


def _cut(folder: Path, tensors: dict[str, Tensor]) -> None:
    whole = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(whole[: len(whole) // 2])


def _code(folder: Path, tensors: dict[str, Tensor]) -> None:
    torch.save({"query_encoder.transformer": nn.Linear(2, 2)}, folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_more_layers, "asks for 3 core layers and a last one, while the file has 3 in all"),
        (_fewer_layers, "asks for 1 core layers and a last one, while the file has 3 in all"),
        (_unknown_option, "gating"),
        (_wrong_shape, r"key_projections\.0\.bias has shape \(3,\), expected \(16,\)"),
        (_cut, "damaged or holds more than tensors"),
        (_code, "damaged or holds more than tensors"),
    ],
)
def test_what_does_not_fit_is_refused(harm: Any, message: str, tmp_path: Path) -> None:
    """Weights that are missing would stay random; a pickle could run code."""
    harm(tmp_path, released(tmp_path))
    with pytest.raises(ValueError, match=message):
        load_released(tmp_path)


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    """A half-fetched folder must not be taken for a checkpoint of another kind."""
    released(tmp_path)
    (tmp_path / "pytorch_model.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        load_released(tmp_path)


@torch.inference_mode()
def test_equal_to_the_reference_model() -> None:
    """What the authors' own code computes (tests/golden/README.md): a reading of it can be wrong twice in one way."""
    expected = load_file(GOLDEN / "expected.safetensors")
    model = load_released(GOLDEN, backbone=str(tiny_backbone()))

    def tokens(side: str) -> Reps:
        mask = expected[f"{side}_mask"] > 0
        lengths = F.pad(mask.sum(dim=1).cumsum(0), (1, 0))
        return {"ids": Ragged(expected[f"{side}_ids"][mask], lengths)}

    queries, items = model.encode_queries(tokens("query")), model.encode_items(tokens("item"))
    for name, found in {**queries, **{"vectors": items["vector"]}, "scores": model.score(queries, items)}.items():
        assert isinstance(found, Tensor)
        torch.testing.assert_close(
            found, expected[name].view(found.shape), msg=lambda text, name=name: f"{name}: {text}"
        )
    assert set(queries) <= expected.keys() and expected["scores"].std() > 0.1


@pytest.mark.network
def test_golden_scores_of_the_authors() -> None:
    """The scores that the authors' README prints for their six-layer model."""
    model = load_released("jfkback/hypencoder.6_layer")
    queries = ["how many states are there in india", "when do concussion symptoms appear"]
    passages = [
        "India has 28 states and 8 union territories.",
        "Concussion symptoms can appear immediately or up to 72 hours after the injury.",
    ]
    ranked = [dict(model.rank(query, passages)) for query in queries]
    found = torch.tensor([[scores[0], scores[1]] for scores in ranked])
    expected = torch.tensor([[-12.1192, -32.7046], [-34.0934, -13.5832]])
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-4)
