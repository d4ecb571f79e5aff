"""Reads the settings that image generators write into PNG text chunks and EXIF.

The texts are untrusted: their length is bounded, only JSON is parsed, nothing is evaluated, and unreadable texts are
ignored.

Where each tool writes its settings: AUTOMATIC1111/stable-diffusion-webui 00952fb, modules/images.py (PNG `parameters`,
EXIF UserComment) and 0365002, modules/infotext_utils.py (the line of settings); comfyanonymous/ComfyUI 0109431,
nodes.py (PNG `prompt`, the nodes with their inputs; in an animated WebP, EXIF Model); invoke-ai/InvokeAI 001bba1,
invokeai/app/services/image_files/image_files_disk.py (PNG `invokeai_metadata`); lllyasviel/Fooocus 59f183a,
modules/meta_parser.py (PNG `parameters`, EXIF UserComment in the main directory: JSON, or text in AUTOMATIC1111's
format); mcmonkeyprojects/SwarmUI 062407c, src/Text2Image/T2IParamInput.cs (PNG `parameters`, EXIF
UserComment: `sui_image_params`); Forge uses AUTOMATIC1111's format, with `Distilled CFG Scale`.
"""

import json
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from PIL import Image

from plumbline.operators.images.generation_settings import format_value
from plumbline.operators.images.image_formats import BoundedBytes

warnings.filterwarnings("ignore", "Corrupt EXIF data", UserWarning, "PIL")  # such EXIF is ignored

HEAD_BYTES = 1 << 20
"""Number of bytes read from an image whose texts precede the pixels. A WebP is read completely, because its texts come
last.
"""
HEADER_TIMEOUT = 1.0
READ_FORMATS = ("PNG", "JPEG", "WEBP")
EXIF_IFD, USER_COMMENT, CAMERA_MODEL = 0x8769, 0x9286, 0x0110
UNICODE_PREFIX, ASCII_PREFIX = b"UNICODE\0", b"ASCII\0\0\0"
NODES_PREFIX = "prompt:"
"""Prefix that ComfyUI writes before the nodes in EXIF."""
MAX_LINE_CHARACTERS = 1 << 16
SETTING_PATTERN = re.compile(r"""(?:^|,[ ])([\w][\w /-]{0,60}):[ ]("(?:\\.|[^"\\])*(?:"|$)|[^,]*)""", re.VERBOSE)
"""Pattern for one setting in the line of settings that AUTOMATIC1111 writes. Values with commas are quoted; names
inside quotes are not settings.
"""
JSON_KEYS = {
    "cfg": ("cfg", "cfg_scale", "guidance_scale", "cfgscale", "Guidance Scale"),
    "distilled": ("guidance", "fluxguidancescale"),
    "steps": ("steps", "Steps"),
    "seed": ("seed", "noise_seed", "Seed"),
    "sampler": ("sampler_name", "sampler", "comfyuisampler", "Sampler"),
    "schedule": ("scheduler", "comfyuischeduler", "Scheduler"),
}
"""JSON keys of each setting, as used by ComfyUI's nodes, InvokeAI, SwarmUI, Fooocus (also older releases) and NovelAI.
"""
NOVELAI_CFG_KEY = "scale"
"""NovelAI's key for cfg. In ComfyUI's nodes, `scale` means resizing."""


def read_image_settings(encoded: bytes) -> dict[str, str]:
    """Return the settings in an image file by name, and its size in pixels; empty if the bytes are not an image."""
    try:
        head = encoded if encoded.startswith(b"RIFF") else encoded[:HEAD_BYTES]
        with Image.open(BoundedBytes(head, HEADER_TIMEOUT), formats=READ_FORMATS) as image:
            texts = ((read, image.info.get(key)) for key, read in CHUNK_READERS.items())
            in_texts = (read(text) for read, text in texts if isinstance(text, str))
            settings = next(filter(None, in_texts), None) or _read_exif(image.info.get("exif"))
            size = format_value("size", image.size)
    except Exception:  # any exception of Pillow is about these bytes; scoring the image reports what is wrong
        return {}
    return {**settings, **({"size": size} if size else {})}


