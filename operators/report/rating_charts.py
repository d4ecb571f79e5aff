"""Violin plots of people's ratings by template and generator (Gecko, figures 14 and 15)."""

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from plumbline.operators.base.sentences import number
from plumbline.operators.report.charts import Chart, NamedChart, Span, Values, draw_rows
from plumbline.operators.report.page_tables import MAX_GENERATORS

STEPS = 96
"""Number of points at which a violin's width is computed."""
HALF_WIDTH = 0.44
"""Largest half width of a violin, as a fraction of the height of its row."""
MIN_BANDWIDTH = 1.0
"""Smallest bandwidth of a density, in steps."""


def violin_charts(ratings: pd.DataFrame) -> list[NamedChart]:
    """Draw the distribution of the images' mean ratings by generator, for each template, the best mean first.

    `ratings` has every rated image by template (schema MEAN_RATINGS). Ratings are drawn from 0 to 1 if the template's
    scale is known.
    """
    named = ratings[ratings["generator"].notna()]
    return [_violins(str(template), rows) for template, rows in named.groupby("template")]


def _violins(template: str, rows: pd.DataFrame) -> NamedChart:
    is_known = bool(rows["rating_0_1"].notna().all())
    values = rows["rating_0_1" if is_known else "rating"].astype(np.float64)
    span = (0.0, 1.0) if is_known else (float(values.min()), float(values.max()))
    found = {str(name): of_generator.to_numpy() for name, of_generator in values.groupby(rows["generator"])}
    order = sorted(found, key=lambda name: -float(found[name].mean()))
    shown = order[:MAX_GENERATORS]
    medians = [float(np.median(found[name])) for name in shown]
    bars = [bar for row, name in enumerate(shown) for bar in _violin(row, found[name], span)]
    values = "; ".join(f"{name} {number(median, 2)}" for name, median in zip(shown, medians, strict=True))
    label = f"Mean ratings of images by {template}; medians: {values}"
    return NamedChart(
        f"ratings by {template}", Chart(draw_rows(shown, bars, medians, span), label, len(order) - len(shown))
    )


def _violin(row: int, values: NDArray[np.float64], span: Span) -> Values:
    """Return the bars of one violin: a density mirrored about the middle of its row.

    The kernel is Gaussian with Silverman's bandwidth, and density beyond the ends of the span is reflected.
    """
    counts, edges = np.histogram(values, STEPS, span if span[1] > span[0] else (span[0] - 0.5, span[1] + 0.5))
    quartiles = np.subtract(*np.percentile(values, [75, 25])) / 1.34
    width = 0.9 * min(values.std(), quartiles or values.std()) * len(values) ** -0.2 / (edges[1] - edges[0])
    density = scipy.ndimage.gaussian_filter1d(counts.astype(np.float64), max(width, MIN_BANDWIDTH), mode="reflect")
    halves, xs = np.round(HALF_WIDTH * density / density.max(), 3), np.round(edges, 6).tolist()
    return [
        {"row": row + 0.5 + float(half), "top": row + 0.5 - float(half), "x": xs[at], "x2": xs[at + 1]}
        for at, half in enumerate(halves)
        if half
    ]
