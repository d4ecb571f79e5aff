"""The charts, as inline SVG: drawn by Vega-Lite (through vl-convert), coloured by the page's own CSS variables.

An SVG of text and paths shows at once, needs no script and no network, prints, and follows light and dark. Names enter
as data values only, never as expressions, and Vega escapes them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
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


class Chart(NamedTuple):
    """A drawn chart."""

    metric: str
    svg: Markup
    label: str
    """What it shows, for those who do not see it."""
    left_out: int
    """Generators beyond the most that one chart holds."""


def interval_chart(metric: str, board: Board) -> Chart:
    """Every generator's mean with its interval, highest first; the leading group in the accent colour."""
    scored = board.scored()[:MOST_GENERATORS]
    first = leading(board)
    values = [
        {
            "generator": one.generator,
            "mean": one.mean,
            "low": _finite(one.low, one.mean),
            "high": _finite(one.high, one.mean),
            "colour": "var(--accent)" if one.generator in first else "var(--soft)",
        }
        for one in scored
    ]
    spec = _frame(values, [one.generator for one in scored]) | {"layer": [_rule(), _dot()]}
    parts = [f"{one.generator} {number(one.mean)} ({number(one.low)} to {number(one.high)})" for one in scored]
    return Chart(
        metric, _draw(spec), f"Mean {metric} with 95% intervals: {'; '.join(parts)}", len(board.standings) - len(scored)
    )


def _finite(value: float, instead: float) -> float:
    return value if np.isfinite(value) else instead


def _rule() -> dict[str, Any]:
    x = {"field": "low", "type": "quantitative", "scale": {"zero": False, "nice": True}, "axis": _few_ticks()}
    return {
        "mark": {"type": "rule", "strokeWidth": 5, "strokeCap": "round", "opacity": 0.45},
        "encoding": {"x": x, "x2": {"field": "high"}, "color": _own_colour()},
    }


def _dot() -> dict[str, Any]:
    return {
        "mark": {"type": "point", "filled": True, "size": 75, "opacity": 1},
        "encoding": {"x": {"field": "mean", "type": "quantitative"}, "color": _own_colour()},
    }


def _few_ticks() -> dict[str, Any]:
    return {"tickCount": 4, "grid": True, "format": "~g"}


def _own_colour() -> dict[str, Any]:
    return {"field": "colour", "type": "nominal", "scale": None, "legend": None}


def _frame(values: Sequence[Mapping[str, Any]], order: Sequence[str]) -> dict[str, Any]:
    """What the charts share: one line per generator, in the order given."""
    y = {"field": "generator", "type": "nominal", "scale": {"domain": list(order)}, "axis": {"offset": 2}}
    return {"data": {"values": list(values)}, "width": WIDTH, "height": {"step": STEP}, "encoding": {"y": y}}


def distribution_chart(metric: str, scores: pa.Table, board: Board) -> Chart:
    """How each generator's scores spread: a histogram a line, and their median."""
    scored = board.scored()[:MOST_GENERATORS]
    found = _scores_by_generator(metric, scores)
    kept = {one.generator: found[one.generator] for one in scored if one.generator in found}
    low, high = _range(list(kept.values()))
    edges = np.linspace(low, high, BINS + 1)
    bars = [bar for row, (name, values) in enumerate(kept.items()) for bar in _histogram(name, row, values, edges)]
    middles = {name: float(np.median(values)) for name, values in kept.items()}
    medians = [{"generator": name, "row": row, "x": middle} for row, (name, middle) in enumerate(middles.items())]
    spec = _ridge(bars, medians, list(kept))
    parts = [f"{name} {number(middle)}" for name, middle in middles.items()]
    return Chart(
        metric, _draw(spec), f"Distribution of {metric}; medians: {'; '.join(parts)}", len(board.standings) - len(kept)
    )


def _scores_by_generator(metric: str, scores: pa.Table) -> dict[str, np.ndarray]:
    frame = scores.select(["generator", "metric", "score"]).to_pandas(strings_to_categorical=True)
    mine = frame[frame["metric"] == metric].dropna(subset=["score"])
    groups: pd.api.typing.DataFrameGroupBy = mine.groupby("generator", observed=True)
    return {str(name): group["score"].to_numpy() for name, group in groups}


def _range(columns: Sequence[np.ndarray]) -> tuple[float, float]:
    """The range of all scores, which may be a single one."""
    if not columns:
        return 0.0, 1.0
    low, high = min(float(one.min()) for one in columns), max(float(one.max()) for one in columns)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


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


def _ridge(bars: Sequence[Mapping[str, Any]], medians: Sequence[Mapping[str, Any]], order: Sequence[str]) -> Any:
    """Bars over an axis of rows, the medians as ticks, and the names as labels beside them."""
    height = STEP * 1.25 * max(len(order), 1)
    y_scale = {"domain": [0, max(len(order), 1)], "reverse": True, "nice": False, "zero": False}
    names = [{"generator": name, "row": row + 0.62} for row, name in enumerate(order)]
    x = {"field": "x", "type": "quantitative", "scale": {"zero": False, "nice": False}, "axis": _few_ticks()}
    y = {"type": "quantitative", "scale": y_scale, "axis": None}
    bar = {"type": "rect", "color": "var(--accent)", "opacity": 0.55, "strokeWidth": 0}
    tick = {"type": "rule", "color": "var(--ink)", "strokeWidth": 2}
    label = {"type": "text", "align": "right", "color": "var(--ink)", "fontSize": 12.5, "limit": LABEL_LIMIT, "x": -8}
    layers = [
        {"data": {"values": list(bars)}, "mark": bar,
         "encoding": {"x": x, "x2": {"field": "x2"}, "y": y | {"field": "row"}, "y2": {"field": "top"}}},
        {"data": {"values": list(medians)}, "transform": [{"calculate": "datum.row + 0.94", "as": "bottom"},
                                                          {"calculate": "datum.row + 0.1", "as": "top"}],
         "mark": tick,
         "encoding": {"x": x, "y": y | {"field": "bottom"}, "y2": {"field": "top"}}},
        {"data": {"values": names}, "mark": label,
         "encoding": {"y": y | {"field": "row"}, "text": {"field": "generator", "type": "nominal"}}},
    ]  # fmt: skip
    return {"width": WIDTH, "height": height, "layer": layers}


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
