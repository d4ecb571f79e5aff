"""The runs of a store: their ids, their order and their manifests."""

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from itertools import islice, takewhile
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.usage import Usage
from plumbline.pipelines.store.checksums import DamagedError, decode_json
from plumbline.pipelines.store.lease import LeaseLost
from plumbline.pipelines.store.store import LATEST_FILE, RERUN_REMEDY, Store, get_draft_path

N_READERS = 16
"""Number of threads that read files of a store concurrently."""
MAX_RUNS_SEARCHED = 32
ORDER_FOLDER = "order"
NOT_NEWEST_SUFFIX = ".unnamed"
LATEST_REPORT_FILE = "latest/report.html"
"""Copy of the newest run's report at a fixed address in the store."""


class RunCounts(TypedDict, total=False):
    """Numbers of cells and rows in a run, and the fraction of rows with a score."""

    cells_cached: int
    cells_computed: int
    cells_failed: int
    rows: int
    rows_null: int
    rows_truncated: int
    coverage: float


CELLS_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("node", pa.string()),
        ("state", pa.string()),
        ("rows", pa.int64()),
        ("errors", pa.int64()),
        ("message", pa.string()),
        *((name, pa.int64()) for name in Usage._fields),
        ("first_row", pa.int64()),
    ]
)
"""Schema of a run's cells.parquet: the state of each cell and the usage of its model calls.

`state` is cached, committed, draft, failed or missing. `rows` and `errors` are set for cells that the run computed. For
scores cells, `first_row` is the index of their first row within the scores of the run.
"""


CellStates = Mapping[str, str]


def read_cell_states(store: Store, run_id: str) -> CellStates:
    """Return the states of a run's cells; raise StoreError if its table cannot be read."""
    cells = store.read_table(f"runs/{run_id}/cells.parquet", ["path", "state"])
    return dict(zip(cells.column("path").to_pylist(), cells.column("state").to_pylist(), strict=True))


class ScoresCell(NamedTuple):
    """A scores cell of a run, and its location within the run's scores."""

    path: str
    stored: str
    """Path of the cell's file: the cell's own path, or the path of its draft."""
    first_row: int
    """Index, within the scores of the run, of the first row of the cell."""


def list_scores_cells(store: Store, run_id: str) -> list[ScoresCell]:
    """Return a run's scores cells in the order of the scores; raise PlumblineError if they cannot be read."""
    cells = store.read_table(f"runs/{run_id}/cells.parquet", ["path", "state", "first_row"])
    of_scores = cells.filter(pc.is_valid(cells.column("first_row"))).sort_by("first_row")
    return [
        ScoresCell(
            row["path"], get_draft_path(row["path"]) if row["state"] == "draft" else row["path"], row["first_row"]
        )
        for row in of_scores.to_pylist()
    ]


class Manifest(TypedDict, total=False):
    """The fields of a manifest that are read back; a manifest contains more fields than these."""

    note: str
    benchmark: str
    generators: list[str]
    metrics: list[str]
    lower_is_better: list[str]
    counts: RunCounts
    errors: dict[str, int]
    exit_code: int
    config: dict[str, Any]


_MANIFEST_ADAPTER = TypeAdapter(Manifest)


class Run(NamedTuple):
    """A run in a store; its manifest may be damaged."""

    run_id: str
    manifest: Mapping[str, Any] | None
    """Content of the manifest; None if it is damaged."""
    problem: str
    """Problem with the manifest; empty if the manifest is undamaged."""
    latest: bool


NameRun = Callable[[Store, datetime], str]
"""Function that returns the id of a new run, given the store and the time (UTC) at which the run began."""
RUN_DATE_PATTERN = re.compile(r"(\d{4})-(\d\d)-(\d\d)")


def name_by_time(store: Store, began: datetime) -> str:
    """Return a run id made from the time at which the run began: 20261123-020000-123456."""
    return f"{began:%Y%m%d-%H%M%S-%f}"


def name_by_date(store: Store, began: datetime) -> str:
    """Claim and return a run id made from the start date, plus the time if that day already has a run.

    The id is 2026-11-23, for example, or 2026-11-23-140000; if that id is taken as well, microseconds are appended. A
    create-only write claims the id, so that no other run is ever written into its folder, not even by a process that
    stalled and continues later.
    """
    prefixes = (f"{began:%Y-%m-%d}", f"{began:%Y%m%d-}")
    names = (prefixes[0], f"{began:%Y-%m-%d-%H%M%S}", f"{began:%Y-%m-%d-%H%M%S-%f}")
    day_has_run = any(folder.startswith(prefixes) for folder in store.list_folders("runs"))
    claim = json.dumps({"claim": uuid.uuid4().hex}).encode()
    return next(name for name in names[day_has_run:] if (store.place / f"runs/{name}/claim.json").create(claim))


