"""report.html: one self-contained page with the tables, the curves and a few ranked examples."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from simzoo.core.records import Collection, Query
from simzoo.retrieval.results.run_files import write_text
from simzoo.retrieval.scorer import Rows
from simzoo.retrieval.searcher import Ranking

Curves = Mapping[str, Mapping[int, Sequence[tuple[float, float]]]]
"""By searcher and k: (calls a query, Top-k-Recall) points."""

SHOWN = 5  # results of an example
LENGTH = 400  # characters shown of a text
WIDE = 3  # runs that fit beside each other; more of them stand below each other
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")  # told apart by everyone
MARKERS = "os^DvPX"

STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8881; --mark: #ffd54a88; --gold: #2e7d3233; --shade: #0005; }
@media (prefers-color-scheme: dark) { :root { --shade: #fff6; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } h3 { font-size: 1rem; }
/* A shade at each edge that hides a part of the table: it goes with the last column into view. */
.scroll { overflow-x: auto; background:
  linear-gradient(to right, Canvas 40%, transparent) left / 2rem 100% no-repeat local,
  linear-gradient(to left, Canvas 40%, transparent) right / 2rem 100% no-repeat local,
  linear-gradient(to right, var(--shade), transparent) left / .6rem 100% no-repeat scroll,
  linear-gradient(to left, var(--shade), transparent) right / .6rem 100% no-repeat scroll; }
.scroll:focus-visible { outline: 2px solid var(--line); }
table { border-collapse: collapse; font-size: .9rem; overflow-wrap: normal; }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
thead th { border-bottom-width: 2px; min-width: 4.5rem; } .results th { min-width: 0; } tbody th { font-weight: 600; }
th:first-child, .text { text-align: left; }
.scroll th:first-child { position: sticky; left: 0; min-width: 7rem; background: Canvas; }
.many th, .many td { padding: .3rem .45rem; } .many th:first-child { min-width: 9rem; max-width: 14rem; }
td { font-variant-numeric: tabular-nums; } small { opacity: .8; } .note, .step { display: block; white-space: nowrap; }
.single .note { display: inline-block; min-width: 9rem; }
.scroll .results th:first-child { min-width: 0; } .results { width: 100%; }
.results td.text { overflow-wrap: anywhere; }
.results td:first-child { width: 2.5rem; } .results td:nth-child(2) { width: 5rem; }
mark { background: var(--mark); color: inherit; border-radius: .2rem; padding: 0 .15rem; font-weight: 600; }
tr.gold td { background: var(--gold); }
.badge { border: 1px solid #2e7d32; border-radius: .6rem; padding: 0 .45rem; font-size: .8rem; white-space: nowrap; }
.query { background: var(--soft); border-left: 3px solid var(--line); padding: .5rem .8rem; margin: 1.6rem 0 .5rem; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(19rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; } figure img { width: 100%; max-width: 30rem; height: auto; }
@media (prefers-color-scheme: dark) { figure img { filter: invert(1) hue-rotate(180deg); } }
code { font-size: .85rem; } summary { cursor: pointer; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .5rem 0; } dd { margin: 0; }
@media (max-width: 30rem) { th, td { padding: .3rem .4rem; } dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin: 0 0 .4rem 1rem; } .step { white-space: normal; } .single .note { display: block; }
  .results td:nth-child(2) { width: 4rem; } }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class RunReport:
    """A run under its name, with the contents of its metrics.json (see `simzoo.retrieval.results.run_files`)."""

    name: str
    described: Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """An item in the ranking of an example.

    Attributes:
        place: from 1; None for a relevant item that is not in the ranking.
        score: None with ``place``.
    """

    id: str
    title: str
    text: str
    relevant: bool
    place: int | None = None
    score: float | None = None


@dataclass(frozen=True)
class Example:
    """A query and the head of its ranking.

    Attributes:
        query: with its mention, if it has one.
        found: the first results.
        missed: relevant items that are further down or not in the ranking.
        depth: results in the ranking.
    """

    query: Query
    found: Sequence[Result]
    missed: Sequence[Result]
    depth: int

    @property
    def hit(self) -> bool:
        """Whether the first result is relevant."""
        return bool(self.found) and self.found[0].relevant

    @classmethod
    def chosen(cls, collection: Collection, query_rows: Rows, ranking: Ranking, number: int) -> list[Self]:
        """Examples in the order of the queries, but for a hit that comes first and a miss that comes next."""
        every = [cls.of(collection, query_rows, ranking, place) for place in range(len(query_rows))]
        first = [next((one for one in every if one.hit is hit), None) for hit in (True, False)]
        ahead = [one for one in first if one is not None]
        return [*ahead, *(one for one in every if one not in ahead)][:number]

    @classmethod
    def of(cls, collection: Collection, query_rows: Rows, ranking: Ranking, place: int) -> Self:
        """The example at a place of the ranking."""
        row = int(query_rows[place])
        items, scores = ranking.items[place].tolist(), ranking.scores[place].tolist()
        items = [item for item in items if item >= 0]
        relevant = collection.relevant(row)

        def result(item: int) -> Result:
            record = collection.items[item]
            where = items.index(item) if item in items else None
            about = record.id, record.title, record.text, item in relevant
            return Result(*about) if where is None else Result(*about, where + 1, scores[where])

        missed = [item for item in relevant if item not in items[:SHOWN]]
        return cls(collection.queries[row], [*map(result, items[:SHOWN])], [*map(result, missed)], len(items))


def write_report(
    path: Path,
    runs: Sequence[RunReport],
    curves: Curves,
    examples: Sequence[Example],
    x_label: str = "calls a query",
    about: Sequence[str] = (),
) -> None:
    """Writes the page; it asks the network for nothing, and runs nothing.

    Args:
        path: of the file.
        runs: at least one; with several, their tables stand together and what they share is said once.
        curves: Top-k-Recall, one panel for each k; may be empty.
        examples: ranked examples; may be empty.
        x_label: what the first number of a curve's point counts.
        about: paragraphs that say what is looked at and how to read it.

    Raises:
        ValueError: there are no runs.
    """
    if not runs:
        raise ValueError("a report needs at least one run")
    data = list(dict.fromkeys(run.described["data"]["name"] for run in runs))
    names = ", ".join(run.name for run in runs) if len(runs) <= WIDE else f"{len(runs)} runs"
    title = f"{', '.join(data)}: {names}"
    body = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(paragraph)}</p>" for paragraph in about),
        _facts(runs),
        "<h2>Quality</h2>",
        "<p>Means over queries with 95 % bootstrap intervals; n where not every query counts.</p>",
        _quality(runs),
        "<h2>Cost</h2>",
        "<p>A call is one scored pair. Seconds are over all queries.</p>",
        _cost(runs),
    ]
    if curves:
        body += ["<h2>Recall</h2>", _curves(curves, x_label)]
    if examples:
        body += ["<h2>Examples</h2>", *map(_example, examples)]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )
    write_text(path, page)


def _facts(runs: Sequence[RunReport]) -> str:
    facts = [_facts_of(run.described) for run in runs]
    shared = {name: value for name, value in facts[0].items() if all(other.get(name) == value for other in facts)}
    parts = [_definitions(shared)]
    for run, about in zip(runs, facts, strict=True):
        if own := {name: value for name, value in about.items() if name not in shared}:
            parts.append(f"<details><summary>{escape(run.name)}</summary>{_definitions(own)}</details>")
    return "".join(parts)


def _facts_of(about: Mapping[str, Any]) -> dict[str, str]:
    """What describes a run, by name, as HTML."""
    data, checkpoint, searcher = about["data"], about["checkpoint"], about["searcher"]
    sha256 = checkpoint.get("sha256")
    settings = ", ".join(f"{name} {_setting(value)}" for name, value in searcher.items() if name != "name")
    given = {
        "data": f"{data['name']}, {about['queries']:,} queries, fingerprint {data['fingerprint'][:12]}",
        "reader's counts": "; ".join(f"{reason}: {count:,}" for reason, count in data.get("notes", {}).items()),
        "checkpoint": (checkpoint["name"] or "none") + (f", sha256 {sha256[:12]}" if sha256 else ""),
        "searcher": searcher["name"] + (f": {settings}" if settings else ""),
        **{
            name: f"{about[key]:,}"
            for name, key in (("results a query", "k"), ("seed", "seed"), ("truncated texts", "truncated"))
            if key in about
        },
        "code": str(about["commit"] or "unknown: not run from a repository"),
        "versions": ", ".join(f"{name} {number}" for name, number in about["versions"].items()),
    }
    facts = {name: escape(value) for name, value in given.items() if value}
    return {**facts, "command": f"<code>{escape(about['command'])}</code>"}


def _definitions(facts: Mapping[str, str]) -> str:
    return f"<dl>{''.join(f'<dt>{escape(name)}</dt><dd>{value}</dd>' for name, value in facts.items())}</dl>"


def _quality(runs: Sequence[RunReport]) -> str:
    names = dict.fromkeys(name for run in runs for name in run.described["metrics"])
    lines = {}
    counts = [f"{run.described['queries']:,}" for run in runs]
    if len(set(counts)) > 1:  # means over other queries are no comparison: that must be seen
        lines["queries"] = counts
    for name in names:
        cells = []
        for run in runs:
            value = run.described["metrics"].get(name)
            counted = (value or {}).get("queries", run.described["queries"])
            partial = "" if counted == run.described["queries"] else f"n = {counted:,}"
            cells.append(_mean(value, f"{{:.{decimals(counted)}f}}", partial))
        lines[name] = cells
    return _table(runs, lines)


def decimals(queries: int) -> int:
    """Decimals of a mean over queries: as many as tell apart means that differ by one query."""
    return 2 if queries < 100 else 3 if queries < 1000 else 4


def _cost(runs: Sequence[RunReport]) -> str:
    lines = {
        f"{name} a query": [_mean(run.described["cost"].get(name), "{:,.1f}") for run in runs]
        for name in dict.fromkeys(name for run in runs for name in run.described["cost"])
    }
    for title, key, form in (
        ("search, seconds", "search_seconds", "{:,.2f} s"),
        ("indexing, seconds", "index_seconds", "{:,.2f} s"),
    ):
        if any(run.described.get(key) for run in runs):
            lines[title] = [_steps(run.described.get(key, {}), form.format) for run in runs]
    if any(run.described.get("bytes") for run in runs):
        lines["kept"] = [_steps(run.described.get("bytes", {}), size) for run in runs]
    lines["indexing, calls"] = [f"{run.described['index_calls']:,}" for run in runs]
    return _table(runs, lines)


def _mean(value: Mapping[str, float] | None, form: str, remark: str = "") -> str:
    if value is None:
        return "-"
    mean, low, high = (form.format(value[key]) for key in ("mean", "low", "high"))
    notes = [note for note in ("" if mean == low == high else f"{low} to {high}", remark) if note]
    return f"{mean} <small class=note>{', '.join(notes)}</small>"


def _steps(steps: Mapping[str, Any], form: Callable[[Any], str]) -> str:
    return "".join(f"<span class=step>{escape(name)}: {form(value)}</span>" for name, value in steps.items()) or "-"


def size(number: int) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    value, units = float(number), iter(("kB", "MB", "GB", "TB"))
    unit = "bytes"
    while value >= 999.95 and unit != "TB":
        value, unit = value / 1000, next(units)
    return f"{number} bytes" if unit == "bytes" else f"{value:.1f} {unit}"


def _table(runs: Sequence[RunReport], lines: Mapping[str, Sequence[str]]) -> str:
    """A line for each name with a cell (HTML) for each run; turned round where there are many runs."""
    rows = [["", *(escape(run.name) for run in runs)], *([escape(name), *cells] for name, cells in lines.items())]
    if len(runs) > WIDE:
        rows = [list(column) for column in zip(*rows, strict=True)]
    head = "".join(f"<th>{cell}</th>" for cell in rows[0])
    body = "".join(
        f"<tr><th>{name}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for name, *cells in rows[1:]
    )
    kind = "scroll single" if len(runs) == 1 else "scroll many" if len(runs) > WIDE else "scroll"
    return f'<div class="{kind}" tabindex=0><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _curves(curves: Curves, x_label: str) -> str:
    depths = sorted({k for points in curves.values() for k, found in points.items() if found})
    tables = "".join(_points(curves, k, x_label) for k in depths)
    explained = f"<p>Top-k-Recall: the share of the exact top k that was found, against {escape(x_label)}.</p>"
    if find_spec("matplotlib") is None:
        return f"{explained}<p>Pictures need matplotlib: pip install 'simzoo[plots]'.</p>{tables}"
    panels = "".join(
        f'<figure><img alt="Top-{k}-Recall against {escape(x_label)}" src="{_panel(curves, k, x_label)}"></figure>'
        for k in depths
    )
    return f'{explained}<div class="panels">{panels}</div><details><summary>the numbers</summary>{tables}</details>'


def _panel(curves: Curves, k: int, x_label: str) -> str:
    """One panel as a data URI: a picture of its own, so that panels wrap on a narrow screen."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

    with matplotlib.rc_context({"svg.hashsalt": "simzoo", "font.size": 11}):
        figure = Figure(figsize=(4.6, 3.9), layout="constrained")
        panel = figure.subplots()
        places = sorted({x for points in curves.values() for x, _ in points.get(k, ())})
        for number, (name, points) in enumerate(curves.items()):
            if points.get(k):
                colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
                calls, recalls = zip(*sorted(points[k]), strict=True)
                label = name.replace("$", r"\$")
                panel.plot(calls, recalls, color=colour, marker=marker, markersize=5, label=label)
        panel.set(title=f"k = {k}", xlabel=x_label, ylabel=f"Top-{k}-Recall", ylim=(-0.02, 1.04))
        if places[0] > 0 and places[-1] >= 4 * places[0]:
            panel.set_xscale("log")
            panel.xaxis.set_minor_locator(NullLocator())
            panel.xaxis.set_major_formatter(ScalarFormatter())
            apart = [x for i, x in enumerate(places) if i == 0 or x >= 1.4 * places[i - 1]]
            panel.xaxis.set_major_locator(FixedLocator(apart))
        panel.grid(alpha=0.3)
        panel.legend(fontsize=9, framealpha=0.6)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _points(curves: Curves, k: int, x_label: str) -> str:
    places = sorted({x for points in curves.values() for x, _ in points.get(k, ())})
    head = "".join(f"<th>{x:,g}</th>" for x in places)
    rows = []
    for name, points in curves.items():
        known = dict(points.get(k, ()))
        cells = "".join(f"<td>{known[x]:.4f}</td>" if x in known else "<td>-</td>" for x in places)
        rows.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    return (
        '<div class="scroll" tabindex=0><table><thead>'
        f"<tr><th>Top-{k}-Recall by {escape(x_label)}</th>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _example(example: Example) -> str:
    rows = "".join(
        f"<tr{' class=gold' if result.relevant else ''}><td>{result.place}</td><td>{result.score:.3f}</td>"
        f"<td class=text>{_item(result)}</td></tr>"
        for result in example.found
    )
    missed = "".join(
        f"<p><small>{f'place {result.place}' if result.place else f'not among the {example.depth} results'}: "
        f"{_item(result)}</small></p>"
        for result in example.missed[:SHOWN]
    )
    return (
        f"<h3>{'A hit' if example.hit else 'A miss'}: {_verdict(example)}</h3>"
        f"<p class=query>{_query(example.query)} <small>{escape(example.query.id)}</small></p>"
        '<div class="scroll" tabindex=0><table class="results">'
        "<thead><tr><th></th><th>score</th><th class=text>item</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>{missed}"
    )


def _verdict(example: Example) -> str:
    if example.hit:
        return "the first result is relevant"
    places = [result.place for result in (*example.found, *example.missed) if result.relevant and result.place]
    if places:
        return f"the first relevant result is at place {min(places)}"
    return f"none of the {example.depth} results is relevant"


def _item(result: Result) -> str:
    title = f"<b>{escape(result.title)}</b>: " if result.title else ""
    badge = " <span class=badge>relevant</span>" if result.relevant else ""
    return f"{title}{escape(_head(result.text, LENGTH))} <small>{escape(result.id)}</small>{badge}"


def _query(query: Query) -> str:
    if query.mention is None:
        return escape(_head(query.text, LENGTH))
    start, end = query.mention
    left, right = query.text[:start], query.text[end:]
    left = left if len(left) <= LENGTH // 2 else f"… {left[-LENGTH // 2 :]}"
    return f"{escape(left)}<mark>{escape(query.text[start:end])}</mark>{escape(_head(right, LENGTH // 2))}"


def _head(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[:length].rstrip()} …"


def _setting(value: Any) -> str:
    """A setting; of a part its class, and its own settings in brackets."""
    if not isinstance(value, dict):
        return str(value)
    inner = ", ".join(f"{name} {_setting(one)}" for name, one in value.items() if name != "name")
    return f"{value.get('name', '')} ({inner})" if inner else str(value.get("name", ""))
