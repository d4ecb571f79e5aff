"""Prompt files as the benchmarks release them: CSV with a header, JSON as GenAI-Bench lays it out, and JSON Lines."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from operators import rows
from operators.errors import SourceError

SUFFIXES = (".csv", ".json", ".jsonl")
MOST_LINES = 100
"""A CSV's row of more lines is one whose quote was not closed, and has swallowed others."""
GECKO_COLUMNS = ("dataset_id", "prompt", "prompt_type", "prompt_id")
"""The columns by which Gecko2K's prompts.csv is known."""


def read_prompt_file(
    content: bytes, url: str, required: Sequence[str] = (), *, optional: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The file's prompts in its order, with its own column names; raises SourceError naming the file and the row.

    Every prompt must have the columns `required`, and no column that is read may stand twice. Rows are counted from 0,
    as in Parquet; a byte order mark is skipped.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise SourceError(f"{url}, line {line}: expected UTF-8 text ({error}); save it as UTF-8") from error
    records = _records(text, url, [*required, *optional])
    for row, record in enumerate(records):
        rows.require_columns(record, required, f"{url}, row {row}")
    return records


def _records(text: str, url: str, read: Sequence[str]) -> list[dict[str, Any]]:
    suffix = url.lower().rpartition(".")[2]
    if suffix == "csv":
        return _read_csv(text, url, read)
    return _read_json(text, url) if suffix == "json" else _read_json_lines(text, url)


def _read_csv(text: str, url: str, read: Sequence[str]) -> list[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    records: list[dict[str, Any]] = []
    try:
        rows.require_once(list(reader.fieldnames or ()), read, url)
        line = reader.line_num
        for record in reader:
            where = f"{url}, row {len(records)} (line {reader.line_num})"
            if reader.line_num - line > MOST_LINES:
                raise SourceError(f"{where}: the row begins on line {line + 1}; close its quotes")
            line = reader.line_num
            records.append(_with_skills(_checked(record, reader.fieldnames or (), where)))
    except csv.Error as error:
        raise SourceError(f"{url}, row {len(records)}: not CSV ({error}); correct its quotes") from error
    return records


def _checked(record: Mapping[Any, Any], names: Sequence[str], where: str) -> dict[str, Any]:
    """The row, where it has exactly the header's fields."""
    extra, lacking = record.get(None, ()), [name for name in names if record[name] is None]
    if extra or lacking:
        found = len(names) + len(extra) - len(lacking)
        raise SourceError(f"{where}: expected {len(names)} fields, found {found}; correct its commas and quotes")
    return {str(name): value for name, value in record.items()}


def _with_skills(record: dict[str, Any]) -> dict[str, Any]:
    """Gecko2K's rows with their skills, any other's as they are.

    A `dataset_id` such as `att/count:additive_2` holds the skill before its colon and the sub-skill after; that of a
    Gecko(R) prompt, such as `tifa_45`, holds the collection that the prompt was sampled from and its number there.
    """
    if "skills" in record or any(name not in record for name in GECKO_COLUMNS):
        return record
    origin = str(record["dataset_id"]).split(":")[0]
    collection, _, number = origin.rpartition("_")
    skill = collection if number.isdigit() and "/" not in origin else origin
    return {**record, "skills": [record["prompt_type"], skill]}


def _read_json(text: str, url: str) -> list[dict[str, Any]]:
    """Prompts by id, as GenAI-Bench has them, or a list of prompts; ratings and whatever else they hold stay unread.

    GenAI-Bench's images are named by the ids that its prompts stand under; the `id` within is written otherwise.
    """
    found = _parsed(text, url, "it may be truncated: download it again")
    if not isinstance(found, dict | list):
        raise SourceError(f"{url}: expected an object of prompts by id, or a list, found {type(found).__name__}")
    named = found.items() if isinstance(found, dict) else enumerate(found)
    return [_json_prompt(row, name, prompt, url) for row, (name, prompt) in enumerate(named)]


def _read_json_lines(text: str, url: str) -> list[dict[str, Any]]:
    """A prompt on each line that is not blank."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    prompts = [_parsed(line, f"{url}, line {number}", "correct or remove it") for number, line in lines]
    return [_json_prompt(row, row, prompt, url) for row, prompt in enumerate(prompts)]


def _parsed(text: str, where: str, remedy: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{where}: not JSON ({error}); {remedy}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's members; raises ValueError where one stands twice, and the first would be lost."""
    members = dict(pairs)
    if len(members) < len(pairs):
        twice = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
        raise ValueError(f"{twice!r} stands twice in one object")
    return members


def _json_prompt(row: int, name: str | int, prompt: Any, url: str) -> dict[str, Any]:
    if not isinstance(prompt, dict):
        raise SourceError(f"{url}, row {row} ({name!r}): expected an object, found {type(prompt).__name__}")
    try:
        json.dumps([name, prompt], ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise SourceError(f"{url}, row {row}: half a character ({error}); write the file in UTF-8") from error
    return {**({"prompt_id": name} if isinstance(name, str) else {}), **prompt}
