"""Queries the rows of open runs in DuckDB, which is not allowed to open other files.

SQL is built only from the names in this file; values from pages are always bound parameters.
"""

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import ConfigError, format_install_remedy
from plumbline.operators.base.schemas import QUESTIONS
from plumbline.operators.images.generation_settings import (
    REPEAT_SETTING,
    SETTINGS_COLUMN,
    SettingCounts,
    add_settings,
    has_settings,
)
from plumbline.operators.results.bridge import Line
from plumbline.operators.results.run_scores import Hashes, ReadPart, RunScores
from plumbline.operators.statistics.percentiles import compute_percentile_rank
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.pipelines.store.runs import N_READERS
from plumbline.pipelines.store.store import Store, get_draft_path

SCORES_TABLE_DEFINITION = (
    "row BIGINT, image_id VARCHAR, prompt_id VARCHAR, generator VARCHAR, metric VARCHAR, score DOUBLE, "
    "truncated BOOLEAN, kind VARCHAR, message VARCHAR, settings VARCHAR"
)
SCORE_COLUMNS = ("image_id", "prompt_id", "generator", "metric", "score", "truncated", "error", SETTINGS_COLUMN)
PROMPT_COLUMNS = ("prompt_id", "text", "skills")
QUESTION_COLUMNS = ("prompt_id", "question_id", "text", "answer", "kind")
SHARED_COLUMNS = ("generator", "metric")
SCORE_ORDERS = {
    "": "row",
    "lowest": "score NULLS LAST, row",
    "highest": "score DESC NULLS LAST, row",
    "prompt": "prompt_id, row",
    "generator": "generator, row",
    "metric": "metric, row",
}
"""Sort orders of scores. The default is the order of the run, or DISAGREEMENT_ORDER if two metrics are compared."""
DISAGREEMENT_ORDER = "apart DESC, row"
MAX_CACHED_ORDERS = 4
"""Maximum number of cached orders by two metrics per run; each requires joining and sorting all scores of the run."""
CHANGE_ORDERS = {
    "": "abs(later.mean - earlier.mean) DESC NULLS LAST",
    "up": "later.mean - earlier.mean DESC NULLS LAST",
    "down": "later.mean - earlier.mean NULLS LAST",
}
"""Sort orders of score changes; the default is by absolute difference."""
RANK_SQL_EXPRESSION = "(2 * worse + equal) / (2 * total)"
"""SQL expression that computes the same ranks as `compute_percentile_rank`."""
MAX_SEARCH_WORDS = 16
SETTING_SEPARATOR = "\x1f"
"""Separator before and after each setting in the `settings` column; no value contains it."""
ROWS_PER_PART = 1 << 15
"""Number of scores that a comparison reads at a time."""
MAX_ROWS_OF_PAGE = 2000
"""Maximum number of rows for the images of one side on a page of score changes."""


SettingPairs = tuple[tuple[str, str], ...]
"""Generation settings as pairs of name and value."""
NamedImage = tuple[str, str, str]
"""An image, identified by generator, image id and prompt id."""


class WantedRows(NamedTuple):
    """Filter and sort order for scores."""

    generator: str = ""
    metric: str = ""
    skill: str = ""
    kind: str = ""
    """Select only rows without a score that have this kind of error; `any` selects all kinds."""
    low: float | None = None
    high: float | None = None
    words: str = ""
    """Words that must all occur in the prompt, or the id of the prompt or image."""
    sort: str = ""
    settings: SettingPairs = ()
    noted: tuple[NamedImage, ...] | None = None
    """Images with notes, if only images with notes are selected; None selects images with and without notes."""
    against: str = ""
    """Second metric: select images that both metrics scored, sorted by the difference between their ranks."""


