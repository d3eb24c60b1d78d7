"""What finds candidates while a model trains: the part of it that data modules know."""

from __future__ import annotations

from abc import ABC, abstractmethod

from lightning import Callback

__all__ = ["Miner"]


class Miner(Callback, ABC):
    """A callback that hands mined candidates to the data module (`TrainingData.set_candidates`)."""

    @property
    @abstractmethod
    def gives(self) -> frozenset[str]:
        """Of `simzoo.core.targets.NEEDS`, what stands beside its candidates: retriever, teacher."""
