"""The base classes of wires: a wire turns the body of a request into images to score, and their scores into a reply."""

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
"""Beginnings of a surrogate (half a character above U+FFFF) in JSON, escaped or raw; pydantic rejects lone ones."""
WHITESPACE = b" \t\r\n"
MAX_NESTING = 100
"""Levels of lists and objects in a JSON body."""
REQUEST_PART = "request"
"""Name of the JSON part in a multipart body."""
Need = Literal["sources", "questions", "words"]
"""An input that a metric needs: the image that was edited, a benchmark's own questions, or words in quotes."""


class BadRequest(PlumblineError):
    """A request that does not fit the wire's form, or names a metric that is not served."""


class BadReply(PlumblineError):
    """A server's reply that does not fit the wire's form."""


Prompt = Annotated[Any, WithJsonSchema({"type": "string"})]
"""A prompt in a form. A prompt that is not text costs only the score of its own image, so the form accepts it."""


class ScoreRequest(NamedTuple):
    """One image, or the frames of a video, with its prompt and the requested metrics."""

    images: tuple[bytes, ...]
    """Encoded images; an encoded video counts as one. A wire never reads a path or an address."""
    prompt: Prompt
    """The client's value as sent; the service checks it and then passes on text only."""
    metrics: tuple[str, ...]
    error: RowError | None = None
    """The reason why no model can score this image."""
    path: str | None = None
    """Path of a video in place of `images`; the service reads it if it lies below one of its `video_folders`."""
    questions: Any = None
    """The client's list of questions as sent, for metrics that score by a benchmark's own questions
    (operators/metrics/questions/question_list.py has the forms)."""
    sources: tuple[bytes, ...] = ()
    """Encoded images that this image was edited from; a broken source costs only the metrics that read it."""
    identity: Mapping[str, Any] | None = None
    """The client's ids of the image, for the reply; they affect no score."""


class MetricAnswer(NamedTuple):
    """One metric's score of one image: either `score` or `error` is None."""

    score: float | None
    error: RowError | None = None


class Served(NamedTuple):
    """The metrics of a service, and which of them is the reward."""

    metrics: Mapping[str, str]
    """Digests by metric of everything that decides its score except image and prompt."""
    reward: str | None
    """The metric or REWARD that is sent on wires with one number per image; None if several metrics are served and the
    configuration names none of them."""
    lower_is_better: frozenset[str] = frozenset()
    """Metrics for which a lower score is better."""
    unranked: frozenset[str] = frozenset()
    """Metrics for which neither a higher nor a lower score is better."""
    needs: Mapping[Need, frozenset[str]] = MappingProxyType({})
    """Metrics by needed input; REWARD needs the inputs of its parts."""
    combination: Reward | None = None
    """Computes REWARD from the scores of its parts; `metrics` then has a digest for REWARD."""
    watched: tuple[str, ...] = ()
    """Metrics that the sentinel adds to every request for the reward."""

    def select_needing(self, need: Need, metrics: Sequence[str]) -> list[str]:
        """Return the metrics that need this input, including watched metrics if the reward is requested."""
        watched = self.watched if self.reward in metrics else ()
        return [name for name in (*metrics, *watched) if name in self.needs.get(need, ())]

    def select_list_readers(self, metrics: Sequence[str]) -> list[str]:
        """Return the metrics that read a list sent with the image: of questions, or of expected words."""
        return self.select_needing("questions", metrics) + self.select_needing("words", metrics)

    def needs_of(self, metric: str) -> list[Need]:
        return [need for need, metrics in self.needs.items() if metric in metrics]

    def order_of(self, metric: str) -> int:
        """Return 1 if a higher score is better, -1 if a lower score is better, else 0."""
        return 0 if metric in self.unranked else direction(metric, self.lower_is_better)

    def reward_of(self, metric: str, score: float) -> float:
        """Return the score, negated if a lower score is better."""
        return -score if metric in self.lower_is_better else score

    def metrics_to_compute(self, requested: Sequence[str]) -> tuple[str, ...]:
        """Return the requested metrics, with REWARD replaced by its parts."""
        parts = {REWARD: self.combination.parts} if self.combination is not None else {}
        return tuple(dict.fromkeys(metric for name in requested for metric in parts.get(name, (name,))))

    def with_reward(self, answers: Mapping[str, MetricAnswer]) -> Mapping[str, MetricAnswer]:
        """Add REWARD to an image's answers if they have all its parts; a null part makes it null, with that error."""
        if self.combination is None or not all(part in answers for part in self.combination.parts):
            return answers
        parts = {name: answers[name] for name in self.combination.parts}
        failed = [(name, part.error) for name, part in parts.items() if part.error is not None]
        if failed:
            name, error = min(failed, key=lambda part: part[1].retryable)
            return {**answers, REWARD: MetricAnswer(None, error._replace(message=f"{name}: {error.message}"))}
        scores = [part.score for part in parts.values() if part.score is not None]
        return {**answers, REWARD: MetricAnswer(self.combination(scores))}

    def resolve_metrics(self, names: Sequence[str] | None) -> tuple[str, ...]:
        """Return the requested metrics, with the parts of REWARD after it; None requests all.

        Raises BadRequest if a metric is not served.
        """
        for name in names or ():
            if name not in self.metrics:
                raise BadRequest(f"metrics: {name[:100]!r} is not served here; {suggest(name, [*self.metrics])}")
        return tuple(self.metrics) if names is None else tuple(dict.fromkeys([*names, *self.metrics_to_compute(names)]))

    def require_reward(self) -> tuple[str]:
        """Return the metric for wires with one number per image; raise BadRequest if none is configured."""
        if self.reward is None:
            raise BadRequest(
                f"this wire has one number per image; start the service with reward=, one of {', '.join(self.metrics)}"
            )
        return (self.reward,)


