"""Measures how often a judge and people choose the same one of two images."""

from typing import NamedTuple

import numpy as np

from plumbline.operators.base.errors import SourceError
from plumbline.operators.results.choices import MIN_PROMPTS, PAIR_COLUMNS, Comparisons, read_choices
from plumbline.operators.statistics.bootstrap import Interval
from plumbline.operators.statistics.ordering import flip_signs
from plumbline.operators.statistics.shares import average_by_prompt, share_interval


class ChoiceAgreement(NamedTuple):
    """Agreement of a judge's choices between two images with people's, over the pairs on which people decide."""

    share: float
    """Fraction of the pairs for which the judge favours the image that people favour; a judge's tie counts half."""
    interval: Interval
    """95% interval of `share`, computed over prompts."""
    p_value: float
    """Two-sided p-value of the hypothesis that the judge agrees with people as often as a coin toss, 0.5."""
    n_pairs: int
    n_prompts: int
    n_undecided: int
    """Number of pairs that both the judge and people compared, but on which people's mean choice is a tie. They are
    left out.
    """
    n_unmatched: int
    """Number of pairs that people compared, but that have no outcome of the judge in both orders."""


def agree_on_pairs(
    comparisons: Comparisons, people: Comparisons, metric: str = "", people_metric: str = ""
) -> ChoiceAgreement:
    """Return how often a judge chooses the same one of two images of a prompt as people do.

    Args:
        comparisons: The judge's comparisons, as for `compare_pairs`. Pairs answered in only one order are left out.
        people: People's comparisons with the same columns. Each row is one person's choice, in the order shown. Rows
            of a pair are averaged for each order and then over the orders. A pair is decided if the mean is not 0.5.
        metric: The judge's metric. It may be empty if the table has a single metric.
        people_metric: The metric in people's table. It may be empty if the table has a single metric.

    Raises:
        SourceError: a table is invalid, or fewer than 10 prompts have a pair that both have compared.
    """
    judged = read_choices(comparisons, metric).pairs
    preferred = read_choices(people, people_metric, both_orders=False).pairs.dropna(subset="won")
    both = preferred.merge(judged.dropna(subset="won"), on=PAIR_COLUMNS, suffixes=("_people", ""))
    sides = np.sign(np.round(both[["won", "won_people"]].to_numpy(np.float64) - 0.5, 9))
    decided = sides[:, 1] != 0
    prompts = np.unique(both["prompt_id"][decided].to_numpy(dtype=str), return_inverse=True)[1].astype(np.int64)
    n_prompts = int(prompts.max(initial=-1)) + 1
    if n_prompts < MIN_PROMPTS:
        raise SourceError(
            f"people: expected at least {MIN_PROMPTS} prompts with a pair that people decide and the judge compared in "
            f"both orders, found {n_prompts}; check that both tables have the same prompt_id and image ids"
        )
    credit = (1 + sides[decided, 0] * sides[decided, 1]) / 2
    share, residuals = average_by_prompt(credit, prompts)
    return ChoiceAgreement(
        share=share,
        interval=share_interval(share, residuals),
        p_value=flip_signs(np.bincount(prompts, weights=2 * credit - 1).astype(np.float64)),
        n_pairs=len(credit),
        n_prompts=n_prompts,
        n_undecided=int((~decided).sum()),
        n_unmatched=len(preferred) - len(both),
    )
