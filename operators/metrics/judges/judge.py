"""Base classes of metrics with a judge: they ask the judge for verdicts, and read replies of various forms."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from plumbline.operators.base.bounds import NonNegative, Positive
from plumbline.operators.base.errors import ConfigError, RowError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.metric import CallEstimate, Evidence, Rating, Scored, Verdict
from plumbline.operators.metrics.reply_forms import (
    ReplyFormat,
    Schema,
    make_choice_schema,
    make_integer_schema,
    make_object_schema,
    make_string_schema,
)
from plumbline.operators.metrics.wording import WordedMetric, digest_templates
from plumbline.operators.metrics.writing import ReplySampling, UnreadableReply, Writing, ask_each

if TYPE_CHECKING:
    from plumbline.operators.models.vqa_profiles import VqaProfile

T = TypeVar("T")
REPEAT_REQUEST = (
    "That reply could not be read: {error}. Write the whole reply again, in exactly the form that was asked for."
)
REPLY_INSTRUCTIONS: Mapping[ReplyFormat, str] = {
    "json": "Reply with one JSON object and nothing else: {form}\n",
    "text": "Reply in plain text: first {lines}, each on a line of its own; then the explanation, as one paragraph.\n",
}
MAX_RATIONALE_CHARACTERS = 1500
"""Maximum number of characters kept of a rationale."""
MAX_TRIED_BRACES = 20
"""Maximum number of opening braces in a reply at which to try to parse a JSON object."""
_NUMBER_REGEX = r"(-?\d+(?:\.\d+)?)(?: ?(?:/|out of) ?(\d+))?"
_NUMBER_LINE_PATTERN = re.compile(rf"(?:\W*[A-Za-z][\w -]{{0,40}}[:=] ?)?\W*{_NUMBER_REGEX}\W*")
NOT_APPLICABLE = "N/A"
NO_OBJECT_PROBLEM = "expected a JSON object, found none"


class Scale(NamedTuple):
    name: str
    """Name of the rating in the reply and in the verdict."""
    low: int
    high: int
    optional: bool = False
    """True if the judge may reply N/A; the verdict then has no such rating."""


class JudgeQuestion(NamedTuple):
    text: str
    scales: Sequence[Scale]
    view: int = 0
    """Index of the question's view in `Metric.views`."""


Verdicts = tuple[Verdict | None, ...]
"""Verdicts on one image, one per request to the judge; None for an unreadable reply."""
CheckRatings = Callable[[Mapping[str, float]], None]
"""Function that raises UnreadableReply if ratings (by name) contradict each other."""


def ask_repeatedly(program: Callable[[], Writing[Verdict | RowError]], times: int) -> Writing[Verdicts | RowError]:
    """Run a request program `times` times with successive seeds; return all verdicts, None for an unreadable reply.

    Call `program` to start each run. Raise UnreadableReply if none of the replies can be read. If a run returns a
    RowError, stop and return that error.
    """
    verdicts: list[Verdict | None] = []
    problems = []
    for draw in range(times):  # each draw adds 1 to the seed
        try:
            verdict = yield from _reseed(program(), draw)
        except UnreadableReply as error:
            verdict = None
            problems.append(error)
        if isinstance(verdict, RowError):
            return verdict
        verdicts.append(verdict)
    if len(problems) == times:
        raise problems[0]
    return tuple(verdicts)


def _reseed(program: Writing[T], draw: int) -> Writing[T]:
    try:
        requests = next(program)
        while True:
            replies = yield [request._replace(seed=request.seed + draw) for request in requests]
            requests = program.send(replies)
    except StopIteration as end:
        result: T = end.value
        return result


def accept_all(rated: Mapping[str, float]) -> None:
    """Accept any ratings: this is the CheckRatings for judges whose ratings cannot contradict each other."""


def map_ratings(ratings: Iterable[Rating]) -> dict[str, float]:
    return {rating.name: rating.value for rating in ratings}


