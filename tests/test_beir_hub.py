"""BEIR's data sets by name, through the real client and a Hub on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simzoo.datamodules.readers.beir import load_beir
from tests.hub_client import Client, client, hub, process, server  # noqa: F401
from tests.loopback_hub import Hub

CORPUS = [{"_id": f"d{n}", "title": f"t{n}", "text": f"the text {n}"} for n in range(6)]
QUERIES = [{"_id": f"q{n}", "text": f"query {n}"} for n in range(6)]
QRELS = {"train": [("q0", "d0", 1), ("q1", "d1", 1)], "dev": [("q2", "d2", 2)], "test": [("q3", "d3", 1)]}
GENERATED = [{**record, "query": f"generated for {record['_id']}"} for record in CORPUS]
HEADER = "query-id\tcorpus-id\tscore\n"


def lines(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def table(rows: list[tuple[str, str, int]]) -> bytes:
    return (HEADER + "".join(f"{q}\t{i}\t{grade}\n" for q, i, grade in rows)).encode()


@pytest.fixture
def fiqa(hub: Hub) -> Hub:  # noqa: F811
    """As BeIR/fiqa and BeIR/fiqa-qrels are laid out: a configuration each for corpus and queries, a file a split."""
    card = """---
configs:
- config_name: corpus
  data_files: [{split: corpus, path: corpus.jsonl}]
- config_name: queries
  data_files: [{split: queries, path: queries.jsonl}]
---
"""
    files = {"README.md": card.encode(), "corpus.jsonl": lines(CORPUS), "queries.jsonl": lines(QUERIES)}
    hub.add("datasets/BeIR/fiqa", files)
    hub.add("datasets/BeIR/fiqa-qrels", {f"{split}.tsv": table(rows) for split, rows in QRELS.items()})
    hub.add("datasets/BeIR/fiqa-generated-queries", {"train.jsonl": lines(GENERATED)})
    return hub


def test_every_split_of_the_hub_is_found(fiqa: Hub, client: Client, tmp_path: Path) -> None:  # noqa: F811
    """The Hub calls dev.tsv validation: a training that asks for dev would stop, or validate on nothing."""
    root = tmp_path / "fiqa"
    (root / "qrels").mkdir(parents=True)
    for name, content in (("corpus.jsonl", lines(CORPUS)), ("queries.jsonl", lines(QUERIES))):
        (root / name).write_bytes(content)
    for split, rows in QRELS.items():
        (root / "qrels" / f"{split}.tsv").write_bytes(table(rows))
    found = client.run(
        "from simzoo.datamodules.sources import BEIR\n"
        "data = BEIR(name='fiqa')\n"
        "value = {split: [c.fingerprint for c in data.collections(split)] for split in ('train', 'dev', 'test')}"
    )
    assert found == {split: [load_beir(root, split).fingerprint] for split in QRELS}


def test_what_the_hub_lacks_is_named(fiqa: Hub, client: Client) -> None:  # noqa: F811
    """A split or a data set that is not there must say what is."""
    with pytest.raises(RuntimeError, match=r"BeIR/fiqa-qrels: has no split 'other'; it has train, validation, test"):
        client.run("from simzoo.datamodules.readers.beir import load_beir_hub; load_beir_hub('fiqa', 'other')")
    with pytest.raises(RuntimeError, match=r"DataError: BeIR/nothing-qrels: cannot load"):
        client.run("from simzoo.datamodules.readers.beir import load_beir_hub; load_beir_hub('nothing')")


def test_a_broken_table_on_the_hub_is_an_error_of_the_data(fiqa: Hub, client: Client) -> None:  # noqa: F811
    """The client's own error for it is neither an OSError nor a ValueError and would end in a traceback."""
    fiqa.add("datasets/BeIR/broken", {"README.md": b"", "corpus.jsonl": b'{"_id": '})
    fiqa.add("datasets/BeIR/broken-qrels", {"test.tsv": table(QRELS["test"])})
    with pytest.raises(RuntimeError, match=r"DataError: BeIR/broken: cannot load split 'corpus' of 'corpus'"):
        client.run("from simzoo.datamodules.readers.beir import load_beir_hub; load_beir_hub('broken')")


def test_generated_queries_of_the_hub(fiqa: Hub, client: Client) -> None:  # noqa: F811
    """Their _id is the item's: taken for the query's, a pseudo-query and a test query would be one."""
    found = client.run(
        "from simzoo.datamodules.readers.beir import generated_queries\n"
        "from simzoo.datamodules.readers.beir_files import Hub\n"
        "value = [[query.id, query.text] for query in generated_queries(Hub('fiqa'))]"
    )
    assert found == [[f"generated-{n + 1}", f"generated for d{n}"] for n in range(6)]
