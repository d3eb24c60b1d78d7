"""Losses over candidate lists, as pure functions. All compute in fp32 at least, whatever the scores come in."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = [
    "binary_cross_entropy",
    "in_batch_cross_entropy",
    "kl_divergence",
    "margin_mse",
    "match",
    "other_positives_cross_entropy",
    "pair",
    "softmax_cross_entropy",
]

MASKED = -1e9  # finite: a gradient through -inf is NaN


def full(scores: Tensor) -> Tensor:
    """Half-precision scores as fp32: sums of exponentials lose their digits in bf16, and fp16 cannot hold `MASKED`."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores


def corrected(scores: Tensor, labels: Tensor, mask: Tensor, log_q: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Scores less the log of the probability of each candidate's being there; what cannot be there takes no part.

    Args:
        scores: (B, K), divided by the temperature.
        labels: (B, K).
        mask: (B, K) bool.
        log_q: (B, K), -inf for a probability of 0; None: nothing is taken off.

    Returns:
        Scores, labels and mask: a relevant item that no draw could have brought is no positive any more, so that a list
        without another one is left out.
    """
    if log_q is None:
        return full(scores), labels, mask
    possible = torch.isfinite(log_q)
    return full(scores) - log_q.masked_fill(~possible, 0.0), labels * possible, mask & possible


def positives(labels: Tensor, mask: Tensor, log_q: Tensor | None = None) -> Tensor:
    """(B, K) bool: the relevant candidates that count; see `corrected` for ``log_q``."""
    there = (labels > 0) & mask
    return there if log_q is None else there & torch.isfinite(log_q)


def scored(mask: Tensor, *scores: Tensor) -> Tensor:
    """(B, K) bool: the candidates that count and for which every one of ``scores`` (B, K) is known."""
    for part in scores:
        mask = mask & torch.isfinite(part)
    return mask


def margins(labels: Tensor, mask: Tensor, teacher: Tensor) -> Tensor:
    """(B, K, K) bool: the (positive, negative) pairs of a query's items that a teacher scored."""
    known = scored(mask, teacher)
    return (known & (labels > 0))[:, :, None] & (known & (labels <= 0))[:, None, :]


def softmax_cross_entropy(scores: Tensor, labels: Tensor, mask: Tensor, log_q: Tensor | None = None) -> Tensor:
    """Cross-entropy between the labels, as a distribution over the candidates, and softmax of the scores.

    ANNCUR A.1 with one positive; several positives share the probability by grade. Rows without a positive count 0.
    With ``log_q`` it is the softmax of scores - log_q, as in sampled softmax.

    Args:
        scores: (B, K).
        labels: (B, K), grades, 0 for a negative.
        mask: (B, K) bool, True where a candidate counts.
        log_q: (B, K) log of the probability that a candidate is in the list; see `corrected`.

    Returns:
        Scalar, the mean over rows that have a positive.

    Examples:
        >>> labels, mask = torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[True, True, False]])
        >>> round(softmax_cross_entropy(torch.zeros(1, 3), labels, mask).item(), 4)  # of two: log 2
        0.6931
    """
    scores, labels, mask = corrected(scores, labels, mask, log_q)
    labels = labels * mask
    total = labels.sum(dim=1, keepdim=True)
    log_p = F.log_softmax(scores.masked_fill(~mask, MASKED), dim=1)
    rows = -(labels / total.clamp_min(torch.finfo(scores.dtype).tiny) * log_p).sum(dim=1)
    return rows.sum() / (total > 0).sum().clamp_min(1)


def in_batch_cross_entropy(scores: Tensor, labels: Tensor, mask: Tensor, log_q: Tensor | None = None) -> Tensor:
    """Each positive of a query against all its negatives; other positives of the row do not compete with it.

    Args:
        scores: (B, M), every query against every item of the batch.
        labels: (B, M), grades, 0 for a negative.
        mask: (B, M) bool.
        log_q: (B, M) log of the probability that an item is in the batch; see `corrected`.

    Returns:
        Scalar, the mean over all (query, positive) pairs of -log softmax.
    """
    scores, labels, mask = corrected(scores, labels, mask, log_q)
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

    Examples:
        >>> labels, mask = torch.tensor([[1.0, 0.0]]), torch.tensor([[True, True]])
        >>> round(binary_cross_entropy(torch.zeros(1, 2), labels, mask).item(), 4)  # twice log 2
        1.3863
    """
    scores = full(scores)
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
    scores, teacher = full(scores), full(teacher)
    known = scored(mask, teacher)
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
    return F.softplus(full(hard) - full(top)).sum() / max(top.numel(), 1)


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
    scores = full(scores)
    rows, first, second = torch.nonzero(margins(labels, mask, teacher), as_tuple=True)
    found = scores[rows, first] - scores[rows, second]
    wanted = teacher[rows, first] - teacher[rows, second]
    return (found - wanted.to(found.dtype)).square().sum() / max(rows.numel(), 1)


def squared_error(scores: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """Mean of (score - teacher)^2 over the entries that the teacher scored (AXN Eq. 3).

    Args:
        scores: (B, K), the student's.
        teacher: (B, K), NaN where the teacher did not score; such entries take no part.
        mask: (B, K) bool, True where a candidate counts.

    Returns:
        Scalar, the mean over all entries of the batch; 0 where there are none.
    """
    known = scored(mask, teacher)
    errors = full(scores)[known] - teacher[known]
    return errors.square().sum() / max(errors.numel(), 1)


def kl_divergence(scores: Tensor, others: Tensor, mask: Tensor) -> Tensor:
    """KL(p || r), p and r being softmax of the two kinds of scores (CMC Eq. 5: of the model and of its retriever).

    Args:
        scores: (B, K), NaN for a pair without a score; such entries take no part.
        others: (B, K), likewise.
        mask: (B, K) bool, True where a candidate counts.

    Returns:
        Scalar, the mean over rows that have at least one candidate with both.
    """
    scores, others = full(scores), full(others)
    known = scored(mask, scores, others)
    log_p, log_r = (F.log_softmax(part.masked_fill(~known, MASKED), dim=1) for part in (scores, others))
    rows = (log_p.exp() * (log_p - log_r)).masked_fill(~known, 0.0).sum(dim=1)
    return rows.sum() / known.any(dim=1).sum().clamp_min(1)


def other_positives_cross_entropy(
    scores: Tensor, labels: Tensor, mask: Tensor, others: Tensor, log_q: Tensor | None = None
) -> Tensor:
    """In-batch cross-entropy (Hypencoder §4.2.1): each positive against the positives of the other queries alone.

    A query's own negatives take no part: many of those that a retriever finds are relevant.

    Args:
        scores: (B, K).
        labels: (B, K), grades, 0 for a negative.
        mask: (B, K) bool, True where a candidate counts.
        others: (B, K) bool, True at the other queries' positives.
        log_q: (B, K) log of the probability that an item is in the batch; see `corrected`.

    Returns:
        Scalar, the mean over all (query, positive) pairs.
    """
    return in_batch_cross_entropy(scores, labels, mask & (others | (labels > 0)), log_q)
