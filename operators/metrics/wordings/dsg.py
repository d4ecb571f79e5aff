"""DSG's release (j-min/DSG at 7330119): three prompts with 23 examples each, drawn from its annotations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import Template
from typing import ClassVar, NamedTuple, Self

from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.wordings.checkout import Checkout, PythonFile
from plumbline.operators.metrics.wordings.release import Release, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, Writing
from plumbline.operators.models.calls import Request

EXAMPLES = "dsg/data/tifa160-dev-anns.csv"
INPUT = "\0"
MAX_TOKENS = 500
"""dsg/openai_utils.py, openai_completion, which is also where the temperature is 0."""


class Around(NamedTuple):
    """What stands before and behind the input of a request."""

    before: str
    behind: str


class Written(NamedTuple):
    """What the release's three replies say, by the number of a tuple."""

    tuples: dict[int, str]
    questions: dict[int, str]
    parents: dict[int, str]


@dataclass(frozen=True, slots=True)
class DsgRelease(Release):
    """Its prompts (dsg/query_utils.py)."""

    repository: ClassVar[str] = "j-min/DSG"
    mark: ClassVar[str] = "dsg/query_utils.py"
    decides: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies", "questions")
    tuples: Around
    questions: Around
    dependencies: Around

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.python(cls.mark)
        rows = checkout.rows(EXAMPLES)
        examples = [[row for row in rows if row["item_id"] == name] for name in code.value("TIFA160_ICL_TRAIN_IDS")]
        if not all(examples):
            raise checkout.refusal(EXAMPLES, "lacks examples that TIFA160_ICL_TRAIN_IDS names")
        return cls(
            _around(code, "_TUPLE_PREAMBLE", [(each[0]["text"], _numbered(each, "tuple")) for each in examples]),
            _around(code, "_QUESTION_PREAMBLE", _of_tuples(examples, "question_natural_language")),
            _around(code, "_DEPENDENCY_PREAMBLE", _of_tuples(examples, "dependency")),
        )

    def write(self, prompt: str, seed: int) -> Writing[Written]:
        """The tuples, then by these, as they were written, questions and dependencies (generate_dsg)."""
        sampling = ReplySampling(MAX_TOKENS, seed=seed)

        def request(around: Around, text: str) -> Request:
            return sampling.request(around.before + text + around.behind, stop=())

        ((stated, tuples),) = yield from ask_as_released([request(self.tuples, prompt)], [_stated])
        about = f"{prompt}\n{stated}"
        requests = [request(self.questions, about), request(self.dependencies, about)]
        questions, parents = yield from ask_as_released(requests, [_questions, _dependencies])
        return Written(tuples, questions, parents)


def _around(code: PythonFile, preamble: str, examples: Sequence[tuple[str, str]]) -> Around:
    """A prompt with its examples, pairs of input and output, around the place of the input (make_prompt)."""
    names = {"input_name": "input", "output_name": "output"}
    example, test, whole = (
        Template(code.plain(name)) for name in ("_EXAMPLES_TEMPLATE", "_TEST_TEMPLATE", "_PROMPT_TEMPLATE")
    )
    shown = (example.substitute(names, input=given.strip(), output=said.strip()) for given, said in examples)
    before, behind = whole.substitute(
        preamble=code.plain(preamble),
        examples="\n\n".join(shown),
        test_input_output=test.substitute(names, test_input=INPUT),
    ).split(INPUT)
    return Around(before, behind)


def _of_tuples(examples: Sequence[Sequence[Mapping[str, str]]], column: str) -> list[tuple[str, str]]:
    """Examples that are asked about tuples and answered by a column (create_train_example)."""
    return [(f"{each[0]['text']}\n{_numbered(each, 'tuple')}", _numbered(each, column)) for each in examples]


def _numbered(rows: Sequence[Mapping[str, str]], column: str) -> str:
    return "\n".join(" ".join(f"{number} | {row[column]}".split()) for number, row in enumerate(rows, start=1))


def _said(reply: str) -> str:
    """A reply up to where the model goes on with an example of its own (parse_with_input_name)."""
    return reply.split("input:")[0].strip()


def _stated(reply: str) -> tuple[str, dict[int, str]]:
    """The tuples as they were written, and read."""
    said = _said(reply)
    return said, _by_number(said)


def _questions(reply: str) -> dict[int, str]:
    questions = _by_number(_said(reply))
    if not all(questions.values()) or max(map(len, questions.values())) > parsing.MAX_QUESTION:
        raise ValueError(f"expected questions of 1 to {parsing.MAX_QUESTION} characters")
    return questions


def _dependencies(reply: str) -> dict[int, str]:
    return {number: _parents(written) for number, written in _by_number(_said(reply)).items()}


def _parents(written: str) -> str:
    """The numbers that a line names; other words do not count, and a line without numbers is unreadable
    (clean_dependency_id)."""
    parts = (part.strip() for part in written.split(","))
    return ",".join(str(int(part)) for part in parts if part.isnumeric() or part == "-") or str(int(written))


def _by_number(said: str) -> dict[int, str]:
    """Lines `id | text`, and none of another form (dsg/parse_utils.py)."""
    lines = (line.split("|") for line in (said.partition("output:")[2] or said).strip().split("\n"))
    return {int(number): text.strip() for number, text in lines}
