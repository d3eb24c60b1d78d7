"""Losses: scores (B, K) and targets in, a scalar out."""

from losses.mixture import MutualInformation, UserL2
from losses.ranking import (
    BinaryCrossEntropy,
    InBatchCrossEntropy,
    KLToRetriever,
    Loss,
    MarginMSE,
    MatchLoss,
    OtherPositivesCrossEntropy,
    PairLoss,
    SoftmaxCrossEntropy,
    SumOfLosses,
)
from losses.targets import Targets

__all__ = [
    "BinaryCrossEntropy",
    "InBatchCrossEntropy",
    "KLToRetriever",
    "Loss",
    "MarginMSE",
    "MatchLoss",
    "MutualInformation",
    "OtherPositivesCrossEntropy",
    "PairLoss",
    "SoftmaxCrossEntropy",
    "SumOfLosses",
    "Targets",
    "UserL2",
]
