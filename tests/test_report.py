"""The page that people look at: self-contained, escaped, complete."""

from __future__ import annotations

import base64
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from simzoo.core.records import Collection, Item, Query
from simzoo.retrieval.results import curves
from simzoo.retrieval.results.curves import Curves
from simzoo.retrieval.results.examples import Example
from simzoo.retrieval.results.report import RunReport, size, write_report
from simzoo.retrieval.searcher import Ranking
from tests.test_run_files import description

EVIL = "<script>alert(1)</script>"
CURVES: Curves = {
    "AXN": {1: [(50.0, 0.2), (500.0, 0.9)], 10: [(50.0, 0.4)]},
    f"$\\oops$ {EVIL}": {1: [(100.0, 0.31234)]},
}


class Page(HTMLParser):
    """What a browser would see: tags with their attributes, the text, the pictures."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data if "small" in self.open or "mark" in self.open else f"{data}\n"

    def pictures(self) -> list[ElementTree.Element]:
        sources = [str(attributes["src"]) for tag, attributes in self.tags if tag == "img"]
        return [ElementTree.fromstring(base64.b64decode(source.partition(";base64,")[2])) for source in sources]


def run(name: str, **changes: Any) -> RunReport:
    return RunReport(name, {**description({"accuracy": [1.0, 0.0], "RR@10": [1.0, 0.5]}), **changes})


def example(text: str = "a <b>boat</b> & more", mention: tuple[int, int] | None = (2, 6)) -> Example:
    items = [Item(f"i{n}", f"text {n}{EVIL if n == 1 else ''}", EVIL if n == 2 else "") for n in range(9)]
    collection = Collection("c", items, [Query("q0", text, mention)], [{2: 1, 7: 1, 8: 2}])
    ranking = Ranking(np.array([[2, 1, 0, 3, 4, 7]]), -np.arange(6, dtype=np.float32)[None], np.array([6]))
    return Example.of(collection, np.array([0]), ranking, 0)


def write(path: Path, runs: list[RunReport], curves: Curves = CURVES, examples: tuple[Example, ...] = ()) -> Page:
    write_report(path / "report.html", runs, curves, examples)
    return Page(path / "report.html")


def test_page_asks_for_nothing_and_runs_nothing(tmp_path: Path) -> None:
    """A page that is sent to somebody must look the same there, and tell no server that it was opened."""
    page = write(tmp_path, [run("a")], examples=(example(),))
    tags = [tag for tag, _ in page.tags]
    assert not {"script", "link", "iframe", "object", "svg"} & set(tags) and page.open == []
    assert all(str(found.get("src", "data:")).startswith("data:") and "href" not in found for _, found in page.tags)
    assert not [name for _, found in page.tags for name in found if name.startswith("on")]
    assert "url(" not in page.source and "@import" not in page.source
    assert ("meta", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in [
        (tag, found.get("content")) for tag, found in page.tags
    ]
    for picture in page.pictures():
        assert picture.tag == "{http://www.w3.org/2000/svg}svg"
        links = [value for part in picture.iter() for name, value in part.attrib.items() if name.endswith("href")]
        assert links and all(link.startswith("#") for link in links)


def test_texts_stay_texts(tmp_path: Path) -> None:
    """Texts of the data, names and settings must not become markup, and must be readable as they are."""
    given = run(
        f"run {EVIL}", searcher={"name": "X", "by": EVIL}, command=EVIL, data={"name": EVIL, "fingerprint": "f"}
    )
    page = write(tmp_path, [given], examples=(example(),))
    assert "<script" not in page.source
    assert page.text.count(EVIL) >= 7
    assert "a <mark>&lt;b&gt;b</mark>oat&lt;/b&gt; &amp; more" in page.source


def test_figures_have_the_decimals_that_their_queries_bear(tmp_path: Path) -> None:
    """0.1250 of 40 queries reads as if the last digit meant something; 0.12 and 0.13 of 5,000 read as the same."""
    mean = {"mean": 0.123456, "low": 0.1, "high": 0.2}
    for queries, shown in ((40, "0.12"), (400, "0.123"), (5000, "0.1235")):
        metrics = {"m": {**mean, "queries": queries}, "few": {**mean, "queries": 7}}
        page = write(tmp_path, [run("a", queries=queries, metrics=metrics)], {})
        quality = page.source[page.source.index("Quality") : page.source.index("Cost")]
        assert re.findall(r"<td>([\d.]+) <", quality) == [shown, "0.12"]


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (268_604_928, "268.6 MB"), (999_960_000, "1.0 GB")],
)
def test_sizes_are_readable(number: int, shown: str) -> None:
    """268,604,928 beside 2,492,928 has to be counted by its commas."""
    assert size(number) == shown


def test_what_is_looked_at_is_said_first(tmp_path: Path) -> None:
    """Figures without their task are read as those of another one: 0.15 beside a table's 0.95 as a failure."""
    write_report(tmp_path / "report.html", [run("a")], {}, (), about=["A <task>.", "How to read it."])
    page = Page(tmp_path / "report.html")
    assert page.text.index("A <task>.\nHow to read it.\n") < page.text.index("fingerprint")
    assert "<task>" not in page.source


