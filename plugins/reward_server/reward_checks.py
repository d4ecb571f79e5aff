"""A reward server tried from outside, ours or another's: order, nulls, sameness, speed, and what it ignores."""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, cycle, islice, product
from os import environ
from statistics import fmean, median
from time import perf_counter
from typing import Annotated, Literal, NamedTuple, get_args

import httpx

from plumbline.operators.base.bounds import BoundsChecked, Positive, Seconds, Share, at_least
from plumbline.operators.base.errors import ConfigError, PlumblineError, check_known, hide_secrets
from plumbline.operators.rewards.combination import REWARD
from plumbline.plugins.reward_server.known_pictures import known_prompts, known_request, picture_of, questions_about
from plumbline.plugins.reward_server.wires.table import KINDS, WIRES
from plumbline.plugins.reward_server.wires.wire import (
    Answers,
    BadReply,
    BadRequest,
    MetricAnswer,
    Need,
    Reply,
    ScoreRequest,
    Wire,
)

MAX_REPLY = 16_000_000
"""Bytes of a reply."""
UNKNOWN = "no_such_reward"
NOTHING = "a plain picture has no score"
ALL = "all"
"""In place of a reward's name, of checks that are about none of them."""
Outcome = Literal["ok", "fails", "not told"]
NEEDS: tuple[Need, ...] = get_args(Need)
Extra = Literal["frames", "sources", "questions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckRewardsConfig(BoundsChecked):
    """Which server to try, how it is asked, and what is expected of it."""

    url: str
    """The server's address, to which the wire's path is added; `http://name:password@host:port` is sent as it is."""
    wire: str = "score"
    """How it is asked: score, unirl, flow_factory, openai_chat or pickled."""
    metrics: tuple[str, ...] | None = None
    """The rewards to ask for; null takes all that the server lists. A wire of one number has no names."""
    orders: Mapping[str, Literal[-1, 0, 1]] = field(default_factory=dict)
    """By reward: 1 where higher is better, -1 where lower is, 0 where neither is. Our own servers say it themselves;
    of others it is 1. A wire of one number calls it `reward`."""
    must_use: tuple[Extra, ...] = ()
    """What the server must not ignore: frames, where it scores videos; sources, where it scores edits; questions, where
    requests bring them."""
    needs: tuple[Need, ...] = ()
    """What to send with every picture, for rewards that have no score without: sources, as of edits; questions; or
    words, quoted by the prompt. Our own servers say it themselves, where the wire lists rewards."""
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
        BoundsChecked.__post_init__(self)
        check_known("wire", self.wire, KINDS)
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"url: expected http://HOST:PORT or https://..., got {self.url!r}")


class ServerError(PlumblineError):
    """The server cannot be reached, or does not answer as HTTP servers do."""


class Listed(NamedTuple):
    """What is known of a reward."""

    order: int = 1
    """1 where a higher number is better, -1 where a lower one is, 0 where neither is."""
    needs: tuple[Need, ...] = ()


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

    def roster(self) -> Mapping[str, Listed]:
        """The rewards that the server lists, with what it says of them; raises BadReply."""
        assert self.wire.roster is not None
        reply = self._send("GET", self.wire.roster, b"")
        try:
            page = json.loads(reply.body)
            orders, needs = page.get("orders", {}), page.get("needs", {})
            return {
                str(name): Listed(
                    int(orders.get(name, 1)), tuple(need for need in NEEDS if need in needs.get(name, ()))
                )
                for name in page["rewards"]
            }
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
            reason = hide_secrets(f"{type(error).__name__}: {error}".rstrip(": "))
            raise ServerError(f"{hide_secrets(self.url)}{path}: no reply ({reason}); start the server") from error


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


def _listed(server: RewardServer, config: CheckRewardsConfig) -> Mapping[str, Listed]:
    """The rewards to ask for; on a wire that gives rewards higher is better also where scores fall."""
    wire, wanted = server.wire, config.metrics
    if wire.roster is None:
        listed: Mapping[str, Listed] = {REWARD: Listed()}
    else:
        listed = server.roster() if wanted is None else {**dict.fromkeys(wanted, Listed()), **_told(server, wanted)}
    return {name: _expected(name, of_reward, wire, config) for name, of_reward in listed.items()}


def _told(server: RewardServer, names: Sequence[str]) -> Mapping[str, Listed]:
    """What the server says of these rewards, as far as it lists any."""
    try:
        return {name: listed for name, listed in server.roster().items() if name in names}
    except BadReply:
        return {}


def _expected(name: str, listed: Listed, wire: Wire, config: CheckRewardsConfig) -> Listed:
    order = abs(listed.order) if wire.gives_rewards else listed.order
    needs = tuple(need for need in NEEDS if need in (*listed.needs, *config.needs))
    return Listed(config.orders.get(name, order), needs)


