"""PRISM-Bench and Qwen-Image-Bench ask judges the right questions and convert replies to the right scores."""

import json
from pathlib import Path
from typing import Any

import pytest

from plugins.third_party_benchmarks.tests.made_checkouts import PRISM_BENCH_FILES, QWEN_IMAGE_BENCH_FILES
from plumbline.operators.base.errors import RowError
from plumbline.operators.metrics.metric import Evidence, average_images
from plumbline.operators.metrics.wording import read_prompt_template
from plumbline.operators.metrics.writing import UnreadableReply
from plumbline.operators.models.vqa_profiles import VqaProfile
from plumbline.plugins.third_party_benchmarks.judges.prism_bench import (
    TRACKS_TEMPLATE_NAME,
    PrismBenchConfig,
    read_tracks,
)
from plumbline.plugins.third_party_benchmarks.judges.qwen_image_bench import (
    FACETS_TEMPLATE_NAME,
    QwenImageBenchConfig,
    read_dimensions,
)
from tests.operators.metrics.made_releases import write_release
from tests.operators.metrics.scripted import run
from tests.operators.tiny import CLIP_FLANT5_PROFILE

DIMENSION_BY_NAME = {one.name: one for one in read_dimensions(read_prompt_template(FACETS_TEMPLATE_NAME))}


def make_evidence(verdict: Any) -> Evidence:
    return Evidence({"ratings": [rating._asdict() for rating in verdict.ratings], "rationale": verdict.rationale})


def get_profile(role: str) -> VqaProfile:
    return CLIP_FLANT5_PROFILE


def make_reply(**rated: Any) -> str:
    return json.dumps({**rated, "rationale": "So."})


# PRISM-Bench


@pytest.mark.parametrize("track", read_tracks(read_prompt_template(TRACKS_TEMPLATE_NAME)))
def test_prism_bench_uses_the_prompts_track_for_alignment_but_not_for_aesthetics(track: str) -> None:
    ran = run(
        PrismBenchConfig().inspect("a\n {sad} clown", skills=(track,)),
        [make_reply(alignment=4), make_reply(aesthetics=9)],
    )
    ((alignment, aesthetics),) = ran.rounds
    aim, faults = read_tracks(read_prompt_template(TRACKS_TEMPLATE_NAME))[track][1:]
    assert f"{aim}. Rate" in alignment.messages[0].text and f"\n{faults}\n" in alignment.messages[0].text
    assert all("\na {sad} clown\n" in request.messages[0].text for request in (alignment, aesthetics))
    scores = {part: PrismBenchConfig(part=part).score(make_evidence(ran.result)).score
              for part in ("alignment", "aesthetics", "overall")}  # fmt: skip
    assert scores == {"alignment": 4, "aesthetics": 9, "overall": 6.5}
    chosen = run(
        PrismBenchConfig(track=track).inspect("a {sad} clown"), [make_reply(alignment=4), make_reply(aesthetics=9)]
    )
    assert chosen.rounds == ran.rounds


@pytest.mark.parametrize("skills", [(), ("animal",), ("style", "entity")])
def test_prism_bench_needs_exactly_one_track_among_the_skills(skills: tuple[str, ...]) -> None:
    ran = run(PrismBenchConfig().inspect("a clown", skills=skills))
    assert isinstance(ran.result, RowError) and ran.result.kind == "no_track"
    assert all(repr(skill) in ran.result.message for skill in skills)


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ('```json\n{"justification": "Well.", "score": 7,}\n```', 7),
        ('{"score": 3.5}', 3.5),
        ('{"score": "7"}', None),
        ('{"score": 11}', None),
        ('{"score": NaN}', None),
        ("{'score': 7}", None),
        ("[]", None),
        ("", None),
    ],
)
def test_prism_bench_can_use_its_published_wording(said: str, score: float, tmp_path: Path) -> None:
    metric = PrismBenchConfig(wording=write_release(tmp_path, PRISM_BENCH_FILES), seed=3).complete_options(get_profile)
    program = metric.inspect("a  {red} dog", skills=("text_rendering",))
    if score is None:
        with pytest.raises(UnreadableReply):
            run(program, [said, said])
        return
    ran = run(program, [said, '{"score": 1}'])
    assert [request.messages[0].text for request in ran.rounds[0]] == ["6 {a  {red} dog}", "8 a  {red} dog"]
    assert {(request.max_tokens, request.temperature, request.seed) for request in ran.rounds[0]} == {(1024, 0.0, 3)}
    assert metric.score(make_evidence(ran.result)).score == (score + 1) / 2


# Qwen-Image-Bench


def test_qwen_image_bench_has_23_capabilities_with_56_facets_in_five_dimensions() -> None:
    facets = [(name, *facet.split(": ")) for name, one in DIMENSION_BY_NAME.items() for facet in one.facets]
    assert (len(DIMENSION_BY_NAME), len({facet[1] for facet in facets}), len(facets)) == (5, 23, 56)


