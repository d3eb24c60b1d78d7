"""CMC's self-attention layers on the vectors of frozen encoders: seeds, ablations, and the released checkpoint.

    python -m benchmarks.cmc_train [--only seed-1 seed-2 no-skip ...] [--output out/cmc]

Encoding comes first and is done once; each variant then takes minutes on one core, and becomes a checkpoint in
``<output>/<variant>``. Killed at any moment, the same command goes on: with the next block of texts, or with the last
saved step of the variant that was in training. ``python -m benchmarks.cmc`` measures the checkpoints.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from numpy.typing import NDArray
from torch.nn import functional as F

from datamodules.records import Collection, Item, Query
from datamodules.reps import Reps
from datamodules.tasks import WordNet
from losses import KLToRetriever, Loss, SoftmaxCrossEntropy, SumOfLosses
from models import checkpoint
from models.backbone import MINILM, BackboneConfig, LoRA
from models.cmc import CMC, Skip
from models.dual_encoder import DualEncoder
from models.similarity import LearnedSimilarity, Optimization
from models.tokens import TokenConfig
from retrieval.ann import Flat
from retrieval.encode import encode_items, encode_queries
from retrieval.first_stage import FirstStage
from retrieval.mining import MineCandidates
from retrieval.store import RepresentationStore

DE = "checkpoints/wordnet-de"
WORLDS = ("verb.contact", "verb.social", "verb.body")
"""Training worlds: few, because encoding their items is most of the work."""


class Vectors:
    """The vectors of a frozen encoder, pooled but not normalised, kept in a folder.

    Args:
        encoder: checkpoint of the dual encoder.
        folder: where.
    """

    def __init__(self, encoder: str, folder: Path) -> None:
        model = LearnedSimilarity.from_pretrained(encoder)
        assert isinstance(model, DualEncoder)
        model.normalize = False
        self.encoder = model
        self.folder = folder

    def __call__(self, records: Sequence[Query] | Sequence[Item]) -> Reps:
        """``{"vector": (N, h)}``."""
        sha256 = self.encoder.weights_sha256
        name = RepresentationStore(self.folder, records, sha256).identity["records"]
        folder = self.folder / f"{sha256[:8]}-{str(name)[:16]}"
        if isinstance(records[0], Item):
            return encode_items(self.encoder, records, folder, sha256)  # type: ignore[arg-type]
        return RepresentationStore(folder, records, sha256).build(
            lambda blocks: (encode_queries(self.encoder, block) for block in blocks), "encoding queries"
        )


class Nearest(FirstStage):
    """What `Dense` finds, from the same vectors, which are on disk already."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors = vectors

    def index(self, collection: Collection) -> None:
        """See `FirstStage.index`."""
        self.num_items = len(collection.items)
        queries, items = (self._normalized(records) for records in (collection.queries, collection.items))
        self._queries, self._index = queries, Flat().build(items)

    def _normalized(self, records: Sequence[Query] | Sequence[Item]) -> NDArray[np.float32]:
        vector = self.vectors(records)["vector"]
        assert isinstance(vector, torch.Tensor)
        return F.normalize(vector, dim=1).numpy()

    def search(self, query_rows: NDArray[np.int64], k: int) -> Any:
        """See `FirstStage.search`."""
        self.check(k)
        return self._index.search(self._queries[query_rows], k)

    def identity(self) -> str:
        """That of `Dense`: what one mined, the other need not mine again."""
        return f"Dense {self.vectors.encoder.weights_sha256} {Flat()}"


class OnVectors(CMC):
    """A CMC that takes an encoder's vectors for tokens, so that only its self-attention layers are trained."""

    def __init__(self, vectors: Vectors, **options: Any) -> None:
        super().__init__(**options)
        self.vectors = vectors

    def collate_queries(self, queries: Sequence[Query]) -> Reps:
        """``{"vector": (B, h)}``."""
        return self._normalized(self.vectors(queries))

    def collate_items(self, items: Sequence[Item]) -> Reps:
        """``{"vector": (M, h)}``."""
        return self._normalized(self.vectors(items))

    def _normalized(self, reps: Reps) -> Reps:
        vector = reps["vector"]
        assert isinstance(vector, torch.Tensor)
        return {"vector": F.normalize(vector, dim=1) if self.normalize else vector}

    def encode_queries(self, tokens: Reps) -> Reps:
        """The vectors themselves."""
        return tokens

    encode_items = encode_queries


