"""The SHA-256 that a file of the store holds of all its other bytes: written with it, checked before it is parsed."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

DIGEST_MARK = "sha256:"
NO_DIGEST = DIGEST_MARK + "0" * 64
"""Stands in place of a file's digest while that is made, and checked."""
DIGEST_KEY = "plumbline_digest"
"""What holds the digest in a Parquet file's metadata."""
CHECKSUM = "checksum"
"""The last field of a JSON file, which holds the digest."""

PAGE_COMMENT = "<!-- {} -->"
PAGE_END = ("</html>", "</html>\n")


class DamagedError(Exception):
    """Bytes are not those of a file that was written."""


def with_digest(data: bytes) -> bytes:
    """The bytes with their digest in place of the last NO_DIGEST in them."""
    before, _, after = _around_digest(data)
    return before + _digest(before, after) + after


def check_digest(data: bytes) -> str:
    """Return the digest that a file contains; raise DamagedError if a bit is not as it was written."""
    before, digest, after = _around_digest(data)
    if _digest(before, after) != digest:
        raise DamagedError(f"its {len(data)} bytes are not those that were written")
    return digest.decode()


def check_table(data: bytes) -> None:
    """As check_digest, of a Parquet file; one that was written before tables held digests is taken as it is."""
    if DIGEST_KEY.encode() in data:
        check_digest(data)


def encode_json(content: Mapping[str, Any]) -> str:
    """A JSON file, a field a line, with its digest in the last."""
    text = json.dumps({**content, CHECKSUM: NO_DIGEST}, indent=1) + "\n"
    return with_digest(text.encode()).decode()


def decode_json(text: str) -> Any:
    """What a JSON file holds, without its digest; raises DamagedError, and ValueError where it is no JSON.

    One that was written before files held digests is taken as it is.
    """
    if f'"{CHECKSUM}"' in text or DIGEST_MARK in text[-len(NO_DIGEST) - 9 :]:
        check_digest(text.encode(errors="surrogatepass"))
    content = json.loads(text)
    if isinstance(content, dict):
        content.pop(CHECKSUM, None)
    return content


def with_page_digest(html: str) -> str:
    """Return an HTML page with its digest in a comment behind its end."""
    return with_digest(f"{html.rstrip()}\n{PAGE_COMMENT.format(NO_DIGEST)}\n".encode()).decode()


def is_sound_page(text: str) -> bool:
    """Return True if a page is as it was written; one without a digest was written before pages had them."""
    if text.endswith(PAGE_END):
        return True
    try:
        check_digest(text.encode())
    except DamagedError:
        return False
    return True


def _around_digest(data: bytes) -> tuple[bytes, bytes, bytes]:
    """The bytes before the digest, the digest itself and the bytes after it."""
    place = max(data.rfind(DIGEST_MARK.encode()), 0)
    end = place + len(NO_DIGEST)
    return data[:place], data[place:end], data[end:]


def _digest(before: bytes, after: bytes) -> bytes:
    return DIGEST_MARK.encode() + hashlib.sha256(before + NO_DIGEST.encode() + after).hexdigest().encode()
