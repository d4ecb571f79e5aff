"""What a run hands to people: scores, summary and errors, with every row that should be there."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from operators import rows
from operators.errors import PlumblineError, RowError
from operators.images import identify, image_records
from operators.summary import Tally
from pipelines.benchmark import BenchmarkConfig
from pipelines.cells import Cell, Outcome, Shard
from pipelines.plan import Plan
from pipelines.shards import BrokenFile, read_extra, read_shard
from pipelines.sources import Sources
from pipelines.storage import StorageConfig
from pipelines.store import Store, StoreError

CELL_READERS = 16
CELLS_AT_ONCE = 64
"""So many cells are in memory while a run's tables are made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """A run's output; its scores stand in the store alone, for there may be more than memory holds."""

    store: Store
    path: str
    """Of the scores, in the store."""
    rows: int
    n_null: int
    n_truncated: int
    summary: pa.Table
    errors: pa.Table

    @property
    def scores(self) -> pa.Table:
        """All scores, read from the store."""
        return self.store.read(self.path)

    @property
    def coverage(self) -> float:
        """Share of rows with a score; 1 where nothing was asked for."""
        return 1 - self.n_null / self.rows if self.rows else 1.0


class Part(NamedTuple):
    """Some of a run's rows, and the shard that they stand in."""

    table: pa.Table
    shard: Shard | None
    tally: Tally


def gather_results(
    plan: Plan,
    sources: Sources,
    outcomes: Mapping[str, Outcome],
    *,
    run_id: str,
    store: Store,
    storage: StorageConfig,
    benchmark: BenchmarkConfig,
) -> Results:
    """Reads every scores cell, fills in a null row with its error for all that is missing, and aggregates.

    Cells are read, counted and written to the run's scores.parquet a few at a time.
    """
    path = f"runs/{run_id}/scores.parquet"
    total = Tally(sources.skills)
    errors: list[pa.Table] = [rows.ERRORS.empty_table()]
    counts = Counter[str]()

    def counted() -> Iterator[pa.Table]:
        for part in _parts(plan, sources, outcomes, store=store, storage=storage, benchmark=benchmark):
            total.merge(part.tally)
            errors.append(_errors(part.table, part.shard))
            counts["rows"] += len(part.table)
            counts["null"] += part.table.column("score").null_count
            counts["truncated"] += pc.sum(part.table.column("truncated")).as_py() or 0
            yield part.table

    schema = pa.schema([*rows.SCORES, *sources.extra])
    store.write_parts(path, schema, counted())
    return Results(
        store=store,
        path=path,
        rows=counts["rows"],
        n_null=counts["null"],
        n_truncated=counts["truncated"],
        summary=total.summary(),
        errors=pa.concat_tables(errors),
    )


def _parts(
    plan: Plan,
    sources: Sources,
    outcomes: Mapping[str, Outcome],
    *,
    store: Store,
    storage: StorageConfig,
    benchmark: BenchmarkConfig,
) -> Iterator[Part]:
    """Every cell's rows in the plan's order, then for each metric those that are missing."""
    lost: dict[str, list[BrokenFile]] = defaultdict(list)
    seen: dict[str, set[tuple[str, str | None]]] = defaultdict(set)

    def read(metric: str, shard: Shard, cell: Cell) -> tuple[str, Shard, pa.Table | BrokenFile, Tally]:
        found = _cell_scores(metric, shard, cell, outcomes=outcomes, store=store, storage=storage, extra=sources.extra)
        tally = Tally(sources.skills)
        if isinstance(found, pa.Table):
            tally.add(found)
        return metric, shard, found, tally

    wanted = [(metric, shard, cell) for metric, cells in plan.scores.items() for shard, cell in cells]
    with ThreadPoolExecutor(CELL_READERS) as pool:
        for first in range(0, len(wanted), CELLS_AT_ONCE):
            for metric, shard, found, tally in pool.map(lambda one: read(*one), wanted[first : first + CELLS_AT_ONCE]):
                if isinstance(found, BrokenFile):
                    lost[metric].append(found)
                    continue
                if benchmark.prompts is not None:
                    seen[metric] |= _pairs(found)
                yield Part(found, shard, tally)
    for metric in plan.scores:
        missing = _missing_rows(metric, sources, seen[metric], [*sources.broken, *lost[metric]], benchmark)
        tally = Tally(sources.skills)
        tally.add(missing)
        yield Part(_beside(missing, sources.extra.empty_table(), sources.extra), None, tally)


def _cell_scores(
    metric: str,
    shard: Shard,
    cell: Cell,
    *,
    outcomes: Mapping[str, Outcome],
    store: Store,
    storage: StorageConfig,
    extra: pa.Schema,
) -> pa.Table | BrokenFile:
    """A cell's rows, which are its shard's in their order, beside the shard's further columns."""
    outcome = outcomes.get(cell.path)
    if outcome is not None and outcome.state == "failed":
        error = RowError("shard_failed", outcome.message, retryable=True)
        return _failed_rows(metric, shard, error, storage, extra)
    try:
        kept = store.read(cell.path, key=cell.key, draft=outcome is not None and outcome.state == "draft")
        scores = kept.select(rows.SCORES.names)
        return _beside(scores, _read_extra(shard, storage, extra), extra)
    except (OSError, PlumblineError) as error:
        unreadable = RowError("cell_unreadable", str(error), retryable=True)
        return _failed_rows(metric, shard, unreadable, storage, extra)