@dataclass(frozen=True)
class Variant:
    """What one training differs in.

    Attributes:
        seed: of initial weights, order and negatives.
        start: checkpoint of the frozen encoder.
        skip: of the layers.
        kl: weight of KL(p || r) in the loss; the rest is cross-entropy's.
        fixed: share of the negatives that are the retriever's first ones; the rest is drawn by its scores.
        temperature: that the scores are divided by in the loss: 0.05 where the layers begin almost as the identity, so
            that scores begin as cosines; 20 where the layer norm's vectors of length 20 are in them from the beginning.
        lr: peak learning rate.
    """

    seed: int = 1
    start: str = DE
    skip: Skip = "gated"
    kl: float = 0.8
    fixed: float = 0.5
    temperature: float = 0.05
    lr: float = 1e-3


VARIANTS = {
    **{f"seed-{seed}": Variant(seed) for seed in range(1, 6)},
    "no-skip": Variant(skip="none", temperature=20.0, lr=2e-4),
    "papers-skip": Variant(skip="sum", temperature=20.0, lr=2e-4),
    "no-kl": Variant(kl=0.0),
    "no-sampling": Variant(fixed=1.0),
    "plain-start": Variant(start=MINILM),
}


def options_of(variant: Variant) -> dict[str, Any]:
    """Constructor arguments of the variant's CMC: shared encoder, adapters of the dual encoder if it has any."""
    adapted = variant.start != MINILM
    tags: dict[str, Any] = {} if adapted else {"mention_tags": None, "item_tag": None}
    return {
        "backbone": BackboneConfig(
            lora=LoRA() if adapted else None, dropout=0.0, start=variant.start if adapted else None
        ),
        "tokens": TokenConfig(query_length=64, item_length=64, **tags),
        "shared": True,
        "pooling": "mean",
        "normalize": True,
        "feedforward": 1024,
        "skip": variant.skip,
        "tokens_per_batch": 4096,
    }


def train(variant: Variant, steps: int, folder: Path, store: Path, candidates: Path) -> None:
    """Trains a variant and saves it as an ordinary CMC, whose encoder is the frozen one."""
    vectors = Vectors(variant.start, store)
    retriever = vectors if variant.start == DE else Vectors(DE, store)
    torch.manual_seed(variant.seed)
    kl = KLToRetriever(retriever_temperature=0.05, temperature=variant.temperature)
    losses: list[Loss] = [SoftmaxCrossEntropy(variant.temperature), kl]
    model = OnVectors(
        vectors,
        loss=SumOfLosses(losses, [1 - variant.kl, variant.kl]),
        optimization=Optimization(lr=variant.lr, warmup=0.1),
        seed=variant.seed,
        **options_of(variant),
    )
    data = WordNet(
        titles=False,
        train_worlds=WORLDS,
        batch_size=16,
        negatives=63,
        hard_fixed=variant.fixed,
        hard_depth=1024,
        hard_temperature=0.05,
        retriever_scores=True,
        max_val_queries=100,
        seed=variant.seed,
    )
    keep = ModelCheckpoint(folder, "resume", every_n_train_steps=50, save_top_k=1, enable_version_counter=False)
    trainer = Trainer(
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        limit_val_batches=0,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        callbacks=[MineCandidates(Nearest(retriever), 1024, folder=candidates), keep],
        default_root_dir=folder,
    )
    saved = folder / "resume.ckpt"
    trainer.fit(model, data, ckpt_path=saved if saved.exists() else None, weights_only=True)
    plain = CMC(**options_of(variant))
    plain.load_state_dict(model.state_dict())
    checkpoint.save(plain, folder, torch.float16)


def main() -> None:
    """Trains what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--output", type=Path, default=Path("out/cmc"))
    parser.add_argument("--candidates", type=Path, default=Path("out/candidates-wordnet-de"))
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    for name in options.only:
        folder = options.output / name
        if (folder / "config.json").exists():
            continue
        start = time.process_time()
        train(VARIANTS[name], options.steps, folder, options.output / "vectors", options.candidates)
        print(f"{folder}: {options.steps} steps, {time.process_time() - start:.0f} s of processor time", flush=True)


if __name__ == "__main__":
    main()
