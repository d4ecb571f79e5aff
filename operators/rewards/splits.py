"""Which prompts are held out: by a hash of the text, so that a prompt is on the same side in every export."""

import hashlib

TRAIN, HELD_OUT = "train", "test"
RULE = (
    "test where the first 8 bytes of SHA-256 of the prompt's text in lower case, its runs of spaces made one, divided \
by 2^64 are below held_out"
)


def split_of(text: str, held_out: float) -> str:
    """`test` for this share of prompts, `train` for the others; the same in every run, whatever else the export has."""
    normal = " ".join(text.lower().split())
    place = int.from_bytes(hashlib.sha256(normal.encode(errors="replace")).digest()[:8], "big") / 2**64
    return HELD_OUT if place < held_out else TRAIN
