"""Checks a reward server over HTTP: scores must be correct and repeatable, arrive quickly, and depend on all inputs."""

import json
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count, cycle, islice, product
from os import environ
from statistics import fmean, median
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, get_args

from plumbline.operators.base.bounds import BoundsChecked, Positive, Seconds, Share, at_least
from plumbline.operators.base.errors import ConfigError, PlumblineError, check_known, hide_secrets
from plumbline.operators.rewards.combination import REWARD_NAME
from plumbline.plugins.reward_server.known_images import draw_image, make_questions, make_request, select_prompts
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

if TYPE_CHECKING:
    import httpx

MAX_REPLY_BYTES = 16_000_000
UNKNOWN_REWARD = "no_such_reward"
NO_SCORE_MESSAGE = "a valid image has no score"
ALL_REWARDS = "all"
"""Name used instead of a reward's name in findings about the whole server."""
Outcome = Literal["ok", "fails", "unknown"]
NEEDS_IN_ORDER: tuple[Need, ...] = get_args(Need)
ExtraInput = Literal["frames", "sources", "questions"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckRewardsConfig(BoundsChecked):
    """The server to check, the wire to use and the expected results."""

    url: str
    """Address of the server without the wire's path; it may contain a password: http://name:password@host."""
    wire: str = "score"
    """Wire to use: score, unirl, flow_factory, openai_chat, pickled or edit_r1."""
    metrics: tuple[str, ...] | None = None
    """Rewards to check; null checks all that the server lists. Not used on wires with one number per image."""
    orders: Mapping[str, Literal[-1, 0, 1]] = field(default_factory=dict)
    """Order of each reward: 1 if higher is better, -1 if lower is better, 0 if neither is. Our own servers list the
    orders; for other servers the default is 1. On wires with one number per image, the reward is called `reward`.
    """
    must_use: tuple[ExtraInput, ...] = ()
    """Inputs that the server must not ignore: frames if it scores videos, sources if it scores edits, questions if
    requests contain them.
    """
    needs: tuple[Need, ...] = ()
    """Inputs to send with every image: sources of edits, questions, prompts with quoted words, or another image of the
    prompt (group). Our own servers list these on wires that list rewards.
    """
    batch: Annotated[int, at_least(3)] = 16
    """Number of images in a batch."""
    repeats: Positive = 5
    """Number of measurements for each latency."""
    tolerance: Share = 0.001
    """Maximum difference between scores of the same image, as a fraction of the range of scores over the test images.
    """
    timeout: Seconds = 120.0
    """Seconds allowed for a reply from the server."""
    token_variable: str = "PLUMBLINE_TOKEN"
    """Environment variable that contains the bearer token; if it is not set, no token is sent."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        check_known("wire", self.wire, KINDS)
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"url: expected an address with http:// or https://, got {self.url!r}; set url=http://HOST:PORT"
            )


class ServerError(PlumblineError):
    """Raised if the server cannot be reached or does not speak HTTP."""


class RewardInfo(NamedTuple):
    """A reward's direction (whether higher is better) and the inputs that it needs."""

    order: int = 1
    """1 if higher is better, -1 if lower is better, 0 if neither is."""
    needs: tuple[Need, ...] = ()


class Finding(NamedTuple):
    """Outcome of a check, and the numbers that explain it."""

    outcome: Outcome
    details: str


class Check(NamedTuple):
    """One row of the printed table: a check, the reward that it is about, and its finding."""

    name: str
    reward: str
    finding: Finding


class RewardServer:
    """Client for one server and wire."""

    def __init__(self, wire: Wire, url: str, client: "httpx.Client") -> None:
        self.wire, self.url, self.client = wire, url.rstrip("/"), client

    def ask(self, requests: Sequence[ScoreRequest]) -> Answers:
        """Send requests and return the answers.

        Raises BadRequest if the wire cannot carry an input, BadReply if a reply is malformed, and ServerError if there
        is no reply.
        """
        size = self.wire.images_per_request or len(requests)
        answers: list[Mapping[str, MetricAnswer]] = []
        for start in range(0, len(requests), size):
            batch = requests[start : start + size]
            answers += self.wire.read_reply(self._send("POST", self.wire.path, self.wire.ask(batch)), batch)
        return answers

    def list_rewards(self) -> Mapping[str, RewardInfo]:
        """Return the rewards that the server lists, by name; raise BadReply if the reply has no list of rewards."""
        assert self.wire.rewards_page is not None
        reply = self._send("GET", self.wire.rewards_page, b"")
        try:
            page = json.loads(reply.body)
            orders, needs = page.get("orders", {}), page.get("needs", {})
            return {
                str(name): RewardInfo(int(orders.get(name, 1)), _sort_needs(needs.get(name, ())))
                for name in page["rewards"]
            }
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise BadReply(
                f"{self.wire.rewards_page}: expected a list of rewards, found none (HTTP {reply.status}); name them: "
                "metrics=[NAME]"
            ) from error

    def _send(self, method: str, path: str, body: bytes) -> Reply:
        import httpx  # part of the extra `api`, which the command has checked

        headers = {"Content-Type": self.wire.media} if body else {}
        try:
            with self.client.stream(method, self.url + path, content=body, headers=headers) as response:
                return Reply(response.status_code, _read_body(response), response.headers.get("content-type", ""))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = hide_secrets(f"{type(error).__name__}: {error}".rstrip(": "))
            raise ServerError(f"{hide_secrets(self.url)}{path}: no reply ({reason}); start the server") from error


def _read_body(response: "httpx.Response") -> bytes:
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_REPLY_BYTES:
            raise ServerError(
                f"expected a reply of at most {MAX_REPLY_BYTES} bytes, got more; check the address of the service"
            )
    return bytes(body)


@contextmanager
def connect(config: CheckRewardsConfig) -> Iterator[RewardServer]:
    """Yield a client for the configured server, ignoring proxies from the environment."""
    import httpx

    token = environ.get(config.token_variable)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    wire = next(wire for wire in WIRES if wire.name == config.wire)
    with httpx.Client(timeout=config.timeout, headers=headers, trust_env=False) as client:
        yield RewardServer(wire, config.url, client)


def _sort_needs(needs: Collection[str]) -> tuple[Need, ...]:
    return tuple(need for need in NEEDS_IN_ORDER if need in needs)


def _find_rewards(server: RewardServer, config: CheckRewardsConfig) -> Mapping[str, RewardInfo]:
    """Return the rewards to check, by name.

    Directions in the configuration replace the server's; inputs in the configuration are added to the server's.
    """
    wire, rewards = server.wire, dict.fromkeys(config.metrics or (), RewardInfo())
    if wire.rewards_page is None:
        rewards = {REWARD_NAME: RewardInfo()}
    elif config.metrics is None:
        rewards = dict(server.list_rewards())
    else:
        with suppress(BadReply):
            rewards |= {name: info for name, info in server.list_rewards().items() if name in rewards}
    return {
        name: RewardInfo(
            config.orders.get(name, abs(info.order) if wire.gives_rewards else info.order),
            _sort_needs((*info.needs, *config.needs)),
        )
        for name, info in rewards.items()
    }


class Trial:
    """Requests with test images for rewards that need the same inputs, and the server's answers.

    The images have new bytes in each request, so that the server cannot answer from a cache.
    """

    def __init__(
        self, server: RewardServer, config: CheckRewardsConfig, orders: Mapping[str, int], needs: Sequence[Need]
    ) -> None:
        self.server, self.config, self.orders, self.needs = server, config, orders, needs
        self.names, self.prompts = tuple(orders), select_prompts(needs)
        self.copies = map(f"{uuid.uuid4().hex}-{{}}".format, count())

    def ask(self, requests: Sequence[ScoreRequest]) -> Answers:
        """Send requests and return the answers; RewardServer.ask says what it raises.

        If rewards compare the images of a prompt, each prompt gets one more image, which does not match it.
        """
        if "group" not in self.needs:
            return self.server.ask(requests)
        asked = {request.prompt: request for request in requests}
        others = [
            request._replace(images=(draw_image(self.prompts[-1], next(self.copies)),)) for request in asked.values()
        ]
        return self.server.ask([*requests, *others])[: len(requests)]

    def make_request(self, prompt: str, *image_prompts: str) -> ScoreRequest:
        """Return a request that pairs `prompt` with the images drawn for `image_prompts`."""
        return make_request(prompt, image_prompts, self.names, self.needs, next(self.copies))

    def make_matching_request(self) -> ScoreRequest:
        """Return a request that pairs the first prompt with its matching image."""
        return self.make_request(self.prompts[0], self.prompts[0])

    def make_mixed_requests(self, count: int) -> list[ScoreRequest]:
        """Return requests that cycle through all pairs of prompts and images."""
        pairs = cycle(product(self.prompts, self.prompts))
        return [self.make_request(prompt, image_prompt) for prompt, image_prompt in islice(pairs, count)]

    @cached_property
    def known_answers(self) -> Answers:
        """The server's answers for all pairs of a test prompt and a test image, ordered by prompt."""
        return self.ask(self.make_mixed_requests(len(self.prompts) ** 2))

    def compare(self, answers: Sequence[Mapping[str, MetricAnswer]]) -> "FindingByReward":
        """Return a finding for each reward: whether the answers for the same image are equal within the tolerance."""
        return {name: self._compare_reward(name, [answer[name] for answer in answers]) for name in self.names}

    def _compare_reward(self, name: str, answers: Sequence[MetricAnswer]) -> Finding:
        scores, known = _require_scores(answers), _require_scores([answer[name] for answer in self.known_answers])
        if isinstance(scores, Finding):
            return scores
        if isinstance(known, Finding):
            return Finding("unknown", NO_SCORE_MESSAGE)
        difference, allowed = max(scores) - min(scores), self.config.tolerance * (max(known) - min(known))
        details = f"differs by at most {difference:.2g}, and {allowed:.2g} is allowed"
        return Finding("ok" if difference <= allowed else "fails", details)


FindingByReward = Mapping[str, Finding]


def _require_scores(answers: Sequence[MetricAnswer]) -> list[float] | Finding:
    for answer in answers:
        if answer.score is None:
            reason = f"{answer.error.kind}: {answer.error.message}" if answer.error else "null"
            return Finding("fails", f"{NO_SCORE_MESSAGE} ({reason})")
    return [answer.score for answer in answers if answer.score is not None]


def _check_order(trial: Trial) -> FindingByReward:
    return {
        name: _check_matching_is_best(
            _require_scores([answer[name] for answer in trial.known_answers]), order, len(trial.prompts)
        )
        for name, order in trial.orders.items()
    }


def _check_matching_is_best(scores: list[float] | Finding, order: int, prompts: int) -> Finding:
    """Return a finding for the reward: whether the matching image has the best score for each prompt."""
    if isinstance(scores, Finding):
        return scores
    if not order:
        return Finding("unknown", "neither a higher nor a lower number is better")
    others = [scores[start : start + prompts] for start in range(0, len(scores), prompts)]
    own = [prompt_scores.pop(place) for place, prompt_scores in enumerate(others)]
    right = sum(all(order * (fit - other) > 0 for other in rest) for fit, rest in zip(own, others, strict=True))
    means = f"mean {fmean(own):.4g}, others {fmean(other for rest in others for other in rest):.4g}"
    details = f"the image that fits is best for {right} of {len(own)} prompts; {means}"
    return Finding("ok" if right == len(own) else "fails", details)


def _check_null_scores(trial: Trial) -> FindingByReward:
    """Return a finding for each reward: whether the server returns null instead of a number for broken images.

    Broken images and sources are sent both alone and in a batch with a valid image.
    """
    valid = trial.make_matching_request()
    broken = {"half a PNG": valid.images[0][: len(valid.images[0]) // 2], "text": b"no image", "no bytes": b""}
    requests = {name: valid._replace(images=(image,)) for name, image in broken.items()}
    if valid.sources:
        requests |= {f"{name} as source": valid._replace(sources=(image,)) for name, image in broken.items()}
    answers: dict[str, Mapping[str, MetricAnswer]] = {}
    for name, request in requests.items():
        (answers[name],) = trial.ask([request])
        _, answers[f"{name} in a batch with a valid image"] = trial.ask([trial.make_matching_request(), request])
    (valid_answers,) = trial.ask([valid])
    findings: dict[str, Finding] = {}
    for reward in trial.names:
        scores = {name: answer[reward].score for name, answer in answers.items()}
        numbers = [f"{name} got {score:g}" for name, score in scores.items() if score is not None]
        if valid_answers[reward].score is None:
            findings[reward] = Finding("unknown", NO_SCORE_MESSAGE)
        elif numbers:
            findings[reward] = Finding("fails", "; ".join(numbers))
        else:
            findings[reward] = Finding("ok", f"no number for {len(answers)} requests with broken images")
    return findings


def _check_repeats(trial: Trial) -> FindingByReward:
    return trial.compare([trial.ask([trial.make_matching_request()])[0] for _ in range(3)])


def _check_batches(trial: Trial) -> FindingByReward:
    """Return a finding for each reward: whether an image scores the same alone and as the first or last in a batch."""
    if "group" in trial.needs:
        return {ALL_REWARDS: Finding("unknown", "the number depends on the other images of the prompt")}
    alone, first, last = (trial.make_matching_request() for _ in range(3))
    batch = trial.ask([first, *trial.make_mixed_requests(trial.config.batch - 2), last])
    return trial.compare([*trial.ask([alone]), batch[0], batch[-1]])


def _check_latency(trial: Trial) -> FindingByReward:
    """Return a finding with the median latencies for one image and for a batch.

    If a score is missing, the outcome is `unknown`. Earlier checks have already warmed up the server.
    """
    if isinstance(_require_scores([answer for image in trial.known_answers for answer in image.values()]), Finding):
        return {ALL_REWARDS: Finding("unknown", NO_SCORE_MESSAGE)}
    size = trial.config.batch
    one, many = (1000 * median(_time_request(trial, count) for _ in range(trial.config.repeats)) for count in (1, size))
    details = f"p50 {one:.0f} ms for one image, {many:.0f} ms for {size} ({many / size:.1f} ms an image)"
    return {ALL_REWARDS: Finding("ok", details)}


def _time_request(trial: Trial, size: int) -> float:
    """Send this number of images, in one request if the wire allows, and return the seconds until the last reply."""
    requests = trial.make_mixed_requests(size)
    begun = perf_counter()
    trial.ask(requests)
    return perf_counter() - begun


def _check_unknown_reward(trial: Trial) -> FindingByReward:
    if trial.server.wire.rewards_page is None:
        return {ALL_REWARDS: Finding("unknown", "requests in this format do not name a reward")}
    (answer,) = trial.ask([trial.make_matching_request()._replace(metrics=(UNKNOWN_REWARD,))])
    number = answer[UNKNOWN_REWARD].score
    return {
        ALL_REWARDS: Finding("ok", "refused")
        if number is None
        else Finding("fails", f"{UNKNOWN_REWARD} got {number:g}")
    }


def _check_frames(trial: Trial) -> FindingByReward:
    """Return a finding for each reward: whether the score changes if the second frame does not match the prompt."""
    prompt, other = trial.prompts[:2]
    return _check_input_is_used(
        trial, "frames", *(trial.make_request(prompt, prompt, second) for second in (prompt, other))
    )


def _check_sources(trial: Trial) -> FindingByReward:
    """Return a finding for each reward: whether the score changes if the edited image is sent as the source."""
    request, prompts = trial.make_matching_request(), trial.prompts
    sources = [(draw_image(prompt, next(trial.copies)),) for prompt in (prompts[-1], prompts[0])]
    return _check_input_is_used(trial, "sources", *(request._replace(sources=source) for source in sources))


def _check_questions(trial: Trial) -> FindingByReward:
    """Return a finding for each reward: whether the score changes if the question is about another image."""
    request = trial.make_matching_request()
    requests = [request._replace(questions=make_questions(prompt)) for prompt in trial.prompts[:2]]
    return _check_input_is_used(trial, "questions", *requests)


def _check_input_is_used(
    trial: Trial, extra: ExtraInput, matching: ScoreRequest, mismatched: ScoreRequest
) -> FindingByReward:
    """Return a finding for each reward: whether two requests that differ only in one input get different scores.

    If a request gets no score, the finding is `refused`. If an input is ignored or refused, the check only fails if
    `must_use` lists the input. If the wire cannot carry the input, there is one finding, `unknown`, for all rewards.
    """
    try:
        (first,), (second,) = trial.ask([matching]), trial.ask([mismatched])
    except BadRequest as error:
        return {ALL_REWARDS: Finding("unknown", str(error))}
    ignored: Outcome = "fails" if extra in trial.config.must_use else "ok"
    findings: dict[str, Finding] = {}
    for name in trial.names:
        score, other = first[name].score, second[name].score
        if score is None or other is None:
            findings[name] = Finding(ignored, "refused")
        elif score != other:
            findings[name] = Finding("ok", f"used: {score:.4g} becomes {other:.4g} if it does not fit")
        else:
            findings[name] = Finding(ignored, f"ignored: {score:.4g} even if it does not fit")
    return findings


CHECK_FUNCTIONS: Mapping[str, Callable[[Trial], FindingByReward]] = {
    "order": _check_order,
    "nulls": _check_null_scores,
    "same again": _check_repeats,
    "same in a batch": _check_batches,
    "latency": _check_latency,
    "unknown reward": _check_unknown_reward,
    "second frame": _check_frames,
    "source": _check_sources,
    "questions": _check_questions,
}


def check_rewards(config: CheckRewardsConfig) -> list[Check]:
    """Run all checks and return their findings. Raise PlumblineError if even the first request fails."""
    with connect(config) as server:
        groups: dict[tuple[Need, ...], dict[str, int]] = {}
        for name, info in _find_rewards(server, config).items():
            groups.setdefault(info.needs, {})[name] = info.order
        trials = [Trial(server, config, orders, needs) for needs, orders in (groups or {(): {}}).items()]
        trials[0].ask([trials[0].make_matching_request()])
        return [
            Check(
                check,
                _make_printable(", ".join(trial.names) if len(trials) > 1 and name == ALL_REWARDS else name),
                finding,
            )
            for check in CHECK_FUNCTIONS
            for trial in trials
            for name, finding in _run_check(check, trial).items()
        ]


def _make_printable(text: str) -> str:
    """Replace control characters in text from the server, because a terminal would interpret them."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _run_check(name: str, trial: Trial) -> FindingByReward:
    try:
        findings = CHECK_FUNCTIONS[name](trial)
    except PlumblineError as error:
        findings = {ALL_REWARDS: Finding("fails", hide_secrets(str(error)))}
    return {reward: finding._replace(details=_make_printable(finding.details)) for reward, finding in findings.items()}
