"""Two runs are compared prompt by prompt, and the report lists only real changes."""

import math
from typing import Any

import pyarrow as pa
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.report.changes import Changes, compare_runs, correct_p_values_together
from plumbline.operators.results.summary import Skills
from tests.operators.report.made import draw_noisy_score
from tests.operators.tallied import wrap_scores

MANIFEST = {"config": {"store": "x", "metrics": {"gecko": {"kind": "gecko"}}}, "models": {}, "versions": {"torch": "1"}}
GECKO_CONFIG = {"kind": "gecko", "model": "vqa"}
SKILLS = Skills((str(prompt), ["counting" if prompt < 15 else "colour"]) for prompt in range(40))


def make_scores(gain: float = 0.0, *, generators: tuple[str, ...] = ("borealis", "cobalt"), first: int = 0) -> pa.Table:
    """Return scores for the prompts from `first` on; borealis scores higher by `gain`."""
    return rows.table(
        [
            {"image_id": f"{generator}{prompt}", "prompt_id": str(prompt), "generator": generator, "metric": "gecko",
             "score": draw_noisy_score(generator, "gecko", prompt) + (gain if generator == "borealis" else 0)}
            for generator in generators for prompt in range(first, 40)
        ],
        schemas.SCORES,
    )  # fmt: skip


def compare_tables(before: pa.Table, after: pa.Table, **manifest: object) -> Changes:
    return compare_runs(
        wrap_scores(before), wrap_scores(after), SKILLS, (MANIFEST | {"run_id": "r1"}, MANIFEST | manifest)
    )


def test_equal_scores_are_reported_as_unchanged() -> None:
    found = compare_tables(make_scores(), make_scores())
    assert {one.verdict for one in found.overall.rows} == {"unchanged"}
    assert [str(one) for one in found.sentences] == ["Nothing changed."]
    assert found.settings.rows == [] and found.by_skill.rows == [] and found.run_id == "r1"


@pytest.mark.parametrize(("gain", "verdict"), [(0.05, "better"), (-0.05, "worse")])
def test_a_change_has_its_direction_and_size(gain: float, verdict: str) -> None:
    found = compare_tables(make_scores(), make_scores(gain))
    borealis, cobalt = found.overall.rows
    assert (borealis.verdict, cobalt.verdict) == (verdict, "unchanged")
    assert borealis.duel.difference == pytest.approx(gain) and borealis.after == pytest.approx(borealis.before + gain)
    assert math.isnan(borealis.duel.low), "equal differences give no estimate of the variance"
    assert str(found.sentences[0]).startswith(f"borealis is {verdict} by gecko (")
    assert str(found.sentences[-1]) == "No clear change: cobalt."
    assert {one.duel.skill for one in found.by_skill.rows} == {"counting", "colour"}


def test_too_few_prompts_never_lead_to_the_claim_that_nothing_changed() -> None:
    """Six comparisons share the correction: two generators, each overall and for two skills."""
    for first, said in (
        (
            33,
            "Too few prompts to say what changed: even if all of 7 prompts agreed, no difference would be clear among",
        ),
        (26, "borealis is worse by gecko"),
    ):
        found = compare_tables(make_scores(first=first), make_scores(-0.05, first=first))
        assert str(found.sentences[0]).startswith(said) and found.can_tell == (first == 26)
    assert compare_tables(make_scores(first=33), make_scores(first=33)).can_tell, "equal scores are certainly unchanged"


def test_only_prompts_scored_in_both_runs_are_compared_and_the_rest_is_named() -> None:
    found = compare_tables(make_scores(), make_scores(generators=("borealis", "drift"), first=10))
    (borealis,) = found.overall.rows
    assert borealis.duel.n == 30 and borealis.verdict == "unchanged"
    assert [str(one) for one in found.sentences] == [
        "Nothing changed in the scores that both runs have.",
        "Only in this run: generator drift.",
        "Only in the earlier run: generator cobalt and 10 prompts.",
    ]


def test_an_added_generator_is_reported_as_a_change() -> None:
    found = compare_tables(make_scores(), make_scores(generators=("borealis", "cobalt", "drift")))
    assert [str(one) for one in found.sentences] == [
        "Nothing changed in the scores that both runs have.",
        "Only in this run: generator drift.",
    ]


def test_scores_that_only_one_run_has_are_counted_by_generator_and_metric() -> None:
    failed = make_scores().to_pylist()
    for row in failed:
        if row["generator"] == "cobalt" and int(row["prompt_id"]) < 3:
            row["score"] = None
    found = compare_tables(rows.table(failed, schemas.SCORES), make_scores())
    assert str(found.sentences[-1]) == "Only in this run: scores of cobalt by gecko on 3 prompts."


