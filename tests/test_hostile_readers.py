"""Data sets that are made to harm: each reader refuses them in one line, or reads them, with little memory and time."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.forks import Forks
from tests.test_fuzz_readers import LAYOUTS, TEXTS

DEEP = "[" * 200_000


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """A process that has imported all readers."""
    found = Forks("tests.limited_readers")
    yield found
    found.close()


def endless_line(path: Path) -> None:
    """10 GB without the end of a line, which take no place on the disk."""
    os.truncate(path, 10**10)


def deep(path: Path) -> None:
    """The first value, if it is JSON's, deeper than a parser's stack."""
    text = path.read_text()
    path.write_text(re.sub(r'": ?("[^"]*"|[^"\s,}]+)', f'": {DEEP}', text, count=1) + DEEP + "\n")


def many_digits(path: Path) -> None:
    """Every number has 5,000 digits."""
    path.write_text(re.sub(r"\d+", "9" * 5000, path.read_text()))


@pytest.mark.parametrize("harm", [endless_line, deep, many_digits])
@pytest.mark.parametrize(("layout", "file"), TEXTS)
def test_data_made_to_harm_is_refused_or_read(
    layout: str, file: str, harm: Callable[[Path], None], forks: Forks, tmp_path: Path
) -> None:
    """One line filled the memory, and numbers ended in a traceback that named neither file nor line."""
    LAYOUTS[layout][0](tmp_path)
    harm(tmp_path / file)
    _refused_or_read(forks, layout, file, tmp_path, refused=harm is endless_line)


def _refused_or_read(forks: Forks, layout: str, file: str, root: Path, refused: bool) -> str:
    run = forks.run("tests.limited_readers:limited", layout, file, root, output=root / "log")
    if run.wait() == 0 and not refused:
        return ""
    assert run.wait() == 1, run.words()[-2000:]
    said = run.words().splitlines()
    assert len(said) == 1 and said[0].startswith(f"error: {root}"), run.words()[-2000:]
    return said[0]


@pytest.mark.parametrize(
    ("layout", "file"),
    [
        ("beir", "corpus.jsonl"),
        ("dstc7", "ubuntu_train_subtask_1.json"),
        ("msmarco", "collection.tsv"),
        ("pairs", "pairs.csv"),
    ],
)
def test_a_small_archive_of_an_endless_line_is_refused(layout: str, file: str, forks: Forks, tmp_path: Path) -> None:
    """A few hundred kilobytes of gzip were 1 GB of memory."""
    LAYOUTS[layout][0](tmp_path)
    (tmp_path / file).unlink()
    (tmp_path / f"{file}.gz").write_bytes(128 * gzip.compress(bytes(1 << 23), 1))
    assert "is longer than 16 MiB" in _refused_or_read(forks, layout, file, tmp_path, refused=True)


@pytest.mark.parametrize("layout", ["lessons", "pairs"])
def test_a_small_table_of_endless_texts_is_refused(layout: str, forks: Forks, tmp_path: Path) -> None:
    """Parquet keeps a text once, however many rows have it: a file of kilobytes is gigabytes of texts."""
    LAYOUTS[layout][0](tmp_path)
    file = f"{layout}.parquet"
    text = pa.array(["x" * 2_000_000])
    many = pa.DictionaryArray.from_arrays(pa.array([0] * 500, pa.int32()), text)
    table = pa.table(dict.fromkeys(("query", "positive", "items"), many))
    pq.write_table(table, tmp_path / file, compression="zstd")
    assert (tmp_path / file).stat().st_size < 1_000_000
    _refused_or_read(forks, layout, file, tmp_path, refused=True)