class Reply(NamedTuple):
    """An HTTP reply: status, body and content type."""

    status: int
    body: bytes
    media: str = JSON


Answers = Sequence[Mapping[str, MetricAnswer]]
"""For each image its answers by metric."""


class Wire(ABC):
    """A request format of some trainer: its path, its body, its reply, and its way to report a missing score.

    The service uses `parse`, `read` and `answer`; a client uses `ask` and `read_reply`.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    form: ClassVar[type | None] = None
    """The dataclass of a JSON request; None if the body is not JSON."""
    parts: ClassVar[Sequence[str]] = ()
    """Fields of the form that may be sent as multipart parts instead: a list of bytes, or a list of lists of bytes in
    parts whose names end in the image's index, such as `sources.0`."""
    reply_form: ClassVar[Any] = dict[str, Any]
    media: ClassVar[str] = JSON
    """The content type of requests."""
    purpose: ClassVar[str]
    """Description on the OpenAPI page."""
    rewards_page: ClassVar[str | None] = None
    """Path of the page that lists the rewards a request may name; None if the wire has one number per image."""
    gives_rewards: ClassVar[bool] = True
    """True if higher numbers are always better; False if the wire sends the metrics' own scores."""
    images_per_request: ClassVar[int | None] = None
    """Images that a client sends in one request; None for any number."""

    def accepts(self, document: Any) -> bool:
        """Return True if the body belongs to this wire; wires with the same path are tried in turn."""
        return True

    @abstractmethod
    def parse(self, body: bytes, media: str) -> Any:
        """Return a body of this Content-Type as plain values; raise PlumblineError if it is malformed."""

    @abstractmethod
    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        """Return a request for each image of the document; raise BadRequest if it does not fit the form."""

    @abstractmethod
    def answer(self, requests: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        """Return the reply; a missing score is reported in the way that clients recognize, never as a number."""

    @abstractmethod
    def ask(self, requests: Sequence[ScoreRequest]) -> bytes:
        """Return a body that `read` accepts; raise BadRequest if the wire cannot carry an input."""

    @abstractmethod
    def parse_reply(self, document: Any, requests: Sequence[ScoreRequest]) -> Answers:
        """Return the answers of a reply with status 200; any lookup, type or value error means a malformed reply."""

    def read_reply(self, reply: Reply, requests: Sequence[ScoreRequest]) -> Answers:
        """Return the answers of a reply; if it refuses the request, every image is null with the reason.

        Raises BadReply if the reply does not fit the form.
        """
        try:
            document = self.parse(reply.body, reply.media)
        except PlumblineError as error:
            document = {"error": reply.body[:200].decode(errors="replace")}
            if reply.status == 200:
                raise BadReply(f"expected a reply of the wire {self.name}; {error}") from error
        reason = document.get("error", document.get("detail")) if isinstance(document, dict) else None
        if reply.status != 200 or reason is not None:
            may_pass = reply.status in (429, 503)
            refusal = RowError("request_refused", f"HTTP {reply.status}: {str(reason)[:300]}", may_pass)
            return [dict.fromkeys(request.metrics, MetricAnswer(None, refusal)) for request in requests]
        try:
            return self.parse_reply(document, requests)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise BadReply(
                f"expected a reply of the wire {self.name} for {len(requests)} images, got {str(document)[:200]}"
            ) from error

    def refuse(self, status: int, message: str) -> Reply:
        """Return the reply to a request that is not answered."""
        return as_json({"error": message}, status)

    def refuse_missing(self, answers: Answers) -> Reply | None:
        """Return the refusal of a wire that cannot carry a null, or None if every image has a score.

        An error that may pass comes first and is sent with 503, after which clients retry; others are sent with 200.
        """
        failed = [
            (place, answer.error)
            for place, image_answers in enumerate(answers)
            for answer in image_answers.values()
            if answer.error is not None
        ]
        if not failed:
            return None
        place, error = min(failed, key=lambda failure: (not failure[1].retryable, failure[0]))
        others = f" ({len(failed)} of {len(answers)} images have no score)" if len(answers) > 1 else ""
        return self.refuse(503 if error.retryable else 200, f"image {place}: {error.kind}: {error.message}{others}")


class JsonWire(Wire):
    """A wire whose body is JSON, or multipart with one part of JSON and others of bytes."""

    def parse(self, body: bytes, media: str) -> Any:
        if not media.lower().startswith(MULTIPART):
            return _parse_json(body)
        parts = read_multipart(body, media)
        documents = [_parse_json(part) for part in parts.pop(REQUEST_PART, [])]
        fields = _fields(parts)
        if len(documents) != 1 or not isinstance(documents[0], dict) or not fields.keys().isdisjoint(documents[0]):
            raise BadRequest(
                f"expected one part called {REQUEST_PART} with a JSON object, without the fields that are parts"
            )
        return {**documents[0], **fields}


def _fields(parts: Mapping[str, Sequence[bytes]]) -> dict[str, Any]:
    """Return parts as fields: parts called `name` as a list of bytes; `name.0`, `name.1`... as a list of lists."""
    fields: dict[str, Any] = {}
    for name, contents in sorted(parts.items(), key=lambda part: (len(part[0]), part[0])):
        field, dot, place = name.partition(".")
        values = fields.setdefault(field, [])
        if dot and place != str(len(values)):
            raise BadRequest(f"expected parts {field}.0, {field}.1 and so on, or {field} alone, found {name}")
        values.extend([list(contents)] if dot else contents)
    return fields


def _parse_json(text: bytes) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        if any(mark in text for mark in SURROGATES):
            with suppress(ValueError, RecursionError):
                return _parse_json_with_halves(text)
        raise BadRequest(f"expected JSON: {str(error)[:100]}") from error


def _parse_json_with_halves(text: bytes) -> Any:
    """Return a JSON document that may contain lone surrogates: they cost only the prompts that contain them.

    Raises ValueError or RecursionError.
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
    """Return a JSON reply; raise ValueError for NaN and infinity."""
    return Reply(status, json.dumps(value, allow_nan=False, ensure_ascii=True).encode())


def read_form(form: TypeAdapter[Any], document: Any) -> Any:
    """Return the document as the wire's form; raise BadRequest that names the first bad field but not its value."""
    try:
        return form.validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:200] or "the body"
        raise BadRequest(f"{where}: {first['msg']}") from error


