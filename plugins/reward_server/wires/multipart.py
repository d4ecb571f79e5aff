"""Parses multipart/form-data bodies (RFC 7578), which contain images without base64 encoding."""

from email.message import Message
from email.parser import BytesHeaderParser

from plumbline.operators.base.errors import PlumblineError

MULTIPART_MEDIA_TYPE = "multipart/form-data"
MAX_PARTS = 10_000
MAX_PART_HEAD_BYTES = 1000
"""Maximum size in bytes of a multipart part's headers; some versions of Python parse headers in quadratic time."""
MAX_BOUNDARY_CHARACTERS = 70
"""Maximum number of characters in a boundary (RFC 2046, section 5.1.1)."""
HEADER_PARSER = BytesHeaderParser()


class BrokenMultipart(PlumblineError):
    """Raised if a body does not match the boundary in its Content-Type, or a part has no name."""


def read_multipart(body: bytes, media: str) -> dict[str, list[bytes]]:
    """Return the contents of the parts by name, in the order sent; raise BrokenMultipart if the body is malformed."""
    boundary = _read_boundary(media)
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary, MAX_PARTS)
    if not parts or not parts.pop().startswith(b"--"):
        raise BrokenMultipart(f"expected a closing boundary after at most {MAX_PARTS} parts, found none")
    contents: dict[str, list[bytes]] = {}
    for number, part in enumerate(parts):
        end = part.find(b"\r\n\r\n", 0, MAX_PART_HEAD_BYTES)
        if end < 0:
            raise BrokenMultipart(
                f"part {number}: expected headers of at most {MAX_PART_HEAD_BYTES} bytes and an empty line, "
                "found no end"
            )
        contents.setdefault(_read_name(part[:end], number), []).append(part[end + 4 :])
    return contents


def _read_boundary(media: str) -> bytes:
    header = Message()
    header["Content-Type"] = media[:MAX_PART_HEAD_BYTES]
    boundary = header.get_param("boundary")
    if not isinstance(boundary, str) or not 0 < len(boundary) <= MAX_BOUNDARY_CHARACTERS or not boundary.isascii():
        raise BrokenMultipart(
            f"expected Content-Type: {MULTIPART_MEDIA_TYPE}; boundary=... of at most {MAX_BOUNDARY_CHARACTERS} "
            "characters, found no boundary"
        )
    return boundary.encode()


def _read_name(head: bytes, number: int) -> str:
    name = HEADER_PARSER.parsebytes(head.lstrip()).get_param("name", header="content-disposition")
    if not isinstance(name, str) or not name:
        raise BrokenMultipart(f'part {number}: expected Content-Disposition: form-data; name="...", found no name')
    return name
