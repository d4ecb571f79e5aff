"""Prompts of any file, with ids and skills; and Gecko2K's own, by sub-skill."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from plumbline.operators.base import rows
from plumbline.operators.base.errors import SourceError
from plumbline.operators.images.rows import id_text
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import split_lines
from plumbline.pipelines.judging.releases.sheets import read_content, read_sheet, read_text
from plumbline.pipelines.sources import prompt_files
from plumbline.pipelines.sources.benchmark import PROMPT_COLUMNS, PromptColumnsConfig
from plumbline.pipelines.sources.shards import text_id

GECKO = "gecko/gecko_prompts.csv"
"""Of a folder of published files."""
_NUMBER = re.compile(r"_\d+$")


class GivenPrompt(NamedTuple):
    """A prompt of a benchmark in the making."""

    prompt_id: str
    text: str
    skills: tuple[str, ...]
    origin: Literal["read", "written"]


def read_prompts(place: Place, columns: PromptColumnsConfig) -> list[GivenPrompt]:
    """The prompts of a file, in its order; those without an id of their own have a hash of their text.

    Raises SourceError naming file and row where one has no text, or an id stands twice.
    """
    records = _records(place, columns)
    prompts = [_prompt(record, columns, f"{place.url}, row {row}") for row, record in enumerate(records)]
    own = {record_id for record in records if (record_id := id_text(record.get("prompt_id")))}
    seen: Counter[str] = Counter()
    named: list[GivenPrompt] = []
    for row, prompt in enumerate(prompts):
        seen[prompt.prompt_id] += 1
        again = seen[prompt.prompt_id]
        if again > 1 and prompt.prompt_id in own:
            raise SourceError(
                f"{place.url}, row {row}: prompt_id {prompt.prompt_id!r} stands twice; make ids unique, or set "
                "prompt_columns.prompt_id to a column that the file does not have: ids are then made of the texts"
            )
        named.append(prompt if again == 1 else prompt._replace(prompt_id=f"{prompt.prompt_id}-{again}"))
    return named


def _records(place: Place, columns: PromptColumnsConfig) -> Sequence[Mapping[str, Any]]:
    """The prompts under our names."""
    suffix = place.path.lower()
    if suffix.endswith(prompt_files.LIST):
        return [{"text": line.strip()} for line in split_lines(read_text(place)) if line.strip()]
    names = {name: getattr(columns, name) for name in PROMPT_COLUMNS}
    if suffix.endswith(prompt_files.SUFFIXES):
        named = prompt_files.PromptColumns(names, "prompt_columns", needs_ids=False)
        return prompt_files.read_prompts(read_content(place), place.url, named)
    sheet = read_sheet(place, tuple(names.values())).require(
        [columns.text], "set prompt_columns.text to what the file calls it"
    )
    return [{name: row.get(its) for name, its in names.items()} for row in sheet.table.to_pylist()]


def _prompt(record: Mapping[str, Any], columns: PromptColumnsConfig, where: str) -> GivenPrompt:
    text, skills = record.get("text"), record.get("skills")
    if not isinstance(text, str) or not text.strip():
        found = "none" if rows.is_missing(text) or text == "" else repr(text)
        raise SourceError(f"{where}: expected a prompt as {columns.text}, found {found}; fill it in or remove the row")
    if not rows.is_missing(skills) and not isinstance(skills, list):
        raise SourceError(f"{where}: expected {columns.skills} as a list of text, found {skills!r}; write a list")
    own = tuple(str(skill) for skill in skills or () if not rows.is_missing(skill) and str(skill))
    return GivenPrompt(id_text(record.get("prompt_id")) or text_id(text), text, own, "read")


def read_gecko(place: Place) -> list[GivenPrompt]:
    """Gecko2K's prompts with their skills and sub-skills, `att/count:additive`; of Gecko(R), the collections.

    `dataset_id` has the sub-skill behind its colon, with a number of the prompt.
    """
    records = prompt_files.read_prompt_file(read_content(place), place.url, prompt_files.GECKO_COLUMNS)
    return [
        GivenPrompt(f"{row}", record["prompt"], (*record["skills"], *_sub_skill(record["dataset_id"])), "read")
        for row, record in enumerate(records)
    ]


def _sub_skill(dataset_id: str) -> tuple[str, ...]:
    return (_NUMBER.sub("", dataset_id),) if ":" in dataset_id else ()
