"""Corrected means as tables of text: means, orders of generators by each judge, and contradictions."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from plumbline.operators.base.sentences import Sentence, ShownTable, count, names, number, plural, signed
from plumbline.operators.metaeval.corrected_means import CorrectedMean, Scale

MAX_PAIRS = 5
TITLES: Mapping[Scale, str] = {
    "rating": "generators by {}, corrected",
    "win_rate": "generators by {}, corrected",
    "passing": "images that pass by {}, corrected",
}
PREDICTION_POWERED = (
    "It is estimated from people's judgements of some prompts and the metric's scores of all (prediction-powered "
    "inference), with a 95% interval over prompts, which is valid if the rated prompts were drawn at random. People "
    "alone: the rated prompts. Metric alone: all prompts, on people's scale and uncorrected. Worth: how many prompts "
    "rated without the metric's help a rated prompt is worth."
)
CAPTIONS: Mapping[Scale, str] = {
    "rating": "Corrected: the mean rating that people would give over all prompts that the metric scored. "
    + PREDICTION_POWERED,
    "win_rate": "Corrected: how often the generator would win over all prompts that the metric scored, if most raters "
    "decide and a draw counts half: the mean over its opponents. " + PREDICTION_POWERED,
    "passing": "Corrected: the share of a generator's images that people would pass, from the share that the metric "
    "passes and its error rates on the rated images, which are assumed to be the same for all generators (Rogan and "
    "Gladen's estimate, Lang and Reiczigel's interval). People alone: the rated images. Metric alone: all images. "
    "Rated and prompts count images.",
}

Judged = Mapping[tuple[str, str], Sequence[CorrectedMean]]
"""Corrected means by template and metric."""


def shown_means(means: Sequence[CorrectedMean]) -> list[ShownTable]:
    """Return tables of every generator's mean, and then of the orders of generators."""
    return [*means_tables(means), *order_tables(means)]


def means_tables(means: Sequence[CorrectedMean]) -> list[ShownTable]:
    """Return a table for each template: every generator's mean by each metric, best first."""
    tables: dict[tuple[str, Scale], list[tuple[str, ...]]] = {}
    passing = [mean for mean in means if mean.scale == "passing"]
    for rows in (*single_means(means).values(), *([mean] for mean in sorted(passing, key=_best_first))):
        tables.setdefault((rows[0].template, rows[0].scale), []).extend(map(_cells, rows))
    columns = ("generator", "metric", "corrected", "people alone", "metric alone", "rated", "prompts", "worth")
    return [
        ShownTable(TITLES[scale].format(template), CAPTIONS[scale], columns, cells)
        for (template, scale), cells in tables.items()
    ]


def single_means(means: Sequence[CorrectedMean]) -> Judged:
    """Return the means of single generators, best first."""
    found: dict[tuple[str, str], list[CorrectedMean]] = {}
    for mean in means:
        if not mean.other and mean.scale != "passing":
            found.setdefault((mean.template, mean.metric), []).append(mean)
    return {judged: sorted(rows, key=_best_first) for judged, rows in found.items()}


def _pairs(means: Sequence[CorrectedMean]) -> Judged:
    found: dict[tuple[str, str], list[CorrectedMean]] = {}
    for mean in means:
        if mean.other:
            found.setdefault((mean.template, mean.metric), []).append(mean)
    return found


def _best_first(mean: CorrectedMean) -> tuple[bool, float]:
    """Sort key; generators without a corrected mean come last, ordered by the metric alone."""
    unknown = math.isnan(mean.corrected)
    return unknown, -(mean.predicted if unknown else mean.corrected)


def _cells(mean: CorrectedMean) -> tuple[str, ...]:
    return (
        mean.generator,
        mean.metric,
        mean.note or _format_interval(mean.corrected, mean.low, mean.high),
        _format_interval(mean.people, mean.people_low, mean.people_high),
        _format_interval(mean.predicted, mean.predicted_low, mean.predicted_high),
        count(mean.n_rated),
        count(mean.n_scored),
        number(mean.worth, 1),
    )


def _format_interval(value: float, low: float, high: float) -> str:
    return number(value, 2) if math.isnan(low) else f"{number(value, 2)}\n[{number(low, 2)}, {number(high, 2)}]"


