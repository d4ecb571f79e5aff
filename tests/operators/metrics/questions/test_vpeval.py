"""VPEval parses programs with a grammar of six modules and never executes them; verdicts equal the release's."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plumbline.operators.metrics.metric import Answered
from plumbline.operators.metrics.modules import (
    ImageQuery,
    QueryResult,
    Relations,
    Statement,
    check_statement,
    list_queries,
    read_program,
    read_statement,
)
from plumbline.operators.metrics.questions.vpeval import PROGRAM_FORMS, VpevalConfig, read_json_program
from plumbline.operators.metrics.writing import UnreadableReply
from plumbline.operators.models.calls import Box, Request
from plumbline.operators.models.families.vlm import CHAT_PROFILE
from plumbline.operators.models.networks.similarity import COSINE_PROFILE
from tests.operators.metrics import scripted
from tests.operators.metrics.scripted import list_examples, run

PROMPT = "Two cows left of a sign that says pro milk."
PROGRAM = """About two (counting):
countEval(objDet(image, 'cow'), '==2')
About left of (spatial):
spatialEval(image, 'cow,sign,left')
About pro milk (text):
textEval(ocr(image), 'pro milk')
About cows (animal):
vqa(image, 'what animals are there?', 'pigs,cows,hens', 'cows')"""
LEFT_BOX, RIGHT_BOX = Box("cow", 0.9, 0, 0, 10, 10), Box("sign", 0.9, 20, 0, 60, 40)


def make_query_results(statement: Statement, *found: Any) -> list[QueryResult]:
    """Return the results of a statement's queries about the image; each result is a tuple of boxes or a string."""
    assert len(list_queries(statement)) == len(found)
    return [QueryResult(text=one) if isinstance(one, str) else QueryResult(tuple(one)) for one in found]


def is_satisfied(text: str, *found: Any, relations: Relations = "stated") -> bool:
    statement = read_statement(text)
    assert isinstance(statement, Statement)
    return check_statement(statement, make_query_results(statement, *found), relations)[0]


# Programs


def test_each_statement_of_a_program_is_a_question() -> None:
    questions, rounds = run(VpevalConfig().write(PROMPT), [PROGRAM])
    assert [(one.kind, one.text, one.answer, one.span, one.start) for one in questions] == [
        ("count", "countEval(objDet(image, 'cow'), '==2')", "yes", "Two", 0),
        ("spatial", "spatialEval(image, 'cow,sign,left')", "yes", "left of", 9),
        ("text", "textEval(ocr(image), 'pro milk')", "yes", "pro milk", 34),
        ("vqa", "vqa(image, 'what animals are there?', 'pigs,cows,hens', 'cows')", "cows", "cows", 4),
    ]
    assert questions[3].choices == ("pigs", "cows", "hens")
    assert rounds[0][0].messages[0].text.endswith(f"Description:\n{PROMPT}\nPrograms are below:\n")


def test_the_examples_of_both_forms_have_the_same_content() -> None:
    text, in_json = (
        list_examples(PROGRAM_FORMS[form].instructions, "Programs are below:") for form in ("text", "json")
    )
    for one, other in zip(text, in_json, strict=True):
        program = read_program(one.reply)
        assert len(program) > 5
        bare = [statement._replace(subject=None, arguments=tuple(sorted(statement.arguments))) for statement in program]
        assert bare == [
            statement._replace(subject=None, arguments=tuple(sorted(statement.arguments)))
            for statement in read_json_program(other.reply)
        ]


@pytest.mark.parametrize(
    "program",
    [
        "```python\n{}\n```",
        "Here are the programs (two for each word):\n{}",
        "Here is the program.\n\n{}\n\nI hope this helps!",
    ],
)
def test_programs_are_read_in_any_surrounding_text(program: str) -> None:
    assert read_program(program.format(PROGRAM)) == read_program(PROGRAM)


