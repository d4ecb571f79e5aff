"""UniGenBench++ (Wang et al. 2025): one to ten checkpoints for each of 600 prompts, in English or Chinese.

Source: CodeGoat24/UniGenBench, `data/test_prompts_{en,en_long,zh,zh_long}.csv`: rows with `index`, a prompt and a JSON
object of the names of its checkpoints and of what it has of each. A row whose object is no JSON (row 509 of the long
English prompts) ends the release's `eval/src/eval_common.py`, and is an error here. Both conventions read the files
alike.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from plumbline.operators.metrics import reading
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import Refused, parse_json
from plumbline.pipelines.sources.question_packs.pack import (
    Convention,
    Line,
    PackRow,
    PackRows,
    prompt_without_questions,
    read_lines,
    read_rows,
    the_id,
    the_text,
    the_texts,
)

NAMES = ("Testpoints", "考点")
DESCRIPTIONS = ("Testpoint Description", "考点对应描述")
THEMES = ("Primary Categories", "一级垂类")


def read(place: Place, convention: Convention) -> PackRows:
    """The checkpoints of test_prompts_*.csv; a prompt's skill is its theme."""
    return read_rows(read_lines(place), _rows)


def _rows(line: Line) -> PackRows:
    language = "zh" if "prompt_zh" in line.values else "en"
    text, own = the_text(line.values, f"prompt_{language}"), f"sub_dims_{language}"
    prompt_id = the_id(line.values, "index")
    try:
        yield from _asked(line, prompt_id, text, own)
    except Refused as refused:
        yield from prompt_without_questions(line.where, prompt_id, text, refused)


def _asked(line: Line, prompt_id: str, text: str, own: str) -> Iterator[PackRow]:
    """A row for each checkpoint."""
    said = parse_json(the_text(line.values, own), f"correct {own}")
    if not isinstance(said, dict):
        raise Refused("no_checkpoints", f"expected an object in {own!r}, found {reading.shown(str(said))}")
    names, descriptions = (the_texts(_first(said, keys), keys[0]) for keys in (NAMES, DESCRIPTIONS))
    if not names or len(names) != len(descriptions):
        raise Refused(
            "no_checkpoints", f"expected a description of each checkpoint, found {len(descriptions)} of {len(names)}"
        )
    theme = _first(said, THEMES)
    for number, (name, description) in enumerate(zip(_apart(names), descriptions, strict=True)):
        asked = WrittenQuestion(str(number), description, (), kind=name, span=description)
        skills = (theme,) if isinstance(theme, str) else ()
        yield PackRow(line.where, prompt_id, text, asked, skills)


def _first(said: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((said[key] for key in keys if key in said), None)


def _apart(names: tuple[str, ...]) -> list[str]:
    """The names, the second of two that are alike with a 2 behind it."""
    seen: Counter[str] = Counter()
    told = []
    for name in names:
        seen[name] += 1
        told.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return told
