"""How far to trust a metric, in words: what its agreement with people, by its interval, is good for at each skill."""

from collections.abc import Callable, Mapping, Sequence

from plumbline.operators.base.sentences import Sentence, count, names, number
from plumbline.operators.diagnosis.diagnosis import ShownTable
from plumbline.operators.judging.judgement import PEOPLE, Judgement

FEWEST = 20
"""Images, or pairs of images, below which nothing is said."""
WELL, FAIRLY = 0.5, 0.3
"""What the lower end of an interval reaches at least."""
NOT_ENOUGH = "not enough ratings"
WORDS = ("agrees well", "agrees fairly", "agrees weakly", "hardly agrees", "contradicts people", NOT_ENOUGH)
AS_CORRELATION: Mapping[str, Callable[[float], float]] = {
    "spearman": lambda value: value,
    "binary_accuracy": lambda value: 2 * value - 1,
    "auroc": lambda value: 2 * value - 1,
    "pearson": lambda value: value,
}
"""The statistics that are read, the first that there is; as numbers of which 0 is chance and 1 people's own order."""
CAPTION = (
    "By the 95% interval, over prompts, of the agreement with people: well where even its lower end is "
    f"{WELL} or more, fairly from {FAIRLY}, weakly from 0; hardly where it does not exclude chance, but does exclude "
    f"{WELL}. Not enough ratings: fewer than {FEWEST} images or pairs, or an interval that excludes neither. A share "
    "of right choices counts as twice its distance from a half. n: images, or pairs of images."
)


def has_enough(judged: Judgement) -> bool:
    """Return True if there are enough ratings to say how far a metric agrees with people."""
    low, high = map(AS_CORRELATION.get(judged.statistic, float), judged.interval)
    return judged.n >= FEWEST and low <= high and not (low <= 0 and high >= WELL)


def trust(judged: Judgement) -> str:
    """One of WORDS."""
    if not has_enough(judged):
        return NOT_ENOUGH
    low, high = map(AS_CORRELATION[judged.statistic], judged.interval)
    if low <= 0:
        return "contradicts people" if high < 0 else "hardly agrees"
    return "agrees well" if low >= WELL else "agrees fairly" if low >= FAIRLY else "agrees weakly"


def _read(judgements: Sequence[Judgement]) -> dict[str, list[Judgement]]:
    """By template, what is read of metrics, in the judgements' order."""
    found: dict[str, list[Judgement]] = {}
    of_metrics = [judged for judged in judgements if judged.metric != PEOPLE]
    for template in dict.fromkeys(judged.template for judged in of_metrics):
        own = [judged for judged in of_metrics if judged.template == template]
        statistics = {judged.statistic for judged in own}
        first = next((statistic for statistic in AS_CORRELATION if statistic in statistics), None)
        if first is not None:
            found[template] = [judged for judged in own if judged.statistic == first]
    return found


def trust_sentences(judgements: Sequence[Judgement]) -> list[Sentence]:
    """Of each metric, at which skills it can be trusted how far."""
    sentences = []
    for template, own in _read(judgements).items():
        for metric in dict.fromkeys(judged.metric for judged in own):
            said: dict[str, list[str]] = {words: [] for words in WORDS}
            for judged in own:
                if judged.metric == metric:
                    said[trust(judged)].append(judged.group)
            parts = [f"{words}: {names(subsets)}" for words, subsets in said.items() if subsets]
            sentences.append(Sentence(f"{metric} beside people's {template or 'knowledge'}", f"{'; '.join(parts)}."))
    return sentences


def trust_tables(judgements: Sequence[Judgement]) -> list[ShownTable]:
    """Of each template, skills down and metrics across."""
    tables = []
    for template, own in _read(judgements).items():
        metrics = list(dict.fromkeys(judged.metric for judged in own))
        cells = {(judged.group, judged.metric): _cell(judged) for judged in own}
        subsets = list(dict.fromkeys(judged.group for judged in own))
        lines = [(subset, *(cells.get((subset, metric), "–") for metric in metrics)) for subset in subsets]
        title = f"how far to trust each metric, by {template or 'what is known'} ({own[0].statistic.replace('_', ' ')})"
        tables.append(ShownTable(title, CAPTION, ("", *metrics), lines))
    return tables


def _cell(judged: Judgement) -> str:
    low, high = judged.interval
    interval = f" [{number(low, 2)}, {number(high, 2)}]" if low <= high else ""
    return f"{trust(judged)}\n{number(judged.value, 2)}{interval}, n {count(judged.n)}"
