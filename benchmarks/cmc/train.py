"""CMC on the stored vectors of a dual encoder: seeds, ablations, query encoders, poly-encoder, the released checkpoint.

    python -m benchmarks.cmc.train [--only seed-1 seed-2 no-skip ...] [--output out/cmc]

Texts are encoded once, by wordnet-de, and keep their vectors; the self-attention layers are trained on them, and in the
variants that say so a query encoder of its own, which starts as wordnet-de's. Each variant takes minutes on one core,
and becomes a checkpoint in ``<output>/<variant>``. Killed at any moment, the same command goes on: with the next block
of texts, or with the last saved step of the variant that was in training. ``python -m benchmarks.cmc.tables`` measures
the checkpoints.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import transformers
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional as F

from benchmarks.hypencoder.frozen import DE, FrozenEncoder, Nearest
from simzoo.core.records import Item, Query
from simzoo.core.reps import Reps
from simzoo.datamodules.lists import HardNegatives
from simzoo.datamodules.sources import WordNet
from simzoo.datamodules.training_data import TrainingData
from simzoo.losses import KLToRetriever, Loss, SoftmaxCrossEntropy, SumOfLosses
from simzoo.models.cmc import CMC
from simzoo.models.formats import save
from simzoo.models.late_interaction import PolyEncoder
from simzoo.models.parts.backbone import MINILM, BackboneConfig, LoRA
from simzoo.models.parts.tokenizing import TokenConfig
from simzoo.models.towers import TwoTowers
from simzoo.models.training import Optimization
from simzoo.retrieval.mining import MineCandidates

WORLDS = (
    "adv.all",
    "noun.act",
    "noun.attribute",
    "noun.cognition",
    "noun.communication",
    "noun.state",
    "verb.body",
    "verb.change",
    "verb.cognition",
    "verb.competition",
    "verb.consumption",
    "verb.contact",
    "verb.creation",
    "verb.emotion",
    "verb.perception",
    "verb.possession",
    "verb.social",
    "verb.stative",
)
"""Training worlds: those with many queries for their items, because encoding items is much of the work."""
VERBS = tuple(world for world in WORLDS if world.startswith("verb"))


def stored(model: TwoTowers, frozen: FrozenEncoder, records: Sequence[Query] | Sequence[Item]) -> Reps:
    """``{"vector": (N, h)}``: what the model's encoder would make of the records where it is the frozen one."""
    vectors = frozen.vectors(records)
    cosines = (
        model.normalize if isinstance(model, CMC) else isinstance(model, PolyEncoder) and model.cosine_scale is not None
    )
    return {"vector": F.normalize(vectors, dim=1) if cosines else vectors}


class OnVectors(TwoTowers):
    """A model that takes an item's stored vector for its tokens: its item encoder is not run, and stays as it is.

    Attributes:
        plain: what it is otherwise, and becomes after training.
        arguments: its constructor's, unless a variant has others.
        frozen: what made the vectors; set before training.
        encoder_lr: peak learning rate of its query encoder; set before training.
    """

    plain: ClassVar[type[TwoTowers]]
    arguments: ClassVar[Mapping[str, Any]]
    frozen: FrozenEncoder
    encoder_lr: float

    def collate_items(self, items: Sequence[Item]) -> Reps:
        """``{"vector": (M, h)}``."""
        return stored(self, self.frozen, items)

    def encode_items(self, tokens: Reps) -> Reps:
        """The vectors themselves."""
        return tokens

    def parameter_groups(self) -> list[dict[str, Any]]:
        """See `LearnedSimilarity.parameter_groups`; the query encoder has groups of its own."""
        encoder = set(self.query_encoder.parameters())
        groups = []
        for group in super().parameter_groups():
            own, others = ([p for p in group["params"] if (p in encoder) == inside] for inside in (True, False))
            groups += [{**group, "params": others}, {**group, "params": own, "lr": self.encoder_lr}]
        return groups


class CMCOnVectors(OnVectors, CMC):
    """Its query encoder and its self-attention layers are trained."""

    plain = CMC
    arguments: ClassVar[Mapping[str, Any]] = {"shared": False, "normalize": True, "feedforward": 1024, "skip": "gated"}


class LayersOnVectors(CMCOnVectors):
    """Its self-attention layers alone are trained."""

    arguments: ClassVar[Mapping[str, Any]] = {**CMCOnVectors.arguments, "shared": True}

    def collate_queries(self, queries: Sequence[Query]) -> Reps:
        """``{"vector": (B, h)}``."""
        return stored(self, self.frozen, queries)

    def encode_queries(self, tokens: Reps) -> Reps:
        """The vectors themselves."""
        return tokens


class PolyEncoderOnVectors(OnVectors, PolyEncoder):
    """Its query encoder and its codes are trained; it begins nearly with the dual encoder's scores."""

    plain = PolyEncoder
    arguments: ClassVar[Mapping[str, Any]] = {"shared": False, "codes": 16, "cosine_scale": 20.0}