def _read_exif(exif: bytes | None) -> dict[str, str]:
    """Return a mapping of the settings in EXIF's UserComment or Model (which ComfyUI uses); empty if there are none."""
    if not exif:
        return {}
    parsed = Image.Exif()
    parsed.load(exif)
    nodes = parsed.get(CAMERA_MODEL)
    if isinstance(nodes, str) and nodes.startswith(NODES_PREFIX):
        return _read_nodes(nodes.removeprefix(NODES_PREFIX).rstrip("\0"))
    comment = parsed.get_ifd(EXIF_IFD).get(USER_COMMENT) or parsed.get(USER_COMMENT)  # Fooocus has no EXIF directory
    if not isinstance(comment, bytes):
        return _read_parameters(str(comment or ""))
    code, text = comment[: len(UNICODE_PREFIX)], comment[len(UNICODE_PREFIX) :]
    if code != UNICODE_PREFIX:
        return _read_parameters((text if code == ASCII_PREFIX else comment).decode("utf-8", "replace"))
    # Tools write UTF-16 of either byte order, mostly without a byte order mark.
    orders = ("utf-16",) if text.startswith((b"\xfe\xff", b"\xff\xfe")) else ("utf-16-be", "utf-16-le")
    return next(filter(None, (_read_parameters(text.decode(order, "replace")) for order in orders)), {})


def _read_parameters(text: str) -> dict[str, str]:
    """Return a mapping of the settings in the text of a PNG `parameters` chunk or an EXIF UserComment.

    The text is JSON (SwarmUI, Fooocus), or its settings are on the last line that starts with `Steps` (AUTOMATIC1111).
    """
    if text.lstrip().startswith("{"):
        fields = _parse_object(text)
        swarm = fields.get("sui_image_params")
        return _format_settings(_select_settings(swarm if isinstance(swarm, dict) else fields))
    line = next((line for line in reversed(text.splitlines()) if line.startswith("Steps: ")), "")[:MAX_LINE_CHARACTERS]
    found = {name: value for name, value in SETTING_PATTERN.findall(line) if not value.startswith('"')}
    schedule = found.get("Schedule type", found.get("Scheduler"))
    return _format_settings({
        "cfg": found.get("CFG scale"), "distilled": found.get("Distilled CFG Scale"), "steps": found.get("Steps"),
        "seed": found.get("Seed"), "sampler": found.get("Sampler"),
        "schedule": None if schedule == "Automatic" else schedule,
    })  # fmt: skip


def _read_nodes(text: str) -> dict[str, str]:
    """Return a mapping of the settings in the nodes of a ComfyUI workflow (JSON); ignore links between nodes.

    A setting counts only if it has a single value across all nodes. If sampler or schedule has several values, neither
    counts; the same applies to cfg and distilled guidance. The sampler and its schedule, steps, seed and guidance may
    be in separate nodes.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for node in _parse_object(text).values():
        inputs = node.get("inputs") if isinstance(node, dict) else None
        for name, value in _select_settings(inputs if isinstance(inputs, dict) else {}).items():
            if text_of_value := format_value(name, value):
                found[name].add(text_of_value)
    if len(found["sampler"]) > 1 or len(found["schedule"]) > 1:
        found["sampler"] = found["schedule"] = set()
    if len(found["cfg"]) > 1 or len(found["distilled"]) > 1:
        found["cfg"] = found["distilled"] = set()
    return _format_settings({name: values.pop() for name, values in found.items() if len(values) == 1})


def _select_settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: next((fields[key] for key in keys if key in fields), None) for name, keys in JSON_KEYS.items()}
    return {name: value for name, value in found.items() if value is not None}


def _format_settings(found: Mapping[str, Any]) -> dict[str, str]:
    texts = {name: text for name, value in found.items() if (text := format_value(name, value))}
    schedule, sampler = texts.pop("schedule", ""), texts.get("sampler", "")
    distilled, cfg = texts.pop("distilled", ""), texts.get("cfg", "")
    if distilled:  # a model with distilled guidance runs with a cfg of 1
        cfg = distilled if cfg in ("", "1") else f"{cfg} distilled {distilled}"
    texts |= {"sampler": " ".join(filter(None, (sampler, schedule))), "cfg": cfg}
    return {name: text for name, text in texts.items() if text}


def _parse_object(text: str) -> dict[str, Any]:
    """Return the JSON object in a text as a dictionary; empty for anything else, such as JSON nested too deeply."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_invokeai(text: str) -> dict[str, str]:
    fields = _parse_object(text)
    image = fields.get("image")
    return _format_settings(_select_settings(image if isinstance(image, dict) else fields))


def _read_novelai(text: str) -> dict[str, str]:
    fields = _parse_object(text)
    return _format_settings(_select_settings({"cfg": fields.get(NOVELAI_CFG_KEY), **fields}))


CHUNK_READERS: Mapping[str, Callable[[str], dict[str, str]]] = {
    "parameters": _read_parameters,
    "prompt": _read_nodes,
    "invokeai_metadata": _read_invokeai,
    "sd-metadata": _read_invokeai,
    "Comment": _read_novelai,
}
"""Readers by the key of a PNG text chunk; InvokeAI 2 uses the key `sd-metadata`."""