@dataclass(frozen=True, kw_only=True)  # no slots, so that a metric can have another base class with fields
class JudgeMetricConfig(WordedMetric):
    """Base class of metrics with a judge, with the options for sampling and reading its replies."""

    replies: ReplyFormat = "json"
    """Format of a verdict: `json` is an object, enforced by a schema if the engine supports it; `text` has one number
    per line, followed by the explanation.
    """
    max_tokens: Positive = 512
    """Maximum number of tokens in a verdict."""
    temperature: NonNegative = 0.0
    """Sampling temperature; 0 always selects the likeliest token."""
    seed: int = 0
    """Random seed for sampling; has no effect at temperature 0."""
    repeats: Positive = 1
    """Number of times to ask the judge about each image, each time with the next seed; the score is the mean. The
    spread of the replies shows how noisy the judge is. Values above 1 require a temperature above 0.
    """

    def __post_init__(self) -> None:
        WordedMetric.__post_init__(self)
        if self.wording is None:
            self._check_repeats(self.temperature, "set a temperature, or repeats=1")

    @property
    def json_role(self) -> str | None:
        return "judge" if self.replies == "json" else None

    def complete_options(self, profile_of: "Callable[[str], VqaProfile]") -> Self:
        """Return the metric with the digest of its wording filled in.

        Raise ConfigError if `repeats` is above 1 but all replies would be the same.
        """
        metric = WordedMetric.complete_options(self, profile_of)
        release = metric._wording.release
        if release is not None and "temperature" in release.fixed_options:
            metric._check_repeats(release.temperature, f"{release.repository} uses this temperature; set repeats=1")
        else:
            metric._check_repeats(self.temperature, "set a temperature, or repeats=1")
        return metric

    def _check_repeats(self, temperature: float, remedy: str) -> None:
        if self.repeats > 1 and temperature == 0:
            same = f"at temperature 0 all {self.repeats} replies are the same"
            raise ConfigError(f"{self.format_key('repeats')}: {same}; {remedy}")

    @property
    def sampling(self) -> ReplySampling:
        return ReplySampling(self.max_tokens, self.temperature, self.seed)

    def request_verdict(self, text: str, scales: Sequence[Scale], check: CheckRatings = accept_all) -> Writing[Verdict]:
        """Ask the judge for one verdict and return it.

        `text` describes the task; instructions for the reply format are appended. `check` may reject the ratings.
        """
        return (yield from self.request_combined_verdict([JudgeQuestion(text, scales)], check))

    def request_combined_verdict(
        self, asked: Sequence[JudgeQuestion], check: CheckRatings = accept_all
    ) -> Writing[Verdict]:
        """Ask the judge several questions together; return one verdict with the ratings of all replies.

        Raise UnreadableReply if a reply does not have the requested format, or if `check` fails.
        """
        requests = []
        for text, scales, view in asked:
            schema = make_verdict_schema(scales) if self.replies == "json" else None
            request = self.sampling.make_request(text + describe_form(self.replies, scales), stop=(), schema=schema)
            requests.append(request._replace(view=view))
        readers = [partial(self._read_verdict, each.scales, check) for each in asked]
        verdicts = []
        for verdict in (yield from ask_each(requests, readers, again=REPEAT_REQUEST)):
            if isinstance(verdict, UnreadableReply):
                raise verdict
            verdicts.append(verdict)
        rationale = " ".join(verdict.rationale for verdict in verdicts if verdict.rationale)
        return Verdict(tuple(rating for verdict in verdicts for rating in verdict.ratings), rationale)

    def _read_verdict(self, scales: Sequence[Scale], check: CheckRatings, reply: str) -> Verdict:
        verdict = read_json_verdict(reply, scales) if self.replies == "json" else read_text_verdict(reply, scales)
        check(map_ratings(verdict.ratings))
        return verdict

    def score(self, evidence: Evidence) -> Scored:
        ratings = read_ratings(evidence.row)
        return Scored(self.score_ratings(ratings), ratings=ratings, rationale=evidence.row["rationale"])

    def score_ratings(self, ratings: Sequence[Rating]) -> float:
        """Return the mean of a verdict's ratings as the image's score."""
        return math.fsum(rating.value for rating in ratings) / len(ratings)

    def list_request_options(self, *templates: str) -> dict[str, Any]:
        """Return a mapping of all options that determine verdicts, with a digest of the named templates."""
        return {
            "replies": self.replies,
            "templates": digest_templates(
                REPEAT_REQUEST, REPLY_INSTRUCTIONS[self.replies], *map(self.get_template_text, templates)
            ),
            **self.sampling._asdict(),
        }


@dataclass(frozen=True, kw_only=True)
class InspectionMetricConfig(JudgeMetricConfig):
    """Base class of metrics whose judge sees the images, with the options that they share."""

    chain: ClassVar[tuple[str, ...]] = ("inspections", "scores")
    role_keys: ClassVar[tuple[str, ...]] = ("judge",)
    calls_per_image: ClassVar[int] = 1
    judge: str = "vlm"
    """Role of the vision-language model that rates images."""

    def estimate_calls(self, words: float) -> CallEstimate:
        return CallEstimate(self.calls_per_image, 1)

    def list_verdict_options(self) -> dict[str, Any]:
        """Return a mapping of all options that determine a verdict, except the judge."""
        release = self._wording.release
        return (
            self.list_request_options(*self.templates)
            if release is None
            else {"wording": release.digest, "seed": self.seed}
        )

    def list_score_options(self) -> dict[str, Any]:
        return {}


def describe_form(replies: ReplyFormat, scales: Sequence[Scale]) -> str:
    """Return the instruction that tells the judge in which format to reply with these ratings."""
    members, lines = [], []
    for scale in scales:
        values = f"{scale.high}" + (f', or "{NOT_APPLICABLE}"' if scale.optional else "")
        members.append(f'"{scale.name}": <integer from {scale.low} to {values}>')
        lines.append(f"the number for {scale.name} ({scale.low} to {values})")
    example = "{" + ", ".join([*members, '"rationale": "<explanation>"']) + "}"
    return REPLY_INSTRUCTIONS[replies].format(form=example, lines=" and ".join(lines))


