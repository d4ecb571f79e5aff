"""A reward server tried from outside, ours or another's: order, nulls, sameness, speed, and what it ignores."""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, product
from os import environ
from statistics import fmean, median
from time import perf_counter
from typing import Annotated, Literal, NamedTuple

import httpx

from plumbline.operators.bounds import Checked, Positive, Seconds, Share, at_least
from plumbline.operators.errors import ConfigError, PlumblineError, check_known, without_secrets
from plumbline.operators.rewards.combination import REWARD
from plumbline.operators.wires.known_pictures import PROMPTS, picture_of, questions_about
from plumbline.operators.wires.table import KINDS, WIRES
from plumbline.operators.wires.wire import Answers, BadReply, BadRequest, MetricAnswer, Reply, ScoreRequest, Wire

MAX_REPLY = 16_000_000
"""Bytes of a reply."""
UNKNOWN = "no_such_reward"
NOTHING = "a plain picture has no score"
ALL = "all"
"""In place of a reward's name, of checks that are about none of them."""
Outcome = Literal["ok", "fails", "not told"]
Extra = Literal["frames", "questions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckRewardsConfig(Checked):
    """Which server to try, how it is asked, and what is expected of it."""

    url: str
    """The server's address, to which the wire's path is added; `http://name:password@host:port` is sent as it is."""
    wire: str = "score"
    """How it is asked: a name in operators/wires/table.py, such as score, unirl, flow_factory or pickled."""
    metrics: tuple[str, ...] | None = None
    """The rewards to ask for; null takes all that the server lists. A wire of one number has no names."""
    orders: Mapping[str, Literal[-1, 0, 1]] = field(default_factory=dict)
    """By reward: 1 where higher is better, -1 where lower is, 0 where neither is. Our own servers say it themselves;
    of others it is 1. A wire of one number calls it `reward`."""
    must_use: tuple[Extra, ...] = ()
    """What the server must not ignore: frames, where it scores videos; questions, where requests bring them."""
    questions: bool = False
    """Send a question with every picture, for rewards that have no score without."""
    batch: Annotated[int, at_least(3)] = 16
    """Images of a batch."""
    repeats: Positive = 5
    """How often each latency is measured."""
    tolerance: Share = 0.001
    """How far numbers of the same picture may lie apart, as a share of the range of the known pictures' numbers."""
    timeout: Seconds = 120.0
    """Seconds that a reply may take."""
    token_variable: str = "PLUMBLINE_TOKEN"
    """The environment variable that holds the token, which is sent as a bearer's; without one none is sent."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        check_known("wire", self.wire, KINDS)
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"url: expected http://HOST:PORT or https://..., got {self.url!r}")


class ServerError(PlumblineError):
    """The server cannot be reached, or does not answer as HTTP servers do."""


class Finding(NamedTuple):
    """What a check came to."""

    outcome: Outcome
    seen: str


class Check(NamedTuple):
    """A line of the table."""

    name: str
    reward: str
    finding: Finding


class RewardServer:
    """A server behind an address, asked on one wire."""

    def __init__(self, wire: Wire, url: str, client: httpx.Client) -> None:
        self.wire, self.url, self.client = wire, url.rstrip("/"), client

    def ask(self, asked: Sequence[ScoreRequest]) -> Answers:
        """Raises BadRequest for what the wire has no place for, BadReply or ServerError for what is no answer."""
        size = self.wire.images_per_request or len(asked)
        return [answer for place in range(0, len(asked), size) for answer in self._ask(asked[place : place + size])]

    def _ask(self, asked: Sequence[ScoreRequest]) -> Answers:
        return self.wire.understand(self._send("POST", self.wire.path, self.wire.ask(asked)), asked)

    def roster(self) -> Mapping[str, int]:
        """The rewards that the server lists, with their orders, 1 where it says nothing; raises BadReply."""
        assert self.wire.roster is not None
        reply = self._send("GET", self.wire.roster, b"")
        try:
            page = json.loads(reply.body)
            return {str(name): int(page.get("orders", {}).get(name, 1)) for name in page["rewards"]}
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise BadReply(
                f"{self.wire.roster}: expected a page that lists the rewards, found none (HTTP {reply.status}); name "
                "them: metrics=[NAME]"
            ) from error

    def _send(self, method: str, path: str, body: bytes) -> Reply:
        headers = {"Content-Type": self.wire.media} if body else {}
        try:
            with self.client.stream(method, self.url + path, content=body, headers=headers) as response:
                return Reply(response.status_code, _read(response), response.headers.get("content-type", ""))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = without_secrets(f"{type(error).__name__}: {error}".rstrip(": "))
            raise ServerError(f"{without_secrets(self.url)}{path}: no reply ({reason}); start the server") from error


def _read(response: httpx.Response) -> bytes:
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_REPLY:
            raise ServerError(f"expected a reply of at most {MAX_REPLY} bytes, got more")
    return bytes(body)


@contextmanager
def reach(config: CheckRewardsConfig) -> Iterator[RewardServer]:
    """The server of a configuration, with its token; proxies of the environment are not used."""
    token = environ.get(config.token_variable)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    wire = next(wire for wire in WIRES if wire.name == config.wire)
    with httpx.Client(timeout=config.timeout, headers=headers, trust_env=False) as client:
        yield RewardServer(wire, config.url, client)


class Trial:
    """Known pictures, each time in bytes that no cache knows, and what the server says of them."""

    def __init__(self, server: RewardServer, config: CheckRewardsConfig) -> None:
        self.server, self.config = server, config
        self.orders = self._orders()
        self.names = tuple(self.orders)
        self.ask = server.ask
        self.copies = map(f"{uuid.uuid4().hex}-{{}}".format, count())

    def _orders(self) -> Mapping[str, int]:
        """Of the rewards that are asked for; on a wire that gives rewards higher is better also where scores fall."""
        wire, wanted = self.server.wire, self.config.metrics
        if wire.roster is None:
            listed: Mapping[str, int] = {REWARD: 1}
        else:
            listed = self.server.roster() if wanted is None else {**dict.fromkeys(wanted, 1), **self._told(wanted)}
        turned = {name: abs(order) if wire.gives_rewards else order for name, order in listed.items()}
        return turned | {name: order for name, order in self.config.orders.items() if name in turned}

    def _told(self, names: Sequence[str]) -> Mapping[str, int]:
        """The orders of these rewards, as far as the server says them."""
        try:
            return {name: order for name, order in self.server.roster().items() if name in names}
        except BadReply:
            return {}

    def request(self, prompt: str, *shown: str, metrics: tuple[str, ...] | None = None) -> ScoreRequest:
        """The pictures of some prompts for a prompt."""
        images = tuple(picture_of(one, next(self.copies)) for one in shown)
        questions = questions_about(prompt) if self.config.questions else None
        return ScoreRequest(images, prompt, metrics or self.names, questions=questions)

    @cached_property
    def known(self) -> Answers:
        """Every picture for every prompt, prompt by prompt."""
        return self.ask([self.request(prompt, shown) for prompt, shown in product(PROMPTS, PROMPTS)])

    def reach(self) -> None:
        """Asks once; raises PlumblineError for a server that cannot be asked at all."""
        self.ask([self.request(PROMPTS[0], PROMPTS[0])])

    def same(self, answers: Sequence[Mapping[str, MetricAnswer]]) -> "Findings":
        """Whether answers about one picture are one number."""
        return {name: self._same(name, [answer[name] for answer in answers]) for name in self.names}

    def _same(self, name: str, answers: Sequence[MetricAnswer]) -> Finding:
        scores, known = _scores(answers), _scores([answer[name] for answer in self.known])
        if isinstance(scores, Finding) or isinstance(known, Finding):
            return scores if isinstance(scores, Finding) else Finding("not told", NOTHING)
        apart, extent = max(scores) - min(scores), max(known) - min(known)
        allowed = self.config.tolerance * extent
        seen = f"at most {apart:.2g} apart, where {allowed:.2g} is allowed"
        return Finding("ok" if apart <= allowed else "fails", seen)


Findings = Mapping[str, Finding]


def _scores(answers: Sequence[MetricAnswer]) -> list[float] | Finding:
    """The numbers, or what is wrong where there are none."""
    for answer in answers:
        if answer.score is None:
            reason = f"{answer.error.kind}: {answer.error.message}" if answer.error else "null"
            return Finding("fails", f"{NOTHING} ({reason})")
    return [answer.score for answer in answers if answer.score is not None]


def _order(trial: Trial) -> Findings:
    """For every prompt, the picture that fits before each of the others."""
    return {
        name: _ordered(_scores([answer[name] for answer in trial.known]), trial.orders[name]) for name in trial.names
    }


def _ordered(scores: list[float] | Finding, order: int) -> Finding:
    if isinstance(scores, Finding):
        return scores
    if not order:
        return Finding("not told", "neither a higher nor a lower number is better")
    of_prompts = [scores[place : place + len(PROMPTS)] for place in range(0, len(scores), len(PROMPTS))]
    fits = [of_prompt.pop(place) for place, of_prompt in enumerate(of_prompts)]
    right = sum(
        all(order * (fit - other) > 0 for other in others) for fit, others in zip(fits, of_prompts, strict=True)
    )
    means = f"mean {fmean(fits):.4g}, of the others {fmean(other for others in of_prompts for other in others):.4g}"
    seen = f"the picture that fits is first for {right} of {len(fits)} prompts; {means}"
    return Finding("ok" if right == len(fits) else "fails", seen)


def _nulls(trial: Trial) -> Findings:
    """Broken images, alone and beside a good one."""
    plain = trial.request(PROMPTS[0], PROMPTS[0])
    broken = {"half a PNG": plain.images[0][: len(plain.images[0]) // 2], "text": b"no image", "no bytes": b""}
    answers: dict[str, Mapping[str, MetricAnswer]] = {}
    for what, image in broken.items():
        request = plain._replace(images=(image,))
        (answers[what],) = trial.ask([request])
        _, answers[f"{what} beside a good image"] = trial.ask([trial.request(PROMPTS[0], PROMPTS[0]), request])
    (whole,) = trial.ask([plain])
    return {name: _null(whole[name], {what: answer[name] for what, answer in answers.items()}) for name in trial.names}


def _null(whole: MetricAnswer, answers: Mapping[str, MetricAnswer]) -> Finding:
    numbers = [f"{what} got {answer.score:g}" for what, answer in answers.items() if answer.score is not None]
    if whole.score is None:
        return Finding("not told", NOTHING)
    return (
        Finding("fails", "; ".join(numbers))
        if numbers
        else Finding("ok", f"no number for {len(answers)} broken images")
    )


def _repeats(trial: Trial) -> Findings:
    return trial.same([trial.ask([trial.request(PROMPTS[0], PROMPTS[0])])[0] for _ in range(3)])


def _batches(trial: Trial) -> Findings:
    """A picture alone, and first and last in a batch of others."""
    same = [trial.request(PROMPTS[0], PROMPTS[0]) for _ in range(3)]
    others = [trial.request(PROMPTS[place % 3], PROMPTS[place // 3 % 3]) for place in range(trial.config.batch - 2)]
    batch = trial.ask([same[1], *others, same[2]])
    return trial.same([*trial.ask(same[:1]), batch[0], batch[-1]])


def _latency(trial: Trial) -> Findings:
    """Medians; the first requests were those of other checks."""
    sizes = (1, trial.config.batch)
    if isinstance(_scores([answer for of_image in trial.known for answer in of_image.values()]), Finding):
        return {ALL: Finding("not told", NOTHING)}
    alone, together = (median(_seconds(trial, size) for _ in range(trial.config.repeats)) for size in sizes)
    seen = f"p50 {1000 * alone:.0f} ms for one image, {1000 * together:.0f} ms for {sizes[1]}"
    return {ALL: Finding("ok", f"{seen} ({1000 * together / sizes[1]:.1f} ms an image)")}


def _seconds(trial: Trial, size: int) -> float:
    asked = [trial.request(PROMPTS[place % 3], PROMPTS[place // 3 % 3]) for place in range(size)]
    begun = perf_counter()
    trial.ask(asked)
    return perf_counter() - begun


def _unknown(trial: Trial) -> Findings:
    """A reward that no server has."""
    if trial.server.wire.roster is None:
        return {ALL: Finding("not told", "requests of this wire name no reward")}
    (answer,) = trial.ask([trial.request(PROMPTS[0], PROMPTS[0], metrics=(UNKNOWN,))])
    number = answer[UNKNOWN].score
    return {ALL: Finding("ok", "refused") if number is None else Finding("fails", f"{UNKNOWN} got {number:g}")}


def _frames(trial: Trial) -> Findings:
    """A video's second frame, which fits or does not."""
    prompt, other = PROMPTS[:2]
    return _taken_up(trial, "frames", *(trial.request(prompt, prompt, second) for second in (prompt, other)))


def _questions(trial: Trial) -> Findings:
    """A question that came with the picture, whose answer is Yes or is not."""
    request = trial.request(PROMPTS[0], PROMPTS[0])
    return _taken_up(
        trial, "questions", *(request._replace(questions=questions_about(prompt)) for prompt in PROMPTS[:2])
    )


def _taken_up(trial: Trial, extra: Extra, fits: ScoreRequest, differs: ScoreRequest) -> Findings:
    """Whether numbers of two requests differ that differ in something which a server may ignore."""
    try:
        (first,), (second,) = trial.ask([fits]), trial.ask([differs])
    except BadRequest as error:
        return {ALL: Finding("not told", str(error))}
    return {name: _used(first[name], second[name], extra in trial.config.must_use) for name in trial.names}


def _used(fits: MetricAnswer, differs: MetricAnswer, needed: bool) -> Finding:
    if fits.score is None or differs.score is None:
        return Finding("fails" if needed else "ok", "refused")
    if fits.score != differs.score:
        return Finding("ok", f"used: {fits.score:.4g} becomes {differs.score:.4g} with one that does not fit")
    return Finding("fails" if needed else "ok", f"ignored: {fits.score:.4g} also with one that does not fit")


CHECKS: Mapping[str, Callable[[Trial], Findings]] = {
    "order": _order,
    "nulls": _nulls,
    "same again": _repeats,
    "same in a batch": _batches,
    "latency": _latency,
    "unknown reward": _unknown,
    "second frame": _frames,
    "questions": _questions,
}


def check_rewards(config: CheckRewardsConfig) -> list[Check]:
    """The lines of all checks; raises PlumblineError where the server does not answer at all."""
    with reach(config) as server:
        trial = Trial(server, config)
        trial.reach()
        return [
            Check(name, _printable(reward), finding._replace(seen=_printable(finding.seen)))
            for name in CHECKS
            for reward, finding in _found(name, trial).items()
        ]


def _printable(text: str) -> str:
    """A server's words without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _found(name: str, trial: Trial) -> Findings:
    try:
        return CHECKS[name](trial)
    except PlumblineError as error:
        return {ALL: Finding("fails", without_secrets(str(error)))}
