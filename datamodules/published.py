"""Sources that are named as others name them: ir_datasets' catalogue, and FollowIR's collections."""

from __future__ import annotations

from pathlib import Path

from simzoo.core.records import Collection, DataError
from simzoo.datamodules.readers.followir import InstructedFolder, InstructedHub, load_followir
from simzoo.datamodules.readers.ir_datasets import load_ir_dataset
from simzoo.datamodules.sources import Source, Split

__all__ = ["FollowIR", "IRDatasets"]


class IRDatasets(Source):
    """Data sets of the package ir_datasets, by their names: TREC DL, TREC ToT, BEIR, ...; extra ``ir-datasets``.

    A data set that has scored documents offers them as candidates (first stage `Given`). See docs/everyones_data.md.

    Args:
        name: the test split, for example vaswani or msmarco-passage/trec-dl-2019/judged.
        train: the data set of the train split, for example msmarco-passage/train; None: there is none.
        dev: that of the dev split.
        query: the field that is a query's text, for example description; None: ir_datasets' default text.
        depth: most candidates to keep for a query; None: all.
        drop_same_id: for ArguAna and Quora, whose queries are items too: see `load_beir`.
    """

    def __init__(
        self,
        name: str,
        train: str | None = None,
        dev: str | None = None,
        query: str | None = None,
        depth: int | None = None,
        drop_same_id: bool = False,
    ) -> None:
        self.name = name
        self.train = train
        self.dev = dev
        self.query = query
        self.depth = depth
        self.drop_same_id = drop_same_id

    def read(self, split: Split) -> list[Collection]:
        """The data set of a split.

        Raises:
            DataError: none is named, or as `load_ir_dataset`.
        """
        name = {"train": self.train, "dev": self.dev, "test": self.name}[split]
        if name is None:
            raise DataError(f"no data set is named for the {split} split: give --data.{split} beside --data.name")
        return [load_ir_dataset(name, self.query, self.depth, self.drop_same_id)]


class FollowIR(Source):
    """A collection whose instructions were changed, for p-MRR; there is a test split alone.

    The candidates are those of the data set (first stage `Given`). p-MRR looks as deep as the results: give ``--k`` as
    many as there are candidates.

    Args:
        root: a folder with BEIR's files, instruction.jsonl and top_ranked.jsonl; give this or ``name``.
        name: a data set on the Hub in mteb's layout, for example mteb/Core17InstructionRetrieval.
        depth: most candidates to keep for a query; None: all.
    """

    def __init__(self, root: Path | None = None, name: str | None = None, depth: int | None = None) -> None:
        if (root is None) == (name is None):
            raise ValueError("FollowIR needs either a folder (root) or the name of a data set on the Hub (name)")
        self.root = root
        self.name = name
        self.depth = depth

    def read(self, split: Split) -> list[Collection]:
        """The collection; nothing for training or validation."""
        if split != "test":
            return []
        files = InstructedFolder(self.root) if self.root is not None else InstructedHub(str(self.name))
        return [load_followir(files, depth=self.depth)]
