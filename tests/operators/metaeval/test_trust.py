"""The report says how far to trust a metric, and lists images that people and the metric rank differently."""

import math

import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.metaeval.contradicted_images import find_contradicted_choices, find_contradicted_ratings
from plumbline.operators.metaeval.judgement import Judgement
from plumbline.operators.metaeval.trust import describe_trust, judge_trust, make_trust_tables
from plumbline.operators.statistics.bootstrap import Interval
from tests.operators.metaeval.test_ratings import make_ratings, make_scores


def make_judgement(
    low: float, high: float, n: int = 40, statistic: str = "spearman", subset: str = "overall"
) -> Judgement:
    return Judgement("m", statistic, (low + high) / 2, Interval(low, high), n, "how", "likert", subset)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (make_judgement(0.5, 0.7), "agrees well"),
        (make_judgement(0.3, 0.7), "agrees fairly"),
        (make_judgement(0.01, 0.7), "agrees weakly"),
        (make_judgement(-0.1, 0.4), "hardly agrees"),
        (make_judgement(-0.6, -0.1), "contradicts people"),
        (make_judgement(-0.1, 0.6), "not enough ratings"),
        (make_judgement(0.6, 0.8, n=19), "not enough ratings"),
        (make_judgement(math.nan, math.nan), "not enough ratings"),
        (make_judgement(0.75, 0.9, statistic="binary_accuracy"), "agrees well"),
        (make_judgement(0.5, 0.7, statistic="binary_accuracy"), "hardly agrees"),
    ],
)
def test_the_verdict_follows_the_interval_of_agreement_beyond_chance(found: Judgement, words: str) -> None:
    assert judge_trust(found) == words


def test_skills_are_listed_by_how_far_the_metric_can_be_trusted() -> None:
    found = [
        make_judgement(0.5, 0.7),
        make_judgement(0.1, 0.2, subset="counting"),
        make_judgement(0.5, 0.9, subset="colour", n=3),
    ]
    (sentence,) = describe_trust([*found, make_judgement(0, 0.1, statistic="kendall_b")])
    assert str(sentence) == (
        "m beside people's likert agrees well: overall; agrees weakly: counting; not enough ratings: colour."
    )
    (table,) = make_trust_tables(found)
    assert table.rows[1] == ("counting", "agrees weakly\n0.15 [0.10, 0.20], n 40")


def test_the_image_on_which_people_and_the_metric_disagree_is_listed_with_both_ranks() -> None:
    """People rank one of ten images last, and the metric ranks it first; both rank the other nine in the same order."""
    given = [(f"p{n}", "g", "ann", "likert", float(n)) for n in range(10)]
    scored = make_scores(*((f"p{n}", "g", "m", 20.0 if n == 0 else n / 10) for n in range(10)))
    (image,) = find_contradicted_ratings(make_ratings(*given), scored, "image")
    assert (image.image_id, image.prompt_id, image.generator, image.metric) == ("p0/g", "p0", "g", "m")
    assert image.why == (
        "people rate it 0.0 (likert), percentile rank 5%; by m its percentile rank among the same images is 95%"
    )


def test_both_images_of_a_choice_that_the_metric_reverses_are_listed() -> None:
    votes = [
        {"prompt_id": prompt, "image_a": f"{prompt}/g", "image_b": f"{prompt}/h", "generator_a": "g", "rater": "ann",
         "generator_b": "h", "template": "vote", "preferred": preferred}
        for prompt, preferred in (("p", "a"), ("q", "b"), ("r", "unsure"))
    ]  # fmt: skip
    scored = make_scores(*((prompt, name, "m", score) for prompt in "pqr" for name, score in (("g", 0.1), ("h", 0.9))))
    liked, other = find_contradicted_choices(rows.table(votes, schemas.PREFERENCES), scored, "image")
    assert (liked.image_id, liked.why) == ("p/g", "people prefer it to the image of h (vote), m does not")
    assert (other.image_id, other.why) == ("p/h", "m prefers it to the image of g, people do not (vote)")
