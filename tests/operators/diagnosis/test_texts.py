"""What prompts are like as texts, by the formulas' own definitions."""

import math

import pytest

from plumbline.operators.diagnosis.texts import depth, grade, length, mean_rating, open_parser, properties, syllables
from plumbline.operators.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "count"),
    [("dog", 1), ("table", 2), ("purple", 2), ("motorcycle", 4), ("boxes", 2), ("horses", 2), ("jumped", 1),
     ("painted", 2), ("whale", 1), ("apples", 2), ("the", 1), ("Dances", 2), ("brr", 1)],
)  # fmt: skip
def test_syllables_are_groups_of_vowels_but_for_silent_endings(word: str, count: int) -> None:
    assert syllables(word) == count


def test_the_grade_is_flesch_and_kincaids() -> None:
    assert grade("The dog runs. It barks.") == pytest.approx(0.39 * 5 / 2 + 11.8 * 5 / 5 - 15.59)
    assert grade("a purple motorcycle") == pytest.approx(0.39 * 3 + 11.8 * 7 / 3 - 15.59)
    assert math.isnan(grade("12 !")) and grade("a motorcycle, e.g. a dog") == grade("a motorcycle, e.g. a dog ")


def test_the_length_counts_the_words_that_say_something() -> None:
    assert (length("a red dog is in front of the cat"), length("the"), length("")) == (4, 0, 0)


def test_the_depth_is_the_longest_way_to_a_root_of_any_sentence() -> None:
    assert depth([1, 1, 1]) == 1
    assert depth([1, 2, 3, 3, 4]) == 3, "two sentences"
    assert math.isnan(depth([]))


def test_a_word_that_nobody_rated_counts_as_the_lowest() -> None:
    ratings = {"dog": 5.0, "idea": 1.5}
    assert mean_rating(ratings, "the dog had an Idea") == pytest.approx((5 + 1.5) / 2)
    assert mean_rating(ratings, "a dog on a zyzzyva") == pytest.approx((5 + 1.5) / 2)
    assert math.isnan(mean_rating(ratings, "of the"))


def test_what_is_measured_is_what_was_asked_for() -> None:
    assert list(properties({})) == ["length", "grade"]
    measured = properties({"concreteness": {"dog": 4.0}}, lambda text: 7.0)
    assert {name: of("a dog") for name, of in measured.items()} == {
        "length": 1, "grade": grade("a dog"), "depth": 7, "concreteness": 4,
    }  # fmt: skip


def test_a_parser_that_is_not_installed_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"diagnosis\.parser=no_such_pipeline: .*install|download"):
        open_parser("no_such_pipeline")
