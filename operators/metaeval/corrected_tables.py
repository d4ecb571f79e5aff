"""Formats corrected means as tables: means, each judge's ranking of the generators, and contradictions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby

from plumbline.operators.base.sentences import (
    Sentence,
    ShownTable,
    format_count,
    format_names,
    format_number,
    format_quantity,
    format_signed,
)
from plumbline.operators.metaeval.corrected_means import CorrectedMean, Scale

MAX_PAIRS = 5
PREDICTION_POWERED_CONVENTION = (
    "It is estimated from people's judgements of some prompts and the metric's scores of all (prediction-powered "
    "inference), with a 95% interval over prompts, which is valid if the rated prompts were drawn at random. People "
    "alone: the rated prompts. Metric alone: all prompts, on people's scale and uncorrected. Worth: how many prompts "
    "rated without the metric's help a rated prompt is worth."
)
CAPTIONS_BY_SCALE: Mapping[Scale, str] = {
    "rating": "Corrected: the mean rating that people would give over all prompts that the metric scored. "
    + PREDICTION_POWERED_CONVENTION,
    "win_rate": "Corrected: how often the generator would win over all prompts that the metric scored, if most raters "
    "decide and a draw counts half: the mean over its opponents. " + PREDICTION_POWERED_CONVENTION,
    "passing": "Corrected: the share of a generator's images that people would pass, from the share that the metric "
    "passes and its error rates on the rated images, which are assumed to be the same for all generators (Rogan and "
    "Gladen's estimate, Lang and Reiczigel's interval). People alone: the rated images. Metric alone: all images. "
    "Rated and prompts count images.",
}

MeansByMetric = Mapping[tuple[str, str], Sequence[CorrectedMean]]
"""Corrected means by template and metric."""


def make_mean_tables(means: Sequence[CorrectedMean]) -> list[ShownTable]:
    """Return a table of means for each template, best mean first, and then the tables that rank the generators."""
    tables: dict[tuple[str, Scale], list[tuple[str, ...]]] = {}
    passing = sorted((mean for mean in means if mean.scale == "passing"), key=_make_best_first_key)
    for mean in chain(*group_single_means(means).values(), passing):
        cells = (
            mean.generator,
            mean.metric,
            mean.note or _format_interval(mean.corrected, mean.low, mean.high),
            _format_interval(mean.people, mean.people_low, mean.people_high),
            _format_interval(mean.predicted, mean.predicted_low, mean.predicted_high),
            format_count(mean.n_rated),
            format_count(mean.n_scored),
            format_number(mean.worth, 1),
        )
        tables.setdefault((mean.template, mean.scale), []).append(cells)
    columns = ("generator", "metric", "corrected", "people alone", "metric alone", "rated", "prompts", "worth")
    shown = []
    for (template, scale), rows in tables.items():
        about = "images that pass" if scale == "passing" else "generators"
        shown.append(ShownTable(f"{about} by {template}, corrected", CAPTIONS_BY_SCALE[scale], columns, rows))
    return [*shown, *make_order_tables(means)]


def group_single_means(means: Sequence[CorrectedMean]) -> MeansByMetric:
    """Return the means of single generators by template and metric, best first."""
    single = [mean for mean in means if not mean.other and mean.scale != "passing"]
    return {key: sorted(rows, key=_make_best_first_key) for key, rows in _group_means(single).items()}


def _group_means(means: Sequence[CorrectedMean]) -> MeansByMetric:
    found: dict[tuple[str, str], list[CorrectedMean]] = {}
    for mean in means:
        found.setdefault((mean.template, mean.metric), []).append(mean)
    return found


def _make_best_first_key(mean: CorrectedMean) -> tuple[bool, float]:
    unknown = math.isnan(mean.corrected)
    return unknown, -(mean.predicted if unknown else mean.corrected)


def _format_interval(value: float, low: float, high: float) -> str:
    return (
        format_number(value, 2)
        if math.isnan(low)
        else f"{format_number(value, 2)}\n[{format_number(low, 2)}, {format_number(high, 2)}]"
    )


def make_order_tables(means: Sequence[CorrectedMean]) -> list[ShownTable]:
    """Return a table for each template with the orders of the generators by people, metrics and corrected means."""
    lines: dict[str, dict[str, str]] = {}
    for (template, metric), rows in group_single_means(means).items():
        orders = lines.setdefault(template, {})
        people = format_order({mean.generator: mean.people for mean in rows})
        same = orders.get("people alone", people) == people
        orders.setdefault("people alone" if same else f"people, where {metric} scored", people)
        orders[f"{metric} alone"] = format_order({mean.generator: mean.predicted for mean in rows})
        orders[f"{metric}, corrected"] = format_order({mean.generator: mean.corrected for mean in rows})
    caption = "Best first. Neighbours may differ by chance: the tables above have the intervals."
    return [
        ShownTable(f"orders of generators by {template}", caption, ("by", "order"), list(orders.items()))
        for template, orders in lines.items()
    ]


def format_order(values: Mapping[str, float]) -> str:
    """Return the names in descending order of their values, as in `a 3.67 = b 3.67 > c 3.50`.

    Values are equal if they round to the same number. Names without a finite value are left out; if none is left, the
    text is a dash.
    """
    known = {name: value for name, value in values.items() if math.isfinite(value)}
    by_number = groupby(sorted(known, key=lambda name: -known[name]), lambda name: format_number(known[name], 2))
    return " > ".join(" = ".join(f"{name} {mean}" for name in equal) for mean, equal in by_number) or "–"


def make_contradiction_tables(means: Sequence[CorrectedMean]) -> list[ShownTable]:
    """Return a list with one table of contradictions between people and metrics; empty if there are none."""
    rows = [(sentence.lead, sentence.rest) for sentence in describe_contradictions(means)]
    return [ShownTable("people's order and the metrics'", "", ("which", "how"), rows)] if rows else []


def describe_contradictions(means: Sequence[CorrectedMean]) -> list[Sentence]:
    """Return sentences on pairs that a metric and people order differently, then on generators a metric misjudges."""
    pairs = _group_means([mean for mean in means if mean.other])
    contrary = {
        key: [pair for pair in rows if pair.better and pair.metric_better and pair.better != pair.metric_better]
        for key, rows in pairs.items()
    }
    return [*_describe_pairs(pairs, contrary), *_describe_misjudged_generators(group_single_means(means), contrary)]


def _describe_pairs(by_metric: MeansByMetric, contradicted: MeansByMetric) -> Iterator[Sentence]:
    agreeing: dict[str, list[str]] = {}
    for (template, metric), pairs in by_metric.items():
        contrary = contradicted[template, metric]
        for pair in contrary[:MAX_PAIRS]:
            swapped = pair.better == pair.other
            if pair.scale == "rating":
                value, *ends = (-end if swapped else end for end in (pair.corrected, pair.low, pair.high))
                difference = f"by {format_signed(value, 2)}"
            else:
                value, *ends = (1 - end if swapped else end for end in (pair.corrected, pair.low, pair.high))
                difference = f"on {value:.0%} of prompts"
            interval = f"interval {format_number(min(ends), 2)} to {format_number(max(ends), 2)}"
            verdicts = (
                f"people find {pair.better} better {difference} ({interval}); {metric} alone finds "
                f"{pair.metric_better} clearly better."
            )
            yield Sentence(f"{metric} contradicts people on {pair.generator} and {pair.other}:", verdicts)
        if more := contrary[MAX_PAIRS:]:
            yield Sentence(
                f"{metric} contradicts people", f"on {format_quantity(len(more), 'more pair')} by {template}."
            )
        n_decided = sum(bool(pair.better and pair.metric_better) for pair in pairs)
        if n_decided and not contrary:
            agreeing.setdefault(template, []).append(f"{metric} ({n_decided} of {format_quantity(len(pairs), 'pair')})")
    for template, metrics in agreeing.items():
        about = f"where people, by {template}, and the metric tell two generators apart: {format_names(metrics)}."
        yield Sentence("No contradiction", about)


def _describe_misjudged_generators(by_metric: MeansByMetric, contradicted: MeansByMetric) -> Iterator[Sentence]:
    """Yield sentences on generators that a metric overrates or underrates.

    The metric's interval for such a generator does not overlap the corrected interval. Only generators of contradicted
    pairs are described, because a weak metric puts every generator near the middle.
    """
    for (template, metric), every in by_metric.items():
        generators = {
            name for pair in contradicted.get((template, metric), ()) for name in (pair.generator, pair.other)
        }
        means = [mean for mean in every if mean.generator in generators]
        for verb, misjudged in (
            ("overrates", [mean for mean in means if mean.predicted_low > mean.high]),
            ("underrates", [mean for mean in means if mean.predicted_high < mean.low]),
        ):
            if misjudged:
                values = [
                    f"{mean.generator} ({format_number(mean.predicted, 2)} for {format_number(mean.corrected, 2)})"
                    for mean in misjudged
                ]
                yield Sentence(f"{metric} alone {verb}", f"{format_names(values)}, by {template}.")
