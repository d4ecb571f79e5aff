"""Any OpenAI-compatible chat endpoint: text, text about images, and the likelihood of answers of one token.

The key is read from the environment and goes nowhere else: not into errors, logs or keys of cells.
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
from plumbline.operators.base.errors import HopelessRow, ModelError, RowError, install, without_secrets
from plumbline.operators.base.stopping import STOP, STOPPED
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import LONGEST_REPLY, Call, Generation, ImageRequest, Message, Question, Request
from plumbline.operators.models.engines.engine_options import thinking_in_key
from plumbline.operators.models.engines.reading import reader, reading_in_key
from plumbline.operators.models.engines.thinking import CUT, after_thought, unfinished
from plumbline.operators.models.family import Family
from plumbline.operators.models.service_config import ServiceModel
from plumbline.operators.models.vqa_profiles import FIRST_TOKEN, VqaProfile

if TYPE_CHECKING:
    from openai import APIStatusError, OpenAI

    from plumbline.operators.models.model import ResolvedModel

OPENAI = VqaProfile(name="openai", asks=FIRST_TOKEN, lettered=True, several=True)
MAX_TEXT_REPLY = 16_000_000
"""Bytes of a reply with text: the longest thought, and the likeliest tokens of every token, take less."""
TRANSIENT = (408, 409, 429)
"""Answers beside the 5xx that another attempt may better; the SDK has made its attempts by the time they show."""
SPENT = ("insufficient_quota", "billing_hard_limit_reached")
"""What an error is called where an account has no quota left; some services answer 402 instead."""
FILTERED = ("content_policy_violation", "moderation_blocked", "content_filter")
"""What an error is called where a request is against the service's policy."""
SPENT_SECONDS = 60.0
"""After which such an account is asked again."""
TOP_TOKENS = 20
"""The likeliest first tokens whose log-probabilities are asked for; OpenAI and vLLM by default give no more."""
LOGPROBS: Mapping[str, Any] = {"logprobs": True, "top_logprobs": TOP_TOKENS}
LARGEST_IMAGE = 20_000_000
"""Bytes of an encoded image that are sent; OpenAI takes no larger one."""


SHORTEST_SECRET = 8
"""Characters of a key that is looked for within words too; an endpoint that asks for none is given `k` or `EMPTY`."""


class HttpRequest(NamedTuple):
    """One request over HTTP."""

    arguments: dict[str, Any]
    read: Callable[[Any], Any]
    """What is made of the completion: the result, or a RowError."""


class Spent(NamedTuple):
    """An account has no quota left."""

    at: float
    """When the service said so, by the monotonic clock."""
    error: RowError


class Pace:
    """Lets requests pass at even distances, whichever threads make them."""

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
        """Returns when the next request may be made."""
        with self._lock:
            now = self._clock()
            turn = max(now, self._next)
            self._next = turn + self._distance
        if turn > now:
            self._sleep(turn - now)


class OpenAiService(ABC):
    """An OpenAI-compatible service, `concurrency` requests at once whoever makes them."""

    def __init__(self, client: "OpenAI", model: "ResolvedModel[Any]") -> None:
        self.client = client
        self.config = model.config
        self.name = model.config.checkpoint
        self.place = model.endpoint or "the OpenAI API"
        self.spent: Spent | None = None
        self._threads = ThreadPoolExecutor(model.config.concurrency, thread_name_prefix="openai")
        self._of_thread = threading.local()

    @property
    def usage(self) -> Usage:
        """What the calls of this thread have taken."""
        usage: Usage = getattr(self._of_thread, "usage", Usage())
        return usage

    @abstractmethod
    def _ask(self, arguments: Mapping[str, Any]) -> Any:
        """The endpoint's answer to one request."""

    def _each(self, http_requests: Sequence[HttpRequest]) -> list[Any]:
        """What is made of each answer; what they took is this thread's."""
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
            self._of_thread.usage = self.usage.plus(usage)
        return [result for result, _ in answers]

    def _answer(self, http_request: HttpRequest) -> tuple[Any, Usage]:
        from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError

        from plumbline.operators.models.service_replies import ReplyRefused

        if STOP.is_set():
            return STOPPED, Usage()
        if self.spent is not None and time.monotonic() < self.spent.at + SPENT_SECONDS:
            return self.spent.error, Usage()
        try:
            completion = self._ask(http_request.arguments)
            return http_request.read(completion), _usage(getattr(completion, "usage", None))
        except APIStatusError as error:
            return self._refused(error), Usage()
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

    def _refused(self, error: "APIStatusError") -> RowError:
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
            self.spent = Spent(
                time.monotonic(), RowError("quota_spent", f"{problem}; add some and run again", retryable=True)
            )
            return self.spent.error
        if error.code in FILTERED:
            return RowError("reply_refused", f"{self.name} would not answer: {reason}")
        if status in TRANSIENT or status >= 500:
            return self._unavailable(f"answered {status} ({reason})")
        return RowError("request_refused", f"{self.place} answered {status}: {reason}")

    def _unavailable(self, problem: str) -> RowError:
        message = f"{self.place} {problem}, with max_retries {self.config.max_retries}"
        return RowError("model_unavailable", message, retryable=True)

    def _reason(self, error: "APIStatusError") -> str:
        """The service's own words in one line; some repeat the key they were sent."""
        said = error.body.get("message") if isinstance(error.body, dict) else None
        words = said if isinstance(said, str) and said.strip() else str(error)
        return without_secrets(" ".join(_without_key(words, self.client.api_key).split()))[:300]


