"""Measures how often a judge and people choose the same one of two images."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import SourceError
from plumbline.operators.results.choices import (
    MIN_PROMPTS,
    PAIR_COLUMNS,
    ChoiceResults,
    Comparisons,
    Refusal,
    compare_each_metric,
    read_choices,
)
from plumbline.operators.results.summary import Skills
from plumbline.operators.statistics.bootstrap import Interval
from plumbline.operators.statistics.ordering import compute_sign_flip_p_value
from plumbline.operators.statistics.shares import average_by_prompt, compute_share_interval


class ChoiceAgreement(NamedTuple):
    """How often a judge prefers the same image of a pair as people do; pairs on which people tie are left out."""

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


class PeopleChoices(NamedTuple):
    """People's choices between two images of a run, and how often its judges choose the same image."""

    results: ChoiceResults | Refusal
    agreements: Mapping[str, ChoiceAgreement | str]
    """Agreement with each judge, by metric; a text says why there is none."""


def compare_with_people(comparisons: pa.Table, people: pa.Table) -> dict[str, PeopleChoices]:
    """Return people's choices and their agreement with each judge, by the template that people answered.

    Args:
        comparisons: The comparisons of a run's judges (schema COMPARED_PAIRS).
        people: People's choices as comparisons (schema COMPARED_PAIRS); `metric` is the template.
    """
    judges = sorted(map(str, pc.unique(comparisons.column("metric")).to_pylist()))
    return {
        template: PeopleChoices(
            results, {judge: _try_to_agree(comparisons, people, judge, template) for judge in judges}
        )
        for template, results in compare_each_metric(people, Skills(()), both_orders=False).items()
    }


def _try_to_agree(comparisons: pa.Table, people: pa.Table, judge: str, template: str) -> ChoiceAgreement | str:
    try:
        return agree_on_pairs(comparisons, people, judge, template)
    except SourceError as error:
        return str(error)


def agree_on_pairs(
    comparisons: Comparisons, people: Comparisons, metric: str = "", people_metric: str = ""
) -> ChoiceAgreement:
    """Return how often a judge chooses the same one of two images for a prompt as people do.

    Args:
        comparisons: The judge's comparisons, as for `compare_pairs`. Pairs answered in only one order are left out.
        people: People's comparisons with the same columns. Each row is one person's choice, in the order shown. Rows
            of a pair are averaged for each order and then over the orders. A pair is decided if the mean is not 0.5.
        metric: The judge's metric. It may be empty if the table has a single metric.
        people_metric: The metric in the table `people`. It may be empty if the table has a single metric.

    Raises:
        SourceError: a table is invalid, or fewer than 10 prompts have a pair that both the judge and people
            compared.
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
            f"people: expected at least {MIN_PROMPTS} prompts with a pair for which people have a preference and "
            f"which the judge compared in both orders, found {n_prompts}; check that both tables "
            "have the same prompt_id and image ids"
        )
    credit = (1 + sides[decided, 0] * sides[decided, 1]) / 2
    share, residuals = average_by_prompt(credit, prompts)
    return ChoiceAgreement(
        share=share,
        interval=compute_share_interval(share, residuals),
        p_value=compute_sign_flip_p_value(np.bincount(prompts, weights=2 * credit - 1).astype(np.float64)),
        n_pairs=len(credit),
        n_prompts=n_prompts,
        n_undecided=int((~decided).sum()),
        n_unmatched=len(preferred) - len(both),
    )
