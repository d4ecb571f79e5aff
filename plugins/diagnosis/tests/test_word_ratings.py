"""A property is the mean of people's ratings of a prompt's words; how unrated words count is configurable."""

import math

import pytest

from plumbline.plugins.diagnosis.word_ratings import RatedWords, compute_mean_rating

RATING_BY_WORD = {"dog": 5.0, "idea": 1.5}


def test_an_unrated_word_counts_as_the_lowest_rating() -> None:
    rated = RatedWords(RATING_BY_WORD)
    assert compute_mean_rating(rated, "the dog had an Idea") == pytest.approx((5 + 1.5) / 2)
    assert compute_mean_rating(rated, "a dog on a zyzzyva") == pytest.approx((5 + 1.5) / 2)
    assert math.isnan(compute_mean_rating(rated, "of the"))


def test_an_unrated_word_can_count_as_0_or_be_left_out() -> None:
    text = "a dog on a zyzzyva"
    assert compute_mean_rating(RatedWords(RATING_BY_WORD, "zero"), text) == pytest.approx(5 / 2)
    assert compute_mean_rating(RatedWords(RATING_BY_WORD, "left_out"), text) == 5
    assert math.isnan(compute_mean_rating(RatedWords(RATING_BY_WORD, "left_out"), "a zyzzyva"))
