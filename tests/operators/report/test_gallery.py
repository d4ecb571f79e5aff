"""The gallery shows the best, the worst and the most disputed images, as a limited number of thumbnails."""

import base64
import random
from collections.abc import Container

import pytest
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.metrics.metric import EXTRA_WORDS_ID, Element
from plumbline.operators.report.gallery import (
    EMPTY_IMAGE_DETAIL,
    THUMBNAIL_BYTES,
    THUMBNAIL_SIDE_PIXELS,
    make_card,
    make_thumbnails,
)
from plumbline.operators.report.picked_images import Pick
from plumbline.operators.results.run_scores import RunScores
from tests.operators import tallied
from tests.operators.report.made import draw_noise_png, draw_noisy_score, encode_png


def make_score_rows(metrics: tuple[str, ...] = ("gecko", "clipscore"), prompts: int = 40) -> list[dict[str, object]]:
    return [
        {"image_id": f"{generator}{prompt}", "prompt_id": str(prompt), "generator": generator, "metric": metric,
         "score": draw_noisy_score(generator, metric, prompt)}
        for metric in metrics for generator in ("atlas", "cobalt") for prompt in range(prompts)
    ]  # fmt: skip


def read_scores(records: list[dict[str, object]]) -> RunScores:
    return tallied.wrap_scores(rows.table(records, schemas.SCORES))


def pick_images(
    scores: list[dict[str, object]], metrics: list[str], max_images: int, lower_is_better: Container[str] = ()
) -> list[Pick]:
    """Return at most `max_images` images that the gallery shows for these rows of scores, each with its reasons."""
    return list(tallied.pick_gallery_images(read_scores(scores), metrics, max_images, lower_is_better).gallery)


def test_the_gallery_has_the_extremes_and_all_generators() -> None:
    rng = random.Random(5)
    found = [one | {"score": rng.random()} for one in make_score_rows()]
    picks = pick_images(found, ["gecko", "clipscore"], 40)
    lowest = min((one for one in found if one["metric"] == "gecko"), key=lambda one: one["score"])  # type: ignore[arg-type,return-value]
    reasons = {pick.key.image_id: {(one.kind, one.metric) for one in pick.reasons} for pick in picks}
    assert ("worst", "gecko") in reasons[str(lowest["image_id"])]
    assert {kind for its in reasons.values() for kind, _ in its} == {"worst", "best", "disagreed"}
    worst = [pick for pick in picks if any(one.kind == "worst" for one in pick.reasons)]
    assert {pick.key.generator for pick in worst} == {"atlas", "cobalt"}
    assert len({pick.key for pick in picks}) == len(picks) <= 40


@pytest.mark.parametrize("seed", range(12))
def test_if_there_are_few_images_all_are_shown_and_none_is_both_worst_and_best(seed: int) -> None:
    """Scores may be equal. Images between the best and the worst are not checked."""
    rng = random.Random(seed)
    metrics, steps = ["gecko", "clipscore"][: rng.randint(1, 2)], rng.choice([1, 2, 5, 1000])
    rows_of = [
        one | {"score": rng.randrange(steps) / steps}
        for one in make_score_rows(tuple(metrics), rng.randint(1, 7))
        if one["generator"] == "atlas"
    ]
    rng.shuffle(rows_of)
    falling = {"gecko"} if rng.random() < 0.5 else set()
    picks = pick_images(rows_of, metrics, 40, falling)
    assert {pick.key.image_id for pick in picks} == {one["image_id"] for one in rows_of}
    for metric in metrics:
        sign, values = -1 if metric in falling else 1, {}
        values = {one["image_id"]: sign * float(str(one["score"])) for one in rows_of if one["metric"] == metric}
        for pick in picks:
            own = values[pick.key.image_id]
            lower, higher = (sum(side) for side in zip(*((v < own, v > own) for v in values.values()), strict=True))
            assert pick.ranks[metric] == (lower + (len(values) - lower - higher) / 2) / len(values)
            kinds = {one.kind for one in pick.reasons if one.metric == metric}
            assert kinds & {"worst", "best"} == ({"worst"} if lower < higher else {"best"} if lower > higher else set())


@pytest.mark.parametrize("most", [0, 1, 7, 100])
def test_the_gallery_never_exceeds_its_limit(most: int) -> None:
    assert len(pick_images(make_score_rows(), ["gecko", "clipscore"], most)) <= most


def test_with_one_metric_nothing_is_disputed() -> None:
    picks = pick_images(make_score_rows(("gecko",)), ["gecko"], 10)
    assert picks and {one.kind for pick in picks for one in pick.reasons} == {"worst", "best"}


def test_rows_without_score_or_image_are_never_picked() -> None:
    broken = [one | {"score": None} for one in make_score_rows()] + [
        one | {"image_id": None} for one in make_score_rows()
    ]
    assert pick_images(broken, ["gecko", "clipscore"], 10) == []