def _failed_rows(
    metric: str, shard: Shard, error: RowError, storage: StorageConfig, extra: pa.Schema
) -> pa.Table | BrokenFile:
    """A null row per image of a shard that failed whole, where at least the ids can be read."""
    try:
        records = image_records(read_shard(shard, storage, ("image_id", "prompt_id")))
        further = _read_extra(shard, storage, extra)
    except PlumblineError:
        return BrokenFile(shard.group, error.message, shard.rows)
    nulls = [_null_row(metric, error, **_known_ids(record, shard.group)) for record in records]
    return _beside(rows.table(nulls, rows.SCORES), further, extra)


def _read_extra(shard: Shard, storage: StorageConfig, extra: pa.Schema) -> pa.Table:
    """The shard's further columns; where none are wanted, its file is not touched."""
    return read_extra(shard, storage, extra) if extra.names else extra.empty_table()


def _beside(scores: pa.Table, further: pa.Table, extra: pa.Schema) -> pa.Table:
    """Scores with the further columns of the same rows after their own; null for rows of no source row."""
    if len(extra) and len(further) not in (0, len(scores)):
        raise StoreError(f"a scores cell has {len(scores)} rows, and its shard {len(further)}; delete the cell")
    for field in extra:
        column = further.column(field.name) if len(further) else pa.nulls(len(scores), field.type)
        scores = scores.append_column(field, column)
    return scores


def _known_ids(record: Mapping[str, Any], generator: str) -> dict[str, Any]:
    """The ids that can be told without the image: an id made from its content cannot."""
    ids = identify(record, generator)._asdict()
    return ids if record.get("image_id") is not None else {**ids, "image_id": None}


def _null_row(metric: str, error: RowError, **ids: Any) -> dict[str, Any]:
    return {**ids, "metric": metric, "error": rows.error_value(error)}


def _missing_rows(
    metric: str,
    sources: Sources,
    seen: Set[tuple[str, str | None]],
    broken_files: Sequence[BrokenFile],
    benchmark: BenchmarkConfig,
) -> pa.Table:
    """A null row for every prompt that a generator has no image of, with the reason if a file is broken.

    `seen` are the generators and prompts that have a row. A broken file leaves at least as many as it had rows, also
    where no prompt can be named.
    """
    records = []
    for generator in sources.generators:
        broken = [file for file in broken_files if file.generator == generator]
        lost = sum(file.rows for file in broken)
        absent: list[str | None] = []
        if benchmark.prompts is not None and (benchmark.require_every_prompt or broken):
            absent = [prompt for prompt in sources.skills if (generator, prompt) not in seen]
        absent += [None] * (lost - len(absent))
        error = _missing_error(generator, broken)
        records += [_null_row(metric, error, generator=generator, prompt_id=prompt) for prompt in absent]
    return rows.table(records, rows.SCORES)


def _pairs(scores: pa.Table) -> set[tuple[str, str | None]]:
    """The generators and prompts that have a row, each pair once however many rows there are."""
    unique = scores.select(["generator", "prompt_id"]).group_by(["generator", "prompt_id"]).aggregate([])
    return set(zip(*(unique.column(name).to_pylist() for name in ("generator", "prompt_id")), strict=True))


def _missing_error(generator: str, broken: Sequence[BrokenFile]) -> RowError:
    if broken:
        return RowError("broken_file", broken[-1].message, retryable=True)
    remedy = "generate it, or set benchmark.require_every_prompt=false"
    return RowError("missing_image", f"generator {generator} has no image of this prompt; {remedy}", retryable=True)


def _errors(scores: pa.Table, shard: Shard | None) -> pa.Table:
    """The rows without a score, with their errors spread into columns, and where they stand in the shard's file."""
    failed = pc.indices_nonzero(pc.is_valid(scores.column("error")))
    taken = scores.take(failed).combine_chunks()
    columns = {name: taken.column(name) for name in ("image_id", "prompt_id", "generator", "metric")}
    error = taken.column("error")
    columns |= {name: pc.struct_field(error, name) for name in rows.ERROR.names}
    nowhere = pa.nulls(len(failed))
    columns["file"] = pa.array([shard.url] * len(failed), pa.string()) if shard else nowhere.cast(pa.string())
    columns["row"] = pc.add(failed.cast(pa.int64()), shard.first_row) if shard else nowhere.cast(pa.int64())
    return pa.table(columns, schema=rows.ERRORS)


def error_counts(errors: pa.Table) -> Iterator[tuple[str, int]]:
    """The kinds of error of a run with their number of rows, most first."""
    counts = pc.value_counts(errors.column("kind")).to_pylist()
    yield from sorted(((count["values"], count["counts"]) for count in counts), key=lambda pair: (-pair[1], pair[0]))