def test_the_first_examples_are_a_hit_and_a_miss(tmp_path: Path) -> None:
    """The first queries of a file may all be hits, or all misses: neither shows what a model does."""
    collection = Collection(
        "c", [Item(f"i{n}", f"text {n}") for n in range(4)], [Query(f"q{n}", "boat") for n in range(5)], [{0: 1}] * 5
    )
    for firsts, order in (([1, 1, 0, 1, 0], [2, 0, 1]), ([0, 0, 0, 1, 0], [0, 3, 1]), ([0] * 5, [0, 1, 2])):
        items = np.array([[first, *sorted({0, 1, 2} - {first})] for first in firsts])
        ranking = Ranking(items, -np.arange(15, dtype=np.float32).reshape(5, 3), np.zeros(5, dtype=np.int64))
        chosen = Example.chosen(collection, np.arange(5), ranking, 3)
        assert [one.query.id for one in chosen] == [f"q{n}" for n in order]
    assert len(Example.chosen(collection, np.arange(5), ranking, 9)) == 5
    page = write(tmp_path, [run("a")], {}, (example(),))
    assert "A hit: the first result is relevant" in page.text
    rows = np.array([[1, 2, 3, 0], [1, 2, 3, 1]])
    for place, verdict in ((0, "A miss: the first relevant result is at place 4"), (1, "none of the 4 results")):
        found = Ranking(rows, np.zeros((2, 4), dtype=np.float32), np.zeros(2, dtype=np.int64))
        page = write(tmp_path, [run("a")], {}, (Example.of(collection, np.arange(2), found, place),))
        assert verdict in page.text


def test_mention_in_a_long_context_is_shown(tmp_path: Path) -> None:
    """A text that is cut at its beginning would hide the mention, which is what the example is about."""
    text = "left " * 500 + "the boat" + " right" * 500
    page = write(tmp_path, [run("a")], {}, (example(text, (2504, 2508)),))
    assert re.search(r"… [^<]{150,200}<mark>boat</mark> [^<]{150,200} …", page.source)


def test_relevant_items_are_marked_and_found_below(tmp_path: Path) -> None:
    """Colour alone does not reach everyone; a relevant item that is not shown must say where it went."""
    page = write(tmp_path, [run("a")], {}, (example(),))
    assert len([1 for tag, found in page.tags if found.get("class") == "gold"]) == 1
    assert page.source.count("<span class=badge>relevant</span>") == 3
    assert "place 6: text 7" in page.text and "not among the 6 results: text 8" in page.text


def test_figures_of_one_run(tmp_path: Path) -> None:
    """Quality with intervals, and n where some queries do not count; costs with their units."""
    nan = float("nan")
    described = description({"accuracy": [1.0, 0.0, 1.0, 1.0], "normalised": [1.0, nan, nan, 0.0]})
    page = write(
        tmp_path, [RunReport("a", {**described, "bytes": {"index": 1234567}, "search_seconds": {"scoring": 2}})]
    )
    for text in (
        "0.75",
        "0.65 to 0.85",
        "0.50",
        "0.40 to 0.60, n = 2",
        "calls a query",
        "10.0",
        "9.0 to 11.0",
    ):
        assert text in page.text
    for text in (
        "first stage: 0.50 s",
        "scoring: 2.00 s",
        "index: 1.2 MB",
        "4 queries",
        "fingerprint ffffffffffff\n",
    ):
        assert text in page.text
    assert "unknown: not run from a repository" in page.text
    assert page.text.count("n = ") == 1


