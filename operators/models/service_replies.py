"""Limits the size and duration of a model service's replies. Compression is refused: it could hide a larger reply."""

import time
from collections.abc import Callable, Iterator

import httpx

UNCOMPRESSED_HEADERS = {"Accept-Encoding": "identity"}
"""Headers that ask for uncompressed replies, so that the bytes received are the memory that a reply takes."""


class ReplyRefused(Exception):
    """Error for a reply that is compressed or too large; the message continues a sentence that begins "the service"."""


def limit_replies(max_bytes: int, seconds: float) -> Callable[[httpx.Response], None]:
    """Return a response hook for httpx that aborts replies that are too large, too slow or compressed.

    httpx's own timeout applies to each chunk, so a service that sends a byte now and then would never exceed it.
    """

    def limit_response(response: httpx.Response) -> None:
        encoding = response.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise ReplyRefused(f"compressed its answer ({encoding[:20]}), though it was asked not to")
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _LimitedStream(response.stream, max_bytes, seconds)

    return limit_response


class _LimitedStream(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream, max_bytes: int, seconds: float) -> None:
        self._stream, self._max_bytes = stream, max_bytes
        self._deadline = time.monotonic() + seconds

    def __iter__(self) -> Iterator[bytes]:
        n_bytes = 0
        for part in self._stream:
            n_bytes += len(part)
            if n_bytes > self._max_bytes:
                raise ReplyRefused(f"sent an answer of more than {self._max_bytes} bytes")
            if time.monotonic() > self._deadline:
                raise httpx.ReadTimeout("the answer did not end in time")
            yield part

    def close(self) -> None:
        self._stream.close()
