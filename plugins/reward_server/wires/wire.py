"""Base classes of wires. A wire converts a request body into the images to score, and their scores into a reply."""

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
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.rewards.combination import REWARD_NAME, Reward
from plumbline.plugins.reward_server.wires.multipart import MULTIPART_MEDIA_TYPE, read_multipart

JSON_MEDIA_TYPE = "application/json"
SURROGATE_PREFIXES = (b"\\ud", b"\\uD", b"\xed")
"""First bytes of a surrogate (half of a character above U+FFFF) in JSON, escaped or raw. Pydantic rejects surrogates
that are not in pairs.
"""
WHITESPACE = b" \t\r\n"
MAX_NESTING = 100
"""Maximum nesting depth of lists and objects in a JSON body."""
REQUEST_PART_NAME = "request"
"""Name of the JSON part in a multipart body."""
Need = Literal["sources", "questions", "words", "group"]
"""An input that a metric needs: the source image of an edit, a benchmark's own questions, quoted words in the prompt,
or the other images of the prompt, in the same request.
"""


class BadRequest(PlumblineError):
    """Raised if a request does not match the wire's form, or names a metric that is not served."""


class BadReply(PlumblineError):
    """Raised if a server's reply does not match the wire's form."""


Prompt = Annotated[Any, WithJsonSchema({"type": "string"})]
"""A prompt in a form. The form accepts any value, so that an invalid prompt only fails its own image."""


class ScoreRequest(NamedTuple):
    """One image or video, with its prompt and the requested metrics."""

    images: tuple[bytes, ...]
    """Encoded images; an encoded video counts as one image. Wires never read from a path or an address."""
    prompt: Prompt
    """Value as sent by the client. The service checks it and passes on only text."""
    metrics: tuple[str, ...]
    error: RowError | None = None
    """Reason why no model can score this image."""
    path: str | None = None
    """Path of a video, given instead of `images`. The service only reads videos inside its `video_folders`."""
    questions: Any = None
    """List of questions as sent by the client, for metrics that score by a benchmark's own questions
    (operators/metrics/questions/question_list.py describes the formats).
    """
    sources: tuple[bytes, ...] = ()
    """Encoded images that this image was edited from. A broken source affects only the metrics that read it."""
    other: tuple[bytes, ...] = ()
    """Encoded images of another row with the same prompt, if the service compares this row with it."""
    identity: Mapping[str, Any] | None = None
    """Ids that the client gave to the image, to be sent back in the reply; they do not affect scores."""


class MetricAnswer(NamedTuple):
    """A metric's score for one image, or the error. Either the score or the error is None."""

    score: float | None
    error: RowError | None = None


ImageAnswers = Mapping[str, MetricAnswer]
"""Answers for an image, by metric."""


class Served(NamedTuple):
    """The metrics that a service computes, and the name of its reward."""

    metrics: Mapping[str, str]
    """Digests, by metric, of everything that affects the metric's score except the image and the prompt."""
    reward: str | None
    """The metric, or the reward, that is sent on wires with one number per image; None if several metrics are served
    and none of them is configured as the reward.
    """
    lower_is_better: frozenset[str] = frozenset()
    """Metrics for which a lower score is better."""
    unranked: frozenset[str] = frozenset()
    """Metrics for which neither a higher nor a lower score is better."""
    needs: Mapping[Need, frozenset[str]] = MappingProxyType({})
    """Metrics that need each input; the reward needs the inputs of all its parts."""
    combination: Reward | None = None
    """Combination of scores that defines the reward. If it is set, `metrics` contains a digest for the reward."""
    watched: tuple[str, ...] = ()
    """Metrics that the sentinel adds to every request for the reward."""
    promptless: frozenset[str] = frozenset()
    """Metrics that do not read the prompt."""

    def select_metrics_needing(self, need: Need, metrics: Sequence[str]) -> list[str]:
        """Return the metrics that need this input, including the watched metrics if the reward is requested."""
        watched = self.watched if self.reward in metrics else ()
        return [name for name in (*metrics, *watched) if name in self.needs.get(need, ())]

    def select_comparing(self, requested: Sequence[str]) -> tuple[str, ...]:
        """Return the requested metrics, and requested parts of the reward, that compare the images of a prompt."""
        return tuple(name for name in self.find_metrics_to_compute(requested) if name in self.needs.get("group", ()))

    def select_metrics_reading_lists(self, metrics: Sequence[str]) -> list[str]:
        """Return the metrics that read the list of questions or expected words that is sent with an image."""
        return self.select_metrics_needing("questions", metrics) + self.select_metrics_needing("words", metrics)

    def list_needs(self, metric: str) -> list[Need]:
        return [need for need, metrics in self.needs.items() if metric in metrics]

    def find_direction(self, metric: str) -> int:
        """Return 1 if higher is better, -1 if lower is better, and 0 if neither is."""
        return 0 if metric in self.unranked else get_direction(metric, self.lower_is_better)

    def compute_reward(self, metric: str, score: float) -> float:
        """Return the score, negated if lower is better."""
        return -score if metric in self.lower_is_better else score

    def find_metrics_to_compute(self, requested: Sequence[str]) -> tuple[str, ...]:
        """Return the requested metrics with the reward replaced by its parts."""
        parts = {REWARD_NAME: self.combination.parts} if self.combination is not None else {}
        return tuple(dict.fromkeys(metric for name in requested for metric in parts.get(name, (name,))))

    def add_reward(self, answers: Mapping[str, MetricAnswer]) -> Mapping[str, MetricAnswer]:
        """Return an image's answers by metric, including the reward if the answers contain all of its parts.

        If a part is null, the reward is null too, with the error of that part.
        """
        if self.combination is None or not all(part in answers for part in self.combination.parts):
            return answers
        parts = {name: answers[name] for name in self.combination.parts}
        failed = [(name, part.error) for name, part in parts.items() if part.error is not None]
        if failed:
            name, error = min(failed, key=lambda part: part[1].retryable)
            return {**answers, REWARD_NAME: MetricAnswer(None, error._replace(message=f"{name}: {error.message}"))}
        scores = [part.score for part in parts.values() if part.score is not None]
        return {**answers, REWARD_NAME: MetricAnswer(self.combination(scores))}

    def resolve_metrics(self, names: Sequence[str] | None) -> tuple[str, ...]:
        """Return the requested metrics, with the reward followed by its parts; None requests all metrics.

        Raises BadRequest if a metric is not served.
        """
        for name in names or ():
            if name not in self.metrics:
                raise BadRequest(f"metrics: {name[:100]!r} is not served here; {suggest(name, [*self.metrics])}")
        return (
            tuple(self.metrics)
            if names is None
            else tuple(dict.fromkeys([*names, *self.find_metrics_to_compute(names)]))
        )

    def require_reward(self) -> tuple[str]:
        """Return the name of the reward, as a tuple, for wires with one number per image.

        Raises BadRequest if no reward is configured and several metrics are served.
        """
        if self.reward is None:
            raise BadRequest(
                f"this wire has one number per image; start the service with reward=, one of {', '.join(self.metrics)}"
            )
        return (self.reward,)


