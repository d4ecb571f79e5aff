"""What a run hands to people: scores, summary and errors, with every row that should be there."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from operators import rows
from operators.errors import PlumblineError, RowError
from operators.images import identify, image_records
from operators.stages.scores import written_bases
from operators.summary import Tally
from pipelines.cells.cells import Cell, Outcome, Shard, is_draft
from pipelines.cells.plan import Plan
from pipelines.cells.store import BrokenCell, Store, StoreError
from pipelines.sources.benchmark import BenchmarkConfig
from pipelines.sources.shards import BrokenFile, read_extra, read_shard
from pipelines.sources.sources import Sources
from pipelines.storage import StorageConfig

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
    broken: frozenset[str] = frozenset()
    """Paths of cells that are damaged, or stand on questions that have been written anew."""

    @property
    def scores(self) -> pa.Table:
        """All scores, read from the store."""
        return self.store.read_table(self.path)

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
    broken: set[str] = set()
    cells = ScoreCells(store, storage, sources.extra, outcomes, current_bases(plan, outcomes, store, broken), broken)
    total = Tally(sources.skills)
    errors: list[pa.Table] = [rows.ERRORS.empty_table()]
    counts = Counter[str]()

    def counted() -> Iterator[pa.Table]:
        for part in _parts(plan, sources, cells, benchmark):
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
        broken=frozenset(broken),
    )


def current_bases(
    plan: Plan, outcomes: Mapping[str, Outcome], store: Store, broken: set[str]
) -> dict[str, dict[str, str]]:
    """By metric whose scores read questions, what those of each prompt stand on, as the store has it now.

    A prompt whose questions are not there, as after pruning, is in none. Cells that are damaged are added to `broken`.
    """
    cells = {cell.path: cell for cell in plan.cells}
    read = lru_cache(maxsize=None)(lambda path: _prompt_table(cells[path], outcomes, store, broken))
    return {metric: _bases(scored, read) for metric, scored in plan.scores.items()}


def _bases(scored: Sequence[tuple[Shard, Cell]], read: Callable[[str], pa.Table | None]) -> dict[str, str]:
    """What a metric's questions, and their entailments where it reads any, are now, by prompt."""
    asked = [path for _, cell in scored for path in cell.inputs.get("questions", ())]
    entailments = [path for _, cell in scored for path in cell.inputs.get("entailment", ())]
    entailed = dict(zip(asked, entailments, strict=True)) if entailments else {}
    bases: dict[str, str] = {}
    for path in dict.fromkeys(asked):
        questions, of_questions = read(path), read(entailed[path]) if path in entailed else None
        if questions is not None and (of_questions is not None or path not in entailed):
            bases.update(written_bases(questions, of_questions))
    return bases


def _prompt_table(cell: Cell, outcomes: Mapping[str, Outcome], store: Store, broken: set[str]) -> pa.Table | None:
    """A cell's rows, or None where it is not there."""
    try:
        return store.read(cell.path, key=cell.key, draft=is_draft(cell.path, outcomes))
    except BrokenCell as error:
        broken.add(error.path)
    except StoreError:
        pass
    return None


class ScoreCells(NamedTuple):
    """The scores cells of a run, and what reading them takes."""

    store: Store
    storage: StorageConfig
    extra: pa.Schema
    outcomes: Mapping[str, Outcome]
    bases: Mapping[str, Mapping[str, str]]
    """By metric and prompt, what a score stands on now."""
    broken: set[str]
    """Paths of the cells that turn out not to be usable."""

    def read(self, metric: str, shard: Shard, cell: Cell) -> pa.Table | BrokenFile:
        """A cell's rows, which are its shard's in their order, beside the shard's further columns."""
        outcome = self.outcomes.get(cell.path)
        if outcome is not None and outcome.state == "failed":
            self.broken.update(outcome.broken)
            return self._nulls(metric, shard, RowError("shard_failed", outcome.message, retryable=True))
        try:
            scores = self.store.read(cell.path, key=cell.key, draft=is_draft(cell.path, self.outcomes))
            self._check_basis(metric, cell, scores)
            further = _read_extra(shard, self.storage, self.extra)
            return _beside(scores.select(rows.SCORES.names), further, self.extra)
        except (OSError, PlumblineError) as error:
            if isinstance(error, BrokenCell):
                self.broken.add(error.path)
            return self._nulls(metric, shard, RowError("cell_unreadable", str(error), retryable=True))

    def _check_basis(self, metric: str, cell: Cell, scores: pa.Table) -> None:
        """Raises BrokenCell where a score stands on questions that have been written anew since."""
        now = self.bases.get(metric, {})
        sound = scores.filter(scores.column("error").is_null())
        held = zip(*(sound.column(name).to_pylist() for name in ("prompt_id", "basis")), strict=True)
        if any(now.get(prompt_id, basis) != basis for prompt_id, basis in held):
            raise BrokenCell(
                cell.path, f"{cell.path}: scores by questions that have been written anew since; run again"
            )

    def _nulls(self, metric: str, shard: Shard, error: RowError) -> pa.Table | BrokenFile:
        """A null row per image of a shard that failed whole, where at least the ids can be read."""
        try:
            records = image_records(read_shard(shard, self.storage, ("image_id", "prompt_id")))
            further = _read_extra(shard, self.storage, self.extra)
        except PlumblineError:
            return BrokenFile(shard.group, error.message, shard.rows)
        nulls = [_null_row(metric, error, **_known_ids(record, shard.group)) for record in records]
        return _beside(rows.table(nulls, rows.SCORES), further, self.extra)


def _parts(plan: Plan, sources: Sources, cells: ScoreCells, benchmark: BenchmarkConfig) -> Iterator[Part]:
    """Every cell's rows in the plan's order, then for each metric those that are missing."""
    lost: dict[str, list[BrokenFile]] = defaultdict(list)
    seen: dict[str, set[tuple[str, str | None]]] = defaultdict(set)

    def read(metric: str, shard: Shard, cell: Cell) -> tuple[str, Shard, pa.Table | BrokenFile, Tally]:
        found = cells.read(metric, shard, cell)
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
