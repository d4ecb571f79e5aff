"""DSG: yes/no questions from a prompt's semantic tuples, counted only if their parents hold (Cho et al. 2024)."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from string import Template
from typing import Any, ClassVar, Literal, NamedTuple, Self

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.metric import (
    Answered,
    CallEstimate,
    Prior,
    Scored,
    average_elements,
    insert_prior,
    make_element,
)
from plumbline.operators.metrics.parsing import NumberedLine
from plumbline.operators.metrics.questions.question_metric import (
    WriterConfig,
    compute_log_likelihoods,
    find_likeliest_choice,
    make_forms,
)
from plumbline.operators.metrics.questions.vqascore import Reduction
from plumbline.operators.metrics.reply_forms import (
    Form,
    ReplyFormat,
    make_array_schema,
    make_choice_schema,
    make_integer_schema,
    make_list_schema,
    make_object_schema,
    make_string_schema,
    read_entries,
    read_json_text,
    read_member,
)
from plumbline.operators.metrics.wording import Checkout, PythonFile, Release, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, UnreadableReply, Writing, WrittenQuestion, ask_each
from plumbline.operators.models.calls import Request

MAX_TUPLES = 200
CATEGORIES = (
    *(f"entity - {kind}" for kind in ("whole", "part")),
    *(
        f"attribute - {kind}"
        for kind in ("color", "type", "material", "count", "texture", "text", "shape", "size", "state")
    ),
    *(f"relation - {kind}" for kind in ("spatial", "action")),
    "global",
)
Zeroing = Literal["direct", "recursive"]
"""The other questions that must be answered correctly for a question to count: its parents (`direct`, as in DSG's
code) or all its ancestors (`recursive`, as in T2IScoreScore).
"""


class SplitPrompt(NamedTuple):
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class DsgRelease(Release):
    """DSG's three published prompts, each with 23 examples (j-min/DSG at 7330119)."""

    repository: ClassVar[str] = "j-min/DSG"
    marker_file: ClassVar[str] = "dsg/query_utils.py"
    fixed_options: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies", "questions")
    tuples: SplitPrompt
    questions: SplitPrompt
    dependencies: SplitPrompt

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code, annotations = checkout.parse_python(cls.marker_file), "dsg/data/tifa160-dev-anns.csv"
        rows = checkout.read_rows(annotations)
        items = [[row for row in rows if row["item_id"] == name] for name in code.read_literal("TIFA160_ICL_TRAIN_IDS")]
        if not all(items):
            raise checkout.make_checkout_error(annotations, "lacks examples listed in TIFA160_ICL_TRAIN_IDS")
        prompts = [item[0]["text"] for item in items]
        tuples, questions, dependencies = (
            [_number_rows(item, column) for item in items]
            for column in ("tuple", "question_natural_language", "dependency")
        )
        with_tuples = [f"{prompt}\n{written}" for prompt, written in zip(prompts, tuples, strict=True)]
        return cls(
            _split_prompt(code, "_TUPLE_PREAMBLE", prompts, tuples),
            _split_prompt(code, "_QUESTION_PREAMBLE", with_tuples, questions),
            _split_prompt(code, "_DEPENDENCY_PREAMBLE", with_tuples, dependencies),
        )

    def write(self, prompt: str, seed: int) -> Writing[list[WrittenQuestion]]:
        """Ask for the tuples, then for questions and dependencies, as generate_dsg does; return the questions.

        The reply with the tuples is passed on unchanged.
        """
        # like openai_completion in dsg/openai_utils.py, which also sets the temperature to 0
        sampling = ReplySampling(max_tokens=500, seed=seed)

        def make_request(prompt: SplitPrompt, text: str) -> Request:
            return sampling.make_request(prompt.before + text + prompt.after, stop=())

        ((written, tuples),) = yield from ask_as_released([make_request(self.tuples, prompt)], [_split_by_number])
        about = f"{prompt}\n{written}"
        requests = [make_request(self.questions, about), make_request(self.dependencies, about)]
        questions, parents = yield from ask_as_released(requests, [_read_question_lines, _read_dependency_lines])
        stated = {number: _parse_tuple(parsing.collapse_spaces(tuples.get(number, ""))) for number in questions}
        return _assemble_questions(prompt, stated, questions, parents)


