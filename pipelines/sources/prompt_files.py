"""Prompt files as benchmarks publish them: CSV with a header, JSON, JSON Lines, and text (a prompt per line)."""

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.rows import require_columns, require_unique_columns
from plumbline.operators.images.rows import format_id
from plumbline.pipelines.base.tables import (
    JSON_LINES_SUFFIXES,
    SEPARATORS_BY_SUFFIX,
    TableRecords,
    convert_to_list,
    read_json,
    read_records,
    read_text,
    require_object,
    split_lines,
)
from plumbline.pipelines.sources.shards import hash_text

PROMPT_LIST_SUFFIX = ".txt"
PROMPT_FILE_SUFFIXES = (*SEPARATORS_BY_SUFFIX, *JSON_LINES_SUFFIXES, ".json", PROMPT_LIST_SUFFIX)
MAX_FILE_BYTES = 256 * 2**20
MAX_PROMPTS = 1_000_000
GECKO_COLUMNS = ("dataset_id", "prompt", "prompt_type", "prompt_id")
"""Columns that identify Gecko2K's prompts.csv."""
DEFAULT_COLUMN_NAMES = {"prompt_id": "prompt_id", "text": "text", "skills": "skills"}
TEXT_COLUMNS = (("text",), ("prompt", "prompts"), ("caption", "captions"), ("prompt_en", "prompt_cn", "prompt_zh"))
"""Names of the prompt column in releases, in any case. The first group with a column in the file is used."""
ID_COLUMNS = ("id", "item_id", "index")
"""Other names of the id column in releases."""
LIST_FIELDS = ("data", "data_list", "prompts")
"""Fields of a JSON object that may contain the list of all prompts."""
TEXT_HINTS = ("prompt", "caption", "description", "text")
"""Words in column names that suggest prompts; an error message offers these columns as the prompt column."""
MAX_LISTED_COLUMNS = 12
"""Maximum number of columns that a message lists."""


class PromptColumns(NamedTuple):
    """Column names of a prompts file, from a configuration."""

    names: Mapping[str, str]
    """Names of the columns in the file, by our names of the same columns."""
    key: str = "benchmark.prompt_columns"
    """Section of the configuration that messages refer to."""
    needs_ids: bool = True
    """True if the file must have an id column that is configured."""

    def is_default(self, name: str) -> bool:
        """Return True if the column has its default name, so that other usual names are tried as well."""
        return self.names[name] == DEFAULT_COLUMN_NAMES[name]


def read_prompts(content: bytes, url: str, columns: PromptColumns) -> list[dict[str, Any]]:
    """Read the prompts from a file in file order, under our column names.

    If the file lacks the default columns, TEXT_COLUMNS and ID_COLUMNS are tried. Without an id column, the prompts have
    no `prompt_id`. Raise SourceError if the file cannot be read or a row lacks a column; rows are counted from 0.
    """
    table = _read_table(content, url, columns.names["skills"], columns.names["text"])
    text = _find_text_column(table, columns, url)
    own_id = _find_id_column(table, columns, text)
    own = {**columns.names, "text": text, **({"prompt_id": own_id} if own_id else {})}
    required = [own[name] for name in ("prompt_id", "text") if name == "text" or own_id]
    require_unique_columns(table.names, own.values(), url)
    for row, record in enumerate(table.rows):
        require_columns(record, required, f"{url}, row {row}", key=f"{columns.key}.text or {columns.key}.prompt_id")
    read = [name for name in own if name != "prompt_id" or own_id]
    prompts = [{name: record.get(own[name]) for name in read} for record in table.rows]
    return _drop_repeats(prompts) if own_id not in (None, columns.names["prompt_id"]) else prompts


def read_prompts_with_ids(content: bytes, url: str, columns: PromptColumns) -> list[dict[str, Any]]:
    """Read a file's prompts under our column names; if the file has no ids, use hashes and drop repeated texts.

    Raise SourceError naming the file and the row if a row cannot be read, or lacks both id and text.
    """
    if url.lower().endswith(PROMPT_LIST_SUFFIX):
        lines = dict.fromkeys(_read_prompt_lines(content, url))
        return [{"prompt_id": hash_text(line), "text": line} for line in lines if line]
    prompts = read_prompts(content, url, columns)
    if not prompts or "prompt_id" in prompts[0]:
        return prompts
    for row, prompt in enumerate(prompts):
        if not isinstance(prompt["text"], str) or not prompt["text"].strip():
            raise SourceError(f"{url}, row {row}: the prompt has no id and no text; fill one in or remove the row")
    return _drop_repeats([{**prompt, "prompt_id": hash_text(prompt["text"])} for prompt in prompts])


