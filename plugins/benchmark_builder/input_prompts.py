"""Reads prompts with ids and skills from any file, and Gecko2K's prompts with their sub-skills."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from plumbline.operators.base import rows
from plumbline.operators.base.errors import SourceError
from plumbline.operators.images.rows import format_id
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import split_lines
from plumbline.pipelines.metaeval.releases.sheets import read_content, read_sheet, read_text
from plumbline.pipelines.sources import prompt_files
from plumbline.pipelines.sources.benchmark import PROMPT_COLUMNS, PromptColumnsConfig
from plumbline.pipelines.sources.shards import hash_text

GECKO_PROMPTS_FILE = "gecko/gecko_prompts.csv"
"""Path of the prompt file within the folder of published files."""
_NUMBER_PATTERN = re.compile(r"_\d+$")


class DraftPrompt(NamedTuple):
    """A prompt of a benchmark that is being built."""

    prompt_id: str
    text: str
    skills: tuple[str, ...]
    origin: Literal["read", "written"]


def read_prompts(place: Place, columns: PromptColumnsConfig) -> list[DraftPrompt]:
    """Return the prompts in a file, in file order; a prompt without an id gets a hash of its text as id.

    Raises SourceError, with the file and row, if a prompt has no text or an id is not unique.
    """
    records = _read_records(place, columns)
    prompts = [_make_prompt(record, columns, f"{place.url}, row {row}") for row, record in enumerate(records)]
    file_ids = {record_id for record in records if (record_id := format_id(record.get("prompt_id")))}
    counts: Counter[str] = Counter()
    result: list[DraftPrompt] = []
    for row, prompt in enumerate(prompts):
        counts[prompt.prompt_id] += 1
        count = counts[prompt.prompt_id]
        if count > 1 and prompt.prompt_id in file_ids:
            raise SourceError(
                f"{place.url}, row {row}: prompt_id {prompt.prompt_id!r} is not unique; make ids unique, or set "
                "prompt_columns.prompt_id to a column that the file does not have: ids are then made from the texts"
            )
        result.append(prompt if count == 1 else prompt._replace(prompt_id=f"{prompt.prompt_id}-{count}"))
    return result


def _read_records(place: Place, columns: PromptColumnsConfig) -> Sequence[Mapping[str, Any]]:
    suffix = place.path.lower()
    if suffix.endswith(prompt_files.PROMPT_LIST_SUFFIX):
        return [{"text": line.strip()} for line in split_lines(read_text(place)) if line.strip()]
    names = {name: getattr(columns, name) for name in PROMPT_COLUMNS}
    if suffix.endswith(prompt_files.PROMPT_FILE_SUFFIXES):
        named = prompt_files.PromptColumns(names, "prompt_columns", needs_ids=False)
        return prompt_files.read_prompts(read_content(place), place.url, named)
    sheet = read_sheet(place, tuple(names.values())).require(
        [columns.text], "set prompt_columns.text to the name of the column with the prompts"
    )
    return [{name: row.get(its) for name, its in names.items()} for row in sheet.table.to_pylist()]


def _make_prompt(record: Mapping[str, Any], columns: PromptColumnsConfig, where: str) -> DraftPrompt:
    text, skills = record.get("text"), record.get("skills")
    if not isinstance(text, str) or not text.strip():
        found = "none" if rows.is_missing(text) or text == "" else repr(text)
        raise SourceError(
            f"{where}: expected a prompt in column {columns.text}, found {found}; fill it in or remove the row"
        )
    if not rows.is_missing(skills) and not isinstance(skills, list):
        raise SourceError(
            f"{where}: expected a list of strings in column {columns.skills}, found {skills!r}; set "
            "prompt_columns.skills"
        )
    names = tuple(str(skill) for skill in skills or () if not rows.is_missing(skill) and str(skill))
    return DraftPrompt(format_id(record.get("prompt_id")) or hash_text(text), text, names, "read")


def read_gecko(place: Place) -> list[DraftPrompt]:
    """Return Gecko2K's prompts with their skills and sub-skills (`att/count:additive`).

    The skills of Gecko(R)'s prompts are the collections that they come from. In the file, `dataset_id` ends with a
    colon, the sub-skill, and the prompt's number.
    """
    prompts = []
    for row, record in enumerate(
        prompt_files.read_prompt_file(read_content(place), place.url, prompt_files.GECKO_COLUMNS)
    ):
        dataset_id = record["dataset_id"]
        sub_skills = [_NUMBER_PATTERN.sub("", dataset_id)] if ":" in dataset_id else []
        prompts.append(DraftPrompt(f"{row}", record["prompt"], (*record["skills"], *sub_skills), "read"))
    return prompts
