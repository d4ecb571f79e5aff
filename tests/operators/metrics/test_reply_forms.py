"""JSON replies are parsed like text replies, even if wrapped or cut off, and every kind of reply has a schema."""

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.operators.metrics import parsing, reply_forms
from plumbline.operators.metrics.parsing import TextSpan
from plumbline.operators.metrics.questions import dsg, gecko, tifa, vq2
from plumbline.operators.metrics.questions.dsg import DsgConfig
from plumbline.operators.metrics.questions.gecko import GeckoConfig, Span, read_questions, read_spans
from plumbline.operators.metrics.questions.question_metric import WriterConfig
from plumbline.operators.metrics.questions.tifa import TifaConfig
from plumbline.operators.metrics.questions.vq2 import Vq2Config
from plumbline.operators.metrics.reply_forms import Block, read_entries, read_json_blocks
from plumbline.operators.metrics.writing import UnreadableReply
from tests.operators.metrics.scripted import list_examples, run

FORMS_AND_HEADINGS: list[tuple[Any, str]] = [
    (gecko.SPAN_FORMS, "The visually groundable words and their scores are labelled below:"),
    (gecko.QUESTION_FORMS, "Generated questions and answers are below:"),
    (tifa.QUESTION_FORMS, "Questions and answers are below:"),
    (tifa.CHOICE_FORMS, "Answer:"),
    (tifa.ANSWER_FORMS, "Answer:"),
    (dsg.TUPLE_FORMS, "Tuples:"),
    (dsg.QUESTION_FORMS, "Questions:"),
    (vq2.STEPS_BY_CONVENTION["paper"].phrases, "Phrases:"),
    (vq2.STEPS_BY_CONVENTION["released"].phrases, "Phrases:"),
    (vq2.QUESTION_FORMS, "Question:"),
    (vq2.ANSWER_FORMS, "Answer:"),
]
PROMPT = "A red colored dog on a mat"
LABELS_REPLY = (
    '{"labels": [{"words": "red colored", "type": "color", "score": 1.0}, '
    '{"words": "dog", "type": "entity", "score": 0.9}]}'
)
QUESTIONS_REPLY = (
    '{"yes_no": [{"about": 2, "question": "is there a dog?", "answer": "yes"}], "multiple_choice": '
    '[{"about": 1, "question": "what color is the dog?", "answer": "red", "wrong": ["blue", "green"]}]}'
)
ONE_LIST_REPLY = {"questions": [part for parts in json.loads(QUESTIONS_REPLY).values() for part in parts]}


def drop_form_differences(part: Any) -> Any:
    """Return a parsed item without parts that depend on the form: the text around a label and the order of choices."""
    if isinstance(part, Block):
        subject = (part.subject or "").strip("{}: ")
        return part._replace(subject=subject, choices=tuple(sorted(part.choices)))
    return part._replace(before="") if hasattr(part, "before") else part


@pytest.mark.parametrize(("kind", "heading"), FORMS_AND_HEADINGS)
def test_the_examples_of_both_forms_have_the_same_content(kind: Any, heading: str) -> None:
    shown = [list_examples(kind[form].instructions, heading) for form in ("text", "json")]
    for in_text, in_json in zip(*shown, strict=True):
        assert in_json.prompt == in_text.prompt
        parts = [sorted(map(drop_form_differences, kind[form].pieces(one.reply))) for form, one in
                 (("text", in_text), ("json", in_json))]  # fmt: skip
        assert parts[0] == parts[1] != []


def test_the_dependencies_of_the_examples_equal_those_in_text() -> None:
    """The text form writes 0 for a question without dependencies; the JSON form writes an empty list."""
    for in_text, in_json in zip(
        *(list_examples(dsg.DEPENDENCY_FORMS[form].instructions, "Dependencies:") for form in ("text", "json")),
        strict=True,
    ):
        said = {line.number: parsing.read_parents(line.text) for line in dsg.read_json_dependencies(in_json.reply)}
        numbers = list(said)
        assert said == {
            number: parsing.read_parents(text) for number, text in dsg.read_dependencies(numbers, in_text.reply).items()
        }