def decode_base64(encoded: str | bytes, where: str) -> bytes:
    """Return the bytes of an image or a video; bytes of a multipart part are returned unchanged.

    The base64 may be broken into lines (RFC 2045), or be a data URL (RFC 2397).
    """
    if isinstance(encoded, bytes):
        return encoded
    content = (encoded.partition(";base64,")[2] or encoded) if encoded.startswith("data:") else encoded
    try:
        return base64.b64decode(content.encode("ascii").translate(None, WHITESPACE), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"{where}: expected the image's bytes in base64; paths and addresses are not read") from error


def require_same_length(images: int, others: int, what: str = "prompt") -> None:
    """Raise BadRequest unless there are as many prompts, or other inputs, as images."""
    if images != others:
        raise BadRequest(f"expected one {what} for each image, got {images} images and {others} {what}s")


def as_base64(image: bytes) -> str:
    return base64.b64encode(image).decode()


def parse_number(value: Any) -> MetricAnswer:
    """Return a number of a reply; raise TypeError if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    return MetricAnswer(float(value))


def parse_rewards(rewards: Sequence[Any], requests: Sequence[ScoreRequest]) -> Answers:
    """Return a reply's list of numbers as answers; raise ValueError if it is not as long as the images."""
    rows = zip(rewards, requests, strict=True)
    return [{name: parse_number(value) for name in request.metrics} for value, request in rows]


def require_single_image(request: ScoreRequest, wire: str) -> bytes:
    """Return the image of a request; raise BadRequest if it has several frames."""
    if len(request.images) != 1:
        raise BadRequest(f"the wire {wire} cannot carry {len(request.images)} frames")
    return request.images[0]


def require_only_image(request: ScoreRequest, wire: str) -> bytes:
    """Return the image of a request; raise BadRequest if it has several frames, questions or sources."""
    if request.questions is not None or request.sources:
        raise BadRequest(f"the wire {wire} cannot carry {'sources' if request.questions is None else 'questions'}")
    return require_single_image(request, wire)


def numbers(answers: Answers, served: Served) -> list[float]:
    """Return the reward of each image; every image must have one."""
    scores = [(name, answer.score) for image_answers in answers for name, answer in image_answers.items()]
    rewards = [served.reward_of(name, score) for name, score in scores if score is not None]
    assert len(rewards) == len(answers)
    return rewards
