"""What every wire is: bytes of a request to images that are asked about, and their answers to bytes of a reply."""

import base64
import binascii
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NoReturn

from pydantic import TypeAdapter, ValidationError, WithJsonSchema
from pydantic_core import from_json

from plumbline.operators.base.errors import PlumblineError, RowError, suggest
from plumbline.operators.metrics.metric import direction
from plumbline.operators.rewards.combination import REWARD, Reward
from plumbline.plugins.reward_server.wires.multipart import MULTIPART, read_multipart

JSON = "application/json"
SURROGATES = (b"\\ud", b"\\uD", b"\xed")
"""Beginnings of half a character beyond U+FFFF in JSON, as an escape or in bytes; pydantic rejects a lone half."""
WHITESPACE = b" \t\r\n"
MAX_NESTING = 100
"""Levels of lists and objects in a JSON body."""
REQUEST_PART = "request"
"""The part of a multipart body that is JSON."""
Need = Literal["sources", "questions", "words"]
"""An input that a metric needs: the image that was edited, a benchmark's own questions, or words in quotes."""


class BadRequest(PlumblineError):
    """A request that is not of its wire's form, or asks for what is not served."""


class BadReply(PlumblineError):
    """A server's reply that is not of its wire's form."""


Prompt = Annotated[Any, WithJsonSchema({"type": "string"})]
"""A prompt in a form. A prompt that is not text costs only the score of its own image, so the form accepts it."""


class ScoreRequest(NamedTuple):
    """One image, or the frames of a video, with its prompt and the metrics that are wanted."""

    images: tuple[bytes, ...]
    """Encoded images; an encoded video counts as one. A wire never reads a path or an address."""
    prompt: Prompt
    """The client's value, unchecked; after the service has checked it, a text."""
    metrics: tuple[str, ...]
    error: RowError | None = None
    """The reason why no model can be asked."""
    path: str | None = None
    """Path of a video in place of `images`; the service reads it if it lies below one of its `video_folders`."""
    questions: Any = None
    """The client's list of questions, unchecked: metrics with a benchmark's own questions score the image by them
    (operators/metrics/questions/question_list.py has the forms)."""
    sources: tuple[bytes, ...] = ()
    """The encoded images that it was edited from; a source that is not an image costs only the metrics that use it."""
    identity: Mapping[str, Any] | None = None
    """The client's ids of the image, for the reply; they affect no score."""


class MetricAnswer(NamedTuple):
    """One metric's number about one image; `score` is null exactly where `error` is not."""

    score: float | None
    error: RowError | None = None


class Served(NamedTuple):
    """What the service measures."""

    metrics: Mapping[str, str]
    """By name, the digest of all that decides the metric's score but for image and prompt."""
    reward: str | None
    """What answers a wire which asks for one number: a metric, or REWARD; None where several are served and none was
    named."""
    falling: frozenset[str] = frozenset()
    """Metrics whose lower score is the better one."""
    unranked: frozenset[str] = frozenset()
    """Metrics of which neither a higher nor a lower score is better."""
    needs: Mapping[Need, frozenset[str]] = MappingProxyType({})
    """The metrics with each need; REWARD is one where a part of it is."""
    combination: Reward | None = None
    """What makes REWARD of the metrics' scores, where that is served; `metrics` has its digest then."""
    watched: tuple[str, ...] = ()
    """Metrics that are computed beside the reward, whoever asks for it."""

    def needing(self, need: Need, metrics: Sequence[str]) -> list[str]:
        """Those of the metrics, and of what is watched beside them, that have the need."""
        watched = self.watched if self.reward in metrics else ()
        return [name for name in (*metrics, *watched) if name in self.needs.get(need, ())]

    def taking_questions(self, metrics: Sequence[str]) -> list[str]:
        """Those of the metrics that look at a list that comes with an image: of questions, or of wanted words."""
        return self.needing("questions", metrics) + self.needing("words", metrics)

    def needs_of(self, metric: str) -> list[Need]:
        """All that the metric needs."""
        return [need for need, metrics in self.needs.items() if metric in metrics]

    def order_of(self, metric: str) -> int:
        """1 where a higher score is better, -1 where a lower one is, 0 where neither is."""
        return 0 if metric in self.unranked else direction(metric, self.falling)

    def reward_of(self, metric: str, score: float) -> float:
        """The score as a reward, which is better the higher it is: of a metric that falls, its negative."""
        return -score if metric in self.falling else score

    def measured(self, wanted: Sequence[str]) -> tuple[str, ...]:
        """The metrics that are measured for all that is wanted: for a combination its parts."""
        parts = {REWARD: self.combination.parts} if self.combination is not None else {}
        return tuple(dict.fromkeys(metric for name in wanted for metric in parts.get(name, (name,))))

    def with_reward(self, answers: Mapping[str, MetricAnswer]) -> Mapping[str, MetricAnswer]:
        """The answers about an image, and where they have all parts of the combination, its own: null where one of them
        is, with the part's name and its reason.
        """
        if self.combination is None or not all(part in answers for part in self.combination.parts):
            return answers
        parts = {name: answers[name] for name in self.combination.parts}
        failed = [(name, part.error) for name, part in parts.items() if part.error is not None]
        if failed:
            name, error = min(failed, key=lambda part: part[1].retryable)
            return {**answers, REWARD: MetricAnswer(None, error._replace(message=f"{name}: {error.message}"))}
        scores = [part.score for part in parts.values() if part.score is not None]
        return {**answers, REWARD: MetricAnswer(self.combination(scores))}

    def wanted(self, names: Sequence[str] | None) -> tuple[str, ...]:
        """The metrics of a request, and beside a combination its parts; all for None. Raises BadRequest for one that is
        not served.
        """
        for name in names or ():
            if name not in self.metrics:
                raise BadRequest(f"metrics: nothing served is called {name[:100]!r}; {suggest(name, [*self.metrics])}")
        return tuple(dict.fromkeys([*names, *self.measured(names)])) if names is not None else tuple(self.metrics)

    def one(self) -> tuple[str]:
        """What a wire that asks for one number is answered by."""
        if self.reward is None:
            raise BadRequest(
                f"this wire asks for one number; start the service with reward=, of {', '.join(self.metrics)}"
            )
        return (self.reward,)