class Trial:
    """Known pictures for rewards with the same needs, each time in bytes that no cache knows, and what the server says
    of them.
    """

    def __init__(
        self, server: RewardServer, config: CheckRewardsConfig, orders: Mapping[str, int], needs: Sequence[Need]
    ) -> None:
        self.server, self.config, self.orders, self.needs = server, config, orders, needs
        self.names, self.prompts = tuple(orders), known_prompts(needs)
        self.ask = server.ask
        self.copies = map(f"{uuid.uuid4().hex}-{{}}".format, count())

    def request(self, prompt: str, *shown: str) -> ScoreRequest:
        """The pictures of some prompts for a prompt."""
        return known_request(prompt, shown, self.names, self.needs, next(self.copies))

    def fitting(self) -> ScoreRequest:
        """The first prompt's own picture."""
        return self.request(self.prompts[0], self.prompts[0])

    def any_of(self, number: int) -> list[ScoreRequest]:
        """So many pictures, which fit or not."""
        pairs = cycle(product(self.prompts, self.prompts))
        return [self.request(prompt, shown) for prompt, shown in islice(pairs, number)]

    @cached_property
    def known(self) -> Answers:
        """Every picture for every prompt, prompt by prompt."""
        return self.ask(self.any_of(len(self.prompts) ** 2))

    def reach(self) -> None:
        """Asks once; raises PlumblineError for a server that cannot be asked at all."""
        self.ask([self.fitting()])

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
    prompts = len(trial.prompts)
    return {
        name: _ordered(_scores([answer[name] for answer in trial.known]), order, prompts)
        for name, order in trial.orders.items()
    }


def _ordered(scores: list[float] | Finding, order: int, prompts: int) -> Finding:
    if isinstance(scores, Finding):
        return scores
    if not order:
        return Finding("not told", "neither a higher nor a lower number is better")
    of_prompts = [scores[place : place + prompts] for place in range(0, len(scores), prompts)]
    fits = [of_prompt.pop(place) for place, of_prompt in enumerate(of_prompts)]
    right = sum(
        all(order * (fit - other) > 0 for other in others) for fit, others in zip(fits, of_prompts, strict=True)
    )
    means = f"mean {fmean(fits):.4g}, of the others {fmean(other for others in of_prompts for other in others):.4g}"
    seen = f"the picture that fits is first for {right} of {len(fits)} prompts; {means}"
    return Finding("ok" if right == len(fits) else "fails", seen)


def _nulls(trial: Trial) -> Findings:
    """Broken images and sources, alone and beside a good one."""
    plain = trial.fitting()
    broken = {"half a PNG": plain.images[0][: len(plain.images[0]) // 2], "text": b"no image", "no bytes": b""}
    requests = {what: plain._replace(images=(image,)) for what, image in broken.items()}
    if plain.sources:
        requests |= {f"{what} as source": plain._replace(sources=(image,)) for what, image in broken.items()}
    answers: dict[str, Mapping[str, MetricAnswer]] = {}
    for what, request in requests.items():
        (answers[what],) = trial.ask([request])
        _, answers[f"{what} beside a good image"] = trial.ask([trial.fitting(), request])
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
    return trial.same([trial.ask([trial.fitting()])[0] for _ in range(3)])


def _batches(trial: Trial) -> Findings:
    """A picture alone, and first and last in a batch of others."""
    same = [trial.fitting() for _ in range(3)]
    batch = trial.ask([same[1], *trial.any_of(trial.config.batch - 2), same[2]])
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
    asked = trial.any_of(size)
    begun = perf_counter()
    trial.ask(asked)
    return perf_counter() - begun


def _unknown(trial: Trial) -> Findings:
    """A reward that no server has."""
    if trial.server.wire.roster is None:
        return {ALL: Finding("not told", "requests of this wire name no reward")}
    (answer,) = trial.ask([trial.fitting()._replace(metrics=(UNKNOWN,))])
    number = answer[UNKNOWN].score
    return {ALL: Finding("ok", "refused") if number is None else Finding("fails", f"{UNKNOWN} got {number:g}")}


def _frames(trial: Trial) -> Findings:
    """A video's second frame, which fits or does not."""
    prompt, other = trial.prompts[:2]
    return _taken_up(trial, "frames", *(trial.request(prompt, prompt, second) for second in (prompt, other)))


def _sources(trial: Trial) -> Findings:
    """A source, which the image was edited from or is the same as."""
    request, prompts = trial.fitting(), trial.prompts
    sources = [(picture_of(prompt, next(trial.copies)),) for prompt in (prompts[-1], prompts[0])]
    return _taken_up(trial, "sources", *(request._replace(sources=source) for source in sources))


def _questions(trial: Trial) -> Findings:
    """A question that came with the picture, whose answer is Yes or is not."""
    request = trial.fitting()
    return _taken_up(
        trial, "questions", *(request._replace(questions=questions_about(prompt)) for prompt in trial.prompts[:2])
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
    "source": _sources,
    "questions": _questions,
}


def check_rewards(config: CheckRewardsConfig) -> list[Check]:
    """The lines of all checks; raises PlumblineError where the server does not answer at all."""
    with reach(config) as server:
        trials = _trials(server, config)
        several = len(trials) > 1
        trials[0].reach()
        return [
            Check(name, _printable(", ".join(trial.names) if several and reward == ALL else reward), finding)
            for name in CHECKS
            for trial in trials
            for reward, finding in _found(name, trial).items()
        ]


def _trials(server: RewardServer, config: CheckRewardsConfig) -> list[Trial]:
    """Rewards with the same needs together."""
    groups: dict[tuple[Need, ...], dict[str, int]] = {}
    for name, listed in _listed(server, config).items():
        groups.setdefault(listed.needs, {})[name] = listed.order
    return [Trial(server, config, orders, needs) for needs, orders in groups.items()] or [Trial(server, config, {}, ())]


def _printable(text: str) -> str:
    """A server's words without what a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _found(name: str, trial: Trial) -> Findings:
    try:
        findings = CHECKS[name](trial)
    except PlumblineError as error:
        findings = {ALL: Finding("fails", hide_secrets(str(error)))}
    return {reward: finding._replace(seen=_printable(finding.seen)) for reward, finding in findings.items()}
