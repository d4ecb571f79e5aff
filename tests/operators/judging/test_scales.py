"""A slip of the hand among ratings is seen, and an unusual scale is not taken for one."""

import pytest

from plumbline.operators.judging.ratings import off_scale
from tests.operators.judging.test_ratings import ratings


def warned(*values: float) -> list[str]:
    return off_scale(ratings(*((f"p{row}", "g", "a", "likert", value) for row, value in enumerate(values))))


@pytest.mark.parametrize(
    ("values", "outside"),
    [
        ([*range(1, 6)] * 20 + [55], "1 of 101 ratings (likert) are outside 0 to 10"),
        ([*range(1, 6)] * 20 + [41, 33, -1], "3 of 103 ratings (likert) are outside 0 to 10"),
        ([0.5, 1, 0, 0.25, 3], "1 of 5 ratings (likert) are outside 0 to 1"),
        ([0, 55, 71, 100, 20, 999], "1 of 6 ratings (likert) are outside 0 to 100"),
    ],
)
def test_the_few_off_the_scale_of_the_others_are_counted(values: list[float], outside: str) -> None:
    [warning] = warned(*values)
    assert warning.startswith(f"{outside}, where the others are, first ")


@pytest.mark.parametrize(
    "values",
    [
        [1, 2, 3, 4, 5],
        [-2, -1, 0, 1, 2],
        [0, 1, 1, 0],
        [1] * 60 + [2, 5],
        [0, 3, 55, 71, 100],
        [1200, 1450, 990],
        [],
    ],
    ids=[
        "five points",
        "around nought",
        "labels",
        "hardly ever above the least",
        "percentages",
        "ratings as of chess",
        "none",
    ],
)
def test_a_scale_of_its_own_is_no_slip(values: list[float]) -> None:
    assert warned(*values) == []


def test_every_template_has_a_scale_of_its_own() -> None:
    both = [("p", "g", str(rater), "wl", rater / 10) for rater in range(10)]
    likert = [("p", "g", str(rater), "likert", float(rater % 5 + 1)) for rater in range(10)]
    assert off_scale(ratings(*both, *likert)) == []
    assert len(off_scale(ratings(*both, *likert, ("p", "g", "x", "wl", 4.0)))) == 1
