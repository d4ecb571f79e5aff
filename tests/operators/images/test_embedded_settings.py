"""Generation settings are read from image metadata; malicious metadata yields no settings and takes little time."""

import io
import json
import random
import zlib
from typing import Any

import pytest
from PIL import Image, PngImagePlugin

from plumbline.operators.images.embedded_settings import read_image_settings

PARAMETERS_TEXT = (
    "a red cup, Steps: 3, <script>alert(1)</script>\nNegative prompt: blurry\n"
    "Steps: 28, Sampler: DPM++ 2M, Schedule type: Karras, CFG scale: 7.0, Seed: 18446744073709551615, Size: 512x512, "
    'Model: "a, b"'
)
PARSED_PARAMETERS = {
    "cfg": "7",
    "steps": "28",
    "seed": "18446744073709551615",
    "sampler": "DPM++ 2M Karras",
    "size": "32x24",
}
SAMPLER_INPUTS = {"seed": 7, "steps": 20, "cfg": 4.5, "sampler_name": "euler", "scheduler": "normal", "model": ["4", 0]}
COMFYUI_NODES = {
    "3": {"class_type": "KSampler", "inputs": SAMPLER_INPUTS},
    "4": {"class_type": "Loader", "inputs": {"ckpt": "a"}},
}
PARSED_NODES = {"cfg": "4.5", "steps": "20", "seed": "7", "sampler": "euler normal", "size": "32x24"}
INVOKE_METADATA = {
    "cfg_scale": 7.5,
    "steps": 30,
    "seed": 5,
    "scheduler": "euler_a",
    "width": 512,
    "model": {"name": "x"},
}
NOVELAI_METADATA = {"scale": 11.0, "steps": 28, "seed": 9, "sampler": "k_euler", "prompt": "x"}


def make_image(kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 24), "teal").save(buffer, kind, **options)
    return buffer.getvalue()


def make_png(key: str, text: str, *, zip: bool = False) -> bytes:
    info = PngImagePlugin.PngInfo()
    info.add_text(key, text, zip=zip)
    return make_image(pnginfo=info)


def make_exif(text: bytes) -> bytes:
    values = Image.Exif()
    values.get_ifd(0x8769)[0x9286] = text
    return values.tobytes()


@pytest.mark.parametrize(
    ("encoded", "said"),
    [
        (make_png("parameters", PARAMETERS_TEXT), PARSED_PARAMETERS),
        (make_png("parameters", PARAMETERS_TEXT, zip=True), PARSED_PARAMETERS),
        (make_image("JPEG", exif=make_exif(b"UNICODE\0" + PARAMETERS_TEXT.encode("utf-16-be"))), PARSED_PARAMETERS),
        (make_image("WEBP", exif=make_exif(b"UNICODE\0" + PARAMETERS_TEXT.encode("utf-16-le"))), PARSED_PARAMETERS),
        (make_image("JPEG", exif=make_exif(b"ASCII\0\0\0" + PARAMETERS_TEXT.encode())), PARSED_PARAMETERS),
        (make_png("prompt", json.dumps(COMFYUI_NODES)), PARSED_NODES),
        (make_png("invokeai_metadata", json.dumps(INVOKE_METADATA)),
         {"cfg": "7.5", "steps": "30", "seed": "5", "sampler": "euler_a", "size": "32x24"}),
        (make_png("Comment", json.dumps(NOVELAI_METADATA)),
         {"cfg": "11", "steps": "28", "seed": "9", "sampler": "k_euler", "size": "32x24"}),
        (make_image(), {"size": "32x24"}),
        (make_image("JPEG"), {"size": "32x24"}),
    ],
)  # fmt: skip
def test_settings_of_every_tool_are_read_from_the_image(encoded: bytes, said: dict[str, str]) -> None:
    assert read_image_settings(encoded) == said