def order_tables(means: Sequence[CorrectedMean]) -> list[ShownTable]:
    """Return a table for each template: orders by people alone, and by each metric alone and corrected."""
    lines: dict[str, dict[str, str]] = {}
    for (template, metric), rows in single_means(means).items():
        orders = lines.setdefault(template, {})
        people = order_text({mean.generator: mean.people for mean in rows})
        same = orders.get("people alone", people) == people
        orders.setdefault("people alone" if same else f"people, where {metric} scored", people)
        orders[f"{metric} alone"] = order_text({mean.generator: mean.predicted for mean in rows})
        orders[f"{metric}, corrected"] = order_text({mean.generator: mean.corrected for mean in rows})
    caption = "Best first. Neighbours may differ by chance: the tables above have the intervals."
    return [
        ShownTable(f"orders of generators by {template}", caption, ("by", "order"), list(orders.items()))
        for template, orders in lines.items()
    ]


def order_text(values: Mapping[str, float]) -> str:
    """Return `a 3.67 = b 3.67 > c 3.50`, the best first; means that are shown as the same number are equal."""
    known = {name: value for name, value in values.items() if math.isfinite(value)}
    by_number = groupby(sorted(known, key=lambda name: -known[name]), lambda name: number(known[name], 2))
    return " > ".join(" = ".join(f"{name} {mean}" for name in equal) for mean, equal in by_number) or "–"


def contradictions_table(means: Sequence[CorrectedMean]) -> list[ShownTable]:
    """Return the contradictions as a table, if there are any."""
    rows = [(sentence.lead, sentence.rest) for sentence in contradictions(means)]
    return [ShownTable("people's order and the metrics'", "", ("which", "how"), rows)] if rows else []


def contradictions(means: Sequence[CorrectedMean]) -> list[Sentence]:
    """Describe the pairs that a metric orders clearly against people, and the generators that it misjudges."""
    pairs = _pairs(means)
    return [*_describe_pairs(pairs), *_describe_misjudged(single_means(means), pairs)]


def _describe_pairs(judged: Judged) -> Iterator[Sentence]:
    agreeing: dict[str, list[str]] = {}
    for (template, metric), pairs in judged.items():
        decided = [pair for pair in pairs if pair.better and pair.metric_better]
        contrary = _contradicted(pairs)
        for pair in contrary[:MAX_PAIRS]:
            verdicts = f"{_describe_people(pair)}; {metric} alone finds {pair.metric_better} clearly better."
            yield Sentence(f"{metric} contradicts people on {pair.generator} and {pair.other}:", verdicts)
        if more := contrary[MAX_PAIRS:]:
            yield Sentence(f"{metric} contradicts people", f"on {plural(len(more), 'more pair')} by {template}.")
        if decided and not contrary:
            agreeing.setdefault(template, []).append(f"{metric} ({len(decided)} of {plural(len(pairs), 'pair')})")
    for template, metrics in agreeing.items():
        about = f"where people, by {template}, and the metric tell two generators apart: {names(metrics)}."
        yield Sentence("No contradiction", about)


def _describe_people(pair: CorrectedMean) -> str:
    """Name the generator that people find better, and the difference."""
    swapped = pair.better == pair.other
    if pair.scale == "rating":
        value, *ends = (-end if swapped else end for end in (pair.corrected, pair.low, pair.high))
        difference = "by " + signed(value, 2)
    else:
        value, *ends = (1 - end if swapped else end for end in (pair.corrected, pair.low, pair.high))
        difference = f"on {value:.0%} of prompts"
    low, high = sorted(ends)
    return f"people find {pair.better} better {difference} (interval {number(low, 2)} to {number(high, 2)})"


def _contradicted(pairs: Sequence[CorrectedMean]) -> list[CorrectedMean]:
    """Return the pairs that people and the metric both decide, in opposite ways."""
    return [pair for pair in pairs if pair.better and pair.metric_better and pair.better != pair.metric_better]


def _describe_misjudged(judged: Judged, pairs: Judged) -> Iterator[Sentence]:
    """Describe generators of contradicted pairs whose interval by the metric alone does not meet the corrected one.

    Other generators are not described: a weak metric puts every generator near the middle.
    """
    for (template, metric), every in judged.items():
        contrary = {
            name for pair in _contradicted(pairs.get((template, metric), ())) for name in (pair.generator, pair.other)
        }
        means = [mean for mean in every if mean.generator in contrary]
        for verb, misjudged in (
            ("puts too high", [mean for mean in means if mean.predicted_low > mean.high]),
            ("puts too low", [mean for mean in means if mean.predicted_high < mean.low]),
        ):
            if misjudged:
                values = [
                    f"{mean.generator} ({number(mean.predicted, 2)} for {number(mean.corrected, 2)})"
                    for mean in misjudged
                ]
                yield Sentence(f"{metric} alone {verb}", f"{names(values)}, by {template}.")
