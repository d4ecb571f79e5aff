"""Questions are judged without images: by how many prompts have questions, and how many words the questions cover."""

import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.results.question_quality import assess_questions, find_content_words

TEXTS = {"p0": "a red dog on the green grass", "p1": "two cats", "p2": "  "}
EMPTY_PROMPT_ERROR = rows.error_to_dict(RowError("empty_prompt", "no text"))


def make_question(prompt_id: str, number: int, span: str | None, *, keep: bool | None = None) -> dict[str, object]:
    start = TEXTS[prompt_id].index(span) if span else None
    place = {"span": span, "start": start, "end": start + len(span) if span and start is not None else None}
    return {"prompt_id": prompt_id, "question_id": str(number), "text": "?", "choices": ["yes"], "keep": keep, **place}


def test_prompts_questions_and_words_are_counted() -> None:
    prompts = rows.table([{"prompt_id": name, "text": text} for name, text in TEXTS.items()], schemas.PROMPTS)
    asked = [
        make_question("p0", 1, "red dog"),
        make_question("p0", 2, "grass", keep=False),
        make_question("p1", 1, None),
        {"prompt_id": "p2", "error": EMPTY_PROMPT_ERROR},
    ]
    entailed = [{"prompt_id": "p0", "question_id": str(n), "p_entail": p} for n, p in ((1, 0.9), (2, 0.001))]
    tables = rows.table(asked, schemas.QUESTIONS), rows.table(entailed, schemas.ENTAILMENTS)
    quality = assess_questions(prompts, *tables, threshold=0.005)
    assert (quality.prompts, quality.failed, quality.questions) == (3, 1, 3)
    assert (quality.dropped, quality.doubted) == (1, 1)
    assert (quality.covered_words, quality.content_words) == (2, 6), "red, dog of red, dog, green, grass, two, cats"


@pytest.mark.parametrize(
    ("text", "words"), [("A man's well-known hat", ["man's", "well-known", "hat"]), ("in the", []), ("", [])]
)
def test_function_words_are_not_content_words(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in find_content_words(text)] == words
