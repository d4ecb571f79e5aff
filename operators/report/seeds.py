"""Share of the noise that is due to the seed, and the gain from more images or prompts."""

import math
from collections.abc import Mapping

from plumbline.operators.base.sentences import Sentence, ShownTable, number
from plumbline.operators.statistics.repeats import WITH_TWICE_THE_PROMPTS, Repeats

CAPTION = (
    "Of several images a prompt, the variance between them against that between prompts (one-way random effects, mean "
    "of the generators). A mean's interval narrows as shown. Two generators are compared on the same prompts, so what "
    "prompts share cancels there, and seeds weigh more."
)


def seed_sentences(by_metric: Mapping[str, Repeats]) -> list[Sentence]:
    """Return a sentence about the metric with the largest share of the seed, and about the gain from more images."""
    shares = {metric: repeats.share for metric, repeats in by_metric.items() if not math.isnan(repeats.share)}
    if not shares:
        return []
    most = max(shares, key=lambda metric: shares[metric])
    least = min(shares, key=lambda metric: shares[metric])
    others = f", and {shares[least]:.0%} by {least}" if len(shares) > 1 else ""
    repeats = by_metric[most]
    rest = (
        f"{shares[most]:.0%} of the variance of a mean by {most}{others}. By {most}, twice the "
        f"{repeats.images:.3g} images a prompt would narrow its interval by {1 - repeats.with_twice_the_images:.0%}, "
        f"and twice the prompts by {1 - WITH_TWICE_THE_PROMPTS:.0%}."
    )
    return [Sentence("The seed is", rest)]


def seed_table(by_metric: Mapping[str, Repeats]) -> ShownTable:
    """Return a table of each metric's standard deviations, and of the change of a mean's interval."""
    rows = [
        (
            metric,
            f"{repeats.images:.3g}",
            number(math.sqrt(repeats.between)),
            number(math.sqrt(repeats.within)),
            _percent(repeats.share),
            _percent(repeats.with_twice_the_images - 1),
            _percent(WITH_TWICE_THE_PROMPTS - 1),
        )
        for metric, repeats in by_metric.items()
    ]
    names = ("metric", "images a prompt", "deviation between prompts", "between seeds", "of a mean's variance",
             "with twice the images", "with twice the prompts")  # fmt: skip
    return ShownTable("How much is the seed", CAPTION, names, rows)


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.0%}".replace("-", "−")
