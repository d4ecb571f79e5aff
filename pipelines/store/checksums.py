"""Checksums of the store's files: each file contains the SHA-256 of its remaining bytes, checked before parsing."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

DIGEST_PREFIX = "sha256:"
DIGEST_PLACEHOLDER = DIGEST_PREFIX + "0" * 64
"""Placeholder for the digest while the digest is computed."""
DIGEST_KEY = "plumbline_digest"
"""Parquet metadata key of the digest."""
CHECKSUM_FIELD = "checksum"
"""Field that contains the digest; it is the last field of a JSON file."""


class DamagedError(Exception):
    """Raised if the bytes of a file differ from the bytes that were written."""


def insert_digest(data: bytes) -> bytes:
    """Return the bytes with the last DIGEST_PLACEHOLDER replaced by their digest."""
    before, _, after = _split_at_digest(data)
    return before + _compute_digest(before, after) + after


def check_digest(data: bytes) -> str:
    """Return the digest that a file contains; raise DamagedError if any bit of the file has changed."""
    before, digest, after = _split_at_digest(data)
    if _compute_digest(before, after) != digest:
        raise DamagedError(f"its {len(data)} bytes differ from the bytes that were written")
    return digest.decode()


def check_table(data: bytes) -> None:
    """Check the digest of a Parquet file; a table that another program wrote may have no digest."""
    if DIGEST_KEY.encode() in data:
        check_digest(data)


def encode_json(content: Mapping[str, Any]) -> str:
    """Encode JSON with one field per line and the digest in the last field."""
    text = json.dumps({**content, CHECKSUM_FIELD: DIGEST_PLACEHOLDER}, indent=1) + "\n"
    return insert_digest(text.encode()).decode()


def decode_json(text: str) -> Any:
    """Return the content of a JSON file without the digest; a file that another program wrote may have no digest.

    Raises DamagedError if the digest does not match, ValueError if the text is not JSON.
    """
    if f'"{CHECKSUM_FIELD}"' in text or DIGEST_PREFIX in text[-len(DIGEST_PLACEHOLDER) - 9 :]:
        check_digest(text.encode(errors="surrogatepass"))
    content = json.loads(text)
    if isinstance(content, dict):
        content.pop(CHECKSUM_FIELD, None)
    return content


def _split_at_digest(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the bytes before the digest, the digest itself, and the bytes after it."""
    start = max(data.rfind(DIGEST_PREFIX.encode()), 0)
    end = start + len(DIGEST_PLACEHOLDER)
    return data[:start], data[start:end], data[end:]


def _compute_digest(before: bytes, after: bytes) -> bytes:
    return DIGEST_PREFIX.encode() + hashlib.sha256(before + DIGEST_PLACEHOLDER.encode() + after).hexdigest().encode()
