"""TIFA: multiple-choice questions, which the VQA model answers in its own words (Hu et al. 2023)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, Self

from plumbline.operators.base.bounds import Share
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.metric import Answered, CallEstimate, Scored, average_elements, make_element
from plumbline.operators.metrics.parsing import LocatedWords
from plumbline.operators.metrics.questions.question_metric import (
    AnswerForm,
    WriterConfig,
    find_likeliest_choice,
    make_forms,
    make_line_forms,
)
from plumbline.operators.metrics.questions.vqascore import Reduction
from plumbline.operators.metrics.reply_forms import (
    MAX_BLOCKS,
    Block,
    Form,
    ReplyFormat,
    make_blocks_schema,
    make_choice_schema,
    make_object_schema,
    make_string_schema,
    read_blocks,
    read_json_blocks,
)
from plumbline.operators.metrics.wording import Checkout, Release, ask_as_released, digest_templates
from plumbline.operators.metrics.writing import ReplySampling, Writing, WrittenQuestion, ask_each, is_asked

ANSWER_REDUCTION: Reduction = "product"
QUESTIONS_HEADING = "Questions and answers are below:\n"
_KIND_WORDS = "object human animal food activity attribute counting color material spatial location shape other"
_SUBJECT_SCHEMAS = {"about": make_string_schema(60), "type": make_choice_schema(_KIND_WORDS.split())}
QUESTION_FORMS = make_forms("tifa_questions", read_blocks, read_json_blocks, make_blocks_schema(**_SUBJECT_SCHEMAS))
CHOICE_FORMS = make_line_forms("tifa_choose", "answer", lambda _: make_object_schema(answer=make_string_schema(120)))
ANSWER_FORMS = make_line_forms("tifa_answer", "answer", lambda _: make_object_schema(answer=make_string_schema(60)))
HEADER_LINES = 6
"""Number of lines in a reply before the questions. The published prompt ends with `Entities`, which the reply
continues.
"""


@dataclass(frozen=True, slots=True)
class TifaRelease(Release):
    """TIFA's published prompt, with 15 examples, that requests all questions at once (Yushi-Hu/tifa at 8e37050)."""

    repository: ClassVar[str] = "Yushi-Hu/tifa"
    marker_file: ClassVar[str] = "tifascore/question_gen.py"
    fixed_options: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies")
    prompt: str
    kinds: tuple[str, ...]

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.parse_python(cls.marker_file)
        return cls(code.read_plain_string("prompt"), tuple(code.read_literal("categories")))

    def write(self, prompt: str, seed: int) -> Writing[list[WrittenQuestion]]:
        """Request all questions about a prompt and return them (upstream's get_question_and_answers)."""
        # like openai_completion in tifascore/openai_api.py, which also sets the temperature to 0
        sampling, stop = ReplySampling(max_tokens=700, seed=seed), ("\n\n", "<|endoftext|>")
        request = sampling.make_request(f"{self.prompt}{prompt}\nEntities", stop=stop)
        (blocks,) = yield from ask_as_released([request], [self._read_blocks])
        return locate_questions(prompt, blocks)

    def _read_blocks(self, reply: str) -> list[Block]:
        """Return the questions in a reply that have choices and a known subject type (upstream's parse_resp).

        If a question has several answers, the first counts.
        """
        blocks, subject, kind, question, choices = [], "", "", "", tuple[str, ...]()
        for line in reply.split("\n")[HEADER_LINES:]:
            if line.startswith("About "):
                subject, *rest = line[len("About ") : -1].split(" (")
                kind = rest[0].split(")")[0]
            elif line.startswith("Q: "):
                question = line[len("Q: ") :]
            elif line.startswith("Choices: "):
                choices = tuple(line[len("Choices: ") :].split(", "))
            elif line.startswith("A: "):
                if subject and question and choices and kind in self.kinds:
                    blocks.append(Block(f"{subject} ({kind})", question, choices, line[len("A: ") :]))
                question, choices = "", ()
        if (
            not 0 < len(blocks) <= MAX_BLOCKS
            or max(len(block.text) for block in blocks) > parsing.MAX_QUESTION_CHARACTERS
        ):
            raise ValueError(
                f"expected 1 to {MAX_BLOCKS} questions of at most {parsing.MAX_QUESTION_CHARACTERS} characters"
            )
        return blocks


