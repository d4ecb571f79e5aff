"""Ways to hurt a worker from the data: an image that carries DEADLY ends the process that decodes it, one that carries
HANGING keeps it for ever."""

import os
import threading
from collections.abc import Mapping
from typing import Any

DEADLY = b"this image ends the process that decodes it"
HANGING = b"decoding this image never ends"


def install() -> None:
    """Runs in every Ray worker before anything else."""
    import operators.images as module

    decode = module.decode_image

    def deadly_decode(row: Mapping[str, Any], *arguments: Any) -> Any:
        if DEADLY in (row.get("image") or b""):
            os._exit(1)
        if HANGING in (row.get("image") or b""):
            threading.Event().wait()
        return decode(row, *arguments)

    module.decode_image = deadly_decode
