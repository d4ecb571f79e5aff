"""The suites of a store: runs of several benchmarks that were made together."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from plumbline.pipelines.cells.runs import find_run, name_newest, newest_run
from plumbline.pipelines.cells.store import Store

SUITES = "suites"
"""The folder of the suites; of each a folder with its page, its numbers and suite.json, which is written last."""


class Suite(NamedTuple):
    """Runs that were made together."""

    suite_id: str
    runs: Mapping[str, str]
    """By benchmark, the id of its run."""
    exit_code: int

    @property
    def folder(self) -> str:
        """Where it is in the store."""
        return f"{SUITES}/{self.suite_id}"

    def page(self, store: Store) -> str:
        """The address of its page."""
        return f"{store.place.url}/{self.folder}/report.html"


def newest_suites(store: Store) -> Iterator[Suite]:
    """The suites of a store, the newest first, each read when it is asked for."""
    for suite_id in sorted(store.folders(SUITES), reverse=True):
        if (suite := find_suite(store, suite_id)) is not None:
            yield suite


def find_suite(store: Store, suite_id: str) -> Suite | None:
    """A suite by its id; None where its folder has no sound suite.json, as while it is being written."""
    content = store.read_json(f"{SUITES}/{suite_id}/suite.json") or {}
    runs, code = content.get("runs"), content.get("exit_code")
    if not isinstance(runs, dict) or not isinstance(code, int):
        return None
    return Suite(suite_id, {str(benchmark): str(run_id) for benchmark, run_id in runs.items()}, code)


def named_run(store: Store, name: str, benchmark: str, key: str) -> str | None:
    """The id of the run that an id names, of a suite's the run of a benchmark; None where that suite has none of it.

    Raises ConfigError where there is no such run.
    """
    suite = find_suite(store, name)
    named = name if suite is None else suite.runs.get(benchmark)
    return None if named is None else find_run(store, named, key=key)


def suite_of(store: Store, runs: Mapping[str, str]) -> Suite | None:
    """The newest suite of these benchmarks, where it is of the same runs."""
    newest = next((suite for suite in newest_suites(store) if list(suite.runs) == list(runs)), None)
    return newest if newest is not None and newest.runs == runs else None


def name_newest_of(store: Store, runs: Mapping[str, str], hold: Callable[[], None] = lambda: None) -> None:
    """Has the newest run be one of a suite's, the last where none is."""
    if newest_run(store) not in runs.values():
        name_newest(store, [*runs.values()][-1], hold)
