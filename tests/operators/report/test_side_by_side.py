"""The prompts with the largest differences are shown with all images, scores and answers side by side."""

from collections.abc import Callable

import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.report.gallery import EMPTY_IMAGE_DETAIL
from plumbline.operators.report.picked_images import MAX_GENERATORS_SIDE_BY_SIDE, MAX_PROMPTS, Pick
from plumbline.operators.report.side_by_side import MAX_QUESTIONS, SideBySide, make_side_by_side
from plumbline.operators.results.run_scores import RunScores
from tests.operators.report.made import make_elements
from tests.operators.tallied import pick_gallery_images, wrap_scores

METRICS = ("gecko", "clipscore")


def make_run(
    score: Callable[[str, int], float | None], generators: str = "abc", prompts: int = 30, images: int = 1
) -> RunScores:
    """Return the scores of two metrics with different scales; each generator has `images` images per prompt.

    If `score` returns None for a generator and a prompt, there is only one image, and its score is None.
    """
    records = [
        {"image_id": f"{name}{prompt}-{image}", "prompt_id": str(prompt), "generator": name, "metric": metric,
         "score": None if value is None else value * scale}
        for metric, scale in zip(METRICS, (1.0, 50.0), strict=True)
        for name in generators for prompt in range(prompts) for image in range(images)
        if (value := score(name, prompt)) is not None or image == 0
    ]  # fmt: skip
    return wrap_scores(rows.table(records, schemas.SCORES))


def make_scores_that_differ_at(*prompts: int) -> Callable[[str, int], float]:
    """Return a function whose scores differ widely between generators, but only on these prompts."""
    return lambda name, prompt: 0.5 + 0.001 * prompt + (0.4 * (ord(name) - 98) if prompt in prompts else 0)


def select_prompts(scores: RunScores, most: int = 96) -> list[str]:
    return [picks[0].prompt_id for picks in pick_gallery_images(scores, METRICS, most).side_by_side]


def test_the_prompts_on_which_generators_differ_most_come_first() -> None:
    picked = pick_gallery_images(make_run(make_scores_that_differ_at(7, 20)), METRICS, 96).side_by_side
    assert {picks[0].prompt_id for picks in picked[:2]} == {"7", "20"}
    assert all([pick.key.generator for pick in picks] == ["a", "b", "c"] for picks in picked)
    assert all(len({pick.prompt_id for pick in picks}) == 1 for picks in picked) and len(picked) == MAX_PROMPTS
    assert all(set(pick.scores) == set(METRICS) and len(pick.rows) == 2 for pick in picked[0])


@pytest.mark.parametrize(("most", "prompts"), [(0, 0), (1, 0), (2, 1), (5, 1), (9, 3)])
def test_the_number_of_images_is_limited(most: int, prompts: int) -> None:
    picked = pick_gallery_images(make_run(make_scores_that_differ_at(7)), METRICS, most).side_by_side
    assert len(picked) == prompts and sum(map(len, picked)) <= most


def test_one_generator_has_nothing_to_compare() -> None:
    assert select_prompts(make_run(make_scores_that_differ_at(7), "a")) == []


def test_prompts_with_all_generators_come_first() -> None:
    def score(name: str, prompt: int) -> float | None:
        return None if (name, prompt) == ("c", 7) else make_scores_that_differ_at(7)(name, prompt)

    chosen = pick_gallery_images(make_run(score, prompts=8), METRICS, 96).side_by_side
    assert chosen[-1][0].prompt_id == "7" and [pick.key.generator for pick in chosen[-1]] == ["a", "b"]


def test_every_metric_shows_the_first_of_several_images() -> None:
    picked = pick_gallery_images(make_run(make_scores_that_differ_at(7), images=3), METRICS, 96).side_by_side
    assert {pick.key.image_id.partition("-")[2] for picks in picked for pick in picks} == {"0"}


