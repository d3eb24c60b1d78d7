"""Top-k-Recall in a report: pictures and the numbers behind them."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from importlib.util import find_spec

Curves = Mapping[str, Mapping[int, Sequence[tuple[float, float]]]]
"""By searcher and k: (calls a query, Top-k-Recall) points."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")  # told apart by everyone
MARKERS = "os^DvPX"


def curves_html(curves: Curves, x_label: str) -> str:
    """The curves as HTML: a picture for each k and the numbers; without matplotlib the numbers alone.

    Args:
        curves: at least one.
        x_label: what the first number of a point counts.
    """
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
