"""What real pictures say of how they were generated, and that hostile ones say nothing and cost little."""

import io
import json
import zlib
from typing import Any

import pytest
from PIL import Image, PngImagePlugin

from plumbline.operators.picture_settings import picture_settings

PARAMETERS = (
    "a red cup, Steps: 3, <script>alert(1)</script>\nNegative prompt: blurry\n"
    "Steps: 28, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 7.0, Seed: 18446744073709551615, Size: 512x512, "
    'Model: "a, b"'
)
SAID = {"cfg": "7", "steps": "28", "seed": "18446744073709551615", "sampler": "DPM++ 2M Karras", "size": "32x24"}
SAMPLER = {"seed": 7, "steps": 20, "cfg": 4.5, "sampler_name": "euler", "scheduler": "normal", "model": ["4", 0]}
NODES = {"3": {"class_type": "KSampler", "inputs": SAMPLER}, "4": {"class_type": "Loader", "inputs": {"ckpt": "a"}}}
OF_NODES = {"cfg": "4.5", "steps": "20", "seed": "7", "sampler": "euler normal", "size": "32x24"}
INVOKE = {"cfg_scale": 7.5, "steps": 30, "seed": 5, "scheduler": "euler_a", "width": 512, "model": {"name": "x"}}
NOVEL = {"scale": 11.0, "steps": 28, "seed": 9, "sampler": "k_euler", "prompt": "x"}


def picture(kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 24), "teal").save(buffer, kind, **options)
    return buffer.getvalue()


def png(key: str, text: str, *, zip: bool = False) -> bytes:
    info = PngImagePlugin.PngInfo()
    info.add_text(key, text, zip=zip)
    return picture(pnginfo=info)


def exif(text: bytes) -> bytes:
    values = Image.Exif()
    values.get_ifd(0x8769)[0x9286] = text
    return values.tobytes()


@pytest.mark.parametrize(
    ("encoded", "said"),
    [
        (png("parameters", PARAMETERS), SAID),
        (png("parameters", PARAMETERS, zip=True), SAID),
        (picture("JPEG", exif=exif(b"UNICODE\0" + PARAMETERS.encode("utf-16-be"))), SAID),
        (picture("WEBP", exif=exif(b"UNICODE\0" + PARAMETERS.encode("utf-16-le"))), SAID),
        (picture("JPEG", exif=exif(b"ASCII\0\0\0" + PARAMETERS.encode())), SAID),
        (png("prompt", json.dumps(NODES)), OF_NODES),
        (png("invokeai_metadata", json.dumps(INVOKE)),
         {"cfg": "7.5", "steps": "30", "seed": "5", "sampler": "euler_a", "size": "32x24"}),
        (png("Comment", json.dumps(NOVEL)),
         {"cfg": "11", "steps": "28", "seed": "9", "sampler": "k_euler", "size": "32x24"}),
        (picture(), {"size": "32x24"}),
        (picture("JPEG"), {"size": "32x24"}),
    ],
)  # fmt: skip
def test_a_picture_says_what_its_tool_wrote(encoded: bytes, said: dict[str, str]) -> None:
    assert picture_settings(encoded) == said


def test_what_two_samplers_of_a_workflow_say_differently_is_not_told() -> None:
    other = {"class_type": "KSampler", "inputs": {**SAMPLER, "cfg": 1, "seed": ["9", 0]}}
    said = picture_settings(png("prompt", json.dumps({**NODES, "9": other})))
    assert said == {name: value for name, value in OF_NODES.items() if name != "cfg"}


def chunk(name: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")


def with_chunk(name: bytes, data: bytes) -> bytes:
    plain = picture()
    return plain[:33] + chunk(name, data) + plain[33:]


@pytest.mark.parametrize(
    "encoded",
    [
        with_chunk(b"zTXt", b"parameters\0\0" + zlib.compress(b"Steps: 1, " * 8_000_000, 9)),
        with_chunk(b"iTXt", b"parameters\0\1\0\0\0" + zlib.compress(b"Steps: 1, " * 8_000_000, 9)),
        with_chunk(b"tEXt", b"parameters\0" + b"x" * 3_000_000),
        png("prompt", "[" * 200_000),
        png("prompt", '{"1":' * 100_000),
        png("prompt", json.dumps({str(node): {"inputs": node} for node in range(1000)})),
        png("prompt", '{"1": {"inputs": {"steps": ' + "9" * 9000 + "}}}"),
        png("invokeai_metadata", "[1, 2]"),
        png("parameters", "Steps: " + ", " * 300_000),
        png("parameters", "__import__('os').system('true')"),
        picture("JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\xff" * 500),
        picture("JPEG", exif=exif(b"UNICODE\0" + b"\xd8")),
    ],
)
def test_hostile_pictures_say_no_more_than_their_size(encoded: bytes) -> None:
    assert picture_settings(encoded).keys() <= {"size"}


@pytest.mark.parametrize(
    "encoded", [b"", b"\x89PNG\r\n\x1a\n", b"RIFF", picture()[:20], b"<svg/>", b"\xff\xd8\xff\xe1\0"]
)
def test_what_is_no_picture_says_nothing(encoded: bytes) -> None:
    assert picture_settings(encoded) == {}
