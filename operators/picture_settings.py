"""What pictures say of how they were generated, in PNG's texts and in EXIF as the usual tools write them.

What is read is bounded and is text from strangers: JSON alone is parsed, nothing is evaluated, and what cannot be read
says nothing. Where each tool writes: AUTOMATIC1111/stable-diffusion-webui 00952fb, modules/images.py (PNG `parameters`,
EXIF UserComment) and 0365002, modules/infotext_utils.py (the line of settings);
comfyanonymous/ComfyUI 0109431, nodes.py (PNG `prompt`, the nodes with their inputs); invoke-ai/InvokeAI 001bba1,
invokeai/app/services/image_files/image_files_disk.py (PNG `invokeai_metadata`).
"""

import json
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from PIL import Image

from plumbline.operators.image_completeness import BoundedBytes
from plumbline.operators.settings import value_text

warnings.filterwarnings("ignore", "Corrupt EXIF data", UserWarning, "PIL")  # of pictures that then say nothing

HEAD_BYTES = 1 << 20
"""Of a picture, that are looked at: texts stand before the pixels, but for WebP's."""
HEADER_SECONDS = 1.0
FORMATS = ("PNG", "JPEG", "WEBP")
EXIF_IFD, USER_COMMENT = 0x8769, 0x9286
UNICODE = b"UNICODE\0"
LINE = re.compile(r"(?:^|, )(Steps|Sampler|Schedule type|CFG scale|Seed): ([^,]{1,200})")
JSON_KEYS = {
    "cfg": ("cfg", "cfg_scale", "scale"),
    "steps": ("steps",),
    "seed": ("seed", "noise_seed"),
    "sampler": ("sampler_name", "sampler"),
}
"""What the settings are called in the JSON of ComfyUI's nodes, InvokeAI and NovelAI."""


def picture_settings(encoded: bytes) -> dict[str, str]:
    """The settings that a picture names, and its own size in pixels; nothing of what is none, whatever its bytes."""
    try:
        with Image.open(BoundedBytes(encoded[:HEAD_BYTES], HEADER_SECONDS), formats=FORMATS) as image:
            size, said = value_text("size", image.size), _said(image.info)
    except Exception:  # whatever Pillow raises is about these bytes, of which a score will say what is wrong
        return {}
    return {**said, **({"size": size} if size else {})}


def _said(info: Mapping[Any, Any]) -> dict[str, str]:
    """What the first of the tools' texts says that says anything."""
    for key, read in READERS.items():
        text = info.get(key)
        if isinstance(text, str) and (found := read(text)):
            return found
    comment = _user_comment(info.get("exif"))
    return _of_parameters(comment) if comment else {}


def _of_parameters(text: str) -> dict[str, str]:
    """The line of AUTOMATIC1111's text that begins with `Steps`, which is its last."""
    line = next((line for line in reversed(text.splitlines()) if line.startswith("Steps: ")), "")
    said = dict(LINE.findall(line))
    schedule = said.get("Schedule type", "Automatic")
    sampler = said.get("Sampler", "") + (f" {schedule}" if schedule != "Automatic" else "")
    return _as_texts({"cfg": said.get("CFG scale"), "steps": said.get("Steps"), "seed": said.get("Seed"),
                      "sampler": sampler.strip()})  # fmt: skip


def _of_nodes(text: str) -> dict[str, str]:
    """What the nodes of a ComfyUI workflow say with one voice; links to other nodes are no values."""
    said: dict[str, set[str]] = defaultdict(set)
    for node in _object(text).values():
        inputs = node.get("inputs") if isinstance(node, dict) else None
        for name, value in _of_fields(inputs if isinstance(inputs, dict) else {}).items():
            said[name].add(value)
    return {name: values.pop() for name, values in said.items() if len(values) == 1}


def _of_fields(fields: Mapping[str, Any]) -> dict[str, str]:
    """What one object says; a sampler's schedule is part of its name."""
    found = {name: next((fields[key] for key in keys if key in fields), None) for name, keys in JSON_KEYS.items()}
    schedule = value_text("sampler", fields.get("scheduler"))
    sampler = value_text("sampler", found["sampler"])
    return _as_texts(found | {"sampler": " ".join(filter(None, (sampler, schedule if sampler else None))) or schedule})


def _as_texts(found: Mapping[str, Any]) -> dict[str, str]:
    return {name: text for name, value in found.items() if (text := value_text(name, value))}


def _of_object(text: str) -> dict[str, str]:
    return _of_fields(_object(text))


def _object(text: str) -> dict[str, Any]:
    """A JSON object; an empty one of anything else, such as one that is nested too deep."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


READERS: Mapping[str, Callable[[str], dict[str, str]]] = {
    "parameters": _of_parameters,
    "prompt": _of_nodes,
    "invokeai_metadata": _of_object,
    "Comment": _of_object,
}
"""By the key of a PNG's text."""


def _user_comment(exif: bytes | None) -> str:
    """EXIF's UserComment, as UTF-16 or UTF-8."""
    if not exif:
        return ""
    parsed = Image.Exif()
    parsed.load(exif)
    comment = parsed.get_ifd(EXIF_IFD).get(USER_COMMENT, b"")
    if not isinstance(comment, bytes):
        return str(comment)
    code, text = comment[: len(UNICODE)], comment[len(UNICODE) :]
    if code != UNICODE:
        return (text if code.startswith(b"ASCII\0") else comment).decode("utf-8", "replace")
    return text.decode("utf-16-be" if text[:1] == b"\0" else "utf-16-le", "replace")
