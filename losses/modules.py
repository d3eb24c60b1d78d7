"""The losses that a recipe can name: thin modules over the functions of `simzoo.losses.ranking`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Set
from typing import ClassVar

import torch
from torch import Tensor, nn

from simzoo.core.targets import NEEDS, Targets
from simzoo.losses.ranking import (
    binary_cross_entropy,
    full,
    in_batch_cross_entropy,
    kl_divergence,
    margin_mse,
    margins,
    match,
    other_positives_cross_entropy,
    pair,
    positives,
    scored,
    softmax_cross_entropy,
    squared_error,
)

__all__ = [
    "BatchCrossEntropy",
    "BinaryCrossEntropy",
    "InBatchCrossEntropy",
    "KLToRetriever",
    "Loss",
    "MarginMSE",
    "MatchLoss",
    "OtherPositivesCrossEntropy",
    "PairLoss",
    "SoftmaxCrossEntropy",
    "SquaredError",
    "SumOfLosses",
    "Tempered",
    "check_needs",
]


class Loss(nn.Module, ABC):
    """A loss that a recipe can name."""

    needed: ClassVar[frozenset[str]] = frozenset()
    """Of `simzoo.core.targets.NEEDS`, what its targets must hold besides labels and mask, whatever its options."""

    @property
    def needs(self) -> frozenset[str]:
        """What its targets must hold with the options that it has; the lists that training draws must give it."""
        return self.needed

    @abstractmethod
    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """Scalar loss of scores (B, K)."""

    @abstractmethod
    def count(self, targets: Targets) -> Tensor:
        """How many terms `forward` is the mean of, a scalar: what a rank's share of a batch weighs in the whole."""

    def parts(self) -> list[tuple[float, Loss]]:
        """The losses that this one is the weighted sum of, each the mean of its own number of terms."""
        return [(1.0, self)]

    def taken(self, targets: Targets, name: str) -> Tensor:
        """A part of the targets.

        Raises:
            ValueError: it is not there.
        """
        part: Tensor | None = getattr(targets, name)
        if part is None:
            raise ValueError(f"{type(self).__name__} needs {NEEDS[name]} (Targets.{name}), but the batch has none")
        return part


def check_needs(loss: Loss, gives: Set[str], lists: str) -> None:
    """Refuses lists that cannot give what a loss needs.

    Args:
        loss: the loss.
        gives: of `simzoo.core.targets.NEEDS`, what the lists give.
        lists: what to call them, and how they could give more.

    Raises:
        ValueError: names every loss and what it lacks.
    """
    lacking = {type(part).__name__: sorted(part.needs - gives) for _, part in loss.parts()}
    told = [f"{name} needs {' and '.join(NEEDS[need] for need in needs)}" for name, needs in lacking.items() if needs]
    if told:
        raise ValueError(f"{'; '.join(told)}. {lists} cannot give that")