@dataclass(frozen=True)
class Variant:
    """What one training differs in.

    Attributes:
        kind: what is trained.
        own: arguments of its constructor that differ from the kind's.
        seed: of initial weights, order and negatives.
        start: checkpoint of the frozen encoder, and of a query encoder before training.
        kl: weight of KL(p || r) in the loss; the rest is cross-entropy's.
        fixed: share of the negatives that are the retriever's first ones; the rest is drawn by its scores.
        temperature: that the scores are divided by in the loss: 0.05 where the layers begin almost as the identity, so
            that scores begin as cosines; 20 where vectors of length 20, the layer norm's, are in them.
        lr: peak learning rate.
        encoder_lr: that of a query encoder, where one is trained.
        steps: of 16 queries each.
        worlds: that are trained on.
    """

    kind: type[OnVectors] = LayersOnVectors
    own: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 1
    start: str = DE
    kl: float = 0.2
    fixed: float = 0.5
    temperature: float = 0.05
    lr: float = 1e-3
    encoder_lr: float = 1e-3
    steps: int = 300
    worlds: tuple[str, ...] = WORLDS

    def options(self) -> dict[str, Any]:
        """Constructor arguments of the model; the encoder has adapters where the start has."""
        plain = self.start == MINILM
        tags: dict[str, Any] = {"mention_tags": None, "item_tag": None} if plain else {}
        start: dict[str, Any] = {} if plain else {"lora": LoRA(), "start": self.start}
        return {
            "backbone": BackboneConfig(dropout=0.0, **start),
            "tokens": TokenConfig(query_length=64, item_length=64, **tags),
            "pooling": "mean",
            "tokens_per_batch": 4096,
            **self.kind.arguments,
            **self.own,
        }


# Without skip connection scores are dot products of vectors of length 20: at 0.05 a softmax over them is saturated. So
# the ablation is there a second time, at a temperature and a rate that suit it, beside the model at these.
AT_20 = Variant(temperature=20.0, lr=2e-4)
VARIANTS = {
    **{f"seed-{seed}": Variant(seed=seed) for seed in range(1, 6)},
    "no-skip": Variant(own={"skip": "none"}),
    "at-20": AT_20,
    "no-skip-at-20": replace(AT_20, own={"skip": "none"}),
    "no-kl": Variant(kl=0.0),
    "no-sampling": Variant(fixed=1.0),
    "verbs": Variant(worlds=VERBS),
    "verbs-plain-start": Variant(start=MINILM, worlds=VERBS),
    **{f"query-encoder-{rate:g}": Variant(CMCOnVectors, encoder_lr=rate) for rate in (1e-3, 1e-4, 3e-5)},
    **{
        f"poly-encoder-{rate:g}": Variant(PolyEncoderOnVectors, temperature=1.0, encoder_lr=rate)
        for rate in (1e-4, 3e-5)
    },
}


def train(variant: Variant, folder: Path, candidates: Path) -> None:
    """Trains a variant and saves it as an ordinary model, whose item encoder is the frozen one."""
    frozen = FrozenEncoder(variant.start)
    retriever = frozen if variant.start == DE else FrozenEncoder()
    torch.manual_seed(variant.seed)
    kl = KLToRetriever(retriever_temperature=0.05, temperature=variant.temperature)
    # Not corrected for the draws: the tables of docs/cmc.md were made so.
    losses: list[Loss] = [SoftmaxCrossEntropy(variant.temperature, corrected=False), kl]
    model = variant.kind(
        loss=SumOfLosses(losses, [1 - variant.kl, variant.kl]),
        optimization=Optimization(lr=variant.lr, warmup=0.1),
        seed=variant.seed,
        **variant.options(),
    )
    model.frozen, model.encoder_lr = frozen, variant.encoder_lr
    data = TrainingData(
        WordNet(titles=False, train_worlds=variant.worlds),
        HardNegatives(hard=63, depth=1024, fixed=round(variant.fixed * 63), temperature=0.05),
        MineCandidates(Nearest(retriever), 1024, folder=candidates),
        batch_size=16,
        seed=variant.seed,
    )
    keep = ModelCheckpoint(folder, "resume", every_n_train_steps=50, save_top_k=1, enable_version_counter=False)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=variant.steps,
        max_epochs=-1,
        limit_val_batches=0,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        callbacks=[keep],
        default_root_dir=folder,
    )
    saved = folder / "resume.ckpt"
    trainer.fit(model, data, ckpt_path=saved if saved.exists() else None, weights_only=True)
    plain = variant.kind.plain(**variant.options())
    plain.load_state_dict(model.state_dict())
    save(plain, folder, torch.float16)


def main() -> None:
    """Trains what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--output", type=Path, default=Path("out/cmc"))
    parser.add_argument("--candidates", type=Path, default=Path("out/candidates-wordnet-de"))
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    for name in options.only:
        folder = options.output / name
        if (folder / "config.json").exists():
            continue
        start = time.process_time()
        train(VARIANTS[name], folder, options.candidates)
        print(
            f"{folder}: {VARIANTS[name].steps} steps, {time.process_time() - start:.0f} s of processor time", flush=True
        )


if __name__ == "__main__":
    main()