class Score(NamedTuple):
    """A row of a run's scores, together with its prompt."""

    row: int
    image_id: str | None
    prompt_id: str | None
    generator: str
    metric: str
    score: float | None
    truncated: bool | None
    kind: str | None
    message: str | None
    settings: str | None
    """Generation settings, each with SETTING_SEPARATOR before and after it."""
    text: str | None
    """Text of the prompt; None if it cannot be read."""
    rank: float | None = None
    """Percentile rank among the metric's rows, if requested."""
    other: float | None = None
    """The image's score by the other metric, if two are compared."""
    other_rank: float | None = None

    @property
    def settings_text(self) -> str:
        """The settings as text, such as `cfg 7.5, steps 20`."""
        return ", ".join(
            setting.replace("=", " ", 1) for setting in (self.settings or "").split(SETTING_SEPARATOR) if setting
        )


class ScoreChange(NamedTuple):
    """A prompt's mean score on each side, by one metric."""

    prompt_id: str
    left_generator: str
    right_generator: str
    left: float | None
    """The left side's mean, mapped to the scale of the right side's metric; None if there is no score."""
    right: float | None


class StoredQuestion(NamedTuple):
    """A question about a prompt's images."""

    prompt_id: str | None
    question_id: str
    text: str | None
    answer: str | None
    kind: str | None
    prompt: str | None


class ExecuteStatement(Protocol):
    """A function that executes a statement; the statement can refer to the given table as `given`."""

    def __call__(self, statement: str, table: pa.Table | None = None, values: Sequence[object] = ()) -> None: ...