def _number_rows(rows: Sequence[Mapping[str, str]], column: str) -> str:
    return "\n".join(" ".join(f"{number} | {row[column]}".split()) for number, row in enumerate(rows, start=1))


def _split_prompt(code: PythonFile, preamble: str, inputs: Sequence[str], outputs: Sequence[str]) -> SplitPrompt:
    """Return a published prompt, as built by upstream's make_prompt, split where the new input is inserted."""
    names = {"input_name": "input", "output_name": "output"}
    example, test, whole = (
        Template(code.read_plain_string(name)) for name in ("_EXAMPLES_TEMPLATE", "_TEST_TEMPLATE", "_PROMPT_TEMPLATE")
    )
    examples = (
        example.substitute(names, input=given.strip(), output=wanted.strip())
        for given, wanted in zip(inputs, outputs, strict=True)
    )
    before, after = whole.substitute(
        preamble=code.read_plain_string(preamble),
        examples="\n\n".join(examples),
        test_input_output=test.substitute(names, test_input="\0"),
    ).split("\0")
    return SplitPrompt(before, after)


def _split_by_number(reply: str) -> tuple[str, dict[int, str]]:
    """Return the reply and its `id | text` lines by id (dsg/parse_utils.py); raise ValueError for any other line."""
    written = reply.split("input:")[0].strip()  # models may add a further example (parse_with_input_name)
    lines = (line.split("|") for line in (written.partition("output:")[2] or written).strip().split("\n"))
    return written, {int(number): text.strip() for number, text in lines}


def _read_question_lines(reply: str) -> dict[int, str]:
    _, questions = _split_by_number(reply)
    if not all(questions.values()) or max(map(len, questions.values())) > parsing.MAX_QUESTION_CHARACTERS:
        raise ValueError(f"expected questions of 1 to {parsing.MAX_QUESTION_CHARACTERS} characters")
    return questions


def _read_dependency_lines(reply: str) -> dict[int, str]:
    """Map each tuple's number to the text that lists its parents' numbers (upstream's clean_dependency_id).

    Raise ValueError for a line without numbers.
    """
    _, lines = _split_by_number(reply)
    parents = {}
    for number, written in lines.items():
        parts = (part.strip() for part in written.split(","))
        named = ",".join(str(int(part)) for part in parts if part.isnumeric() or part == "-")
        parents[number] = named or str(int(written))
    return parents