def _drop_repeats(prompts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first row of each prompt; a file with one row per question repeats its prompts."""
    first: dict[str | None, dict[str, Any]] = {}
    for prompt in prompts:
        first.setdefault(format_id(prompt["prompt_id"]), prompt)
    return list(first.values())


def _find_text_column(table: TableRecords, columns: PromptColumns, url: str) -> str:
    """Return the name of the file's prompt column; if it is unclear, raise SourceError naming the option to set."""
    configured = columns.names["text"]
    if not columns.is_default("text"):
        return configured
    found: list[str] = []
    for group in TEXT_COLUMNS:
        found = [name for name in table.names if name.lower() in group and _has_texts(table.rows, name)]
        if len(found) == 1:
            return found[0]
        if found:
            break
    if configured in table.names or not table.rows:
        return configured
    offered = found or [name for name in table.names if any(hint in name.lower() for hint in TEXT_HINTS)]
    offered = [name for name in offered if _has_texts(table.rows, name)] or ["COLUMN"]
    known = ", ".join(name for group in TEXT_COLUMNS for name in group)
    raise SourceError(
        f"{url}: expected one column of prompts ({known}), found {', '.join(table.names[:MAX_LISTED_COLUMNS])}; set "
        f"{' or '.join(f'{columns.key}.text={name}' for name in offered[:MAX_LISTED_COLUMNS])}"
    )


def _find_id_column(table: TableRecords, columns: PromptColumns, text: str) -> str | None:
    """Return the name of the column with the prompts' ids, or None if the file has no ids.

    The configured column is used if it exists, or if ids are required. Other columns are tried only if none was
    configured; they must contain different ids for different prompts.
    """
    configured = columns.names["prompt_id"]
    if configured in table.names or (columns.needs_ids and not columns.is_default("prompt_id")):
        return configured
    if not columns.is_default("prompt_id"):
        return None
    named = (name for wanted in ID_COLUMNS for name in table.names if name.lower() == wanted)
    return next((name for name in named if _has_ids(table.rows, name, text)), None)


def _has_texts(records: Iterable[Mapping[str, Any]], name: str) -> bool:
    """Return True if at least one row has text in the column."""
    return any(isinstance(record.get(name), str) for record in records)


def _has_ids(records: Iterable[Mapping[str, Any]], name: str, text: str) -> bool:
    """Return True if every row has text or an integer in the column, and rows with equal ids have equal prompts."""
    prompts: dict[str, Any] = {}
    for record in records:
        value = record.get(name)
        if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
            return False
        if prompts.setdefault(str(value), record.get(text)) != record.get(text):
            return False
    return True


def check_size(size: int, url: str) -> None:
    """Raise SourceError if a file is too large to be read at once."""
    if size > MAX_FILE_BYTES:
        limit = f"{MAX_FILE_BYTES // 2**20} MiB"
        raise SourceError(
            f"{url}: larger than {limit}, the limit for prompts files other than Parquet; write the file as Parquet"
        )


def read_skills(content: bytes, url: str) -> dict[str, list[str]]:
    """Return the skills of each prompt from a JSON file that lists prompts by skill, like GenAI-Bench's skills file.

    The file contains `{skill: [prompt, ...]}`. A prompt is an id, or a number that is padded with zeros to a five-digit
    id. For anything else, raise SourceError with the file and the skill.
    """
    prompts_by_skill = read_json(content, url)
    if not isinstance(prompts_by_skill, dict):
        raise SourceError(
            f"{url}: expected an object that maps skills to prompts, found {type(prompts_by_skill).__name__}; "
            "write it as {skill: [prompt, ...]}"
        )
    skills: dict[str, list[str]] = {}
    for skill, prompts in prompts_by_skill.items():
        if not isinstance(prompts, list):
            raise SourceError(
                f"{url}, {skill!r}: expected a list of prompts, found {type(prompts).__name__}; write a list"
            )
        for prompt in prompts:
            if isinstance(prompt, bool) or not isinstance(prompt, int | str):
                raise SourceError(
                    f"{url}, {skill!r}: expected a prompt's number or id, found {prompt!r}; correct the list"
                )
            known = skills.setdefault(f"{prompt:05d}" if isinstance(prompt, int) else prompt, [])
            known += [] if skill in known else [skill]
    return skills


def read_prompt_file(content: bytes, url: str, required: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Read the prompts from a file in file order, keeping its column names; a CSV's `skills` are split into lists.

    Raise SourceError if a prompt lacks one of the `required` columns (the message names the row, counted from 0), or if
    the file contains one of these columns twice.
    """
    table = _read_table(content, url)
    require_unique_columns(table.names, [*required, DEFAULT_COLUMN_NAMES["skills"]], url)
    for row, record in enumerate(table.rows):
        require_columns(record, required, f"{url}, row {row}")
    return table.rows


def _read_table(content: bytes, url: str, skills: str = "skills", text: str = "text") -> TableRecords:
    """Return the file's rows under its own column names; a list of strings becomes rows with only the column `text`."""
    check_size(len(content), url)
    if url.lower().endswith(".json"):
        rows = list(_read_json_prompts(content, url, text))
        table = TableRecords(list(dict.fromkeys(name for row in rows for name in row)), rows)
    else:
        table = read_records(io.BytesIO(content), url, ())
    if len(table.rows) > MAX_PROMPTS:
        raise SourceError(f"{url}: more than {MAX_PROMPTS:,} prompts; write the file as Parquet")
    rows = table.rows
    if url.lower().endswith(tuple(SEPARATORS_BY_SUFFIX)):
        rows = [{**row, skills: convert_to_list(row[skills])} if skills in row else row for row in rows]
    return TableRecords(table.names, [_add_skills(row) for row in rows])


def read_texts_without_ids(content: bytes, url: str, columns: PromptColumns) -> list[str] | None:
    """Return the text of every line or row, including empty and repeated texts; None if the file has ids.

    Blank lines at the end of a list are left out.

    Raise SourceError naming the file and the row if the file cannot be read.
    """
    if url.lower().endswith(PROMPT_LIST_SUFFIX):
        return _read_prompt_lines(content, url)
    prompts = read_prompts(content, url, columns)
    return None if prompts and "prompt_id" in prompts[0] else [str(prompt["text"]) for prompt in prompts]


def _read_prompt_lines(content: bytes, url: str) -> list[str]:
    check_size(len(content), url)
    return [line.strip() for line in split_lines(read_text(content, url).rstrip())]


def _add_skills(record: dict[str, Any]) -> dict[str, Any]:
    """Add the skills to a row of Gecko2K; return any other row unchanged.

    A `dataset_id` such as `att/count:additive_2` consists of a skill and its sub-skill. For a Gecko(R) prompt, such as
    `tifa_45`, it consists of the collection that the prompt was sampled from, and the prompt's number there.
    """
    if "skills" in record or any(name not in record for name in GECKO_COLUMNS):
        return record
    origin = str(record["dataset_id"]).split(":")[0]
    collection, _, number = origin.rpartition("_")
    skill = collection if number.isdigit() and "/" not in origin else origin
    return {**record, "skills": [record["prompt_type"], skill]}


def _read_json_prompts(content: bytes, url: str, text: str) -> Iterator[dict[str, Any]]:
    """Yield the prompts from a JSON file: an object with prompts by id, as in GenAI-Bench, or a list of prompts.

    The list may contain strings, as in HPSv2, and it may be the value of one of the LIST_FIELDS, as in CVTG-2K.
    """
    prompts = read_json(content, url)
    if isinstance(prompts, dict):
        field = next((name for name in LIST_FIELDS if isinstance(prompts.get(name), list)), None)
        if field is None:
            yield from _read_prompts_by_id(prompts, url, text)
            return
        prompts = prompts[field]
    if not isinstance(prompts, list):
        raise SourceError(
            f"{url}: expected an object that maps ids to prompts, or a list, found {type(prompts).__name__}"
        )
    are_texts = bool(prompts) and isinstance(prompts[0], str)
    for row, prompt in enumerate(prompts):
        if are_texts and not isinstance(prompt, str):
            raise SourceError(f"{url}, row {row}: expected text, found {type(prompt).__name__}; write it as text")
        yield {text: prompt} if are_texts else require_object(prompt, f"{url}, row {row}")


def _read_prompts_by_id(prompts: Mapping[str, Any], url: str, text: str) -> Iterator[dict[str, Any]]:
    for row, (name, prompt) in enumerate(prompts.items()):
        where = f"{url}, row {row} ({name!r})"
        if isinstance(prompt, str):
            yield {"prompt_id": name, text: prompt}
        elif isinstance(prompt, list):
            # MagicBrush's edit_sessions.json: a session of several edits. `input` is the image that an edit starts
            # from, in images/<session>; ids are those of the results in its code.
            # Source: OSU-NLP-Group/MagicBrush, edit_cli_single_multi_turn.py at fcfc892.
            for number, turn in enumerate((require_object(turn, where) for turn in prompt), 1):
                prompt_id = f"{name}_inde_{number}" if number > 1 else f"{name}_{number}"
                image = turn.get("input") and f"images/{name}/{turn['input']}"
                yield {**turn, "prompt_id": prompt_id, "input": image}
        else:
            # GenAI-Bench's images are named by the object's keys; the `id` inside a prompt is written differently
            yield {"prompt_id": name, **require_object(prompt, where)}
