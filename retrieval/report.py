"""report.html: one self-contained page with the tables, the curves and a few ranked examples."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Self

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from datamodules.records import Collection
from retrieval.run_files import write_text
from retrieval.scorer import Rows
from retrieval.searcher import Ranking

Curves = Mapping[str, Mapping[int, Sequence[tuple[float, float]]]]
"""By searcher and k: (calls a query, Top-k-Recall) points."""

SHOWN = 5  # results of an example

STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; --mark: #ffd54a88; --gold: #2e7d3233; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th:first-child, td:first-child, .text { text-align: left; } td.text { min-width: 14rem; }
small { opacity: .75; white-space: nowrap; } mark { background: var(--mark); color: inherit; border-radius: .2rem; }
tr.gold td { background: var(--gold); } figure { margin: 0; background: #fff; border-radius: .5rem; }
figure svg { width: 100%; height: auto; } code { overflow-wrap: anywhere; font-size: .85rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; }
dd { margin: 0; overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class RunReport:
    """A run under its name, with the contents of its metrics.json."""

    name: str
    described: Mapping[str, Any]


@dataclass(frozen=True)
class Example:
    """A query and the head of its ranking.

    Attributes:
        query: HTML of the query, its mention marked.
        rows: (id, title, text, score, whether it is relevant) of the first results.
        gold: (title, text) of the relevant items.
    """

    query: str
    rows: Sequence[tuple[str, str, str, float, bool]]
    gold: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, collection: Collection, query_rows: Rows, ranking: Ranking, place: int) -> Self:
        """The example at a place of the ranking."""
        row = int(query_rows[place])
        query, relevant = collection.queries[row], collection.relevant(row)
        text = escape(query.text)
        if query.mention is not None:
            start, end = query.mention
            parts = query.text[:start], query.text[start:end], query.text[end:]
            text = "{}<mark>{}</mark>{}".format(*map(escape, parts))
        found = zip(ranking.items[place, :SHOWN].tolist(), ranking.scores[place, :SHOWN].tolist(), strict=True)
        items = [(collection.items[i], score, i in relevant) for i, score in found]
        return cls(
            text,
            [(item.id, item.title, item.text, score, gold) for item, score, gold in items],
            [(collection.items[i].title, collection.items[i].text) for i in relevant],
        )


def write_report(path: Path, runs: Sequence[RunReport], curves: Curves, examples: Sequence[Example]) -> None:
    """Writes the page; it asks the network for nothing."""
    first = runs[0].described
    title = f"{first['data']['name']}: {', '.join(run.name for run in runs)}"
    body = [
        f"<h1>{escape(title)}</h1>",
        _facts(runs),
        "<h2>Quality</h2>",
        "<p>Means over queries with 95 % bootstrap intervals.</p>",
        _table(runs, "metrics", "{:.4f}"),
        "<h2>Cost</h2>",
        "<p>Scored pairs (calls) and milliseconds a query.</p>",
        _table(runs, "cost", "{:,.1f}"),
        "<h3>Indexing</h3>",
        _seconds(runs),
    ]
    if curves:
        body += ["<h2>Recall against calls</h2>", f"<figure>{_figure(curves)}</figure>"]
    if examples:
        body += ["<h2>Examples</h2>", "<p>Relevant items have a green ground.</p>", *map(_example, examples)]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )
    write_text(path, page)


def _facts(runs: Sequence[RunReport]) -> str:
    first = runs[0].described
    facts = {
        "data": f"{first['data']['name']}, {first['queries']} queries, fingerprint {first['data']['fingerprint'][:12]}",
        "code": str(first["commit"]),
        "versions": ", ".join(f"{name} {number}" for name, number in first["versions"].items()),
    }
    rows = [f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items()]
    for run in runs:
        about = run.described
        searcher = ", ".join(f"{name} {value}" for name, value in about["searcher"].items())
        rows.append(
            f"<dt>{escape(run.name)}</dt><dd>{escape(about['checkpoint']['name'] or 'no similarity')}; "
            f"{escape(searcher)}<br><code>{escape(about['command'])}</code></dd>"
        )
    return f"<dl>{''.join(rows)}</dl>"


def _table(runs: Sequence[RunReport], part: str, form: str) -> str:
    names = list(dict.fromkeys(name for run in runs for name in run.described[part]))
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = []
    for run in runs:
        cells = []
        for name in names:
            value = run.described[part].get(name)
            if value is None:
                cells.append("<td>-</td>")
                continue
            mean, low, high = (form.format(value[key]) for key in ("mean", "low", "high"))
            cells.append(f"<td>{mean}<br><small>{low} to {high}</small></td>")
        rows.append(f"<tr><td>{escape(run.name)}</td>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table><tr><th>run</th>{head}</tr>{"".join(rows)}</table></div>'


def _seconds(runs: Sequence[RunReport]) -> str:
    rows = []
    for run in runs:
        about = run.described
        steps = [f"{escape(name)}: {seconds:.2f} s" for name, seconds in about["index_seconds"].items()]
        rows.append(
            f"<tr><td>{escape(run.name)}</td><td class=text>{'<br>'.join(steps) or '-'}</td>"
            f"<td>{about['index_calls']:,}</td></tr>"
        )
    head = "<tr><th>run</th><th class=text>seconds by step</th><th>calls</th></tr>"
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _figure(curves: Curves) -> str:
    depths = sorted({k for points in curves.values() for k in points})
    with matplotlib.rc_context({"svg.hashsalt": "simzoo", "font.size": 11}):
        figure = Figure(figsize=(4.2 * len(depths), 3.8), layout="constrained")
        panels = figure.subplots(1, len(depths), squeeze=False)[0]
        for panel, k in zip(panels, depths, strict=True):
            for name, points in curves.items():
                if points.get(k):
                    panel.plot(*zip(*points[k], strict=True), marker="o", markersize=4, label=name)
            panel.set(title=f"k = {k}", xlabel="calls a query", ylim=(0, 1.02), xscale="log")
            panel.xaxis.set_major_formatter(ScalarFormatter())
            panel.grid(alpha=0.3)
        panels[0].set_ylabel("Top-k-Recall")
        panels[-1].legend(fontsize=9)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :]


def _example(example: Example) -> str:
    rows = "".join(
        f"<tr{' class=gold' if gold else ''}><td>{place}</td><td>{score:.3f}</td>"
        f"<td class=text>{f'<b>{escape(title)}</b>: ' if title else ''}{escape(text)}</td></tr>"
        for place, (_, title, text, score, gold) in enumerate(example.rows, start=1)
    )
    missed = ""
    if not any(row[-1] for row in example.rows):
        wanted = "; ".join(escape(f"{title}: {text}" if title else text) for title, text in example.gold)
        missed = f"<p><small>relevant, further down or not found: {wanted}</small></p>"
    return (
        f"<h3>{example.query}</h3>"
        '<div class="scroll"><table><tr><th></th><th>score</th><th class=text>item</th></tr>'
        f"{rows}</table></div>{missed}"
    )