@dataclass(frozen=True, kw_only=True, slots=True)
class DsgConfig(WriterConfig):
    kind: Literal["dsg"] = "dsg"
    story: ClassVar[str] = (
        "lets a language model write yes/no questions that build on each other; if one fails, all questions that "
        "build on it fail too"
    )
    takes_letters: ClassVar[bool] = False
    reduction: Reduction = "product"
    """Method for combining the token likelihoods of a choice (operators/metrics/questions/vqascore.py). The method
    matters for choices of similar likelihood.
    """
    aggregate: Literal["share", "soft_mean"] = "share"
    """`share`: fraction of questions answered correctly; `soft_mean`: mean likelihood of the correct answers, which is
    how table 15 of the VQAScore paper scores DSG's questions. With both, a question with a failed parent counts as 0.
    """
    zeroing: Zeroing = "direct"
    """A yes counts if all parents are answered yes (`direct`, as in the released code), or all ancestors (`recursive`,
    as in T2IScoreScore).
    """
    questions: Literal["tidied", "released"] = "tidied"
    """Parser of text replies. `tidied` reads each line up to its last question mark, collapses spaces and skips
    lines without a question mark; `released` reads everything after `id |`, as the released parser does, and rejects
    replies that contain any other line.
    """

    prior: Prior | None = None
    """Method that removes the model's bias from its answers (operators/metrics/metric.py)."""
    releases: ClassVar[tuple[type[Release], ...]] = (DsgRelease,)

    def __post_init__(self) -> None:
        WriterConfig.__post_init__(self)
        if self.aggregate == "soft_mean" and (self.answers == "reply" or self.prior is not None):
            raise ConfigError(
                "dsg aggregate: soft_mean uses plain likelihoods; expected answers=likelihood and prior=null, "
                f"got answers={self.answers} and prior={self.prior}; leave them out, or use aggregate=share"
            )
        if self.prior is not None and self.answers == "reply":
            raise ConfigError(
                f"dsg prior: {self.prior} divides likelihoods, which replies do not have; "
                "set prior=null or answers=likelihood"
            )
        if self.questions == "released" and self.replies != "text":
            raise ConfigError(
                f"dsg questions: questions=released requires replies=text, got {self.replies}; change one of them"
            )

    @property
    def chain(self) -> tuple[str, ...]:
        return insert_prior(("questions", "answers", "scores"), self.prior)

    @property
    def reply_forms(self) -> Sequence[Mapping[ReplyFormat, Form[Any]]]:
        return TUPLE_FORMS, QUESTION_FORMS, DEPENDENCY_FORMS

    def list_question_options(self) -> dict[str, Any]:
        release = self.find_release(DsgRelease)
        if release is not None:
            return {"wording": release.digest, "seed": self.seed}
        asked = self.list_reply_options(TUPLE_FORMS, QUESTION_FORMS, DEPENDENCY_FORMS)
        return asked if self.questions == "tidied" else {**asked, "questions": self.questions}

    def list_score_options(self) -> dict[str, Any]:
        if self.form == "reply":
            return {"zeroing": self.zeroing}
        soft = {} if self.aggregate == "share" else {"aggregate": self.aggregate}
        return {"reduction": self.reduction, "zeroing": self.zeroing, **soft}

    def estimate_calls(self, words: float) -> CallEstimate:
        return CallEstimate(3, words)

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """Ask for the tuples of a prompt, then for their questions and dependencies together; return the questions."""
        release = self.find_release(DsgRelease)
        if release is not None:
            return (yield from release.write(prompt, self.seed))
        about = f"Description:\n{parsing.collapse_spaces(prompt)}\nTuples:\n"
        tuples = yield from self.ask_writer(TUPLE_FORMS, about, read_tuples)
        about += "".join(f"{number} | {stated.text}\n" for number, stated in tuples.items())
        numbers, question_form, dependency_form = (
            list(tuples),
            self.choose_form(QUESTION_FORMS),
            self.choose_form(DEPENDENCY_FORMS),
        )
        requests = [
            question_form.make_request(self.sampling, f"{about}Questions:\n"),
            dependency_form.make_request(self.sampling, f"{about}Dependencies:\n"),
        ]
        readers: list[Callable[[str], dict[int, str]]] = [
            partial(read_questions, numbers, pieces=question_form.pieces),
            partial(read_dependencies, numbers, pieces=dependency_form.pieces),
        ]
        if self.questions == "released":
            readers[0] = partial(read_released_questions, numbers)
        questions, parents = yield from ask_each(requests, readers)
        if isinstance(questions, UnreadableReply):
            raise questions
        return _assemble_questions(prompt, tuples, questions, {} if isinstance(parents, UnreadableReply) else parents)

    def combine_answers(self, answered: Sequence[Answered]) -> Scored:
        """Return the fraction of questions that count, or the mean likelihood of yes (`soft_mean`).

        A question counts if the question and its parents are answered yes; with recursive zeroing, all its ancestors
        must be. A parent that is not among the questions counts as answered correctly. In the mean likelihood, a
        question scores 0 if a parent (or ancestor) is not answered yes. If parents form a cycle, recursive zeroing
        makes each question in the cycle depend on all other questions in it.
        """
        by_id = {answer.question.question_id: answer for answer in answered}
        if self.form == "reply":
            given = {name: answer.chosen or answer.reply or "" for name, answer in by_id.items()}
        else:
            given = {name: find_likeliest_choice(answer, self.reduction) for name, answer in by_id.items()}
        right = {name: given[name] == answer.question.answer for name, answer in by_id.items()}
        parents = {name: answer.question.parents for name, answer in by_id.items()}
        scores: dict[str, float] = dict(apply_zeroing(right, parents, self.zeroing))
        if self.aggregate == "soft_mean":
            for name, answer in by_id.items():
                others = find_needed_questions(name, parents, self.zeroing) - {name}
                index = answer.question.choices.index(answer.question.answer or "")
                likelihood = math.exp(compute_log_likelihoods(answer, self.reduction)[index])
                scores[name] = likelihood if all(right.get(other, True) for other in others) else 0.0
        return average_elements(
            [make_element(answer, given=given[name], score=float(scores[name])) for name, answer in by_id.items()]
        )


