"""Packs of texts that images should show: LongText-Bench, CVTG-2K, and text parts of OneIG-Bench and WeGenBench."""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from plumbline.operators.base.errors import SourceError
from plumbline.operators.metrics.questions.question_list import make_text_question
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import MAX_WRITTEN_LIST_CHARACTERS, Refused, read_json
from plumbline.pipelines.sources.question_packs.pack import (
    Convention,
    PackLine,
    PackRow,
    PackRows,
    abbreviate,
    convert_refusal_to_error_row,
    get_label,
    get_required_id,
    get_required_text,
    get_texts,
    read_lines,
    read_rows,
    read_whole_file,
)


def _make_text_rows(row: PackRow, texts: Sequence[str]) -> Iterator[PackRow]:
    """Yield a row for each text; raise Refused if the list is empty."""
    if not texts:
        raise Refused("no_texts", "expected texts, found none")
    for number, text in enumerate(texts):
        yield row._replace(question=make_text_question(number, text))


def read_longtext_bench(place: Place, convention: Convention) -> PackRows:
    """Read the texts in text_prompts.jsonl or text_prompts_zh.jsonl; a prompt's skills are its category and length.

    LongText-Bench (Geng et al. 2025, X-Omni): 160 prompts with texts, in English or Chinese.

    Source: X-Omni-Team/X-Omni, `textbench`. Each line is an object with `prompt_id`, `prompt`, `text` (a list),
    `category` and `length`. Both conventions read it in the same way.
    """
    return read_rows(read_lines(place), _read_longtext)


def _read_longtext(line: PackLine) -> PackRows:
    values = line.values
    skills = tuple(skill for name in ("category", "length") if (skill := get_label(values, name)))
    row = PackRow(line.where, get_required_id(values, "prompt_id"), get_required_text(values, "prompt"), skills=skills)
    return convert_refusal_to_error_row(*row[:3], _make_longtext_rows(row, values))


def _make_longtext_rows(row: PackRow, values: Any) -> Iterator[PackRow]:
    yield from _make_text_rows(row, get_texts(values.get("text"), "text"))


def read_wegenbench_text(place: Place, convention: Convention) -> PackRows:
    """Read the texts in wegenbench_text_en.jsonl or wegenbench_text_cn.jsonl.

    WeGenBench's text part (Liang et al. 2026): 2,000 prompts with English or Chinese texts.

    Source: WeChatCV/WeGenBench, `data/prompts` at 87c3c76. Each line is an object with `id`, `prompt`, `text` (a list),
    `type`, `tag` (a list) and `difficulty`; a prompt's skills are its type, its tags and its difficulty. Both
    conventions read it in the same way.
    """
    return read_rows(read_lines(place), _read_tagged_text)


def _read_tagged_text(line: PackLine) -> PackRows:
    values = line.values
    skills = (
        get_label(values, "type"), *get_texts(values.get("tag") or (), "tag"), get_label(values, "difficulty")
    )  # fmt: skip
    row = PackRow(
        line.where,
        get_required_id(values, "id"),
        get_required_text(values, "prompt"),
        skills=tuple(filter(None, skills)),
    )
    return convert_refusal_to_error_row(*row[:3], _make_longtext_rows(row, values))


_TEXT_PATTERN = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
"""Pattern of a string literal in a Python list."""


def read_oneig_text(place: Place, convention: Convention) -> PackRows:
    r"""Read the texts in text_content.csv or text_content_zh.csv.

    The text subset of OneIG-Bench (Chang et al. 2025): 200 prompts with texts, in English or Chinese.

    Source: OneIG-Bench/OneIG-Benchmark, `scripts/text`. Each row has `id`, `prompt_en` or `prompt_cn`, and
    `text_content`, a list written as a Python literal. `text_score.py` compares the literal without parsing it, so that
    a line break in it, written `\n`, counts as the letter n. `released` does the same, and `fixed` reads it as a space.
    Prompts are identified by `id`.
    """
    return read_rows(read_lines(place), partial(_read_oneig_text, fixed=convention == "fixed"))


def _read_oneig_text(line: PackLine, *, fixed: bool) -> PackRows:
    prompt = "prompt_cn" if "prompt_cn" in line.values else "prompt_en"
    row = PackRow(line.where, get_required_id(line.values, "id"), get_required_text(line.values, prompt))
    return convert_refusal_to_error_row(*row[:3], _make_oneig_rows(row, line, fixed=fixed))


def _make_oneig_rows(row: PackRow, line: PackLine, *, fixed: bool) -> Iterator[PackRow]:
    written = get_required_text(line.values, "text_content")
    if len(written) > MAX_WRITTEN_LIST_CHARACTERS:
        raise Refused(
            "no_text",
            f"'text_content': expected at most {MAX_WRITTEN_LIST_CHARACTERS} characters, found {len(written)}",
        )
    texts = [single or double for single, double in _TEXT_PATTERN.findall(written)]
    if fixed:
        texts = [
            re.sub(r"\\(.)", lambda escaped: {"n": " ", "t": " "}.get(escaped[1], escaped[1]), text) for text in texts
        ]
    yield from _make_text_rows(row, texts)


TEXT_COUNTS = (2, 3, 4, 5)
"""Numbers of texts that a CVTG-2K prompt can have."""


def read_cvtg_2k(place: Place, convention: Convention) -> PackRows:
    """Read the texts in single quotes from the prompts in the subfolders CVTG and CVTG-Style (or CVTG-style).

    CVTG-2K (Du et al. 2025, TextCrafter): 2,000 English prompts with two to five texts each.

    Source: the data set dnkdnk/CVTG-2K. Each folder has files `2.json` to `5.json` with a `data_list` of objects with
    `index` and `prompt`. The expected texts are those that `unified_metrics_eval.py` extracts from a prompt
    (zlab-princeton/i1, at b58a62f): everything between two single quotes, so that an apostrophe counts as a quote. The
    id of a prompt consists of its folder, its number of texts and its index, as in `CVTG_2_0`; its skills are the first
    two of these. Both conventions read it in the same way.
    """
    styled = "CVTG-Style" if (place / "CVTG-Style").exists() else "CVTG-style"
    for folder in ("CVTG", styled):
        for area in TEXT_COUNTS:
            file = place / f"{folder}/{area}.json"
            yield from read_rows(_read_data_list(file), partial(_read_cvtg, folder=folder, area=area))


def _read_data_list(file: Place) -> Iterator[PackLine | str]:
    content = read_json(read_whole_file(file), file.url)
    listed = content.get("data_list") if isinstance(content, dict) else None
    if not isinstance(listed, list):
        raise SourceError(f"{file.url}: expected an object with the list 'data_list'; check the path")
    for number, values in enumerate(listed):
        where = f"{file.url}, row {number}"
        found = abbreviate(values)
        yield PackLine(where, values) if isinstance(values, dict) else f"{where}: expected an object, found {found}"


def _read_cvtg(line: PackLine, *, folder: str, area: int) -> PackRows:
    prompt_id = f"{folder}_{area}_{get_required_id(line.values, 'index')}"
    row = PackRow(line.where, prompt_id, get_required_text(line.values, "prompt"), skills=(folder, f"{area} texts"))
    return convert_refusal_to_error_row(
        *row[:3], _make_text_rows(row, [text for text in re.findall("'(.*?)'", row.text) if text.strip()])
    )
