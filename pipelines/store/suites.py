"""The suites of a store. A suite is a set of runs of several benchmarks that were computed together."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from plumbline.pipelines.store.runs import find_newest_run, find_run, make_run_newest
from plumbline.pipelines.store.store import Store

SUITES_FOLDER = "suites"
"""Folder of the suites. Each suite has a folder with its page, its data and suite.json, which is written last."""


class Suite(NamedTuple):
    """Runs of several benchmarks that were computed together."""

    suite_id: str
    runs: Mapping[str, str]
    exit_code: int

    @property
    def folder(self) -> str:
        return f"{SUITES_FOLDER}/{self.suite_id}"

    def get_page_url(self, store: Store) -> str:
        return f"{store.place.url}/{self.folder}/report.html"


def read_newest_suites(store: Store) -> Iterator[Suite]:
    """Yield the suites of a store, newest first; each suite is read only when it is reached."""
    for suite_id in sorted(store.list_folders(SUITES_FOLDER), reverse=True):
        if (suite := find_suite(store, suite_id)) is not None:
            yield suite


def find_suite(store: Store, suite_id: str) -> Suite | None:
    """Return the suite with this id, or None if its suite.json (which is written last) is missing or damaged."""
    content = store.read_json(f"{SUITES_FOLDER}/{suite_id}/suite.json") or {}
    runs, code = content.get("runs"), content.get("exit_code")
    if not isinstance(runs, dict) or not isinstance(code, int):
        return None
    return Suite(suite_id, {str(benchmark): str(run_id) for benchmark, run_id in runs.items()}, code)


def find_named_run(store: Store, name: str, benchmark: str, key: str) -> str | None:
    """Return the id of the run with this name or, if the name is a suite's id, of the suite's run of the benchmark.

    Return None if the suite has no run of the benchmark; raise ConfigError if the run does not exist.
    """
    suite = find_suite(store, name)
    named = name if suite is None else suite.runs.get(benchmark)
    return None if named is None else find_run(store, named, key=key)


def find_newest_suite_with(store: Store, runs: Mapping[str, str]) -> Suite | None:
    """Return the newest suite of the benchmarks in `runs` if it consists of exactly these runs, else None."""
    newest = next((suite for suite in read_newest_suites(store) if list(suite.runs) == list(runs)), None)
    return newest if newest is not None and newest.runs == runs else None


def make_suite_newest(store: Store, runs: Mapping[str, str], assert_lease: Callable[[], None] = lambda: None) -> None:
    """Make the last run of a suite the newest run, unless one of the suite's runs already is."""
    if find_newest_run(store) not in runs.values():
        make_run_newest(store, [*runs.values()][-1], assert_lease)