PROMPTS = ("一只红色的杯子", "красная чашка", "كوب أحمر", "a red cup", "", "🫖", "ĀȀ" * 200)
STEPS_LINE = (
    "Steps: 28, Sampler: Euler a, Schedule type: Karras, CFG scale: 7, Seed: 5, Size: 512x512, "
    'Template: "x, Seed: 9, y", Lora hashes: "a: 1, Steps: 3"'
)


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("order", ["utf-16-be", "utf-16-le", "utf-16"])
@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_settings_are_read_with_a_prompt_in_any_script(prompt: str, order: str, kind: str) -> None:
    """AUTOMATIC1111 writes big-endian UTF-16; others write little-endian UTF-16, or put a byte order mark first."""
    text = f"{prompt}\nNegative prompt: {prompt}\n{STEPS_LINE}"
    said = {"cfg": "7", "steps": "28", "seed": "5", "sampler": "Euler a Karras", "size": "32x24"}
    assert read_image_settings(make_image(kind, exif=make_exif(b"UNICODE\0" + text.encode(order)))) == said
    assert read_image_settings(make_png("parameters", text)) == said


def test_two_folders_with_different_settings_are_not_reported_as_equal() -> None:
    texts = [f"一只杯子\nSteps: 20, Sampler: Euler, CFG scale: {cfg}, Seed: 1, Size: 64x64" for cfg in (2, 9)]
    found = [
        read_image_settings(make_image("JPEG", exif=make_exif(b"UNICODE\0" + text.encode("utf-16-be"))))
        for text in texts
    ]
    assert [said["cfg"] for said in found] == ["2", "9"]


FORGE_PARAMETERS = (
    "a cup\nSteps: 20, Sampler: Euler, Schedule type: Simple, CFG scale: 1, Distilled CFG Scale: 3.5, Seed: 4"
)
SWARM_METADATA = {"sui_image_params": {"prompt": "a cup", "cfgscale": 1.0, "steps": 20, "seed": 4, "sampler": "euler",
                              "scheduler": "simple", "fluxguidancescale": 3.5, "width": 64},
         "sui_extra_data": {"steps": 9}}  # fmt: skip
FOOOCUS_METADATA = {
    "guidance_scale": 4.0,
    "steps": 30,
    "seed": "77",
    "sampler": "dpmpp_2m_sde_gpu",
    "scheduler": "karras",
}
CUSTOM_SAMPLER_NODES = {
    "13": {"class_type": "SamplerCustomAdvanced", "inputs": {"noise": ["25", 0], "guider": ["22", 0]}},
    "16": {"class_type": "KSamplerSelect", "inputs": {"sampler_name": "euler"}},
    "17": {"class_type": "BasicScheduler", "inputs": {"scheduler": "simple", "steps": 20, "denoise": 1}},
    "22": {"class_type": "BasicGuider", "inputs": {"model": ["12", 0], "conditioning": ["26", 0]}},
    "25": {"class_type": "RandomNoise", "inputs": {"noise_seed": 4}},
    "26": {"class_type": "FluxGuidance", "inputs": {"guidance": 3.5, "conditioning": ["6", 0]}},
    "30": {"class_type": "ImageScale", "inputs": {"scale": 2.0}},
}
FLUX_SETTINGS = {"cfg": "3.5", "steps": "20", "seed": "4", "size": "32x24"}
PARSED_FOOOCUS = {"cfg": "4", "steps": "30", "seed": "77", "sampler": "dpmpp_2m_sde_gpu karras", "size": "32x24"}


def encode_tags(values: dict[int, str]) -> bytes:
    tags = Image.Exif()
    for tag, value in values.items():
        tags[tag] = value
    return tags.tobytes()


@pytest.mark.parametrize(
    ("encoded", "said"),
    [
        (make_png("parameters", FORGE_PARAMETERS), {**FLUX_SETTINGS, "sampler": "Euler Simple"}),
        (make_png("parameters", FORGE_PARAMETERS.replace("CFG scale: 1", "CFG scale: 2")),
         {**FLUX_SETTINGS, "sampler": "Euler Simple", "cfg": "2 distilled 3.5"}),
        (make_png("parameters", json.dumps(SWARM_METADATA)), {**FLUX_SETTINGS, "sampler": "euler simple"}),
        (make_image("JPEG", exif=make_exif(b"UNICODE\0" + json.dumps(SWARM_METADATA).encode("utf-16-le"))),
         {**FLUX_SETTINGS, "sampler": "euler simple"}),
        (make_png("parameters", json.dumps(FOOOCUS_METADATA)), PARSED_FOOOCUS),
        (make_image("JPEG", exif=encode_tags({0x9286: json.dumps(FOOOCUS_METADATA), 0x927C: "fooocus"})),
         PARSED_FOOOCUS),
        (make_image("WEBP", exif=encode_tags({0x9286: json.dumps(FOOOCUS_METADATA), 0x927C: "fooocus"})),
         PARSED_FOOOCUS),
        (make_png("parameters",
                  "a cup\nSteps: 30, Sampler: DPM++ 2M SDE Karras, Seed: 77, CFG scale: 4, Scheduler: karras"),
         {**PARSED_FOOOCUS, "sampler": "DPM++ 2M SDE Karras karras"}),
        (make_png("prompt", json.dumps(CUSTOM_SAMPLER_NODES)), {**FLUX_SETTINGS, "sampler": "euler simple"}),
        (make_image("WEBP", exif=encode_tags({0x0110: "prompt:" + json.dumps(CUSTOM_SAMPLER_NODES)})),
         {**FLUX_SETTINGS, "sampler": "euler simple"}),
        (make_png("sd-metadata", json.dumps({"image": {"cfg_scale": 7.5, "steps": 50, "seed": 3, "sampler": "k_lms"}})),
         {"cfg": "7.5", "steps": "50", "seed": "3", "sampler": "k_lms", "size": "32x24"}),
    ],
)  # fmt: skip
def test_settings_of_distilled_models_and_other_tools_are_read(encoded: bytes, said: dict[str, str]) -> None:
    assert read_image_settings(encoded) == said


