"""Packs of independent questions: GenEval2, WISE_Verified and UniGenBench++.

Their files have no known mistakes, so both conventions read them in the same way.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from plumbline.operators.metrics.questions.question_list import BadQuestionError, read_pair
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import Refused, parse_json
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


def read_geneval2(place: Place, convention: Convention) -> PackRows:
    """Read the questions in geneval2_data.jsonl, in file order.

    GenEval2 (Kamath et al. 2025): a question for each atom of 800 prompts. The answers are counts, yes or no.

    Source: facebookresearch/GenEval2, `geneval2_data.jsonl`. Each line is an object with `prompt`, `atom_count`, a
    `vqa_list` of [question, answer] pairs, and a list `skills` of the same length. Prompts are identified by their row
    numbers, starting at 0, as in the score lists that `evaluation.py` writes. Each question's only choice is the
    correct answer; the metric also accepts other spellings of it (`spelling` in
    operators/metrics/questions/question_pack.py).
    """
    return read_rows(read_lines(place), _read_atoms)


def _read_atoms(line: PackLine) -> PackRows:
    text, prompt_id = get_required_text(line.values, "prompt"), line.where.rpartition(" ")[2]
    return convert_refusal_to_error_row(line.where, prompt_id, text, _make_atom_rows(line, prompt_id, text))


def _make_atom_rows(line: PackLine, prompt_id: str, text: str) -> Iterator[PackRow]:
    """Yield a row for each question of a prompt; the prompt's skill is its number of atoms."""
    values = line.values
    skills = get_texts(values.get("skills"), "skills")
    pairs = listed if isinstance(listed := values.get("vqa_list"), list) else []
    if not pairs or len(pairs) != len(skills):
        raise Refused("no_questions", f"expected as many skills as questions, found {len(skills)} and {len(pairs)}")
    atoms = values.get("atom_count")
    prompt_skills = (f"{atoms} atoms",) if isinstance(atoms, int) and not isinstance(atoms, bool) else ()
    try:
        asked = [read_pair(pair, number, skill) for number, (pair, skill) in enumerate(zip(pairs, skills, strict=True))]
    except BadQuestionError as error:
        raise Refused("no_pair", f"vqa_list: {error}") from error
    for question in asked:
        yield PackRow(line.where, prompt_id, text, question, prompt_skills)


PART_NAMES = ("cultural_common_sense", "spatio-temporal_reasoning", "natural_science")
LAST_PROMPT_BY_CATEGORY = {"culture": 400, "time": 520, "space": 640, "biology": 760, "physics": 880, "chemistry": 1000}
"""Number of the last prompt in each category."""


def read_wise_verified(place: Place, convention: Convention) -> PackRows:
    """Read the explanations in merge.json, or in the three files of a folder.

    WISE_Verified (Niu et al. 2025): 1,000 prompts, each with an explanation of the correct image.

    Source: PKU-YuanGroup/WISE, `data_verified/merge.json`, or the folder with its three parts: objects with `Prompt`,
    `Explanation` and `prompt_id`. A prompt's skill is its category, which follows from its number, as in
    `calculate_verified.py`. The release's overall score weights culture by 0.4 and each other category by 0.12. These
    weights equal the categories' fractions of the prompts, so the overall score equals the mean over all prompts.
    """
    whole = place.path.lower().endswith(".json")
    for file in [place] if whole else [place / f"{part}_verified.json" for part in PART_NAMES]:
        yield from read_rows(read_lines(file), _read_explanation)


def _read_explanation(line: PackLine) -> Iterator[PackRow]:
    prompt_id = get_required_id(line.values, "prompt_id")
    number = int(prompt_id) if prompt_id.isdecimal() and len(prompt_id) <= len("1000") else 0
    category = next((name for name, last in LAST_PROMPT_BY_CATEGORY.items() if 0 < number <= last), None)
    if category is None:
        raise Refused("no_category", f"expected 'prompt_id' from 1 to 1000, found {abbreviate(prompt_id)}")
    asked = WrittenQuestion("1", get_required_text(line.values, "Explanation"), (), kind=category)
    yield PackRow(line.where, prompt_id, get_required_text(line.values, "Prompt"), asked, (category,))


NAME_KEYS = ("Testpoints", "考点")
DESCRIPTION_KEYS = ("Testpoint Description", "考点对应描述")
THEME_COLUMNS = ("Primary Categories", "一级垂类")


def read_unigenbench(place: Place, convention: Convention) -> PackRows:
    """Read the checkpoints in test_prompts_*.csv; a prompt's skill is its theme.

    UniGenBench++ (Wang et al. 2025): one to ten checkpoints for each of 600 prompts, in English or Chinese.

    Source: CodeGoat24/UniGenBench, `data/test_prompts_{en,en_long,zh,zh_long}.csv`. Each row has `index`, a prompt, and
    a JSON object with the names and descriptions of its checkpoints. Row 509 of the long English prompts has invalid
    JSON, which crashes the release's `eval/src/eval_common.py` and is reported as an error here.
    """
    return read_rows(read_lines(place), _read_checkpoints)


def _read_checkpoints(line: PackLine) -> PackRows:
    language = "zh" if "prompt_zh" in line.values else "en"
    text, prompt_id = get_required_text(line.values, f"prompt_{language}"), get_required_id(line.values, "index")
    return convert_refusal_to_error_row(
        line.where, prompt_id, text, _make_checkpoint_rows(line, prompt_id, text, f"sub_dims_{language}")
    )


def _make_checkpoint_rows(line: PackLine, prompt_id: str, text: str, column: str) -> Iterator[PackRow]:
    said = parse_json(get_required_text(line.values, column), f"correct {column}")
    if not isinstance(said, dict):
        raise Refused("no_checkpoints", f"expected an object in {column!r}, found {abbreviate(said)}")
    names, descriptions = (get_texts(_get_first_value(said, keys), keys[0]) for keys in (NAME_KEYS, DESCRIPTION_KEYS))
    if not names or len(names) != len(descriptions):
        raise Refused(
            "no_checkpoints", f"expected a description of each checkpoint, found {len(descriptions)} of {len(names)}"
        )
    theme = next((get_label(said, key) for key in THEME_COLUMNS if key in said), None)
    for number, (name, description) in enumerate(zip(_number_repeats(names), descriptions, strict=True)):
        asked = WrittenQuestion(str(number), description, (), kind=name, span=description)
        skills = (theme,) if theme else ()
        yield PackRow(line.where, prompt_id, text, asked, skills)


def _get_first_value(said: dict[str, Any], keys: tuple[str, ...]) -> Any:
    return next((said[key] for key in keys if key in said), None)


def _number_repeats(names: tuple[str, ...]) -> list[str]:
    """Return the names, appending a number to each name that repeats an earlier one."""
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return numbered
