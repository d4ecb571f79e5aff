"""A field of the wrong type in a question pack only fails its own row, and is reported with the file and row."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.pipelines.sources.test_question_packs_fuzz import (
    N_PROMPTS,
    PROPOSITIONS,
    EncodedObject,
    Fields,
    copy_json,
    make_rows,
    require_others_unaffected,
)


def make_oneig_questions() -> Fields:
    asked = {
        "question": EncodedObject({"1": "Is it red?", "2": "Is it large?"}),
        "dependency": EncodedObject({"1": [0], "2": [1]}),
    }
    return {f"{number:03}": copy_json(asked) for number in range(N_PROMPTS)}


def make_oneig_files(csv: str, prompt: str, suffix: str, classes: Mapping[str, str]) -> dict[str, Any]:
    prompts = make_rows(lambda n: {"category": classes["object"], "id": f"{n:03}", prompt: f"bird {n}", "type": "NP"})
    questions = {name: make_oneig_questions() if name == "object" else {} for name in classes}
    asked = {f"scripts/alignment/Q_D/{name}{suffix}.json": content for name, content in questions.items()}
    return {csv: prompts, **asked}


CATEGORY_BY_CLASS = {"anime": "Anime_Stylization", "human": "Portrait", "object": "General_Object"}
CHECKLIST_QUESTIONS = [{"question": "Is it red?", "tags": ["color"]}, {"question": "Is it large?", "tags": []}]
CHECKPOINTS_CELL = EncodedObject(
    {"Primary Categories": "Art", "Testpoints": ["Style"], "Testpoint Description": ["flat"]}
)

PACK_FILES: Mapping[str, Mapping[str, Any]] = {
    "dpg_bench": {"q.jsonl": PROPOSITIONS},
    "oneig": make_oneig_files("OneIG-Bench.csv", "prompt_en", "", CATEGORY_BY_CLASS),
    "oneig_zh": make_oneig_files(
        "OneIG-Bench-ZH.csv", "prompt_cn", "_zh", {**CATEGORY_BY_CLASS, "multilingualism": "Multilingualism"}
    ),
    "geneval2": {
        "q.jsonl": make_rows(lambda n: {
            "prompt": f"bird {n}", "atom_count": 2, "vqa_list": [["How many?", "one"]], "skills": ["count"]
        })
    },
    "bizgeneval": {
        "q.jsonl": make_rows(
            lambda n: {"id": n, "domain": "chart", "dimension": "text", "eval_tag": "text1", "prompt": f"bird {n}",
                       "questions": ["Is it red?", "Is it large?"], "easy_qidxs": [2], "hard_qidxs": [1]}
        )
    },
    "wegenbench": {
        "data/prompts/wegenbench_general_en.jsonl": make_rows(
            lambda n: {"id": f"en_{n}.png", "prompt": f"bird {n}", "type": "Animals", "tag": ["a"], "difficulty": 2}
        ),
        "evaluation/Consistency/QA/questions/wegenbench_general_en_questions.jsonl": make_rows(
            lambda n: {"id": f"{n}.png", "questions": [{"question": "Is it red?", "type": "color", "weight": 6}]}
        ),
    },
    "unigenbench": {
        "q.csv": make_rows(lambda n: {"index": n, "prompt_en": f"bird {n}", "sub_dims_en": copy_json(CHECKPOINTS_CELL)})
    },
    "wise_verified": {
        "q.json": make_rows(lambda n: {"Prompt": f"bird {n}", "Explanation": "red", "prompt_id": 401 + n})
    },
    "prism_bench": {
        f"{track}.jsonl": make_rows(lambda n: {"prompt": f"bird {n}"})
        for track in ("affection", "composition", "entity", "imagination", "long_text", "style", "text_rendering")
    },
    "t2i_corebench": {
        "q.json": {
            f"C-{n}": {"Prompt": f"bird {n}", "Main Class": "C", "Sub Class": "MI",
                        "Checklist": copy_json(CHECKLIST_QUESTIONS)}
            for n in range(N_PROMPTS)
        }
    },
    "tiif_bench": {
        "mini_prompts/style_prompts.jsonl": make_rows(
            lambda n: {"short_description": f"bird {n}", "long_description": f"a large bird {n}"}
        ),
        "mini_eval_prompts/style_eval_prompts.jsonl": make_rows(
            lambda n: {"type": "style", "yn_question_list": ["Is it red?"], "yn_answer_list": ["yes"]}
        ),
    },
}  # fmt: skip
"""File contents of each pack."""
LINE_NUMBERED_PACKS = ("geneval2", "prism_bench", "tiif_bench")
"""Packs whose prompts are identified by line number."""


@pytest.mark.parametrize("name", PACK_FILES)
def test_a_field_of_the_wrong_type_only_fails_its_own_row(name: str) -> None:
    both_lengths = {"inner": "mini_eval_prompts", "prompts_per_row": 2} if name == "tiif_bench" else {}
    require_others_unaffected(name, PACK_FILES[name], numbered=name in LINE_NUMBERED_PACKS, **both_lengths)