class Reply(NamedTuple):
    """What goes back."""

    status: int
    body: bytes
    media: str = JSON


Answers = Sequence[Mapping[str, MetricAnswer]]
"""For every image that was asked about its answers by metric."""


class Wire(ABC):
    """One way of asking: where, in what form, and how it is told that there is no score.

    A service uses `parse`, `read` and `answer`; a client of any such service uses `ask` and `understand`.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    form: ClassVar[type | None] = None
    """The dataclass of a JSON request; None for a body of another kind."""
    parts: ClassVar[Sequence[str]] = ()
    """Fields of the form that may be multipart parts instead, each a list of bytes; or a list of such lists, in parts
    whose names end in an image's place, as `sources.0`."""
    reply_form: ClassVar[Any] = dict[str, Any]
    media: ClassVar[str] = JSON
    """The content type of requests."""
    purpose: ClassVar[str]
    """For the OpenAPI page."""
    roster: ClassVar[str | None] = None
    """The page that lists the rewards a request may name; None for a wire of one number."""
    gives_rewards: ClassVar[bool] = True
    """Whether higher numbers are always better; otherwise they are scores as metrics have them."""
    images_per_request: ClassVar[int | None] = None
    """How many images a client asks about at once; None where a request may have any number."""

    def takes(self, document: Any) -> bool:
        """Whether a body is of this wire, where several share a path."""
        return True

    @abstractmethod
    def parse(self, body: bytes, media: str) -> Any:
        """The body, of this Content-Type, as plain values; raises PlumblineError."""

    @abstractmethod
    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        """What the body asks; raises BadRequest."""

    @abstractmethod
    def answer(self, asked: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        """The reply; a null in it is said as the wire's clients understand it, and never as a number."""

    @abstractmethod
    def ask(self, asked: Sequence[ScoreRequest]) -> bytes:
        """The body of a request that `read` understands; raises BadRequest for what the wire has no place for."""

    @abstractmethod
    def told(self, document: Any, asked: Sequence[ScoreRequest]) -> Answers:
        """What a reply of 200 says of every image; its exceptions mean that the reply is of another form."""

    def understand(self, reply: Reply, asked: Sequence[ScoreRequest]) -> Answers:
        """What a reply says of every image; a refused request is a null with its reason for each.

        Raises BadReply for a reply of another form.
        """
        try:
            document = self.parse(reply.body, reply.media)
        except PlumblineError as error:
            document = {"error": reply.body[:200].decode(errors="replace")}
            if reply.status == 200:
                raise BadReply(f"expected a reply of the wire {self.name}; {error}") from error
        refusal = document.get("error", document.get("detail")) if isinstance(document, dict) else None
        if reply.status != 200 or refusal is not None:
            failure = RowError(
                "request_refused", f"HTTP {reply.status}: {str(refusal)[:300]}", reply.status in (429, 503)
            )
            return [dict.fromkeys(request.metrics, MetricAnswer(None, failure)) for request in asked]
        try:
            return self.told(document, asked)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise BadReply(
                f"expected a reply of the wire {self.name} for {len(asked)} images, got {str(document)[:200]}"
            ) from error

    def refuse(self, status: int, message: str) -> Reply:
        """Why there is no reply at all."""
        return as_json({"error": message}, status)

    def refusal(self, answers: Answers) -> Reply | None:
        """What a wire without a place for a null says where an image has no score, of an error that may pass first:
        503 for that one, which clients ask again after, and 200 for one that stays.
        """
        failed = [
            (place, answer.error)
            for place, of_image in enumerate(answers)
            for answer in of_image.values()
            if answer.error is not None
        ]
        if not failed:
            return None
        place, error = min(failed, key=lambda one: (not one[1].retryable, one[0]))
        others = f" ({len(failed)} of {len(answers)} images have no score)" if len(answers) > 1 else ""
        return self.refuse(503 if error.retryable else 200, f"image {place}: {error.kind}: {error.message}{others}")


class JsonWire(Wire):
    """A wire whose bodies are JSON, or parts of which one is JSON and the others are bytes."""

    def parse(self, body: bytes, media: str) -> Any:
        if not media.lower().startswith(MULTIPART):
            return _from_json(body)
        parts = read_multipart(body, media)
        documents = [_from_json(part) for part in parts.pop(REQUEST_PART, [])]
        fields = _fields(parts)
        if len(documents) != 1 or not isinstance(documents[0], dict) or not fields.keys().isdisjoint(documents[0]):
            raise BadRequest(
                f"expected one part called {REQUEST_PART}, a JSON object without the fields that are parts of their own"
            )
        return {**documents[0], **fields}


def _fields(parts: Mapping[str, Sequence[bytes]]) -> dict[str, Any]:
    """The fields that parts are: of `name` a list of bytes, of `name.0`, `name.1` and so on a list of lists."""
    fields: dict[str, Any] = {}
    for name, contents in sorted(parts.items(), key=lambda part: (len(part[0]), part[0])):
        field, dot, place = name.partition(".")
        of_field = fields.setdefault(field, [])
        if dot and place != str(len(of_field)):
            raise BadRequest(f"expected parts {field}.0, {field}.1 and so on, or {field} alone, found {name}")
        of_field.extend([list(contents)] if dot else contents)
    return fields


def _from_json(text: bytes) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        if any(mark in text for mark in SURROGATES):
            with suppress(ValueError, RecursionError):
                return _parse_json_with_halves(text)
        raise BadRequest(f"expected JSON, found something else ({str(error)[:100]})") from error


def _parse_json_with_halves(text: bytes) -> Any:
    """Return a JSON document that may contain half characters, which Python writes and pydantic rejects.

    They cost only the scores of the prompts that contain them. Raises ValueError or RecursionError.
    """
    document = json.loads(text, parse_constant=_refuse)
    _require_shallow(document, MAX_NESTING)
    return document


def _require_shallow(value: Any, levels: int) -> None:
    if not levels:
        _refuse("a value nested too deeply")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _require_shallow(part, levels - 1)


def _refuse(found: str) -> NoReturn:
    raise ValueError(f"{found} is not read")


def as_json(value: Any, status: int = 200) -> Reply:
    """A reply of JSON; numbers that JSON does not have are an error."""
    return Reply(status, json.dumps(value, allow_nan=False, ensure_ascii=True).encode())


def read_form(form: TypeAdapter[Any], document: Any) -> Any:
    """The document as the wire's form; raises BadRequest with the first place that does not fit, and nothing of it."""
    try:
        return form.validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:200] or "the body"
        raise BadRequest(f"{where}: {first['msg']}") from error