class Reply(NamedTuple):
    """An HTTP reply: status, body and content type."""

    status: int
    body: bytes
    media: str = JSON_MEDIA_TYPE


Answers = Sequence[ImageAnswers]
"""Answers by metric for each image."""


class Wire(ABC):
    """A trainer's request format: the path, the body, the reply, and how a missing score is reported.

    The service uses `parse`, `read` and `answer`. Clients use `ask` and `read_reply`.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    form: ClassVar[type | None] = None
    """Dataclass of a JSON request; None if the body is not JSON."""
    parts: ClassVar[Sequence[str]] = ()
    """Fields of the form that may be sent as multipart parts instead. They contain a list of bytes or, in parts whose
    names end with the image's index (such as `sources.0`), a list of lists of bytes.
    """
    reply_form: ClassVar[Any] = dict[str, Any]
    media: ClassVar[str] = JSON_MEDIA_TYPE
    """Content type of requests."""
    purpose: ClassVar[str]
    """Description of the wire in the OpenAPI document."""
    rewards_page: ClassVar[str | None] = None
    """Path of the page that lists the available rewards; None if the wire has one number per image."""
    gives_rewards: ClassVar[bool] = True
    """True if higher numbers are always better; False if the wire sends the metrics' original scores."""
    images_per_request: ClassVar[int | None] = None
    """Number of images that a client sends in one request; None means any number."""

    def accepts(self, document: Any) -> bool:
        """Return True if the request body belongs to this wire. Wires with the same path are tried in order."""
        return True

    @abstractmethod
    def parse(self, body: bytes, media: str) -> Any:
        """Parse a body with this Content-Type into plain values; raise PlumblineError if it is malformed."""

    @abstractmethod
    def read(self, document: Any, served: Served) -> list[ScoreRequest]:
        """Return a request for each image in the document; raise BadRequest if the document does not match the form."""

    @abstractmethod
    def answer(self, requests: Sequence[ScoreRequest], answers: Answers, served: Served) -> Reply:
        """Return the reply, reporting a missing score as clients expect it and never as a number."""

    @abstractmethod
    def ask(self, requests: Sequence[ScoreRequest]) -> bytes:
        """Return the body of an HTTP request for scores; raise BadRequest if the wire cannot carry an input."""

    @abstractmethod
    def parse_reply(self, document: Any, requests: Sequence[ScoreRequest]) -> Answers:
        """Return the answers in a reply with status 200.

        Raises LookupError, TypeError or ValueError if the reply is malformed.
        """

    def read_reply(self, reply: Reply, requests: Sequence[ScoreRequest]) -> Answers:
        """Return the answers in a reply. If the reply is a refusal, each image gets the reason as its error.

        Raises BadReply if the reply does not match the form.
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
        """Return the reply to a request that cannot be answered."""
        return make_json_reply({"error": message}, status)

    def make_missing_score_reply(self, answers: Answers) -> Reply | None:
        """Return a refusal if a score is missing, otherwise None. Wires that cannot carry a null use this method.

        A retryable error takes precedence and is sent with status 503, so that clients retry. Other errors are sent
        with status 200.
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
    """A wire whose body is JSON, or multipart with one JSON part and further binary parts."""

    def parse(self, body: bytes, media: str) -> Any:
        if not media.lower().startswith(MULTIPART_MEDIA_TYPE):
            return _parse_json(body)
        parts = read_multipart(body, media)
        documents = [_parse_json(part) for part in parts.pop(REQUEST_PART_NAME, [])]
        fields = _group_parts(parts)
        if len(documents) != 1 or not isinstance(documents[0], dict) or not fields.keys().isdisjoint(documents[0]):
            raise BadRequest(
                f"expected one part called {REQUEST_PART_NAME} with a JSON object that has none of the fields "
                "sent as parts"
            )
        return {**documents[0], **fields}


