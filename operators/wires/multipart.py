"""Bodies of multipart/form-data (RFC 7578), which bring images as they are where JSON needs base64."""

import re
from email.message import Message

from plumbline.operators.errors import PlumblineError

MULTIPART = "multipart/form-data"
MOST_PARTS = 10_000
NAME = re.compile(rb'content-disposition:[^\r\n]*?;\s*name="?([\w.-]+)', re.IGNORECASE)


class BrokenMultipart(PlumblineError):
    """A body that is not in parts as its Content-Type says, or has a part without a name."""


def read_multipart(body: bytes, media: str) -> dict[str, list[bytes]]:
    """The contents of the parts by name, each in the order sent; raises BrokenMultipart."""
    header = Message()
    header["Content-Type"] = media
    boundary = header.get_boundary()
    if not boundary:
        raise BrokenMultipart(f"expected Content-Type: {MULTIPART}; boundary=..., found no boundary")
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode(), MOST_PARTS)
    if not parts or not parts.pop().startswith(b"--"):
        raise BrokenMultipart(f"expected at most {MOST_PARTS} parts and an end after the last, found none")
    contents: dict[str, list[bytes]] = {}
    for place, part in enumerate(parts):
        headers, _, content = part.partition(b"\r\n\r\n")
        name = NAME.search(headers)
        if name is None:
            raise BrokenMultipart(f'part {place}: expected Content-Disposition: form-data; name="...", found no name')
        contents.setdefault(name[1].decode(), []).append(content)
    return contents
