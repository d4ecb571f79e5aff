"""The rows of opened runs in DuckDB, which has no way to any file of this machine: what is asked of them, and how fast.

Statements are made of the names below and of nothing else; whatever comes from a page is a bound value.
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

from plumbline.operators.base.errors import ConfigError, install
from plumbline.operators.base.schemas import QUESTIONS
from plumbline.operators.images.generation_settings import COLUMN, REPEATS, Known, add_settings, is_kept
from plumbline.operators.results.bridge import Line
from plumbline.operators.results.run_scores import Hashes, ReadPart, RunScores
from plumbline.operators.statistics.percentiles import percentile_rank
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.pipelines.cells.runs import READERS
from plumbline.pipelines.cells.store import Store, draft_path

SCORES = (
    "row BIGINT, image_id VARCHAR, prompt_id VARCHAR, generator VARCHAR, metric VARCHAR, score DOUBLE, "
    "truncated BOOLEAN, kind VARCHAR, message VARCHAR, settings VARCHAR"
)
SCORE_COLUMNS = ("image_id", "prompt_id", "generator", "metric", "score", "truncated", "error", COLUMN)
PROMPT_COLUMNS = ("prompt_id", "text", "skills")
QUESTION_COLUMNS = ("prompt_id", "question_id", "text", "answer", "kind")
SHARED = ("generator", "metric")
ORDERS = {
    "": "row",
    "lowest": "score NULLS LAST, row",
    "highest": "score DESC NULLS LAST, row",
    "prompt": "prompt_id, row",
    "generator": "generator, row",
    "metric": "metric, row",
}
"""By what a page may sort scores; the first is the order of the run, or beside another metric APART."""
APART = "apart DESC, row"
MOST_ORDERS = 4
"""Of a run, that are kept: what two metrics rank differently takes a join and a sort of all its scores to find."""
MOVES = {
    "": "abs(later.mean - earlier.mean) DESC NULLS LAST",
    "up": "later.mean - earlier.mean DESC NULLS LAST",
    "down": "later.mean - earlier.mean NULLS LAST",
}
"""By what a page may sort moves; the first is how far a score moved, whichever way."""
RANK = "(2 * worse + equal) / (2 * total)"
"""`percentile_rank` in SQL."""
MOST_WORDS = 16
SETTING = "\x1f"
"""Stands around each setting in the text of them all; no value has it."""
PART_ROWS = 1 << 15
"""Of the scores that are compared, at once."""
MOST_BESIDE = 2000
"""Rows of the images on a page of moves, on either side."""


Settings = tuple[tuple[str, str], ...]
"""That images were generated with, by name."""
NamedImage = tuple[str, str, str]
"""An image by its generator, its own id and its prompt's."""


class WantedRows(NamedTuple):
    """Which scores are looked for, and in which order."""

    generator: str = ""
    metric: str = ""
    skill: str = ""
    kind: str = ""
    """Why a row has no score; `any` is any reason."""
    low: float | None = None
    high: float | None = None
    words: str = ""
    """That the prompt holds, each of them; or its id, or the image's."""
    sort: str = ""
    settings: Settings = ()
    noted: tuple[NamedImage, ...] | None = None
    """The images that have notes, where only these are looked for."""
    against: str = ""
    """Another metric, that its image has a score by too: sorted by how far apart the two rank it."""


class Score(NamedTuple):
    """A row of a run's scores, with its prompt."""

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
    """That the image was generated with, a SETTING around each."""
    text: str | None
    """Of the prompt; None where it cannot be read."""
    rank: float | None = None
    """Percentile rank among the metric's rows; None if it was not asked for."""
    other: float | None = None
    """The image's score by the metric that this one is set against."""
    other_rank: float | None = None

    @property
    def settings_in_words(self) -> str:
        """As `cfg 7.5, steps 20`."""
        return ", ".join(one.replace("=", " ", 1) for one in (self.settings or "").split(SETTING) if one)


class Move(NamedTuple):
    """A prompt's mean score on two sides, by one metric."""

    prompt_id: str
    left_generator: str
    right_generator: str
    left: float | None
    """None where none of its images has a score; else on the scale of the right side's metric."""
    right: float | None


