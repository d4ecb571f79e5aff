"""Agreement between raters matches textbook values, majority votes are correct, and reliable prompts are found."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest

from plumbline.operators.statistics.agreement import (
    STATISTICS,
    compute_alpha_interval,
    compute_auroc,
    compute_spearman_viescore,
    find_majority_vote,
    find_reliable_prompts,
    krippendorff_alpha,
)
from plumbline.operators.statistics.options import Sampling

# Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), example C: four raters, twelve units, missing values
TEXTBOOK_RATINGS = {
    "A": [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
    "B": [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
    "C": [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
    "D": [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
}


def make_textbook_ratings() -> pd.DataFrame:
    rows = [(unit, rater, value) for rater, values in TEXTBOOK_RATINGS.items() for unit, value in enumerate(values)]
    return pd.DataFrame(rows, columns=["unit", "rater", "rating"]).dropna()


@pytest.mark.parametrize(("level", "published"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_equals_the_textbooks(level: str, published: float) -> None:
    assert krippendorff_alpha(make_textbook_ratings(), level) == pytest.approx(published, abs=5e-4)  # type: ignore[arg-type]


def test_alpha_of_one_rater_is_undefined() -> None:
    assert math.isnan(krippendorff_alpha(make_textbook_ratings().query("rater == 'A'"), "ordinal"))


@pytest.mark.parametrize(
    ("votes", "said"),
    [
        (["a", "a", "b"], "a"),
        (["a", "b", "unsure"], "unsure"),
        (["a", "a", "b", "b"], "unsure"),
        ([None, "b"], "b"),
        ([None], "unsure"),
        (["unsure", "unsure", "b"], "unsure"),
    ],
)
def test_a_vote_without_a_majority_is_unsure(votes: list[str | None], said: str) -> None:
    assert find_majority_vote(votes) == said


def make_ratings(
    prompt: str, generator: str, template: str, *ratings: float
) -> list[tuple[str, str, str, str, str, float]]:
    return [(prompt, generator, template, f"{prompt}/{generator}", str(n), r) for n, r in enumerate(ratings)]


def test_reliable_prompts_agree_for_every_generator_and_template() -> None:
    rows = [
        *make_ratings("calm", "g", "likert", 4, 4, 5), *make_ratings("calm", "h", "likert", 1, 1, 1),
        *make_ratings("wild", "g", "likert", 1, 5, 3), *make_ratings("wild", "h", "likert", 1, 2, 1),
        *make_ratings("half", "g", "likert", 4, 4, 4), *make_ratings("half", "h", "likert", 1, 5, 1),
        *make_ratings("mute", "g", "likert", math.nan, math.nan), *make_ratings("mute", "h", "likert", 2, 2),
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["prompt_id", "generator", "template", "image_id", "rater", "rating"])
    assert find_reliable_prompts(frame.assign(part="")) == {"calm"}


def test_disagreement_is_the_mean_over_words_of_the_variance_between_raters() -> None:
    """Despite rounding, a prompt with exactly half of the largest variance must not count as below half."""
    random = np.random.default_rng(5)
    rejected = {"full": 2, "half": 1, "less": 0}  # number of words that one of three raters rejects
    rows = [
        (prompt, "g", "wl", prompt, str(word), str(rater), 1.1 - 0.9 * (word < count and rater == word))
        for prompt, count in rejected.items()
        for word, rater in product(range(4), range(3))
    ]
    names = ["prompt_id", "generator", "template", "image_id", "part", "rater", "rating"]
    for _ in range(5):
        frame = pd.DataFrame(rows, columns=names).iloc[random.permutation(len(rows))]
        assert find_reliable_prompts(frame) == {"less"}
        assert find_reliable_prompts(frame, share=0.51) == {"half", "less"}


HUMAN_RATINGS, METRIC_SCORES = np.array([1.0, 2, 2, 4]), np.array([0.1, 0.3, 0.2, 0.9])


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("pearson", 0.97664),
        ("spearman", 0.94868),
        ("kendall_a", 5 / 6),
        ("kendall_b", 5 / math.sqrt(5 * 6)),
        ("kendall_c", 2 * 5 * 3 / (16 * 2)),
    ],
)
def test_statistics_equal_their_formulas(name: str, by_hand: float) -> None:
    assert STATISTICS[name](HUMAN_RATINGS, METRIC_SCORES) == pytest.approx(by_hand, abs=1e-4)


@pytest.mark.parametrize("name", sorted(STATISTICS))
def test_statistics_are_undefined_if_all_ratings_are_equal(name: str) -> None:
    assert math.isnan(STATISTICS[name](np.ones(4), METRIC_SCORES))


@pytest.mark.parametrize("name", ["pearson", "spearman", "kendall_a", "kendall_b", "kendall_c"])
def test_statistics_are_undefined_for_equal_scores_or_a_single_score(name: str) -> None:
    assert math.isnan(STATISTICS[name](HUMAN_RATINGS, np.ones(4)))
    assert math.isnan(STATISTICS[name](HUMAN_RATINGS[:1], METRIC_SCORES[:1]))


def test_viescores_average_over_generators_is_undefined_if_any_correlation_is() -> None:
    both, generators = (np.tile(HUMAN_RATINGS, 2), np.tile(METRIC_SCORES, 2)), np.array([0, 0, 0, 0, 1, 1, 1, 1])
    assert compute_spearman_viescore(*both, generators) == pytest.approx(math.tanh(0.94868), abs=1e-4)
    turned = np.concatenate([METRIC_SCORES, -METRIC_SCORES])
    assert compute_spearman_viescore(both[0], turned, generators) == pytest.approx(0)
    assert math.isnan(compute_spearman_viescore(both[0], np.concatenate([METRIC_SCORES, np.ones(4)]), generators))


def test_auroc_counts_ties_half_and_requires_two_labels() -> None:
    labels = np.array([0.0, 0, 1, 1])
    assert compute_auroc(labels, np.array([0.1, 0.5, 0.5, 0.9])) == pytest.approx(3.5 / 4)
    with pytest.raises(ValueError, match="two labels, found 3"):
        compute_auroc(HUMAN_RATINGS, METRIC_SCORES)


def test_the_interval_of_alpha_needs_prompts_that_differ() -> None:
    """If two prompts have identical units, every resample has the same alpha, so there is no interval."""
    units = make_textbook_ratings().assign(prompt_id="p1")
    both = pd.concat([units, units.assign(prompt_id="p2", unit=units["unit"] + 100)])
    for few in (units, both):
        assert math.isnan(compute_alpha_interval(few, Sampling()).low)
    alone = both.assign(prompt_id=both["unit"].astype(str))
    low, high = compute_alpha_interval(alone, Sampling())
    assert low < krippendorff_alpha(alone, "ordinal") < high
