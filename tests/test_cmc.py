"""CMC: whole lists, in any order, of any length."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simzoo.models.cmc import CMC, ComparingLayer, Skip
from simzoo.models.parts.backbone import BackboneConfig
from simzoo.models.parts.tiny import tiny_backbone
from simzoo.models.parts.tokenizing import TokenConfig

ROOT = Path(__file__).parents[1]


def layer_of(skip: Skip, width: int = 16) -> ComparingLayer:
    torch.manual_seed(0)
    return ComparingLayer(width, 2, 32, 0.0, skip).eval()


def reference(layer: ComparingLayer, states: Tensor, real: Tensor | None) -> Tensor:
    """PyTorch's own layer with the same weights."""
    plain = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "gate"})
    return plain(states, src_key_padding_mask=None if real is None else ~real)  # in training mode: no fast path


@pytest.mark.parametrize("skip", ["sum", "mean", "gated", "none"])
def test_layer_is_pytorchs_with_the_skip(skip: Skip) -> None:
    """A norm or a residual in the wrong place trains all the same, only worse."""
    layer, states = layer_of(skip), torch.randn(3, 7, 16)
    real = torch.arange(7) < torch.tensor([[7], [3], [1]])
    for mask in (None, real):
        inner, share = reference(layer, states, mask), torch.sigmoid(torch.tensor(-5.0))
        gated = share * inner + (1 - share) * states
        expected = {"sum": states + inner, "mean": (states + inner) / 2, "gated": gated, "none": inner}[skip]
        kept = torch.ones_like(real) if mask is None else real
        torch.testing.assert_close(layer(states, mask)[kept], expected[kept], atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_candidates_are_compared() -> None:
    """If a score did not depend on the rest of the list, this would be a dual encoder that is slower."""
    model = CMC.tiny().eval()
    queries, items = {"vector": torch.randn(2, 16)}, {"vector": torch.randn(6, 16)}
    pair = model.score(queries, items, torch.tensor([[0, 1]]))
    other = model.score(queries, items, torch.tensor([[0, 2]]))
    assert (pair[:, 0] - other[:, 0]).abs().min() > 1e-4


@torch.inference_mode()
def test_padding_and_the_rest_of_the_batch_change_nothing() -> None:
    """A list that is shorter than its neighbours in the batch must score as if it were alone."""
    model = CMC.tiny().eval()
    queries, items = {"vector": torch.randn(2, 16)}, {"vector": torch.randn(9, 16)}
    lists = torch.tensor([[3, -1, 5, -1, -1], [1, 2, 4, 6, 8]])
    together = model.score(queries, items, lists)
    alone = model.score({"vector": queries["vector"][:1]}, items, torch.tensor([[3, 5]]))
    torch.testing.assert_close(together[0, [0, 2]], alone[0], atol=1e-5, rtol=1e-5)
    assert torch.isneginf(together[0, [1, 3, 4]]).all()


@torch.inference_mode()
def test_long_lists_take_linear_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """16,384 candidates were too many for the paper's 80 GB: no matrix of that side may ever be made."""
    sizes: list[int] = []
    attend = F.scaled_dot_product_attention

    def watched(*parts: Tensor, **options: Tensor) -> Tensor:
        sizes.append(max(part.numel() for part in (*parts, *options.values()) if isinstance(part, Tensor)))
        return attend(*parts, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    model = CMC.tiny().eval()
    scores = model.score({"vector": torch.randn(1, 16)}, {"vector": torch.randn(3000, 16)})
    assert scores.shape == (1, 3000) and max(sizes) <= 16 * 3001


@torch.inference_mode()
def test_permuting_candidates_permutes_scores() -> None:
    """Positions that leak in make the first stage's order part of the answer."""
    model = CMC.tiny().eval()
    queries, items = {"vector": torch.randn(2, 16)}, {"vector": torch.randn(9, 16)}
    lists = torch.stack([torch.randperm(9)[:6], torch.randperm(9)[:6]])
    order = torch.randperm(6)
    torch.testing.assert_close(
        model.score(queries, items, lists[:, order]), model.score(queries, items, lists)[:, order], atol=1e-5, rtol=1e-5
    )


@torch.inference_mode()
def test_a_list_of_one() -> None:
    """One candidate is compared with nothing but the query, also beside longer lists, and a list may be empty."""
    model = CMC.tiny().eval()
    queries, items = {"vector": torch.randn(3, 16)}, {"vector": torch.randn(5, 16)}
    one = {"vector": queries["vector"][:1]}
    alone = model.score(one, {"vector": items["vector"][2:3]})
    together = model.score(queries, items, torch.tensor([[-1, 2, -1], [0, 1, 3], [-1, -1, -1]]))
    torch.testing.assert_close(together[0, 1], alone[0, 0], atol=1e-5, rtol=1e-5)
    assert torch.isneginf(together[2]).all() and torch.isfinite(together[1]).all()
    assert model.score(one, items, torch.empty(1, 0, dtype=torch.int64)).shape == (1, 0)


@torch.inference_mode()
def test_a_candidate_added_elsewhere_in_the_batch_changes_nothing() -> None:
    """Candidates are compared within a list: one that leaks into a neighbour's makes scores depend on the batch."""
    model = CMC.tiny().eval()
    queries, items = {"vector": torch.randn(2, 16)}, {"vector": torch.randn(9, 16)}
    short = model.score(queries, items, torch.tensor([[3, 5, 1], [2, 4, -1]]))
    longer = model.score(queries, items, torch.tensor([[3, 5, 1], [2, 4, 8]]))
    torch.testing.assert_close(longer[0], short[0], atol=1e-5, rtol=1e-5)
    assert (longer[1, :2] - short[1, :2]).abs().max() > 1e-4


PASS = """
import resource, torch
from torch import nn
from simzoo.models.cmc import ComparingLayer
layers = nn.ModuleList(ComparingLayer(16, 2, 32, 0.0, "sum") for _ in range(2)).eval()
states, real = torch.randn(1, 16_385, 16), torch.ones(1, 16_385, dtype=torch.bool)
real[0, -5:] = False
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with torch.inference_mode():
    for mask in (None, real):
        out = states
        for layer in layers:
            out = layer(out, mask)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_no_matrix_of_all_pairs_is_kept() -> None:
    """Inside PyTorch too: 16,385 states have a matrix of 1 GiB a head, and the peak must stay far below one."""
    ran = subprocess.run([sys.executable, "-c", PASS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 300 * 1024  # KiB


def test_heads_must_divide_the_width() -> None:
    """PyTorch's own message does not say which setting to change."""
    with pytest.raises(ValueError, match="heads that divide 16, got 2 and 3"):
        CMC(BackboneConfig(str(tiny_backbone())), TokenConfig(24, 24), heads=3)
