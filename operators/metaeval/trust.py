"""Decides how far to trust a metric at each skill, from the interval of its agreement with people."""

from collections.abc import Callable, Mapping, Sequence

from plumbline.operators.base.sentences import (
    NO_VALUE_MARK,
    Sentence,
    ShownTable,
    format_count,
    format_names,
    format_number,
)
from plumbline.operators.metaeval.judgement import PEOPLE, Judgement

MIN_RATED_IMAGES = 20  # minimum number of images (or pairs) for a verdict
MIN_GOOD_AGREEMENT, MIN_FAIR_AGREEMENT = 0.5, 0.3  # minimum lower end of the interval for agreeing well or fairly
NOT_ENOUGH_VERDICT = "not enough ratings"
VERDICTS = ("agrees well", "agrees fairly", "agrees weakly", "hardly agrees", "contradicts people", NOT_ENOUGH_VERDICT)
CORRELATION_CONVERTERS: Mapping[str, Callable[[float], float]] = {
    "spearman": lambda value: value,
    "binary_accuracy": lambda value: 2 * value - 1,
    "auroc": lambda value: 2 * value - 1,
    "pearson": lambda value: value,
}
"""Functions that rescale each statistic so that 0 is chance and 1 is people's own order; preferred statistics come
first.
"""
TRUST_CAPTION = (
    "By the 95% interval, over prompts, of the agreement with people: well where even its lower end is "
    f"{MIN_GOOD_AGREEMENT} or more, fairly from {MIN_FAIR_AGREEMENT}, weakly from 0; hardly where it does not exclude "
    f"chance, but does exclude {MIN_GOOD_AGREEMENT}. Not enough ratings: fewer than {MIN_RATED_IMAGES} images or "
    "pairs, or an interval that excludes neither. A share of right choices counts as twice its distance from a half. "
    "n: images, or pairs of images."
)


def allows_verdict(judged: Judgement) -> bool:
    """Return True if a verdict is possible: there are enough ratings, and the interval is narrow enough."""
    low, high = map(CORRELATION_CONVERTERS.get(judged.statistic, float), judged.interval)
    return judged.n >= MIN_RATED_IMAGES and low <= high and not (low <= 0 and high >= MIN_GOOD_AGREEMENT)


def judge_trust(judged: Judgement) -> str:
    """Return the verdict on how far to trust a metric, which is one of VERDICTS."""
    if not allows_verdict(judged):
        return NOT_ENOUGH_VERDICT
    low, high = map(CORRELATION_CONVERTERS[judged.statistic], judged.interval)
    if low <= 0:
        return "contradicts people" if high < 0 else "hardly agrees"
    return (
        "agrees well"
        if low >= MIN_GOOD_AGREEMENT
        else "agrees fairly"
        if low >= MIN_FAIR_AGREEMENT
        else "agrees weakly"
    )


def _select_first_statistic(judgements: Sequence[Judgement]) -> dict[str, list[Judgement]]:
    """For each template, return judgements of metrics by the first available statistic in CORRELATION_CONVERTERS."""
    found: dict[str, list[Judgement]] = {}
    metrics = [judged for judged in judgements if judged.metric != PEOPLE]
    for template in dict.fromkeys(judged.template for judged in metrics):
        own = [judged for judged in metrics if judged.template == template]
        statistics = {judged.statistic for judged in own}
        first = next((statistic for statistic in CORRELATION_CONVERTERS if statistic in statistics), None)
        if first is not None:
            found[template] = [judged for judged in own if judged.statistic == first]
    return found


def describe_trust(judgements: Sequence[Judgement]) -> list[Sentence]:
    """Return a sentence for each template and metric that lists the skills by verdict."""
    sentences = []
    for template, own in _select_first_statistic(judgements).items():
        for metric in dict.fromkeys(judged.metric for judged in own):
            groups: dict[str, list[str]] = {words: [] for words in VERDICTS}
            for judged in own:
                if judged.metric == metric:
                    groups[judge_trust(judged)].append(judged.group)
            parts = [f"{words}: {format_names(subsets)}" for words, subsets in groups.items() if subsets]
            sentences.append(Sentence(f"{metric} beside people's {template or 'knowledge'}", f"{'; '.join(parts)}."))
    return sentences


def make_trust_tables(judgements: Sequence[Judgement]) -> list[ShownTable]:
    """Return a table of verdicts for each template, with skills down and metrics across."""
    tables = []
    for template, own in _select_first_statistic(judgements).items():
        cells = {}
        for judged in own:
            low, high = judged.interval
            interval = f" [{format_number(low, 2)}, {format_number(high, 2)}]" if low <= high else ""
            found = f"{judge_trust(judged)}\n{format_number(judged.value, 2)}{interval}, n {format_count(judged.n)}"
            cells[judged.group, judged.metric] = found
        subsets, metrics = (list(dict.fromkeys(each)) for each in zip(*cells, strict=True))
        lines = [(subset, *(cells.get((subset, metric), NO_VALUE_MARK) for metric in metrics)) for subset in subsets]
        title = (
            f"how far to trust each metric, by {template or 'the ground truth'} ({own[0].statistic.replace('_', ' ')})"
        )
        tables.append(ShownTable(title, TRUST_CAPTION, ("", *metrics), lines))
    return tables