def make_verdict_schema(scales: Sequence[Scale]) -> str:
    numbers: dict[str, Schema] = {}
    for scale in scales:
        number = make_integer_schema(scale.high, scale.low)
        numbers[scale.name] = {"anyOf": [number, make_choice_schema([NOT_APPLICABLE])]} if scale.optional else number
    return json.dumps(make_object_schema(**numbers, rationale=make_string_schema(MAX_RATIONALE_CHARACTERS)))


def read_json_verdict(reply: str, scales: Sequence[Scale]) -> Verdict:
    """Return the verdict in a reply's first JSON object that has all ratings; raise UnreadableReply if none has.

    An optional rating may be N/A; the verdict then lacks this rating.
    """
    problem = NO_OBJECT_PROBLEM
    for by_key in iterate_objects(reply):
        try:
            read = [_read_rating(scale, by_key.get(parsing.normalise(scale.name))) for scale in scales]
        except UnreadableReply as error:
            problem = str(error)
        except (ValueError, RecursionError):
            continue
        else:
            ratings = tuple(rating for rating in read if rating is not None)
            return Verdict(ratings, read_rationale(by_key.get("rationale")))
    raise UnreadableReply(problem)


def iterate_objects(reply: str) -> Iterator[dict[str, Any]]:
    """Yield each JSON object in a reply, including nested ones, as a dictionary with normalised keys.

    Only the first MAX_TRIED_BRACES opening braces are tried.
    """
    text = parsing.strip_markup(reply)
    # Python reads NaN and Infinity, which are not JSON: int(), like any parser that raises ValueError, refuses them
    decoder = json.JSONDecoder(parse_constant=int)
    for match in list(re.finditer(r"\{", text))[:MAX_TRIED_BRACES]:
        try:
            found, _ = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        yield {parsing.normalise(name): value for name, value in found.items()}


def _read_rating(scale: Scale, value: Any) -> Rating | None:
    """Return a number, or a string such as `85` or `85/100`, as a rating; return None for an N/A that is allowed."""
    if _is_not_applicable(scale, value):
        return None
    if value is None:
        raise UnreadableReply(f"it has no number for {scale.name!r}")
    match = (
        re.fullmatch(_NUMBER_REGEX, parsing.collapse_spaces(str(value)))
        if isinstance(value, str | int | float)
        else None
    )
    if match is None or isinstance(value, bool):
        raise UnreadableReply(f"expected a number for {scale.name!r}, found {parsing.shorten(str(value))}")
    return _make_rating(scale, match)


def _is_not_applicable(scale: Scale, value: Any) -> bool:
    return scale.optional and isinstance(value, str) and parsing.normalise(value) == parsing.normalise(NOT_APPLICABLE)


def _make_rating(scale: Scale, match: re.Match[str]) -> Rating:
    number, total = float(match[1]), match[2]
    if not scale.low <= number <= scale.high or (total is not None and int(total) != scale.high):
        given = f"{number:g} of {total}" if total is not None else f"{number:g}"
        raise UnreadableReply(f"expected {scale.name!r} from {scale.low} to {scale.high}, found {given}")
    return Rating(scale.name, number)


def read_text_verdict(reply: str, scales: Sequence[Scale]) -> Verdict:
    """Return the verdict in a reply with one number per line; raise UnreadableReply if a number is missing.

    The text after the numbers is the judge's explanation.
    """
    lines = parsing.split_lines(reply)
    numbers = dict(zip(scales, lines, strict=False))
    matches = {
        scale: _NUMBER_LINE_PATTERN.fullmatch(line)
        for scale, line in numbers.items()
        if not _is_not_applicable(scale, line.rpartition(": ")[2])
    }
    if len(numbers) < len(scales) or not all(matches.values()):
        raise UnreadableReply(f"expected {len(scales)} lines of one number each, then the explanation")
    ratings = tuple(_make_rating(scale, match) for scale, match in matches.items() if match)
    return Verdict(ratings, read_rationale(" ".join(lines[len(scales) :])))


def read_rationale(rationale: Any) -> str:
    return parsing.collapse_spaces(rationale)[:MAX_RATIONALE_CHARACTERS] if isinstance(rationale, str) else ""


def read_ratings(row: Mapping[str, Any]) -> tuple[Rating, ...]:
    return tuple(Rating(**rating) for rating in row["ratings"])


def fill_template(template: str, **parts: str) -> str:
    """Return the template with each {name} in `parts` replaced by its text, which is inserted literally."""
    return re.sub(r"\{(\w+)\}", lambda match: parts.get(match[1], match[0]), template)


def find_kind(kinds: Mapping[str, T], skills: Sequence[str], chosen: str | None) -> T | None:
    """Return the value in `kinds` of the kind `chosen` or, if it is None, of the only kind that a prompt's skills name.

    The skills' names are compared ignoring case. Return None if they name no kind or several kinds.
    """
    wanted = [skill.casefold() for skill in skills] if chosen is None else [chosen]
    named = [kinds[name] for name in dict.fromkeys(wanted) if name in kinds]
    return named[0] if len(named) == 1 else None
