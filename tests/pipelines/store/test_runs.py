"""The runs of a store at any path are listed; a damaged or deleted run does not hide others."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.maintenance.retention import remove_run
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.store.lease import LeaseLost
from plumbline.pipelines.store.runs import (
    commit_run,
    find_newest_run,
    find_run,
    list_run_ids,
    list_runs,
    make_run_newest,
    name_by_date,
    name_by_time,
    read_earlier_runs,
    read_manifest,
    read_runs_newest_first,
)
from plumbline.pipelines.store.store import LATEST_FILE, Store
from tests.commands import open_store_at, run_for_output
from tests.operators.report.made import make_run

OLD_RUN, NEW_RUN = "20260101-000000-000000", "20260102-000000-000000"
NESTED_JSON = "[" * 100_000 + "]" * 100_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with two complete runs."""
    make_run(tmp_path, run_id=OLD_RUN)
    return make_run(tmp_path, run_id=NEW_RUN).store


@pytest.mark.parametrize("name", ["plain", "seeds[12]", "a*", "what?", "runs", "a b%20c"])
def test_runs_are_listed_in_a_store_of_any_name_and_other_stores_are_not(name: str, place: str) -> None:
    store = open_store_at(f"{place}/{name}")
    assert list_run_ids(store) == [] and find_newest_run(store) is None
    for run_id in ("b", "a"):
        store.write_text(f"runs/{run_id}/manifest.json", "{}")
    store.write_text("runs/unfinished/scores.parquet", "")
    store.write_text("runs/a/metaeval/manifest.json", "")
    make_run_newest(store, "a")
    for other in ("seeds1", "ab", "whats"):
        open_store_at(f"{place}/{other}").write_text("runs/c/manifest.json", "{}")
    assert list_run_ids(store) == ["b", "a"] and find_newest_run(store) == "a"


@pytest.mark.parametrize("latest", [b"20991231-000000-000000", b"\xff\xfe\x00", b""])
def test_if_the_newest_run_is_gone_the_run_before_it_is_the_newest(latest: bytes, store: Store) -> None:
    (store.place / LATEST_FILE).write(latest)
    assert find_newest_run(store) == NEW_RUN and find_run(store, "latest") == NEW_RUN
    store.remove_folder(f"runs/{NEW_RUN}")
    assert find_run(store, "latest") == OLD_RUN
    assert write_report(store, "latest").page.run_id == OLD_RUN


@pytest.mark.parametrize(
    "content, complaint",
    [
        (b"", "Expecting value"),
        (b"\x00\xff", "Expecting value"),
        (b"[]", "the whole: Input should be a valid dictionary"),
        (b'{"benchmark": 7}', "benchmark: Input should be a valid string"),
        (b'{"counts": {"rows": "two"}}', "counts.rows: Input should be a valid integer"),
        (NESTED_JSON.encode(), "recursion"),
    ],
    ids=["empty", "binary", "list", "wrong type", "lacking", "nested"],
)
def test_a_damaged_manifest_is_reported_in_one_line_and_the_other_runs_are_shown(
    content: bytes, complaint: str, store: Store
) -> None:
    path = store.place / f"runs/{NEW_RUN}/manifest.json"
    path.write(content)
    with pytest.raises(ConfigError, match=r"run the sweep again, .* or delete the run's folder") as refusal:
        read_manifest(store, NEW_RUN)
    assert str(refusal.value).startswith(f"{path}: not a manifest (") and complaint in str(refusal.value)
    old, new = list_runs(store)
    assert old.manifest is not None and old.problem == ""
    assert new.manifest is None and new.problem == str(refusal.value) and new.latest


@pytest.mark.parametrize("kept", [(), ("benchmark", "generators"), ("counts", "errors", "exit_code", "metrics")])
def test_an_old_manifest_is_listed_with_its_fields(kept: tuple[str, ...], store: Store) -> None:
    content = {key: value for key, value in read_manifest(store, NEW_RUN).items() if key in kept}
    store.write_text(f"runs/{NEW_RUN}/manifest.json", json.dumps(content))
    assert f"{NEW_RUN} (latest)" in run_for_output("status", f"store={store.place.url}")


