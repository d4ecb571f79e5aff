"""Tiny question packs in the layouts of the releases. All lines are made up; none is copied from a release."""

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bench_of import read_prompt_rows

ANNOTATION_COLUMNS = (
    "item_id", "text", "keywords", "proposition_id", "dependency", "category_broad", "category_detailed", "tuple",
    "question_natural_language",
)  # fmt: skip


def write_json(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False))
    return path


def write_csv(path: Path, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows([dict(row) for row in rows])
    return path


def make_choice_question(
    prompt_id: str, text: str, question: str, choices: Sequence[str], answer: str, **more: Any
) -> dict[str, Any]:
    """Return a question about the prompt `text` in TIFA v1.0's layout; `more` contains additional fields."""
    own = {"id": prompt_id, "caption": text, "question": question, "choices": [*choices], "answer": answer}
    return {**own, "element_type": "object", "element": "circle", **more}


def write_tifa_v1(path: Path, count: int = 4) -> Path:
    """Write two questions about each of the first prompts of the embedded benchmark."""
    return write_json(
        path,
        [
            row
            for one in read_prompt_rows(count)
            for row in (
                make_choice_question(one["prompt_id"], one["text"], "is there a circle?", ["yes", "no"], "yes"),
                make_choice_question(
                    one["prompt_id"], one["text"], "what color is it?", ["red", "blue", "green"], "red"
                ),
            )
        ],
    )


def make_proposition(item: str, text: str, number: int, dependency: str, question: str, kind: str) -> dict[str, Any]:
    """Return a question about the prompt `text`, as a row in the layout of DSG-1k and DPG-Bench.

    `dependency` lists the parent questions' numbers, or is 0; `kind` is the category, such as "attribute - color".
    """
    broad, _, detailed = kind.partition(" - ")
    return {
        "item_id": item, "text": text, "keywords": "circle", "proposition_id": number, "dependency": dependency,
        "category_broad": broad, "category_detailed": detailed, "tuple": f"{kind} (circle)",
        "question_natural_language": question,
    }  # fmt: skip


def make_propositions(item: str, text: str) -> list[dict[str, Any]]:
    """Return three rows of questions about the prompt `text`; the second and third each depend on the one before."""
    return [
        make_proposition(item, text, 1, "0", "Is there a circle?", "entity - whole"),
        make_proposition(item, text, 2, "1", "Is the circle red?", "attribute - color"),
        make_proposition(item, text, 3, "2", "Is the circle above a square?", "relation - spatial"),
    ]


def write_propositions(path: Path, count: int = 4) -> Path:
    """Write questions about the first prompts of the embedded benchmark in the layout of DSG-1k and DPG-Bench."""
    rows = [row for one in read_prompt_rows(count) for row in make_propositions(one["prompt_id"], one["text"])]
    return write_csv(path, ANNOTATION_COLUMNS, rows)


def write_geneval2(path: Path, count: int = 4) -> Path:
    """Write a counting question and a yes/no question about each of the first prompts of the embedded benchmark."""
    pairs = [["How many circles are in the image?", "one"], ["Are there any circles in the image?", "Yes"]]
    rows = [
        {"prompt": one["text"], "atom_count": 3, "vqa_list": pairs, "skills": ["count", "object"]}
        for one in read_prompt_rows(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


PACK_WRITERS: Mapping[str, tuple[str, Callable[[Path], Path]]] = {
    "dsg_1k": ("q.csv", write_propositions),
    "tifa_v1": ("q.json", write_tifa_v1),
}
"""File name of each pack, and the function that writes the pack, keyed by the pack's name."""


def write_pack(name: str, folder: Path) -> Path:
    """Write the named pack, with questions about the first prompts of the embedded benchmark; return its path."""
    file, write = PACK_WRITERS[name]
    return write(folder / file)
