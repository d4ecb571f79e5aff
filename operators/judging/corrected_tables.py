"""Corrected means as people read them: tables, who is before whom by each judge, and where these contradict."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from plumbline.operators.base.sentences import Sentence, count, names, number, plural, signed
from plumbline.operators.diagnosis.diagnosis import ShownTable
from plumbline.operators.judging.corrected_means import CorrectedMean, Scale

MOST_PAIRS = 5
TITLES: Mapping[Scale, str] = {
    "rating": "generators by {}, corrected",
    "win_rate": "generators by {}, corrected",
    "passing": "images that pass by {}, corrected",
}
PREDICTION_POWERED = (
    "It is estimated from what people said of some prompts and what the metric says of all (prediction-powered "
    "inference), with a 95% interval over prompts, which holds where the rated prompts were drawn by chance. People "
    "alone: the rated prompts. Metric alone: all prompts, on people's scale and uncorrected. Worth: to how many "
    "prompts each rated one amounts beside the metric."
)
CAPTIONS: Mapping[Scale, str] = {
    "rating": "Corrected: the mean rating that people would give over all prompts that the metric scored. "
    + PREDICTION_POWERED,
    "win_rate": "Corrected: how often the generator would win over all prompts that the metric scored, by most raters "
    "and a draw counting half, against every other one that it was compared with alike. " + PREDICTION_POWERED,
    "passing": "Corrected: the share of a generator's images that people would pass, from the share that the metric "
    "passes and how often it errs on the rated images of all generators, which it is taken to do alike for each (Rogan "
    "and Gladen's estimate, Lang and Reiczigel's interval). People alone: the rated images. Metric alone: all images. "
    "Rated and prompts count images.",
}

Judged = Mapping[tuple[str, str], Sequence[CorrectedMean]]
"""By template and metric."""


def shown_means(means: Sequence[CorrectedMean]) -> list[ShownTable]:
    """Every generator's mean, and then who is before whom."""
    return [*means_tables(means), *order_tables(means)]


def means_tables(means: Sequence[CorrectedMean]) -> list[ShownTable]:
    """Of each template every generator's mean by each metric, the best first."""
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
    """The means of single generators, the best first."""
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
    """Of whom nothing is told, last, by the metric alone."""
    unknown = math.isnan(mean.corrected)
    return unknown, -(mean.predicted if unknown else mean.corrected)


def _cells(mean: CorrectedMean) -> tuple[str, ...]:
    values = (
        _with_interval(mean.people, mean.people_low, mean.people_high),
        _with_interval(mean.predicted, mean.predicted_low, mean.predicted_high),
    )
    corrected = mean.note or _with_interval(mean.corrected, mean.low, mean.high)
    numbers = (count(mean.n_rated), count(mean.n_scored), number(mean.worth, 1))
    return mean.generator, mean.metric, corrected, *values, *numbers


def _with_interval(value: float, low: float, high: float) -> str:
    return number(value, 2) if math.isnan(low) else f"{number(value, 2)}\n[{number(low, 2)}, {number(high, 2)}]"


def order_tables(means: Sequence[CorrectedMean]) -> list[ShownTable]:
    """Of each template who is before whom, by people alone, and by each metric alone and corrected."""
    lines: dict[str, dict[str, str]] = {}
    for (template, metric), rows in single_means(means).items():
        said = lines.setdefault(template, {})
        people = order_text({mean.generator: mean.people for mean in rows})
        said.setdefault(
            "people alone" if said.get("people alone", people) == people else f"people, where {metric} scored", people
        )
        said[f"{metric} alone"] = order_text({mean.generator: mean.predicted for mean in rows})
        said[f"{metric}, corrected"] = order_text({mean.generator: mean.corrected for mean in rows})
    caption = "The best first. Neighbours may be apart by chance: the tables above have the intervals."
    return [
        ShownTable(f"orders of generators by {template}", caption, ("by", "order"), list(said.items()))
        for template, said in lines.items()
    ]


