"""Chat models at any OpenAI-compatible endpoint: replies, replies about images, and likelihoods of one-token answers.

The endpoint's key is read from the environment and passed only to the client; it never appears in an error, a log or a
cell's key.
"""

import io
import json
import math
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from plumbline.operators.base.batches import record_calls
from plumbline.operators.base.errors import (
    ModelError,
    RowError,
    UnprocessableRowError,
    format_install_remedy,
    hide_secrets,
)
from plumbline.operators.base.stopping import STOP_REQUESTED, STOPPED_ERROR
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import (
    MAX_ANSWER_TOKENS,
    Call,
    Generation,
    ImageRequest,
    Message,
    Question,
    Request,
    ThreadUsageCounter,
)
from plumbline.operators.models.engines.conversation import THOUGHT_TOO_LONG_MESSAGE, remove_thought
from plumbline.operators.models.engines.engine_options import select_thinking_key_options
from plumbline.operators.models.engines.reading import make_reader, select_reading_key_options
from plumbline.operators.models.family import Family
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.service_config import ServiceModel
from plumbline.operators.models.vqa_profiles import VqaProfile

if TYPE_CHECKING:
    from openai import APIStatusError, OpenAI

OPENAI_PROFILE = VqaProfile(name="openai", lettered=True, several_images=True)
MAX_TEXT_REPLY_BYTES = 16_000_000
"""Maximum size of a text reply in bytes: enough for the longest thought and the top_logprobs of every token."""
TRANSIENT_STATUSES = (408, 409, 429)
"""Statuses, in addition to 5xx, for which a later attempt may succeed; the SDK also retries them."""
NO_QUOTA_CODES = ("insufficient_quota", "billing_hard_limit_reached")
"""Error codes for an account without quota; some services answer with status 402 instead."""
POLICY_CODES = ("content_policy_violation", "moderation_blocked", "content_filter")
"""Error codes for a request that violates the service's policy."""
NO_QUOTA_SECONDS = 60.0
"""Seconds without new requests after the service has reported that the account has no quota left."""
N_TOP_TOKENS = 20
"""Number of likeliest first tokens to request: the maximum for OpenAI and, by default, for vLLM."""
LOGPROB_ARGUMENTS: Mapping[str, Any] = {"logprobs": True, "top_logprobs": N_TOP_TOKENS}
MAX_IMAGE_BYTES = 20_000_000
"""Maximum size of an encoded image in bytes, which is OpenAI's limit."""
MIN_SECRET_LENGTH = 8
"""Minimum length of a key that is redacted even inside longer words. Shorter keys, such as `k` or `EMPTY`, are
placeholders rather than secrets.
"""


class HttpRequest(NamedTuple):
    arguments: dict[str, Any]
    read: Callable[[Any], Any]
    """Function that converts the completion to the result or to a RowError."""


