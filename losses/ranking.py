"""Losses over candidate lists: pure functions, and thin modules that a recipe can name."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from simzoo.core.targets import Targets

MASKED = -1e9  # finite: a gradient through -inf is NaN


def softmax_cross_entropy(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy between the labels, as a distribution over the candidates, and softmax of the scores.

    ANNCUR A.1 with one positive; several positives share the probability by grade. Rows without a positive count 0.

    Args:
        scores: (B, K).
        labels: (B, K), grades, 0 for a negative.
        mask: (B, K) bool, True where a candidate counts.

    Returns:
        Scalar, the mean over rows that have a positive.
    """
    labels = labels * mask
    total = labels.sum(dim=1, keepdim=True)
    log_p = F.log_softmax(scores.masked_fill(~mask, MASKED), dim=1)
    rows = -(labels / total.clamp_min(torch.finfo(scores.dtype).tiny) * log_p).sum(dim=1)
    return rows.sum() / (total > 0).sum().clamp_min(1)


def in_batch_cross_entropy(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Each positive of a query against all its negatives; other positives of the row do not compete with it.

    Args:
        scores: (B, M), every query against every item of the batch.
        labels: (B, M), grades, 0 for a negative.
        mask: (B, M) bool.

    Returns:
        Scalar, the mean over all (query, positive) pairs of -log softmax.
    """
    positive = (labels > 0) & mask
    negatives = scores.masked_fill(positive | ~mask, MASKED).logsumexp(dim=1, keepdim=True)
    pairs = F.softplus(negatives - scores)[positive]
    return pairs.sum() / max(pairs.numel(), 1)


def binary_cross_entropy(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """Every candidate alone: -log sigmoid(score) of a positive, -log(1 - sigmoid(score)) of a negative.

    SASRec (Kang and McAuley, 2018, §III.E) with one positive and one negative for each position.

    Args:
        scores: (B, K).
        labels: (B, K), > 0 for a positive.
        mask: (B, K) bool.

    Returns:
        Scalar: the sum over a row's candidates, the mean over the rows that have any.
    """
    terms = F.softplus(torch.where(labels > 0, -scores, scores)) * mask
    return terms.sum() / mask.any(dim=1).sum().clamp_min(1)


def match(scores: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """L_match (ANNCUR A.3; AXN A.2): cross-entropy of softmax(scores) against softmax(teacher).

    Args:
        scores: (B, K), the student's.
        teacher: (B, K), NaN where the teacher did not score; such entries take no part.
        mask: (B, K) bool.

    Returns:
        Scalar, the mean over rows that have at least one scored candidate.
    """
    known = mask & torch.isfinite(teacher)
    target = F.softmax(teacher.masked_fill(~known, MASKED), dim=1) * known
    log_p = F.log_softmax(scores.masked_fill(~known, MASKED), dim=1)
    rows = -(target * log_p).sum(dim=1)
    return rows.sum() / known.any(dim=1).sum().clamp_min(1)


def pair(top: Tensor, hard: Tensor) -> Tensor:
    """L_pair (ANNCUR A.3): cross-entropy of [1, 0] against softmax of (top_j, hard_j), for each j.

    Args:
        top: (B, k) the student's scores of the cross-encoder's top k items.
        hard: (B, k) the student's scores of its own top k items outside the cross-encoder's top k.

    Returns:
        Scalar mean.

    Raises:
        ValueError: when the shapes differ.
    """
    if top.shape != hard.shape:
        raise ValueError(
            f"pair loss needs as many hard negatives as top items, got {tuple(hard.shape)} and {tuple(top.shape)}"
        )
    return F.softplus(hard - top).mean()


def margin_mse(scores: Tensor, labels: Tensor, mask: Tensor, teacher: Tensor) -> Tensor:
    """MarginMSE (Hypencoder §4.2.1): squared error of the margin of every (positive, negative) pair of a query's items.

    Args:
        scores: (B, K), the student's.
        labels: (B, K), grades, 0 for a negative.
        mask: (B, K) bool, True where a candidate counts.
        teacher: (B, K), NaN where the teacher did not score; such entries take no part.

    Returns:
        Scalar, the mean over all pairs of the batch; 0 where there are none.
    """
    known = mask & torch.isfinite(teacher)
    positive, negative = known & (labels > 0), known & (labels <= 0)
    rows, first, second = torch.nonzero(positive[:, :, None] & negative[:, None, :], as_tuple=True)
    margins = scores[rows, first] - scores[rows, second]
    wanted = teacher[rows, first] - teacher[rows, second]
    return (margins - wanted.to(margins.dtype)).square().sum() / max(rows.numel(), 1)


def kl_divergence(scores: Tensor, others: Tensor, mask: Tensor) -> Tensor:
    """KL(p || r), p and r being softmax of the two kinds of scores (CMC Eq. 5: of the model and of its retriever).

    Args:
        scores: (B, K), NaN for a pair without a score; such entries take no part.
        others: (B, K), likewise.
        mask: (B, K) bool, True where a candidate counts.

    Returns:
        Scalar, the mean over rows that have at least one candidate with both.
    """
    known = mask & torch.isfinite(scores) & torch.isfinite(others)
    log_p, log_r = (F.log_softmax(part.masked_fill(~known, MASKED), dim=1) for part in (scores, others))
    rows = (log_p.exp() * (log_p - log_r)).masked_fill(~known, 0.0).sum(dim=1)
    return rows.sum() / known.any(dim=1).sum().clamp_min(1)


def other_positives_cross_entropy(scores: Tensor, labels: Tensor, mask: Tensor, others: Tensor) -> Tensor:
    """In-batch cross-entropy (Hypencoder §4.2.1): each positive against the positives of the other queries alone.

    A query's own negatives take no part: many of those that a retriever finds are relevant.

    Args:
        scores: (B, K).
        labels: (B, K), grades, 0 for a negative.
        mask: (B, K) bool, True where a candidate counts.
        others: (B, K) bool, True at the other queries' positives.

    Returns:
        Scalar, the mean over all (query, positive) pairs.
    """
    return in_batch_cross_entropy(scores, labels, mask & (others | (labels > 0)))


class Loss(nn.Module, ABC):
    """A loss that a recipe can name."""

    @abstractmethod
    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """Scalar loss of scores (B, K)."""


class Tempered(Loss, ABC):
    """A loss of scores that are divided by a temperature first.

    Args:
        temperature: the divisor, more than 0.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = _positive(temperature)


class SoftmaxCrossEntropy(Tempered):
    """`softmax_cross_entropy` over each query's candidates.

    Args:
        temperature: scores are divided by it first; 1 for raw logits, about 0.05 for cosines.
    """

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        return softmax_cross_entropy(scores / self.temperature, targets.labels, targets.mask)


class InBatchCrossEntropy(Tempered):
    """`in_batch_cross_entropy`: for a data module with ``in_batch: true``.

    Args:
        temperature: scores are divided by it first.
    """

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        return in_batch_cross_entropy(scores / self.temperature, targets.labels, targets.mask)


class BinaryCrossEntropy(Tempered):
    """`binary_cross_entropy`: each candidate is judged alone.

    Args:
        temperature: scores are divided by it first.
    """

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        return binary_cross_entropy(scores / self.temperature, targets.labels, targets.mask)


class MatchLoss(Tempered):
    """`match` against a teacher's scores.

    Args:
        temperature: the student's scores are divided by it first.
    """

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        if targets.teacher is None:
            raise ValueError(
                "MatchLoss needs teacher scores, but the data module has none: name a teacher in the recipe"
            )
        return match(scores / self.temperature, targets.teacher, targets.mask)


class PairLoss(Tempered):
    """`pair`: candidates the teacher scored are its top items, the others the student's hard negatives, in order.

    Args:
        temperature: the student's scores are divided by it first.
    """

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        if targets.teacher is None:
            raise ValueError(
                "PairLoss needs teacher scores, but the data module has none: name a teacher in the recipe"
            )
        top = targets.mask & torch.isfinite(targets.teacher)
        hard = targets.mask & ~top
        if not (top.sum(dim=1) == hard.sum(dim=1)).all():
            raise ValueError("PairLoss needs as many hard negatives as teacher-scored items in every row")
        scores = scores / self.temperature
        return pair(scores[top], scores[hard])


class MarginMSE(Loss):
    """`margin_mse` against a teacher's scores: for a data module with ``taught: true``."""

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        if targets.teacher is None:
            raise ValueError(
                "MarginMSE needs teacher scores, but the data module has none: set data.taught and name a teacher"
            )
        return margin_mse(scores, targets.labels, targets.mask, targets.teacher)


class KLToRetriever(Loss):
    """`kl_divergence` of the model's scores to its retriever's: for a data module with ``retriever_scores: true``.

    Args:
        retriever_temperature: the retriever's scores are divided by it first; about 0.05 for cosines.
        reverse: KL(r || p), as the released code of CMC computes it.
        temperature: the model's scores are divided by it first, as in the loss that this one is added to.
    """

    def __init__(self, retriever_temperature: float = 1.0, reverse: bool = False, temperature: float = 1.0) -> None:
        super().__init__()
        self.temperature = _positive(temperature)
        self.retriever_temperature = _positive(retriever_temperature)
        self.reverse = reverse

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        if targets.retriever is None:
            raise ValueError(
                "KLToRetriever needs the retriever's scores, but the data module has none: set data.retriever_scores"
            )
        unknown = ~(targets.mask & torch.isfinite(targets.retriever)).any(dim=1)
        if unknown.any():
            raise ValueError(
                f"KLToRetriever: no candidate of {int(unknown.sum())} of the batch's {len(unknown)} queries has a "
                "score of the retriever; are all their negatives random (data.hard), or does the retriever give none?"
            )
        retriever = (targets.retriever / self.retriever_temperature).to(scores.dtype)
        scores = scores / self.temperature
        pair_of = (retriever, scores) if self.reverse else (scores, retriever)
        return kl_divergence(*pair_of, targets.mask)


class OtherPositivesCrossEntropy(Tempered):
    """`other_positives_cross_entropy`: for a data module with ``other_positives: true``.

    Args:
        temperature: scores are divided by it first.
    """

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        if targets.others is None:
            raise ValueError(
                "OtherPositivesCrossEntropy needs the other queries' positives as candidates: set data.other_positives"
            )
        return other_positives_cross_entropy(scores / self.temperature, targets.labels, targets.mask, targets.others)


class SumOfLosses(Loss):
    """Several losses at once, on the same scores.

    Args:
        losses: the losses.
        weights: of each; None: 1.
    """

    def __init__(self, losses: list[Loss], weights: list[float] | None = None) -> None:
        super().__init__()
        weights = [1.0] * len(losses) if weights is None else weights
        if not losses or len(weights) != len(losses):
            raise ValueError(f"a sum of losses needs losses and a weight for each, got {len(losses)} and {weights}")
        self.losses = nn.ModuleList(losses)
        self.weights = weights

    def forward(self, scores: Tensor, targets: Targets) -> Tensor:
        """See `Loss.forward`."""
        parts = [weight * loss(scores, targets) for weight, loss in zip(self.weights, self.losses, strict=True)]
        return torch.stack(parts).sum()


def _positive(temperature: float) -> float:
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    return temperature
