"""METEOR of exact words and stems is NLTK's with Porter's stemmer and without WordNet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.operators.metrics.meteor import meteor

WORDS = ["a", "red", "car", "cars", "two", "sheep", "standing", "stood", "on", "the", "road"]


@pytest.mark.parametrize(
    ("candidate", "reference", "expected"),
    [
        ("two sheep are standing on the road", "a red car and a white sheep", 0.07142857142857142),
        ("The red cars stood beside three houses.", "three red car standing beside a house", 0.5314285714285715),
        ("a dog on a dog", "dog, a dog on a mat", 0.6305084745762711),
        ("A Red Circle", "a red circle", 0.9814814814814815),
        ("flying birds over the running rivers", "a bird flies over rivers that run", 0.2898550724637681),
        ("this is as it was", "i saw a cat", 0.24390243902439024),
        ("nothing alike", "two shapes", 0.0),
        ("", "two shapes", 0.0),
        ("?!", "...", 0.0),
    ],
)
def test_it_is_what_nltk_gives(candidate: str, reference: str, expected: float) -> None:
    """single_meteor_score of NLTK 3.10, its stemmer in the mode of the original paper, its WordNet empty."""
    assert meteor(candidate, reference) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.sampled_from(WORDS), max_size=12), st.lists(st.sampled_from(WORDS), max_size=12))
def test_it_is_a_share_and_the_text_itself_has_the_most(candidate: list[str], reference: list[str]) -> None:
    said, wanted = " ".join(candidate), " ".join(reference)
    assert 0 <= meteor(said, wanted) <= 1
    assert meteor(said, wanted) <= meteor(wanted, wanted) + 1e-12