def test_runs_over_other_numbers_of_queries_say_so(tmp_path: Path) -> None:
    """A mean over 100 queries beside one over 472 reads like a comparison."""
    assert "<th>queries</th>" not in write(tmp_path, [run("a"), run("b")]).source
    page = write(tmp_path, [run("a", queries=472), run("b", queries=100)])
    assert "<tr><th>queries</th><td>472</td><td>100</td></tr>" in page.source


@pytest.mark.parametrize("number", [2, 5])
def test_several_runs_stand_in_one_table(tmp_path: Path, number: int) -> None:
    """Each figure under its own run, whichever way the table lies; what all share is said once."""
    runs = [run(f"run{n}", metrics={f"m{n}": {"mean": n / 8, "low": n / 8, "high": n / 8}}) for n in range(number)]
    page = write(tmp_path, [*runs, run("other data", data={"name": "d", "fingerprint": "e" * 64})])
    assert page.text.count("versions") == 1 and page.text.count("fingerprint") == number + 1
    quality = page.source[page.source.index("Quality") : page.source.index("Cost")]
    table = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", quality)]
    if table[0][1] != "run0":
        table = [list(column) for column in zip(*table, strict=True)]
    assert table[0][1:] == [f"run{n}" for n in range(number)] + ["other data"]
    cells = {line[0]: line[1:] for line in table[1:]}
    for n in range(number):
        assert [cell.split()[0] for cell in cells[f"m{n}"]] == ["-"] * n + [f"{n / 8:.2f}"] + ["-"] * (number - n)


def test_every_table_can_be_scrolled(tmp_path: Path) -> None:
    """A table that is wider than the screen is cut at its right edge: the last figures are not there."""
    page = write(tmp_path, [run(f"a{n}") for n in range(5)], examples=(example(),))
    assert (
        page.source.count("<table")
        == len(re.findall(r'<div class="scroll[ a-z]*" tabindex=0><table', page.source))
        >= 4
    )


def test_curves(tmp_path: Path) -> None:
    """One panel for each k with points, each named; the numbers behind the curves; the axis says what it counts."""
    page = write(tmp_path, [run("a")])
    alts = [found["alt"] for tag, found in page.tags if tag == "img"]
    assert alts == ["Top-1-Recall against calls a query", "Top-10-Recall against calls a query"]
    table = page.source[page.source.index("the numbers") :]
    assert "<th>50</th><th>100</th><th>500</th>" in table
    assert "<th>AXN</th><td>0.2000</td><td>-</td><td>0.9000</td>" in table and "0.3123" in table
    write_report(tmp_path / "report.html", [run("a")], CURVES, (), x_label="results looked at")
    assert "calls a query" not in Page(tmp_path / "report.html").text.partition("Recall\n")[2]
    assert not write(tmp_path, [run("a")], {}).pictures()


def test_without_matplotlib_the_numbers_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are an extra: without it hours of search ended in an ImportError before the report was written."""
    assert not hasattr(curves, "matplotlib")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(curves, "find_spec", lambda name: None)
    page = write(tmp_path, [run("a")])
    assert "Pictures need matplotlib: pip install 'simzoo[plots]'." in page.text and "0.3123" in page.text


def test_page_is_the_same_each_time(tmp_path: Path) -> None:
    """Dates and random ids would make each report differ from the last without a reason."""
    first = write(tmp_path, [run("a")], examples=(example(),)).source
    assert write(tmp_path, [run("a")], examples=(example(),)).source == first
    with pytest.raises(ValueError, match="at least one run"):
        write_report(tmp_path / "none.html", [], {}, [])
    assert not (tmp_path / "none.html").exists()
