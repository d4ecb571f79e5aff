"""Which runs stay: the newest, one of a day, a week or a month, those that are named, and always the newest one."""

from datetime import UTC, datetime, timedelta

import pytest

from operators.errors import ConfigError
from pipelines.cells.runs import Run
from pipelines.keeping.config import KeepRuns
from pipelines.keeping.retention import kept_runs

FIRST = datetime(2026, 1, 1, 2, tzinfo=UTC)


def runs_of(days: int, *, benchmark: str = "small", a_day: int = 2) -> list[Run]:
    """Runs of so many days in a row, some each day, eight hours apart."""
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
