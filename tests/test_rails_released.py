"""Released RAILS checkpoints, on synthetic files of their layout."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from simzoo.core.records import DataError, History, Item
from simzoo.models.formats import load
from simzoo.models.formats.rails import ReleasedSizes, load_released
from simzoo.models.next_item_mol import NextItemMoL

NAME = (
    "HSTU-b2-h2-dqk4-dv4-lsilud0.2-ad0.0_MoL-3x2x4-t0.5-d0.2-l2-q5d0.0swiglu-id0.1-gq6-gi6d0.0-gqi6d0.0-x-glu_silu-"
    "uids5d0.5_local_ssl-n128-b128-lr0.001-wu0-wd0.001-2024-06-19_ep75"
)
SIZES = ReleasedSizes(2, 3, 2, "swiglu", 0.5, output_length=2)
WIDTH, POSITIONS, ITEMS, BUCKETS = 8, 6, 7, 128
HISTORIES = [
    History.of("12", ["3", "1", "7"], [100, 160, 9_000], now=700_000),
    History.of("4", ["2"], [5], now=6),
    History.of("7", ["5", "6", "5", "4", "1"], [10, 11, 20, 400, 5_000], now=5_001),  # one more than is read
]


def released(item_projection: str = "_item_embeddings_fn._item_emb_proj_module.1") -> dict[str, Tensor]:
    """Random tensors under the released names, in their shapes."""
    shapes: dict[str, tuple[int, ...]] = {
        "_embedding_module._item_emb.weight": (ITEMS + 1, WIDTH),
        "_input_features_preproc._pos_emb.weight": (POSITIONS, WIDTH),
        "_attn_mask": (POSITIONS, POSITIONS),
        "_ndp_module._query_embeddings_fn._query_emb_proj_module.1._w": (WIDTH, 10),
        "_ndp_module._query_embeddings_fn._query_emb_proj_module.1._b": (1, 10),
        "_ndp_module._query_embeddings_fn._query_emb_proj_module.2.weight": (8, 5),
        "_ndp_module._query_embeddings_fn._query_emb_proj_module.2.bias": (8,),
        "_ndp_module._query_embeddings_fn._uid_embeddings_0.weight": (6, 4),
        f"_ndp_module.{item_projection}.weight": (8, WIDTH),
        f"_ndp_module.{item_projection}.bias": (8,),
    }
    for part, first, second in (("query_only", 0, 2), ("item_only", 1, 3), ("qi", 1, 3)):
        name = f"_ndp_module._gating_fn._{part}_partial_module"
        shapes |= {f"{name}.{first}.weight": (6, 6 if part == "qi" else WIDTH), f"{name}.{first}.bias": (6,)}
        shapes |= {f"{name}.{second}.weight": (6, 6)} | ({f"{name}.{second}.bias": (6,)} if part == "qi" else {})
    for layer in range(2):
        name = f"_hstu._attention_layers.{layer}"
        shapes |= {
            f"{name}._uvqk": (WIDTH, 4 * WIDTH),
            f"{name}._o.weight": (WIDTH, WIDTH),
            f"{name}._o.bias": (WIDTH,),
        }
        shapes |= {f"{name}._rel_attn_bias._ts_w": (BUCKETS + 1,)}
        shapes |= {f"{name}._rel_attn_bias._pos_w": (2 * POSITIONS - 1,)}
    generator = torch.Generator().manual_seed(0)
    return {f"module.{name}": torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def write(path: Path, tensors: dict[str, Tensor], **other: Any) -> Path:
    torch.save({"epoch": 75, "batch_id": 9, "model_state_dict": tensors, "optimizer_state_dict": {}, **other}, path)
    return path


def by_hand(tensors: dict[str, Tensor], history: History) -> Tensor:
    """Scores of all items, one user, one position and one pair after another, in the authors' layout."""
    t = {name.removeprefix("module."): value for name, value in tensors.items()}
    assert history.times is not None and history.now is not None
    items, times = [int(item) for item in history.items[-4:]], history.times[-4:]
    following = [*times[1:], history.now]
    x = t["_embedding_module._item_emb.weight"][items] * math.sqrt(WIDTH)
    x = x + t["_input_features_preproc._pos_emb.weight"][: len(items)]
    for layer in range(2):
        name = f"_hstu._attention_layers.{layer}."
        u, v, q, k = F.silu(F.layer_norm(x, (WIDTH,), eps=1e-6) @ t[name + "_uvqk"]).split(WIDTH, dim=1)
        attended = torch.zeros_like(x)
        for i in range(len(items)):
            for j in range(i + 1):
                bucket = min(int(math.log(max(abs(following[i] - times[j]), 1)) / 0.301), BUCKETS)
                bias = t[name + "_rel_attn_bias._pos_w"][POSITIONS - 1 + j - i]
                bias = bias + t[name + "_rel_attn_bias._ts_w"][bucket]
                for head in (slice(0, 4), slice(4, 8)):
                    attended[i, head] += F.silu(q[i, head] @ k[j, head] + bias) / POSITIONS * v[j, head]
        normed = F.layer_norm(attended, (WIDTH,), eps=1e-6)
        x = x + (u * normed) @ t[name + "_o.weight"].T + t[name + "_o.bias"]
    query = F.layer_norm(x[-1], (WIDTH,), eps=1e-6)
    side = "_ndp_module._query_embeddings_fn."
    left, right = (query @ t[side + "_query_emb_proj_module.1._w"] + t[side + "_query_emb_proj_module.1._b"][0]).chunk(
        2
    )
    projected = F.linear(F.silu(left) * right, *(t[f"{side}_query_emb_proj_module.2.{p}"] for p in ("weight", "bias")))
    user = t[side + "_uid_embeddings_0.weight"][int(history.id) % 5 + 1]
    components = F.normalize(torch.cat([projected.view(2, 4), user[None]]), dim=1)
    gating = "_ndp_module._gating_fn._"
    query_part = t[gating + "query_only_partial_module.2.weight"] @ F.silu(
        t[gating + "query_only_partial_module.0.weight"] @ query + t[gating + "query_only_partial_module.0.bias"]
    )
    [projection] = [name.removesuffix("weight") for name in t if re.search(r"_item_(emb_)?proj_module.1.weight", name)]
    scores = []
    for item in t["_embedding_module._item_emb.weight"][1:]:
        parts = F.normalize((t[projection + "weight"] @ item + t[projection + "bias"]).view(2, 4), dim=1)
        logits = torch.stack([q @ i for q in components for i in parts]) / 0.5
        item_part = t[gating + "item_only_partial_module.3.weight"] @ F.silu(
            t[gating + "item_only_partial_module.1.weight"] @ item + t[gating + "item_only_partial_module.1.bias"]
        )
        hidden = F.silu(t[gating + "qi_partial_module.1.weight"] @ logits + t[gating + "qi_partial_module.1.bias"])
        cross = t[gating + "qi_partial_module.3.weight"] @ hidden + t[gating + "qi_partial_module.3.bias"]
        gates = query_part * item_part + cross
        scores.append((torch.softmax(gates * gates.sigmoid(), dim=0) * logits).sum())
    return torch.stack(scores)


