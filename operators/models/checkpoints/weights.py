"""Reads the header of a safetensors file, without its tensors."""

import json
import struct
from pathlib import Path

from plumbline.operators.base.errors import ModelError


def read_tensor_names(file: Path) -> list[str]:
    """Return the names of a safetensors file's tensors; raises ModelError if it is truncated or in another format."""
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > size:
                raise ValueError("its header is longer than the file")
            header = json.loads(stream.read(length))
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error) as error:
        raise ModelError(f"{file}: not a safetensors file ({error!r}); download the checkpoint again") from error
    if size != expected:
        raise ModelError(f"{file}: expected {expected} bytes, found {size}; it is truncated: download it again")
    return [name for name in header if name != "__metadata__"]
