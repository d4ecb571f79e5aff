"""GenEval2 (Kamath et al. 2025): a count, a yes or no for each atom of 800 prompts.

Source: facebookresearch/GenEval2, `geneval2_data.jsonl`: an object a line with `prompt`, `atom_count`, `vqa_list` of
[question, answer] and as many `skills`. It has no ids: a prompt's is the number of its row, from 0, as in the lists of
scores that `evaluation.py` writes. A question has the one right answer as its choice; its spellings are the metric's
(`spelling` of operators/metrics/question_pack.py). Both conventions read the file alike.
"""

from collections.abc import Iterator
from typing import Any

from plumbline.operators.metrics import reading
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import Refused
from plumbline.pipelines.sources.question_packs.pack import (
    Convention,
    Line,
    PackRow,
    PackRows,
    prompt_without_questions,
    read_lines,
    read_rows,
    the_text,
    the_texts,
)


def read(place: Place, convention: Convention) -> PackRows:
    """The questions of geneval2_data.jsonl, in its order."""
    return read_rows(read_lines(place), _rows)


def _rows(line: Line) -> PackRows:
    text, prompt_id = the_text(line.values, "prompt"), line.where.rpartition(" ")[2]
    try:
        yield from _asked(line, prompt_id, text)
    except Refused as refused:
        yield from prompt_without_questions(line.where, prompt_id, text, refused)


def _asked(line: Line, prompt_id: str, text: str) -> Iterator[PackRow]:
    """A row for each question of a prompt; the prompt's skill is its number of atoms."""
    values = line.values
    skills = the_texts(values.get("skills"), "skills")
    pairs = [_pair(pair) for pair in values.get("vqa_list") or ()]
    if not pairs or len(pairs) != len(skills):
        raise Refused("no_questions", f"expected as many skills as questions, found {len(skills)} and {len(pairs)}")
    atoms = values.get("atom_count")
    own = (f"{atoms} atoms",) if isinstance(atoms, int) else ()
    for number, ((question, answer), skill) in enumerate(zip(pairs, skills, strict=True)):
        asked = WrittenQuestion(str(number), question, (answer,), answer, skill)
        yield PackRow(line.where, prompt_id, text, asked, own)


def _pair(pair: Any) -> tuple[str, str]:
    question, answer = the_texts(pair, "vqa_list") if isinstance(pair, list) and len(pair) == 2 else ("", "")
    if not (question.strip() and answer.strip()):
        raise Refused("no_pair", f"expected [question, answer] in 'vqa_list', found {reading.shown(str(pair))}")
    return question, answer
