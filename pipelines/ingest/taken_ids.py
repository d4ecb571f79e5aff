"""Ids and prompts of all rows of an output, in a table on disk, so that memory does not grow with them."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.tables import Refused

CACHE_KIB = 64 * 1024
"""Memory of the table in KiB; the rest is in a temporary file that the system removes with the process."""
TABLES = """
PRAGMA journal_mode = OFF;
PRAGMA cache_size = -{cache};
BEGIN;
CREATE TABLE images (id BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE prompts (prompt_id TEXT PRIMARY KEY, text TEXT) WITHOUT ROWID;
CREATE TABLE other_prompts (prompt_id TEXT PRIMARY KEY, text TEXT, path TEXT) WITHOUT ROWID;
CREATE TABLE skills (prompt_id TEXT, skill TEXT, own INTEGER, PRIMARY KEY (prompt_id, skill, own)) WITHOUT ROWID;
"""
EVERY_PROMPT = """
SELECT prompt_id, text, (
    SELECT json_group_array(skill)
    FROM (SELECT DISTINCT skill FROM skills WHERE skills.prompt_id = every.prompt_id ORDER BY skill)
)
FROM (SELECT prompt_id, text FROM prompts UNION SELECT prompt_id, text FROM other_prompts) AS every
ORDER BY 1
"""


class OutputPrompt(NamedTuple):
    """A prompt of an output."""

    prompt_id: str
    text: str
    skills: Sequence[str]
    """Skills of all rows with this prompt, of any generator, sorted."""


class Ledger:
    """Image ids and prompts of this ingest, to find duplicates, and prompts of the output's other ingests."""

    def __init__(self) -> None:
        self._tables = sqlite3.connect("", isolation_level=None)
        self._tables.executescript(TABLES.format(cache=CACHE_KIB))

    def take(
        self, generator: str, image_id: str, prompt_id: str, prompt: str | None, skills: Sequence[str] | None = None
    ) -> None:
        """Record a row; raises Refused for a duplicate id, or if its prompt_id has another text in an earlier row.

        Raises ConfigError if its prompt_id has another text in another ingest: shards must not depend on other ingests.
        """
        identity = blake2b(f"{generator}\0{image_id}".encode(), digest_size=16).digest()
        if self._tables.execute("SELECT 1 FROM images WHERE id = ?", (identity,)).fetchone():
            raise Refused(
                "duplicate_id", f"image_id {image_id!r} of {generator} is that of an earlier row too; rename one"
            )
        if prompt is not None:
            self._take_prompt(prompt_id, prompt, f"image_id {image_id!r} of {generator}")
        self._tables.execute("INSERT INTO images VALUES (?)", (identity,))
        self._add_skills(prompt_id, skills or (), own=True)

    def _add_skills(self, prompt_id: str, skills: Sequence[str], *, own: bool) -> None:
        self._tables.executemany(
            "INSERT OR IGNORE INTO skills VALUES (?, ?, ?)", [(prompt_id, skill, own) for skill in skills]
        )

    def _take_prompt(self, prompt_id: str, text: str, where: str) -> None:
        known = self._tables.execute("SELECT text FROM prompts WHERE prompt_id = ?", (prompt_id,)).fetchone()
        if known is None:
            other = self._tables.execute("SELECT text, path FROM other_prompts WHERE prompt_id = ?", (prompt_id,))
            for other_text, path in other:
                _check_same(prompt_id, text, other_text, where, path)
            self._tables.execute("INSERT INTO prompts VALUES (?, ?)", (prompt_id, text))
        elif known[0] != text:
            raise Refused(
                "other_prompt", f"prompt_id {prompt_id!r} has another text in an earlier row; make ids unique"
            )

    def add_others(self, path: str, prompts: Sequence[OutputPrompt]) -> None:
        """Record the prompts of a shard of another ingest; raises ConfigError if two ingests disagree."""
        for prompt_id, text, skills in prompts:
            self._add_skills(prompt_id, skills, own=False)
            for (own_text,) in self._tables.execute("SELECT text FROM prompts WHERE prompt_id = ?", (prompt_id,)):
                _check_same(prompt_id, own_text, text, "this ingest", path)
            other = "SELECT text, path FROM other_prompts WHERE prompt_id = ?"
            for other_text, other_path in self._tables.execute(other, (prompt_id,)):
                _check_same(prompt_id, text, other_text, path, other_path)
        self._tables.executemany(
            "INSERT OR IGNORE INTO other_prompts VALUES (?, ?, ?)", [(*prompt[:2], path) for prompt in prompts]
        )

    def forget_others(self) -> None:
        """Remove the prompts of all other ingests."""
        self._tables.execute("DELETE FROM other_prompts")
        self._tables.execute("DELETE FROM skills WHERE NOT own")

    def count_prompts(self) -> int:
        """Return the number of prompts of this ingest."""
        return int(self._tables.execute("SELECT COUNT(*) FROM prompts").fetchone()[0])

    def prompts(self) -> Iterator[OutputPrompt]:
        """Yield every prompt of the output, sorted by id."""
        for prompt_id, text, skills in self._tables.execute(EVERY_PROMPT):
            yield OutputPrompt(prompt_id, text, json.loads(skills))


def _check_same(prompt_id: str, text: str, other_text: str, where: str, path: str) -> None:
    if text != other_text:
        raise ConfigError(
            f"{where}: prompt_id {prompt_id!r} has another text in {path}, of another ingest of this "
            "output; make the two agree, or choose another output"
        )