def test_gecko_with_json_replies_labels_words_and_then_writes_questions() -> None:
    written, rounds = run(GeckoConfig(replies="json", max_tokens=640).write(PROMPT), [LABELS_REPLY], [QUESTIONS_REPLY])
    assert [(one.text, one.choices, one.answer, one.span, one.start) for one in written] == [
        ("is there a dog?", ("yes", "no"), "yes", "dog", 14),
        ("what color is the dog?", ("blue", "green", "red"), "red", "red colored", 2),
    ]
    first, second = (json.loads(requests[0].schema) for requests in rounds)
    assert first["properties"]["labels"]["maxItems"] == 640 // 40, "no more labels than fit into the reply"
    limits = [part["maxItems"] for part in second["properties"].values()]
    assert limits == [320 // 40, 320 // 72]


@pytest.mark.parametrize("config", [GeckoConfig, TifaConfig, DsgConfig, Vq2Config])
def test_another_reply_format_changes_the_recipe(config: type[WriterConfig]) -> None:
    assert config().list_question_options()["templates"] != config(replies="json").list_question_options()["templates"]
    assert next(config(replies="json").write(PROMPT))[0].schema is not None
    assert next(config().write(PROMPT))[0].schema is None


def test_one_step_questions_can_also_be_written_in_json() -> None:
    one_step = GeckoConfig(coverage=False, replies="json")
    assert (
        one_step.list_question_options()["templates"] == TifaConfig(replies="json").list_question_options()["templates"]
    )
    reply = '{"questions": [{"about": "dog", "type": "animal", "question": "is there a dog?", "answer": "yes"}]}'
    [question] = run(one_step.write(PROMPT), [reply]).result
    assert (question.kind, question.span, question.start) == ("animal", "dog", 14)


def test_the_filter_of_tifa_reads_answers_in_json() -> None:
    reply = json.dumps({"questions": [{"about": "dog", "type": "animal", "question": "what is it?", "answer": "dog",
                                       "wrong": ["cat", "cow", "pig"]}]})  # fmt: skip
    answers = ['{"answer": "dog"}', '{"answer": "a red dog"}']
    [dropped] = run(TifaConfig(replies="json").write(PROMPT), [reply], answers).result
    [kept] = run(TifaConfig(replies="json", min_f1=0.4).write(PROMPT), [reply], answers).result
    assert (dropped.keep, kept.keep) == (False, True)


# Reading


@pytest.mark.parametrize(
    "reply",
    [
        f"Here it is:\n```json\n{QUESTIONS_REPLY}\n```\nI hope this helps.",
        f"<think>It has {{2}} labels [red, dog]</think>{QUESTIONS_REPLY}",
        json.dumps(json.loads(QUESTIONS_REPLY), indent=2),
        json.dumps(ONE_LIST_REPLY),
        json.dumps(ONE_LIST_REPLY["questions"]),
        json.dumps({"Q&A": ONE_LIST_REPLY["questions"]}),
        QUESTIONS_REPLY.replace('"yes"', "true"),
        QUESTIONS_REPLY.replace('"wrong": ["blue", "green"]', '"choices": ["blue", "green", "red"]'),
        QUESTIONS_REPLY[:-2] + ', {"about": 2, "question": "is it on a mat?", "answer": "o',
        json.dumps(ONE_LIST_REPLY)[:-2] + ', {"about": 2, "question": "is it on a mat?", "answer": "o',
        QUESTIONS_REPLY[:-2],
        QUESTIONS_REPLY[:-1],
    ],
)  # fmt: skip
def test_questions_in_json_are_read_in_any_surrounding_text(reply: str) -> None:
    assert read_json_blocks(reply) == [
        Block("2", "is there a dog?", ("yes", "no"), "yes"),
        Block("1", "what color is the dog?", ("blue", "green", "red"), "red"),
    ]


def test_complete_phrases_of_a_truncated_list_are_read() -> None:
    assert read_entries('{"phrases": ["a dog", "a mat", "a re', "phrases") == ["a dog", "a mat"]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("I cannot help with that.", 'expected JSON such as {"yes_no": ...}, found \'I cannot'),
        ('{"questions": [{"about": 1, "question": "what color?", "answer": "red", "wrong": ["red"]}]}', "1 choices"),
        ('{"yes_no": []}', 'no question under "yes_no" or "multiple_choice" was found'),
        ("[" * 50_000, "expected JSON"),
        ('{"questions": ' + "9" * 50_000 + "}", "expected JSON"),
    ],
)
def test_an_unreadable_reply_is_refused_with_the_reason(reply: str, reason: str) -> None:
    with pytest.raises(UnreadableReply) as refused:
        read_json_blocks(reply)
    assert reason in str(refused.value)


def test_labels_without_words_are_left_out_and_a_bad_score_counts_as_1() -> None:
    reply = '{"labels": [{"words": "...", "type": "color", "score": 1}, {"words": "dog", "score": "high"}]}'
    assert read_spans(PROMPT, reply, gecko.read_json_labels) == [Span("dog", None, 1.0, TextSpan(14, 17))]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(["yes", "dog"]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["questions", "labels", "about", "question", "answer", "wrong", "words",
                                       "tuples", "tuple", "category", "parents", "dependencies", "score"]), inner),
    max_leaves=20,
)  # fmt: skip


@given(JSON_VALUES, st.integers(0, 200))
def test_any_json_is_read_or_refused(value: Any, cut: int) -> None:
    reply = json.dumps(value)[: cut or None]
    readers = (
        lambda: read_spans(PROMPT, reply, gecko.read_json_labels),
        lambda: read_questions([Span("dog", None, 1.0, None)], reply, read_json_blocks),
        lambda: tifa.read_questions(PROMPT, reply, read_json_blocks),
        lambda: dsg.read_tuples(reply, dsg.read_json_tuples),
        lambda: dsg.read_questions([1, 2], reply, dsg.read_json_questions),
        lambda: dsg.read_dependencies([1, 2], reply, dsg.read_json_dependencies),
        lambda: vq2.read_spans(PROMPT, reply, reply_forms.make_texts_reader("phrases")),
    )
    for read in readers:
        with contextlib.suppress(UnreadableReply):
            assert isinstance(read(), (list, dict))