@pytest.mark.parametrize(
    ("text", "statement"),
    [
        ("objectEval(image, 'train conductor's hat')", ("object", ("train conductor's hat",))),
        ('objectEval(image, "dog");', ("object", ("dog",))),
        ("objectEval(iamge, 'dog')", ("object", ("dog",))),
        (r"vqa(image, 'is the man\'s suit green?', 'yes,no', 'yes')",
         ("vqa", ("is the man's suit green?", "yes", "yes", "no"))),
        ("countEval(objDet(image, 'dog'), '3')", ("count", ("dog", "==3"))),
        ("countEval(objDet(image, 'dog'), '=2')", ("count", ("dog", "==2"))),
        ("countEval(objDet(image, 'dog'), '>= two')", ("count", ("dog", ">=2"))),
        ("countEval(objDet(image, 'dog'), 'twenty one')", ("count", ("dog", "==21"))),
        ("spatialEval(image, 'bear, dining table, left to')", ("spatial", ("bear", "dining table", "left to"))),
        ("2. `objectEval(image, 'dog')`", ("object", ("dog",))),
        ("objectEval(image, 'dog') # the animal(s) of the description", ("object", ("dog",))),
        ("vqa(image, 'is #1 red?','yes,no','yes')", ("vqa", ("is #1 red?", "yes", "yes", "no"))),
        ("About the dog.", None),
        ("These check the animal(s).", None),
    ],
)  # fmt: skip
def test_a_statement_is_a_module_with_its_arguments(text: str, statement: tuple[str, tuple[str, ...]] | None) -> None:
    assert read_statement(text) == (None if statement is None else Statement(*statement))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("countEval(objDet(image, 'dog'), 'many')", "no count"),
        ("spatialEval(image, 'dog,left')", "has 2 parts"),
        ("vqa(image, 'what is it?', 'dog', 'dog')", "two or more different choices"),
        ("objectEval(image, '')", "lacks an argument"),
        ("objectEval(image, 'a', 'b')", "2 arguments, expected 1"),
    ],
)
def test_a_meaningless_statement_is_left_out_with_the_reason(text: str, problem: str) -> None:
    assert [one.module for one in read_program(f"{text}\nobjectEval(image, 'dog')")] == ["object"]
    with pytest.raises(UnreadableReply, match=problem):
        read_program(text)


@pytest.mark.parametrize(
    "code",
    [
        "import os",
        "from os import system",
        "__import__('os').system('true')",
        "objectEval(image, __import__('os').name)",
        "objectEval(image.__class__, 'dog')",
        "image.save('/tmp/x')",
        "objectEval(image, 'dog').__class__",
        "for i in range(10**9): objectEval(image, 'dog')",
        "while True: pass",
        "[objectEval(image, 'dog') for _ in range(10**9)]",
        "exec('x = 1')",
        "eval(image, 'dog')",
        "(lambda: objectEval(image, 'dog'))()",
        "countEval(objDet(image, 'dog'), '==2' or exit())",
        "countEval(os.system(image, 'dog'), '==2')",
        "textEval(open(image), 'dog')",
        "vqa(image, 'a?', 'yes,no', 'yes') if True else exit()",
        "objectEval(image, 'dog'); os.remove('x')",
    ],
)
def test_other_code_makes_a_reply_unreadable_and_is_not_run(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_it(*_: object) -> None:
        raise AssertionError("code from a reply was executed")

    monkeypatch.setattr("builtins.exec", run_it)
    monkeypatch.setattr("builtins.eval", run_it)
    with pytest.raises(UnreadableReply):
        read_program(f"objectEval(image, 'dog')\n{code}")


def test_a_prompt_whose_program_keeps_containing_code_fails() -> None:
    asked = collect_requests_before_failure(VpevalConfig(), "objectEval(image, 'cow')\nimport os; os.system('true')")
    assert "is not a call of one of the modules" in asked[1].messages[-1].text, "the request is repeated"


def collect_requests_before_failure(metric: VpevalConfig, reply: str) -> list[Request]:
    """Answer every request of the metric's program with the same reply; return the requests made before it gives up."""
    asked: list[Request] = []
    program = metric.write(PROMPT)
    requests = next(program)
    with pytest.raises(UnreadableReply):
        while True:
            asked += requests
            requests = program.send([scripted.make_reply(reply)])
    return asked


def test_a_count_is_compared_and_never_evaluated() -> None:
    with pytest.raises(UnreadableReply, match="no count"):
        read_program("countEval(objDet(image, 'dog'), '+__import__(\"os\").getpid()*0==2')")
    with pytest.raises(UnreadableReply, match="no count"):
        read_program("countEval(objDet(image, 'dog'), '**999999999==2')")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("I cannot help with that.", "no statement such as objectEval"),
        ("\n".join(f"objectEval(image, 'thing{n}')" for n in range(257)), "at most 256 statements, found 257"),
        ("objectEval(image, '" + "x" * 2000 + "')", "is not a call of one of the modules"),
        ("(" * 50_000, "no statement"),
    ],
)
def test_a_reply_without_a_program_is_refused_with_the_reason(reply: str, reason: str) -> None:
    with pytest.raises(UnreadableReply, match=reason):
        read_program(reply)


