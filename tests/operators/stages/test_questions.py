"""Every prompt gets one question that contains its text verbatim, or an error row."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from plumbline.operators.base import rows, schemas
from tests.operators import tiny
from tests.operators.stages.given import ask

METRIC = tiny.make_vqascore()


def make_prompt_table(texts: Sequence[str | None]) -> pa.Table:
    records = [{"prompt_id": f"p{number}", "text": text} for number, text in enumerate(texts)]
    return rows.table(records, schemas.PROMPTS)


@pytest.mark.parametrize(
    "text",
    [
        "a red circle",
        'a sign that says "STOP"',
        "curly {braces} and {0} and {} and {{}}",
        "100% %s \\n $1 <image> </s>",
        "ein grüner Kreis 🟢",
        " spaces around ",
        "two\nlines",
    ],
)
def test_the_question_contains_the_prompt_word_for_word(text: str) -> None:
    (question,) = ask(make_prompt_table([text]), METRIC).to_pylist()
    assert question["text"] == 'Does this figure show "' + text + '"? Please answer yes or no.'
    assert question["choices"] == ["Yes"]
    assert question["error"] is None


@pytest.mark.parametrize("text", ["", "   ", "\n\t", None])
def test_a_prompt_without_text_is_an_error_row(text: str | None) -> None:
    (question,) = ask(make_prompt_table([text]), METRIC).to_pylist()
    assert question["error"]["kind"] == "empty_prompt"
    assert not question["error"]["retryable"]
    assert question["text"] is None
    assert question["choices"] is None
    assert (question["prompt_id"], question["question_id"]) == ("p0", None)


@pytest.mark.parametrize("texts", [["one", "", "three", "one"], []])
def test_there_is_one_row_per_prompt_in_order_and_a_bad_prompt_affects_only_its_row(texts: list[str]) -> None:
    questions = ask(make_prompt_table(texts), METRIC)
    assert questions.schema == schemas.QUESTIONS
    assert questions["prompt_id"].to_pylist() == [f"p{number}" for number in range(len(texts))]
    assert [error is None for error in questions["error"].to_pylist()] == [text != "" for text in texts]


def test_the_template_and_the_answer_come_from_the_metric() -> None:
    metric = tiny.make_vqascore(template="Question: Is it {}?", answer="yes")
    (question,) = ask(make_prompt_table(["a {} star"]), metric).to_pylist()
    assert (question["text"], question["choices"]) == ("Question: Is it a {} star?", ["yes"])