def test_ranks_and_not_means_decide_if_a_change_is_an_improvement() -> None:
    """Generator borealis is slightly better than before on nine of ten prompts, and much worse on the tenth."""
    mixed = make_scores().to_pylist()
    for row in mixed:
        if row["generator"] == "borealis":
            row["score"] += 0.05 + int(row["prompt_id"]) * 1e-4 if int(row["prompt_id"]) % 10 else -0.9
    borealis = compare_tables(make_scores(), rows.table(mixed, schemas.SCORES)).overall.rows[0]
    assert borealis.duel.difference < 0 < borealis.duel.effect and borealis.verdict == "better"
    said = str(compare_tables(make_scores(), rows.table(mixed, schemas.SCORES)).sentences[0])
    assert said.startswith("borealis is better by gecko (−0.0") and "in the mean, signed ranks +0." in said


def test_different_settings_are_named_but_not_the_address_of_the_store() -> None:
    config = {"store": "y", "metrics": {"gecko": {"kind": "gecko", "threshold": 0.5, "about": "asks"}}}
    found = compare_tables(make_scores(), make_scores(), config=config)
    assert [tuple(one) for one in found.settings.rows] == [("config.metrics.gecko.threshold", "– → 0.5")]


@pytest.mark.parametrize(
    ("after", "difference"),
    [
        (
            {"config": {"metrics": {"gecko": {**GECKO_CONFIG, "threshold": 0.5}}}},
            "threshold – → 0.5",
        ),
        ({"models": {"answers:vqa": {"label": "v2"}}}, "models.model.label v1 → v2"),
        ({"config": {"models": {"vqa": {"image_batch": 8}}}}, ""),
    ],
)
def test_a_metric_with_other_settings_or_models_is_not_compared(after: dict[str, Any], difference: str) -> None:
    config = {"metrics": {"gecko": GECKO_CONFIG}, "models": {"vqa": {"image_batch": 16}}}
    manifest = {"config": config, "models": {"answers:vqa": {"label": "v1"}}, "versions": {}}
    later = {**manifest, **after, "config": {**config, **after.get("config", {})}}
    found = compare_runs(wrap_scores(make_scores()), wrap_scores(make_scores(0.05)), SKILLS, (manifest, later))
    said = str(found.sentences[0])
    if difference:
        assert said == f"gecko is not the same metric in both runs, so its scores are not compared: {difference}."
        assert found.overall.rows == [] and found.settings.rows
    else:
        assert said.startswith("borealis is better")


def test_runs_without_a_common_generator_say_so() -> None:
    found = compare_tables(make_scores(generators=("borealis",)), make_scores(generators=("drift",)))
    assert found.overall.rows == [] and "share no generator" in str(found.sentences[0])


@pytest.mark.parametrize(("gain", "verdict"), [(-0.05, "better"), (0.05, "worse")])
def test_if_lower_is_better_a_fall_is_an_improvement_and_keeps_its_sign(gain: float, verdict: str) -> None:
    found = compare_tables(make_scores(), make_scores(gain), lower_is_better=["gecko"])
    borealis, cobalt = found.overall.rows
    assert (borealis.verdict, cobalt.verdict) == (verdict, "unchanged")
    assert borealis.duel.difference == pytest.approx(gain) and (borealis.duel.effect > 0) == (verdict == "better")
    assert borealis.movement.towards == (1 if gain > 0 else -1)
    assert str(found.sentences[0]) == (
        f"borealis is {verdict} by gecko ({'+' if gain > 0 else '−'}0.050, lower is better)."
    )
    assert {one.verdict for one in found.by_skill.rows} == {verdict}


def test_changes_are_corrected_for_all_comparisons_of_both_runs() -> None:
    """All 8 prompts got worse, so p is 1/128: significant after Holm's correction for 4 comparisons, but not for 8."""
    alone = compare_tables(make_scores(first=32), make_scores(-0.05, first=32))
    assert [(one.generator, one.verdict, one.duel.p_holm) for one in alone.clear] == [("borealis", "worse", 1 / 32)] * 2
    assert correct_p_values_together([alone]) == [alone]
    for changes in correct_p_values_together([alone, alone]):
        fell = [change for change in changes.every if change.generator == "borealis"]
        assert [(change.verdict, change.duel.p_holm) for change in fell] == [("not clear", 1 / 16)] * 2
        assert not changes.can_tell and changes.sentences == alone.sentences
