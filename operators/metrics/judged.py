"""What the metrics share that a model judges: how verdicts are asked for, and tolerant readers of them."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from plumbline.operators.base.bounds import NotNegative, Positive
from plumbline.operators.base.errors import ConfigError, RowError
from plumbline.operators.metrics import parsing
from plumbline.operators.metrics.answered import Rating
from plumbline.operators.metrics.reply_forms import Replies, Schema, integer, one_of, record, string
from plumbline.operators.metrics.worded import Worded
from plumbline.operators.metrics.writer import digest
from plumbline.operators.metrics.writing import ReplySampling, UnreadableReply, Writing, ask, read_each
from plumbline.operators.models.calls import Request

if TYPE_CHECKING:
    from plumbline.operators.models.vqa_profiles import VqaProfile

T = TypeVar("T")
AGAIN = "That reply could not be read: {error}. Write the whole reply again, in exactly the form that was asked for."
FORMS: Mapping[Replies, str] = {
    "json": "Reply with one JSON object and nothing else: {form}\n",
    "text": "Reply in plain text: first {lines}, each on a line of its own; then the explanation, as one paragraph.\n",
}
LONGEST_RATIONALE = 1500
"""Characters that are kept of one."""
MOST_OBJECTS = 20
"""Braces of a reply at which an object may begin."""
_NUMBER = r"(-?\d+(?:\.\d+)?)(?: ?(?:/|out of) ?(\d+))?"
_NUMBER_LINE = re.compile(rf"(?:\W*[A-Za-z][\w -]{{0,40}}[:=] ?)?\W*{_NUMBER}\W*")
NOT_APPLICABLE = "N/A"


class Scale(NamedTuple):
    """A number that a judge is asked for."""

    name: str
    """What it rates: a key of the reply, and of the verdict's ratings."""
    low: int
    high: int
    optional: bool = False
    """Whether a judge may say N/A in its place, and the verdict then lacks it."""


class Asked(NamedTuple):
    """One question to a judge."""

    text: str
    scales: Sequence[Scale]
    view: int = 0
    """The place, among the metric's views, of what it is about."""


class Verdict(NamedTuple):
    """What a judge says of one image."""

    ratings: tuple[Rating, ...]
    rationale: str


Verdicts = tuple[Verdict | None, ...]
"""Of one image, a verdict each time that the judge is asked; None where the reply cannot be read."""


def ask_repeatedly(program: Callable[[], Writing[Verdict | RowError]], times: int) -> Writing[Verdicts | RowError]:
    """The program so many times, each time with the next seed; None for what cannot be read.

    Raises UnreadableReply where that is all. A request that has no reply at all ends it, as it does one program.
    """
    verdicts: list[Verdict | None] = []
    problems = []
    for draw in range(times):
        try:
            verdict = yield from _reseeded(program(), draw)
        except UnreadableReply as error:
            verdict = None
            problems.append(error)
        if isinstance(verdict, RowError):
            return verdict
        verdicts.append(verdict)
    if len(problems) == times:
        raise problems[0]
    return tuple(verdicts)


def _reseeded(program: Writing[T], draw: int) -> Writing[T]:
    """The program with all seeds so much higher."""
    try:
        requests = next(program)
        while True:
            replies = yield [request._replace(seed=request.seed + draw) for request in requests]
            requests = program.send(replies)
    except StopIteration as end:
        result: T = end.value
        return result


Check = Callable[[Mapping[str, float]], None]
"""Raises UnreadableReply where ratings, by name, contradict each other."""


def accept(rated: Mapping[str, float]) -> None:
    """No ratings contradict each other."""


def values(ratings: Iterable[Rating]) -> dict[str, float]:
    """Ratings by name."""
    return {rating.name: rating.value for rating in ratings}


