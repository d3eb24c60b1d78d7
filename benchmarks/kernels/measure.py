"""Fused kernels on a GPU beside the plain forms and torch.compile: time, spread, difference, share of the peak.

    python -m benchmarks.kernels.measure [--repeats 9] [--items 100000] [--dtype bfloat16]

Mixture-of-Logits: 32 queries with all items, in the shapes of RAILS's tables. q-nets: 8 queries with all items, six
core blocks of width 384 and 768. Random weights. The forms take turns; a time is the median, between events on the
device, and the spread is from the least to the most. The peak is that of a product of large square matrices of the
same type, measured first. Differences are against double precision, as a share of the largest score.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from simzoo.core.reps import Reps
from simzoo.models.parts.mixture import MixtureConfig, MoLHead
from simzoo.models.parts.q_net import QNet, QNetConfig

GRIDS = ((8, 4, 64), (8, 4, 128), (8, 8, 32), (4, 4, 768))
WIDTHS = (384, 768)
SLICE = 4096  # items for which the plain forms' intermediate values fit the memory
Form = Callable[[], Tensor]


def seconds(form: Form) -> float:
    """Of one call, on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    form()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000


def in_turn(forms: dict[str, Form], repeats: int) -> dict[str, list[float]]:
    """Seconds of each form, after two calls that compile and warm up."""
    for form in forms.values():
        form()
        form()
    taken: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(repeats):
        for name, form in forms.items():
            taken[name].append(seconds(form))
    return taken


def peak(dtype: torch.dtype, repeats: int) -> float:
    """Floating-point operations a second of a large product."""
    side = 8192
    one = torch.randn(side, side, device="cuda", dtype=dtype)
    return 2 * side**3 / statistics.median(in_turn({"": lambda: one @ one}, repeats)[""])


def with_kernels(form: Form) -> Form:
    """The form with the kernels asked for."""

    def run() -> Tensor:
        os.environ["SIMZOO_KERNELS"] = "1"
        try:
            return form()
        finally:
            del os.environ["SIMZOO_KERNELS"]

    return run


def sliced(score: Callable[[slice], Tensor], items: int) -> Form:
    """All scores, a slice of the items at a time."""
    return lambda: torch.cat([score(slice(at, at + SLICE)) for at in range(0, items, SLICE)], dim=1)


def mixture(grid: tuple[int, int, int], items: int, dtype: torch.dtype) -> tuple[dict[str, Form], Form, float]:
    """The forms, the scores in double precision, and floating-point operations."""
    parts_q, parts_x, width = grid
    torch.manual_seed(0)
    config = MixtureConfig(parts_q, parts_x, query_gate=True, item_gate=True)
    head = MoLHead(config, parts_q * width, parts_x * width).cuda().eval()
    asked = head.queries(torch.randn(32, parts_q * width, device="cuda"))
    offered = head.items(torch.randn(items, parts_x * width, device="cuda"))
    for reps in (asked, offered):
        reps["components"] = reps["components"].to(dtype)  # type: ignore[union-attr]

    def some(reps: Reps, rows: slice, of: torch.dtype | None = None) -> Reps:
        return {name: part[rows].to(of or part.dtype) for name, part in reps.items() if isinstance(part, Tensor)}

    def plain(rows: slice) -> Tensor:
        return head.score(some(asked, slice(None), torch.float32), some(offered, rows, torch.float32))[0]

    compiled = torch.compile(plain)
    forms = {
        "plain": sliced(plain, items),
        "torch.compile": sliced(compiled, items),
        "kernel": with_kernels(lambda: head.scores(asked, offered)),
    }

    def exact() -> Tensor:
        head.double()
        found = sliced(
            lambda rows: head.score(some(asked, slice(None), torch.float64), some(offered, rows, torch.float64))[0],
            items,
        )()
        head.float()
        return found

    logits, hidden = config.logits, config.gate_hidden
    return forms, exact, 32.0 * items * (2 * logits * width + 4 * logits * hidden)


def q_nets(width: int, items: int, dtype: torch.dtype) -> tuple[dict[str, Form], Form, float]:
    """The forms, the scores in double precision, and floating-point operations."""
    torch.manual_seed(0)
    net, queries = QNet(QNetConfig((width,) * 6), width).eval(), 8
    weights: Reps = {
        name: (torch.randn(queries, *shape, device="cuda") * (2 / width) ** 0.5).to(dtype)
        for name, shape in zip(net.names, net.shapes, strict=True)
    }
    x = torch.randn(items, width, device="cuda", dtype=dtype)

    def plain(rows: slice) -> Tensor:
        return net(weights, x[rows].expand(queries, -1, -1))

    def exact() -> Tensor:
        doubles: Reps = {name: part.double() for name, part in weights.items() if isinstance(part, Tensor)}
        return sliced(lambda rows: net(doubles, x[rows].double().expand(queries, -1, -1)), items)()

    compiled = torch.compile(plain)
    forms = {
        "plain": sliced(plain, items),
        "torch.compile": sliced(compiled, items),
        "kernel": with_kernels(lambda: net(weights, x.expand(queries, -1, -1))),
    }
    return forms, exact, 2.0 * queries * items * width * width * 6


@torch.inference_mode()
def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="bfloat16")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device; the kernels are for one")
    dtype = getattr(torch, options.dtype)
    highest = peak(dtype, options.repeats)
    about = f"{torch.cuda.get_device_name()}; torch {torch.__version__}"
    print(f"{about}; {options.dtype} peak {highest / 1e12:.0f} TFLOP/s\n")
    print("| work | form | ms: median, least, most | times the plain form | share of the peak | difference |")
    print("|---|---|---|---|---|---|")
    work = {f"mixture {'x'.join(map(str, grid))}": mixture(grid, options.items, dtype) for grid in GRIDS}
    work |= {f"q-nets of width {width}": q_nets(width, options.items, dtype) for width in WIDTHS}
    for name, (forms, exact, operations) in work.items():
        truth, taken = exact(), in_turn(forms, options.repeats)
        middle = {form: statistics.median(times) for form, times in taken.items()}
        for form, times in taken.items():
            apart = (forms[form]().double() - truth).abs().max() / truth.abs().max()
            spread = f"{1000 * middle[form]:.2f}, {1000 * min(times):.2f}, {1000 * max(times):.2f}"
            share = operations / middle[form] / highest
            ratio = middle["plain"] / middle[form]
            print(f"| {name} | {form} | {spread} | {ratio:.2f} | {share:.0%} | {float(apart):.1e} |")


if __name__ == "__main__":
    main()