class RunPosition(NamedTuple):
    """Position of a run in the order of a store's runs.

    It is recorded in the name of an empty file, so no clock is needed.
    """

    number: int
    """Number that increases with every run that is written or made the newest."""
    run_id: str
    made_newest: bool
    """True if the run was made the newest at this position; False if it was only written and has no report yet."""

    @property
    def path(self) -> str:
        return f"{ORDER_FOLDER}/{self.number:08}-{self.run_id}{'' if self.made_newest else NOT_NEWEST_SUFFIX}"


def parse_run_id(path: str) -> str:
    """Return the id of the run whose position is encoded in this path."""
    return path.rpartition("/")[2].partition("-")[2].removesuffix(NOT_NEWEST_SUFFIX)


def _list_positions(store: Store) -> list[RunPosition]:
    positions = []
    for path in store.files(ORDER_FOLDER):
        number = path.rpartition("/")[2].partition("-")[0]
        if number.isdigit():
            positions.append(RunPosition(int(number), parse_run_id(path), not path.endswith(NOT_NEWEST_SUFFIX)))
    return sorted(positions)


@contextmanager
def _append_to_order(
    store: Store, run_id: str, *, made_newest: bool, assert_lease: Callable[[], None]
) -> Iterator[None]:
    """Append a run to the order when the context begins; remove the run again if `assert_lease` raises LeaseLost."""
    assert_lease()
    positions = _list_positions(store)
    position = RunPosition(positions[-1].number + 1 if positions else 1, run_id, made_newest)
    store.write_text(position.path, "")
    try:
        yield
        assert_lease()
    except LeaseLost:
        store.remove_all([position.path])
        raise
    store.remove_all([other.path for other in _list_positions(store) if other.run_id == run_id and other != position])


def remove_from_order(store: Store, run_id: str) -> None:
    store.remove_all([position.path for position in _list_positions(store) if position.run_id == run_id])


def commit_run(
    store: Store, run_id: str, manifest: Mapping[str, Any], assert_lease: Callable[[], None] = lambda: None
) -> None:
    """Commit a run by writing its manifest; it becomes the newest run only through `make_run_newest`.

    `assert_lease` raises LeaseLost if the run may no longer be published.
    """
    with _append_to_order(store, run_id, made_newest=False, assert_lease=assert_lease):
        store.write_json(_make_manifest_path(run_id), manifest)


def make_run_newest(store: Store, run_id: str, assert_lease: Callable[[], None] = lambda: None) -> None:
    """Make a run the newest and publish its report at the fixed address; do nothing if this was already done."""
    last = max((position for position in _list_positions(store) if position.made_newest), default=None)
    if last is None or last.run_id != run_id:
        with _append_to_order(store, run_id, made_newest=True, assert_lease=assert_lease):
            pass
        publish_newest_run(store)
    elif (store.read_text(LATEST_FILE) or "").strip() != run_id or not store.has_page(LATEST_REPORT_FILE):
        publish_newest_run(store)


def has_report(store: Store, run_id: str) -> bool:
    """Return True if a run has an undamaged report."""
    return store.has_page(f"runs/{run_id}/report.html")


def may_become_newest(store: Store, run_id: str) -> bool:
    """Return True if a run was written after the current newest run and has not become the newest itself."""
    positions = _list_positions(store)
    last_newest = max((position.number for position in positions if position.made_newest), default=-1)
    return any(position.run_id == run_id and position.number > last_newest for position in positions)


def publish_newest_run(store: Store) -> None:
    """Write the newest run's id and report to their fixed addresses.

    Another run may become the newest meanwhile, so the files are written again until the newest run stays the same.
    """
    published = None
    while (newest := find_newest_run(store)) not in (None, published):
        store.write_text(LATEST_FILE, f"{newest}\n")
        html = store.read_text(f"runs/{newest}/report.html")
        if html is not None:
            store.write_text(LATEST_REPORT_FILE, html)
        published = newest


def list_run_ids(store: Store) -> list[str]:
    """Return the ids of all runs with a manifest, oldest first. Runs without a position come first, ordered by time."""
    return _list_runs_with_manifest(store, _list_positions(store))


def _list_runs_with_manifest(store: Store, positions: Sequence[RunPosition]) -> list[str]:
    folders = _sort_folders(store, positions)
    with ThreadPoolExecutor(N_READERS) as pool:
        exist = list(pool.map(lambda run_id: store.exists(_make_manifest_path(run_id)), folders))
    return [run_id for run_id, exists in zip(folders, exist, strict=True) if exists]


