"""Any OpenAI-compatible chat endpoint: text, text about images, and the likelihood of one-token answers.

The key is read from the environment and passed to the client only: it enters no errors, logs or keys of cells.
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

from plumbline.operators.base.batches import count_calls
from plumbline.operators.base.errors import HopelessRow, ModelError, RowError, hide_secrets, install
from plumbline.operators.base.stopping import STOP, STOPPED
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import (
    MAX_ANSWER_TOKENS,
    Call,
    Generation,
    ImageRequest,
    Message,
    Question,
    Request,
)
from plumbline.operators.models.engines.engine_options import thinking_in_key
from plumbline.operators.models.engines.reading import reader, reading_in_key
from plumbline.operators.models.engines.thinking import CUT, remove_thought, unfinished_thought
from plumbline.operators.models.family import Family
from plumbline.operators.models.service_config import ServiceModel
from plumbline.operators.models.vqa_profiles import VqaProfile

if TYPE_CHECKING:
    from openai import APIStatusError, OpenAI

    from plumbline.operators.models.model import ResolvedModel

OPENAI = VqaProfile(name="openai", lettered=True, several=True)
MAX_TEXT_REPLY = 16_000_000
"""Maximum size in bytes of a reply with text: enough for the longest thought and the top_logprobs of every token."""
TRANSIENT = (408, 409, 429)
"""Statuses, in addition to 5xx, that another attempt may avoid, after those of the SDK."""
SPENT = ("insufficient_quota", "billing_hard_limit_reached")
"""Error codes of an account without quota; some services answer 402 instead."""
FILTERED = ("content_policy_violation", "moderation_blocked", "content_filter")
"""Error codes of a request that violates the service's policy."""
SPENT_SECONDS = 60.0
"""Time after which an account without quota is asked again."""
TOP_TOKENS = 20
"""Number of likeliest first tokens that are requested; OpenAI and, by default, vLLM return at most this many."""
LOGPROBS: Mapping[str, Any] = {"logprobs": True, "top_logprobs": TOP_TOKENS}
MAX_IMAGE_BYTES = 20_000_000
"""Maximum size in bytes of an encoded image; OpenAI accepts no larger one."""


MIN_SECRET_LENGTH = 8
"""Minimum length of a key that is also redacted within words; keys such as `k` or `EMPTY` are not secret."""


class HttpRequest(NamedTuple):
    """One request over HTTP."""

    arguments: dict[str, Any]
    read: Callable[[Any], Any]
    """Converts the completion to the result, or to a RowError."""


class Pace:
    """Spaces requests evenly, over all threads that make them."""

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


class OpenAiService(ABC):
    """An OpenAI-compatible service; at most `concurrency` requests run at once, over all threads."""

    def __init__(self, client: "OpenAI", model: "ResolvedModel[Any]") -> None:
        self.client = client
        self.config = model.config
        self.name = model.config.checkpoint
        self.place = model.endpoint or "the OpenAI API"
        self.spent: tuple[float, RowError] | None = None
        """When the service said that no quota is left, by the monotonic clock, and the error."""
        self._threads = ThreadPoolExecutor(model.config.concurrency, thread_name_prefix="openai")
        self._thread_local = threading.local()

    @property
    def usage(self) -> Usage:
        usage: Usage = getattr(self._thread_local, "usage", Usage())
        return usage

    @abstractmethod
    def _ask(self, arguments: Mapping[str, Any]) -> Any:
        """Send one request and return the endpoint's answer."""

    def _each(self, http_requests: Sequence[HttpRequest]) -> list[Any]:
        """Return the result of each request, and add their usage to this thread's."""
        waiting = [self._threads.submit(self._answer, one) for one in http_requests]
        try:
            answers = []
            for answer in waiting:
                answers.append(answer.result())
                count_calls(1)
        except BaseException:
            for answer in waiting:
                answer.cancel()
            raise
        for _, usage in answers:
            self._thread_local.usage = self.usage.plus(usage)
        return [result for result, _ in answers]

    def _answer(self, http_request: HttpRequest) -> tuple[Any, Usage]:
        from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

        from plumbline.operators.models.service_replies import ReplyRefused

        if STOP.is_set():
            return STOPPED, Usage()
        if self.spent is not None and time.monotonic() < self.spent[0] + SPENT_SECONDS:
            return self.spent[1], Usage()
        try:
            completion = self._ask(http_request.arguments)
            return http_request.read(completion), _usage(getattr(completion, "usage", None))
        except APIStatusError as error:
            return self._refusal(error), Usage()
        except APITimeoutError:
            late = f"did not answer within {self.config.timeout:g} s, the model's timeout"
            return self._unavailable(f"{late} (APITimeoutError)"), Usage()
        except APIConnectionError as error:
            refused = isinstance(error.__cause__, ReplyRefused)
            return self._unavailable(
                str(error.__cause__) if refused else f"could not be reached ({type(error).__name__})"
            ), Usage()
        except (APIError, ValueError):
            return self._unavailable("gave an answer that is not JSON"), Usage()
        except RecursionError:
            return self._unavailable("gave an answer that nests too deeply"), Usage()

    def _refusal(self, error: "APIStatusError") -> RowError:
        status, reason = error.status_code, self._reason(error)
        if status in (401, 403):
            raise ModelError(
                f"{self.place}: answered {status} to the key in the environment variable "
                f"{self.config.key_variable} ({reason}); set it to a key that may use {self.name!r}, on every node"
            ) from None
        if status == 404:
            raise ModelError(
                f"{self.place}: answered 404 ({reason}); check the endpoint, and that it has a model {self.name!r}"
            ) from None
        if status == 402 or error.code in SPENT:
            problem = f"{self.place} answered {status}, and was asked nothing more: no quota is left ({reason})"
            spent = RowError("quota_spent", f"{problem}; add some and run again", retryable=True)
            self.spent = time.monotonic(), spent
            return spent
        if error.code in FILTERED:
            return RowError("reply_refused", f"{self.name} would not answer: {reason}")
        if status in TRANSIENT or status >= 500:
            return self._unavailable(f"answered {status} ({reason})")
        return RowError("request_refused", f"{self.place} answered {status}: {reason}")

    def _unavailable(self, problem: str) -> RowError:
        message = f"{self.place} {problem}, with max_retries {self.config.max_retries}"
        return RowError("model_unavailable", message, retryable=True)

    def _reason(self, error: "APIStatusError") -> str:
        """Return the service's own words in one line; some services repeat the key, which is redacted."""
        own = error.body.get("message") if isinstance(error.body, dict) else None
        words = own if isinstance(own, str) and own.strip() else str(error)
        return hide_secrets(" ".join(_redact_key(words, self.client.api_key).split()))[:300]