def _group_parts(parts: Mapping[str, Sequence[bytes]]) -> dict[str, Any]:
    """Return a form's fields: parts called `name` become a list of bytes; `name.0`, `name.1`, ... a list of lists."""
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
        if any(mark in text for mark in SURROGATE_PREFIXES):
            with suppress(ValueError, RecursionError):
                return _parse_json_with_surrogates(text)
        raise BadRequest(f"expected JSON: {str(error)[:100]}") from error


def _parse_json_with_surrogates(text: bytes) -> Any:
    """Parse JSON that may contain lone surrogates. A prompt with one is rejected later, without affecting others.

    Raises ValueError or RecursionError.
    """
    document = json.loads(text, parse_constant=_raise_not_plain_json)
    _require_shallow(document, MAX_NESTING)
    return document


def _require_shallow(value: Any, levels: int) -> None:
    if not levels:
        _raise_not_plain_json("a value nested too deeply")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _require_shallow(part, levels - 1)


def _raise_not_plain_json(found: str) -> NoReturn:
    raise ValueError(f"expected plain JSON, found {found}")


def make_json_reply(value: Any, status: int = 200) -> Reply:
    """Return a JSON reply; raise ValueError if it contains NaN or infinity."""
    return Reply(status, json.dumps(value, allow_nan=False, ensure_ascii=True).encode())


def read_form(form: TypeAdapter[Any], document: Any) -> Any:
    """Convert a document to the wire's form; raise BadRequest naming the first invalid field but not its value."""
    try:
        return form.validate_python(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:200] or "the body"
        raise BadRequest(f"{where}: {first['msg']}") from error


def decode_base64(encoded: str | bytes, where: str) -> bytes:
    """Return the bytes of an image or a video. Bytes from a multipart part are returned unchanged.

    The base64 text may be broken into lines (RFC 2045) or be a data URL (RFC 2397).
    """
    if isinstance(encoded, bytes):
        return encoded
    content = (encoded.partition(";base64,")[2] or encoded) if encoded.startswith("data:") else encoded
    try:
        return base64.b64decode(content.encode("ascii").translate(None, WHITESPACE), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(
            f"{where}: expected the image's bytes in base64; paths and addresses are not supported"
        ) from error


def require_same_length(images: int, others: int, what: str = "prompt") -> None:
    """Raise BadRequest unless there are as many prompts (or other inputs) as images."""
    if images != others:
        raise BadRequest(f"expected one {what} for each image, got {images} images and {others} {what}s")


def as_base64(image: bytes) -> str:
    return base64.b64encode(image).decode()


def parse_number(value: Any) -> MetricAnswer:
    """Convert a number in a reply to an answer; raise TypeError for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    return MetricAnswer(float(value))


def parse_rewards(rewards: Sequence[Any], requests: Sequence[ScoreRequest]) -> Answers:
    """Convert a reply's list of numbers to answers; raise ValueError unless there is one number for each image."""
    rows = zip(rewards, requests, strict=True)
    return [{name: parse_number(value) for name in request.metrics} for value, request in rows]


def require_single_image(request: ScoreRequest, wire: str) -> bytes:
    """Return the only image in a request; raise BadRequest if it has several frames."""
    if len(request.images) != 1:
        raise BadRequest(f"the wire {wire} cannot carry {len(request.images)} frames; choose another wire")
    return request.images[0]


def require_image_without_extras(request: ScoreRequest, wire: str) -> bytes:
    """Return the only image in a request; raise BadRequest if it has several frames, or any questions or sources."""
    if request.questions is not None or request.sources:
        name = "sources" if request.questions is None else "questions"
        raise BadRequest(f"the wire {wire} cannot carry {name}; choose another wire")
    return require_single_image(request, wire)


def collect_rewards(answers: Answers, served: Served) -> list[float]:
    """Return the reward of each image; every image must have one."""
    scores = [(name, answer.score) for image_answers in answers for name, answer in image_answers.items()]
    rewards = [served.compute_reward(name, score) for name, score in scores if score is not None]
    assert len(rewards) == len(answers)
    return rewards