# Modules


@pytest.mark.parametrize(("bound", "expected"), [("==2", True), (">1", True), ("<2", False), (">=3", False),
                                                 ("!=3", True), ("two", True), ("3", False)])  # fmt: skip
def test_a_count_is_the_number_of_boxes(bound: str, expected: bool) -> None:
    assert is_satisfied(f"countEval(objDet(image, 'cow'), '{bound}')", [LEFT_BOX, LEFT_BOX]) is expected


def test_an_object_exists_if_a_box_was_found() -> None:
    assert is_satisfied("objectEval(image, 'cow')", [LEFT_BOX])
    assert not is_satisfied("objectEval(image, 'cow')", [])


@pytest.mark.parametrize(
    ("relation", "stated"), [("left", True), ("left to", True), ("right of", False), ("above", True), ("below", False)]
)
def test_positions_are_compared_by_centres_and_the_release_swaps_the_objects(relation: str, stated: bool) -> None:
    text = f"spatialEval(image, 'cow,sign,{relation}')"
    assert is_satisfied(text, [LEFT_BOX], [RIGHT_BOX]) is stated
    assert is_satisfied(text, [LEFT_BOX], [RIGHT_BOX], relations="released") is not stated
    assert not is_satisfied(text, [LEFT_BOX], [LEFT_BOX._replace(label="sign", x2=19, y2=19)]), "within 5 pixels"
    assert not is_satisfied(text, [LEFT_BOX], [])


@pytest.mark.parametrize(("relation", "stated"), [("bigger", False), ("smaller", True), ("same", False)])
def test_sizes_are_compared_by_areas(relation: str, stated: bool) -> None:
    text = f"scaleEval(image, 'cow,sign,{relation}')"
    assert is_satisfied(text, [LEFT_BOX], [RIGHT_BOX]) is stated
    assert is_satisfied(text, [LEFT_BOX], [RIGHT_BOX], relations="released") is (relation == "bigger")
    assert is_satisfied(text, [LEFT_BOX], [LEFT_BOX._replace(label="sign", x2=10.2)]) is (relation == "same")


def test_relations_of_a_box_whose_label_lacks_some_of_the_words_are_ignored() -> None:
    """As in the release, such a box still counts as an object."""
    part = LEFT_BOX._replace(label="brown")
    assert is_satisfied("objectEval(image, 'brown cow')", [part])
    assert not is_satisfied("spatialEval(image, 'brown cow,sign,left')", [part], [RIGHT_BOX])
    assert is_satisfied("spatialEval(image, 'Cow,sign,left')", [LEFT_BOX], [RIGHT_BOX])


def test_no_box_is_compared_with_itself_if_two_things_have_the_same_name() -> None:
    assert not is_satisfied("scaleEval(image, 'cow,cow,same')", [LEFT_BOX])
    assert is_satisfied("scaleEval(image, 'cow,cow,same')", [LEFT_BOX, LEFT_BOX._replace(x1=30, x2=40)])


