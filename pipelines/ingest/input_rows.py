"""Rows of ingested images: their columns, ids and settings, and the reasons for refusing a row."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.generation_settings import SETTING_NAMES, SETTINGS_COLUMN, make_settings_type
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import Refused, Rejection, convert_to_list, require_utf8
from plumbline.pipelines.sources.input_columns import DEFAULT_COLUMN_NAMES, InputColumnsConfig, find_column_names
from plumbline.pipelines.sources.origins import Origins
from plumbline.pipelines.sources.shards import hash_text

SHARD_SCHEMA = pa.schema(
    [("image_id", pa.string()), ("prompt_id", pa.string()), ("image", pa.binary()), ("prompt", pa.string())]
)
"""Columns of every shard, which precede the table's other columns."""
URI_FIELD = pa.field("uri", pa.string())
"""Column that replaces the image column if images are not copied."""
SKILLS_FIELD = pa.field("skills", pa.list_(pa.string()))
"""Column with the skills of prompts, only in shards whose input contains skills."""
SOURCE_FIELD = pa.field("source", pa.list_(pa.binary()))
"""Column in shards of edits: the source images of each edit."""
SETTINGS_FIELD = pa.field(SETTINGS_COLUMN, make_settings_type(SETTING_NAMES))
"""Column with the generation settings of an image, from its embedded texts and the usual columns of its row. Every
shard has this column unless the input has a column of the same name.
"""
SOURCE_URI_FIELD = pa.field("source_uri", pa.list_(pa.string()))
"""Column that replaces SOURCE_FIELD if images are not copied."""

IMAGE_SUFFIXES = (
    *("png", "jpg", "jpeg", "jfif", "webp", "avif", "gif", "bmp", "tif", "tiff"),
    *("mp4", "m4v", "mov", "3gp", "3g2", "webm", "mkv", "avi", "apng"),
)
"""Suffixes of image files and videos."""
FOREIGN_VIDEO_SUFFIXES = ("ts", "m2ts", "mts", "mpg", "mpeg", "wmv", "flv", "ogv")
"""Suffixes of video formats that cannot be decoded."""
FOREIGN_IMAGE_SUFFIXES = (
    "heic",
    "heif",
    "jxl",
    "jp2",
    "psd",
    "exr",
    "hdr",
    "svg",
    "tga",
    "ico",
    "dng",
    "cr2",
    "nef",
    "arw",
)
"""Suffixes of image formats that cannot be decoded."""
FOREIGN_SUFFIXES = (*FOREIGN_IMAGE_SUFFIXES, *FOREIGN_VIDEO_SUFFIXES)
EDIT_SOURCE_COLUMNS = ("source", "source_image", "input", "input_image", "original", "original_image")
EDIT_RESULT_COLUMNS = ("result", "output", "output_image", "edited", "edited_image")
"""Usual names for the result of an edit; EDIT_SOURCE_COLUMNS contains the names for the source of an edit.

A tar may contain 0.source.png next to 0.png, or 0.original_image.jpg next to 0.edited_image.jpg, like the columns of
InstructPix2Pix.
"""
MAX_NAME_BYTES = 200


class Candidate(NamedTuple):
    """A row for an image whose file has not been read yet."""

    file: str
    line: int | None
    generator: str
    image_id: str
    prompt_id: str
    prompt: str | None
    extras: dict[str, Any]
    """Values of the other columns."""
    skills: tuple[str, ...] = ()

    def reject(self, refused: Refused) -> Rejection:
        ids = {"generator": self.generator, "prompt_id": self.prompt_id, "image_id": self.image_id}
        return refused.to_rejection(self.file, self.line, **ids)

    def make_row(self, image: bytes | str, sources: Sequence[bytes | str]) -> dict[str, Any]:
        """Return the shard row, with the image and its sources as bytes or as addresses."""
        columns = ("image", SOURCE_FIELD.name) if isinstance(image, bytes) else (URI_FIELD.name, SOURCE_URI_FIELD.name)
        row = {"image_id": self.image_id, "prompt_id": self.prompt_id, "prompt": self.prompt}
        images = dict(zip(columns, (image, list(sources)), strict=True))
        return {**row, **images, "skills": list(self.skills), **self.extras}


def require_input_columns(
    available: list[str], columns: InputColumnsConfig, generator: str | None, url: str
) -> InputColumnsConfig:
    """Return the table's columns by role; raise ConfigError naming the first required column that is missing."""
    names = find_column_names(available, columns)
    listed = ", ".join(available) or "none"
    for role in DEFAULT_COLUMN_NAMES:
        if getattr(columns, role) and getattr(names, role) is None:
            raise ConfigError(f"columns.{role}: no column {getattr(columns, role)!r} in {url}; found {listed}")
    if names.image is None:
        raise ConfigError(f"{url}: expected a column of image files, found {listed}; set columns.image=NAME")
    if names.prompt is None and names.prompt_id is None:
        raise ConfigError(f"{url}: expected a column of prompts, found {listed}; set columns.prompt=NAME")
    if names.generator is None and generator is None:
        raise ConfigError(f"{url}: no column contains the generator; set generator=NAME, or columns.generator=COLUMN")
    return names


def describe_column_origins(
    columns_by_image: Sequence[InputColumnsConfig], available: Sequence[str], generator: str | None, url: str
) -> Origins:
    """Describe where prompts and generators come from, given the columns of each image in a row."""
    read = {
        name
        for names in columns_by_image
        for role, name in asdict(names).items()
        if role != "generator" or not generator
    }
    columns = ", ".join(dict.fromkeys(repr(names.generator) for names in columns_by_image))
    generators = f"generator={generator}" if generator else f"the column {columns} of {url}"
    prompt, source = columns_by_image[0].prompt or columns_by_image[0].prompt_id, columns_by_image[0].source
    sources = f"the column {source!r} of {url}" if source else ""
    unread = [name for name in available if name not in read]
    return Origins(f"the column {prompt!r} of {url}", generators, unread, sources=sources)


