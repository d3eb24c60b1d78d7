"""Transformers in whole numbers of 8 bits: arithmetic against plain integers, scores against single precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from simzoo.core.int8 import Int8Matrix
from simzoo.core.reps import take
from simzoo.models.cross_encoder import CrossEncoder
from simzoo.models.formats import load, save, save_onnx, save_sentence_transformer
from simzoo.models.mixture_of_logits import MoL
from simzoo.models.next_item import NextItem
from simzoo.models.parts.int8 import Int8Linear
from simzoo.models.sequence_classifier import SequenceClassifier
from simzoo.models.similarity import LearnedSimilarity
from tests.test_similarities import reps

TRANSFORMERS = [CrossEncoder, MoL, SequenceClassifier]


@torch.inference_mode()
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_its_whole_numbers(bias: bool) -> None:
    """A scale of another row or column, or a sum that overflows: numbers of the right size, and wrong."""
    torch.manual_seed(0)
    layer = nn.Linear(300, 7, bias=bias)
    x = torch.randn(2, 5, 300) * torch.logspace(-3, 3, 5)[:, None]
    x[0, 0] = 0
    weight, rows = layer.weight.double().numpy(), x.double().numpy()
    steps = np.abs(weight).max(axis=1) / 127, np.abs(rows).max(axis=2, keepdims=True) / 127
    whole = np.rint(weight / steps[0][:, None]), np.rint(rows / np.maximum(steps[1], 1e-30))
    expected = (whole[1] @ whole[0].T) * steps[1] * steps[0] + (layer.bias.double().numpy() if bias else 0)
    found = Int8Linear(layer)(x)
    assert found.shape == (2, 5, 7) and found.dtype == torch.float32
    # A number that lies between two whole ones may go either way.
    np.testing.assert_allclose(found.numpy(), expected, atol=0, rtol=0.02)
    exact = layer(x)
    assert float((found - exact).abs().max() / exact.abs().max()) < 0.02


@torch.inference_mode()
def test_a_row_does_not_depend_on_its_batch() -> None:
    """One scale for all rows, as torch.ao has it: a pair's score would depend on what is scored beside it."""
    torch.manual_seed(0)
    layer, x = Int8Linear(nn.Linear(64, 32)), torch.randn(9, 64)
    x[3] *= 1000
    torch.testing.assert_close(torch.cat([layer(row[None]) for row in x]), layer(x), rtol=0, atol=0)


@pytest.fixture(params=TRANSFORMERS, ids=lambda cls: cls.__name__)
def released(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    save(request.param.tiny(), tmp_path / "model")
    return tmp_path / "model"


@torch.inference_mode()
def test_scores_are_close_and_stay_with_their_pairs(released: Path) -> None:
    """A layer that is not quantized brings no speed, one whose weights are lost no sense."""
    exact, rounded = load(released), load(released, quantize="int8")
    layers = [part for part in rounded.modules() if isinstance(part, Int8Linear)]
    assert len(layers) >= 12  # two layers of BERT
    expected, found = (model.score(*reps(model)) for model in (exact, rounded))
    apart = float((found - expected).abs().max())
    assert 0 < apart < 0.2 * float(expected.std())
    queries, items = reps(rounded)
    alone = rounded.score(take(queries, torch.tensor([1])), take(items, torch.tensor([2])))
    torch.testing.assert_close(alone[0, 0], found[1, 2], atol=1e-5, rtol=1e-5)


def test_what_is_kept_is_told_apart(released: Path, tmp_path: Path) -> None:
    """Scores and representations in int8 taken for exact ones; or rounded weights released as if they were trained."""
    exact, rounded = load(released), load(released, quantize="int8")
    assert rounded.weights_sha256 == f"{exact.weights_sha256} as int8"
    for write in (save, save_onnx, save_sentence_transformer):
        with pytest.raises(ValueError, match="is quantized, which is for scoring alone"):
            write(rounded, tmp_path / "copy")


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    """An option that is taken and does nothing: whoever measures it sees no difference."""

    def saved(model: LearnedSimilarity) -> Path:
        save(model, tmp_path / type(model).__name__)
        return tmp_path / type(model).__name__

    with pytest.raises(ValueError, match="NextItem has no transformer with linear layers"):
        load(saved(NextItem.tiny()), quantize="int8")
    cross = saved(CrossEncoder.tiny())
    with pytest.raises(ValueError, match="beside float32"):
        load(cross, dtype=torch.bfloat16, quantize="int8")
    with pytest.raises(ValueError, match="merge False"):
        load(cross, merge=False, quantize="int8")


@pytest.mark.parametrize("vnni", [True, False])
def test_products_are_exact(vnni: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of 16 bits overflow, and oneDNN halves the numbers where there is no VNNI: bounds would be no bounds."""
    if not vnni:
        monkeypatch.setattr("simzoo.core.int8._has_vnni", lambda: False)
    rng = np.random.default_rng(0)
    for size in ((1, 1, 1), (3, 5, 17), (40, 33, 384), (7, 9, 1040)):
        n, out, width = size
        rows, matrix = (rng.integers(-127, 128, shape) for shape in ((n, width), (out, width)))
        rows[0], matrix[0] = 127, -127  # the largest sum
        one, other = (torch.from_numpy((some + 128).astype(np.uint8)) for some in (rows, matrix))
        np.testing.assert_array_equal(Int8Matrix(other)(one).numpy(), rows @ matrix.T)
