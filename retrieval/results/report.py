"""report.html: one self-contained page with the tables, the curves and a few ranked examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from simzoo.retrieval.results.curves import Curves, curves_html
from simzoo.retrieval.results.examples import Example
from simzoo.retrieval.results.run_files import write_text

WIDE = 3  # runs that fit beside each other; more of them stand below each other
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
        body += ["<h2>Recall</h2>", curves_html(curves, x_label)]
    if examples:
        body += ["<h2>Examples</h2>", *(example.html() for example in examples)]
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


def _setting(value: Any) -> str:
    """A setting; of a part its class, and its own settings in brackets."""
    if not isinstance(value, dict):
        return str(value)
    inner = ", ".join(f"{name} {_setting(one)}" for name, one in value.items() if name != "name")
    return f"{value.get('name', '')} ({inner})" if inner else str(value.get("name", ""))
