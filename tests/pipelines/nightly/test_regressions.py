"""A run is compared with the newest comparable earlier run, and reported even if other runs are damaged."""

import json
from pathlib import Path
from typing import Any

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.nightly import regressions
from plumbline.pipelines.nightly.nightly_config import NightConfig
from plumbline.pipelines.nightly.outcome import NightOutcome, get_outcome_path, read_outcome
from plumbline.pipelines.nightly.regressions import (
    ComparedRun,
    compare_run,
    find_baseline,
    make_outcomes,
    publish_outcome,
)
from plumbline.pipelines.store.store import Store
from tests.commands import open_store_at
from tests.operators.report.made import MadeRun, draw_noisy_score, make_plain_prompts, make_run

METRICS = {"gecko": {"kind": "gecko", "model": "vqa"}, "clipscore": {"kind": "clipscore", "model": "clip"}}
MODELS = {"vqa": {"checkpoint": "a"}, "clip": {"checkpoint": "b"}}
NIGHT_MANIFEST: dict[str, Any] = {
    "benchmark": "own",
    "generators": ["atlas", "flint"],
    "metrics": list(METRICS),
    "exit_code": 0,
    "config": {"metrics": METRICS, "models": MODELS},
}
TONIGHTS_RUN = "2026-11-23"
EARLIER_RUNS = ("2026-11-20", "2026-11-21", "2026-11-22")


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return open_store_at(tmp_path_factory.mktemp("store"))


def publish(store: Store, run_id: str, *, is_reported: bool = True, **manifest: Any) -> None:
    store.write_text(f"runs/{run_id}/manifest.json", json.dumps(NIGHT_MANIFEST | manifest))
    if is_reported:
        outcome = NightOutcome(
            run_id=run_id, exit_code=0, benchmark="own", began="", ended="", report="", counts={"coverage": 1.0},
            compared_with=None, not_compared="", regressions=[], improvements=[], sentences=[],
        )  # fmt: skip
        store.write_text(get_outcome_path(run_id), json.dumps(outcome.to_json()))
        assert read_outcome(store, run_id) == outcome


def compare(run: MadeRun, config: NightConfig) -> ComparedRun:
    return compare_run(run.store, run.run_id, config, sources=None, assert_lease=lambda: None)


def report_night(run: MadeRun, config: NightConfig) -> NightOutcome:
    (outcome,) = make_outcomes([compare(run, config)], config)
    return publish_outcome(run.store, outcome, config, lambda: None)


def test_the_newest_reported_run_is_used_before_newer_unreported_ones(store: Store) -> None:
    for run_id in EARLIER_RUNS:
        publish(store, run_id, is_reported=False)
    publish(store, TONIGHTS_RUN, is_reported=False)
    publish(store, "2026-11-24")
    assert find_baseline(store, TONIGHTS_RUN, NIGHT_MANIFEST, "previous").run_id == EARLIER_RUNS[2], "never a later one"
    publish(store, EARLIER_RUNS[1])
    assert find_baseline(store, TONIGHTS_RUN, NIGHT_MANIFEST, "previous").run_id == EARLIER_RUNS[1]
    publish(store, EARLIER_RUNS[2])
    assert find_baseline(store, TONIGHTS_RUN, NIGHT_MANIFEST, "previous").run_id == EARLIER_RUNS[2]


def test_a_night_of_few_prompts_does_not_claim_that_there_is_no_regression(tmp_path: Path) -> None:
    for prompts, said in ((4, "too few prompts to detect a regression since"), (12, "no regression since")):
        folder, texts = tmp_path / str(prompts), make_plain_prompts(prompts)
        make_run(folder, prompts=texts, run_id="20260101-000000-000001")
        run = make_run(folder, prompts=texts, score=lambda *at: draw_noisy_score(*at) + at[2] % 2 / 500)
        outcome = report_night(run, NightConfig())
        assert said in outcome.summarize() and outcome.can_tell == (prompts == 12)


OTHER_VALUES = {
    "benchmark": {"benchmark": "other"},
    "generators": {"generators": ["golem"]},
    "over budget": {"exit_code": 1},
    "metrics": {"config": {"metrics": {"dsg": {"kind": "dsg"}}, "models": MODELS}},
    "models": {"config": {"metrics": METRICS, "models": {"vqa": {"checkpoint": "z"}, "clip": {"checkpoint": "z"}}}},
}
REASONS = {
    "benchmark": "its benchmark is 'other'",
    "generators": "the two runs share no generator",
    "over budget": "more of its rows failed than its budget allows",
    "metrics": "the settings or models of gecko and clipscore differ",
    "models": "the settings or models of gecko and clipscore differ",
}


