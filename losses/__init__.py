"""Losses: scores (B, K) and targets in, a scalar out."""

if __name__ != "simzoo.losses":
    raise ImportError("losses is a part of simzoo: import simzoo.losses instead of losses")

from simzoo.core.targets import Targets
from simzoo.losses.mixture import MutualInformation, UserL2
from simzoo.losses.modules import (
    BinaryCrossEntropy,
    InBatchCrossEntropy,
    KLToRetriever,
    Loss,
    MarginMSE,
    MatchLoss,
    OtherPositivesCrossEntropy,
    PairLoss,
    SoftmaxCrossEntropy,
    SquaredError,
    SumOfLosses,
    check_needs,
)

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
    "SquaredError",
    "SumOfLosses",
    "Targets",
    "UserL2",
    "check_needs",
]
