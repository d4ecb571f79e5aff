"""Retention keeps the newest runs, one per day, week or month, named runs, and always the very newest."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.cells.lease import Clock, LeaseHeld, LeaseLost, read_lease, take_lease
from plumbline.pipelines.cells.runs import Run, run_ids
from plumbline.pipelines.maintenance.gc_config import KeepRuns
from plumbline.pipelines.maintenance.retention import kept_runs, retain
from plumbline.pipelines.maintenance.working_sweeps import DELETING, send_heartbeats
from tests.commands import store_at

FIRST = datetime(2026, 1, 1, 2, tzinfo=UTC)


def runs_of(days: int, *, benchmark: str = "small", a_day: int = 2) -> list[Run]:
    """Return runs on consecutive days, several per day, eight hours apart."""
    moments = [FIRST + timedelta(days=day, hours=8 * turn) for day in range(days) for turn in range(a_day)]
    return [
        Run(f"{benchmark}-{began:%m%d-%H}", {"benchmark": benchmark, "began": began.isoformat()}, "", latest=False)
        for began in moments
    ]


@pytest.mark.parametrize(
    "rules, expected",
    [
        (KeepRuns(last=3), ["0208-10", "0209-02", "0209-10"]),
        (KeepRuns(daily=2), ["0208-10", "0209-10"]),
        (KeepRuns(weekly=3), ["0201-10", "0208-10", "0209-10"]),
        (KeepRuns(monthly=6), ["0131-10", "0209-10"]),
        (KeepRuns(last=1, weekly=2, monthly=2), ["0131-10", "0208-10", "0209-10"]),
        (KeepRuns(last=1, named=("small-0104-02",)), ["0104-02", "0209-10"]),
    ],
)
def test_each_rule_keeps_its_runs(rules: KeepRuns, expected: list[str]) -> None:
    assert sorted(kept_runs(runs_of(40), rules)) == [f"small-{name}" for name in expected]


def test_the_last_runs_are_those_that_ended_last_whatever_the_clocks_say() -> None:
    first, second, third = runs_of(3, a_day=1)
    assert kept_runs([second, third, first], KeepRuns(last=2)) == {third.run_id, first.run_id}


def test_without_a_rule_all_runs_stay() -> None:
    runs = runs_of(5)
    assert (
        kept_runs(runs, KeepRuns()) == kept_runs(runs, KeepRuns(named=("small-0102-02",))) == {r.run_id for r in runs}
    )


def test_the_newest_run_and_damaged_ones_stay_whatever_the_rules_say() -> None:
    runs = [*runs_of(3), Run("damaged", None, "not a manifest", latest=False)]
    runs[0] = runs[0]._replace(latest=True)
    assert kept_runs(runs, KeepRuns(last=1)) == {runs[0].run_id, "small-0103-10", "damaged"}


def test_each_benchmark_keeps_its_own() -> None:
    runs = [*runs_of(2), *runs_of(30, benchmark="nightly")]
    assert kept_runs(runs, KeepRuns(last=1)) == {"small-0102-10", "nightly-0130-10"}


def test_a_name_that_no_run_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"keep_runs\.named: no run is called 'best'"):
        kept_runs(runs_of(1), KeepRuns(last=1, named=("best",)))
    with pytest.raises(ConfigError, match=r"keep_runs\.daily: expected 0 or more, got -1"):
        KeepRuns(daily=-1)


class Standing:
    """A store with runs of two benchmarks."""

    def __init__(self, url: str) -> None:
        self.store = store_at(url)
        for run in [*runs_of(3, a_day=1), *runs_of(2, a_day=1, benchmark="other")]:
            self.store.write_text(f"runs/{run.run_id}/manifest.json", json.dumps(run.manifest))
            self.store.write_text(f"runs/{run.run_id}/errors.parquet", "")

    def retain(self, *besides: str, hold: Callable[[], None] = lambda: None) -> tuple[str, ...]:
        return retain(self.store, KeepRuns(last=1), job="night", benchmark="small", besides=besides, hold=hold)

    def runs(self) -> set[str]:
        return {run_id for run_id in run_ids(self.store) if run_id.startswith("small")}


@pytest.fixture
def standing(tmp_path: Path) -> Standing:
    return Standing(str(tmp_path))


NEWEST = "small-0103-02"


def test_of_one_benchmark_runs_go_whole_but_for_those_that_somebody_needs(standing: Standing) -> None:
    with send_heartbeats(standing.store, run="small-0101-02"):
        assert standing.retain("small-0102-02") == ()
    assert standing.retain("small-0102-02") == ("small-0101-02",)
    assert standing.retain() == ("small-0102-02",)
    assert standing.store.folders("runs") == ["other-0101-02", "other-0102-02", NEWEST]
    number = read_lease(standing.store, DELETING).number
    assert standing.retain() == () and read_lease(standing.store, DELETING).number == number, "no sweep plans again"


def test_no_run_goes_where_another_deletes_or_the_night_has_lost_its_lease(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise LeaseLost("another is at work")

    with pytest.raises(LeaseLost):
        standing.retain(hold=lost)
    other = take_lease(standing.store, DELETING, "gc")
    monkeypatch.setattr(Clock, "pause", lambda self, seconds: other.renew())
    with pytest.raises(LeaseHeld, match=r"gc on .* is at work"):
        standing.retain()
    other.release()
    assert len(standing.runs()) == 3 and len(standing.retain()) == 2
