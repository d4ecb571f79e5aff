"""A webhook receives the outcome once, temporary failures are retried, and messages only show the webhook's host."""

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from plumbline.pipelines.nightly.outcome import RETRY_DELAYS_SECONDS, post_json

SECRET = "hush-hush"


class Webhook(HTTPServer):
    """A webhook that replies with the given status codes in order, and keeps the messages it received."""

    def __init__(self, statuses: Sequence[int]) -> None:
        super().__init__(("127.0.0.1", 0), WebhookHandler)
        self.statuses = list(statuses)
        self.bodies: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{SECRET}?token={SECRET}"


class WebhookHandler(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.statuses.pop(0))
        self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hook(request: pytest.FixtureRequest) -> Iterator[Webhook]:
    with serve(request.param) as server:
        yield server


@contextmanager
def serve(statuses: Sequence[int]) -> Iterator[Webhook]:
    """Yield a running webhook that replies to each request with the next of these status codes."""
    with Webhook(statuses) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "hook, pauses, problem",
    [
        ([204], [], None),
        ([503, 429, 200], list(RETRY_DELAYS_SECONDS[:2]), None),
        ([500, 502, 503, 504], list(RETRY_DELAYS_SECONDS), "127.0.0.1: HTTP 504"),
        ([404], [], "127.0.0.1: HTTP 404"),
        ([302], [], "127.0.0.1: HTTP 302"),
    ],
    indirect=["hook"],
)
def test_temporary_failures_are_tried_again_and_permanent_ones_reported(
    hook: Webhook, pauses: list[float], problem: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    waited: list[float] = []
    assert post_json(hook.url, {"summary": "one — two"}, pause=waited.append) == problem
    assert waited == pauses and not hook.statuses
    assert hook.bodies == [{"summary": "one — two"}] * (len(pauses) + 1)
    assert SECRET not in caplog.text


def test_an_address_without_a_server_is_reported_after_all_tries(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Webhook([]) as closed:
        url = closed.url
    waited: list[float] = []
    assert post_json(url, {}, pause=waited.append) == "127.0.0.1: ConnectError"
    assert waited == list(RETRY_DELAYS_SECONDS) and SECRET not in caplog.text


def test_waiting_for_a_silent_server_ends_with_an_error() -> None:
    with Webhook([]) as silent:  # it listens, but no thread serves requests
        assert post_json(silent.url, {}, seconds=0.05, pause=lambda seconds: None) == "127.0.0.1: ReadTimeout"
