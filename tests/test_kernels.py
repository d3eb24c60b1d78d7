"""Fused kernels against the plain forms: in Triton's interpreter on a CPU, and as they are on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from simzoo.core.reps import Reps
from simzoo.models.parts import kernels
from simzoo.models.parts.mixture import MixtureConfig, MoLHead
from simzoo.models.parts.q_net import Norm, QNet, QNetConfig

pytest.importorskip("triton", reason="needs triton, which the extra dev brings on Linux")

FAR: dict[torch.dtype, float] = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""How far a result may be off, as a share of the largest one: some roundings of the type."""

HALVES = [torch.float32, torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)]
"""Triton's interpreter multiplies the bits of bfloat16."""

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
GRIDS = [(8, 4, 16), (4, 4, 40), (2, 3, 8), (1, 1, 3), (5, 7, 33), (1, 6, 70)]
PARTS = ["query", "item", ""]  # of the gate, besides all


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """Where the kernels run: interpreted on a CPU, which a process that compiles them for a GPU cannot do."""
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip("with a GPU the kernels are compiled")
    return str(request.param)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.shape == expected.shape
    apart = (found.double() - expected.double()).abs().max()
    assert float(apart) <= FAR[dtype] * float(expected.abs().max())


def mixture(config: MixtureConfig, width: int, queries: int, items: int, device: str) -> tuple[MoLHead, Reps, Reps]:
    """A mixture whose gate's parts all matter, and representations."""
    torch.manual_seed(0)
    raw = config.query_components * width, config.item_components * width
    head = MoLHead(config, *raw).eval()
    for parameter in head.parameters():
        parameter.data.normal_(std=0.3)
    head.to(device)
    asked, offered = torch.randn(queries, raw[0]).to(device), torch.randn(items, raw[1]).to(device)
    return head, head.queries(asked), head.items(offered)


def through_kernel(head: MoLHead, queries: Reps, items: Reps, candidates: Tensor | None = None) -> Tensor:
    """What `MoLHead.scores` gives where a kernel is taken."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simzoo.models.parts.mixture.covered", lambda *tensors: True)
        patch.setattr(MoLHead, "score", None)  # nothing else may be taken
        return head.scores(queries, items, candidates)


@torch.no_grad()
@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize(
    ("grid", "parts"), [*((grid, "query item") for grid in GRIDS), *((GRIDS[4], parts) for parts in PARTS)]
)
def test_mixture_in_one_kernel(device: str, grid: tuple[int, int, int], parts: str) -> None:
    """A padded component, unit, query or item that counts, or logits in another order than the gate's."""
    config = MixtureConfig(grid[0], grid[1], gate_hidden=20, query_gate="query" in parts, item_gate="item" in parts)
    head, asked, offered = mixture(config, grid[2], 5, 37, device)
    close(through_kernel(head, asked, offered), head.score(asked, offered)[0], torch.float32)


@torch.no_grad()
@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("queries", "items"), [(1, 1), (2, 70), (3, 129)])
def test_mixture_of_every_type_and_size(device: str, dtype: torch.dtype, queries: int, items: int) -> None:
    """Products of 16 bits that are summed in 16 bits, or the last tile's rows beyond the end."""
    config = MixtureConfig(4, 2, gate_hidden=128, query_gate=True, item_gate=True)
    head, asked, offered = mixture(config, 24, queries, items, device)
    halved, again = ({**reps, "components": reps["components"].to(dtype)} for reps in (asked, offered))
    asked["components"], offered["components"] = (reps["components"].float() for reps in (halved, again))
    close(through_kernel(head, halved, again), head.score(asked, offered)[0], torch.float32)


