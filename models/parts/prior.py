"""A frozen dual encoder whose score is added to that of the similarity it belongs to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simzoo.core.hub import file_sha256, local_path
from simzoo.core.reps import Ragged
from simzoo.models.parts.backbone import BackboneConfig, Encoder
from simzoo.models.parts.pooling import Pooling, pooled

__all__ = ["DualEncoderPrior", "Prior"]


@dataclass
class DualEncoderPrior:
    """Adds scale x the score of a frozen dual encoder with one encoder for both sides, on the same backbone.

    Attributes:
        checkpoint: that of the dual encoder, trained on the similarity's own backbone, ``lora`` and tokens. A released
            similarity holds its weights, and needs it no more. None: the backbone as it is.
        sha256: of its model.safetensors; refused when it differs. None: not checked, but recorded when released.
        scale: that its score is multiplied by; about 1 / temperature of its training where it scores by cosine.
        learned: the scale is trained, too.
        pooling: as the dual encoder has it.
        normalize: as the dual encoder has it.
    """

    checkpoint: str | None = None
    sha256: str | None = None
    scale: float = 20.0
    learned: bool = False
    pooling: Pooling = "mean"
    normalize: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.scale < float("inf"):
            raise ValueError(f"prior.scale must be positive, got {self.scale}")


class Prior(nn.Module):
    """The dual encoder of a `DualEncoderPrior`, always in evaluation mode.

    Args:
        config: which.
        backbone: of the similarity.
        tags: token ids of the similarity's tags.
        tokens_per_batch: most tokens, padding included, that go through the transformer at once.

    Raises:
        ValueError: the checkpoint's weights have another sha256, or are of another backbone.
    """

    def __init__(
        self, config: DualEncoderPrior, backbone: BackboneConfig, tags: tuple[int, ...], tokens_per_batch: int | None
    ) -> None:
        super().__init__()
        self.config = _pinned(config)
        self.tokens_per_batch = tokens_per_batch
        self.encoder = Encoder(replace(backbone, start=config.checkpoint), tags)
        names = [f"encoder.{name}" for name, value in self.encoder.named_parameters() if value.requires_grad]
        self.encoder.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(config.scale), requires_grad=config.learned)
        self._kept = frozenset([*names, "scale"])
        self.eval()

    def train(self, mode: bool = True) -> Self:
        """Stays in evaluation mode: what it says of a text is the same in training and in use."""
        return super().train(False)

    def kept_state(self) -> dict[str, Tensor]:
        """What a checkpoint holds of it, by name, the frozen weights included; nothing once adapters are merged."""
        found = {name: value.detach() for name, value in self.named_parameters() if name in self._kept}
        return found if found.keys() == self._kept else {}

    @torch.no_grad()
    def vectors(self, ids: Tensor | Ragged) -> Tensor:
        """(N, h), of N texts with [CLS] and [SEP]."""
        vectors = pooled(self.encoder, ids, self.config.pooling, self.tokens_per_batch)
        return F.normalize(vectors, dim=1) if self.config.normalize else vectors

    def forward(self, queries: Tensor, items: Tensor) -> Tensor:
        """(P,) scaled scores of P pairs of vectors (P, h)."""
        score: Tensor = self.scale * (queries.float() * items.float()).sum(dim=1)
        return score


def _pinned(config: DualEncoderPrior) -> DualEncoderPrior:
    """With the sha256 of its weights, which is checked if it was given."""
    if config.checkpoint is None:
        return config
    path = local_path(config.checkpoint) / "model.safetensors"
    if not path.is_file():
        raise FileNotFoundError(f"prior.checkpoint: there is no {path}; name the checkpoint of a dual encoder")
    found = file_sha256(path)
    if config.sha256 not in (None, found):
        raise ValueError(
            f"prior.checkpoint: {path} has sha256 {found}, expected {config.sha256}; fetch it again or change "
            "prior.sha256"
        )
    return replace(config, sha256=found)