@dataclass(frozen=True, kw_only=True, slots=True)
class TifaConfig(WriterConfig):
    kind: Literal["tifa"] = "tifa"
    story: ClassVar[str] = (
        "lets a language model write multiple-choice questions about the prompt, and takes the fraction answered right"
    )
    answer_forms: ClassVar[tuple[AnswerForm, ...]] = ("reply", "likelihood")
    matcher: str = "matcher"
    """Role of the text embedder that finds the closest choice if an answer is not one of the choices (as in upstream's
    code).
    """
    filter: bool = True
    """If true, drop repeated questions, and questions that the writer cannot answer from the prompt alone (as in
    upstream's code).
    """
    min_f1: Share = 0.6
    """The filter keeps a multiple-choice question only if the token F1 of its free answer is above this value, as in
    upstream's code.
    """
    releases: ClassVar[tuple[type[Release], ...]] = (TifaRelease,)
    reply_forms: ClassVar[Sequence[Mapping[ReplyFormat, Form[Any]]]] = (QUESTION_FORMS, CHOICE_FORMS, ANSWER_FORMS)

    @property
    def roles(self) -> dict[str, str]:
        roles = {"writer": self.writer, "model": self.model}
        return roles if self.form == "likelihood" else {**roles, "matcher": self.matcher}

    def list_question_options(self) -> dict[str, Any]:
        release = self.find_release(TifaRelease)
        templates = digest_one_step_prompt(self) if release is None else release.digest
        asked = {"templates": templates, "sampling": self.sampling._asdict(), "filter": self.filter}
        if not self.filter:
            return asked
        templates = digest_templates(*self.choose_form(CHOICE_FORMS).identity, *self.choose_form(ANSWER_FORMS).identity)
        return {**asked, "filter_templates": templates, "min_f1": self.min_f1}

    def list_score_options(self) -> dict[str, Any]:
        """Return the reduction by which the likeliest choice is found; empty if the model replies in words."""
        return {} if self.form == "reply" else {"reduction": ANSWER_REDUCTION}

    def estimate_calls(self, words: float) -> CallEstimate:
        """Estimate the number of calls for a prompt: one to write its questions, plus the calls made by the filter.

        The filter makes one call per question, and two per multiple-choice question. One question in four is assumed to
        be multiple-choice.
        """
        return CallEstimate(1 + (1.25 * words if self.filter else 0), words)

    def write(self, prompt: str) -> Writing[list[WrittenQuestion]]:
        """Request the questions about a prompt and return them; `keep` is False for questions that fail the filter."""
        release = self.find_release(TifaRelease)
        if release is None:
            questions = yield from write_questions_in_one_reply(self, prompt)
        else:
            questions = yield from release.write(prompt, self.seed)
        return (yield from self._filter_questions(prompt, questions)) if self.filter else questions

    def _filter_questions(self, prompt: str, questions: Sequence[WrittenQuestion]) -> Writing[list[WrittenQuestion]]:
        """Return the questions; `keep` is True for those that a model answers correctly without seeing an image.

        The model sees the prompt, and must be right both with and without the choices.

        If several questions have the same text, only the first is kept.
        """
        firsts = {parsing.normalise(question.text): question for question in reversed(questions)}
        asked = [question for question in questions if firsts[parsing.normalise(question.text)] is question]
        choose, answer = self.choose_form(CHOICE_FORMS), self.choose_form(ANSWER_FORMS)
        requests = []
        for question in asked:
            about = f"Description:\n{parsing.collapse_spaces(prompt)}\nQuestion:\n{question.text}\n"
            choices = f"Choices:\n{', '.join(question.choices)}\n"
            requests.append(choose.make_request(self.sampling, f"{about}{choices}Answer:\n"))
            if not parsing.is_yes_no(question.choices):
                requests.append(answer.make_request(self.sampling, f"{about}Answer:\n"))
        read = partial(parsing.read_short_answer, pieces=answer.pieces)  # both forms have the same pieces
        replies = yield from ask_each(requests, [read] * len(requests))
        answers = (reply if isinstance(reply, str) else "" for reply in replies)
        kept = set()
        for question in asked:
            right = question.answer or ""
            passed = parsing.read_choice(next(answers), question.choices) == right
            if not parsing.is_yes_no(question.choices):
                passed &= compute_free_f1(next(answers), right) > self.min_f1
            if passed:
                kept.add(question.question_id)
        return [question._replace(keep=question.question_id in kept) for question in questions]

    def combine_answers(self, answered: Sequence[Answered]) -> Scored:
        """Return the fraction of kept questions whose chosen answer is correct."""
        elements = []
        for answer in answered:
            given, score = answer.chosen, None
            if is_asked(answer.question.keep):
                given = answer.chosen if self.form == "reply" else find_likeliest_choice(answer, ANSWER_REDUCTION)
                score = float(given == answer.question.answer)
            elements.append(make_element(answer, given=given, score=score))
        return average_elements(elements)


