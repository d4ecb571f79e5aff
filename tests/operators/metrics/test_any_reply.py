"""Any reply from a language model is either parsed in the requested form or rejected with a short reason."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.modules import Statement, format_statement, read_program, read_statement
from plumbline.operators.metrics.questions import dsg, gecko, tifa, vq2
from plumbline.operators.metrics.reply_forms import read_blocks
from plumbline.operators.metrics.writing import UnreadableReply

Reader = Callable[[str, str], Any]
"""Function that parses a reply to a prompt, and returns a truthy value if the result is consistent."""


def read_labels(prompt: str, reply: str) -> bool:
    spans = gecko.read_spans(prompt, reply)
    annotated = gecko.annotate_prompt(prompt, spans)
    return all(
        0.0 <= span.groundable <= 1.0
        and f"{{{number}}}[" in annotated
        and (span.position is None or prompt[span.position.start : span.position.end] == span.words)
        for number, span in enumerate(spans, 1)
    )


def read_choices(prompt: str, reply: str) -> bool:
    blocks = read_blocks(reply)
    keys = [{parsing.normalise(choice) for choice in block.choices} for block in blocks]
    return all(
        block.answer in block.choices and len(choices) == len(block.choices) >= 2
        for block, choices in zip(blocks, keys, strict=True)
    )


def read_tifa(prompt: str, reply: str) -> bool:
    questions = tifa.read_questions(prompt, reply)
    own = len({one.question_id for one in questions}) == len(questions)
    return own and all(one.start is None or prompt[one.start : one.end] == one.span for one in questions)


def can_reread_statements(prompt: str, reply: str) -> bool:
    again = [(one, read_statement(format_statement(one))) for one in read_program(reply)]
    return all(isinstance(read, Statement) and read.module == one.module for one, read in again)


READERS: Mapping[str, Reader] = {
    "DSG's tuples": lambda prompt, reply: dsg.read_tuples(reply),
    "DSG's questions": lambda prompt, reply: dsg.read_questions([1, 2], reply),
    "DSG's dependencies": lambda prompt, reply: dsg.read_dependencies([1, 2], reply),
    "Gecko's labels": read_labels,
    "questions with choices": read_choices,
    "TIFA's questions": read_tifa,
    "VQ2's phrases": lambda prompt, reply: all(
        prompt[one.start : one.end].strip() for one in vq2.read_spans(prompt, reply)
    ),
    "VQ2's question": lambda prompt, reply: vq2.read_question(reply).endswith("?"),
    "VPEval's program": can_reread_statements,
}
"""Functions that parse a reply and check the result, keyed by the kind of reply."""
WORD_PIECES = (
    "Q:~A:~Choices:~About~{1}:~{2}[~{1}[~(3)[~9 [~yes~no~A)~B)~red~dog~,~|~;~[~]~(~)~?~\"~'~**~1.~:~</think>~0"
)
CODE_PIECES = "1 | ~2 | ~, entity~, 1.0~ and ~objectEval(image, 'dog')~vqa(~=~\\~_.~\n~\n```\n~\n- "
PIECES = st.sampled_from(f"{WORD_PIECES}~{CODE_PIECES}".split("~"))
REPLIES = st.text() | st.lists(PIECES | st.text(max_size=3), max_size=60).map(" ".join)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@settings(max_examples=60)
@given(prompt=st.text(max_size=30), reply=REPLIES | st.text(max_size=20).map("About {}:\nQ: is it?\nA: yes".format))
def test_any_reply_is_read_or_refused(read: Reader, prompt: str, reply: str) -> None:
    try:
        assert read(prompt, reply)
    except UnreadableReply as error:
        assert 0 < len(str(error)) < 2000