def order_text(values: Mapping[str, float]) -> str:
    """Return `a 3.67 = b 3.67 > c 3.50`, the best first; means that are shown as the same number are equal."""
    known = {name: value for name, value in values.items() if math.isfinite(value)}
    by_number = groupby(sorted(known, key=lambda name: -known[name]), lambda name: number(known[name], 2))
    return " > ".join(" = ".join(f"{name} {mean}" for name in alike) for mean, alike in by_number) or "–"


def contradictions_table(means: Sequence[CorrectedMean]) -> list[ShownTable]:
    """They as a table, where there are any."""
    rows = [(sentence.lead, sentence.rest) for sentence in contradictions(means)]
    return [ShownTable("people's order and the metrics'", "", ("which", "how"), rows)] if rows else []


def contradictions(means: Sequence[CorrectedMean]) -> list[Sentence]:
    """Where a metric's order of two generators is clearly not people's, and whom it puts too high or too low."""
    pairs = _pairs(means)
    return [*_reversed(pairs), *_misjudged(single_means(means), pairs)]


def _reversed(judged: Judged) -> Iterator[Sentence]:
    agreeing: dict[str, list[str]] = {}
    for (template, metric), pairs in judged.items():
        told = [pair for pair in pairs if pair.better and pair.metric_better]
        contrary = _contrary(pairs)
        for pair in contrary[:MOST_PAIRS]:
            others = f"{metric} alone finds {pair.metric_better} clearly better."
            yield Sentence(
                f"{metric} contradicts people on {pair.generator} and {pair.other}:", f"{_found(pair)}; {others}"
            )
        if more := contrary[MOST_PAIRS:]:
            yield Sentence(f"{metric} contradicts people", f"on {plural(len(more), 'more pair')} by {template}.")
        if told and not contrary:
            agreeing.setdefault(template, []).append(f"{metric} ({len(told)} of {plural(len(pairs), 'pair')})")
    for template, said in agreeing.items():
        yield Sentence(
            "No contradiction", f"where people, by {template}, and the metric tell two generators apart: {names(said)}."
        )


def _found(pair: CorrectedMean) -> str:
    """Whom people find better, and by how much."""
    turned = pair.better == pair.other
    if pair.scale == "rating":
        value, *ends = (-one if turned else one for one in (pair.corrected, pair.low, pair.high))
        said = "by " + signed(value, 2)
    else:
        value, *ends = (1 - one if turned else one for one in (pair.corrected, pair.low, pair.high))
        said = f"on {value:.0%} of prompts"
    low, high = sorted(ends)
    return f"people find {pair.better} better {said} (interval {number(low, 2)} to {number(high, 2)})"


def _contrary(pairs: Sequence[CorrectedMean]) -> list[CorrectedMean]:
    """The pairs of which people find one clearly better and the metric the other."""
    return [pair for pair in pairs if pair.better and pair.metric_better and pair.better != pair.metric_better]


def _misjudged(judged: Judged, pairs: Judged) -> Iterator[Sentence]:
    """Generators of contradicted pairs that a metric alone puts elsewhere than people do: their intervals do not meet.

    Of others that says little: a metric that follows people weakly puts every generator near the middle.
    """
    for (template, metric), every in judged.items():
        contrary = {
            name for pair in _contrary(pairs.get((template, metric), ())) for name in (pair.generator, pair.other)
        }
        means = [mean for mean in every if mean.generator in contrary]
        for verb, apart in (
            ("puts too high", [mean for mean in means if mean.predicted_low > mean.high]),
            ("puts too low", [mean for mean in means if mean.predicted_high < mean.low]),
        ):
            if apart:
                said = [
                    f"{mean.generator} ({number(mean.predicted, 2)} for {number(mean.corrected, 2)})" for mean in apart
                ]
                yield Sentence(f"{metric} alone {verb}", f"{names(said)}, by {template}.")
