"""The published prompts for judges that answer the questions of a checklist: BizGenEval's and WeGenBench's."""

import ast
import json
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

from plumbline.operators.metrics.metric import Rating, Verdict
from plumbline.operators.metrics.wording import Checkout, Release, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, UnreadableReply, Writing, WrittenQuestion

BIZGENEVAL_MAX_TOKENS = 8192
"""Maximum number of tokens in a reply of up to 20 answers with reasons; the release sets no limit."""
BIZGENEVAL_TRIES = 2
"""Maximum number of requests until a reply has all answers; the release asks again when it is started again."""
WEGENBENCH_MAX_TOKENS = 4096
"""Maximum number of tokens in a reply, thoughts included; the release has no code that asks."""
CHECKLIST_MARK = "{checklist}"
TAGS_NAME = "EVAL_GENERATION_PROMPTS"
RESULT_PATTERN = re.compile(r'"result"\s*:\s*(true|false|True|False|"true"|"false"|1|0)')
CHINESE_PATTERN = re.compile(r"[\u4e00-\u9fff]")


@dataclass(frozen=True, slots=True)
class ChecklistRelease(Release):
    """Base class for the published prompts of a checklist."""

    fixed_options: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies")

    @abstractmethod
    def request_verdict(self, questions: Sequence[WrittenQuestion], seed: int) -> Writing[Verdict]:
        """Ask for the answers; return a rating of 1 or 0 for each question, in order."""


class RulesPrompt(NamedTuple):
    """BizGenEval's request to the judge under one set of rules."""

    system: str
    template: str


@dataclass(frozen=True, slots=True)
class BizGenEvalRelease(ChecklistRelease):
    """BizGenEval's rules for five kinds of questions (microsoft/BizGenEval at 39e1bdc)."""

    repository: ClassVar[str] = "microsoft/BizGenEval"
    marker_file: ClassVar[str] = "evaluation/evaluate_prompt.py"
    prompts: Mapping[str, RulesPrompt]
    """Requests by tag."""

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.parse_python(cls.marker_file)
        prompts = {}
        match code.find_assigned_value(TAGS_NAME):
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    match key, value:
                        case ast.Constant(value=str(tag)), ast.Tuple(elts=[system, template]):
                            texts = (code.read_plain_string(ast.unparse(name)) for name in (system, template))
                            prompts[tag] = RulesPrompt(*texts)
        if not prompts or not all(prompt.template.count(CHECKLIST_MARK) == 1 for prompt in prompts.values()):
            raise checkout.make_checkout_error(
                cls.marker_file, f"has no pairs of prompts in {TAGS_NAME} whose second one contains {CHECKLIST_MARK}"
            )
        return cls(prompts)

    def request_verdict(self, questions: Sequence[WrittenQuestion], seed: int) -> Writing[Verdict]:
        """Ask all questions in one request, like upstream's `evaluate_item`; the rationale lists the wrong answers.

        The part of a question's kind before the dash is the tag of its rules.
        """
        tag = (questions[0].kind or "").partition(" - ")[0]
        prompt = self.prompts.get(tag)
        if prompt is None:
            raise UnreadableReply(f"the release has no rules for the tag {tag!r}, only for {', '.join(self.prompts)}")
        listed = "\n".join(f"{number}. {question.text}" for number, question in enumerate(questions, start=1))
        text = prompt.template.replace(CHECKLIST_MARK, listed)
        request = ReplySampling(BIZGENEVAL_MAX_TOKENS, seed=seed).make_request(text, stop=())
        request = request._replace(system=prompt.system, image_at=len(text))
        ((answers, reasons),) = yield from ask_as_released(
            [request], [partial(_read_answers, len(questions))], tries=BIZGENEVAL_TRIES
        )
        wrong = (f"{number}: {reasons[number]}" for number in reasons if not answers[number - 1])
        return Verdict(_make_ratings(questions, answers), " ".join(wrong))