def test_the_vqa_model_is_asked_about_relations_that_boxes_cannot_show() -> None:
    """The release does the same, except that it uses a depth model for `in front of` and `behind`."""
    text = "spatialEval(image, 'cow,umbrella,in front of')"
    statement = read_statement(text)
    assert isinstance(statement, Statement)
    assert [query.text for query in list_queries(statement)] == [
        "Is there a cow in the image?",
        "Is there an umbrella in the image?",
        "Is the cow in front of the umbrella?",
    ]
    assert {query.choices for query in list_queries(statement)} == {("yes", "no")}
    assert is_satisfied(text, "yes", "Yes.", "yes")
    assert not is_satisfied(text, "yes", "no", "yes")


@pytest.mark.parametrize(
    ("text", "stated", "released"),
    [
        ("spatialEval(image, 'cow,sign,next to')", "Is the cow next to the sign?", "Is the cow skip the sign?"),
        ("spatialEval(image, 'cow,sign,behind')", "Is the cow behind the sign?", "Is the cow behind the sign?"),
        ("scaleEval(image, 'cow,sign,taller')", "Is the cow taller the sign?", "Is the cow skip than the sign?"),
    ],
)
def test_other_relations_can_be_asked_in_the_released_wording(text: str, stated: str, released: str) -> None:
    ours, theirs = VpevalConfig(), VpevalConfig(relations="released")
    assert stated in ours.list_image_queries(text)[-1].text and released in theirs.list_image_queries(text)[-1].text
    assert ours.list_query_options() != theirs.list_query_options()


def test_a_text_must_be_a_line_that_was_read_or_all_lines_together() -> None:
    assert is_satisfied("textEval(ocr(image), 'Pro Milk')", "Dairy\nPRO MILK!\n2%")
    assert is_satisfied("textEval(ocr(image), 'pro milk.')", "pro\nmilk")
    assert not is_satisfied("textEval(ocr(image), 'milk')", "pro milk")


def test_a_question_is_asked_as_released_and_its_answer_compared() -> None:
    text = "vqa(image, 'what animals are there?', 'pigs,cows,hens', 'cows')"
    assert VpevalConfig().list_image_queries(text) == (
        ImageQuery("model", "Question: what animals are there? Choices: pigs, cows, hens Answer:"),
    )
    assert is_satisfied(text, "Cows")
    assert not is_satisfied(text, "two cows")


def test_a_model_that_compares_choices_is_only_asked_the_question() -> None:
    """CLIP compares every question with each of its choices, as in ablation 3 of "What makes a good metric?"."""
    metric = VpevalConfig().complete_options(lambda role: COSINE_PROFILE)
    text = "vqa(image, 'what animals are there?', 'pigs,cows,hens', 'cows')"
    assert metric.list_image_queries(text) == (
        ImageQuery("model", "what animals are there?", choices=("pigs", "cows", "hens")),
    )
    assert (
        metric.list_query_options()
        != VpevalConfig().complete_options(lambda role: CHAT_PROFILE).list_query_options()
        == VpevalConfig().list_query_options()
    )


@pytest.mark.parametrize(
    "text",
    [
        "vqa(image, 'what animals are there?', 'pigs,brown cows', 'brown cows')",
        "spatialEval(image, 'brown cow,large sign,in front of')",
        "spatialEval(image, 'brown cow,large sign,left')",
        "countEval(objDet(image, 'brown cow'), '==2')",
        "textEval(ocr(image), 'pro milk')",
    ],
)
def test_shuffling_words_affects_every_question_and_phrase_but_no_choice(text: str) -> None:
    plain, shuffled = VpevalConfig(), VpevalConfig(ablation="shuffled_words")
    for own, other in zip(plain.list_image_queries(text), shuffled.list_image_queries(text), strict=True):
        ours, theirs = (query.text.partition(" Choices: ") for query in (own, other))
        assert sorted(ours[0].split()) == sorted(theirs[0].split()) and ours[2] == theirs[2]
        assert ours[0] != theirs[0] or not ours[0]
    (question,) = run(plain.write(PROMPT), [text]).result
    if question.kind == "text":
        results = [QueryResult(text="pro milk")]
    else:
        results = [
            QueryResult((LEFT_BOX._replace(label=query.text), LEFT_BOX._replace(label=query.text)), "yes")
            for query in shuffled.list_image_queries(text)
        ]
    given = shuffled.combine_answers([Answered(question, query_results=tuple(results))]).elements
    assert given is not None
    if question.kind == "count":
        assert (given[0].given, given[0].score) == ("2 x cow brown", 1.0)
    if question.kind == "text":
        assert given[0].score == 0.0, "the expected words are in another order"