@pytest.mark.parametrize("what", OTHER_VALUES)
def test_a_run_that_cannot_be_compared_is_skipped_with_the_reason(what: str, store: Store) -> None:
    publish(store, EARLIER_RUNS[1], **OTHER_VALUES[what])
    publish(store, EARLIER_RUNS[2], **OTHER_VALUES[what])
    found = find_baseline(store, TONIGHTS_RUN, NIGHT_MANIFEST, "previous")
    reason = f"2026-11-22 cannot be compared with it ({REASONS[what]}), nor can 1 earlier run"
    assert (found.run_id, found.reason) == (None, reason)
    publish(store, EARLIER_RUNS[0])
    assert find_baseline(store, TONIGHTS_RUN, NIGHT_MANIFEST, "previous").run_id == EARLIER_RUNS[0]
    named = find_baseline(store, TONIGHTS_RUN, NIGHT_MANIFEST, EARLIER_RUNS[2])
    assert (named.run_id, named.reason) == (None, f"nightly.compare=2026-11-22: {REASONS[what]}")


def test_a_run_can_be_compared_with_the_run_of_its_benchmark_in_a_suite(store: Store) -> None:
    publish(store, EARLIER_RUNS[1])
    publish(store, EARLIER_RUNS[2])
    for suite, benchmark in (("release", "own"), ("others", "other")):
        store.write_json(f"suites/{suite}/suite.json", {"runs": {benchmark: EARLIER_RUNS[1]}, "exit_code": 0})
    assert find_baseline(store, TONIGHTS_RUN, NIGHT_MANIFEST, "release").run_id == EARLIER_RUNS[1]
    reason = "nightly.compare=others: that suite has no run of own"
    assert find_baseline(store, TONIGHTS_RUN, NIGHT_MANIFEST, "others") == (None, reason)


def test_runs_with_one_common_metric_can_be_compared(store: Store) -> None:
    publish(store, EARLIER_RUNS[2], config={"metrics": METRICS, "models": MODELS | {"clip": {"checkpoint": "z"}}})
    assert find_baseline(store, TONIGHTS_RUN, NIGHT_MANIFEST, "previous").run_id == EARLIER_RUNS[2]


def test_a_damaged_run_is_skipped_and_an_unknown_name_is_refused(store: Store) -> None:
    publish(store, EARLIER_RUNS[1])
    store.write_text(f"runs/{EARLIER_RUNS[2]}/manifest.json", "{")
    assert find_baseline(store, TONIGHTS_RUN, NIGHT_MANIFEST, "previous").run_id == EARLIER_RUNS[1]
    with pytest.raises(ConfigError, match=r"nightly\.compare=nobodys: no such run"):
        find_baseline(store, TONIGHTS_RUN, NIGHT_MANIFEST, "nobodys")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"run_id": 1}'])
def test_a_damaged_outcome_counts_as_missing(text: str, store: Store) -> None:
    store.write_text(get_outcome_path(TONIGHTS_RUN), text)
    assert read_outcome(store, TONIGHTS_RUN) is None


def test_the_page_of_trends_recognises_checkpoints_by_the_nights_pattern(tmp_path: Path) -> None:
    run = make_run(tmp_path, generators=("flux-at1", "flux-at2"))
    named = NightConfig(checkpoints="(?P<family>.+)-at(?P<step>[0-9]+)")
    trends = report_night(run, named).trends
    assert trends == f"{tmp_path}/store/trends/made/trends.html" and 'id="steps"' in Path(trends).read_text()


@pytest.mark.parametrize("error", [ConfigError("odd"), ValueError("odd")])
def test_a_page_of_trends_that_cannot_be_written_changes_nothing_else(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(regressions, "write_trends", fail)
    run = make_run(tmp_path)
    assert "odd" in compare(run, NightConfig()).trends.problem
    outcome = report_night(run, NightConfig())
    assert outcome.trends is None and outcome.exit_code == 0 and read_outcome(run.store, run.run_id) == outcome
