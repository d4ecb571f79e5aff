"""The runs of a store: how they are named, which stand in it, what their manifests say, and which is the newest."""

import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from operators.errors import ConfigError
from operators.models.calls import Usage
from pipelines.cells.store import LATEST, Store, draft_path
from pipelines.storage import create, write_errors

READERS = 16


class Counts(TypedDict, total=False):
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

    benchmark: str
    generators: list[str]
    metrics: list[str]
    lower_is_better: list[str]
    counts: Counts
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
    location = store.location
    path = location.at(f"runs/{run_id}/claim.json")
    with write_errors(path):
        return create(location, path, json.dumps({"claim": uuid.uuid4().hex}).encode())


def _in_time(run_id: str) -> str:
    """What puts runs into the order in which they began, however they are named."""
    return DAY.sub(r"\1\2\3", run_id, count=1) if DAY.match(run_id) else run_id


def run_ids(store: Store) -> list[str]:
    """The runs that have a manifest, oldest first."""
    folders = store.folders("runs")
    with ThreadPoolExecutor(READERS) as pool:
        stands = list(pool.map(lambda run_id: store.exists(_manifest_path(run_id)), folders))
    there = [run_id for run_id, is_there in zip(folders, stands, strict=True) if is_there]
    return sorted(there, key=lambda run_id: (_in_time(run_id), run_id))


def newest_first(store: Store) -> Iterator[Run]:
    """The run that ended last, and then the others by their time, each with its manifest as it is asked for."""
    newest = newest_run(store)
    if newest is not None:
        yield _run(store, newest, latest=True)
        for run_id in reversed(run_ids(store)):
            if run_id != newest:
                yield _run(store, run_id, latest=False)


def earlier_runs(store: Store, run_id: str) -> Iterator[Run]:
    """The runs before this one with their manifests, newest first, each read when it is asked for."""
    for earlier in reversed([one for one in run_ids(store) if _in_time(one) < _in_time(run_id)]):
        yield _run(store, earlier, latest=False)


def _manifest_path(run_id: str) -> str:
    return f"runs/{run_id}/manifest.json"


def newest_run(store: Store) -> str | None:
    """The run that ended last; where what it left is gone, the last of those that stand."""
    named = (store.read_text(LATEST) or "").strip()
    if named and "/" not in named and store.exists(_manifest_path(named)):
        return named
    return next(reversed(run_ids(store)), None)


def name_newest(store: Store, hold: Callable[[], None]) -> None:
    """Names as the newest a run whose sweep died when its manifest was written and its name was not yet told.

    That is one which began after the newest and did not end before it. `hold` is called before anything is written.
    """
    newest = newest_run(store)
    if newest is None:
        return
    ended = _ended(_run(store, newest, latest=True))
    later = [run_id for run_id in store.folders("runs") if _in_time(run_id) > _in_time(newest)]
    for run_id in sorted(later, key=_in_time, reverse=True):
        ended_later = _ended(_run(store, run_id, latest=False))
        if ended_later and ended_later >= ended:
            hold()
            store.write_text(LATEST, run_id + "\n")
            return


def _ended(run: Run) -> str:
    """When a run ended, in UTC, as its manifest says; empty where it does not."""
    return str((run.manifest or {}).get("ended") or "")


def find_run(store: Store, run: str, key: str = "run") -> str:
    """The id of a run, `latest` being the newest; raises ConfigError naming those there are."""
    standing = run_ids(store)
    wanted = newest_run(store) if run == "latest" else run
    if wanted in standing:
        return str(wanted)
    if not standing:
        raise ConfigError(f"{key}={run}: {store.location.url} has no runs; start one with: python -m jobs.sweep")
    recent = ", ".join(standing[-3:][::-1])
    raise ConfigError(
        f"{key}={run}: no such run in {store.location.url}; the newest are {recent} (python -m jobs.status)"
    )


def read_manifest(store: Store, run_id: str) -> dict[str, Any]:
    """A run's manifest; raises ConfigError naming the file where it is gone or damaged."""
    path = _manifest_path(run_id)
    url = store.location.at(path)
    text = store.read_text(path)
    if text is None:
        raise ConfigError(f"{url}: not found; the run's folder was deleted, choose another run (python -m jobs.status)")
    return parse_manifest(text, url)


def parse_manifest(text: str, url: str) -> dict[str, Any]:
    """What a manifest's file holds; raises ConfigError naming it where it is damaged."""
    try:
        content = json.loads(text)
        _MANIFEST.validate_python(content, strict=True)
        json.dumps(content, ensure_ascii=False).encode()  # half a character could not be shown
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise ConfigError(f"{url}: not a manifest ({where}: {first['msg']}); delete the run's folder") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{url}: not a manifest ({error}); delete the run's folder") from error
    return dict(content)


def list_runs(store: Store) -> list[Run]:
    """The runs of a store, oldest first, also those whose manifest is damaged."""
    newest = newest_run(store)
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda run_id: _run(store, run_id, latest=run_id == newest), run_ids(store)))


def _run(store: Store, run_id: str, *, latest: bool) -> Run:
    try:
        return Run(run_id, read_manifest(store, run_id), "", latest)
    except ConfigError as error:
        return Run(run_id, None, str(error), latest)