class OpenAiModel(OpenAiService):
    """The calls that a chat endpoint serves."""

    side_by_side = True

    def __init__(self, client: "OpenAI", model: "ResolvedModel[ServiceModel]") -> None:
        super().__init__(client, model)
        self.limit_name = "max_tokens"

    def generate(self, requests: Sequence[Request]) -> list[Generation | RowError]:
        """Return the reply to each request, or an error. May be called from several threads at once.

        Raises ModelError if no request can succeed: the key is refused, or the endpoint has no such model.
        """
        return self._each([HttpRequest(self._arguments(request), self._generation) for request in requests])

    def preprocess(self, image: Image.Image) -> tuple[bytes, ...]:
        """Encode the image as PNG, which keeps every pixel, or as JPEG."""
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
        """Return encoded images as data URLs; raises HopelessRow for one that is too large to be sent."""
        return [tuple(map(self._data_url, images)) for images in pixels]

    def generate_from_images(
        self, features: Sequence[tuple[str, ...]], requests: Sequence[ImageRequest]
    ) -> list[Generation | RowError]:
        """Return the reply to each request about its image or images; see `generate`."""
        shown = [(request, features[image]) for image, request in requests]
        return self._each([HttpRequest(self._arguments(*one), self._generation) for one in shown])

    def likelihood(
        self, features: Sequence[tuple[str, ...]], questions: Sequence[Question]
    ) -> list[list[list[float]] | RowError]:
        """Return every choice's log-probability as the answer's first token, and 0 for its end.

        Services do not report the end. A question gets an error if one of its choices is not among the TOP_TOKENS
        likeliest tokens, ignoring case and white space. A choice of several words is never one token, so no request is
        sent for it.
        """
        refusals = [self._refuse_long_choices(question.choices) for question in questions]
        http_requests = [
            HttpRequest(
                {**self._question(features, question, 1), **LOGPROBS}, partial(self._logprobs, question.choices)
            )
            for question, refusal in zip(questions, refusals, strict=True)
            if refusal is None
        ]
        answers = iter(self._each(http_requests))
        return [next(answers) if refusal is None else refusal for refusal in refusals]

    def reply(self, features: Sequence[tuple[str, ...]], questions: Sequence[Question]) -> list[str | RowError]:
        http_requests = [
            HttpRequest(self._question(features, question, MAX_ANSWER_TOKENS), self._generation)
            for question in questions
        ]
        replies: list[Generation | RowError] = self._each(http_requests)
        cut = sum(not reply.complete for reply in replies if isinstance(reply, Generation))
        self._thread_local.usage = self.usage.plus(Usage(cut=cut))
        return [reply if isinstance(reply, RowError) else reply.text.strip() for reply in replies]

    def preflight(self, call: Call) -> None:
        """Request one token, in the form of the call; raises ModelError if the answer does not have that form."""
        grey = Image.new("RGB", (64, 64), "grey")
        (images,) = [()] if call == "generate" else self.encode([self.preprocess(grey)])
        arguments = self._arguments(Request((Message("user", "Answer yes or no: yes?"),), 1), images) | {
            "max_tokens": 1
        }
        tells = call == "likelihood"
        trial = HttpRequest(
            {**arguments, **(LOGPROBS if tells else {})}, partial(self._logprobs, []) if tells else self._choice
        )
        answer, _ = self._answer(trial)
        if isinstance(answer, RowError) and answer.kind != "reply_refused":
            raise ModelError(f"{answer.message}; nothing was asked of it yet, mend that and run again")

    def _data_url(self, encoded: bytes) -> str:
        image_format = self.config.image_format
        if len(encoded) > MAX_IMAGE_BYTES:
            size = f"{len(encoded)} bytes as {image_format}, and at most {MAX_IMAGE_BYTES} are sent"
            smaller = "set the model's image_format=jpeg, or " if image_format == "png" else ""
            raise HopelessRow(RowError("image_too_large", f"the image takes {size}; {smaller}make it smaller"))
        return f"data:image/{image_format};base64,{b64encode(encoded).decode()}"

    def _question(self, features: Sequence[tuple[str, ...]], question: Question, max_tokens: int) -> dict[str, Any]:
        request = Request((Message("user", question.text),), max_tokens)
        return self._arguments(request, features[question.image])

    def _ask(self, arguments: Mapping[str, Any]) -> Any:
        """Send one request, with the limit under its newer name if the model refuses the older one.

        Requests that were running when the first was refused are refused too; each is sent once more.
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

    def _arguments(self, request: Request, images: Sequence[str] = ()) -> dict[str, Any]:
        """Return the arguments of a request; images, as data URLs, are put in its first message."""
        first, *others = request.messages
        thought = self.config.thinking_tokens if self.config.thinking == "allowed" else 0
        arguments: dict[str, Any] = {
            "model": self.name,
            "messages": [
                *([] if request.system is None else [{"role": "system", "content": request.system}]),
                _message_with_images(first, images, at=request.image_at),
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

    def _choice(self, completion: Any) -> Any:
        """Return the choice of a chat completion, or a RowError; the SDK checks little of an endpoint's answer."""
        choices: Any = getattr(completion, "choices", None)
        message = getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None
        if message is None:
            return self._unavailable("gave an answer that is not a chat completion")
        refusal = getattr(message, "refusal", None)
        if refusal or getattr(choices[0], "finish_reason", None) == "content_filter":
            return RowError("reply_refused", f"{self.name} would not answer: {refusal or 'content filter'}")
        return choices[0]

    def _generation(self, completion: Any) -> Generation | RowError:
        choice = self._choice(completion)
        if isinstance(choice, RowError):
            return choice
        text, reason = choice.message.content, getattr(choice, "finish_reason", None)
        if self.config.thinking == "allowed":
            text = remove_thought(text) if isinstance(text, str) else ""
            if not text and reason == "length":
                return unfinished_thought(CUT.format(self.config.thinking_tokens))
        if not isinstance(text, str) or not text:
            was_cut = ": it was cut at max_tokens, to which a model's reasoning counts; raise it"
            cut = was_cut if reason == "length" else ""
            return RowError("empty_reply", f"{self.name} gave no text (finish_reason={reason}){cut}", retryable=True)
        return Generation(text, reason != "length", _usage(getattr(completion, "usage", None)))

    def _logprobs(self, choices: Sequence[str], completion: Any) -> list[list[float]] | RowError:
        choice = self._choice(completion)
        if isinstance(choice, RowError):
            return choice
        tokens = _first_tokens(choice)
        if not tokens:
            return RowError("no_likelihood", f"{self.name} gave no top_logprobs; use a model, or a service, that does")
        absent = [text for text in choices if _normalise(text) not in tokens]
        if absent:
            return RowError("no_likelihood", self._describe_absence(absent[0], tokens))
        return [[tokens[_normalise(text)], 0.0] for text in choices]

    def _describe_absence(self, choice: str, tokens: Mapping[str, float]) -> str:
        likeliest = sorted(tokens, key=lambda token: tokens[token], reverse=True)[:3]
        return (
            f"{choice!r} is not among the {TOP_TOKENS} likeliest first tokens of the answer of {self.name}, which "
            f"begins with {', '.join(repr(token[:20]) for token in likeliest)}; it may be several tokens, which a "
            "service does not tell: use a model whose weights run here"
        )

    def _refuse_long_choices(self, choices: Sequence[str]) -> RowError | None:
        longest = next((choice for choice in choices if len(choice.split()) != 1), None)
        if longest is None:
            return None
        message = f"{longest!r} is not one token, and {self.place} tells no likelihood of several"
        remedy = "set the metric's letters=true, or use a model whose weights run here, or one-word choices"
        return RowError("no_likelihood", f"{message}; {remedy}")