class RequestPacer:
    """Rate limiter that spaces requests evenly, across all threads that make them."""

    def __init__(
        self,
        per_minute: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._distance, self._clock, self._sleep = 60 / per_minute, clock, sleep
        self._next = -float("inf")
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Block until the next request may be made."""
        with self._lock:
            now = self._clock()
            turn = max(now, self._next)
            self._next = turn + self._distance
        if turn > now:
            self._sleep(turn - now)


class OpenAiService(ThreadUsageCounter, ABC):
    """Base class for models at an OpenAI-compatible service.

    At most `concurrency` requests run at once, across all threads.
    """

    def __init__(self, client: "OpenAI", model: ResolvedModel[Any]) -> None:
        super().__init__()
        self.client = client
        self.config = model.config
        self.name = model.config.checkpoint
        self.service = model.endpoint or "the OpenAI API"
        self.no_quota: tuple[float, RowError] | None = None
        """Time, on the monotonic clock, at which the service reported that no quota was left, and the error."""
        self._threads = ThreadPoolExecutor(model.config.concurrency, thread_name_prefix="openai")

    @abstractmethod
    def _send_request(self, arguments: Mapping[str, Any]) -> Any: ...

    def _send_all(self, http_requests: Sequence[HttpRequest]) -> list[Any]:
        waiting = [self._threads.submit(self._send_and_read, one) for one in http_requests]
        try:
            answers = []
            for answer in waiting:
                answers.append(answer.result())
                record_calls(1)
        except BaseException:
            for answer in waiting:
                answer.cancel()
            raise
        for _, usage in answers:
            self.add_usage(usage)
        return [result for result, _ in answers]

    def _send_and_read(self, http_request: HttpRequest) -> tuple[Any, Usage]:
        from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

        from plumbline.operators.models.service_replies import ReplyRefused

        if STOP_REQUESTED.is_set():
            return STOPPED_ERROR, Usage()
        if self.no_quota is not None and time.monotonic() < self.no_quota[0] + NO_QUOTA_SECONDS:
            return self.no_quota[1], Usage()
        try:
            completion = self._send_request(http_request.arguments)
            return http_request.read(completion), _read_usage(completion)
        except APIStatusError as error:
            return self._read_status_error(error), Usage()
        except APITimeoutError:
            problem = f"did not answer within {self.config.timeout:g} s, the model's timeout (APITimeoutError)"
        except APIConnectionError as error:
            refused = isinstance(error.__cause__, ReplyRefused)
            problem = str(error.__cause__) if refused else f"could not be reached ({type(error).__name__})"
        except (APIError, ValueError):
            problem = "returned an answer that is not JSON"
        except RecursionError:
            problem = "returned an answer that nests too deeply"
        return self._make_unavailable_error(problem), Usage()

    def _read_status_error(self, error: "APIStatusError") -> RowError:
        """Return the row error for an HTTP status. Raise ModelError if all other requests would fail too."""
        body = error.body.get("message") if isinstance(error.body, dict) else None
        words = body if isinstance(body, str) and body.strip() else str(error)
        # some services repeat the key; a key that is too short to be secret is not redacted within longer words
        key = self.client.api_key
        edges = (r"(?<!\w)", r"(?!\w)") if len(key) < MIN_SECRET_LENGTH else ("", "")
        words = re.sub(re.escape(key).join(edges), "***", words)
        status, reason = error.status_code, hide_secrets(" ".join(words.split()))[:300]
        if status in (401, 403):
            raise ModelError(
                f"{self.service}: answered {status} for the key in the environment variable "
                f"{self.config.key_variable} ({reason}); set it, on every node, to a key with access to {self.name!r}"
            ) from None
        if status == 404:
            raise ModelError(
                f"{self.service}: answered 404 ({reason}); check the endpoint, and that it has a model {self.name!r}"
            ) from None
        if status == 402 or error.code in NO_QUOTA_CODES:
            problem = f"{self.service} answered {status}: no quota is left ({reason}), so no more requests are sent"
            row_error = RowError("quota_spent", f"{problem}; add quota and run again", retryable=True)
            self.no_quota = time.monotonic(), row_error
            return row_error
        if error.code in POLICY_CODES:
            return RowError("reply_refused", f"{self.name} refused to answer: {reason}")
        if status in TRANSIENT_STATUSES or status >= 500:
            return self._make_unavailable_error(f"answered {status} ({reason})")
        return RowError("request_refused", f"{self.service} answered {status}: {reason}")

    def _make_unavailable_error(self, problem: str) -> RowError:
        message = f"{self.service} {problem}, with max_retries {self.config.max_retries}"
        return RowError("model_unavailable", message, retryable=True)


class OpenAiModel(OpenAiService):
    """A chat model at an OpenAI-compatible endpoint, which serves calls with and without images."""

    side_by_side = True

    def __init__(self, client: "OpenAI", model: ResolvedModel[ServiceModel]) -> None:
        super().__init__(client, model)
        self.limit_name = "max_tokens"

    def generate(self, requests: Sequence[Request]) -> list[Generation | RowError]:
        """Return the reply to each request, or an error. May be called from several threads at once.

        Raises ModelError if no request can succeed because the key is refused or the endpoint has no such model.
        """
        return self._send_all([HttpRequest(self._make_arguments(request), self._read_reply) for request in requests])

    def preprocess(self, image: Image.Image) -> tuple[bytes, ...]:
        """Return the image as encoded bytes, PNG or JPEG as configured, in a tuple with one element."""
        return self.preprocess_several([image])

    def preprocess_several(self, images: Sequence[Image.Image]) -> tuple[bytes, ...]:
        options = {"compress_level": 1} if self.config.image_format == "png" else {"quality": 95, "subsampling": 0}
        encoded = []
        for image in images:
            stream = io.BytesIO()
            image.save(stream, self.config.image_format, **options)
            encoded.append(stream.getvalue())
        return tuple(encoded)

    def encode(self, pixels: Sequence[tuple[bytes, ...]]) -> list[tuple[str, ...]]:
        """Return encoded images as data URLs. Raise UnprocessableRowError for an image that is too large to send."""
        image_format = self.config.image_format
        for encoded in (encoded for images in pixels for encoded in images):
            if len(encoded) > MAX_IMAGE_BYTES:
                size = f"{len(encoded)} bytes as {image_format}, but at most {MAX_IMAGE_BYTES} can be sent"
                remedy = "set the model's image_format=jpeg, or " if image_format == "png" else ""
                raise UnprocessableRowError(
                    RowError("image_too_large", f"the image takes {size}; {remedy}make it smaller")
                )
        start = f"data:image/{image_format};base64,"
        return [tuple(start + b64encode(encoded).decode() for encoded in images) for images in pixels]

    def generate_from_images(
        self, features: Sequence[tuple[str, ...]], requests: Sequence[ImageRequest]
    ) -> list[Generation | RowError]:
        arguments = [self._make_arguments(request, features[image]) for image, request in requests]
        return self._send_all([HttpRequest(one, self._read_reply) for one in arguments])

    def likelihood(
        self, features: Sequence[tuple[str, ...]], questions: Sequence[Question]
    ) -> list[list[list[float]] | RowError]:
        """Return the log-probability of every choice as the first token of the answer, and 0 for its end token.

        Services do not report the probability of the end token. A question gets an error if one of its choices is not
        among the N_TOP_TOKENS likeliest tokens, ignoring case and white space. A choice of several words is never a
        single token, so no request is sent for it.
        """
        http_requests, errors = [], {}
        for index, question in enumerate(questions):
            long = next((choice for choice in question.choices if len(choice.split()) != 1), None)
            if long is not None:
                problem = f"{long!r} is several tokens, and {self.service} only reports likelihoods of single tokens"
                remedy = "set the metric's letters=true, or use a model whose weights run here, or one-word choices"
                errors[index] = RowError("no_likelihood", f"{problem}; {remedy}")
                continue
            arguments = {**self._make_question_arguments(features, question, 1), **LOGPROB_ARGUMENTS}
            http_requests.append(HttpRequest(arguments, partial(self._read_logprobs, question.choices)))
        answers = iter(self._send_all(http_requests))
        return [errors[index] if index in errors else next(answers) for index in range(len(questions))]

    def reply(self, features: Sequence[tuple[str, ...]], questions: Sequence[Question]) -> list[str | RowError]:
        arguments = [self._make_question_arguments(features, question, MAX_ANSWER_TOKENS) for question in questions]
        replies: list[Generation | RowError] = self._send_all([HttpRequest(one, self._read_reply) for one in arguments])
        self.add_usage(Usage(cut=sum(not reply.complete for reply in replies if isinstance(reply, Generation))))
        return [reply if isinstance(reply, RowError) else reply.text.strip() for reply in replies]

    def preflight(self, call: Call) -> None:
        """Send a one-token trial request; raise ModelError if it fails or its answer does not suit the call."""
        grey = Image.new("RGB", (64, 64), "grey")
        (images,) = [()] if call == "generate" else self.encode([self.preprocess(grey)])
        arguments = self._make_arguments(Request((Message("user", "Answer yes or no: yes?"),), 1), images)
        arguments["max_tokens"] = 1  # without a thought
        trial = HttpRequest(arguments, self._read_choice)
        if call == "likelihood":
            trial = HttpRequest({**arguments, **LOGPROB_ARGUMENTS}, partial(self._read_logprobs, []))
        answer, _ = self._send_and_read(trial)
        if isinstance(answer, RowError) and answer.kind != "reply_refused":
            raise ModelError(f"{answer.message}; the sweep has not started, so correct this and run again")

    def _make_question_arguments(
        self, features: Sequence[tuple[str, ...]], question: Question, max_tokens: int
    ) -> dict[str, Any]:
        request = Request((Message("user", question.text),), max_tokens)
        return self._make_arguments(request, features[question.image])

    def _send_request(self, arguments: Mapping[str, Any]) -> Any:
        """Return the answer to one request, retrying it once if the model refuses the parameter name `max_tokens`.

        The retry and all later requests use `max_completion_tokens`. Requests that are running at that time may be
        refused too; each is retried once.
        """
        from openai import BadRequestError

        create: Any = self.client.chat.completions.create
        limit_name = self.limit_name
        try:
            return create(**_rename_limit(limit_name, arguments))
        except BadRequestError as error:
            if limit_name != "max_tokens" or "max_completion_tokens" not in str(error):
                raise
        self.limit_name = "max_completion_tokens"
        return create(**_rename_limit(self.limit_name, arguments))

    def _make_arguments(self, request: Request, images: Sequence[str] = ()) -> dict[str, Any]:
        """Return the SDK's arguments for a request, by name; its first message contains the images (data URLs)."""
        first, *others = request.messages
        content: Any = first.text
        if images:
            content = _insert_images(first.text, images, request.image_at)
        thought = self.config.thinking_tokens if self.config.thinking == "allowed" else 0
        arguments: dict[str, Any] = {
            "model": self.name,
            "messages": [
                *([] if request.system is None else [{"role": "system", "content": request.system}]),
                {"role": first.role, "content": content},
                *({"role": turn.role, "content": turn.text} for turn in others),
            ],
            "max_tokens": request.max_tokens + thought,
            "temperature": request.temperature,
            "seed": request.seed,
        }
        if request.stop:
            arguments["stop"] = list(request.stop)
        if request.schema is not None:
            schema = {"name": "reply", "strict": True, "schema": json.loads(request.schema)}
            arguments["response_format"] = {"type": "json_schema", "json_schema": schema}
        return arguments

    def _read_choice(self, completion: Any) -> Any:
        """Return the first choice of a chat completion, or a RowError if there is none or the model refused to answer.

        The completion's structure is checked here, because the SDK hardly validates an endpoint's answer.
        """
        choices: Any = getattr(completion, "choices", None)
        message = getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None
        if message is None:
            return self._make_unavailable_error("returned an answer that is not a chat completion")
        refusal = getattr(message, "refusal", None)
        if refusal or getattr(choices[0], "finish_reason", None) == "content_filter":
            return RowError("reply_refused", f"{self.name} refused to answer: {refusal or 'content filter'}")
        return choices[0]

    def _read_reply(self, completion: Any) -> Generation | RowError:
        choice = self._read_choice(completion)
        if isinstance(choice, RowError):
            return choice
        text, reason = choice.message.content, getattr(choice, "finish_reason", None)
        if self.config.thinking == "allowed":
            text = remove_thought(text) if isinstance(text, str) else ""
            if not text and reason == "length":
                problem = THOUGHT_TOO_LONG_MESSAGE.format(self.config.thinking_tokens)
                return RowError("unfinished_thought", problem)
        if not isinstance(text, str) or not text:
            was_cut = ": it was cut at max_tokens, which includes the model's reasoning; raise max_tokens"
            cut = was_cut if reason == "length" else ""
            return RowError(
                "empty_reply", f"{self.name} returned no text (finish_reason={reason}){cut}", retryable=True
            )
        return Generation(text, reason != "length", _read_usage(completion))

    def _read_logprobs(self, choices: Sequence[str], completion: Any) -> list[list[float]] | RowError:
        choice = self._read_choice(completion)
        if isinstance(choice, RowError):
            return choice
        content = getattr(getattr(choice, "logprobs", None), "content", None)
        first = content[0] if isinstance(content, list) and content else None
        logprobs: dict[str, float] = {}  # of likely first words, each in its likeliest spelling
        for listed in getattr(first, "top_logprobs", None) or []:
            token, logprob = getattr(listed, "token", None), getattr(listed, "logprob", None)
            if isinstance(token, str) and isinstance(logprob, (int, float)) and math.isfinite(logprob):
                word = _normalise_token(token)
                logprobs[word] = max(min(float(logprob), 0.0), logprobs.get(word, -math.inf))
        if not logprobs:
            return RowError(
                "no_likelihood", f"{self.name} returned no top_logprobs; use a model, or a service, that does"
            )
        absent = next((text for text in choices if _normalise_token(text) not in logprobs), None)
        if absent is not None:
            likeliest = sorted(logprobs, key=lambda word: logprobs[word], reverse=True)[:3]
            return RowError(
                "no_likelihood",
                f"{absent!r} is not among the {N_TOP_TOKENS} likeliest first tokens of {self.name}'s answer "
                f"(the likeliest are {', '.join(repr(word[:20]) for word in likeliest)}); it may span several "
                "tokens, and services report no probability for those; use a model whose weights run here",
            )
        return [[logprobs[_normalise_token(text)], 0.0] for text in choices]


def _insert_images(text: str, images: Sequence[str], places: int | tuple[int, ...]) -> list[dict[str, Any]]:
    """Return the content of a message: its text, with each image (a data URL) inserted at its place in the text.

    If the numbers of places and images differ, as for a video, all images are inserted at the first place.
    """
    if isinstance(places, int) or len(places) != len(images):
        places = ((places,) if isinstance(places, int) else places)[:1] * len(images)
    content: list[dict[str, Any]] = []
    start = 0
    for place, image in zip(places, images, strict=True):
        content += [{"type": "text", "text": text[start:place]}] if place > start else []
        content.append({"type": "image_url", "image_url": {"url": image}})
        start = max(start, place)
    return [*content, {"type": "text", "text": text[start:]}] if text[start:] else content


def _rename_limit(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name if key == "max_tokens" else key: value for key, value in arguments.items()}


def _normalise_token(token: str) -> str:
    return token.strip().casefold()


def _read_usage(completion: Any) -> Usage:
    usage = getattr(completion, "usage", None)
    details = getattr(usage, "prompt_tokens_details", None)
    counts = (
        getattr(usage, "prompt_tokens", None),
        getattr(details, "cached_tokens", None),
        getattr(usage, "completion_tokens", None),
    )
    return Usage(1, *(count if isinstance(count, int) else 0 for count in counts))


def load_openai(model: ResolvedModel[ServiceModel]) -> OpenAiModel:
    return OpenAiModel(open_client(model, MAX_TEXT_REPLY_BYTES), model)


def open_client(model: ResolvedModel[Any], max_reply: int) -> "OpenAI":
    """Return a client for the endpoint, without sending anything.

    The client refuses replies of more than `max_reply` bytes. Raises ModelError if the openai package or the key is
    missing.
    """
    config = model.config
    try:
        from openai import DefaultHttpxClient, OpenAI
    except ImportError as error:
        raise ModelError(f"family {config.family}: needs the openai package; {format_install_remedy('api')}") from error
    key = os.environ.get(config.key_variable, "").strip()
    if not key:
        raise ModelError(
            f"family {config.family}: the environment variable {config.key_variable} is not set on this node; set it "
            "to the endpoint's key (to any value if the endpoint needs no key)"
        )
    from plumbline.operators.models.service_replies import UNCOMPRESSED_HEADERS, limit_replies  # imports httpx

    hooks: dict[str, list[Callable[..., Any]]] = {"response": [limit_replies(max_reply, config.timeout)]}
    if config.requests_per_minute is not None:
        pace = RequestPacer(config.requests_per_minute)
        hooks["request"] = [lambda request: pace.wait()]
    return OpenAI(
        api_key=key,
        base_url=model.endpoint,
        max_retries=config.max_retries,
        timeout=config.timeout,
        default_headers=UNCOMPRESSED_HEADERS,
        http_client=DefaultHttpxClient(event_hooks=hooks),
    )


FAMILY = Family(
    config=ServiceModel,
    extra="api",
    loads={
        "generate": load_openai,
        "generate_from_images": load_openai,
        "likelihood": load_openai,
        "ocr": make_reader(load_openai),
    },
    options_in_key=lambda config, profile: (
        {"image_format": config.image_format} | select_reading_key_options(config) | select_thinking_key_options(config)
    ),
    preflight=lambda model, call: load_openai(model).preflight(call),
    endpoint_variable="OPENAI_BASE_URL",
    profile=lambda config, fields: OPENAI_PROFILE,
)
