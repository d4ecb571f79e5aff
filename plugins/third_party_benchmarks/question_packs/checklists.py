"""Packs that are folders of files: T2I-CoReBench and TIIF-Bench (yes/no questions), and PRISM-Bench (prompts only)."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from plumbline.operators.base.errors import SourceError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import Refused, read_json
from plumbline.pipelines.sources.question_packs.pack import (
    Convention,
    PackLine,
    PackRow,
    PackRows,
    abbreviate,
    convert_refusal_to_error_row,
    get_label,
    get_required_text,
    get_texts,
    read_lines,
    read_rows,
    read_whole_file,
)

DIMENSION_CODES = ("C-MI", "C-MA", "C-MR", "C-TR", "R-LR", "R-BR", "R-HR", "R-PR", "R-GR", "R-AR", "R-CR", "R-RR")


def read_t2i_corebench(place: Place, convention: Convention) -> PackRows:
    """Read the checklists in a folder's twelve files, or in one of them.

    T2I-CoReBench (Li et al. 2025): 1,080 prompts about composition and reasoning, with some 13,500 yes/no questions.

    Source: KwaiVGI/T2I-CoReBench, `data/*.json` at 5d523d3. Each file maps ids, such as `C-TR-001`, to objects with
    `Prompt`, `Checklist` (a list of `question` and `tags`), `Main Class` and `Sub Class`; the two classes are a
    prompt's skills. As in upstream's `evaluate.py`, an image's score is the fraction of its questions that are
    answered yes. Both conventions read it in the same way.
    """
    whole = place.path.lower().endswith(".json")
    for file in [place] if whole else [place / f"{name}.json" for name in DIMENSION_CODES]:
        yield from read_rows(_read_lines_by_id(file), _read_t2i_corebench_line)


def _read_lines_by_id(file: Place) -> Iterator[PackLine | str]:
    content = read_json(read_whole_file(file), file.url)
    if not isinstance(content, dict):
        raise SourceError(f"{file.url}: expected an object that maps ids to prompts, found {type(content).__name__}")
    for number, (name, values) in enumerate(content.items()):
        where = f"{file.url}, row {number}"
        found = abbreviate(values)
        is_prompt = isinstance(values, dict)
        yield PackLine(where, {**values, "id": name}) if is_prompt else f"{where}: expected an object, found {found}"


def _read_t2i_corebench_line(line: PackLine) -> PackRows:
    values = line.values
    skills = tuple(skill for name in ("Main Class", "Sub Class") if (skill := get_label(values, name)))
    row = PackRow(line.where, str(values["id"]), get_required_text(values, "Prompt"), skills=skills)
    return convert_refusal_to_error_row(*row[:3], _read_checklist(row, values.get("Checklist")))


def _read_checklist(row: PackRow, listed: Any) -> Iterator[PackRow]:
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise Refused("no_questions", f"expected 'Checklist' as a list of objects, found {abbreviate(listed)}")
    for number, one in enumerate(listed):
        tags = get_texts(one.get("tags") or (), "tags")
        yield row._replace(
            question=_make_yes_no_question(number, get_required_text(one, "question"), "yes", next(iter(tags), None))
        )


def _make_yes_no_question(number: int, text: str, answer: str, kind: str | None) -> WrittenQuestion:
    return WrittenQuestion(str(number), text.strip(), parsing.YES_NO, answer, kind)


PROMPT_LENGTHS = ("short", "long")


def read_tiif_bench(place: Place, convention: Convention) -> PackRows:
    """Read the questions in a folder with *_eval_prompts.jsonl, and their prompts in the folder next to it.

    TIIF-Bench (Wei et al. 2025): a short and a long version of each prompt, with yes/no questions for both.

    Source: A113N-W3I/TIIF-Bench, `data/testmini_eval_prompts` with `data/testmini_prompts`, or `data/test_eval_prompts`
    with `data/test_prompts`, at 3aae750. The questions on a line are about the prompt on the same line of the other
    file. The id of a prompt consists of its file, line and length, as in `numeracy_0_short`; its skills are its type
    and its length. Upstream's summary pools all questions of the same type, as `plumbline kinds of=tiif_bench` does.
    Its word recall and GNED need word lists that are not published. Both conventions read it in the same way.
    """
    prompt_folder = place.parent / place.name.replace("_eval", "")
    files = sorted(name for name in place.list() if name.endswith("_eval_prompts.jsonl"))
    if not files:
        raise SourceError(
            f"{place.url}: expected files named *_eval_prompts.jsonl, found none; use the folder "
            "data/testmini_eval_prompts"
        )
    for name in files:
        dimension = name.removesuffix("_eval_prompts.jsonl")
        prompts = list(read_lines(prompt_folder / f"{dimension}_prompts.jsonl"))
        for number, line in enumerate(read_lines(place / name)):
            prompt = (
                prompts[number] if number < len(prompts) else f"{place / name}, row {number}: no prompt for this line"
            )
            yield from _read_both_lengths(f"{dimension}_{number}", line, prompt)


def _read_both_lengths(name: str, asked: PackLine | str, prompt: PackLine | str) -> PackRows:
    if isinstance(asked, str) or isinstance(prompt, str):
        yield asked if isinstance(asked, str) else str(prompt)
        return
    for length in PROMPT_LENGTHS:
        yield from read_rows(
            [prompt], partial(_read_tiif_line, prompt_id=f"{name}_{length}", length=length, asked=asked)
        )


def _read_tiif_line(prompt: PackLine, *, prompt_id: str, length: str, asked: PackLine) -> PackRows:
    row = PackRow(asked.where, prompt_id, get_required_text(prompt.values, f"{length}_description"))
    return convert_refusal_to_error_row(*row[:3], _read_tiif_questions(row, length, asked))


def _read_tiif_questions(row: PackRow, length: str, asked: PackLine) -> Iterator[PackRow]:
    kind = get_label(asked.values, "type")
    skills = (kind, length) if kind else (length,)
    names = ("yn_question_list", "yn_answer_list")
    questions, answers = (get_texts(asked.values.get(name), name) for name in names)
    if len(questions) != len(answers):
        raise Refused(
            "no_answers",
            f"expected an answer to each question, found {len(answers)} answers to {len(questions)} questions",
        )
    for number, (question, answer) in enumerate(zip(questions, answers, strict=True)):
        said = answer.strip().lower()
        if said not in parsing.YES_NO:
            raise Refused("no_answer", f"expected yes or no, found {parsing.shorten(answer)}")
        yield row._replace(question=_make_yes_no_question(number, question, said, kind), skills=skills)


TRACK_NAMES = ("affection", "composition", "entity", "imagination", "long_text", "style", "text_rendering")


def read_prism_bench(place: Place, convention: Convention) -> PackRows:
    """Read the prompts in a folder's seven files. They have no questions: a judge rates the images by track.

    PRISM-Bench (Fang et al. 2025): 700 prompts, 100 per track, in English or Chinese.

    Source: rongyaofang/prism-bench, `captions/{en,zh}/TRACK.jsonl`. Each line is an object with `prompt` (the English
    prompts are in zlab-princeton/i1, `benchmark_eval/prism-bench` at b58a62f). Images are in a folder named after the
    track and are numbered like the lines, starting at 0: `affection/0.png`. Here the id of that prompt is
    `affection_0`, and its skill is the track. Both conventions read it in the same way.
    """
    for track in TRACK_NAMES:
        for number, line in enumerate(read_lines(place / f"{track}.jsonl")):
            yield from read_rows([line], partial(_read_prism_line, prompt_id=f"{track}_{number}", track=track))


def _read_prism_line(line: PackLine, *, prompt_id: str, track: str) -> Iterator[PackRow]:
    yield PackRow(line.where, prompt_id, get_required_text(line.values, "prompt"), skills=(track,))
