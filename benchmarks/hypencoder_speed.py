"""How much the hyperhead costs in training: queries a second and peak memory of whole steps, beside a bi-encoder.

    python -m benchmarks.hypencoder_speed [--depths 0 2 4 6] [--batch 32] [--steps 3]

MiniLM with LoRA, 9 items of WordNet a query, MarginMSE and cross-entropy over the other queries' positives, forward,
backward and AdamW; depth 0 is the bi-encoder. Each model has a process of its own: its peak memory is that of the whole
process, the bi-encoder's serves as the base. One step goes before those that are timed.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

import torch
import transformers

from datamodules.wordnet import find_wordnet, load_wordnet
from losses import MarginMSE, OtherPositivesCrossEntropy, SumOfLosses
from losses.targets import Targets
from models.backbone import BackboneConfig, LoRA
from models.dual_encoder import DualEncoder
from models.hypencoder import Hypencoder
from models.q_net import QNetConfig
from models.tokens import TokenConfig

ITEMS = 9


def steps(depth: int, batch: int, count: int) -> None:
    """Prints one row of the table."""
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
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    for number in range(count + 1):
        if number == 1:
            began = time.perf_counter()
        scores = model.score(model.encode_queries(queries), model.encode_items(items), candidates)
        loss(scores, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    seconds = (time.perf_counter() - began) / count
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad) / 1e6
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    name = f"Hypencoder, {depth} layers" if depth else "bi-encoder"
    print(f"| {name} | {trained:.1f} | {batch / seconds:.2f} | {peak:,.0f} |", flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", type=int, nargs="+", default=[0, 2, 4, 6])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    if len(options.depths) == 1:
        steps(options.depths[0], options.batch, options.steps)
        return
    print("| model | trained parameters, million | queries/s | peak memory, MB |\n|---|---|---|---|", flush=True)
    for depth in options.depths:
        settings = [f"--{name}={value}" for name, value in (("batch", options.batch), ("steps", options.steps))]
        subprocess.run(
            [sys.executable, "-m", "benchmarks.hypencoder_speed", "--depths", str(depth), *settings], check=True
        )


if __name__ == "__main__":
    main()