def _message_with_images(message: Message, images: Sequence[str], *, at: int = 0) -> dict[str, Any]:
    if not images:
        return {"role": message.role, "content": message.text}
    pictures = [{"type": "image_url", "image_url": {"url": image}} for image in images]
    before, behind = (
        [{"type": "text", "text": text}] if text else [] for text in (message.text[:at], message.text[at:])
    )
    return {"role": message.role, "content": [*before, *pictures, *behind]}


def _rename_limit(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name if key == "max_tokens" else key: value for key, value in arguments.items()}


def _redact_key(words: str, key: str) -> str:
    """Redact the key; a key that is too short to be secret is not redacted within longer words."""
    edges = (r"(?<!\w)", r"(?!\w)") if len(key) < MIN_SECRET_LENGTH else ("", "")
    return re.sub(re.escape(key).join(edges), "***", words)


def _normalise(token: str) -> str:
    return token.strip().casefold()


def _first_tokens(choice: Any) -> dict[str, float]:
    """Return the log-probability of each likely first word, by its likeliest spelling; empty if none can be read."""
    content = getattr(getattr(choice, "logprobs", None), "content", None)
    first = content[0] if isinstance(content, list) and content else None
    tokens: dict[str, float] = {}
    for listed in getattr(first, "top_logprobs", None) or []:
        token, logprob = getattr(listed, "token", None), getattr(listed, "logprob", None)
        if isinstance(token, str) and isinstance(logprob, (int, float)) and math.isfinite(logprob):
            tokens[_normalise(token)] = max(min(float(logprob), 0.0), tokens.get(_normalise(token), -math.inf))
    return tokens