def make_marks(dimension: str, **given: Any) -> dict[str, Any]:
    """Return a judge's reply on a dimension: the given marks by facet, and N/A for all other facets."""
    one = DIMENSION_BY_NAME[dimension]
    return {f"{one.key}: {facet}": given.get(facet.split(": ")[1].replace(" ", "_"), "N/A") for facet in one.facets}


def test_facet_marks_are_averaged_by_capability_then_by_dimension() -> None:
    metric = QwenImageBenchConfig()
    quality = make_marks("Quality", Physical_Logic=0, Material_Texture=1, Noise="2", Resolution=1)
    fidelity = make_marks("Real-world Fidelity", Animals=2)
    skills = ("Real-world Fidelity / World Knowledge / Animals", "Quality / Detail / Noise", "animals")
    replies = [f"<think>{{It}} is so.</think>\n{make_reply(**quality)}", make_reply(**fidelity)]
    ran = run(metric.inspect("a cat", skills=skills), replies)
    texts = [request.messages[0].text for request in ran.rounds[0]]
    assert ["Judge the Quality of" in texts[0], "Judge the Real-world Fidelity of" in texts[1]] == [True, True]
    assert json.loads(ran.rounds[0][0].schema)["properties"]["quality: Detail: Noise"]["anyOf"][1]["enum"] == ["N/A"]
    scored = metric.score(make_evidence(ran.result))
    realism, detail, resolution = (0 + 60) / 2, 100, 60
    assert {rating.name: rating.value for rating in scored.ratings or ()} == pytest.approx(
        {
            "quality": (realism + detail + resolution) / 3,
            "quality: Realism": realism,
            "quality: Detail": detail,
            "quality: Resolution": resolution,
            "real_world_fidelity": 100,
            "real_world_fidelity: World Knowledge": 100,
        }
    )
    assert scored.score == pytest.approx(((realism + detail + resolution) / 3 + 100) / 2)


def test_a_capability_is_averaged_over_the_images_that_have_a_mark_for_it() -> None:
    metric, scored = QwenImageBenchConfig(), []
    for given in ({"Noise": 2, "Resolution": 1}, {"Noise": 0}):
        ran = run(metric.inspect("a cat", skills=("Quality",)), [make_reply(**make_marks("Quality", **given))])
        scored.append(metric.score(make_evidence(ran.result)))
    found = {rating.name: rating.value for rating in average_images(scored).ratings or ()}
    assert found == {"quality": 40, "quality: Detail": 50, "quality: Resolution": 60}


def test_without_skills_all_dimensions_are_judged_and_without_marks_there_is_no_score() -> None:
    ran = run(QwenImageBenchConfig().inspect("a cat"), [make_reply(**make_marks(name)) for name in DIMENSION_BY_NAME])
    scored = QwenImageBenchConfig().score(make_evidence(ran.result))
    assert scored.score is None and scored.error is not None and scored.error.kind == "no_questions"


@pytest.mark.parametrize("said", [3, -1, 0.5, "perhaps", None, True])
def test_an_invalid_mark_is_an_unreadable_reply(said: Any) -> None:
    replies = [make_reply(**make_marks("Quality", Noise=said))]
    with pytest.raises(UnreadableReply):
        run(QwenImageBenchConfig().inspect("a cat", skills=("Quality",)), replies, replies)


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ('<think>{"B": 0}</think>{"A": {"x": {"score": 2}, "y": {"score": "n/a"}}, "B": {"z": {"score": 0}}}', 50),
        ('Here: {"x": {"score": 1}, "z": {"score": "2"}} indeed', 80),
        ('{"B": {"x": {"score": 1}, "Y": 2}, "note": "none"}', 80),
        ('{"B": {"x": {"score": 1}, "new": {"score": 2}, "odd": {"score": "good"}}}', 80),
        ('{"A": {"x": {"score": null}}}', None),
    ],
)  # fmt: skip
def test_marks_are_read_in_the_same_way_as_by_upstreams_code(said: str, score: float | None, tmp_path: Path) -> None:
    """Facets x and y belong to capability A, and z to B; a facet named Y counts as y."""
    metric = QwenImageBenchConfig(wording=write_release(tmp_path, QWEN_IMAGE_BENCH_FILES)).complete_options(get_profile)
    ran = run(metric.inspect("a  {red} <image>", skills=("Quality / A / x",)), [said])
    ((request,),) = ran.rounds
    assert request.messages[0].text == "Of a  {red} <image>\n\njudge Quality: Q. {}" and request.system == "You judge."
    assert request.image_at == len("Of a  {red} <image>\n") and request.max_tokens == 4096
    assert metric.score(make_evidence(ran.result)).score == score


def test_a_reply_without_a_json_object_is_unreadable(tmp_path: Path) -> None:
    metric = QwenImageBenchConfig(wording=write_release(tmp_path, QWEN_IMAGE_BENCH_FILES)).complete_options(get_profile)
    for said in ("[1]", "<think>{}</think>", '{"A": {"x": Infinity}}'):
        with pytest.raises(UnreadableReply):
            run(metric.inspect("a", skills=("Quality",)), [said])