def test_status_shows_a_damaged_run_with_the_problem(store: Store) -> None:
    store.write_text(f"runs/{NEW_RUN}/manifest.json", "[]")
    said = run_for_output("status", f"store={store.place.url}")
    assert OLD_RUN in said and f"{NEW_RUN} (latest): damaged" in said
    assert f"warning {store.place.url}/runs/{NEW_RUN}/manifest.json: not a manifest" in said


def test_a_run_without_a_readable_earlier_run_is_compared_with_nothing(store: Store) -> None:
    store.write_text(f"runs/{OLD_RUN}/manifest.json", "[]")
    with pytest.raises(ConfigError, match=rf"has no earlier run to compare with; {OLD_RUN} cannot be"):
        write_report(store, "latest", compare="previous")


DAY = datetime(2026, 11, 23, 14, 5, 6, 789, UTC)


def test_runs_named_by_date_or_by_time_are_listed_in_order_of_their_start(store: Store) -> None:
    ids = [
        "20261122-235959-999999",
        "2026-11-23",
        "20261123-020000-000001",
        "2026-11-23-140506",
        "20261124-000000-000000",
    ]
    for run_id in ids[::-1]:
        store.write_text(f"runs/{run_id}/manifest.json", "{}")
    make_run_newest(store, NEW_RUN)
    assert list_run_ids(store) == [OLD_RUN, *ids, NEW_RUN]
    assert [run.run_id for run in read_earlier_runs(store, "2026-11-23-140506")] == [*ids[:3][::-1], OLD_RUN]
    assert find_newest_run(store) == NEW_RUN, "the run that is recorded as having ended last"
    assert [run.run_id for run in read_runs_newest_first(store)][:3] == [NEW_RUN, ids[-1], ids[-2]]


class Runs:
    """Runs in a store, whose ids come from machines with different clocks."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def write(self, run_id: str) -> None:
        commit_run(self.store, run_id, {"run_id": run_id})

    def report(self, run_id: str) -> None:
        self.store.write_text(f"runs/{run_id}/report.html", f"of {run_id}")
        make_run_newest(self.store, run_id)

    def end(self, run_id: str) -> None:
        self.write(run_id)
        self.report(run_id)

    def find_newest_ids(self) -> set[str | None]:
        """Return the newest run's id according to five lookups; the set has a single id if all of them agree."""
        store = self.store
        latest, page = store.read_text(LATEST_FILE), store.read_text("latest/report.html")
        last = next(read_runs_newest_first(store)).run_id
        return {find_newest_run(store), find_run(store, "latest"), (latest or "").strip(), (page or "")[3:], last}


@pytest.fixture
def runs(place: str) -> Runs:
    return Runs(open_store_at(place))


AHEAD_RUN, BEHIND_RUN = "20260102-001000-000000", "20260102-000000-000000"
"""Ids of two runs from machines whose clocks disagree; the run that started later has the smaller id."""


def test_the_newest_run_is_the_run_that_ended_last_even_if_clocks_disagree(runs: Runs) -> None:
    runs.end(AHEAD_RUN)
    assert runs.find_newest_ids() == {AHEAD_RUN}
    runs.end(BEHIND_RUN)
    assert runs.find_newest_ids() == {BEHIND_RUN}
    make_run_newest(runs.store, BEHIND_RUN)
    assert runs.find_newest_ids() == {BEHIND_RUN} and list_run_ids(runs.store) == [AHEAD_RUN, BEHIND_RUN]
    assert [run.run_id for run in read_earlier_runs(runs.store, BEHIND_RUN)] == [AHEAD_RUN]
    assert not list(read_earlier_runs(runs.store, AHEAD_RUN))
    make_run_newest(runs.store, AHEAD_RUN)  # its sweep ran again and found no change, possibly during another sweep
    assert runs.find_newest_ids() == {AHEAD_RUN} and len(runs.store.files("order")) == 2