class Tempered(Loss):
    """A loss of scores that are divided by a temperature first.

    Args:
        temperature: the divisor, more than 0.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = _positive(temperature)

    def tempered(self, scores: Tensor) -> Tensor:
        """The divided scores, in fp32 at least."""
        return full(scores) / self.temperature


class SoftmaxCrossEntropy(Tempered):
    """`softmax_cross_entropy` over each query's candidates.

    Args:
        temperature: scores are divided by it first; 1 for raw logits, about 0.05 for cosines.
        corrected: take off the log of the probability with which the lists drew each candidate, where they drew by a
            score (`Targets.log_q`). Without it the model learns to subtract that score: False is for the recipes of
            papers that do so.

    Examples:
        >>> from simzoo.losses import SoftmaxCrossEntropy, Targets
        >>> targets = Targets(labels=torch.tensor([[1.0, 0.0]]), mask=torch.ones(1, 2, dtype=torch.bool))
        >>> round(SoftmaxCrossEntropy(temperature=0.5)(torch.tensor([[0.3, 0.3]]), targets).item(), 4)
        0.6931
    """

    def __init__(self, temperature: float = 1.0, corrected: bool = True) -> None:
        super().__init__(temperature)
        self.corrected = corrected

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        return softmax_cross_entropy(self.tempered(scores), targets.labels, targets.mask, self._log_q(targets))

    def count(self, targets: Targets) -> Tensor:
        """See `Loss.count`: rows that have a positive."""
        return positives(targets.labels, targets.mask, self._log_q(targets)).any(dim=1).sum()

    def _log_q(self, targets: Targets) -> Tensor | None:
        return targets.log_q if self.corrected else None


class BatchCrossEntropy(Tempered):
    """A cross-entropy over items that other queries of the batch bring.

    Args:
        temperature: scores are divided by it first.
        corrected: take off the log of the probability with which an item is in the batch (`Targets.batch_log_q`).
    """

    def __init__(self, temperature: float = 1.0, corrected: bool = False) -> None:
        super().__init__(temperature)
        self.corrected = corrected

    @property
    def needs(self) -> frozenset[str]:
        """See `Loss.needs`."""
        return self.needed | ({"batch_log_q"} if self.corrected else frozenset())

    def batch_log_q(self, targets: Targets) -> Tensor | None:
        """(B, K), or None where it is not taken off."""
        return self.taken(targets, "batch_log_q") if self.corrected else None

    def count(self, targets: Targets) -> Tensor:
        """See `Loss.count`: pairs of a query and a positive."""
        return positives(targets.labels, targets.mask, self.batch_log_q(targets)).sum()


class InBatchCrossEntropy(BatchCrossEntropy):
    """`in_batch_cross_entropy`: made for `simzoo.datamodules.lists.InBatch`."""

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        log_q = self.batch_log_q(targets)
        return in_batch_cross_entropy(self.tempered(scores), targets.labels, targets.mask, log_q)


class BinaryCrossEntropy(Tempered):
    """`binary_cross_entropy`: each candidate is judged alone.

    Args:
        temperature: scores are divided by it first.
    """

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        return binary_cross_entropy(self.tempered(scores), targets.labels, targets.mask)

    def count(self, targets: Targets) -> Tensor:
        """See `Loss.count`: rows that have a candidate."""
        return targets.mask.any(dim=1).sum()


class MatchLoss(Tempered):
    """`match` against a teacher's scores: listwise distillation.

    Args:
        temperature: the student's scores are divided by it first.
        teacher_temperature: the teacher's scores are divided by it first; above 1 its lower places count for more.
    """

    needed = frozenset({"teacher"})

    def __init__(self, temperature: float = 1.0, teacher_temperature: float = 1.0) -> None:
        super().__init__(temperature)
        self.teacher_temperature = _positive(teacher_temperature)

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        teacher = self.taken(targets, "teacher") / self.teacher_temperature
        return match(self.tempered(scores), teacher, targets.mask)

    def count(self, targets: Targets) -> Tensor:
        """See `Loss.count`: rows that the teacher scored."""
        return scored(targets.mask, self.taken(targets, "teacher")).any(dim=1).sum()


class PairLoss(Tempered):
    """`pair`: candidates the teacher scored are its top items, the others the student's hard negatives, in order.

    Args:
        temperature: the student's scores are divided by it first.
    """

    needed = frozenset({"teacher", "halves"})

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        top = scored(targets.mask, self.taken(targets, "teacher"))
        hard = targets.mask & ~top
        if not (top.sum(dim=1) == hard.sum(dim=1)).all():
            raise ValueError("PairLoss needs as many hard negatives as teacher-scored items in every row")
        scores = self.tempered(scores)
        return pair(scores[top], scores[hard])

    def count(self, targets: Targets) -> Tensor:
        """See `Loss.count`: the teacher's top items."""
        return scored(targets.mask, self.taken(targets, "teacher")).sum()


class MarginMSE(Loss):
    """`margin_mse` against a teacher's scores.

    Examples:
        >>> from simzoo.losses import MarginMSE, Targets
        >>> mask, teacher = torch.ones(1, 2, dtype=torch.bool), torch.tensor([[5.0, 1.0]])
        >>> targets = Targets(torch.tensor([[1.0, 0.0]]), mask, teacher)
        >>> MarginMSE()(torch.tensor([[2.0, 1.0]]), targets).item()  # a margin of 1 where the teacher has 4
        9.0
    """

    needed = frozenset({"teacher"})

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        return margin_mse(scores, targets.labels, targets.mask, self.taken(targets, "teacher"))

    def count(self, targets: Targets) -> Tensor:
        """See `Loss.count`: pairs of a positive and a negative that the teacher scored."""
        return margins(targets.labels, targets.mask, self.taken(targets, "teacher")).sum()