def apply_zeroing(right: Mapping[str, bool], parents: Mapping[str, Sequence[str]], zeroing: Zeroing) -> dict[str, bool]:
    """Return, for each question, True if the question and its parents (or all its ancestors) are answered correctly.

    A parent that is not among the questions counts as answered correctly.
    """
    return {
        name: own and all(right.get(other, True) for other in find_needed_questions(name, parents, zeroing))
        for name, own in right.items()
    }


def find_needed_questions(question_id: str, parents: Mapping[str, Sequence[str]], zeroing: Zeroing) -> set[str]:
    """Return the other questions that must be answered correctly for a question to count."""
    if zeroing == "direct":
        return set(parents[question_id])
    needed: set[str] = set()
    waiting = list(parents[question_id])
    while waiting:
        parent = waiting.pop()
        if parent not in needed:
            needed.add(parent)
            waiting.extend(parents.get(parent, ()))
    return needed


class SemanticTuple(NamedTuple):
    """A single statement made by a prompt, such as `attribute - color (motorcycle, blue)`."""

    text: str
    kind: str | None
    """Category of the tuple, such as `attribute - color`."""
    words: str | None
    """The word that the question asks about: the last one in the tuple."""


NumberedLineReader = Callable[[str], Sequence[NumberedLine]]


def read_tuples(reply: str, pieces: NumberedLineReader = parsing.read_numbered_lines) -> dict[int, SemanticTuple]:
    """Map numbers to tuples in lines such as `1 | entity - whole (motorcycle)`; ignore lines without a bracket.

    If a number occurs several times, the last line counts, as in DSG's published code. Raises UnreadableReply if there
    are no tuples, or more than MAX_TUPLES.
    """
    tuples = {line.number: _parse_tuple(line.text) for line in pieces(reply) if "(" in line.text}
    if not tuples:
        raise UnreadableReply('no line such as "1 | entity - whole (motorcycle)" was found')
    if len(tuples) > MAX_TUPLES:
        raise UnreadableReply(f"expected at most {MAX_TUPLES} tuples, found {len(tuples)}")
    return tuples


def _parse_tuple(text: str) -> SemanticTuple:
    text = text[: parsing.MAX_QUESTION_CHARACTERS]
    kind, _, words = text.partition("(")
    last = re.sub(r"\)[^)]*$", "", words).rpartition(",")[2].strip()
    return SemanticTuple(text, kind.strip(" |:-").casefold() or None, last or None)


def read_questions(
    numbers: Sequence[int], reply: str, pieces: NumberedLineReader = parsing.read_numbered_lines
) -> dict[int, str]:
    """Return the questions by tuple number, read from lines like `1 | Is there a dog?`.

    Raise UnreadableReply if there are no such lines.
    """
    lines = [line for line in pieces(reply) if "?" in line.text]
    texts = {line.number: line.text.rpartition("?")[0] + "?" for line in lines}
    questions = {
        number: texts[number]
        for number in numbers
        if len(texts.get(number, "")) in range(2, parsing.MAX_QUESTION_CHARACTERS)
    }
    if not questions:
        raise UnreadableReply('no line such as "1 | Is there a motorcycle?" was found with the number of a tuple')
    return questions


def read_released_questions(numbers: Sequence[int], reply: str) -> dict[int, str]:
    """Return the questions by tuple number, parsing the reply as the released code does.

    Only the tuples with these `numbers` are considered. Raise UnreadableReply if any line is not of the form
    `1 | Is there a dog?`, or if no line has the number of a tuple.
    """
    texts = {}
    for line in (reply.partition("output:")[2] or reply).strip().split("\n"):
        number, *text = (part.strip() for part in line.split("|"))
        if not number.isdecimal() or len(text) != 1 or not 0 < len(text[0]) < parsing.MAX_QUESTION_CHARACTERS:
            raise UnreadableReply(
                f'expected lines such as "1 | Is there a motorcycle?" alone, found {parsing.shorten(line)}'
            )
        texts[int(number)] = text[0]
    questions = {number: texts[number] for number in numbers if number in texts}
    if not questions:
        raise UnreadableReply('no line such as "1 | Is there a motorcycle?" was found with the number of a tuple')
    return questions