class OpenAiModel(OpenAiService):
    """The calls that a chat endpoint serves."""

    side_by_side = True

    def __init__(self, client: "OpenAI", model: "ResolvedModel[ServiceModel]") -> None:
        super().__init__(client, model)
        self.limit_name = "max_tokens"

    def generate(self, requests: Sequence[Request]) -> list[Generation | RowError]:
        """The reply to each request, or why there is none; may be called from several threads at once.

        Raises ModelError where no request can succeed: the key is refused, or the endpoint has no such model.
        """
        return self._each([HttpRequest(self._arguments(request), self._generation) for request in requests])

    def preprocess(self, image: Image.Image) -> tuple[bytes, ...]:
        """The image encoded anew, as PNG, which keeps every pixel, or as JPEG."""
        return self.preprocess_several([image])

    def preprocess_several(self, images: Sequence[Image.Image]) -> tuple[bytes, ...]:
        """Images that stand one after another, each encoded anew."""
        return tuple(map(self._encoded, images))

    def _encoded(self, image: Image.Image) -> bytes:
        stream = io.BytesIO()
        options = {"compress_level": 1} if self.config.image_format == "png" else {"quality": 95, "subsampling": 0}
        image.save(stream, self.config.image_format, **options)
        return stream.getvalue()

    def encode(self, pixels: Sequence[tuple[bytes, ...]]) -> list[tuple[str, ...]]:
        """Encoded images as data URLs; raises HopelessRow for one that is too large to be sent."""
        return [tuple(map(self._data_url, images)) for images in pixels]

    def generate_from_images(
        self, features: Sequence[tuple[str, ...]], requests: Sequence[ImageRequest]
    ) -> list[Generation | RowError]:
        """As `generate`, each request about its image, or its several images."""
        shown = [(request, features[image]) for image, request in requests]
        return self._each([HttpRequest(self._arguments(*one), self._generation) for one in shown])

    def likelihood(
        self, features: Sequence[tuple[str, ...]], questions: Sequence[Question]
    ) -> list[list[list[float]] | RowError]:
        """The log-probability of every choice as the first token of the answer, and 0 for its end, which is not told.

        A question has an error where one of its choices is not among the TOP_TOKENS likeliest, whatever their case and
        white space; a choice of several words is never one token, and nothing is asked about it.
        """
        refusals = [self._several_tokens(question.choices) for question in questions]
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
        """The model's own answer to every question."""
        http_requests = [
            HttpRequest(self._question(features, question, LONGEST_REPLY), self._generation) for question in questions
        ]
        replies: list[Generation | RowError] = self._each(http_requests)
        cut = sum(not reply.complete for reply in replies if isinstance(reply, Generation))
        self._of_thread.usage = self.usage.plus(Usage(cut=cut))
        return [reply if isinstance(reply, RowError) else reply.text.strip() for reply in replies]

    def preflight(self, call: Call) -> None:
        """One request for a token, in the form of the call; raises ModelError where it has no answer of that form."""
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
        if len(encoded) > LARGEST_IMAGE:
            size = f"{len(encoded)} bytes as {image_format}, and at most {LARGEST_IMAGE} are sent"
            smaller = "set the model's image_format=jpeg, or " if image_format == "png" else ""
            raise HopelessRow(RowError("image_too_large", f"the image takes {size}; {smaller}make it smaller"))
        return f"data:image/{image_format};base64,{b64encode(encoded).decode()}"

    def _question(self, features: Sequence[tuple[str, ...]], question: Question, max_tokens: int) -> dict[str, Any]:
        request = Request((Message("user", question.text),), max_tokens)
        return self._arguments(request, features[question.image])

    def _ask(self, arguments: Mapping[str, Any]) -> Any:
        """The endpoint's answer; newer models of OpenAI's own want the limit under its newer name.

        Requests that were under way when the first was refused are refused too, and each is sent once more.
        """
        from openai import BadRequestError

        create: Any = self.client.chat.completions.create
        limit_name = self.limit_name
        try:
            return create(**_with_limit_as(limit_name, arguments))
        except BadRequestError as error:
            if limit_name != "max_tokens" or "max_completion_tokens" not in str(error):
                raise
        self.limit_name = "max_completion_tokens"
        return create(**_with_limit_as(self.limit_name, arguments))

    def _arguments(self, request: Request, images: Sequence[str] = ()) -> dict[str, Any]:
        """What is sent for a request; images, as data URLs, stand in its first message."""
        first, *others = request.messages
        thought = self.config.thinking_tokens if self.config.thinking == "allowed" else 0
        arguments: dict[str, Any] = {
            "model": self.name,
            "messages": [
                *([] if request.system is None else [{"role": "system", "content": request.system}]),
                _shown(first, images, at=request.image_at),
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
        """The one choice of a chat completion, or a RowError; the SDK checks little of what an endpoint sends."""
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
            text = after_thought(text) if isinstance(text, str) else ""
            if not text and reason == "length":
                return unfinished(CUT.format(self.config.thinking_tokens))
        if not isinstance(text, str) or not text:
            cut = (
                ": it was cut at max_tokens, to which a model's reasoning counts; raise it"
                if reason == "length"
                else ""
            )
            return RowError("empty_reply", f"{self.name} gave no text (finish_reason={reason}){cut}", retryable=True)
        return Generation(text, reason != "length", _usage(getattr(completion, "usage", None)))

    def _logprobs(self, choices: Sequence[str], completion: Any) -> list[list[float]] | RowError:
        choice = self._choice(completion)
        if isinstance(choice, RowError):
            return choice
        tokens = _first_tokens(choice)
        if not tokens:
            return RowError("no_likelihood", f"{self.name} gave no top_logprobs; use a model, or a service, that does")
        absent = [text for text in choices if _plain(text) not in tokens]
        if absent:
            return RowError("no_likelihood", self._absent(absent[0], tokens))
        return [[tokens[_plain(text)], 0.0] for text in choices]

    def _absent(self, choice: str, tokens: Mapping[str, float]) -> str:
        likeliest = sorted(tokens, key=lambda token: tokens[token], reverse=True)[:3]
        return (
            f"{choice!r} is not among the {TOP_TOKENS} likeliest first tokens of the answer of {self.name}, which "
            f"begins with {', '.join(repr(token[:20]) for token in likeliest)}; it may be several tokens, which a "
            "service does not tell: use a model whose weights run here"
        )

    def _several_tokens(self, choices: Sequence[str]) -> RowError | None:
        longest = next((choice for choice in choices if len(choice.split()) != 1), None)
        if longest is None:
            return None
        message = f"{longest!r} is not one token, and {self.place} tells no likelihood of several"
        remedy = "set the metric's letters=true, or use a model whose weights run here, or one-word choices"
        return RowError("no_likelihood", f"{message}; {remedy}")


def _shown(message: Message, images: Sequence[str], *, at: int = 0) -> dict[str, Any]:
    if not images:
        return {"role": message.role, "content": message.text}
    pictures = [{"type": "image_url", "image_url": {"url": image}} for image in images]
    before, behind = (
        [{"type": "text", "text": text}] if text else [] for text in (message.text[:at], message.text[at:])
    )
    return {"role": message.role, "content": [*before, *pictures, *behind]}


def _with_limit_as(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name if key == "max_tokens" else key: value for key, value in arguments.items()}


def _without_key(words: str, key: str) -> str:
    """Words in which nobody reads the key; one that is too short to be a secret is no part of a longer word."""
    edges = (r"(?<!\w)", r"(?!\w)") if len(key) < SHORTEST_SECRET else ("", "")
    return re.sub(re.escape(key).join(edges), "***", words)


def _plain(token: str) -> str:
    return token.strip().casefold()


def _first_tokens(choice: Any) -> dict[str, float]:
    """The log-probabilities of the likeliest first tokens, of each word's spellings the likeliest; none where the
    endpoint gives none that can be read.
    """
    content = getattr(getattr(choice, "logprobs", None), "content", None)
    first = content[0] if isinstance(content, list) and content else None
    tokens: dict[str, float] = {}
    for listed in getattr(first, "top_logprobs", None) or []:
        token, logprob = getattr(listed, "token", None), getattr(listed, "logprob", None)
        if isinstance(token, str) and isinstance(logprob, (int, float)) and math.isfinite(logprob):
            tokens[_plain(token)] = max(min(float(logprob), 0.0), tokens.get(_plain(token), -math.inf))
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
    """As `OpenAiModel.preflight`; raises ModelError for a missing key too."""
    load_openai(model).preflight(call)


def _options_in_key(config: ServiceModel, profile: VqaProfile | None) -> dict[str, Any]:
    return {"image_format": config.image_format} | reading_in_key(config) | thinking_in_key(config)


FAMILY = Family(
    config=ServiceModel,
    extra="api",
    loads={
        "generate": load_openai,
        "generate_from_images": load_openai,
        "likelihood": load_openai,
        "ocr": reader(load_openai),
    },
    options_in_key=_options_in_key,
    preflight=preflight_openai,
    endpoint_variable="OPENAI_BASE_URL",
    profile=lambda config, fields: OPENAI,
)
