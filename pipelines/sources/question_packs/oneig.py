"""OneIG-Bench's alignment questions: JSON files for classes of prompts, beside a CSV of the prompts."""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plumbline.operators.errors import SourceError
from plumbline.operators.metrics import reading
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import Refused, parse_json, read_json, read_records
from plumbline.pipelines.sources.question_packs.pack import (
    Convention,
    PackRow,
    PackRows,
    prompt_without_questions,
    the_text,
)

CATEGORIES = {
    "anime": "Anime_Stylization",
    "human": "Portrait",
    "object": "General_Object",
    "multilingualism": "Multilingualism",
}
"""Of a class of questions, what the CSV calls it."""


def read_alignment(place: Place, classes: Sequence[str], *, csv: str, prompt: str, suffix: str = "") -> PackRows:
    """The questions of scripts/alignment/Q_D about the prompts of `csv`, whose column `prompt` has their texts.

    A prompt is called by its class and its id: `object_000`.
    """
    prompts = _prompts(place / csv, prompt)
    for name in classes:
        file = place / f"scripts/alignment/Q_D/{name}{suffix}.json"
        asked = read_json(_content(file), file.url)
        if not isinstance(asked, dict):
            raise SourceError(f"{file.url}: expected an object of questions by id, found {type(asked).__name__}")
        for number, (key, values) in enumerate(asked.items()):
            where = f"{file.url}, row {number}"
            try:
                row = prompts.get((CATEGORIES[name], key))
                if row is None:
                    raise Refused("no_prompt", f"{csv} has no prompt {key!r} of {CATEGORIES[name]}")
                text = the_text(row, prompt)
            except Refused as refused:
                yield f"{where}: {refused}; the row is left out"
                continue
            try:
                yield from _rows(where, f"{name}_{key}", text, values, _skills(name, row))
            except Refused as refused:
                yield from prompt_without_questions(where, f"{name}_{key}", text, refused)


def _prompts(file: Place, prompt: str) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    records = read_records(io.BytesIO(_content(file)), file.url, ["category", "id", prompt]).rows
    return {(str(row.get("category")), str(row.get("id"))): row for row in records}


def _content(file: Place) -> bytes:
    try:
        content = file.read()
    except FileNotFoundError as error:
        raise SourceError(f"{file.url}: not found; benchmark.questions names the release's folder") from error
    assert isinstance(content, bytes)
    return content


def _skills(name: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """A prompt's class, and its length and type where they are told."""
    return tuple(skill for skill in (name, row.get("prompt_length"), row.get("type")) if skill)


def _rows(where: str, prompt_id: str, text: str, values: Any, skills: tuple[str, ...]) -> Iterator[PackRow]:
    """A row for each question of a prompt."""
    texts, needed = (_by_number(values, field) for field in ("question", "dependency"))
    for number in texts:
        parents = needed.get(number, [0])
        if not isinstance(parents, list) or not all(isinstance(parent, int) for parent in parents):
            raise Refused("no_parents", f"expected a list of numbers in 'dependency', found {parents!r}")
        parents = tuple(str(parent) for parent in parents if parent)
        asked = WrittenQuestion(number, the_text(texts, number), reading.YES_NO, "yes", parents=parents)
        yield PackRow(where, prompt_id, text, asked, skills)


def _by_number(values: Any, field: str) -> Mapping[str, Any]:
    """What stands under the field, an object or the text of one."""
    found = values.get(field) if isinstance(values, dict) else None
    found = parse_json(found) if isinstance(found, str) else found
    if not isinstance(found, dict) or not found:
        raise Refused("no_questions", f"expected {field!r} as an object by number, found {reading.shown(str(found))}")
    return found


def read_oneig(place: Place, convention: Convention) -> PackRows:
    """The questions about the English prompts.

    OneIG-Bench's alignment, in English (Chang et al. 2025): yes/no questions that depend on each other.

    Source: OneIG-Bench/OneIG-Benchmark, its folder with `OneIG-Bench.csv` and
    `scripts/alignment/Q_D/{anime,human,object}.json`; `scripts/alignment/alignment_score.py` counts a yes where the
    answers of its parents are yes. Both conventions read it alike.
    """
    return read_alignment(place, ("anime", "human", "object"), csv="OneIG-Bench.csv", prompt="prompt_en")


def read_oneig_zh(place: Place, convention: Convention) -> PackRows:
    """The questions about the Chinese prompts.

    OneIG-Bench's alignment, in Chinese (Chang et al. 2025): as the English one, with the class of multilingualism.

    Source: OneIG-Bench/OneIG-Benchmark, its folder with `OneIG-Bench-ZH.csv` and `scripts/alignment/Q_D/*_zh.json`; the
    questions are Chinese too, and answered Yes or No. Both conventions read it alike.
    """
    return read_alignment(place, tuple(CATEGORIES), csv="OneIG-Bench-ZH.csv", prompt="prompt_cn", suffix="_zh")
