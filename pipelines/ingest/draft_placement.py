"""Placement of draft shards in an output, in order.

This module decides which existing shards are kept, and which rows of a draft are duplicates.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import convert_read_errors
from plumbline.pipelines.base.tables import Refused, Rejection
from plumbline.pipelines.ingest.ingest_output import (
    IngestRecords,
    OutputPrompt,
    OutputShard,
    ShardFooter,
    convert_damage_errors,
    read_columns,
    read_output_shards,
    read_prompts,
)
from plumbline.pipelines.ingest.input_rows import hash_json
from plumbline.pipelines.ingest.shards import DraftedShard, DraftedUnit, Placement, ShardRecord

MAX_CACHE_KIB = 64 * 1024
"""Maximum memory for the ledger's tables in KiB. Anything beyond it goes to a temporary file, which the system deletes
when the process ends.
"""
CREATE_TABLES_SQL = """
PRAGMA journal_mode = OFF;
PRAGMA cache_size = -{cache};
BEGIN;
CREATE TABLE images (id BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE prompts (prompt_id TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID;
CREATE TABLE other_prompts (prompt_id TEXT PRIMARY KEY, text TEXT, path TEXT) WITHOUT ROWID;
CREATE TABLE skills (prompt_id TEXT, skill TEXT, own INTEGER, PRIMARY KEY (prompt_id, skill, own)) WITHOUT ROWID;
"""
SELECT_ALL_PROMPTS_SQL = """
SELECT prompt_id, text, (
    SELECT json_group_array(skill)
    FROM (SELECT DISTINCT skill FROM skills WHERE skills.prompt_id = every.prompt_id ORDER BY skill)
)
FROM (SELECT prompt_id, text FROM prompts UNION SELECT prompt_id, text FROM other_prompts) AS every
ORDER BY 1
"""
SELECT_OWN_TEXT_SQL = "SELECT text FROM prompts WHERE prompt_id = ?"
SELECT_OTHER_TEXT_SQL = "SELECT text, path FROM other_prompts WHERE prompt_id = ?"


class PlacedShards:
    """Shards of one ingest in an output, with the ids and prompts of their rows.

    The key of a shard is a hash of its content and all earlier keys, because earlier rows determine which ids in it are
    duplicates. Shards are therefore placed in input order, even if they were drafted in another order.
    """

    def __init__(self, records: IngestRecords, on_change: str) -> None:
        self.output = records.output
        self.source = records.source
        self.forget = records.forget
        self.on_change = on_change
        self.existing = read_output_shards(self.output)
        self.others = {
            path.partition("/")[0]: " ".join(f"{name}={value}" for name, value in source.items() if value is not None)
            for path, source in ((path, shard.footer.source) for path, shard in self.existing.items())
            if source != self.source
        }
        """Command-line options that specify the input of each other ingest, by the generator that it wrote."""
        self.ledger = Ledger()
        self._record_other_ingests()
        self.records: list[ShardRecord] = []
        self.rejected: list[Rejection] = []
        self._numbers: Counter[str] = Counter()
        """Number of shards of each generator that have been placed or restored."""
        self._last_key = ""

    def _record_other_ingests(self) -> None:
        for path, prompts in read_prompts(self.output, list(self._select_shards_of_other_ingests(self.existing))):
            self.ledger.add_other_ingest(path, prompts)

    def _select_shards_of_other_ingests(self, existing: Mapping[str, OutputShard]) -> dict[str, OutputShard]:
        return {path: shard for path, shard in existing.items() if shard.footer.source != self.source}

    def has_next_shard(self, generator: str) -> bool:
        """Return True if the output already has a file at the path of the generator's next shard."""
        return _make_shard_path(generator, self._numbers[generator]) in self.existing

    def restore(self, unit: DraftedUnit) -> list[ShardRecord] | None:
        """Return the records of a unit's shards if all of them exist in the output with the same content, else None."""
        key, numbers = self._last_key, Counter(self._numbers)
        for generator, content, _ in unit.shards:
            key = hash_json([key, content])
            path = _make_shard_path(generator, numbers[generator])
            if path not in self.existing or self.existing[path].footer.key != key:
                return None
            numbers[generator] += 1
        self.rejected += unit.rejected
        return [
            self._restore_shard(generator, *self._advance_path(generator, content))
            for generator, content, _ in unit.shards
        ]

    def place(self, draft: DraftedShard) -> Placement | ShardRecord:
        """Return the placement of the next draft, or the shard's record if the output already has the same shard.

        Raises ConfigError if there is a different shard at the path and `on_change` is not `replace`, or if the
        generator belongs to another ingest.
        """
        path, key = self._advance_path(draft.generator, draft.content)
        if path in self.existing:
            if self.existing[path].footer.key == key:
                return self._restore_shard(draft.generator, path, key)
            if self.on_change != "replace":
                raise ConfigError(
                    f"{self.output / path}: this shard was made from different input or with different options; "
                    "set on_change=replace to replace it, or choose another output"
                )
            self.forget()
        rejected: list[Rejection] = []
        refused: set[int] = set()
        number = 0
        for row in draft.rows:
            if isinstance(row, Rejection):
                rejected.append(row)
                continue
            try:
                self.ledger.add(draft.generator, row.image_id, row.prompt_id, row.prompt, row.skills)
            except Refused as error:
                rejected.append(row.reject(error))
                refused.add(number)
            number += 1
        self.rejected += rejected
        return Placement(path, draft.content, ShardFooter(key, rejected, self.source), refused, path in self.existing)

    def _advance_path(self, generator: str, content: str) -> tuple[str, str]:
        """Return the path and the key of the generator's next shard, and advance its counter."""
        if generator in self.others:
            raise ConfigError(
                f"{self.output / generator}: contains images from another ingest ({self.others[generator]}); "
                "rename this ingest's generator, or choose another output"
            )
        path = _make_shard_path(generator, self._numbers[generator])
        self._numbers[generator] += 1
        self._last_key = hash_json([self._last_key, content])
        return path, self._last_key

    def _restore_shard(self, generator: str, path: str, key: str) -> ShardRecord:
        """Record the ids and prompts of a shard in the output, and return the shard's record; no image is read."""
        rows = read_columns(self.output, path, ["image_id", "prompt_id", "prompt", "skills"])
        with convert_damage_errors(self.output, path):
            for row in rows:
                self.ledger.add(generator, **row)
        rejected = self.existing[path].footer.rejected
        self.rejected += [each._replace(generator=each.generator or generator) for each in rejected]
        self.records.append(ShardRecord(path, generator, len(rows), self.existing[path].size, key, False))
        return self.records[-1]

    def add_committed(self, draft: DraftedShard, placement: Placement, size: int) -> ShardRecord:
        rows = sum(not isinstance(row, Rejection) for row in draft.rows) - len(placement.refused)
        self.records.append(ShardRecord(placement.path, draft.generator, rows, size, placement.footer.key, True))
        return self.records[-1]

    def finish(self) -> None:
        """Remove shards of this ingest that are left over from a longer input; leave the shards of other ingests alone.

        Raises ConfigError if there are such shards and `on_change` is not `replace`.
        """
        known = {record.path for record in self.records}
        for path in sorted(self.existing):
            generator = path.partition("/")[0]
            if path in known or generator in self.others:
                continue
            if self.on_change != "replace":
                raise ConfigError(
                    f"{self.output / path}: the input has fewer rows for {generator!r} than before; "
                    "set on_change=replace to remove this shard, or choose another output"
                )
            self.forget()
            with convert_read_errors(self.output, "output"):
                (self.output / path).remove()
            if self.output.is_local:  # an empty folder would be a generator without images
                with suppress(OSError):
                    Path(self.output.path, generator).rmdir()

    def refresh(self) -> None:
        """List the shards in the output again.

        Raises ConfigError if a concurrent ingest uses one of this ingest's prompt_ids for a different text.
        """
        before, self.existing = self.existing, read_output_shards(self.output, self.existing)
        if self._select_shards_of_other_ingests(before) != self._select_shards_of_other_ingests(self.existing):
            self.ledger.forget_other_ingests()
            self._record_other_ingests()


class Ledger:
    """Finds duplicate image ids and conflicting prompts.

    It records the image ids and prompts of this ingest, and the prompts of other ingests into the same output. The data
    are in SQLite tables on disk, so memory use does not grow with the number of rows.
    """

    def __init__(self) -> None:
        self._tables = sqlite3.connect("", isolation_level=None)
        self._tables.executescript(CREATE_TABLES_SQL.format(cache=MAX_CACHE_KIB))

    def add(
        self, generator: str, image_id: str, prompt_id: str, prompt: str | None, skills: Sequence[str] | None = None
    ) -> None:
        """Record a row; raise Refused if an earlier row has the same image_id, or the same prompt_id with another text.

        Raises ConfigError if the prompt_id has a different text in another ingest. The row is not merely rejected in
        this case, because shards must not depend on other ingests.
        """
        image_key = blake2b(f"{generator}\0{image_id}".encode(), digest_size=16).digest()
        if self._tables.execute("SELECT 1 FROM images WHERE id = ?", (image_key,)).fetchone():
            raise Refused("duplicate_id", f"image_id {image_id!r} of {generator} is also in an earlier row; rename one")
        known = self._tables.execute(SELECT_OWN_TEXT_SQL, (prompt_id,)).fetchone()
        if prompt is not None and known is None:
            for other_text, path in self._tables.execute(SELECT_OTHER_TEXT_SQL, (prompt_id,)):
                _require_same_text(prompt_id, prompt, other_text, f"image_id {image_id!r} of {generator}", path)
            self._tables.execute("INSERT INTO prompts VALUES (?, ?)", (prompt_id, prompt))
        elif prompt is not None and known[0] != prompt:
            raise Refused(
                "other_prompt", f"prompt_id {prompt_id!r} has a different text in an earlier row; make ids unique"
            )
        self._tables.execute("INSERT INTO images VALUES (?)", (image_key,))
        self._add_skills(prompt_id, skills or (), own=True)

    def _add_skills(self, prompt_id: str, skills: Sequence[str], *, own: bool) -> None:
        self._tables.executemany(
            "INSERT OR IGNORE INTO skills VALUES (?, ?, ?)", [(prompt_id, skill, own) for skill in skills]
        )

    def add_other_ingest(self, path: str, prompts: Sequence[OutputPrompt]) -> None:
        """Record the prompts in another ingest's shard; raise ConfigError if a prompt id has two different texts."""
        for prompt_id, text, skills in prompts:
            self._add_skills(prompt_id, skills, own=False)
            for (own_text,) in self._tables.execute(SELECT_OWN_TEXT_SQL, (prompt_id,)):
                _require_same_text(prompt_id, own_text, text, "this ingest", path)
            for other_text, other_path in self._tables.execute(SELECT_OTHER_TEXT_SQL, (prompt_id,)):
                _require_same_text(prompt_id, text, other_text, path, other_path)
        self._tables.executemany(
            "INSERT OR IGNORE INTO other_prompts VALUES (?, ?, ?)", [(*prompt[:2], path) for prompt in prompts]
        )

    def forget_other_ingests(self) -> None:
        self._tables.execute("DELETE FROM other_prompts")
        self._tables.execute("DELETE FROM skills WHERE NOT own")

    def count_prompts(self) -> int:
        return int(self._tables.execute("SELECT COUNT(*) FROM prompts").fetchone()[0])

    def iterate_prompts(self) -> Iterator[OutputPrompt]:
        """Yield every prompt of the output, sorted by id."""
        for prompt_id, text, skills in self._tables.execute(SELECT_ALL_PROMPTS_SQL):
            yield OutputPrompt(prompt_id, text, json.loads(skills))


def _require_same_text(prompt_id: str, text: str, other_text: str, where: str, path: str) -> None:
    if text != other_text:
        raise ConfigError(
            f"{where}: prompt_id {prompt_id!r} has a different text in {path}, which another ingest wrote; make the "
            "two agree, or choose another output"
        )


def _make_shard_path(generator: str, number: int) -> str:
    return f"{generator}/{number:05d}.parquet"