class SquaredError(Loss):
    """`squared_error` against a teacher's scores: what matrix factorizations minimise (AXN Eq. 3)."""

    needed = frozenset({"teacher"})

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        return squared_error(scores, self.taken(targets, "teacher"), targets.mask)

    def count(self, targets: Targets) -> Tensor:
        """See `Loss.count`: entries that the teacher scored."""
        return scored(targets.mask, self.taken(targets, "teacher")).sum()


class KLToRetriever(Loss):
    """`kl_divergence` of the model's scores to its retriever's. Lists that are drawn by a score change nothing here.

    Args:
        retriever_temperature: the retriever's scores are divided by it first; about 0.05 for cosines.
        reverse: KL(r || p), as the released code of CMC computes it.
        temperature: the model's scores are divided by it first, as in the loss that this one is added to.
    """

    needed = frozenset({"retriever"})

    def __init__(self, retriever_temperature: float = 1.0, reverse: bool = False, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = _positive(temperature)
        self.retriever_temperature = _positive(retriever_temperature)
        self.reverse = reverse

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        retriever = self.taken(targets, "retriever")
        unknown = targets.mask.any(dim=1) & ~scored(targets.mask, retriever).any(dim=1)
        if unknown.any():
            raise ValueError(
                f"KLToRetriever: no candidate of {int(unknown.sum())} of the batch's {len(unknown)} queries has a "
                "score of the retriever; are all their negatives random, or does the retriever give none?"
            )
        scores = full(scores)
        retriever = (retriever / self.retriever_temperature).to(scores.dtype)
        scores = scores / self.temperature
        pair_of = (retriever, scores) if self.reverse else (scores, retriever)
        return kl_divergence(*pair_of, targets.mask)

    def count(self, targets: Targets) -> Tensor:
        """See `Loss.count`: rows with a score of the retriever."""
        return scored(targets.mask, self.taken(targets, "retriever")).any(dim=1).sum()


class OtherPositivesCrossEntropy(BatchCrossEntropy):
    """`other_positives_cross_entropy`: for `simzoo.datamodules.lists.OtherPositives`."""

    needed = frozenset({"others"})

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        others, log_q = self.taken(targets, "others"), self.batch_log_q(targets)
        return other_positives_cross_entropy(self.tempered(scores), targets.labels, targets.mask, others, log_q)


class SumOfLosses(Loss):
    """Several losses at once, on the same scores.

    Args:
        losses: the losses.
        weights: of each; None: 1.

    Examples:
        >>> from simzoo.losses import MarginMSE, SoftmaxCrossEntropy, SumOfLosses
        >>> sorted(SumOfLosses([SoftmaxCrossEntropy(), MarginMSE()], [1.0, 0.1]).needs)
        ['teacher']
    """

    def __init__(self, losses: list[Loss], weights: list[float] | None = None) -> None:
        super().__init__()
        weights = [1.0] * len(losses) if weights is None else weights
        if not losses or len(weights) != len(losses):
            raise ValueError(f"a sum of losses needs losses and a weight for each, got {len(losses)} and {weights}")
        self.losses = nn.ModuleList(losses)
        self.weights = weights

    @property
    def needs(self) -> frozenset[str]:
        """See `Loss.needs`: what any of them needs."""
        return frozenset().union(*(part.needs for part in self.losses if isinstance(part, Loss)))

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        return torch.stack([weight * loss(scores, targets) for weight, loss in self.parts()]).sum()

    def count(self, targets: Targets) -> Tensor:
        """There is no one number: each part has its own."""
        raise TypeError("SumOfLosses is no mean; ask each of its parts for its count")

    def parts(self) -> list[tuple[float, Loss]]:
        """See `Loss.parts`; the parts of sums among them, too."""
        found: list[tuple[float, Loss]] = []
        for weight, loss in zip(self.weights, self.losses, strict=True):
            assert isinstance(loss, Loss)
            found += [(weight * inner, part) for inner, part in loss.parts()]
        return found


def _positive(temperature: float) -> float:
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    return temperature