def _sort_folders(store: Store, positions: Sequence[RunPosition]) -> list[str]:
    """Return all run folders, including folders without a manifest, in the order of `list_run_ids`."""
    numbers = {position.run_id: position.number for position in positions}

    def make_sort_key(run_id: str) -> tuple[int, str, str]:
        # 2026-11-23 is like 20261123
        time = RUN_DATE_PATTERN.sub(r"\1\2\3", run_id, count=1) if RUN_DATE_PATTERN.match(run_id) else run_id
        return numbers.get(run_id, -1), time, run_id

    return sorted(store.list_folders("runs"), key=make_sort_key)


def read_runs_newest_first(store: Store) -> Iterator[Run]:
    """Yield all runs, newest first; each run is read only when it is reached."""
    positions = _list_positions(store)
    newest = _find_newest_run(store, positions)
    for run_id in reversed(_sort_folders(store, positions)):
        if store.exists(_make_manifest_path(run_id)):
            yield _read_run(store, run_id, latest=run_id == newest)


def read_newest_runs(store: Store, benchmark: str) -> Iterator[Run]:
    """Yield a benchmark's runs among the newest MAX_RUNS_SEARCHED runs of the store, newest first."""
    for run in islice(read_runs_newest_first(store), MAX_RUNS_SEARCHED):
        if run.manifest is not None and run.manifest.get("benchmark") == benchmark:
            yield run


def read_earlier_runs(store: Store, run_id: str) -> Iterator[Run]:
    """Yield the runs before the given run, newest first; each run is read only when it is reached."""
    for earlier in reversed(list(takewhile(run_id.__ne__, list_run_ids(store)))):
        yield _read_run(store, earlier, latest=False)


def _make_manifest_path(run_id: str) -> str:
    return f"runs/{run_id}/manifest.json"


def find_newest_run(store: Store) -> str | None:
    """Return the id of the existing run that was most recently made the newest, or of the last run if none was.

    Return None if the store has no run.
    """
    return _find_newest_run(store, _list_positions(store))


def _find_newest_run(store: Store, positions: Sequence[RunPosition]) -> str | None:
    def list_candidates() -> Iterator[str]:
        yield from (position.run_id for position in reversed(positions) if position.made_newest)
        yield from reversed(_sort_folders(store, positions))

    return next((run_id for run_id in list_candidates() if store.exists(_make_manifest_path(run_id))), None)


def find_run(store: Store, run: str, key: str = "run") -> str:
    """Return the id of a run (`latest` means the newest); raise ConfigError listing recent ids if it does not exist."""
    existing = list_run_ids(store)
    wanted = find_newest_run(store) if run == "latest" else run
    if wanted in existing:
        return str(wanted)
    if not existing:
        raise ConfigError(f"{key}={run}: {store.place.url} has no runs; start one with: plumbline sweep")
    recent = ", ".join(existing[-3:][::-1])
    raise ConfigError(
        f"{key}={run}: no such run in {store.place.url}; the newest are {recent}, plumbline status lists all"
    )


def read_manifest(store: Store, run_id: str) -> dict[str, Any]:
    """Return a run's manifest; raise ConfigError with its address if it is missing or damaged."""
    path = _make_manifest_path(run_id)
    url = str(store.place / path)
    text = store.read_text(path)
    if text is None:
        raise ConfigError(
            f"{url}: not found, because the run's folder was deleted; choose another run (see plumbline status)"
        )
    return parse_manifest(text, url)


def parse_manifest(text: str, url: str) -> dict[str, Any]:
    """Parse a manifest; raise ConfigError with its address if it is damaged."""
    try:
        content = decode_json(text)
        _MANIFEST_ADAPTER.validate_python(content, strict=True)
        json.dumps(content, ensure_ascii=False).encode()  # fails on a lone surrogate, which cannot be displayed
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise ConfigError(f"{url}: not a manifest ({where}: {first['msg']}); {RERUN_REMEDY}") from error
    except DamagedError as error:
        raise ConfigError(f"{url}: the manifest is damaged ({error}); {RERUN_REMEDY}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{url}: not a manifest ({error}); {RERUN_REMEDY}") from error
    return dict(content)


def list_runs(store: Store) -> list[Run]:
    """Return all runs of a store, oldest first, including runs with a damaged manifest."""
    positions = _list_positions(store)
    newest = _find_newest_run(store, positions)
    with ThreadPoolExecutor(N_READERS) as pool:
        runs = _list_runs_with_manifest(store, positions)
        return list(pool.map(lambda run_id: _read_run(store, run_id, latest=run_id == newest), runs))


def _read_run(store: Store, run_id: str, *, latest: bool) -> Run:
    try:
        return Run(run_id, read_manifest(store, run_id), "", latest)
    except ConfigError as error:
        return Run(run_id, None, str(error), latest)