def test_guidance_that_differs_within_a_workflow_is_left_out() -> None:
    other = {"class_type": "FluxGuidance", "inputs": {"guidance": 2.0}}
    assert "cfg" not in read_image_settings(make_png("prompt", json.dumps({**CUSTOM_SAMPLER_NODES, "99": other})))


def test_settings_behind_the_pixels_of_a_large_webp_are_read() -> None:
    noise = Image.frombytes("RGB", (700, 700), random.Random(1).randbytes(700 * 700 * 3))
    buffer = io.BytesIO()
    noise.save(buffer, "WEBP", lossless=True, exif=make_exif(b"UNICODE\0" + FORGE_PARAMETERS.encode("utf-16-be")))
    assert len(buffer.getvalue()) > 1 << 20
    assert read_image_settings(buffer.getvalue())["cfg"] == "3.5"


def test_a_setting_that_differs_between_two_samplers_is_left_out() -> None:
    other = {"class_type": "KSampler", "inputs": {**SAMPLER_INPUTS, "cfg": 1, "seed": ["9", 0]}}
    said = read_image_settings(make_png("prompt", json.dumps({**COMFYUI_NODES, "9": other})))
    assert said == {name: value for name, value in PARSED_NODES.items() if name != "cfg"}


def make_chunk(name: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")


def add_chunk(name: bytes, data: bytes) -> bytes:
    plain = make_image()
    return plain[:33] + make_chunk(name, data) + plain[33:]


@pytest.mark.parametrize(
    "encoded",
    [
        add_chunk(b"zTXt", b"parameters\0\0" + zlib.compress(b"Steps: 1, " * 8_000_000, 9)),
        add_chunk(b"iTXt", b"parameters\0\1\0\0\0" + zlib.compress(b"Steps: 1, " * 8_000_000, 9)),
        add_chunk(b"tEXt", b"parameters\0" + b"x" * 3_000_000),
        make_png("prompt", "[" * 200_000),
        make_png("prompt", '{"1":' * 100_000),
        make_png("prompt", json.dumps({str(node): {"inputs": node} for node in range(1000)})),
        make_png("prompt", '{"1": {"inputs": {"steps": ' + "9" * 9000 + "}}}"),
        make_png("invokeai_metadata", "[1, 2]"),
        make_png("parameters", "Steps: " + ", " * 300_000),
        make_png("parameters", "Steps: " + ', a: "' * 150_000),
        make_png("parameters", '{"sui_image_params": [7]}'),
        make_png("parameters", "__import__('os').system('true')"),
        make_image("JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\xff" * 500),
        make_image("JPEG", exif=make_exif(b"UNICODE\0" + b"\xd8")),
    ],
)
def test_only_the_size_is_read_from_hostile_images(encoded: bytes) -> None:
    assert read_image_settings(encoded).keys() <= {"size"}


@pytest.mark.parametrize(
    "encoded", [b"", b"\x89PNG\r\n\x1a\n", b"RIFF", make_image()[:20], b"<svg/>", b"\xff\xd8\xff\xe1\0"]
)
def test_a_file_that_is_not_an_image_has_no_settings(encoded: bytes) -> None:
    assert read_image_settings(encoded) == {}