@torch.no_grad()
@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_one_list_for_all_queries(device: str) -> None:
    """The gate's part of another item than the components', or a score for no candidate."""
    config = MixtureConfig(2, 3, gate_hidden=16, query_gate=True, item_gate=True)
    head, asked, offered = mixture(config, 8, 3, 20, device)
    rows = torch.tensor([[7, -1, 19, 0, 7]], device=device)
    found, expected = through_kernel(head, asked, offered, rows), head.score(asked, offered)[0]
    assert torch.isneginf(found[:, 1]).all()
    close(found[:, [0, 2, 3, 4]], expected[:, [7, 19, 0, 7]], torch.float32)


def q_net(width: int, config: QNetConfig, queries: int, dtype: torch.dtype, device: str) -> tuple[QNet, Reps]:
    """Networks of random weights that keep states at their size."""
    torch.manual_seed(0)
    net = QNet(replace(config, widths=(width,) * len(config.widths)), width).eval()
    parts = [
        torch.randn(queries, *shape) * (width**-0.5 if name.startswith("weight") else 0.3)
        for name, shape in zip(net.names, net.shapes, strict=True)
    ]
    return net, {name: part.to(device, dtype) for name, part in zip(net.names, parts, strict=True)}


def both(net: QNet, weights: Reps, x: Tensor) -> tuple[Tensor, Tensor]:
    """What `QNet.forward` gives where a kernel is taken, and where none is, in double precision."""
    exact = net({name: part.double() for name, part in weights.items() if isinstance(part, Tensor)}, x.double())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simzoo.models.parts.q_net.covered", lambda *tensors: True)
        patch.setattr(torch, "baddbmm", None)  # nothing else may be taken
        return net(weights, x), exact


@torch.no_grad()
@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize("width", [16, 24, 130, 192])
@pytest.mark.parametrize("norm", ["before_residual", "after_residual", "none"])
def test_q_net_in_kernels(device: str, width: int, norm: Norm) -> None:
    """Padded columns in the norm's mean, the residual of another column, or the last block's own rule left out."""
    config = QNetConfig((1,) * 3, norm=norm, residual_on_last=norm == "after_residual")
    net, weights = q_net(width, config, 2, torch.float32, device)
    x = torch.randn(2, 70, width).to(device)
    close(*both(net, weights, x), torch.float32)


@torch.no_grad()
@pytest.mark.parametrize("device", DEVICES, indirect=True)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("residual", [True, False])
def test_q_nets_on_one_list(device: str, dtype: torch.dtype, residual: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All queries' items are one tensor without a copy; a slice of them must not begin at the first item again."""
    from simzoo.models.parts.kernels import q_net as kernel

    monkeypatch.setattr(kernel, "STATES", 1)
    net, weights = q_net(48, QNetConfig((1, 1), residual=residual), 3, dtype, device)
    x = torch.randn(150, 48).to(device, dtype)
    close(*both(net, weights, x.expand(3, -1, -1)), dtype)


@pytest.mark.parametrize("settings", [{"activation": "gelu"}, {"widths": (16, 8), "residual": False}])
def test_other_networks_take_the_plain_form(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that the kernel does not know would get relu and equal widths in silence."""
    monkeypatch.setattr("simzoo.models.parts.q_net.covered", lambda *tensors: True)
    net = QNet(QNetConfig(**{"widths": (16, 16), **settings}), 16).eval()  # type: ignore[arg-type]
    assert not net._fits_kernel(torch.zeros(1, 1, 16))
    assert QNet(QNetConfig((16, 16), dropout=0.5), 16).train()._fits_kernel(torch.zeros(1, 1, 16)) is False


def test_a_cpu_and_training_take_the_plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel has no gradient, and a CPU cannot run it."""
    monkeypatch.setenv("SIMZOO_KERNELS", "1")
    with torch.no_grad():
        assert not kernels.covered(torch.zeros(2))
    if torch.cuda.is_available():
        one = torch.zeros(2, device="cuda")
        assert not kernels.covered(one)
        with torch.no_grad():
            assert (
                kernels.covered(one) and not kernels.covered(one, one.double()) and not kernels.covered(one, one.cpu())
            )
