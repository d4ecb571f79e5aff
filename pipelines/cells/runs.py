"""The runs of a store: which stand in it, what their manifests say, and which is the newest."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from operators.errors import ConfigError
from pipelines.cells.store import LATEST, Store
from pipelines.storage import readable_errors


class Counts(TypedDict, total=False):
    """How many cells and rows a run had, and the share of rows that have a score."""

    cells_cached: int
    cells_computed: int
    cells_failed: int
    rows: int
    rows_null: int
    rows_truncated: int
    coverage: float


class CellRecord(TypedDict):
    """A cell that a run stands on."""

    path: str
    state: str


class Manifest(TypedDict, total=False):
    """What a manifest says; it may say more, and an old one less."""

    benchmark: str
    generators: list[str]
    metrics: list[str]
    counts: Counts
    errors: dict[str, int]
    exit_code: int
    config: dict[str, Any]
    cells: list[CellRecord]


_MANIFEST = TypeAdapter(Manifest)


class Run(NamedTuple):
    """A run as a list of runs shows it."""

    run_id: str
    manifest: Mapping[str, Any] | None
    """None where it is damaged."""
    problem: str
    """What is wrong with the manifest; empty where nothing is."""
    latest: bool


def run_ids(store: Store) -> list[str]:
    """The runs that have a manifest, oldest first."""
    location = store.location
    with readable_errors(location, "store"):
        paths = location.fs.find(location.at("runs"))
    names = [path.removeprefix(location.at("runs/")).split("/") for path in paths]
    return sorted(parts[0] for parts in names if parts[1:] == ["manifest.json"])


def newest_run(store: Store) -> str | None:
    """The run that ended last; where what it left is gone, the last of those that stand."""
    standing = run_ids(store)
    named = (store.read_text(LATEST) or "").strip()
    return named if named in standing else next(reversed(standing), None)


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
    path = f"runs/{run_id}/manifest.json"
    url = store.location.at(path)
    text = store.read_text(path)
    if text is None:
        raise ConfigError(f"{url}: not found; the run's folder was deleted, choose another run (python -m jobs.status)")
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
    return [_run(store, run_id, latest=run_id == newest) for run_id in run_ids(store)]


def _run(store: Store, run_id: str, *, latest: bool) -> Run:
    try:
        return Run(run_id, read_manifest(store, run_id), "", latest)
    except ConfigError as error:
        return Run(run_id, None, str(error), latest)
