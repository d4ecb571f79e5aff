"""DSG's release (j-min/DSG at 7330119): three prompts with 23 examples each, taken from its annotations."""

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
"""Value of openai_completion in dsg/openai_utils.py, which also sets the temperature to 0."""


class SplitPrompt(NamedTuple):
    """The text before and after the input of a request."""

    before: str
    after: str


class ParsedReplies(NamedTuple):
    """The parsed contents of the release's three replies, by the number of a tuple."""

    tuples: dict[int, str]
    questions: dict[int, str]
    parents: dict[int, str]


@dataclass(frozen=True, slots=True)
class DsgRelease(Release):
    """The prompts in dsg/query_utils.py."""

    repository: ClassVar[str] = "j-min/DSG"
    mark: ClassVar[str] = "dsg/query_utils.py"
    decides: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies", "questions")
    tuples: SplitPrompt
    questions: SplitPrompt
    dependencies: SplitPrompt

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.python(cls.mark)
        rows = checkout.rows(EXAMPLES)
        examples = [[row for row in rows if row["item_id"] == name] for name in code.value("TIFA160_ICL_TRAIN_IDS")]
        if not all(examples):
            raise checkout.refusal(EXAMPLES, "lacks examples that TIFA160_ICL_TRAIN_IDS names")
        return cls(
            _split_prompt(
                code, "_TUPLE_PREAMBLE", [(each[0]["text"], _number_rows(each, "tuple")) for each in examples]
            ),
            _split_prompt(code, "_QUESTION_PREAMBLE", _tuple_examples(examples, "question_natural_language")),
            _split_prompt(code, "_DEPENDENCY_PREAMBLE", _tuple_examples(examples, "dependency")),
        )

    def write(self, prompt: str, seed: int) -> Writing[ParsedReplies]:
        """Ask for the tuples, then, with these as they were written, for questions and dependencies (generate_dsg)."""
        sampling = ReplySampling(MAX_TOKENS, seed=seed)

        def request(prompt: SplitPrompt, text: str) -> Request:
            return sampling.request(prompt.before + text + prompt.after, stop=())

        ((written, tuples),) = yield from ask_as_released([request(self.tuples, prompt)], [_read_tuples])
        about = f"{prompt}\n{written}"
        requests = [request(self.questions, about), request(self.dependencies, about)]
        questions, parents = yield from ask_as_released(requests, [_read_questions, _read_dependencies])
        return ParsedReplies(tuples, questions, parents)


def _split_prompt(code: PythonFile, preamble: str, examples: Sequence[tuple[str, str]]) -> SplitPrompt:
    """Return the prompt with its examples, pairs of input and output, split at the input's position (make_prompt)."""
    names = {"input_name": "input", "output_name": "output"}
    example, test, whole = (
        Template(code.plain(name)) for name in ("_EXAMPLES_TEMPLATE", "_TEST_TEMPLATE", "_PROMPT_TEMPLATE")
    )
    shown = (example.substitute(names, input=given.strip(), output=said.strip()) for given, said in examples)
    before, after = whole.substitute(
        preamble=code.plain(preamble),
        examples="\n\n".join(shown),
        test_input_output=test.substitute(names, test_input=INPUT),
    ).split(INPUT)
    return SplitPrompt(before, after)


def _tuple_examples(examples: Sequence[Sequence[Mapping[str, str]]], column: str) -> list[tuple[str, str]]:
    """Return examples with tuples as input and a column as output (create_train_example)."""
    return [(f"{each[0]['text']}\n{_number_rows(each, 'tuple')}", _number_rows(each, column)) for each in examples]


def _number_rows(rows: Sequence[Mapping[str, str]], column: str) -> str:
    return "\n".join(" ".join(f"{number} | {row[column]}".split()) for number, row in enumerate(rows, start=1))


def _own_part(reply: str) -> str:
    """Return a reply without a further example that the model adds to it (parse_with_input_name)."""
    return reply.split("input:")[0].strip()


def _read_tuples(reply: str) -> tuple[str, dict[int, str]]:
    """Return the tuples as they were written, and parsed."""
    written = _own_part(reply)
    return written, _split_by_number(written)


def _read_questions(reply: str) -> dict[int, str]:
    questions = _split_by_number(_own_part(reply))
    if not all(questions.values()) or max(map(len, questions.values())) > parsing.MAX_QUESTION:
        raise ValueError(f"expected questions of 1 to {parsing.MAX_QUESTION} characters")
    return questions


def _read_dependencies(reply: str) -> dict[int, str]:
    """Return the numbers in each line (clean_dependency_id); raise ValueError for a line without numbers."""
    parents = {}
    for number, written in _split_by_number(_own_part(reply)).items():
        parts = (part.strip() for part in written.split(","))
        named = ",".join(str(int(part)) for part in parts if part.isnumeric() or part == "-")
        parents[number] = named or str(int(written))
    return parents


def _split_by_number(said: str) -> dict[int, str]:
    """Return the lines `id | text` by id; raise ValueError for a line of another form (dsg/parse_utils.py)."""
    lines = (line.split("|") for line in (said.partition("output:")[2] or said).strip().split("\n"))
    return {int(number): text.strip() for number, text in lines}