def _usage(usage: Any) -> Usage:
    details = getattr(usage, "prompt_tokens_details", None)
    counts = (
        getattr(usage, "prompt_tokens", None),
        getattr(details, "cached_tokens", None),
        getattr(usage, "completion_tokens", None),
    )
    return Usage(1, *(count if isinstance(count, int) else 0 for count in counts))


def load_openai(model: "ResolvedModel[ServiceModel]") -> OpenAiModel:
    """Return a model that asks the endpoint; raises ModelError as `open_client` does."""
    return OpenAiModel(open_client(model, MAX_TEXT_REPLY), model)


def open_client(model: "ResolvedModel[Any]", max_reply: int) -> "OpenAI":
    """Return a client of the endpoint that refuses replies of more than `max_reply` bytes, without using the network.

    Raises ModelError if the openai package or the key is missing.
    """
    config = model.config
    try:
        from openai import DefaultHttpxClient, OpenAI
    except ImportError as error:
        raise ModelError(f"family {config.family}: needs the openai package; {install('api')}") from error
    key = os.environ.get(config.key_variable, "").strip()
    if not key:
        raise ModelError(
            f"family {config.family}: the environment variable {config.key_variable} is not set on this node; set it "
            "to the endpoint's key (to anything, for an endpoint that asks for none)"
        )
    from plumbline.operators.models.service_replies import UNCOMPRESSED, limit_replies  # imports httpx

    hooks: dict[str, list[Callable[..., Any]]] = {"response": [limit_replies(max_reply, config.timeout)]}
    if config.requests_per_minute is not None:
        pace = Pace(config.requests_per_minute)
        hooks["request"] = [lambda request: pace.wait()]
    return OpenAI(
        api_key=key,
        base_url=model.endpoint,
        max_retries=config.max_retries,
        timeout=config.timeout,
        default_headers=UNCOMPRESSED,
        http_client=DefaultHttpxClient(event_hooks=hooks),
    )


def preflight_openai(model: "ResolvedModel[ServiceModel]", call: Call) -> None:
    """Raise ModelError if the key is missing or `OpenAiModel.preflight` fails."""
    load_openai(model).preflight(call)


FAMILY = Family(
    config=ServiceModel,
    extra="api",
    loads={
        "generate": load_openai,
        "generate_from_images": load_openai,
        "likelihood": load_openai,
        "ocr": reader(load_openai),
    },
    options_in_key=lambda config, profile: (
        {"image_format": config.image_format} | reading_in_key(config) | thinking_in_key(config)
    ),
    preflight=preflight_openai,
    endpoint_variable="OPENAI_BASE_URL",
    profile=lambda config, fields: OPENAI,
)