class Database:
    """A DuckDB database with the tables of all opened runs."""

    def __init__(self, folder: Path, memory: int) -> None:
        """Create the database in an empty folder; it uses at most `memory` megabytes of memory."""
        try:
            import duckdb
        except ImportError as error:
            raise ConfigError(f"DuckDB is not installed; {format_install_remedy('view')}") from error
        options: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{memory}MB",
            "temp_directory": str(folder / "spilled"),
        }
        self._connection = duckdb.connect(str(folder / "rows.duckdb"), config=options)
        self._connection.execute("SET python_enable_replacements = false")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")
        self._numbers = count()
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._connection.close()

    def take_next_number(self) -> int:
        """Return a new number for use in table names."""
        return next(self._numbers)

    def select(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with closing(self._connection.cursor()) as cursor:
            return list(cursor.execute(statement, list(values)).fetchall())

    def select_table(self, statement: str, values: Sequence[object] = ()) -> pa.Table:
        with closing(self._connection.cursor()) as cursor:
            return cursor.sql(statement, params=list(values)).to_arrow_table()

    def drop(self, *tables: str) -> None:
        """Drop tables, unless the database is already closed."""
        if self._closed:
            return
        with closing(self._connection.cursor()) as cursor:
            for table in tables:
                cursor.execute(f"DROP TABLE IF EXISTS {table}")

    @contextmanager
    def transaction(self) -> Iterator[ExecuteStatement]:
        """Yield a function that executes statements; roll all of them back if an error occurs."""
        with closing(self._connection.cursor()) as cursor:

            def fill(statement: str, table: pa.Table | None = None, values: Sequence[object] = ()) -> None:
                if table is not None:
                    cursor.register("given", table)
                cursor.execute(statement, list(values))

            cursor.begin()
            try:
                yield fill
                cursor.commit()
            except BaseException:
                cursor.rollback()
                raise


class SortedRows:
    """Sorted rows in a table that is dropped together with this object."""

    def __init__(self, database: Database, rows: str, values: tuple[object, ...], order: str) -> None:
        """Create the table from `rows`, a statement that selects the columns row, rank, other and other_rank."""
        self.table = f"order_{database.take_next_number()}"
        weakref.finalize(self, database.drop, self.table).atexit = False
        columns = f"row, rank, other, other_rank, row_number() OVER (ORDER BY {order}) - 1 AS place"
        with database.transaction() as fill:
            fill(f"CREATE TABLE {self.table} AS SELECT {columns} FROM ({rows}) ORDER BY place", values=values)
        self.total = int(database.select(f"SELECT count(*) FROM {self.table}")[0][0])


class RunRows:
    """A run's rows in the database. Scores are read immediately, questions when first needed."""

    def __init__(
        self, database: Database, store: Store, run_id: str, prompts: pa.Table, lower_is_better: Collection[str]
    ) -> None:
        """Read the scores file by file; `prompts` has the schema PROMPTS and may be empty.

        Raises StoreError if a file is damaged or cannot be read.
        """
        self._database, self._store, self._run_id = database, store, run_id
        self.number = number = database.take_next_number()
        """Number that identifies this reading of the run; it is part of the tables' names."""
        self._scores, self._prompts, self._questions = f"scores_{number}", f"prompts_{number}", f"questions_{number}"
        self._ranks, self._lower_is_better = f"ranks_{number}", sorted(lower_is_better)
        tables = (self._scores, self._prompts, self._questions, self._ranks)
        weakref.finalize(self, database.drop, *tables).atexit = False
        self._lock = Lock()
        self._has_questions = self._has_ranks = False
        self._cached_order = lru_cache(MAX_CACHED_ORDERS)(partial(SortedRows, database))
        parts = store.files(f"runs/{run_id}/scores.parquet")
        read = partial(store.read_file, columns=SCORE_COLUMNS, encoded=SHARED_COLUMNS)
        with database.transaction() as fill:
            fill(f"CREATE TABLE {self._scores} ({SCORES_TABLE_DEFINITION})")
            first = 0
            for table in _read_ahead(parts, read):
                numbered = table.append_column("row", pa.array(np.arange(first, first + len(table))))
                fill(
                    f"INSERT INTO {self._scores} SELECT row, image_id, prompt_id, generator, metric, score, truncated, "
                    "error.kind, error.message, settings FROM given",
                    _join_settings(numbered),
                )
                first += len(table)
            fill(f"CREATE TABLE {self._prompts} AS SELECT * FROM given", prompts.select(PROMPT_COLUMNS))

    def count(self, wanted: WantedRows) -> int:
        """Return the number of scores that match the filter."""
        if wanted.against:
            return self._sort_by_both_metrics(wanted).total
        where, values = self._make_condition(wanted)
        return int(self._database.select(f"SELECT count(*) FROM {self._scores} WHERE {where}", values)[0][0])

    def find(self, wanted: WantedRows, first: int, limit: int) -> list[Score]:
        """Return up to `limit` matching scores in sort order, starting at the index `first`."""
        if wanted.against:
            page = f"SELECT * FROM {self._sort_by_both_metrics(wanted).table} WHERE place >= ? AND place < ?"
            found = f"SELECT * FROM {self._scores} JOIN ({page}) USING (row)"
            return self._select_scores_with_texts(
                found, [first, first + limit], "place", ", f.rank, f.other, f.other_rank"
            )
        where, values = self._make_condition(wanted)
        order = SCORE_ORDERS[wanted.sort]
        found = f"SELECT * FROM {self._scores} WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"
        return self._select_scores_with_texts(found, [*values, limit, first], order)

    def _sort_by_both_metrics(self, wanted: WantedRows) -> SortedRows:
        """Return the matching scores of images that the metric `against` has also scored, in sorted order."""
        self._rank_scores()
        where, values = self._make_condition(wanted)
        image = "o.generator = r.generator AND o.image_id = r.image_id AND o.prompt_id = r.prompt_id"
        pairs = (
            f"SELECT s.*, r.rank, o.score AS other, o.rank AS other_rank, abs(r.rank - o.rank) AS apart "
            f"FROM (SELECT * FROM {self._scores} WHERE {where}) s JOIN {self._ranks} r USING (row) "
            f"JOIN {self._ranks} o ON {image} WHERE o.metric = ?"
        )
        order = SCORE_ORDERS[wanted.sort] if wanted.sort else DISAGREEMENT_ORDER
        return self._cached_order(pairs, (*values, wanted.against), order)

    def _rank_scores(self) -> None:
        """Create the table of percentile ranks within each metric, unless it exists; higher ranks are better."""
        with self._lock:
            if self._has_ranks:
                return
            sign = "CASE WHEN metric IN (SELECT metric FROM given) THEN -1 ELSE 1 END"
            columns = "row, generator, image_id, prompt_id, metric, score"
            worths = f"SELECT {columns}, {sign} * score AS worth FROM {self._scores} WHERE score IS NOT NULL"
            counts = (
                "rank() OVER (PARTITION BY metric ORDER BY worth) - 1 AS worse, "
                "count(*) OVER (PARTITION BY metric, worth) AS equal, "
                "count(*) OVER (PARTITION BY metric) AS total"
            )
            ranks = f"SELECT {columns}, {RANK_SQL_EXPRESSION} AS rank FROM (SELECT *, {counts} FROM ({worths}))"
            with self._database.transaction() as fill:
                metrics = pa.table({"metric": pa.array(self._lower_is_better, pa.string())})
                fill(f"CREATE TABLE {self._ranks} AS {ranks}", metrics)
            self._has_ranks = True

    def read_row(self, row: int) -> Score | None:
        """Return the row with this number, or None if the run has fewer rows."""
        return next(
            iter(self._select_scores_with_texts(f"SELECT * FROM {self._scores} WHERE row = ?", [row], "row")), None
        )

    def read_image_scores(self, score: Score) -> list[Score]:
        """Return the scores of a row's image by all metrics, with their ranks."""
        same = "generator = ? AND image_id IS NOT DISTINCT FROM ? AND prompt_id IS NOT DISTINCT FROM ?"
        return self._find_ranked_scores(same, [score.generator, score.image_id, score.prompt_id])

    def read_prompt_scores(self, prompt_id: str, limit: int) -> list[Score]:
        """Return up to `limit` scores of a prompt's images by all metrics, with their ranks."""
        return self._find_ranked_scores("prompt_id = ?", [prompt_id], limit)

    def count_settings(self, wanted: WantedRows) -> dict[str, SettingCounts]:
        """Return the number of matching rows for each generation setting (without seeds), by generator."""
        where, values = self._make_condition(wanted)
        split = f"SELECT generator, unnest(string_split(settings, ?)) AS setting FROM {self._scores} WHERE {where}"
        counted = (
            f"SELECT generator, setting, count(*) FROM ({split}) "
            "WHERE setting <> '' AND NOT starts_with(setting, ?) GROUP BY ALL"
        )
        settings: dict[str, SettingCounts] = {}
        for generator, setting, rows in self._database.select(
            counted, [SETTING_SEPARATOR, *values, f"{REPEAT_SETTING}="]
        ):
            name, _, value = setting.partition("=")
            settings[generator] = add_settings(settings.get(generator, {}), {name: {value: rows}})
        return settings

    def select_scores(self, wanted: WantedRows, name: str = "") -> RunScores:
        """Return the matching scores, which are read in parts; a non-empty `name` replaces the generator's name."""
        where, values = self._make_condition(wanted)
        parts = f"SELECT DISTINCT row // {ROWS_PER_PART} AS part FROM {self._scores} WHERE {where} ORDER BY part"
        numbers = [int(number) for (number,) in self._database.select(parts, values)]
        return RunScores([self._make_part_reader(number, where, values, name) for number in numbers])

    def _make_part_reader(self, number: int, where: str, values: Sequence[object], name: str) -> ReadPart:
        def read(columns: Sequence[str]) -> pa.Table:
            within = f"row >= {number * ROWS_PER_PART} AND row < {(number + 1) * ROWS_PER_PART} AND {where}"
            part = f"SELECT {', '.join(columns)} FROM {self._scores} WHERE {within}"
            table = self._database.select_table(part, values)
            if not name:
                return table
            names = pa.array([name] * len(table), pa.string())
            return table.set_column(table.column_names.index("generator"), "generator", names)

        return read

    def find_prompt_changes(
        self,
        right: "RunRows",
        wanted: tuple[WantedRows, WantedRows],
        line: Line,
        edited: Sequence[str],
        first: int,
        limit: int,
    ) -> tuple[int, list[ScoreChange]]:
        """Return the number of prompts that both this run (left) and `right` scored, and a page of them.

        If the filters (`wanted`, one per side) name generators, these are compared with each other; otherwise each
        generator is compared with itself. If the filters name a kind of error, return prompts with this error on either
        side instead.

        The `line` maps this run's scores to the other run's scale. Prompts in `edited` are left out, because their
        texts differ.
        """
        (earlier, left_values), (later, right_values) = (
            self._select_prompt_means(wanted[0]),
            right._select_prompt_means(wanted[1]),
        )
        mapped = f"SELECT * REPLACE (? + ? * mean AS mean) FROM ({earlier})"
        same = "prompt_id" if wanted[0].generator else "prompt_id, generator"
        scored = "earlier.mean IS NOT NULL AND later.mean IS NOT NULL"
        statement = (
            "SELECT count(*) OVER (), prompt_id, earlier.generator, later.generator, earlier.mean, later.mean "
            f"FROM ({mapped}) earlier JOIN ({later}) later USING ({same}) "
            f"WHERE ({'earlier.failed OR later.failed' if wanted[1].kind else scored}) "
            f"AND (earlier.has_note OR later.has_note) AND NOT list_contains(CAST(? AS VARCHAR[]), prompt_id) "
            f"ORDER BY {CHANGE_ORDERS[wanted[1].sort]}, prompt_id, later.generator LIMIT ? OFFSET ?"
        )
        found = self._database.select(statement, [*line, *left_values, *right_values, [*edited], limit, first])
        return found[0][0] if found else 0, [ScoreChange(*row[1:]) for row in found]

    def _select_prompt_means(self, wanted: WantedRows) -> tuple[str, list[object]]:
        """Return a statement that selects each prompt's mean by generator.

        Two more columns say whether any of the prompt's images has the wanted error, and whether any has a note.
        """
        where, values = self._make_condition(wanted._replace(kind="", noted=None))
        kind = {"": "false", "any": "kind IS NOT NULL"}.get(wanted.kind, "kind = ?")
        noted, images = ("true", []) if wanted.noted is None else _make_images_condition(wanted.noted)
        statement = (
            f"SELECT prompt_id, generator, avg(score) AS mean, coalesce(bool_or({kind}), false) AS failed, "
            f"bool_or({noted}) AS has_note "
            f"FROM {self._scores} WHERE prompt_id IS NOT NULL AND {where} GROUP BY prompt_id, generator"
        )
        return statement, [*([wanted.kind] if "?" in kind else []), *images, *values]

    def find_scores(self, wanted: WantedRows, generators: Sequence[str], prompt_ids: Sequence[str]) -> list[Score]:
        """Return up to MAX_ROWS_OF_PAGE matching rows for these prompts and generators, in the order of the run."""
        where, values = self._make_condition(wanted)
        condition = f"{where} AND list_contains(?, generator) AND list_contains(?, prompt_id)"
        found = f"SELECT * FROM {self._scores} WHERE {condition} ORDER BY row LIMIT {MAX_ROWS_OF_PAGE}"
        return self._select_scores_with_texts(found, [*values, [*generators], [*prompt_ids]], "row")

    def find_prompt_ids(self, hashes: Hashes) -> list[str]:
        """Return the ids of the scored prompts that have these hashes."""
        found = self._database.select(f"SELECT DISTINCT prompt_id FROM {self._scores} WHERE prompt_id IS NOT NULL")
        ids = [prompt_id for (prompt_id,) in found]
        return [ids[place] for place in np.flatnonzero(np.isin(hash_ids(ids), hashes))]

    def list_skills(self) -> list[str]:
        """Return the skills of all prompts, sorted by name."""
        unnested = f"SELECT DISTINCT unnest(skills) AS skill FROM {self._prompts}"
        return [skill for (skill,) in self._database.select(f"SELECT skill FROM ({unnested}) ORDER BY skill") if skill]

    def find_questions(self, words: str, first: int, limit: int) -> tuple[int, list[StoredQuestion]]:
        """Return the number of questions that contain these words, and a page of them.

        The first call reads the question cells; raises StoreError if one of them is damaged or missing.
        """
        self._read_questions()
        condition, values = _make_words_condition("q.text", words)
        found = f"{self._questions} q WHERE {condition}"
        total = int(self._database.select(f"SELECT count(*) FROM {found}", values)[0][0])
        columns = ", ".join(f"f.{name}" for name in QUESTION_COLUMNS)
        statement = (
            f"SELECT {columns}, p.text FROM (SELECT * FROM {found} ORDER BY prompt_id, question_id LIMIT ? OFFSET ?) f "
            f"LEFT JOIN {self._prompts} p USING (prompt_id) ORDER BY prompt_id, question_id"
        )
        return total, [StoredQuestion(*row) for row in self._database.select(statement, [*values, limit, first])]

    def _read_questions(self) -> None:
        with self._lock:
            if self._has_questions:
                return
            cells = self._store.read_table(f"runs/{self._run_id}/cells.parquet", ["path", "state"]).to_pylist()
            paths = [
                get_draft_path(cell["path"]) if cell["state"] == "draft" else cell["path"]
                for cell in cells
                if cell["path"].startswith("questions/") and cell["state"] not in ("failed", "missing")
            ]
            with self._database.transaction() as fill:
                empty = QUESTIONS.empty_table().select(QUESTION_COLUMNS)
                fill(f"CREATE TABLE {self._questions} AS SELECT * FROM given", empty)
                for cell in _read_ahead(paths, self._store.read_cell):
                    fill(f"INSERT INTO {self._questions} SELECT * FROM given", cell.table.select(QUESTION_COLUMNS))
                distinct = "SELECT DISTINCT ON (prompt_id, question_id) *"
                valid = f"FROM {self._questions} WHERE question_id IS NOT NULL"
                fill(f"CREATE OR REPLACE TABLE {self._questions} AS {distinct} {valid}")
            self._has_questions = True

    def _make_condition(self, wanted: WantedRows) -> tuple[str, list[object]]:
        """Return an SQL condition that selects the rows matching the filter, and the condition's values."""
        prompt = f"prompt_id IN (SELECT prompt_id FROM {self._prompts} WHERE"
        conditions: list[str] = []
        values: list[object] = []

        def add(condition: str, *bound: object) -> None:
            conditions.append(condition)
            values.extend(bound)

        for column in ("generator", "metric"):
            if name := getattr(wanted, column):
                add(f"{column} = ?", name)
        if wanted.kind:
            add("kind IS NOT NULL") if wanted.kind == "any" else add("kind = ?", wanted.kind)
        if wanted.low is not None:
            add("score >= ?", wanted.low)
        if wanted.high is not None:
            add("score <= ?", wanted.high)
        if wanted.skill:
            add(f"{prompt} list_contains(skills, ?))", wanted.skill)
        condition, words = _make_words_condition("text", wanted.words)
        if words:
            word_id = wanted.words.strip()
            add(f"({prompt} {condition}) OR prompt_id = ? OR image_id = ?)", *words, word_id, word_id)
        if wanted.noted is not None:
            condition, images = _make_images_condition(wanted.noted)
            add(condition, *images)
        for name, value in wanted.settings:
            add("contains(settings, ?)", f"{SETTING_SEPARATOR}{name}={value}{SETTING_SEPARATOR}")
        return " AND ".join(conditions) or "true", values

    def _select_scores_with_texts(
        self, statement: str, values: Sequence[object], order: str, ranks: str = ""
    ) -> list[Score]:
        """Return the selected scores, with the texts of their prompts."""
        columns = ", ".join(f"f.{name}" for name in Score._fields[: Score._fields.index("text")])
        joined = f"SELECT {columns}, p.text{ranks} FROM ({statement}) f LEFT JOIN {self._prompts} p USING (prompt_id)"
        return [Score(*row) for row in self._database.select(f"{joined} ORDER BY {order}", values)]

    def _find_ranked_scores(self, condition: str, values: Sequence[object], limit: int = 1000) -> list[Score]:
        """Return up to `limit` scores that match the condition, with their percentile ranks within the metric."""
        found = self._select_scores_with_texts(
            f"SELECT * FROM {self._scores} WHERE {condition} ORDER BY row LIMIT {limit:d}", values, "row"
        )
        counts = "count_if(o.score < m.score), count_if(o.score = m.score), count_if(o.score > m.score)"
        counted = self._database.select(
            f"SELECT m.row, m.metric, {counts} FROM (SELECT row, metric, score FROM {self._scores} WHERE {condition} "
            f"AND score IS NOT NULL ORDER BY row LIMIT {limit:d}) m JOIN {self._scores} o USING (metric) "
            "WHERE o.score IS NOT NULL GROUP BY m.row, m.metric",
            values,
        )
        ranks = {}
        for row, metric, lower, equal, higher in counted:
            worse = higher if metric in self._lower_is_better else lower
            ranks[row] = compute_percentile_rank(float(worse), equal, lower + equal + higher)
        return [score._replace(rank=ranks.get(score.row)) for score in found]


def _make_images_condition(images: Sequence[NamedImage]) -> tuple[str, list[object]]:
    """Return an SQL condition that selects the rows of any of these images, and the condition's values."""
    values: list[object] = [tuple(image[column] for image in images) for column in range(3)]
    return "(generator, image_id, prompt_id) IN (SELECT unnest(?), unnest(?), unnest(?))", values


def _make_words_condition(column: str, words: str) -> tuple[str, list[object]]:
    """Return an SQL condition that selects texts containing all words, ignoring case, and the condition's values.

    Only the first MAX_SEARCH_WORDS words count. If there are no words, the condition selects all texts.
    """
    values: list[object] = [*words.split()[:MAX_SEARCH_WORDS]]
    return " AND ".join([f"contains(lower({column}), lower(?))"] * len(values)) or "true", values


def _join_settings(part: pa.Table) -> pa.Table:
    """Return the rows with each row's settings as one string in the column `settings`.

    The string is just SETTING_SEPARATOR for a row without settings, and null if the table has no settings.
    """
    texts = pa.nulls(len(part), pa.string())
    if has_settings(part.schema):
        column = part.column(SETTINGS_COLUMN).combine_chunks()
        names = (field.name for field in column.type)
        settings = [
            pc.binary_join_element_wise(f"{SETTING_SEPARATOR}{name}", values, "=")
            for name, values in zip(names, column.flatten(), strict=True)
        ]
        texts = pc.binary_join_element_wise(*settings, SETTING_SEPARATOR, "", null_handling="skip")
    others = part.drop_columns([SETTINGS_COLUMN]) if SETTINGS_COLUMN in part.column_names else part
    return others.append_column(SETTINGS_COLUMN, texts)


def _read_ahead(paths: Sequence[str], read: Callable[[str], Any]) -> Iterator[Any]:
    """Yield what `read` returns for each path, in order; read a few files at the same time."""
    with ThreadPoolExecutor(N_READERS) as pool:
        for first in range(0, len(paths), N_READERS):
            yield from pool.map(read, paths[first : first + N_READERS])
