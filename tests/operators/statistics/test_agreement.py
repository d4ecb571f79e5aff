"""Agreement of raters: textbook values, majority votes and reliable prompts."""

import math

import pandas as pd
import pytest

from plumbline.operators.statistics.agreement import krippendorff_alpha, majority_vote, reliable_prompts

# Krippendorff, Computing Krippendorff's Alpha-Reliability (2011), example C: four raters, twelve units, missing values
TEXTBOOK = {
    "A": [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
    "B": [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
    "C": [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
    "D": [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
}


def textbook() -> pd.DataFrame:
    rows = [(unit, rater, value) for rater, values in TEXTBOOK.items() for unit, value in enumerate(values)]
    return pd.DataFrame(rows, columns=["unit", "rater", "rating"]).dropna()


@pytest.mark.parametrize(("level", "published"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_is_the_textbooks(level: str, published: float) -> None:
    assert krippendorff_alpha(textbook(), level) == pytest.approx(published, abs=5e-4)  # type: ignore[arg-type]


def test_alpha_of_one_rater_is_undefined() -> None:
    assert math.isnan(krippendorff_alpha(textbook().query("rater == 'A'"), "ordinal"))


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
    assert majority_vote(votes) == said


def rated(prompt: str, generator: str, template: str, *ratings: float) -> list[tuple[str, str, str, str, str, float]]:
    return [(prompt, generator, template, f"{prompt}/{generator}", str(n), r) for n, r in enumerate(ratings)]


def test_reliable_prompts_agree_for_every_generator_and_template() -> None:
    rows = [
        *rated("calm", "g", "likert", 4, 4, 5), *rated("calm", "h", "likert", 1, 1, 1),
        *rated("wild", "g", "likert", 1, 5, 3), *rated("wild", "h", "likert", 1, 2, 1),
        *rated("half", "g", "likert", 4, 4, 4), *rated("half", "h", "likert", 1, 5, 1),
        *rated("mute", "g", "likert", math.nan, math.nan), *rated("mute", "h", "likert", 2, 2),
    ]  # fmt: skip
    frame = pd.DataFrame(rows, columns=["prompt_id", "generator", "template", "image_id", "rater", "rating"])
    assert reliable_prompts(frame) == {"calm"}
