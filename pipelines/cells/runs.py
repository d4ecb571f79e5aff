"""The runs of a store: how they are called, which stand in it and in which order, and what their manifests say."""

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
from plumbline.pipelines.cells.checksums import DamagedError, decode_json
from plumbline.pipelines.cells.lease import LeaseLost
from plumbline.pipelines.cells.store import ANEW, LATEST, Store, draft_path

READERS = 16
MAX_RUNS_SEARCHED = 32
"""How many of the newest runs are searched for one of a benchmark."""
ORDER = "order"
"""The folder of the runs' positions."""
UNNAMED = ".unnamed"
LATEST_REPORT = "latest/report.html"
"""In the store: the newest run's report, at an address that stays."""


class RunCounts(TypedDict, total=False):
    """How many cells and rows a run had, and the share of rows that have a score."""

    cells_cached: int
    cells_computed: int
    cells_failed: int
    rows: int
    rows_null: int
    rows_truncated: int
    coverage: float


CELLS = pa.schema(
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
"""The cells of a run, in its cells.parquet: what became of them in it, and what their model calls took.

`state` is cached, committed, draft, failed or missing; `rows` and `errors` are told of cells that the run computed.
`first_row` is the row of the run's scores that the first row of a scores cell is.
"""


class ScoresCell(NamedTuple):
    """A cell that a run's scores were read from."""

    path: str
    """As the run names it."""
    stored: str
    """Where it stands: there, or as its draft."""
    first_row: int
    """The row of the run's scores that its first row is."""


def scores_cells(store: Store, run_id: str) -> list[ScoresCell]:
    """The cells of a run's scores, in the scores' order; raises PlumblineError where the run does not tell them."""
    cells = store.read_table(f"runs/{run_id}/cells.parquet", ["path", "state", "first_row"])
    told = cells.filter(pc.is_valid(cells.column("first_row"))).sort_by("first_row")
    return [
        ScoresCell(row["path"], draft_path(row["path"]) if row["state"] == "draft" else row["path"], row["first_row"])
        for row in told.to_pylist()
    ]


class Manifest(TypedDict, total=False):
    """What a manifest says; it may say more, and an old one less."""

    note: str
    benchmark: str
    generators: list[str]
    metrics: list[str]
    lower_is_better: list[str]
    counts: RunCounts
    errors: dict[str, int]
    exit_code: int
    config: dict[str, Any]


_MANIFEST = TypeAdapter(Manifest)


class Run(NamedTuple):
    """A run as a list of runs shows it."""

    run_id: str
    manifest: Mapping[str, Any] | None
    """None where it is damaged."""
    problem: str
    """What is wrong with the manifest; empty where nothing is."""
    latest: bool


NameRun = Callable[[Store, datetime], str]
"""Names a run that begins at a time, in UTC."""
DAY = re.compile(r"(\d{4})-(\d\d)-(\d\d)")


def _unheld() -> None:
    """Nobody has a lease to lose."""


def by_time(store: Store, began: datetime) -> str:
    """The id of a run, by when it began: 20261123-020000-123456."""
    return f"{began:%Y%m%d-%H%M%S-%f}"


def by_date(store: Store, began: datetime) -> str:
    """The id of a run, by the day when it began: 2026-11-23, and 2026-11-23-140000 where that day has runs already.

    It is claimed by a create-only write, so that no other run is ever written into its folder, not even by one that
    was stalled and goes on later.
    """
    days = (f"{began:%Y-%m-%d}", f"{began:%Y%m%d-}")
    names = (days[0], f"{began:%Y-%m-%d-%H%M%S}", f"{began:%Y-%m-%d-%H%M%S-%f}")
    taken = any(folder.startswith(days) for folder in store.folders("runs"))
    return next(name for name in names[taken:] if _claim(store, name))


def _claim(store: Store, run_id: str) -> bool:
    return (store.place / f"runs/{run_id}/claim.json").create(json.dumps({"claim": uuid.uuid4().hex}).encode())


def _in_time(run_id: str) -> str:
    """What puts runs into the order in which they began, however they are named."""
    return DAY.sub(r"\1\2\3", run_id, count=1) if DAY.match(run_id) else run_id


class Position(NamedTuple):
    """Where a run stands in the order of a store's runs, as the name of an empty file says it: no clock has a part."""

    number: int
    """Grows with every run that is written or named."""
    run_id: str
    named: bool
    """Whether the run was named the newest then; else it was written then, and its report was to come."""

    @property
    def path(self) -> str:
        return f"{ORDER}/{self.number:08}-{self.run_id}{'' if self.named else UNNAMED}"


def run_of_position(path: str) -> str:
    """The run whose position in the order a file says."""
    return path.rpartition("/")[2].partition("-")[2].removesuffix(UNNAMED)


def _positions(store: Store) -> list[Position]:
    """Return all positions, the last one last."""
    numbers = {path: path.rpartition("/")[2].partition("-")[0] for path in store.files(ORDER)}
    return sorted(
        Position(int(number), run_of_position(path), not path.endswith(UNNAMED))
        for path, number in numbers.items()
        if number.isdigit()
    )


def _take_position(store: Store, run_id: str, *, named: bool) -> Position:
    """Puts a run behind all others, where it may stand a second time."""
    positions = _positions(store)
    position = Position(positions[-1].number + 1 if positions else 1, run_id, named)
    store.write_text(position.path, "")
    return position


@contextmanager
def _published(store: Store, run_id: str, *, named: bool, hold: Callable[[], None]) -> Iterator[None]:
    """Has a run stand behind all others, unless `hold` tells that another has the lease: before, or in that moment."""
    hold()
    position = _take_position(store, run_id, named=named)
    try:
        yield
        hold()
    except LeaseLost:
        store.remove_all([position.path])
        raise
    store.remove_all([other.path for other in _positions(store) if other.run_id == run_id and other != position])


def leave_order(store: Store, run_id: str) -> None:
    """Takes a run out of the order, before it is removed."""
    store.remove_all([position.path for position in _positions(store) if position.run_id == run_id])


def commit_run(store: Store, run_id: str, manifest: Mapping[str, Any], hold: Callable[[], None] = _unheld) -> None:
    """Writes a run's manifest, by which it stands; it becomes the newest when it is named, once it has a report.

    `hold` raises LeaseLost where the run may not be published any more.
    """
    with _published(store, run_id, named=False, hold=hold):
        store.write_json(_manifest_path(run_id), manifest)


def name_newest(store: Store, run_id: str, hold: Callable[[], None] = _unheld) -> None:
    """Makes a run the newest and shows it where people look; nothing is written where it is that already."""
    last = max((position for position in _positions(store) if position.named), default=None)
    if last is None or last.run_id != run_id:
        with _published(store, run_id, named=True, hold=hold):
            pass
        show_newest(store)
    elif (store.read_text(LATEST) or "").strip() != run_id or not store.has_page(LATEST_REPORT):
        show_newest(store)


def has_report(store: Store, run_id: str) -> bool:
    """Return True if a run has a report that is as it was written."""
    return store.has_page(f"runs/{run_id}/report.html")


def awaits_name(store: Store, run_id: str) -> bool:
    """Whether a run was written after the newest was named, and is to be named with its report."""
    positions = _positions(store)
    last_named = max((position.number for position in positions if position.named), default=-1)
    return any(position.run_id == run_id and position.number > last_named for position in positions)


def show_newest(store: Store) -> None:
    """Writes the newest run's id, and its report, to where people look for them, each whole.

    Looks again until they are the newest's, for another run may have been named meanwhile.
    """
    shown = None
    while (newest := newest_run(store)) not in (None, shown):
        store.write_text(LATEST, f"{newest}\n")
        html = store.read_text(f"runs/{newest}/report.html")
        if html is not None:
            store.write_text(LATEST_REPORT, html)
        shown = newest


def run_ids(store: Store) -> list[str]:
    """The runs that have a manifest, oldest first; those without a position in the order come first, by their time."""
    return _list_with_manifest(store, _positions(store))


def _list_with_manifest(store: Store, positions: Sequence[Position]) -> list[str]:
    folders = _sort_folders(store, positions)
    with ThreadPoolExecutor(READERS) as pool:
        exist = list(pool.map(lambda run_id: store.exists(_manifest_path(run_id)), folders))
    return [run_id for run_id, exists in zip(folders, exist, strict=True) if exists]


def _sort_folders(store: Store, positions: Sequence[Position]) -> list[str]:
    """Return the folders of runs in the order of `run_ids`, with or without a manifest."""
    numbers = {position.run_id: position.number for position in positions}
    return sorted(store.folders("runs"), key=lambda run_id: (numbers.get(run_id, -1), _in_time(run_id), run_id))


def newest_first(store: Store) -> Iterator[Run]:
    """Yield all runs, the last one first; each is looked for and read when it is asked for."""
    positions = _positions(store)
    newest = _find_newest(store, positions)
    for run_id in reversed(_sort_folders(store, positions)):
        if store.exists(_manifest_path(run_id)):
            yield _run(store, run_id, latest=run_id == newest)


def newest_of(store: Store, benchmark: str) -> Iterator[Run]:
    """The runs of a benchmark with their manifests, newest first, of the newest ones of a store."""
    for run in islice(newest_first(store), MAX_RUNS_SEARCHED):
        if run.manifest is not None and run.manifest.get("benchmark") == benchmark:
            yield run


def earlier_runs(store: Store, run_id: str) -> Iterator[Run]:
    """The runs before this one with their manifests, newest first, each read when it is asked for."""
    for earlier in reversed(list(takewhile(run_id.__ne__, run_ids(store)))):
        yield _run(store, earlier, latest=False)


def _manifest_path(run_id: str) -> str:
    return f"runs/{run_id}/manifest.json"


def newest_run(store: Store) -> str | None:
    """Return the id of the existing run that was named last, or of the last run if none was named."""
    return _find_newest(store, _positions(store))


def _find_newest(store: Store, positions: Sequence[Position]) -> str | None:
    def list_candidates() -> Iterator[str]:
        yield from (position.run_id for position in reversed(positions) if position.named)
        yield from reversed(_sort_folders(store, positions))

    return next((run_id for run_id in list_candidates() if store.exists(_manifest_path(run_id))), None)


def find_run(store: Store, run: str, key: str = "run") -> str:
    """The id of a run, `latest` being the newest; raises ConfigError naming those there are."""
    standing = run_ids(store)
    wanted = newest_run(store) if run == "latest" else run
    if wanted in standing:
        return str(wanted)
    if not standing:
        raise ConfigError(f"{key}={run}: {store.place.url} has no runs; start one with: plumbline sweep")
    recent = ", ".join(standing[-3:][::-1])
    raise ConfigError(f"{key}={run}: no such run in {store.place.url}; the newest are {recent} (plumbline status)")


def read_manifest(store: Store, run_id: str) -> dict[str, Any]:
    """A run's manifest; raises ConfigError naming the file where it is gone or damaged."""
    path = _manifest_path(run_id)
    url = str(store.place / path)
    text = store.read_text(path)
    if text is None:
        raise ConfigError(f"{url}: not found; the run's folder was deleted, choose another run (plumbline status)")
    return parse_manifest(text, url)


def parse_manifest(text: str, url: str) -> dict[str, Any]:
    """What a manifest's file holds; raises ConfigError naming it where it is damaged."""
    try:
        content = decode_json(text)
        _MANIFEST.validate_python(content, strict=True)
        json.dumps(content, ensure_ascii=False).encode()  # half a character could not be shown
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise ConfigError(f"{url}: not a manifest ({where}: {first['msg']}); {ANEW}") from error
    except DamagedError as error:
        raise ConfigError(f"{url}: the manifest is damaged ({error}); {ANEW}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{url}: not a manifest ({error}); {ANEW}") from error
    return dict(content)


def list_runs(store: Store) -> list[Run]:
    """The runs of a store, oldest first, also those whose manifest is damaged."""
    positions = _positions(store)
    newest = _find_newest(store, positions)
    with ThreadPoolExecutor(READERS) as pool:
        runs = _list_with_manifest(store, positions)
        return list(pool.map(lambda run_id: _run(store, run_id, latest=run_id == newest), runs))


def _run(store: Store, run_id: str, *, latest: bool) -> Run:
    try:
        return Run(run_id, read_manifest(store, run_id), "", latest)
    except ConfigError as error:
        return Run(run_id, None, str(error), latest)
