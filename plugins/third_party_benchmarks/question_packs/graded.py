"""Packs whose yes/no questions have a difficulty (BizGenEval) or a weight (WeGenBench).

The difficulty or weight is part of a question's kind, so that it is part of the name of the judge's rating.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import Refused, Values
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
)

DIFFICULTIES = ("easy", "hard")


def read_bizgeneval(place: Place, convention: Convention) -> PackRows:
    """Read the questions in bizgeneval.jsonl, in file order.

    BizGenEval (Li et al. 2026): 20 yes/no questions about each of 400 slides, web pages, posters, charts and figures.

    Source: microsoft/BizGenEval, `assets/bizgeneval.jsonl` at 39e1bdc. Each line is an object with `id`, `prompt`,
    `domain`, `dimension`, `questions`, `eval_tag`, and the numbers of the easy and the hard questions, counted from 1
    (`easy_qidxs`, `hard_qidxs`). The id of a prompt is the name of its image in the release, such as
    `webpage_layout_0`; its skills are its domain and its dimension. A question's kind, such as `layout - easy 3`,
    consists of the tag of the judge's rules, the difficulty and the question's number. Both conventions read the file
    in the same way.
    """
    return read_rows(read_lines(place), _read_design)


def _read_design(line: PackLine) -> PackRows:
    values = line.values
    skills = (get_required_text(values, "domain"), get_required_text(values, "dimension"))
    row = PackRow(
        line.where,
        "_".join((*skills, get_required_id(values, "id"))),
        get_required_text(values, "prompt"),
        skills=skills,
    )
    return convert_refusal_to_error_row(*row[:3], _read_design_questions(row, values))


def _read_design_questions(row: PackRow, values: Values) -> Iterator[PackRow]:
    tag, texts = get_required_text(values, "eval_tag"), get_texts(values.get("questions"), "questions")
    listed = {name: values.get(f"{name}_qidxs") for name in DIFFICULTIES}
    for number, text in enumerate(texts, start=1):
        names = [name for name, numbers in listed.items() if isinstance(numbers, list) and number in numbers]
        if len(names) != 1 or not text.strip():
            raise Refused(
                "no_questions",
                f"expected question {number} as a text, and its number in either 'easy_qidxs' or 'hard_qidxs', found "
                f"{abbreviate(text)} in {' and '.join(names) or 'neither'}",
            )
        yield row._replace(question=WrittenQuestion(str(number), text, (), kind=f"{tag} - {names[0]} {number}"))


MAX_WEIGHT = 1_000_000


def read_wegenbench(place: Place, convention: Convention) -> PackRows:
    """Read the questions about the English general prompts from a checkout.

    WeGenBench's QA part, in English (Liang et al. 2026): weighted yes/no questions about each of 1,000 prompts.

    Source: WeChatCV/WeGenBench at 87c3c76, `data/prompts/wegenbench_general_en.jsonl` (`id`, `prompt`, `type`, `tag`,
    `difficulty`) and `evaluation/Consistency/QA/questions/wegenbench_general_en_questions.jsonl` (`id`, and `questions`
    with `question`, `type` and `weight`). The id of a prompt is its published id without `.png`, such as `en_ip_000`;
    its skills are its type, its tags and its level of difficulty, such as `L3`. A question's kind, such as
    `color 6 4`, consists of its type, its weight and its number. Both conventions read the files in the same way.
    """
    return _read_general(place, "en", "en")


def read_wegenbench_cn(place: Place, convention: Convention) -> PackRows:
    """Read the questions about the Chinese general prompts from a checkout.

    WeGenBench's QA part, in Chinese (Liang et al. 2026): like the English part.

    Source: WeChatCV/WeGenBench at 87c3c76, `data/prompts/wegenbench_general_cn.jsonl` and
    `evaluation/Consistency/QA/questions/wegenbench_general_zh_questions.jsonl`.
    """
    return _read_general(place, "cn", "zh")


def _read_general(place: Place, prefix: str, language: str) -> PackRows:
    asked: dict[str, PackLine] = {}
    file = place / f"evaluation/Consistency/QA/questions/wegenbench_general_{language}_questions.jsonl"
    for line in read_lines(file):
        if isinstance(line, str):
            yield line
        elif isinstance(name := line.values.get("id"), str):
            asked[f"{prefix}_{name}"] = line
    prompts = read_lines(place / f"data/prompts/wegenbench_general_{prefix}.jsonl")
    yield from read_rows(prompts, partial(_read_general_prompt, asked=asked))


def _read_general_prompt(line: PackLine, asked: Mapping[str, PackLine]) -> PackRows:
    values, name = line.values, get_required_id(line.values, "id")
    level = get_label(values, "difficulty")
    skills = (get_label(values, "type"), *get_texts(values.get("tag") or (), "tag"), f"L{level}" if level else None)
    row = PackRow(
        line.where, name.removesuffix(".png"), get_required_text(values, "prompt"), skills=tuple(filter(None, skills))
    )
    return convert_refusal_to_error_row(*row[:3], _read_weighted_questions(row, asked.get(name)))


def _read_weighted_questions(row: PackRow, line: PackLine | None) -> Iterator[PackRow]:
    listed = line.values.get("questions") if line is not None else None
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise Refused("no_questions", f"expected 'questions' as a list of objects, found {abbreviate(listed)}")
    for number, one in enumerate(listed, start=1):
        yield row._replace(question=_read_weighted_question(number, one))


def _read_weighted_question(number: int, one: Mapping[str, Any]) -> WrittenQuestion:
    weight = one.get("weight")
    if not isinstance(weight, int) or isinstance(weight, bool) or not 0 < weight <= MAX_WEIGHT:
        raise Refused(
            "no_weight", f"expected 'weight' as a whole number from 1 to {MAX_WEIGHT}, found {abbreviate(weight)}"
        )
    return WrittenQuestion(
        str(number), get_required_text(one, "question"), (), kind=f"{get_required_text(one, 'type')} {weight} {number}"
    )
