"""How much the hyperhead costs in training: queries a second and peak memory of whole steps, beside a bi-encoder.

    python -m benchmarks.hypencoder.speed [--depths 0 2 4 6 8] [--batch 32] [--steps 6]

MiniLM with LoRA, 9 items of WordNet a query, MarginMSE and cross-entropy over the other queries' positives, forward,
backward and AdamW; depth 0 is the bi-encoder. Each model has a process of its own, whose peak memory is reported; they
take one step after the other in turn, so that what else slows the machine slows all of them. One step each goes before
those that are timed.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch
import transformers

from simzoo.core.targets import Targets
from simzoo.datamodules.readers.wordnet import find_wordnet, load_wordnet
from simzoo.losses import MarginMSE, OtherPositivesCrossEntropy, SumOfLosses
from simzoo.models.dual_encoder import DualEncoder
from simzoo.models.hypencoder import Hypencoder
from simzoo.models.parts.backbone import BackboneConfig, LoRA
from simzoo.models.parts.q_net import QNetConfig
from simzoo.models.parts.tokenizing import TokenConfig

ITEMS = 9


def training(depth: int, batch: int) -> tuple[Callable[[], None], float]:
    """A function that takes one step, and how many million parameters it trains."""
    world = load_wordnet(find_wordnet(), titles=False, only=["noun.event"])["noun.event"]
    backbone, tokens = BackboneConfig(lora=LoRA(16, 32), dropout=0.0), TokenConfig(64, 64)
    model = (
        DualEncoder(backbone, tokens, normalize=False, tokens_per_batch=4096)
        if depth == 0
        else Hypencoder(backbone, tokens, q_net=QNetConfig((384,) * depth), tokens_per_batch=4096)
    ).train()
    queries, items = model.collate_queries(world.queries[:batch]), model.collate_items(world.items[: batch * ITEMS])
    own = torch.arange(batch * ITEMS).view(batch, ITEMS)
    candidates = torch.cat([own, own[:, 0].expand(batch, -1)], dim=1)
    labels = (torch.arange(candidates.shape[1]) == 0).float().expand(candidates.shape)
    others = (torch.arange(candidates.shape[1]) >= ITEMS).expand(candidates.shape)
    mask = ~others | (candidates != own[:, :1])
    targets = Targets(labels, mask, torch.randn(candidates.shape).masked_fill(others, torch.nan), others)
    loss = SumOfLosses([MarginMSE(), OtherPositivesCrossEntropy()])
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5)

    def step() -> None:
        scores = model.score(model.encode_queries(queries), model.encode_items(items), candidates)
        loss(scores, targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, sum(p.numel() for p in parameters) / 1e6


def serve(depth: int, batch: int) -> None:
    """For each line read takes a step, and writes its seconds, the peak memory so far in MB, and the parameters."""
    step, parameters = training(depth, batch)
    for _ in sys.stdin:
        began = time.perf_counter()
        step()
        seconds = time.perf_counter() - began
        print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, parameters, flush=True)


class Training:
    """A process that trains one model."""

    def __init__(self, depth: int, batch: int) -> None:
        command = [sys.executable, "-m", "benchmarks.hypencoder.speed", "--serve", str(depth), "--batch", str(batch)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def step(self) -> list[float]:
        """What `serve` writes of a step."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a training ended with exit status {self.process.wait()}; its error stands above")
        return [float(value) for value in line.split()]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 2, 4, 6, 8])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--serve", type=int, help="depth of the one model that this process trains, for the others")
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    if options.serve is not None:
        serve(options.serve, options.batch)
        return
    models = [Training(depth, options.batch) for depth in options.depths]
    rounds = [[model.step() for model in models] for _ in range(options.steps + 1)][1:]
    for model in models:
        model.process.communicate()
    print("| model | trained parameters, million | step, s: median, least, most | queries/s | peak memory, MB |")
    print("|---|---|---|---|---|")
    for depth, taken in zip(options.depths, zip(*rounds, strict=True), strict=True):
        seconds = [step[0] for step in taken]
        median, (_, peak, parameters) = statistics.median(seconds), taken[-1]
        name = f"Hypencoder, {depth} layers" if depth else "bi-encoder"
        spread = f"{median:.2f}, {min(seconds):.2f}, {max(seconds):.2f}"
        print(f"| {name} | {parameters:.1f} | {spread} | {options.batch / median:.2f} | {peak:,.0f} |")


if __name__ == "__main__":
    main()
