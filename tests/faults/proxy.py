"""Simulates a faulty network: a local proxy makes calls to a real object store fail at random, based on a seed."""

import asyncio
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

FAULTY_SHARE = 0.2
DELAY_SECONDS = 0.3
ERROR_CODES = {400: "ExpiredToken", 429: "TooManyRequests", 500: "InternalError", 503: "SlowDown"}
GARBLED_BYTES = 8
"""Number of bytes that are changed in the middle of a response body."""
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER value that makes closing a socket reset the connection."""
FAULTS = ("429", "500", "503", "reset", "delay", "truncated", "lost-500", "lost-reset")
"""Kinds of faults.

With `lost-500` and `lost-reset`, the server carries out the request, but the client does not get the response. With
`truncated`, the client gets only half of the response. Tests can also choose `garbled`, which changes bytes in the
middle of the object.
"""
CONNECTION_ERRORS = (OSError, asyncio.IncompleteReadError, asyncio.CancelledError)


class Server(Protocol):
    """A server with an object store."""

    @property
    def endpoint(self) -> str: ...


class Stream(NamedTuple):
    """One end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Head(NamedTuple):
    """The head of a request or a response: its first line and headers, unchanged."""

    raw: bytes
    start: str
    headers: dict[str, str]

    @property
    def status(self) -> int:
        return int(self.start.split()[1])


class FaultProxy:
    """Proxy that passes calls on unchanged, except for a fraction that gets a wrong, late or missing response.

    Its behaviour can be changed at any time. With `once`, each call fails at most once. If `valid` is set to an access
    key, the sessions of all other keys count as expired.
    """

    def __init__(
        self,
        server: Server,
        seed: int,
        *,
        share: float = FAULTY_SHARE,
        faults: Sequence[str] = FAULTS,
        once: bool = False,
    ) -> None:
        upstream = urlsplit(server.endpoint)
        self.upstream = (upstream.hostname, upstream.port)
        self.faults = faults
        self.share = share
        self.once = once
        self.random = random.Random(seed)
        self.valid: str | None = None
        self.counts: Counter[str] = Counter()
        self.requests: list[str] = []
        """The first line of each request, in order of arrival."""
        self.bytes: Counter[str] = Counter()
        """Number of body bytes in calls without a fault, keyed by method (PUT or GET) and by method and path."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client over a new connection to the server, for as many calls as the client makes."""
        client = Stream(reader, writer)
        with suppress(*CONNECTION_ERRORS):
            server = Stream(*await asyncio.open_connection(*self.upstream))
            try:
                while await self._call(client, server):
                    pass
            finally:
                server.writer.close()
        writer.close()

    async def _call(self, client: Stream, server: Stream) -> bool:
        """Serve one call; return True if the connection can stay open."""
        request = await read_head(client.reader)
        repeated = self.once and request.start in self.requests
        self.requests.append(request.start)
        hurt = self.random.random() < self.share and not repeated
        fault = self.random.choice(self.faults) if hurt else "none"
        if self.valid is not None and f"Credential={self.valid}/" not in request.headers.get("authorization", ""):
            fault = "400"
        self.counts[fault] += 1
        if fault in ("none", "delay"):
            await asyncio.sleep(DELAY_SECONDS if fault == "delay" else 0)
            return await forward_call(request, client, server, self.bytes)
        if fault == "garbled":
            return await garble_response(request, client, server)
        if fault == "truncated":
            return await truncate_response(request, client, server)
        if fault.startswith("lost"):
            await discard_response(request, client, server)
        elif fault != "reset":
            await read_request_body(request, client)
        await refuse(request, client, fault.removeprefix("lost-"))
        return False


async def read_head(reader: asyncio.StreamReader) -> Head:
    """Read the head of a request or a response, up to and including the empty line that ends the head."""
    raw = await reader.readuntil(b"\r\n\r\n")
    start, *lines = raw.decode("latin-1").rstrip().split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Head(raw, start, headers)


async def copy_body(head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None) -> None:
    """Copy a body unchanged, as a whole or in chunks; if the writer is None, discard it."""
    if head.headers.get("transfer-encoding", "").lower() == "chunked":
        size = -1
        while size:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            await _forward_part(writer, line + await reader.readexactly(size + 2))
    elif (left := int(head.headers.get("content-length", 0))) > 0:
        while left:
            part = await reader.read(min(left, 1 << 16))
            if not part:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(part)
            await _forward_part(writer, part)


