"""Retention keeps the newest runs, one run per day, week or month, named runs, and always the latest run."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.maintenance.gc_config import RetentionRules
from plumbline.pipelines.maintenance.retention import remove_unkept_runs, select_kept_runs
from plumbline.pipelines.maintenance.running_sweeps import DELETION_LEASE_NAME, send_heartbeats
from plumbline.pipelines.store.lease import Clock, LeaseHeld, LeaseLost, read_lease, take_lease
from plumbline.pipelines.store.runs import Run, list_run_ids
from tests.commands import open_store_at

FIRST_RUN_TIME = datetime(2026, 1, 1, 2, tzinfo=UTC)


def make_runs(days: int, *, benchmark: str = "small", per_day: int = 2) -> list[Run]:
    """Return runs on consecutive days: `per_day` runs each day, eight hours apart."""
    moments = [FIRST_RUN_TIME + timedelta(days=day, hours=8 * turn) for day in range(days) for turn in range(per_day)]
    return [
        Run(f"{benchmark}-{began:%m%d-%H}", {"benchmark": benchmark, "began": began.isoformat()}, "", latest=False)
        for began in moments
    ]


@pytest.mark.parametrize(
    "rules, expected",
    [
        (RetentionRules(last=3), ["0208-10", "0209-02", "0209-10"]),
        (RetentionRules(daily=2), ["0208-10", "0209-10"]),
        (RetentionRules(weekly=3), ["0201-10", "0208-10", "0209-10"]),
        (RetentionRules(monthly=6), ["0131-10", "0209-10"]),
        (RetentionRules(last=1, weekly=2, monthly=2), ["0131-10", "0208-10", "0209-10"]),
        (RetentionRules(last=1, named=("small-0104-02",)), ["0104-02", "0209-10"]),
    ],
)
def test_each_rule_keeps_its_runs(rules: RetentionRules, expected: list[str]) -> None:
    assert sorted(select_kept_runs(make_runs(40), rules)) == [f"small-{name}" for name in expected]


def test_the_last_runs_are_those_that_ended_last_even_if_clocks_disagree() -> None:
    first, second, third = make_runs(3, per_day=1)
    assert select_kept_runs([second, third, first], RetentionRules(last=2)) == {third.run_id, first.run_id}


def test_without_a_rule_all_runs_stay() -> None:
    runs = make_runs(5)
    for rules in (RetentionRules(), RetentionRules(named=("small-0102-02",))):
        assert select_kept_runs(runs, rules) == {run.run_id for run in runs}


def test_the_newest_run_and_damaged_runs_always_stay() -> None:
    runs = [*make_runs(3), Run("damaged", None, "not a manifest", latest=False)]
    runs[0] = runs[0]._replace(latest=True)
    assert select_kept_runs(runs, RetentionRules(last=1)) == {runs[0].run_id, "small-0103-10", "damaged"}


def test_rules_apply_to_each_benchmark_separately() -> None:
    runs = [*make_runs(2), *make_runs(30, benchmark="nightly")]
    assert select_kept_runs(runs, RetentionRules(last=1)) == {"small-0102-10", "nightly-0130-10"}


def test_an_unknown_name_of_a_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"keep_runs\.named: expected runs in the store, got 'best'"):
        select_kept_runs(make_runs(1), RetentionRules(last=1, named=("best",)))
    with pytest.raises(ConfigError, match=r"keep_runs\.daily: expected 0 or more, got -1"):
        RetentionRules(daily=-1)


class TwoBenchmarks:
    """A store with runs of two benchmarks."""

    def __init__(self, url: str) -> None:
        self.store = open_store_at(url)
        for run in [*make_runs(3, per_day=1), *make_runs(2, per_day=1, benchmark="other")]:
            self.store.write_text(f"runs/{run.run_id}/manifest.json", json.dumps(run.manifest))
            self.store.write_text(f"runs/{run.run_id}/errors.parquet", "")

    def remove_unkept_runs(self, *also_keep: str, assert_lease: Callable[[], None] = lambda: None) -> tuple[str, ...]:
        return remove_unkept_runs(
            self.store,
            RetentionRules(last=1),
            job="night",
            benchmark="small",
            also_keep=also_keep,
            assert_lease=assert_lease,
        )

    def list_runs(self) -> set[str]:
        return {run_id for run_id in list_run_ids(self.store) if run_id.startswith("small")}


@pytest.fixture
def two_benchmarks(tmp_path: Path) -> TwoBenchmarks:
    return TwoBenchmarks(str(tmp_path))


NEWEST_RUN = "small-0103-02"


def test_only_unneeded_runs_of_the_given_benchmark_are_removed(two_benchmarks: TwoBenchmarks) -> None:
    with send_heartbeats(two_benchmarks.store, run="small-0101-02"):
        assert two_benchmarks.remove_unkept_runs("small-0102-02") == ()
    assert two_benchmarks.remove_unkept_runs("small-0102-02") == ("small-0101-02",)
    assert two_benchmarks.remove_unkept_runs() == ("small-0102-02",)
    assert two_benchmarks.store.list_folders("runs") == ["other-0101-02", "other-0102-02", NEWEST_RUN]
    number = read_lease(two_benchmarks.store, DELETION_LEASE_NAME).number
    assert (
        two_benchmarks.remove_unkept_runs() == ()
        and read_lease(two_benchmarks.store, DELETION_LEASE_NAME).number == number
    ), "no sweep has to plan again"


def test_no_run_is_removed_during_another_deletion_or_after_the_lease_is_lost(
    two_benchmarks: TwoBenchmarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_lease_lost() -> None:
        raise LeaseLost("another process holds the lease")

    with pytest.raises(LeaseLost):
        two_benchmarks.remove_unkept_runs(assert_lease=raise_lease_lost)
    other = take_lease(two_benchmarks.store, DELETION_LEASE_NAME, "gc")
    monkeypatch.setattr(Clock, "pause", lambda self, seconds: other.renew())
    with pytest.raises(LeaseHeld, match=r"gc on .* is at work"):
        two_benchmarks.remove_unkept_runs()
    other.release()
    assert len(two_benchmarks.list_runs()) == 3 and len(two_benchmarks.remove_unkept_runs()) == 2
