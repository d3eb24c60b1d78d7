"""Losses: scores (B, K) and targets in, a scalar out."""

from losses.ranking import InBatchCrossEntropy, Loss, MatchLoss, PairLoss, SoftmaxCrossEntropy
from losses.targets import Targets

__all__ = ["InBatchCrossEntropy", "Loss", "MatchLoss", "PairLoss", "SoftmaxCrossEntropy", "Targets"]