@pytest.mark.parametrize(
    "encoded", [encode_png(3), encode_png(3, 2000), draw_noise_png(3, 1200)], ids=["small", "large", "noise"]
)
def test_a_thumbnail_is_an_image_of_a_few_kilobytes(encoded: bytes) -> None:
    import io

    row = {"image": encoded, "source": [encoded, encoded]}
    shown = make_thumbnails(row, ImageLimits(), fetch=lambda uri: b"")
    contents = [base64.b64decode((one.url or "").removeprefix("data:image/webp;base64,")) for one in shown]
    assert all(max(Image.open(io.BytesIO(content)).size) <= THUMBNAIL_SIDE_PIXELS for content in contents)
    assert len(contents[0]) <= THUMBNAIL_BYTES and len(contents[1]) + len(contents[2]) <= THUMBNAIL_BYTES


def test_an_image_beyond_the_limits_is_not_decoded_and_shows_the_reason() -> None:
    limits = ImageLimits(max_pixels=99)
    image, source = make_thumbnails(
        {"image": encode_png(3, 9), "source": encode_png(3, 100)}, limits, fetch=lambda uri: b""
    )
    assert image.url and not image.missing
    assert source.url is None and source.missing.startswith("the source of the edit: ")
    image, *sources = make_thumbnails({"image": encode_png(3, 100)}, limits, fetch=lambda uri: b"")
    assert image.url is None and "100x100 pixels" in image.missing and sources == []


def test_a_card_without_image_or_prompt_says_so() -> None:
    pick = pick_images(make_score_rows(), ["gecko", "clipscore"], 4)[0]
    card = make_card(pick, EMPTY_IMAGE_DETAIL, None, ())
    assert card.image.url is None and card.image.missing
    assert card.prompt[0].text == f"(the text of prompt {pick.prompt_id} cannot be read)"


def test_a_card_shows_a_judges_ratings_and_reasons() -> None:
    pick = pick_images(make_score_rows(("llmscore",)), ["llmscore"], 4)[0]
    reasons = {"llmscore": "Two are missing. " * 200}
    said = EMPTY_IMAGE_DETAIL._replace(rationales=reasons, ratings={"llmscore": {"rating": 35.0}})
    (view,) = make_card(pick, said, "two dogs", ()).views
    assert view.ratings == [("rating", "35")] and view.questions == []
    assert view.rationale.startswith("Two are missing.") and len(view.rationale) == 2001


def test_a_card_shows_wanted_read_missing_and_extra_words() -> None:
    pick = pick_images(make_score_rows(("text",)), ["text"], 4)[0]
    prompt = 'a sign "GRAND NEW OPENING"'
    asked = "Which words are written?"
    compared = [
        Element("1.0", asked, "GRAND", 8, 13, "grand", "grand", 1.0),
        Element("1.1", asked, "NEW", 14, 17, "new", None, 0.0),
        Element("1.2", asked, "OPENING", 18, 25, "opening", "opexing", 0.0),
        Element(EXTRA_WORDS_ID, "Extra words", None, None, None, None, "24h", None),
    ]
    elements = [element._asdict() for element in compared]
    (view,) = make_card(pick, EMPTY_IMAGE_DETAIL._replace(elements={"text": elements}), prompt, ()).views
    assert view.compared == ("GRAND NEW OPENING", "grand opexing 24h", "NEW OPENING", "24h")
    assert [(one.span, one.given, one.state) for one in view.questions] == [
        ("NEW", "", "wrong"), ("OPENING", "opexing", "wrong"), ("GRAND", "grand", "right"),
    ]  # fmt: skip
    assert [word.text for word in view.words if word.heat == 100] == ["NEW", "OPENING"]
    elements[-1]["question_id"] = "4"
    (view,) = make_card(pick, EMPTY_IMAGE_DETAIL._replace(elements={"text": elements}), prompt, ()).views
    assert view.compared is None and len(view.questions) == 4


def test_if_lower_is_better_the_worst_images_have_the_highest_scores() -> None:
    found = make_score_rows()
    turned = [one | ({"score": -float(str(one["score"]))} if one["metric"] == "gecko" else {}) for one in found]
    metrics = ["gecko", "clipscore"]
    picks = pick_images(found, metrics, 40)
    mirrored = pick_images(turned, metrics, 40, {"gecko"})
    assert [(pick.key, pick.reasons, pick.ranks) for pick in mirrored] == [
        (pick.key, pick.reasons, pick.ranks) for pick in picks
    ]
    assert [pick.scores["gecko"] for pick in mirrored] == [-pick.scores["gecko"] for pick in picks]
    worst = next(pick for pick in mirrored if ("worst", "gecko") in {(one.kind, one.metric) for one in pick.reasons})
    assert "among the worst by gecko" in make_card(worst, EMPTY_IMAGE_DETAIL, "a star", ()).why