@dataclass(frozen=True, slots=True)
class WeGenBenchRelease(ChecklistRelease):
    """WeGenBench's prompts for a judge that answers one question with 1 or 0 (WeChatCV/WeGenBench at 87c3c76)."""

    repository: ClassVar[str] = "WeChatCV/WeGenBench"
    marker_file: ClassVar[str] = "evaluation/Consistency/QA/prompt/ans-check-questions-en.txt"
    english: str
    chinese: str

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        return cls(checkout.read_text(cls.marker_file), checkout.read_text(cls.marker_file.replace("-en.txt", ".txt")))

    def request_verdict(self, questions: Sequence[WrittenQuestion], seed: int) -> Writing[Verdict]:
        """Ask each question in a request of its own.

        The prompt ends with a request to answer the following question; the question is appended to it. The release
        describes this procedure in its readme, and has no code for it.
        """
        chinese = all(CHINESE_PATTERN.search(question.text) for question in questions)
        prompt = (self.chinese if chinese else self.english).rstrip()
        sampling = ReplySampling(WEGENBENCH_MAX_TOKENS, seed=seed)
        requests = [sampling.make_request(f"{prompt}\n{question.text}", stop=()) for question in questions]
        answers = yield from ask_as_released(requests, [_read_digit] * len(requests))
        return Verdict(_make_ratings(questions, answers), "")


def _make_ratings(questions: Sequence[WrittenQuestion], answers: Sequence[bool]) -> tuple[Rating, ...]:
    return tuple(
        Rating(question.kind or question.text, float(answer))
        for question, answer in zip(questions, answers, strict=True)
    )


def _read_digit(reply: str) -> bool:
    digit = reply.strip()
    if digit not in ("0", "1"):
        raise ValueError("expected the digit 1 or 0 and nothing else")
    return digit == "1"


def _read_answers(count: int, reply: str) -> tuple[list[bool], dict[int, str]]:
    """Return BizGenEval's answers, and the reasons by number from 1; raise ValueError if an answer is missing.

    Replies are parsed as by upstream's `evaluate_item`, which counts a missing answer as wrong.
    """
    try:
        found = _parse_object(reply)
    except ValueError:
        said = [match.strip('"').lower() in ("true", "1") for match in RESULT_PATTERN.findall(reply)]
        if len(said) < count:
            raise
        return said[:count], {}
    records = [found.get(str(number)) if isinstance(found, dict) else None for number in range(1, count + 1)]
    missing = [number for number, record in enumerate(records, start=1) if not isinstance(record, dict)]
    if missing:
        raise ValueError(f"expected answers 1 to {count}, found none for {', '.join(map(str, missing))}")
    given = [record for record in records if isinstance(record, dict)]
    reasons = {number: str(record["reason"]) for number, record in enumerate(given, start=1) if record.get("reason")}
    return [_is_true(record.get("result")) for record in given], reasons


def _is_true(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.strip().lower() in ("true", "1", "yes"))


def _parse_object(reply: str) -> Any:
    """Return the JSON or Python value in a reply, like upstream's `parse_json_safe`; raise ValueError if it has none.

    Upstream's code tries the whole reply, the text between the first and the last brace, the same text with Python's
    constants as JSON's, and the same text as a Python literal.
    """
    text = reply.strip()
    if text.startswith("```"):
        text = re.sub(r"^```(?:json)?\s*", "", text, flags=re.IGNORECASE)
        text = text.removesuffix("```").strip()
    start, end = text.find("{"), text.rfind("}")
    inner = text[start : end + 1] if 0 <= start < end else text
    as_json = re.sub(r"\b(?:True|False|None)\b", lambda match: {"None": "null"}.get(match[0], match[0].lower()), inner)
    for tried in (text, inner, as_json):
        try:
            return json.loads(tried)
        except (ValueError, RecursionError):
            continue
    as_python = re.sub(r"\b(?:true|false)\b", lambda match: match[0].capitalize(), inner, flags=re.IGNORECASE)
    try:
        return ast.literal_eval(re.sub(r"\bnull\b", "None", as_python))
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"expected a JSON object of answers, found other text ({type(error).__name__})") from error