def read_dependencies(
    numbers: Sequence[int], reply: str, pieces: NumberedLineReader = parsing.read_numbered_lines
) -> dict[int, str]:
    """Map each tuple's number to its parents in lines such as `6 | 1,4`; raise UnreadableReply if a line is invalid.

    The parents are returned as the text after the bar: `1,4`.
    """
    # without its parents, a tuple would score higher than it should
    lines = [line for line in pieces(reply) if line.number in numbers]
    parents = {line.number: line.text for line in lines if parsing.read_parents(line.text) is not None}
    unread = next((line for line in lines if line.number not in parents), None)
    if unread is not None:
        raise UnreadableReply(f'expected numbers such as "1,3", or 0, after "{unread.number} |", found "{unread.text}"')
    if not parents:
        raise UnreadableReply('no line such as "2 | 1" or "1 | 0" was found')
    return parents


def read_json_tuples(reply: str) -> list[NumberedLine]:
    """Return the tuples of a JSON reply as the numbered lines that a text reply would have."""
    lines = []
    for number, entry in enumerate(read_entries(reply, "tuples"), start=1):
        words = read_member(entry, "words")
        listed = ", ".join(map(read_json_text, words if isinstance(words, list) else [words]))
        lines.append(NumberedLine(number, f"{read_json_text(read_member(entry, 'category'))} ({listed})"))
    return lines


def read_json_questions(reply: str) -> list[NumberedLine]:
    return [
        line._replace(text=line.text.rstrip(" .?") + "?") for line in _read_json_lines(reply, "questions", "question")
    ]


def read_json_dependencies(reply: str) -> list[NumberedLine]:
    return _read_json_lines(reply, "dependencies", "parents")


def _read_json_lines(reply: str, name: str, member: str) -> list[NumberedLine]:
    """Return the entries under `name` in a JSON reply as numbered lines, with the text in their field `member`.

    An entry has the form `{"tuple": 1, member: ...}`; an entry that is not an object is numbered by its position.
    """
    lines = []
    for index, entry in enumerate(read_entries(reply, name), start=1):
        value = read_member(entry, member)
        text = ",".join(map(read_json_text, value)) if isinstance(value, list) else read_json_text(value)
        number = entry.get("tuple") if isinstance(entry, dict) else index
        if isinstance(number, int):
            lines.append(NumberedLine(number, text))
    return lines


_NUMBER_SCHEMA = make_integer_schema(MAX_TUPLES)
_TUPLE_SCHEMA = make_object_schema(
    category=make_choice_schema(CATEGORIES), words=make_array_schema(make_string_schema(40), 3)
)
_QUESTION_SCHEMA = make_object_schema(tuple=_NUMBER_SCHEMA, question=make_string_schema(120))
_DEPENDENCY_SCHEMA = make_object_schema(tuple=_NUMBER_SCHEMA, parents=make_array_schema(_NUMBER_SCHEMA, 8, min_items=0))
TUPLE_FORMS = make_forms(
    "dsg_tuples", parsing.read_numbered_lines, read_json_tuples, make_list_schema("tuples", _TUPLE_SCHEMA, 40)
)
QUESTION_FORMS = make_forms(
    "dsg_questions",
    parsing.read_numbered_lines,
    read_json_questions,
    make_list_schema("questions", _QUESTION_SCHEMA, 40),
)
DEPENDENCY_FORMS = make_forms(
    "dsg_dependencies",
    parsing.read_numbered_lines,
    read_json_dependencies,
    make_list_schema("dependencies", _DEPENDENCY_SCHEMA, 40),
)


def _assemble_questions(
    prompt: str, tuples: Mapping[int, SemanticTuple], questions: Mapping[int, str], dependencies: Mapping[int, str]
) -> list[WrittenQuestion]:
    written = []
    for number, text in questions.items():
        named = dict.fromkeys(parsing.read_parents(dependencies.get(number, "")) or ())
        parents = tuple(str(parent) for parent in named if parent in questions and parent != number)
        located = parsing.locate_words(tuples[number].words, prompt)
        kind = tuples[number].kind
        written.append(WrittenQuestion(str(number), text, parsing.YES_NO, "yes", kind, *located, parents=parents))
    return written
