"""A chat endpoint on localhost with scripted answers."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.families.openai import OpenAiModel, load_openai
from plumbline.operators.models.resolution import resolve_model

KEY = "sk-loopback-0123456789"
KEY_VARIABLE = "PLUMBLINE_TEST_KEY"


class Answer(NamedTuple):
    """The server's answer to one request."""

    status: int = 200
    body: bytes | dict[str, Any] = b""
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    endless: bytes = b""
    """Bytes that are sent repeatedly after the body until the client disconnects."""


def make_completion(
    text: str | None, *, reason: str = "stop", usage: dict[str, Any] | None = None, **message: Any
) -> Answer:
    """Return an answer with a chat completion; `message` contains additional fields for its message."""
    choice = {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": text, **message}}
    return Answer(body={"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice],
                        **({"usage": usage} if usage else {})})  # fmt: skip


def make_error(status: int, message: str = "no", **headers: str) -> Answer:
    return Answer(status, {"error": {"message": message}}, tuple(headers.items()))


class Server:
    """A chat endpoint on localhost; `script` gets a request's number and body, and returns the answer."""

    def __init__(self) -> None:
        self.script: Callable[[int, dict[str, Any]], Answer] = lambda number, body: make_completion("yes")
        self.trial: Answer | None = None
        """Answer to the small call that a sweep makes before computing; that call is not recorded."""
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.times: list[float] = []
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler_class())
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def receive(self, body: dict[str, Any], key: str | None) -> Answer:
        if self.trial is not None and "Answer yes or no: yes?" in json.dumps(body):
            return self.trial
        with self._lock:
            self.bodies.append(body)
            self.keys.append(key)
            self.times.append(time.monotonic())
            number = len(self.bodies) - 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            answer = self.script(number, body)
            threading.Event().wait(answer.delay)
            return answer
        finally:
            with self._lock:
                self._at_once -= 1

    def _make_handler_class(server: "Server") -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer = server.receive(body, self.headers["Authorization"])
                content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for name, value in (("Content-Type", "application/json"), *answer.headers):
                    self.send_header(name, value)
                if not answer.endless:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                with suppress(OSError):  # the client may have stopped waiting
                    self.wfile.write(content)
                    while answer.endless:
                        self.wfile.write(answer.endless)

            def log_message(self, *arguments: Any) -> None:
                pass

        return Handler


def connect(server: Server, **options: Any) -> OpenAiModel:
    config = make_model_config(
        family="openai",
        checkpoint="judge",
        endpoint=server.url,
        key_variable=KEY_VARIABLE,
        **{"max_retries": 2, "timeout": 20.0} | options,
    )
    model = resolve_model(config, on_gpu=False)
    return load_openai(model)


def make_token_completion(*tokens: tuple[str, float], **message: Any) -> Answer:
    """Return a chat completion of one token, with the log-probabilities of the likeliest tokens."""
    answer = make_completion(tokens[0][0], reason="length", **message)
    assert isinstance(answer.body, dict)
    top = [{"token": token, "logprob": logprob, "bytes": None} for token, logprob in tokens]
    first = {"token": tokens[0][0], "logprob": tokens[0][1], "bytes": None, "top_logprobs": top}
    answer.body["choices"][0]["logprobs"] = {"content": [first], "refusal": None}
    return answer