@dataclass(frozen=True, kw_only=True)  # no slots, so that a metric may have another base with fields of its own
class JudgedConfig(Worded):
    """How a judge's replies are drawn, and in which form."""

    replies: Replies = "json"
    """The form of a verdict: `json` is an object, held to a schema where the engine can; `text` has a number a line and
    then the reasons."""
    max_tokens: Positive = 512
    """Tokens after which a verdict is cut."""
    temperature: NotNegative = 0.0
    """0 takes the likeliest token each time."""
    seed: int = 0
    """Of draws at a temperature above 0."""
    repeats: Positive = 1
    """How often the judge is asked about an image, each time with the next seed; the score is the mean. What it says
    each time tells its own noise, for which a temperature above 0 is needed."""

    def __post_init__(self) -> None:
        Worded.__post_init__(self)
        if self.wording is None:
            self._require_draws(self.temperature, "set a temperature, or repeats=1")

    def settled(self, profile_of: "Callable[[str], VqaProfile]") -> Self:
        """As Worded; raises ConfigError too where a judge who is asked several times would say the same each time."""
        settled = Worded.settled(self, profile_of)
        release = settled._wording.release
        if release is not None and "temperature" in release.decides:
            settled._require_draws(release.temperature, f"that is {release.repository}'s own; set repeats=1")
        else:
            settled._require_draws(self.temperature, "set a temperature, or repeats=1")
        return settled

    def _require_draws(self, temperature: float, remedy: str) -> None:
        if self.repeats > 1 and temperature == 0:
            same = f"at temperature 0 all {self.repeats} replies are the same"
            raise ConfigError(f"{self.key_of('repeats')}: {same}; {remedy}")

    @property
    def sampling(self) -> ReplySampling:
        """How verdicts are drawn."""
        return ReplySampling(self.max_tokens, self.temperature, self.seed)

    def verdict(self, text: str, scales: Sequence[Scale], check: Check = accept) -> Writing[Verdict]:
        """The program of one verdict: `text` says what is to be judged, the form is put below it."""
        return (yield from ask(self.verdict_request(text, scales), self.verdict_reader(scales, check), again=AGAIN))

    def verdicts(self, asked: Sequence[Asked], check: Check = accept) -> Writing[Verdict]:
        """The program of one verdict of several replies, to questions that are asked side by side."""
        requests = [self.verdict_request(one.text, one.scales)._replace(view=one.view) for one in asked]
        read = yield from read_each(requests, [self.verdict_reader(one.scales, check) for one in asked], again=AGAIN)
        for verdict in read:
            if isinstance(verdict, UnreadableReply):
                raise verdict
        replies = [verdict for verdict in read if isinstance(verdict, Verdict)]
        rationale = " ".join(verdict.rationale for verdict in replies if verdict.rationale)
        return Verdict(tuple(rating for verdict in replies for rating in verdict.ratings), rationale)

    def verdict_request(self, text: str, scales: Sequence[Scale]) -> Request:
        """What a verdict is asked for with."""
        schema = schema_of(scales) if self.replies == "json" else None
        return self.sampling.request(text + form_text(self.replies, scales), stop=(), schema=schema)

    def verdict_reader(self, scales: Sequence[Scale], check: Check = accept) -> Callable[[str], Verdict]:
        """What reads a reply, and raises UnreadableReply where it has not the form or the `check` refuses it."""
        read = read_object if self.replies == "json" else read_lines

        def read_checked(reply: str) -> Verdict:
            verdict = read(reply, scales)
            check(values(verdict.ratings))
            return verdict

        return read_checked

    def asking(self, *templates: str) -> dict[str, Any]:
        """All that decides verdicts by the templates of these names."""
        return {
            "replies": self.replies,
            "templates": digest(AGAIN, FORMS[self.replies], *map(self.template_text, templates)),
            **self.sampling._asdict(),
        }


@dataclass(frozen=True, kw_only=True)
class InspectedConfig(JudgedConfig):
    """A judge that looks at the images, and whose ratings are the score in one way."""

    chain: ClassVar[tuple[str, ...]] = ("inspections", "scores")
    role_keys: ClassVar[tuple[str, ...]] = ("judge",)
    judge: str = "vlm"
    """The role, among the sweep's models, of the vision-language model that rates images."""

    def scoring(self) -> dict[str, Any]:
        return {}


def form_text(replies: Replies, scales: Sequence[Scale]) -> str:
    """The form in words."""
    members = [f'"{scale.name}": <integer from {scale.low} to {scale.high}{_or_nothing(scale)}>' for scale in scales]
    shown = "{" + ", ".join([*members, '"rationale": "<explanation>"']) + "}"
    told = (f"the number for {scale.name} ({scale.low} to {scale.high}{_or_nothing(scale)})" for scale in scales)
    return FORMS[replies].format(form=shown, lines=" and ".join(told))


def _or_nothing(scale: Scale) -> str:
    return f', or "{NOT_APPLICABLE}"' if scale.optional else ""


