"""Questions are written once per prompt; an unreadable reply is requested again, and then becomes an error row."""

from collections.abc import Callable, Sequence

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.questions.dsg import DsgConfig
from plumbline.operators.metrics.questions.gecko import GeckoConfig
from plumbline.operators.metrics.questions.question_metric import WriterConfig
from plumbline.operators.metrics.questions.tifa import TifaConfig
from plumbline.operators.metrics.writing import WrittenQuestion, assign_ids
from plumbline.operators.models.calls import Generation, Request
from plumbline.operators.stages.questions import write_questions

SPANS_REPLY = "a {1}[red, color, 1.0] {2}[dog, entity, 1.0]"
QUESTIONS_REPLY = (
    "About {1}:\nQ: is the dog red?\nChoices: yes, no\nA: yes\nAbout {2}:\nQ: is there a dog?\nChoices: yes, no\nA: yes"
)
RETRYABLE_ERROR = RowError("model_unavailable", "try later", retryable=True)


class ScriptedModel:
    """A model that gives scripted replies and records its requests."""

    def __init__(self, reply: Callable[[Request], str | RowError]) -> None:
        self.reply = reply
        self.asked: list[Request] = []
        self.calls = 0

    def generate(self, requests: Sequence[Request]) -> list[Generation | RowError]:
        self.calls += 1
        self.asked += requests
        replies = [self.reply(request) for request in requests]
        return [
            reply if isinstance(reply, RowError) else Generation(reply, True, Usage(1, 10, 2, 3)) for reply in replies
        ]


def make_gecko_reply(request: Request) -> str:
    return QUESTIONS_REPLY if "About {1}" in request.messages[0].text else SPANS_REPLY


def write_with(model: ScriptedModel, *texts: str, metric: WriterConfig | None = None) -> pa.Table:
    prompts = rows.table([{"prompt_id": f"p{n}", "text": text} for n, text in enumerate(texts)], schemas.PROMPTS)
    return write_questions(prompts, metric or GeckoConfig(), model)


def test_all_prompts_of_a_shard_are_written_in_parallel() -> None:
    model = ScriptedModel(make_gecko_reply)
    table = write_with(model, "a red dog", "one red dog", "the red dog")
    assert model.calls == 2, "one call for the words of all prompts, one for all questions"
    assert len(table) == 6 and table.schema.equals(schemas.QUESTIONS)
    first = table.to_pylist()[0]
    assert (first["prompt_id"], first["text"]) == ("p0", "is the dog red?")
    assert (first["span"], first["start"], first["end"], first["kind"]) == ("red", 2, 5, "color")
    assert rows.read_usage(table) == Usage(6, 60, 12, 18)


def test_prompts_with_the_same_text_are_written_once() -> None:
    model = ScriptedModel(make_gecko_reply)
    table = write_with(model, "a red dog", "a red dog", "a red dog")
    assert len(model.asked) == 2
    assert table.column("prompt_id").to_pylist() == ["p0", "p0", "p1", "p1", "p2", "p2"]


def test_an_unreadable_reply_is_requested_once_more_and_then_becomes_an_error() -> None:
    model = ScriptedModel(lambda request: "I'd rather not")
    table = write_with(model, "a red dog", metric=DsgConfig())
    assert [len(request.messages) for request in model.asked] == [1, 3]
    assert "I'd rather not" in model.asked[1].messages[1].text
    assert "could not be read" in model.asked[1].messages[2].text
    (row,) = table.to_pylist()
    assert row["error"]["kind"] == "unreadable_reply" and not row["error"]["retryable"]
    assert (row["prompt_id"], row["question_id"]) == ("p0", None)


def test_a_readable_second_reply_counts() -> None:
    def reply(request: Request) -> str:
        return (
            make_gecko_reply(request) if len(request.messages) > 1 or "About {1}" in request.messages[0].text else "?"
        )

    assert write_with(ScriptedModel(reply), "a red dog").column("error").null_count == 2


def test_a_failed_prompt_does_not_affect_the_others() -> None:
    def reply(request: Request) -> str | RowError:
        return RETRYABLE_ERROR if "blue cat" in request.messages[0].text else make_gecko_reply(request)

    table = write_with(ScriptedModel(reply), "a red dog", "a blue cat", " ", "the red dog")
    kinds = [row["error"] and row["error"]["kind"] for row in table.to_pylist()]
    assert kinds == [None, None, "model_unavailable", "empty_prompt", None, None]
    assert rows.count_errors(table, retryable_only=True) == 1


def test_rows_are_retryable_after_a_failure_of_the_whole_call_to_the_model() -> None:
    def reply(request: Request) -> str:
        raise RuntimeError("the engine has stopped")

    table = write_with(ScriptedModel(reply), "a red dog", "a blue cat")
    assert [row["error"]["kind"] for row in table.to_pylist()] == ["model_failed"] * 2
    assert rows.count_errors(table, retryable_only=True) == 2


def test_the_id_of_a_question_depends_on_its_content_and_not_on_its_position() -> None:
    swapped = "\n".join([*QUESTIONS_REPLY.splitlines()[4:], *QUESTIONS_REPLY.splitlines()[:4]])
    replies = {
        "as before": QUESTIONS_REPLY,
        "swapped": swapped,
        "other answer": QUESTIONS_REPLY.replace("A: yes", "A: no"),
    }

    def list_question_ids(reply: str) -> list[str]:
        model = ScriptedModel(lambda request: reply if "About {1}" in request.messages[0].text else SPANS_REPLY)
        return list(write_with(model, "a red dog").column("question_id").to_pylist())

    red, dog = list_question_ids(replies["as before"])
    assert list_question_ids(replies["swapped"]) == [dog, red], "in the order written, whatever their ids"
    assert not {red, dog} & set(list_question_ids(replies["other answer"]))
    assert len(red) == 16 and set(red) <= set("0123456789abcdef")


def test_parents_are_named_by_the_ids_of_their_questions() -> None:
    replies = {
        "Tuples:": "1 | entity - whole (dog)\n2 | attribute - color (dog, red)",
        "Questions:": "1 | Is there a dog?\n2 | Is the dog red?",
        "Dependencies:": "1 | 0\n2 | 1",
    }
    model = ScriptedModel(lambda request: replies[request.messages[0].text.splitlines()[-1]])
    dog, red = write_with(model, "a red dog", metric=DsgConfig()).to_pylist()
    assert (dog["parents"], red["parents"]) == ([], [dog["question_id"]])


def test_equal_questions_have_different_ids() -> None:
    alike = [WrittenQuestion(str(n), "a dog?", ("yes", "no"), "yes", span=span) for n, span in enumerate("abc")]
    first, second, third = (one.question_id for one in assign_ids(alike))
    assert (second, third) == (f"{first}-2", f"{first}-3")
    assert assign_ids(alike[:1])[0].question_id == first


def test_questions_that_the_filter_drops_stay_in_the_table() -> None:
    blocks = "About red (color):\nQ: what color is the dog?\nChoices: red, blue\nA: red\n"
    blocks += "About cat (animal):\nQ: is there a cat?\nChoices: yes, no\nA: yes"

    def reply(request: Request) -> str:
        text = request.messages[0].text
        if text.endswith("Questions and answers are below:\n"):
            return blocks
        return "no" if text.endswith("is there a cat?\nChoices:\nyes, no\nAnswer:\n") else "red"

    table = write_with(ScriptedModel(reply), "a red dog", metric=TifaConfig())
    assert table.column("keep").to_pylist() == [True, False]