class StoredQuestion(NamedTuple):
    """A question that was put about every image of a prompt."""

    prompt_id: str | None
    question_id: str
    text: str | None
    answer: str | None
    kind: str | None
    prompt: str | None


class Fill(Protocol):
    """Executes a statement, which may read a table as `given`."""

    def __call__(self, statement: str, table: pa.Table | None = None, values: Sequence[object] = ()) -> None: ...


class Database:
    """DuckDB in a folder of its own, with all tables of the opened runs."""

    def __init__(self, folder: Path, memory: int) -> None:
        """`memory` is in megabytes. Raises ConfigError where DuckDB is not installed."""
        try:
            import duckdb
        except ImportError as error:
            raise ConfigError(f"expected DuckDB, found none; {install('view')}") from error
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

    def number(self) -> int:
        """One that no other table has in its name."""
        return next(self._numbers)

    def select(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with closing(self._connection.cursor()) as cursor:
            return list(cursor.execute(statement, list(values)).fetchall())

    def select_table(self, statement: str, values: Sequence[object] = ()) -> pa.Table:
        with closing(self._connection.cursor()) as cursor:
            return cursor.sql(statement, params=list(values)).to_arrow_table()

    def drop(self, *tables: str) -> None:
        """Takes tables off; nothing where all of them have gone with the database."""
        if self._closed:
            return
        with closing(self._connection.cursor()) as cursor:
            for table in tables:
                cursor.execute(f"DROP TABLE IF EXISTS {table}")

    @contextmanager
    def filling(self) -> Iterator[Fill]:
        """Statements of which all hold, or none does."""
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


class KeptOrder:
    """Rows in their order, in a table that goes with this."""

    def __init__(self, database: Database, rows: str, values: tuple[object, ...], order: str) -> None:
        """`rows` is a statement with their number, ranks and other score."""
        self.table = f"order_{database.number()}"
        weakref.finalize(self, database.drop, self.table).atexit = False
        placed = f"row, rank, other, other_rank, row_number() OVER (ORDER BY {order}) - 1 AS place"
        with database.filling() as fill:
            fill(f"CREATE TABLE {self.table} AS SELECT {placed} FROM ({rows}) ORDER BY place", values=values)
        self.total = int(database.select(f"SELECT count(*) FROM {self.table}")[0][0])


class RunRows:
    """A run's rows: its scores at once, its questions once they are asked for."""

    def __init__(
        self, database: Database, store: Store, run_id: str, prompts: pa.Table, falling: Collection[str]
    ) -> None:
        """Reads the scores part by part; `prompts` has the schema PROMPTS, and is empty where they are not known. By
        the metrics `falling` a lower score is better.

        Raises StoreError where a part is damaged or out of reach.
        """
        self._database, self._store, self._run_id = database, store, run_id
        self.number = number = database.number()
        """No other run has it, nor this one when it is read anew."""
        self._scores, self._prompts, self._questions = f"scores_{number}", f"prompts_{number}", f"questions_{number}"
        self._ranks, self._falling = f"ranks_{number}", sorted(falling)
        tables = (self._scores, self._prompts, self._questions, self._ranks)
        weakref.finalize(self, database.drop, *tables).atexit = False
        self._asking = Lock()
        self._asked = self._are_ranked = False
        self._kept_order = lru_cache(MOST_ORDERS)(partial(KeptOrder, database))
        parts = store.files(f"runs/{run_id}/scores.parquet")
        read = partial(store.read_file, columns=SCORE_COLUMNS, encoded=SHARED)
        with database.filling() as fill:
            fill(f"CREATE TABLE {self._scores} ({SCORES})")
            first = 0
            for table in _read_ahead(parts, read):
                numbered = table.append_column("row", pa.array(np.arange(first, first + len(table))))
                fill(
                    f"INSERT INTO {self._scores} SELECT row, image_id, prompt_id, generator, metric, score, truncated, "
                    "error.kind, error.message, settings FROM given",
                    _with_settings(numbered),
                )
                first += len(table)
            known = prompts.select(PROMPT_COLUMNS)
            fill(f"CREATE TABLE {self._prompts} AS SELECT * FROM given", known)

    def count(self, wanted: WantedRows) -> int:
        """How many scores are as wanted."""
        if wanted.against:
            return self._apart(wanted).total
        where, values = self._where(wanted)
        return int(self._database.select(f"SELECT count(*) FROM {self._scores} WHERE {where}", values)[0][0])

    def find(self, wanted: WantedRows, first: int, most: int) -> list[Score]:
        """The scores that are wanted, from the one at the place `first` on."""
        if wanted.against:
            kept = self._apart(wanted)
            placed = f"SELECT * FROM {kept.table} WHERE place >= ? AND place < ?"
            found = f"SELECT * FROM {self._scores} JOIN ({placed}) USING (row)"
            return self._with_texts(found, [first, first + most], "place", ", f.rank, f.other, f.other_rank")
        where, values = self._where(wanted)
        order = ORDERS[wanted.sort]
        found = f"SELECT * FROM {self._scores} WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"
        return self._with_texts(found, [*values, most, first], order)

    def _apart(self, wanted: WantedRows) -> KeptOrder:
        """The scores that are wanted beside those of another metric, in their order."""
        self._rank_all()
        where, values = self._where(wanted)
        image = "o.generator = r.generator AND o.image_id = r.image_id AND o.prompt_id = r.prompt_id"
        beside = (
            f"SELECT s.*, r.rank, o.score AS other, o.rank AS other_rank, abs(r.rank - o.rank) AS apart "
            f"FROM (SELECT * FROM {self._scores} WHERE {where}) s JOIN {self._ranks} r USING (row) "
            f"JOIN {self._ranks} o ON {image} WHERE o.metric = ?"
        )
        return self._kept_order(beside, (*values, wanted.against), ORDERS[wanted.sort] if wanted.sort else APART)

    def _rank_all(self) -> None:
        """Ranks every score by its metric, the first time, so that a higher rank is better."""
        with self._asking:
            if not self._are_ranked:
                towards = "CASE WHEN metric IN (SELECT metric FROM given) THEN -1 ELSE 1 END"
                columns = "row, generator, image_id, prompt_id, metric, score"
                worths = f"SELECT {columns}, {towards} * score AS worth FROM {self._scores} WHERE score IS NOT NULL"
                counts = (
                    "rank() OVER (PARTITION BY metric ORDER BY worth) - 1 AS worse, "
                    "count(*) OVER (PARTITION BY metric, worth) AS equal, "
                    "count(*) OVER (PARTITION BY metric) AS total"
                )
                scored = f"SELECT {columns}, {RANK} AS rank FROM (SELECT *, {counts} FROM ({worths}))"
                with self._database.filling() as fill:
                    falling = pa.table({"metric": pa.array(self._falling, pa.string())})
                    fill(f"CREATE TABLE {self._ranks} AS {scored}", falling)
                self._are_ranked = True

    def at(self, row: int) -> Score | None:
        """The row of this number."""
        return next(iter(self._with_texts(f"SELECT * FROM {self._scores} WHERE row = ?", [row], "row")), None)

    def of_image(self, score: Score) -> list[Score]:
        """What all metrics say of a row's image."""
        same = "generator = ? AND image_id IS NOT DISTINCT FROM ? AND prompt_id IS NOT DISTINCT FROM ?"
        return self._ranked(same, [score.generator, score.image_id, score.prompt_id])

    def of_prompt(self, prompt_id: str, most: int) -> list[Score]:
        """What all metrics say of the images of a prompt, of so many rows at most."""
        return self._ranked("prompt_id = ?", [prompt_id], most)

    def settings(self, wanted: WantedRows) -> dict[str, Known]:
        """By generator, what the images of the rows that are wanted were generated with, but for seeds."""
        where, values = self._where(wanted)
        each = f"SELECT generator, unnest(string_split(settings, ?)) AS one FROM {self._scores} WHERE {where}"
        counted = (
            f"SELECT generator, one, count(*) FROM ({each}) WHERE one <> '' AND NOT starts_with(one, ?) GROUP BY ALL"
        )
        known: dict[str, Known] = {}
        for generator, one, rows_of in self._database.select(counted, [SETTING, *values, f"{REPEATS}="]):
            name, _, value = one.partition("=")
            known[generator] = add_settings(known.get(generator, {}), {name: {value: rows_of}})
        return known

    def compared(self, wanted: WantedRows, name: str = "") -> RunScores:
        """The scores that are wanted, as they are compared: those of one generator by another name, if one is given."""
        whose, values = self._where(wanted)
        parts = f"SELECT DISTINCT row // {PART_ROWS} AS part FROM {self._scores} WHERE {whose} ORDER BY part"
        numbers = [int(number) for (number,) in self._database.select(parts, values)]
        return RunScores([self._part(number, whose, values, name) for number in numbers])

    def _part(self, number: int, whose: str, values: Sequence[object], name: str) -> ReadPart:
        def read(columns: Sequence[str]) -> pa.Table:
            within = f"row >= {number * PART_ROWS} AND row < {(number + 1) * PART_ROWS} AND {whose}"
            part = f"SELECT {', '.join(columns)} FROM {self._scores} WHERE {within}"
            table = self._database.select_table(part, values)
            if not name:
                return table
            named = pa.array([name] * len(table), pa.string())
            return table.set_column(table.column_names.index("generator"), "generator", named)

        return read

    def moves(
        self,
        right: "RunRows",
        wanted: tuple[WantedRows, WantedRows],
        line: Line,
        edited: Sequence[str],
        first: int,
        most: int,
    ) -> tuple[int, list[Move]]:
        """Return how many prompts both this run and another scored, without the edited prompts, and some of them.

        `wanted` selects the rows of each side. If it names generators, these are compared with each other; otherwise
        each generator is compared with itself. The line maps this run's scores to the other run's. If `wanted` names a
        kind of error, return the prompts with an image on either side that has no score for this reason.
        """
        (earlier, of_earlier), (later, of_later) = self._prompt_means(wanted[0]), right._prompt_means(wanted[1])
        mapped = f"SELECT * REPLACE (? + ? * mean AS mean) FROM ({earlier})"
        same = "prompt_id" if wanted[0].generator else "prompt_id, generator"
        scored = "earlier.mean IS NOT NULL AND later.mean IS NOT NULL"
        statement = (
            "SELECT count(*) OVER (), prompt_id, earlier.generator, later.generator, earlier.mean, later.mean "
            f"FROM ({mapped}) earlier JOIN ({later}) later USING ({same}) "
            f"WHERE ({'earlier.failed OR later.failed' if wanted[1].kind else scored}) "
            f"AND (earlier.has_note OR later.has_note) AND NOT list_contains(CAST(? AS VARCHAR[]), prompt_id) "
            f"ORDER BY {MOVES[wanted[1].sort]}, prompt_id, later.generator LIMIT ? OFFSET ?"
        )
        found = self._database.select(statement, [*line, *of_earlier, *of_later, [*edited], most, first])
        return found[0][0] if found else 0, [Move(*row[1:]) for row in found]

    def _prompt_means(self, wanted: WantedRows) -> tuple[str, list[object]]:
        """Every prompt's mean score by a generator, whether an image of it failed for the reason that is wanted, and
        whether one has a note, if that is wanted.
        """
        where, values = self._where(wanted._replace(kind="", noted=None))
        kind = {"": "false", "any": "kind IS NOT NULL"}.get(wanted.kind, "kind = ?")
        noted, images = ("true", []) if wanted.noted is None else _is_one_of(wanted.noted)
        means = f"SELECT prompt_id, generator, avg(score) AS mean, coalesce(bool_or({kind}), false) AS failed, "
        grouped = f"FROM {self._scores} WHERE prompt_id IS NOT NULL AND {where} GROUP BY prompt_id, generator"
        noted_too = f"bool_or({noted}) AS has_note {grouped}"
        return means + noted_too, [*([wanted.kind] if "?" in kind else []), *images, *values]

    def of_prompts(self, wanted: WantedRows, generators: Sequence[str], prompt_ids: Sequence[str]) -> list[Score]:
        """The wanted rows of images of some prompts by some generators."""
        where, values = self._where(wanted)
        which = f"{where} AND list_contains(?, generator) AND list_contains(?, prompt_id)"
        found = f"SELECT * FROM {self._scores} WHERE {which} ORDER BY row LIMIT {MOST_BESIDE}"
        return self._with_texts(found, [*values, [*generators], [*prompt_ids]], "row")

    def prompt_ids(self, hashes: Hashes) -> list[str]:
        """Return the ids of the scored prompts that have these hashes."""
        found = self._database.select(f"SELECT DISTINCT prompt_id FROM {self._scores} WHERE prompt_id IS NOT NULL")
        ids = [prompt_id for (prompt_id,) in found]
        return [ids[place] for place in np.flatnonzero(np.isin(hash_ids(ids), hashes))]

    def text(self, prompt_id: str) -> str | None:
        """Of a prompt."""
        found = self._database.select(f"SELECT text FROM {self._prompts} WHERE prompt_id = ?", [prompt_id])
        return found[0][0] if found else None

    def skills(self) -> list[str]:
        """Of all prompts, by name."""
        unnested = f"SELECT DISTINCT unnest(skills) AS skill FROM {self._prompts}"
        return [skill for (skill,) in self._database.select(f"SELECT skill FROM ({unnested}) ORDER BY skill") if skill]

    def questions(self, words: str, first: int, most: int) -> tuple[int, list[StoredQuestion]]:
        """How many questions hold these words, and some of them; reads the questions' cells the first time.

        Raises StoreError where one of them is damaged or gone.
        """
        self._read_questions()
        holds, values = _holds("q.text", words)
        found = f"{self._questions} q WHERE {holds}"
        total = int(self._database.select(f"SELECT count(*) FROM {found}", values)[0][0])
        columns = ", ".join(f"f.{name}" for name in QUESTION_COLUMNS)
        statement = (
            f"SELECT {columns}, p.text FROM (SELECT * FROM {found} ORDER BY prompt_id, question_id LIMIT ? OFFSET ?) f "
            f"LEFT JOIN {self._prompts} p USING (prompt_id) ORDER BY prompt_id, question_id"
        )
        return total, [StoredQuestion(*row) for row in self._database.select(statement, [*values, most, first])]

    def _read_questions(self) -> None:
        with self._asking:
            if self._asked:
                return
            with self._database.filling() as fill:
                fill(f"CREATE TABLE {self._questions} AS SELECT * FROM given", _of_questions(QUESTIONS.empty_table()))
                for table in _read_ahead(self._question_cells(), self._store.read_cell):
                    fill(f"INSERT INTO {self._questions} SELECT * FROM given", _of_questions(table.table))
                each = "SELECT DISTINCT ON (prompt_id, question_id) *"
                asked = f"FROM {self._questions} WHERE question_id IS NOT NULL"
                fill(f"CREATE OR REPLACE TABLE {self._questions} AS {each} {asked}")
            self._asked = True

    def _question_cells(self) -> list[str]:
        cells = self._store.read_table(f"runs/{self._run_id}/cells.parquet", ["path", "state"]).to_pylist()
        return [
            draft_path(cell["path"]) if cell["state"] == "draft" else cell["path"]
            for cell in cells
            if cell["path"].startswith("questions/") and cell["state"] not in ("failed", "missing")
        ]

    def _where(self, wanted: WantedRows) -> tuple[str, list[object]]:
        """A condition and its values."""
        holds, words = _holds("text", wanted.words)
        given: list[tuple[bool, str, list[object]]] = [
            (bool(wanted.generator), "generator = ?", [wanted.generator]),
            (bool(wanted.metric), "metric = ?", [wanted.metric]),
            (wanted.kind == "any", "kind IS NOT NULL", []),
            (wanted.kind not in ("", "any"), "kind = ?", [wanted.kind]),
            (wanted.low is not None, "score >= ?", [wanted.low]),
            (wanted.high is not None, "score <= ?", [wanted.high]),
            (bool(wanted.skill), f"{self._named} list_contains(skills, ?))", [wanted.skill]),
            (
                bool(words),
                f"({self._named} {holds}) OR prompt_id = ? OR image_id = ?)",
                [*words, wanted.words.strip(), wanted.words.strip()],
            ),
        ]
        if wanted.noted is not None:
            given.append((True, *_is_one_of(wanted.noted)))
        for name, value in wanted.settings:
            given.append((True, "contains(settings, ?)", [f"{SETTING}{name}={value}{SETTING}"]))
        conditions = [condition for is_asked, condition, _ in given if is_asked]
        return " AND ".join(conditions) or "true", [value for is_asked, _, of in given if is_asked for value in of]

    @property
    def _named(self) -> str:
        return f"prompt_id IN (SELECT prompt_id FROM {self._prompts} WHERE"

    def _with_texts(self, statement: str, values: Sequence[object], order: str, ranks: str = "") -> list[Score]:
        columns = ", ".join(f"f.{name}" for name in Score._fields[: Score._fields.index("text")])
        joined = f"SELECT {columns}, p.text{ranks} FROM ({statement}) f LEFT JOIN {self._prompts} p USING (prompt_id)"
        return [Score(*row) for row in self._database.select(f"{joined} ORDER BY {order}", values)]

    def _ranked(self, condition: str, values: Sequence[object], most: int = 1000) -> list[Score]:
        found = self._with_texts(
            f"SELECT * FROM {self._scores} WHERE {condition} ORDER BY row LIMIT {most:d}", values, "row"
        )
        counts = "count_if(o.score < m.score), count_if(o.score = m.score), count_if(o.score > m.score)"
        counted = self._database.select(
            f"SELECT m.row, m.metric, {counts} FROM (SELECT row, metric, score FROM {self._scores} WHERE {condition} "
            f"AND score IS NOT NULL ORDER BY row LIMIT {most:d}) m JOIN {self._scores} o USING (metric) "
            "WHERE o.score IS NOT NULL GROUP BY m.row, m.metric",
            values,
        )
        ranks = {
            row: percentile_rank(float(above if metric in self._falling else below), equal, below + equal + above)
            for row, metric, below, equal, above in counted
        }
        return [score._replace(rank=ranks.get(score.row)) for score in found]


def _is_one_of(images: Sequence[NamedImage]) -> tuple[str, list[object]]:
    """That a row is of one of these images."""
    each = [[image[place] for image in images] for place in range(3)]
    values: list[object] = [tuple(names) for names in each]
    return "(generator, image_id, prompt_id) IN (SELECT unnest(?), unnest(?), unnest(?))", values


def _holds(column: str, words: str) -> tuple[str, list[object]]:
    """That a text has each of the words in it, in any case."""
    each: list[object] = [*words.split()[:MOST_WORDS]]
    return " AND ".join([f"contains(lower({column}), lower(?))"] * len(each)) or "true", each


def _with_settings(part: pa.Table) -> pa.Table:
    """Scores whose settings are one text for each row; null for one that has none."""
    texts = pa.nulls(len(part), pa.string())
    if is_kept(part.schema):
        column = part.column(COLUMN).combine_chunks()
        named = zip((field.name for field in column.type), column.flatten(), strict=True)
        each = [pc.binary_join_element_wise(f"{SETTING}{name}", value, "=") for name, value in named]
        texts = pc.binary_join_element_wise(*each, SETTING, "", null_handling="skip")
    kept = part.drop_columns([COLUMN]) if COLUMN in part.column_names else part
    return kept.append_column(COLUMN, texts)


def _of_questions(cell: pa.Table) -> pa.Table:
    return cell.select(QUESTION_COLUMNS)


def _read_ahead(paths: Sequence[str], read: Callable[[str], Any]) -> Iterator[Any]:
    """What is read of each path in turn, a few at once."""
    with ThreadPoolExecutor(READERS) as pool:
        for first in range(0, len(paths), READERS):
            yield from pool.map(read, paths[first : first + READERS])