def test_an_unreported_run_is_not_the_newest_but_a_sweep_reads_it_first(runs: Runs) -> None:
    runs.write(AHEAD_RUN)
    assert find_newest_run(runs.store) == AHEAD_RUN, "there is no other"
    runs.report(AHEAD_RUN)
    runs.write(BEHIND_RUN)
    assert find_newest_run(runs.store) == AHEAD_RUN and next(read_runs_newest_first(runs.store)).run_id == BEHIND_RUN
    runs.end("20260101-000000-000000")
    assert runs.find_newest_ids() == {"20260101-000000-000000"}
    runs.report(BEHIND_RUN)
    assert runs.find_newest_ids() == {BEHIND_RUN}


def test_the_newest_run_is_found_if_its_name_is_damaged_and_another_if_it_is_gone(runs: Runs) -> None:
    store = runs.store
    runs.end(AHEAD_RUN)
    runs.end(BEHIND_RUN)
    for harmed in (b"", b"\xff\xfe", AHEAD_RUN.encode(), b"20991231-000000-000000"):
        (store.place / LATEST_FILE).write(harmed)
        assert find_newest_run(store) == BEHIND_RUN
        make_run_newest(store, BEHIND_RUN)
        assert runs.find_newest_ids() == {BEHIND_RUN}
    remove_run(store, BEHIND_RUN)
    assert find_newest_run(store) == AHEAD_RUN and [place[15:] for place in store.files("order")] == [AHEAD_RUN]


@pytest.mark.parametrize("looks", [0, 1])
def test_a_sweep_that_lost_its_lease_does_not_overwrite_another_run(looks: int, runs: Runs) -> None:
    left = [looks]

    def lose() -> None:
        if not left[0]:
            runs.end("rival")
            raise LeaseLost("another process holds the lease")
        left[0] -= 1

    runs.end(AHEAD_RUN)
    for publish in (
        lambda: commit_run(runs.store, BEHIND_RUN, {}, assert_lease=lose),
        lambda: make_run_newest(runs.store, AHEAD_RUN, assert_lease=lose),
    ):
        runs.end("other")
        left[0] = looks
        with pytest.raises(LeaseLost):
            publish()
        assert runs.find_newest_ids() == {"rival"}
        assert BEHIND_RUN not in " ".join(runs.store.files("order"))
        assert list_run_ids(runs.store)[-3:] == [AHEAD_RUN, "other", "rival"], "each keeps its position"


def test_runs_without_a_position_come_first_and_the_run_named_last_is_the_newest(store: Store) -> None:
    assert (
        list_run_ids(store) == [OLD_RUN, NEW_RUN]
        and find_newest_run(store) == NEW_RUN == next(read_runs_newest_first(store)).run_id
    )
    commit_run(store, AHEAD_RUN, {})
    assert list_run_ids(store) == [OLD_RUN, NEW_RUN, AHEAD_RUN]
    make_run_newest(store, OLD_RUN)
    assert find_newest_run(store) == OLD_RUN and list_run_ids(store) == [NEW_RUN, AHEAD_RUN, OLD_RUN]


def test_a_day_has_one_run_of_its_name_and_no_two_runs_share_a_folder(store: Store) -> None:
    assert name_by_date(store, DAY) == "2026-11-23"
    assert name_by_date(store, DAY) == "2026-11-23-140506", "the name is claimed, although nothing is there yet"
    assert name_by_date(store, DAY) == "2026-11-23-140506-000789"
    assert list_run_ids(store) == [OLD_RUN, NEW_RUN]
    store.write_text("runs/20261124-010000-000000/manifest.json", "{}")
    assert name_by_date(store, DAY + timedelta(days=1)) == "2026-11-24-140506", "a sweep has a run of that day"
    assert name_by_time(store, DAY) == "20261123-140506-000789"
