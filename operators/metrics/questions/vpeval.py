"""VPEval: a program of checks for each prompt, carried out by a detector, OCR and a VQA model (Cho et al. 2023)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, cast, get_args

from plumbline.operators.base.bounds import Share
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.metric import Answered, CallEstimate, Scored, average_elements, make_element
from plumbline.operators.metrics.modules import (
    ImageQuery,
    Module,
    Relations,
    Statement,
    check_statement,
    format_statement,
    list_queries,
    make_statement,
    read_program,
    read_statement,
    require_statements,
)
from plumbline.operators.metrics.questions.question_metric import AnswerForm, WriterConfig, make_forms
from plumbline.operators.metrics.reply_forms import (
    Form,
    ReplyFormat,
    make_array_schema,
    make_choice_schema,
    make_list_schema,
    make_object_schema,
    make_string_schema,
    read_entries,
    read_json_text,
    read_member,
)
from plumbline.operators.metrics.wording import Checkout, Release, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, VqaPrompt, Writing, WrittenQuestion
from plumbline.operators.models.vqa_profiles import VqaProfile

PROGRAMS_HEADING = "Programs are below:\n"
QUESTION_TEMPLATE = "Question: {} Answer:"
HEADER_LINES = 7
"""Number of lines in a reply before the programs. The published prompt ends with `Entities`, which the reply continues.
"""


@dataclass(frozen=True, slots=True)
class VpevalRelease(Release):
    """The published prompt, with 12 examples, that asks a model for a program (aszala/VPEval at 4a54904)."""

    repository: ClassVar[str] = "aszala/VPEval"
    marker_file: ClassVar[str] = "src/open_ended_prompt_generation/generate_open_ended_prompts.py"
    fixed_options: ClassVar[tuple[str, ...]] = ("temperature", "replies")
    prompt: str

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        return cls(checkout.parse_python(cls.marker_file).read_plain_string("prompt"))

    def write(self, prompt: str, sampling: ReplySampling) -> Writing[list[Statement]]:
        """Ask for a prompt's evaluation program and return its statements (upstream's get_question_and_answers)."""

        def read_statements(reply: str) -> list[Statement]:
            # upstream runs each line as Python (parse_resp); we parse it by a grammar
            return read_program("\n".join(reply.split("\n")[HEADER_LINES:]))

        # the quotation mark after the prompt is upstream's
        request = sampling.make_request(f'{self.prompt}{prompt}"\nEntities', stop=())
        (statements,) = yield from ask_as_released([request], [read_statements])
        return statements


@dataclass(frozen=True, kw_only=True, slots=True)
class VpevalConfig(WriterConfig):
    kind: Literal["vpeval"] = "vpeval"
    story: ClassVar[str] = (
        "lets a language model write a small program of checks for the prompt, carried out by a detector, a text "
        "reader and a VQA model, and takes the fraction of checks that pass"
    )
    chain: ClassVar[tuple[str, ...]] = ("questions", "modules", "scores")
    scored_from: ClassVar[tuple[str, ...]] = ("modules", "questions")
    role_keys: ClassVar[tuple[str, ...]] = ("writer", "detector", "reader", "model")
    detector: str = "detector"
    """Role of the open-vocabulary detector."""
    reader: str = "reader"
    """Role of the model that reads the text in images."""
    answer_forms: ClassVar[tuple[AnswerForm, ...]] = ("reply", "likelihood")
    takes_letters: ClassVar[bool] = False
    template: str = QUESTION_TEMPLATE
    """Text sent to the VQA model, as published for BLIP-2. `{}` is replaced by the question, followed by its choices if
    the model answers in words. A model that compares choices gets only the question.
    """
    box_threshold: Share = 0.40
    """Minimum score of a box (as in upstream's code)."""
    text_threshold: Share = 0.25
    """Minimum score for searched words to become part of a box's label (as in upstream's code)."""
    relations: Relations = "stated"
    """`stated`: the first object must be left of, or bigger than, the second, as programs state it; `released`: the
    second must be left of, or bigger than, the first, as computed by upstream's code, and questions about other
    relations use the words of that code.
    """
    releases: ClassVar[tuple[type[Release], ...]] = (VpevalRelease,)

    @property
    def reply_forms(self) -> Sequence[Mapping[ReplyFormat, Form[Any]]]:
        return (PROGRAM_FORMS,)

    def list_question_options(self) -> dict[str, Any]:
        release = self.find_release(VpevalRelease)
        if release is not None:
            return {"wording": release.digest, "sampling": self.sampling._asdict()}
        return self.list_reply_options(PROGRAM_FORMS, texts=[PROGRAMS_HEADING]) | {"statements": "as released"}

    def complete_options(self, profile_of: Callable[[str], VqaProfile]) -> "VpevalConfig":
        own = WriterConfig.complete_options(self, profile_of)
        plain = profile_of(own.model).compares and own.template == QUESTION_TEMPLATE
        return replace(own, template="{}") if plain else own

    def list_query_options(self) -> dict[str, Any]:
        """Return a mapping of all options that determine the queries, except the programs and the models."""
        options = {name: getattr(self, name) for name in ("template", "box_threshold", "text_threshold")}
        if self.form == "likelihood":
            options["form"] = self.form
        return options if self.relations == "stated" else {**options, "relations": self.relations}

    def list_score_options(self) -> dict[str, Any]:
        return {"relations": self.relations}

    def estimate_calls(self, words: float) -> CallEstimate:
        return CallEstimate(1, 2 * words)

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """Request the program for a prompt and return each of its statements as a question.

        The kind of a question is its module. The correct answer is yes, except for vqa statements, which have an answer
        of their own.
        """
        release = self.find_release(VpevalRelease)
        if release is not None:
            statements = yield from release.write(prompt, self.sampling)
        else:
            text = f"Description:\n{parsing.collapse_spaces(prompt)}\n{PROGRAMS_HEADING}"
            statements = yield from self.ask_writer(PROGRAM_FORMS, text, lambda reply, pieces: list(pieces(reply)))
        questions = []
        for number, statement in enumerate(statements, start=1):
            subject = statement.subject or ""
            located = parsing.locate_words(subject.rpartition("(")[0].strip() or subject, prompt)
            answer, *choices = statement.arguments[1:] if statement.module == "vqa" else ("yes", *parsing.YES_NO)
            text = format_statement(statement)
            questions.append(WrittenQuestion(str(number), text, tuple(choices), answer, statement.module, *located))
        return questions

    def make_vqa_prompt(self, text: str, choices: Sequence[str]) -> VqaPrompt:
        """Return the statement unchanged; `list_image_queries` makes the texts that are sent to the models."""
        return VqaPrompt(text, tuple(choices), free=True)

    def list_image_queries(self, text: str) -> tuple[ImageQuery, ...]:
        """Return the queries for one statement, with the texts sent to the models."""
        return tuple(map(self._add_query_options, list_queries(self._read_question(text), self.relations)))

    def _add_query_options(self, query: ImageQuery) -> ImageQuery:
        if query.model == "detector":
            return query._replace(box_threshold=self.box_threshold, text_threshold=self.text_threshold)
        if query.model == "reader":
            return query
        before, after = self.template.split("{}")
        asked = self.apply_word_order(query.text)
        if self.form == "likelihood":
            return query._replace(text=before + asked + after)
        return query._replace(text=f"{before}{asked} Choices: {', '.join(query.choices)}{after}", choices=())

    def _read_question(self, text: str) -> Statement:
        """Return the statement that a question's text contains.

        With the ablation `shuffled_words`, the names and texts of a statement are shuffled, unless a VQA model answers
        it: then `_add_query_options` shuffles the question. Choices are never shuffled.
        """
        statement = read_statement(text)
        assert isinstance(statement, Statement), "questions are written from statements"
        if list_queries(statement)[0].model == "model":
            return statement
        named = 2 if statement.module in ("spatial", "scale") else 1
        return statement._replace(
            arguments=(*map(self.apply_word_order, statement.arguments[:named]), *statement.arguments[named:])
        )

    def combine_answers(self, answered: Sequence[Answered]) -> Scored:
        elements = []
        for answer in answered:
            is_true, evidence = check_statement(
                self._read_question(answer.question.text), answer.query_results, self.relations
            )
            elements.append(make_element(answer, given=evidence, score=float(is_true)))
        return average_elements(elements)


# Programs in JSON

_FIELDS_BY_MODULE: Mapping[Module, Sequence[str]] = {
    "object": ("object",),
    "count": ("object", "count"),
    "spatial": ("first", "second", "relation"),
    "scale": ("first", "second", "relation"),
    "text": ("text",),
    "vqa": ("question", "answer"),
}


def read_json_program(reply: str) -> list[Statement]:
    """Return the statements of a program in JSON; raise UnreadableReply if there are none, or too many."""
    read = list(map(_read_json_statement, read_entries(reply, "modules")))
    statements = [statement for statement in read if isinstance(statement, Statement)]
    return require_statements(statements, [problem for problem in read if isinstance(problem, str)])


def _read_json_statement(entry: Any) -> Statement | str:
    name = read_json_text(read_member(entry, "module"))
    if not isinstance(entry, dict) or name not in get_args(Module):
        return f"{parsing.shorten(str(entry))} names none of the modules {', '.join(get_args(Module))}"
    module = cast(Module, name)
    first, *rest = (read_json_text(entry.get(member)) for member in _FIELDS_BY_MODULE[module])
    if module == "vqa":
        wrong = entry.get("wrong")
        others = [read_json_text(choice) for choice in wrong] if isinstance(wrong, list) else []
        rest += sorted({*rest, *others}) if others else parsing.YES_NO
    statement = make_statement(module, [first, *(argument.replace(",", " ") for argument in rest)])
    subject = read_json_text(entry.get("about")) or None
    return statement._replace(subject=subject) if isinstance(statement, Statement) else statement


def _make_program_schema() -> Callable[[int], Any]:
    thing, question, choice = make_string_schema(60), make_string_schema(120), make_string_schema(40)

    def make_entry(module: Module, **fields: Any) -> Any:
        return make_object_schema(about=make_string_schema(60), module=make_choice_schema([module]), **fields)

    pair = {"first": thing, "second": thing}
    modules = [
        make_entry("object", object=thing),
        make_entry(
            "count",
            object=thing,
            count=make_choice_schema([f"{mark}{n}" for mark in ("==", ">", "<") for n in range(10)]),
        ),
        make_entry("spatial", **pair, relation=make_string_schema(40)),
        make_entry("scale", **pair, relation=make_choice_schema(["bigger", "smaller", "same"])),
        make_entry("text", text=make_string_schema(80)),
        make_entry("vqa", question=question, answer=make_choice_schema(parsing.YES_NO)),
        make_entry("vqa", question=question, answer=choice, wrong=make_array_schema(choice, 3)),
    ]
    return make_list_schema("modules", {"anyOf": modules}, tokens=64)


PROGRAM_FORMS: Mapping[ReplyFormat, Form[Statement]] = make_forms(
    "vpeval_program", read_program, read_json_program, _make_program_schema()
)
