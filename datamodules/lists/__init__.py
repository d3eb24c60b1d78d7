"""Training lists: how a query gets the candidates that it is trained on, one class a way."""

from simzoo.datamodules.lists.base import BatchLists, TrainingLists
from simzoo.datamodules.lists.distilled import Distilled
from simzoo.datamodules.lists.files import FromFiles, HalvesFromFiles
from simzoo.datamodules.lists.negatives import GivenNegatives, HardNegatives, RandomNegatives
from simzoo.datamodules.lists.sharing import InBatch, OtherPositives

__all__ = [
    "BatchLists",
    "Distilled",
    "FromFiles",
    "GivenNegatives",
    "HalvesFromFiles",
    "HardNegatives",
    "InBatch",
    "OtherPositives",
    "RandomNegatives",
    "TrainingLists",
]
