"""Prompt files as the benchmarks release them: CSV with a header, JSON as GenAI-Bench lays it out, JSON Lines, and
text with a prompt a line.
"""

import io
from collections.abc import Sequence
from typing import Any

from plumbline.operators.errors import SourceError
from plumbline.operators.rows import require_columns
from plumbline.pipelines.base.tables import (
    JSON_LINES,
    SEPARATORS,
    as_list,
    as_object,
    read_json,
    read_records,
    read_text,
)
from plumbline.pipelines.sources.shards import text_id

LIST = ".txt"
SUFFIXES = (*SEPARATORS, *JSON_LINES, ".json", LIST)
GECKO_COLUMNS = ("dataset_id", "prompt", "prompt_type", "prompt_id")
"""The columns by which Gecko2K's prompts.csv is known."""


def read_prompt_file(
    content: bytes, url: str, required: Sequence[str] = (), *, optional: Sequence[str] = (), skills: str = "skills"
) -> list[dict[str, Any]]:
    """The file's prompts in its order, with its own column names; raises SourceError naming the file and the row.

    Every prompt must have the columns `required`, and no column that is read may stand twice. A CSV's `skills` become
    a list. Rows are counted from 0, as in Parquet.
    """
    if url.lower().endswith(".json"):
        records = _of_json(content, url)
    else:
        records = read_records(io.BytesIO(content), url, [*required, *optional, skills]).rows
        if url.lower().endswith(tuple(SEPARATORS)):
            records = [
                {**record, skills: as_list(record[skills])} if skills in record else record for record in records
            ]
    for row, record in enumerate(records):
        require_columns(record, required, f"{url}, row {row}")
    return [_with_skills(record) for record in records]


def read_prompt_list(content: bytes, url: str) -> list[dict[str, Any]]:
    """The prompts of a text file, one a line, each once; their ids are hashes of the texts, as ingest makes them.

    Raises SourceError for a file that is not UTF-8.
    """
    lines = (line.strip() for line in read_text(content, url).splitlines())
    return [{"prompt_id": text_id(line), "text": line} for line in dict.fromkeys(lines) if line]


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


def _of_json(content: bytes, url: str) -> list[dict[str, Any]]:
    """Prompts by id, as GenAI-Bench has them, or a list of prompts; ratings and whatever else they hold stay unread.

    GenAI-Bench's images are named by the ids that its prompts stand under; the `id` within is written otherwise.
    """
    prompts = read_json(content, url)
    if isinstance(prompts, list):
        return [as_object(prompt, f"{url}, row {row}") for row, prompt in enumerate(prompts)]
    if not isinstance(prompts, dict):
        raise SourceError(f"{url}: expected an object of prompts by id, or a list, found {type(prompts).__name__}")
    records: list[dict[str, Any]] = []
    for row, (name, prompt) in enumerate(prompts.items()):
        at = f"{url}, row {row} ({name!r})"
        if isinstance(prompt, list):
            records += _turns(name, [as_object(turn, at) for turn in prompt])
        else:
            records.append({"prompt_id": name, **as_object(prompt, at)})
    return records


def _turns(name: str, turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The turns of a session of MagicBrush's edit_sessions.json; the picture that each starts from is its `input`.

    Their ids are what its code calls the results: `<session>_1`, and `<session>_inde_2` and so on. The pictures lie in
    `images/<session>` beside the file. Source: OSU-NLP-Group/MagicBrush, edit_cli_single_multi_turn.py at fcfc892.
    """
    return [
        {
            **turn,
            "prompt_id": f"{name}_inde_{number}" if number > 1 else f"{name}_{number}",
            "input": turn.get("input") and f"images/{name}/{turn['input']}",
        }
        for number, turn in enumerate(turns, 1)
    ]