def decoded(encoded: str | bytes, where: str) -> bytes:
    """Return the bytes of an image or a video: a part as it is, or a text decoded from base64.

    JSON has no other form for them. The base64 may be broken into lines (RFC 2045), or be a data URL (RFC 2397).
    """
    if isinstance(encoded, bytes):
        return encoded
    content = (encoded.partition(";base64,")[2] or encoded) if encoded.startswith("data:") else encoded
    try:
        return base64.b64decode(content.encode("ascii").translate(None, WHITESPACE), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"{where}: expected the image's bytes in base64; paths and addresses are not read") from error


def require_alike(images: int, others: int, what: str = "prompt") -> None:
    """Raise BadRequest unless there are as many prompts, or other inputs, as images."""
    if images != others:
        raise BadRequest(f"expected one {what} for each image, got {images} images and {others} {what}s")


def as_base64(image: bytes) -> str:
    """An image's bytes in base64."""
    return base64.b64encode(image).decode()


def told_number(value: Any) -> MetricAnswer:
    """A number of a reply; raises TypeError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    return MetricAnswer(float(value))


def told_rewards(rewards: Sequence[Any], asked: Sequence[ScoreRequest]) -> Answers:
    """The one number of every image; raises ValueError where they are not as many as the images."""
    return [{name: told_number(value) for name in one.metrics} for value, one in zip(rewards, asked, strict=True)]


def single_image(request: ScoreRequest, wire: str) -> bytes:
    """The image of a request on a wire without videos; raises BadRequest for several frames."""
    if len(request.images) != 1:
        raise BadRequest(f"the wire {wire} has no place for {len(request.images)} frames")
    return request.images[0]


def image_alone(request: ScoreRequest, wire: str) -> bytes:
    """The image of a request on a wire without videos, questions and sources; raises BadRequest for any of these."""
    if request.questions is not None:
        raise BadRequest(f"the wire {wire} has no place for questions")
    if request.sources:
        raise BadRequest(f"the wire {wire} has no place for sources")
    return single_image(request, wire)


def numbers(answers: Answers, served: Served) -> list[float]:
    """The one reward of every image, where none failed."""
    each = [(name, answer.score) for of_image in answers for name, answer in of_image.items()]
    rewards = [served.reward_of(name, score) for name, score in each if score is not None]
    assert len(rewards) == len(answers)
    return rewards