def refuse_foreign_format(name: str) -> None:
    """Raise Refused if the file is an image or video in a format that cannot be decoded."""
    ending = PurePosixPath(name).suffix
    if ending[1:].lower() in FOREIGN_VIDEO_SUFFIXES:
        raise Refused("foreign_format", f"{ending} videos are not supported; convert it to MP4 or WebM")
    if ending[1:].lower() in FOREIGN_IMAGE_SUFFIXES:
        raise Refused("foreign_format", f"{ending} images are not supported; convert it to PNG, JPEG or WebP")


def read_known_ids(
    values: Mapping[str, Any], names: InputColumnsConfig, generator: str | None, default_id: str | None = None
) -> dict[str, str | None]:
    """Return the generator, prompt_id and image_id of a rejected row, by name, for `Refused.to_rejection`.

    A value is None if it is missing or unusable.
    """
    with suppress(Refused):
        generator = generator or check_generator(get_text(values, names.generator))
    prompt = get_text(values, names.prompt)
    return {
        "generator": generator,
        "prompt_id": get_text(values, names.prompt_id) or (hash_text(prompt) if prompt and prompt.strip() else None),
        "image_id": get_text(values, names.image_id) or default_id,
    }


def get_text(values: Mapping[str, Any], name: str | None) -> str | None:
    """Return a value if it is text; None if it is missing or of another type."""
    with suppress(Refused):
        return _read_text(values, name)
    return None


def make_candidate(
    values: Mapping[str, Any],
    names: InputColumnsConfig,
    *,
    file: str,
    line: int | None,
    generator: str | None,
    default_id: str,
    extras: dict[str, Any],
) -> Candidate:
    """Return the row that these values describe; raise Refused if the prompt or the generator is missing."""
    prompt = _read_text(values, names.prompt)
    prompt_id = _read_text(values, names.prompt_id)
    prompt = prompt if prompt and prompt.strip() else None
    if prompt is None and prompt_id is None:
        raise Refused("empty_prompt", "the row has neither a prompt nor a prompt_id; fill one in")
    generator = check_generator(generator or _read_text(values, names.generator))
    image_id = _read_text(values, names.image_id) or default_id
    value = values.get(names.skills) if names.skills else None
    skills = convert_to_list(value) or []
    if not isinstance(skills, list) or not all(isinstance(skill, str) for skill in skills):
        expected = f"expected a list of strings, found {type(value).__name__}; write a list"
        raise Refused("bad_value", f"{names.skills}: {expected}")
    for skill in skills:
        require_utf8(skill)
    return Candidate(
        file=file,
        line=line,
        generator=generator,
        image_id=image_id,
        prompt_id=prompt_id or hash_text(prompt or ""),
        prompt=prompt,
        extras=extras,
        skills=tuple(dict.fromkeys(skills)),
    )


def _read_text(values: Mapping[str, Any], name: str | None) -> str | None:
    """Return a value as text, or None if it is empty; raise Refused if it is neither text nor an integer.

    Integers are accepted because ids often lose their quotes.
    """
    value = values.get(name) if name else None
    if value is None or value == "":
        return None
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise Refused("bad_value", f"{name}: expected text, found {type(value).__name__}; write it as text")
    require_utf8(str(value))
    return str(value)


def check_generator(name: str | None) -> str:
    """Return the generator's name; raise Refused if it cannot be used as a folder name."""
    if not name:
        raise Refused("no_generator", "the row has no generator; fill it in, or set generator=NAME")
    if name.startswith(".") or set(name) & {"/", "\\", "\0"} or len(name.encode()) > MAX_NAME_BYTES:
        raise Refused(
            "bad_generator", f"{name[:80]!r} cannot be used as a folder name; choose one without '/' or a leading '.'"
        )
    if name in ("prompts.parquet", "rejected.parquet", "manifest.json"):
        raise Refused("bad_generator", f"{name!r} is the name of a file in the output; rename the generator")
    return name


def make_relative(value: Any, folder: Place) -> str:
    """Return an image's path relative to the image folder; the value may also be the full address.

    Raises Refused if the value is empty, or if the path leads out of the folder.
    """
    if not isinstance(value, str) or not value.strip():
        raise Refused("missing_image", "the row names no image file; fill its path in")
    require_utf8(value)
    value = value.removeprefix(f"{folder.url.rstrip('/')}/")
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or "://" in value or "\0" in value or not path.parts:
        raise Refused("outside_folder", f"{value[:200]!r}: expected a path below the image folder; make it relative")
    return str(path)


def resolve_link_roots(folder: str, others: Sequence[str]) -> list[Path]:
    """Return the folders that a link in `folder` may lead to: `folder` itself and `others`, with links resolved."""
    return [Path(os.path.realpath(Path(root).expanduser())) for root in (folder, *others)]


def is_outside_roots(path: str, roots: Sequence[Path]) -> bool:
    """Return True if a local path, with links resolved, is not below any of the roots."""
    real = Path(os.path.realpath(path))
    return not any(real.is_relative_to(root) for root in roots)


def hash_json(value: Any) -> str:
    """Return the SHA-256 of a value's JSON.

    Existing shards contain these hashes, so serializing to JSON differently would cause all of them to be rewritten.
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