def test_the_score_is_the_fraction_of_statements_that_hold() -> None:
    metric = VpevalConfig()
    questions = run(metric.write(PROMPT), [PROGRAM]).result
    found = {"cow": [LEFT_BOX, LEFT_BOX], "sign": [RIGHT_BOX]}
    answered = [
        Answered(one, query_results=tuple(
            QueryResult(tuple(found.get(query.text, ())), None if query.model == "detector" else "pigs")
            for query in metric.list_image_queries(one.text)
        ))
        for one in questions
    ]  # fmt: skip
    scored = metric.combine_answers(answered)
    assert scored.score == pytest.approx(2 / 4)
    assert [(one.given, one.score) for one in scored.elements or ()] == [
        ("2 x cow", 1.0), ("2 x cow, 1 x sign", 1.0), ("pigs", 0.0), ("pigs", 0.0),
    ]  # fmt: skip


def test_repeated_statements_and_answers_outside_the_choices_count_as_in_the_release() -> None:
    """Three of the program's four statements are true, and one of the statements occurs twice.

    As in the release, a repeated statement counts twice, and the answer to a question need not be one of its choices.
    """
    metric = VpevalConfig()
    program = "objectEval(image, 'cow')\nvqa(image, 'how many cows?', '1,2,3', '>1')\nobjectEval(image, 'cow')"
    questions = run(metric.write(PROMPT), [f"{program}\nobjectEval(image, 'cow')"]).result
    shown = {"detector": QueryResult((LEFT_BOX,)), "model": QueryResult(text="2")}
    answered = [
        Answered(one, query_results=tuple(shown[query.model] for query in metric.list_image_queries(one.text)))
        for one in questions
    ]
    assert metric.combine_answers(answered).score == 3 / 4
    assert is_satisfied("vqa(image, 'how many cows?', '1,2,3', '>1')", ">1")


def test_programs_in_json_give_the_same_questions() -> None:
    reply = json.dumps({"modules": [
        {"about": "two", "module": "count", "object": "cow", "count": "==2"},
        {"about": "cows", "module": "vqa", "question": "are they cows?", "answer": "yes"},
        {"about": "cows", "module": "shell", "command": "true"},
    ]})  # fmt: skip
    questions = run(VpevalConfig(replies="json").write(PROMPT), [reply]).result
    assert [(one.kind, one.text, one.choices) for one in questions] == [
        ("count", "countEval(objDet(image, 'cow'), '==2')", ("yes", "no")),
        ("vqa", "vqa(image, 'are they cows?', 'yes,no', 'yes')", ("yes", "no")),
    ]


@given(st.recursive(st.text("dog's \"big\", (red); #1\\\n", max_size=30), lambda one: st.lists(one, max_size=3),
                    max_leaves=4), st.sampled_from(["object", "count", "spatial", "scale", "text", "vqa"]))  # fmt: skip
def test_a_program_in_json_is_stored_as_it_is_read(value: object, module: str) -> None:
    names = ("object", "count", "first", "second", "relation", "text", "question", "answer", "wrong")
    entry = dict.fromkeys(names, value) | {"module": module, "count": "==2", "wrong": ["cat", value]}
    try:
        questions = run(VpevalConfig(replies="json").write(PROMPT), [json.dumps([entry])]).result
    except (UnreadableReply, AssertionError):
        return  # it is requested again
    assert all(VpevalConfig().list_image_queries(question.text) for question in questions)