async def _forward_part(writer: asyncio.StreamWriter | None, part: bytes) -> None:
    if writer is not None:
        writer.write(part)
        await writer.drain()


async def forward_request(request: Head, client: Stream, server: Stream) -> Head:
    """Send a request to the server and return the head of the response, passing 100 Continue on to the client."""
    server.writer.write(request.raw)
    body = asyncio.create_task(copy_body(request, client.reader, server.writer))
    try:
        while (answer := await read_head(server.reader)).status == 100:
            await _forward_part(client.writer, answer.raw)
        await body
    finally:
        body.cancel()
    return answer


async def forward_call(request: Head, client: Stream, server: Stream, counted: Counter[str]) -> bool:
    """Pass on a call without a fault, counting its bytes by method; return True if the connection can stay open."""
    answer = await forward_request(request, client, server)
    method, target, _ = request.start.split()
    body = answer if method == "GET" else request
    for name in (method, f"{method} {urlsplit(target).path}"):
        counted[name] += int(body.headers.get("content-length", 0))
    await _forward_part(client.writer, answer.raw)
    await _copy_answer(request, answer, server, client.writer)
    return "close" not in (request.headers.get("connection", ""), answer.headers.get("connection", ""))


async def garble_response(request: Head, client: Stream, server: Stream) -> bool:
    """Forward a call, flipping some bytes in the middle of the object; return True if the connection can stay open."""
    answer = await forward_request(request, client, server)
    await _forward_part(client.writer, answer.raw)
    size = int(answer.headers.get("content-length", 0))
    if not size or not request.start.startswith("GET ") or "xml" in answer.headers.get("content-type", ""):
        await _copy_answer(request, answer, server, client.writer)
        return True
    body = bytearray(await server.reader.readexactly(size))
    middle = slice(size // 2, size // 2 + GARBLED_BYTES)
    body[middle] = bytes(byte ^ 0x55 for byte in body[middle])
    await _forward_part(client.writer, bytes(body))
    return True


async def truncate_response(request: Head, client: Stream, server: Stream) -> bool:
    """Send half of a response's body (none of a chunked body); return False, because the connection must be closed."""
    answer = await forward_request(request, client, server)
    await _forward_part(client.writer, answer.raw)
    body = 0 if request.start.startswith("HEAD ") else int(answer.headers.get("content-length", 0))
    await _forward_part(client.writer, await server.reader.readexactly(body // 2))
    return False


async def discard_response(request: Head, client: Stream, server: Stream) -> None:
    answer = await forward_request(request, client, server)
    await _copy_answer(request, answer, server, None)


async def _copy_answer(request: Head, answer: Head, server: Stream, writer: asyncio.StreamWriter | None) -> None:
    if not request.start.startswith("HEAD ") and answer.status not in (204, 304):
        await copy_body(answer, server.reader, writer)


async def read_request_body(request: Head, client: Stream) -> None:
    """Read the whole body of a request, like a server that fails only afterwards."""
    if request.headers.get("expect", "").lower() == "100-continue":
        await _forward_part(client.writer, b"HTTP/1.1 100 Continue\r\n\r\n")
    await copy_body(request, client.reader, None)


async def refuse(request: Head, client: Stream, fault: str) -> None:
    """Reset the connection if the fault is "reset"; otherwise send the status in `fault` with S3's error document."""
    if fault == "reset":
        connection = client.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        client.writer.transport.abort()
        return
    code = ERROR_CODES[int(fault)]
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>a fault of the test</Message></Error>".encode()
    body = b"" if request.start.startswith("HEAD ") else body
    head = f"HTTP/1.1 {fault} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
    await _forward_part(client.writer, f"{head}Connection: close\r\n\r\n".encode() + body)


@contextmanager
def run_proxy(proxy: FaultProxy) -> Iterator[str]:
    """Run a proxy in a separate thread, and yield its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    listening = asyncio.run_coroutine_threadsafe(asyncio.start_server(proxy.serve, "127.0.0.1", 0), loop).result()
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(_stop_listening(listening), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _stop_listening(listening: asyncio.Server) -> None:
    """Stop listening, and close the open connections."""
    listening.close()
    calls = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in calls:
        task.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
