"""The charts, as inline SVG: drawn by Vega-Lite (through vl-convert), coloured by the page's own CSS variables.

An SVG of text and paths shows at once, needs no script and no network, prints, and follows light and dark. Names enter
as data values only, never as expressions, and Vega escapes them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import vl_convert
from markupsafe import Markup

from operators.comparison import Board
from operators.report.tables import leading
from operators.report.words import number

WIDTH = 260
STEP = 24
MOST_GENERATORS = 30
BINS = 32
LABEL_LIMIT = 96

Values = list[dict[str, Any]]
"""Rows of a chart's data."""

_CONFIG: Mapping[str, Any] = {
    "aria": False,
    "background": None,
    "font": "system-ui, -apple-system, Segoe UI, Roboto, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)",
        "labelFontSize": 11.5,
        "gridColor": "var(--line)",
        "domain": False,
        "ticks": False,
        "labelPadding": 6,
        "title": None,
    },
    "axisY": {"labelColor": "var(--ink)", "labelFontSize": 12.5, "labelLimit": LABEL_LIMIT, "grid": False},
}


_FEW_TICKS = {"tickCount": 4, "grid": True, "format": "~g"}


class Chart(NamedTuple):
    """A drawn chart."""

    svg: Markup
    label: str
    """What it shows, for those who do not see it."""
    left_out: int
    """Generators beyond the most that one chart holds."""


def interval_chart(board: Board) -> Chart:
    """Every generator's mean with its interval, highest first; the leading group in the accent colour."""
    scored = board.scored()[:MOST_GENERATORS]
    first = leading(board)
    values = [
        {
            "generator": standing.generator,
            "mean": standing.mean,
            "low": standing.low if np.isfinite(standing.low) else standing.mean,
            "high": standing.high if np.isfinite(standing.high) else standing.mean,
            "colour": "var(--accent)" if standing.generator in first else "var(--soft)",
        }
        for standing in scored
    ]
    order = [standing.generator for standing in scored]
    scale = {"zero": False, "nice": True}
    low = {"field": "low", "type": "quantitative", "scale": scale, "axis": _FEW_TICKS}
    colour = {"field": "colour", "type": "nominal", "scale": None, "legend": None}
    rule = {"type": "rule", "strokeWidth": 5, "strokeCap": "round", "opacity": 0.45}
    dot = {"type": "point", "filled": True, "size": 75, "opacity": 1}
    spec = {
        "data": {"values": values},
        "width": WIDTH,
        "height": {"step": STEP},
        "encoding": {"y": {"field": "generator", "type": "nominal", "scale": {"domain": order}, "axis": {"offset": 2}}},
        "layer": [
            {"mark": rule, "encoding": {"x": low, "x2": {"field": "high"}, "color": colour}},
            {"mark": dot, "encoding": {"x": {"field": "mean", "type": "quantitative"}, "color": colour}},
        ],
    }
    means = [
        f"{standing.generator} {number(standing.mean)} ({number(standing.low)} to {number(standing.high)})"
        for standing in scored
    ]
    label = f"Mean {board.metric} with 95% intervals: {'; '.join(means)}"
    return Chart(_draw(spec), label, len(board.standings) - len(scored))


def distribution_chart(scores: pa.Table, board: Board) -> Chart:
    """How each generator's scores spread: a histogram a line, and their median."""
    values = _scores_by_generator(scores, board)
    low = min((float(column.min()) for column in values.values()), default=0.0)
    high = max((float(column.max()) for column in values.values()), default=1.0)
    edges = np.linspace(low, high, BINS + 1) if high > low else np.linspace(low - 0.5, high + 0.5, BINS + 1)
    bars, medians, names = Values(), Values(), Values()
    for row, (name, column) in enumerate(values.items()):
        bars += _histogram(name, row, column, edges)
        medians.append({"generator": name, "row": row, "x": float(np.median(column))})
        names.append({"generator": name, "row": row + 0.62})
    said = "; ".join(f"{name} {number(median['x'])}" for name, median in zip(values, medians, strict=True))
    label = f"Distribution of {board.metric}; medians: {said}"
    return Chart(_draw(_ridge(bars, medians, names)), label, len(board.standings) - len(values))


def _scores_by_generator(scores: pa.Table, board: Board) -> dict[str, np.ndarray]:
    """The scores by the board's metric of its first generators, in its order."""
    own = scores.filter(pc.equal(scores.column("metric"), board.metric)).select(["generator", "score"])
    frame = own.to_pandas(strings_to_categorical=True).dropna(subset=["score"])
    groups = {str(name): rows["score"].to_numpy() for name, rows in frame.groupby("generator", observed=True)}
    order = [standing.generator for standing in board.scored()[:MOST_GENERATORS]]
    return {name: groups[name] for name in order if name in groups}


def _histogram(name: str, row: int, values: np.ndarray, edges: np.ndarray) -> list[dict[str, Any]]:
    """The bars of one generator, the tallest as high as its line; empty ones left out."""
    counts, _ = np.histogram(values, bins=edges)
    heights = 0.86 * np.sqrt(counts / max(counts.max(), 1))
    return [
        {
            "generator": name,
            "row": row + 0.94,
            "top": row + 0.94 - round(float(height), 3),
            "x": round(float(edges[index]), 6),
            "x2": round(float(edges[index + 1]), 6),
        }
        for index, height in enumerate(heights)
        if height
    ]


def _ridge(bars: Values, medians: Values, names: Values) -> dict[str, Any]:
    """Bars over an axis of rows, the medians as ticks, and the names as labels beside them."""
    rows = max(len(names), 1)
    y_scale = {"domain": [0, rows], "reverse": True, "nice": False, "zero": False}
    x = {"field": "x", "type": "quantitative", "scale": {"zero": False, "nice": False}, "axis": _FEW_TICKS}
    y = {"type": "quantitative", "scale": y_scale, "axis": None}
    bar = {"type": "rect", "color": "var(--accent)", "opacity": 0.55, "strokeWidth": 0}
    tick = {"type": "rule", "color": "var(--ink)", "strokeWidth": 2}
    label = {"type": "text", "align": "right", "color": "var(--ink)", "fontSize": 12.5, "limit": LABEL_LIMIT, "x": -8}
    ends = [{"calculate": f"datum.row + {end}", "as": name} for name, end in (("bottom", 0.94), ("top", 0.1))]
    top, row = {"field": "top"}, y | {"field": "row"}
    layers = [
        {
            "data": {"values": bars},
            "mark": bar,
            "encoding": {"x": x, "x2": {"field": "x2"}, "y": row, "y2": top},
        },
        {
            "data": {"values": medians},
            "transform": ends,
            "mark": tick,
            "encoding": {"x": x, "y": y | {"field": "bottom"}, "y2": top},
        },
        {
            "data": {"values": names},
            "mark": label,
            "encoding": {"y": row, "text": {"field": "generator", "type": "nominal"}},
        },
    ]
    return {"width": WIDTH, "height": STEP * 1.25 * rows, "layer": layers}


def _draw(spec: Mapping[str, Any]) -> Markup:
    """The chart as SVG that scales with its place; Vega may load nothing."""
    full = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "config": _CONFIG,
        "padding": {"left": 14, "right": 8, "top": 4, "bottom": 4},
        **spec,
    }
    svg: str = vl_convert.vegalite_to_svg(full, allowed_base_urls=[])
    return Markup(svg.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "", 1))