def schema_of(scales: Sequence[Scale]) -> str:
    """The JSON schema of a verdict, as text."""
    numbers = {scale.name: _number_schema(scale) for scale in scales}
    return json.dumps(record(**numbers, rationale=string(LONGEST_RATIONALE)))


def _number_schema(scale: Scale) -> Schema:
    number = integer(scale.high, scale.low)
    return {"anyOf": [number, one_of([NOT_APPLICABLE])]} if scale.optional else number


def read_object(reply: str, scales: Sequence[Scale]) -> Verdict:
    """The first object of the reply that has all the numbers; raises UnreadableReply where there is none."""
    problem = "expected a JSON object, found none"
    for found in _objects(parsing.plain(reply)):
        by_key = {parsing.key(name): value for name, value in found.items()}
        try:
            read = [_rating(scale, by_key.get(parsing.key(scale.name))) for scale in scales]
        except UnreadableReply as error:
            problem = str(error)
            continue
        return Verdict(_given(read), _kept(by_key.get("rationale")))
    raise UnreadableReply(problem)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects that stand in the text."""
    decoder = json.JSONDecoder(parse_constant=_refuse)
    for match in list(re.finditer(r"\{", text))[:MOST_OBJECTS]:
        try:
            found, _ = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            continue
        yield found


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number of JSON")


def _given(read: Iterable[Rating | None]) -> tuple[Rating, ...]:
    """The ratings without those that do not apply."""
    return tuple(rating for rating in read if rating is not None)


def _rating(scale: Scale, value: Any) -> Rating | None:
    """A number, or a text that is one (`85`, `85/100`), on its scale; None for one that may not apply, and does not."""
    if _does_not_apply(scale, value):
        return None
    if value is None:
        raise UnreadableReply(f"it has no number for {scale.name!r}")
    match = re.fullmatch(_NUMBER, parsing.one_line(str(value))) if isinstance(value, str | int | float) else None
    if match is None or isinstance(value, bool):
        raise UnreadableReply(f"expected a number for {scale.name!r}, found {parsing.shown(str(value))}")
    return _on_scale(scale, match)


def _does_not_apply(scale: Scale, value: Any) -> bool:
    return scale.optional and isinstance(value, str) and parsing.key(value) == parsing.key(NOT_APPLICABLE)


def _on_scale(scale: Scale, match: re.Match[str]) -> Rating:
    number, of = float(match[1]), match[2]
    if not scale.low <= number <= scale.high or (of is not None and int(of) != scale.high):
        given = f"{number:g} of {of}" if of is not None else f"{number:g}"
        raise UnreadableReply(f"expected {scale.name!r} from {scale.low} to {scale.high}, found {given}")
    return Rating(scale.name, number)


def read_lines(reply: str, scales: Sequence[Scale]) -> Verdict:
    """A number a line, in the order asked for, then the reasons; raises UnreadableReply where a number is missing."""
    said = parsing.lines(reply)
    given = dict(zip(scales, said, strict=False))
    absent = [scale for scale, line in given.items() if _does_not_apply(scale, line.rpartition(": ")[2])]
    matches = {scale: _NUMBER_LINE.fullmatch(line) for scale, line in given.items() if scale not in absent}
    if len(given) < len(scales) or not all(matches.values()):
        raise UnreadableReply(f"expected {len(scales)} lines of one number each, then the explanation")
    ratings = tuple(_on_scale(scale, match) for scale, match in matches.items() if match)
    return Verdict(ratings, _kept(" ".join(said[len(scales) :])))


def _kept(rationale: Any) -> str:
    return parsing.one_line(rationale)[:LONGEST_RATIONALE] if isinstance(rationale, str) else ""


def ratings_of(row: Mapping[str, Any]) -> tuple[Rating, ...]:
    """The ratings of a verdict's row."""
    return tuple(Rating(**rating) for rating in row["ratings"])


def fill(template: str, **parts: str) -> str:
    """The template with each {name} of the parts as that part, which is taken literally."""
    return re.sub(r"\{(\w+)\}", lambda match: parts.get(match[1], match[0]), template)


def named_kind(kinds: Mapping[str, T], skills: Sequence[str], chosen: str | None) -> T | None:
    """The kind that is chosen, or else the only one that is among a prompt's skills; None where there is none."""
    wanted = [skill.casefold() for skill in skills] if chosen is None else [chosen]
    named = [kinds[name] for name in dict.fromkeys(wanted) if name in kinds]
    return named[0] if len(named) == 1 else None
