"""Two runs are compared prompt by prompt: what did not change is not called a change, and what did is."""

from typing import Any

import pyarrow as pa
import pytest

from operators import rows
from operators.report.changes import Changes, compare
from tests.operators.report.made import noisy

MANIFEST = {"config": {"store": "x", "metrics": {"gecko": {"kind": "gecko"}}}, "models": {}, "versions": {"torch": "1"}}
GECKO = {"kind": "gecko", "model": "vqa"}
SKILLS = {str(prompt): ["counting" if prompt < 15 else "colour"] for prompt in range(40)}


def table(gain: float = 0.0, *, generators: tuple[str, ...] = ("borealis", "cobalt"), first: int = 0) -> pa.Table:
    """Scores of which borealis' are higher by `gain`; of the prompts from `first` on."""
    return rows.table(
        [
            {"image_id": f"{generator}{prompt}", "prompt_id": str(prompt), "generator": generator, "metric": "gecko",
             "score": noisy(generator, "gecko", prompt) + (gain if generator == "borealis" else 0)}
            for generator in generators for prompt in range(first, 40)
        ],
        rows.SCORES,
    )  # fmt: skip


def changed(before: pa.Table, after: pa.Table, **manifest: object) -> Changes:
    return compare(before, after, SKILLS, (MANIFEST | {"run_id": "r1"}, MANIFEST | manifest))


def test_the_same_scores_are_unchanged() -> None:
    found = changed(table(), table())
    assert {one.verdict for one in found.overall} == {"unchanged"}
    assert [str(one) for one in found.sentences] == ["Nothing changed."]
    assert found.settings == [] and found.by_skill == [] and found.run_id == "r1"


@pytest.mark.parametrize(("gain", "verdict"), [(0.05, "better"), (-0.05, "worse")])
def test_a_change_has_its_direction_and_size(gain: float, verdict: str) -> None:
    found = changed(table(), table(gain))
    borealis, cobalt = found.overall
    assert (borealis.verdict, cobalt.verdict) == (verdict, "unchanged")
    assert borealis.difference == pytest.approx(gain) and borealis.after == pytest.approx(borealis.before + gain)
    assert borealis.low <= borealis.difference <= borealis.high
    assert str(found.sentences[0]).startswith(f"borealis is {verdict} by gecko (")
    assert str(found.sentences[-1]) == "No clear change: cobalt."
    assert {one.skill for one in found.by_skill} == {"counting", "colour"}


def test_only_prompts_that_both_scored_are_compared_and_the_rest_is_named() -> None:
    found = changed(table(), table(generators=("borealis", "drift"), first=10))
    (borealis,) = found.overall
    assert borealis.n == 30 and borealis.verdict == "unchanged"
    assert (found.added, found.removed) == (["generator drift"], ["generator cobalt"])


def test_settings_that_differ_are_named_and_the_place_of_the_store_is_not_one() -> None:
    config = {"store": "y", "metrics": {"gecko": {"kind": "gecko", "threshold": 0.5}}}
    found = changed(table(), table(), config=config)
    assert [tuple(one) for one in found.settings] == [("config.metrics.gecko.threshold", "– → 0.5")]


@pytest.mark.parametrize(
    ("after", "difference"),
    [
        (
            {"config": {"metrics": {"gecko": {**GECKO, "threshold": 0.5}}}},
            "config.metrics.gecko.threshold – → 0.5",
        ),
        ({"models": {"answers:vqa": {"label": "v2"}}}, "models.answers:vqa.label v1 → v2"),
        ({"config": {"models": {"vqa": {"image_batch": 8}}}}, ""),
    ],
)
def test_a_metric_with_other_settings_or_models_is_not_compared(after: dict[str, Any], difference: str) -> None:
    config = {"metrics": {"gecko": GECKO}, "models": {"vqa": {"image_batch": 16}}}
    manifest = {"config": config, "models": {"answers:vqa": {"label": "v1"}}, "versions": {}}
    later = {**manifest, **after, "config": {**config, **after.get("config", {})}}
    found = compare(table(), table(0.05), SKILLS, (manifest, later))
    said = str(found.sentences[0])
    if difference:
        assert said == f"gecko is not the same metric in both runs, so its scores are not compared: {difference}."
        assert found.overall == [] and found.settings
    else:
        assert said.startswith("borealis is better")


def test_runs_without_a_common_generator_say_so() -> None:
    found = changed(table(generators=("borealis",)), table(generators=("drift",)))
    assert found.overall == [] and "share no generator" in str(found.sentences[0])