def test_if_there_are_many_generators_those_with_the_best_images_are_shown() -> None:
    names = "".join(chr(97 + place) for place in range(MAX_GENERATORS_SIDE_BY_SIDE + 8))
    scores = make_run(lambda name, prompt: 0.01 * ord(name) + 0.0001 * prompt, names)
    shown = pick_gallery_images(scores, METRICS, 96).side_by_side
    assert (
        "".join(pick.key.generator for pick in shown[0]) == names[-MAX_GENERATORS_SIDE_BY_SIDE:]
        and len(shown) == 96 // MAX_GENERATORS_SIDE_BY_SIDE
    )
    fewer = pick_gallery_images(scores, METRICS, 8).side_by_side
    assert ["".join(pick.key.generator for pick in one) for one in fewer] == [names[-8:]]


def test_prompts_are_sampled_if_there_are_too_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.operators.report.picked_images.MAX_COMPARED_IMAGES", 30)
    drawn = select_prompts(make_run(make_scores_that_differ_at(7), prompts=60))
    assert 1 <= len(drawn) < 25 and len(set(drawn)) == len(drawn)


def compare_answers(
    asked: list[list[dict[str, object]]], scores: list[float | None], *, towards: int = 1
) -> SideBySide:
    picks: list[Pick] = [
        pick._replace(scores={"gecko": score} if score is not None else {})
        for pick, score in zip(
            pick_gallery_images(make_run(make_scores_that_differ_at(7)), METRICS, 96).side_by_side[0],
            scores,
            strict=True,
        )
    ]
    details = {
        pick.key: EMPTY_IMAGE_DETAIL._replace(elements={"gecko": one})
        for pick, one in zip(picks, asked, strict=True)
        if one
    }
    return make_side_by_side(picks, details, "a red star", ["colour"], {"gecko": towards})


def test_every_answer_is_under_its_image_and_differences_are_counted() -> None:
    right, wrong = make_elements("a red star", 0.9), make_elements("a red star", 0.1)
    (asked,) = compare_answers([right, wrong, []], [0.9, 0.1, None]).questions
    colour, star, left_out = asked.rows.rows
    assert (colour.text, colour.wanted) == ("what <colour> is it?", "red")
    assert [answer and answer.state for answer in colour.answers] == ["right", "wrong", None]
    assert colour.differs and not star.differs and asked.n_differ == 1
    assert left_out.answers[0] is not None and left_out.answers[0].state == "left out"


def test_questions_are_joined_by_their_ids_in_any_order() -> None:
    whole = make_elements("a red star", 0.9)
    (asked,) = compare_answers([whole[1:], whole[::-1], whole], [0.9, 0.9, 0.9]).questions
    assert [row.text for row in asked.rows.rows] == ["is there a star?", "is it round?", "what <colour> is it?"]
    assert [answer is None for answer in asked.rows.rows[2].answers] == [True, False, False]


def test_only_the_first_of_many_questions_are_shown_and_the_rest_is_counted() -> None:
    many = [make_elements("a red star", 0.9)[0] | {"question_id": str(place)} for place in range(MAX_QUESTIONS + 3)]
    (asked,) = compare_answers([many, [], []], [0.9, None, None]).questions
    assert (len(asked.rows.rows), asked.rows.left_out) == (MAX_QUESTIONS, 3)


@pytest.mark.parametrize(("scores", "towards", "shown", "best"), [
    ([0.9, 0.1, 0.5], 1, ["0.90", "0.10", "0.50"], "0.90"),
    ([0.9, 0.1, 0.5], -1, ["0.90", "0.10", "0.50"], "0.10"),
    ([0.9, 0.1, 0.5], 0, ["0.90", "0.10", "0.50"], ""),
    ([0.999, 1.0, None], 1, ["1.00", "1.00", "–"], ""),
    ([None, None, None], 1, ["–", "–", "–"], ""),
])  # fmt: skip
def test_the_best_score_is_marked_if_scores_differ_as_displayed(
    scores: list[float | None], towards: int, shown: list[str], best: str
) -> None:
    (row,) = compare_answers([[], [], []], scores, towards=towards).scores
    assert (row.scores, row.best) == (shown, best)