def digest_one_step_prompt(metric: WriterConfig) -> str:
    """Return the digest of the prompt with which `write_questions_in_one_reply` requests all questions in one step."""
    return digest_templates(*metric.choose_form(QUESTION_FORMS).identity, QUESTIONS_HEADING)


def write_questions_in_one_reply(metric: WriterConfig, prompt: str) -> Writing[list[WrittenQuestion]]:
    """Request all questions about a prompt in one reply and return them; none is dropped by a filter."""
    text = f"Description:\n{parsing.collapse_spaces(prompt)}\n{QUESTIONS_HEADING}"
    return (yield from metric.ask_writer(QUESTION_FORMS, text, partial(read_questions, prompt)))


def read_questions(
    prompt: str, reply: str, pieces: Callable[[str], Sequence[Block]] = read_blocks
) -> list[WrittenQuestion]:
    """Return the questions in a reply (see QUESTION_FORMS), with the positions of their subjects in the prompt.

    Raise UnreadableReply if there are none.
    """
    return locate_questions(prompt, pieces(reply))


def locate_questions(prompt: str, blocks: Sequence[Block]) -> list[WrittenQuestion]:
    """Return the questions, each with the position of its subject, such as `bow tie (object):`, in the prompt."""
    located: dict[str | None, LocatedWords] = {None: LocatedWords(None)}
    taken: list[parsing.TextSpan] = []
    questions = []
    for index, block in enumerate(blocks, start=1):
        words, bracket, kind = (block.subject or "").strip(" :").rpartition("(")
        if not bracket:
            words, kind = kind, ""
        subject = parsing.collapse_spaces(words)[: parsing.MAX_CHOICE_CHARACTERS] or None
        if subject is not None and subject not in located:
            located[subject] = LocatedWords(subject)
            if found := parsing.find_words(subject, prompt, taken=taken):
                taken.append(found)
                located[subject] = LocatedWords(prompt[found.start : found.end], *found)
        kind = kind.strip(" ):").casefold()
        questions.append(
            WrittenQuestion(str(index), block.text, block.choices, block.answer, kind or None, *located[subject])
        )
    return questions


def compute_free_f1(answer: str, gold: str) -> float:
    """Return the word F1 of a free answer and the correct answer, as in TIFA's published filter.

    Articles count. Punctuation is deleted from the free answer but kept in the correct one, so no answer equals
    `t-shirt`. If the correct answer is a number, number words in the free answer are converted (`twenty one dogs` is
    21). Unlike upstream, the case of the correct answer does not matter.
    """
    given = "".join(char for char in answer.casefold() if char.isalnum() or char.isspace())
    number = parsing.read_number(given) if gold.isnumeric() else None
    words, right = given.split() if number is None else [str(number)], gold.casefold().split()
    shared = sum(word in words for word in right)
    surplus = sum(word not in right for word in words)
    return 2 * shared / (shared + surplus + len(right)) if shared else float(words == right)
