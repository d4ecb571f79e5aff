"""A real server closes a connection that sends no request, and answers open requests before it stops."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest
import requests

from tests.serving import ROOT

SERVER_SCRIPT = """
import asyncio, sys
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from plumbline.pipelines.web import listening

async def answer(request):
    body = await request.body()
    print("asked", flush=True)
    await asyncio.sleep(float(body or 0))
    return PlainTextResponse("answered")

listening.IDLE_TIMEOUT = 0.5
with listening.open_listening_socket("127.0.0.1", 0) as listener:
    print(listener.getsockname()[1], flush=True)
    listening.run_app(Starlette(routes=[Route("/", answer, methods=["POST"])]), listener, float(sys.argv[1]))
"""


class Server:
    """A server that replies after the number of seconds given in the request body."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self.process, self.lines = process, process.stdout
        self.port = int(self.lines.readline())

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def post(self, seconds: str) -> str:
        return requests.post(f"http://127.0.0.1:{self.port}/", data=seconds, timeout=20).text

    def stop_and_read_errors(self) -> str:
        self.process.terminate()
        return self.process.communicate(timeout=20)[1]


@contextmanager
def run_server(patience: str) -> Iterator[Server]:
    command = [sys.executable, "-c", SERVER_SCRIPT, patience]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    with subprocess.Popen(command, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield Server(process)
        finally:
            process.kill()


def make_head(size: int, line: bytes = b"X: y\r\n") -> bytes:
    """Return the head of a request with `size` bytes in as many header fields as fit, but without its last line."""
    start = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n"
    lines, rest = divmod(size - len(start) - 8, len(line))
    return start + line * lines + b"Y: " + b"y" * (rest + 3) + b"\r\n"


def read_answer(connection: socket.socket) -> bytes:
    """Return one complete response from the server; its head and body may arrive separately."""
    answer = connection.recv(4096)
    while not answer.endswith(b"answered"):
        received = connection.recv(4096)
        assert received, answer
        answer += received
    return answer


def wait_for_end(connection: socket.socket) -> None:
    """Read until the server closes the connection; raise TimeoutError if it does not."""
    with suppress(ConnectionResetError):
        while connection.recv(4096):
            continue


def test_a_connection_without_a_request_is_closed_and_a_slow_body_is_read() -> None:
    """Connections that send nothing, half a head, an endless head, or an incomplete body after an error are closed."""
    with run_server("5") as server, ExitStack() as opened:
        slow, silent, half, trickling = (opened.enter_context(server.connect()) for _ in range(4))
        slow.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n0")
        half.sendall(b"POST / HTTP/1.1\r\nHost: loc")
        trickling.sendall(b"POST / HTTP/1.1\r\n")
        trickling.settimeout(0.1)
        refused = opened.enter_context(server.connect())
        refused.sendall(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n0")
        assert refused.recv(4096).startswith(b"HTTP/1.1 404")
        for _ in range(100):
            try:
                trickling.sendall(b"X: y\r\n")
                if not trickling.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("a connection stays open although its head never ends")
        for connection in (silent, half, refused):
            wait_for_end(connection)
        slow.sendall(b"0")
        assert slow.recv(4096).startswith(b"HTTP/1.1 200")
        assert server.stop_and_read_errors() == ""


@pytest.mark.parametrize("line", [b"X: y\r\n", b"X: " + b"y" * 9000 + b"\r\n"])
def test_a_head_of_64_kb_is_answered_and_a_longer_one_is_refused_while_it_arrives(line: bytes) -> None:
    """The limit also applies to a connection's second request; a body may follow in the same packet."""
    with run_server("5") as server:
        with server.connect() as connection:
            for _ in range(2):
                connection.sendall(make_head(65_534, line) + b"\r\n0")
                assert read_answer(connection).endswith(b"answered")
            connection.sendall(make_head(65_537, line))
            refusal = connection.recv(4096)
            wait_for_end(connection)
        assert refusal.startswith(b"HTTP/1.1 431 ") and refusal.endswith(b"expected a head of at most 65536 bytes")
        assert server.stop_and_read_errors() == ""


def test_data_after_a_chunked_body_is_limited_too() -> None:
    """Trailers and chunk extensions are limited; the body itself may be longer."""
    start = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n0\r\n" * 30_000
    with run_server("5") as server:
        for endless in (b"0\r\n" + b"X: y\r\n" * 40_000, b"0\r\nX: " + b"y" * 200_000, b"1;" + b"y" * 200_000):
            with server.connect() as connection, suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(start + endless)
                assert connection.recv(4096) == b""
        with server.connect() as connection:
            connection.sendall(start + b"0\r\nX: y\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_stopping_server_answers_its_open_requests() -> None:
    with run_server("15") as server, ThreadPoolExecutor(4) as clients:
        answers = [clients.submit(server.post, "1.5") for _ in range(4)]
        for _ in answers:
            server.lines.readline()
        server.process.send_signal(signal.SIGTERM)
        assert [answer.result() for answer in answers] == ["answered"] * 4
        assert server.stop_and_read_errors() == "finishing the requests in progress: 4; a second Ctrl-C cuts them off\n"


def test_a_second_interruption_aborts_open_requests() -> None:
    with run_server("60") as server, ThreadPoolExecutor(1) as clients:
        answer = clients.submit(server.post, "60")
        server.lines.readline()
        server.process.send_signal(signal.SIGINT)
        assert "requests in progress: 1" in server.process.stderr.readline()
        server.process.send_signal(signal.SIGINT)
        said = server.process.communicate(timeout=20)[1]
        assert answer.exception(timeout=20) is not None or answer.result() != "answered"
        assert "Exception in ASGI" not in said


def test_requests_that_take_too_long_are_aborted_with_one_line_and_no_traceback() -> None:
    with run_server("0.5") as server, ThreadPoolExecutor(4) as clients:
        answers = [clients.submit(server.post, "60") for _ in range(4)]
        for _ in answers:
            server.lines.readline()
        said = server.stop_and_read_errors()
        assert "Cancel 4 running task(s)" in said and "Traceback" not in said
