"""Any OpenAI-compatible chat endpoint: the `generate` call.

The key is read from the environment and goes nowhere else: not into errors, logs or keys of cells.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from operators.errors import ModelError, RowError
from operators.models.calls import Generation, Request, Usage
from operators.models.family import Family

if TYPE_CHECKING:
    from openai import OpenAI

    from operators.models.checkpoints import ResolvedModel

TIMEOUT = 300.0
"""Seconds that one attempt may take."""
TRANSIENT = (408, 409, 429)
"""Answers beside the 5xx that another attempt may better; the SDK has made its attempts by the time they show."""


class OpenAiGenerate:
    """The `generate` call served over HTTP, `concurrency` requests at once whoever asks for them."""

    def __init__(self, client: "OpenAI", model: "ResolvedModel") -> None:
        self.client = client
        self.config = model.config
        self.name = model.config.checkpoint
        self.place = model.endpoint or "the OpenAI API"
        self.limit_name = "max_tokens"
        self._threads = ThreadPoolExecutor(model.config.concurrency, thread_name_prefix="openai")

    def generate(self, requests: Sequence[Request]) -> list[Generation | RowError]:
        """The reply to each request, or why there is none; may be called from several threads at once.

        Raises ModelError where no request can succeed: the key is refused, or the endpoint has no such model.
        """
        waiting = [self._threads.submit(self._answer, request) for request in requests]
        try:
            return [answer.result() for answer in waiting]
        except BaseException:
            for answer in waiting:
                answer.cancel()
            raise

    def _answer(self, request: Request) -> Generation | RowError:
        from openai import APIConnectionError, APIError, APIStatusError

        try:
            return self._read(self._ask(request))
        except APIStatusError as error:
            return self._refused(error.status_code, error)
        except APIConnectionError as error:  # a timeout is one too
            return self._unavailable(f"could not be reached ({type(error).__name__})")
        except (APIError, ValueError):
            return self._unavailable("gave an answer that is not JSON")

    def _ask(self, request: Request) -> Any:
        """The endpoint's answer; newer models of OpenAI's own want the limit under its newer name."""
        from openai import BadRequestError

        create: Any = self.client.chat.completions.create
        try:
            return create(**self._arguments(request))
        except BadRequestError as error:
            if self.limit_name != "max_tokens" or "max_completion_tokens" not in str(error):
                raise
        self.limit_name = "max_completion_tokens"
        return create(**self._arguments(request))

    def _arguments(self, request: Request) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "model": self.name,
            "messages": [{"role": message.role, "content": message.text} for message in request.messages],
            self.limit_name: request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
        }
        if request.stop:
            arguments["stop"] = list(request.stop)
        if request.schema is not None:
            schema = {"name": "reply", "strict": True, "schema": json.loads(request.schema)}
            arguments["response_format"] = {"type": "json_schema", "json_schema": schema}
        return arguments

    def _read(self, completion: Any) -> Generation | RowError:
        """A chat completion as a reply; the SDK checks little of what an endpoint sends."""
        choices: Any = getattr(completion, "choices", None)
        message = getattr(choices[0], "message", None) if isinstance(choices, list) and choices else None
        if message is None:
            return self._unavailable("gave an answer that is not a chat completion")
        reason = getattr(choices[0], "finish_reason", None)
        refusal = getattr(message, "refusal", None)
        if refusal or reason == "content_filter":
            return RowError("reply_refused", f"{self.name} would not answer: {refusal or 'content filter'}")
        if not isinstance(message.content, str) or not message.content:
            return RowError("empty_reply", f"{self.name} gave no text (finish_reason {reason!r})", retryable=True)
        return Generation(message.content, reason != "length", _usage(getattr(completion, "usage", None)))

    def _refused(self, status: int, error: Exception) -> RowError:
        if status in (401, 403):
            raise ModelError(
                f"{self.place}: answered {status} to the key in the environment variable "
                f"{self.config.key_variable}; set it to a key that may use {self.name!r}, on every node"
            ) from None
        if status == 404:
            raise ModelError(
                f"{self.place}: answered 404; check the endpoint, and that it has a model {self.name!r}"
            ) from None
        if status in TRANSIENT or status >= 500:
            return self._unavailable(f"answered {status}")
        return RowError("request_refused", f"{self.place} answered {status}: {self._redacted(error)}")

    def _unavailable(self, problem: str) -> RowError:
        message = f"{self.place} {problem}, with max_retries {self.config.max_retries}"
        return RowError("model_unavailable", message, retryable=True)

    def _redacted(self, error: Exception) -> str:
        """An error's words in one line; some services repeat the key they were sent."""
        return " ".join(str(error).replace(self.client.api_key, "***").split())[:300]


def _usage(usage: Any) -> Usage:
    details = getattr(usage, "prompt_tokens_details", None)
    counts = (
        getattr(usage, "prompt_tokens", None),
        getattr(details, "cached_tokens", None),
        getattr(usage, "completion_tokens", None),
    )
    return Usage(1, *(count if isinstance(count, int) else 0 for count in counts))


def load_openai(model: "ResolvedModel", *, timeout: float = TIMEOUT) -> OpenAiGenerate:
    """A client of the endpoint; no network is touched. `timeout` is in seconds, for one attempt.

    Raises ModelError where the openai package or the key is missing.
    """
    try:
        from openai import OpenAI
    except ImportError as error:
        raise ModelError("family openai: needs the openai package; pip install 'plumbline[api]'") from error
    config = model.config
    key = os.environ.get(config.key_variable, "").strip()
    if not key:
        raise ModelError(
            f"family openai: the environment variable {config.key_variable} is not set on this node; set it to the "
            "endpoint's key (to anything, for an endpoint that asks for none)"
        )
    client = OpenAI(api_key=key, base_url=model.endpoint, max_retries=config.max_retries, timeout=timeout)
    return OpenAiGenerate(client, model)


FAMILY = Family(
    loads={"generate": load_openai},
    options=frozenset({"endpoint", "concurrency", "max_retries", "key_variable"}),
    local=False,
    endpoint_variable="OPENAI_BASE_URL",
)