@torch.inference_mode()
@pytest.mark.parametrize("item_projection", ["_item_embeddings_fn._item_emb_proj_module.1", "_item_proj_module.1"])
def test_scores_are_the_authors(item_projection: str, tmp_path: Path) -> None:
    """A matrix that is not turned, a bias counted from the wrong end, or components in another order still load."""
    tensors = released(item_projection)
    model = load_released(write(tmp_path / "kept", tensors), SIZES)
    items = model.encode_items(model.collate_items([Item(str(row), "") for row in range(1, ITEMS + 1)]))
    scores = model.score(model.encode_queries(model.collate_queries(HISTORIES)), items)
    expected = torch.stack([by_hand(tensors, history) for history in HISTORIES])
    torch.testing.assert_close(scores, expected, atol=1e-4, rtol=1e-4)
    assert expected.std(dim=1).min() > 0.01


def test_sizes_stand_in_the_name(tmp_path: Path) -> None:
    """A temperature or an activation that is guessed gives other scores without an error."""
    assert ReleasedSizes.of_name(NAME) == ReleasedSizes(2, 3, 2, "swiglu", 0.5)
    books = NAME.replace("h2", "h8").replace("3x2x4", "8x8x32").replace("swiglu", "geglu").replace("t0.5", "t0.05")
    assert ReleasedSizes.of_name(books) == ReleasedSizes(8, 8, 8, "geglu", 0.05)
    tensors = released()
    tensors["module._input_features_preproc._pos_emb.weight"] = torch.randn(15, WIDTH)
    for layer in range(2):
        tensors[f"module._hstu._attention_layers.{layer}._rel_attn_bias._pos_w"] = torch.randn(29)
    model = load(write(tmp_path / NAME, tensors))
    assert isinstance(model, NextItemMoL)
    folder = load(tmp_path)
    assert folder.weights_sha256 == model.weights_sha256
    assert (model.encoder.config.length, model.encoder.config.output_length) == (4, 11)
    with pytest.raises(ValueError, match="is not named as the released files are"):
        load_released(write(tmp_path / "other", tensors))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"module._extra": torch.zeros(1)}, r"unknown \['_extra'\]"),
        ({"module._hstu._attention_layers.1._o.bias": None}, r"missing \['_hstu._attention_layers.1._o.bias'\]"),
        ({"module._embedding_module._item_emb.weight": None}, "_item_emb.weight is missing"),
        ({"module._hstu._attention_layers.1._o.bias": torch.zeros(9)}, r"has shape \(9,\), expected \(8,\)"),
        ({"module._ndp_module._gating_fn._qi_partial_module.1.weight": torch.zeros(6, 8)}, "gate is over 8 components"),
    ],
)
def test_other_layouts_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    """A tensor that is left out keeps its random start, and recommends nonsense."""
    tensors = {name: value for name, value in (released() | change).items() if value is not None}
    with pytest.raises(ValueError, match=message):
        load_released(write(tmp_path / "kept", tensors), SIZES)


def test_nothing_but_tensors_is_read(tmp_path: Path) -> None:
    """An unrestricted unpickler runs whatever a downloaded file says."""
    path = write(tmp_path / "kept", released(), epoch=print)
    with pytest.raises(ValueError, match=r"it names (builtins|__builtin__)\.print, which is neither a tensor"):
        load_released(path, SIZES)
    torch.save([1, 2], path)
    with pytest.raises(ValueError, match="no dictionary of tensors under model_state_dict"):
        load_released(path, SIZES)
    with pytest.raises(FileNotFoundError, match="neither a folder nor a file here"):
        load_released(tmp_path / "none", SIZES)


def test_the_next_time_must_be_known(tmp_path: Path) -> None:
    """Without it the last state's biases would be those of a random bucket."""
    model = load_released(write(tmp_path / "kept", released()), SIZES)
    with pytest.raises(DataError, match="user '1': the encoder wants to know when the next action happens"):
        model.collate_queries([History.of("1", ["2"], [5])])
