"""Reads the images, prompts, questions, sources and captions of a call, in any form, as a sweep's rows."""

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from plumbline.operators import rows, schemas
from plumbline.operators.errors import EMPTY_PROMPT, ConfigError, RefusedUri, RowError, check_prompt
from plumbline.operators.image_decoding import CLOSED_IMAGE
from plumbline.operators.image_rows import CAPTIONS, SOURCES

Picture = Image.Image | np.ndarray | bytes | str | Path
"""An image: decoded, as uint8 of shape (height, width), (height, width, 3) or (height, width, 4), encoded, or where its
file is."""
Shown = Picture | Sequence[Picture]
"""An image, or the frames or views of a video or a 3D model."""
IN_PNG = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
IN_TIFF = ("CMYK", "LAB", "F")
"""Modes of decoded images that these formats keep as they are; all others become RGB."""


class AskedPrompt(NamedTuple):
    """A prompt with the questions that came with it, under an id made of both."""

    prompt_id: str
    text: str
    """Empty if the prompt cannot be used."""
    questions: Any = None
    """As the caller gave them, or None."""


class Call(NamedTuple):
    """What one call of the scorer is about."""

    prompts: Mapping[str, AskedPrompt]
    """By prompt_id."""
    prompt_rows: pa.Table
    """Schema PROMPTS."""
    image_rows: pa.Table
    unusable: Mapping[str, RowError]
    """Why a prompt cannot be used, by its prompt_id; stages see an empty prompt instead."""
    tables: dict[tuple[str, str], pa.Table]
    """What was made, by metric and stage."""

    def explain(self, table: pa.Table) -> pa.Table:
        """Return the scores with the reason why a prompt cannot be used in place of the error about an empty one."""
        if not self.unusable:
            return table
        given = zip(table.column("prompt_id").to_pylist(), table.column("error").to_pylist(), strict=True)
        errors = [
            self.unusable[prompt_id]._asdict()
            if error is not None and error["kind"] == EMPTY_PROMPT.kind and prompt_id in self.unusable
            else error
            for prompt_id, error in given
        ]
        place = table.schema.get_field_index("error")
        return table.set_column(place, table.schema.field(place), pa.array(errors, table.schema.field(place).type))


def read_call(
    images: Picture | Iterable[Shown | None],
    prompts: str | Iterable[str | None],
    questions: Iterable[Any] | None,
    sources: Picture | Iterable[Shown | None] | None,
    captions: Iterable[tuple[str, str] | None] | None,
) -> Call:
    """Return the rows that a sweep would read from its sources; raises ConfigError for lists of different lengths."""
    shown = [_pictures(image, f"images[{place}]") for place, image in enumerate(_list_images(images, "images"))]
    given = [prompts] * len(shown) if isinstance(prompts, str) else list_values(prompts, "prompts")
    lists = [None] * len(shown) if questions is None else list_values(questions, "questions")
    if len(shown) != len(given):
        raise ConfigError(
            f"expected one prompt beside every image, got {len(shown)} images and {len(given)} prompts; one text that "
            "is in no list is the prompt of all"
        )
    if len(shown) != len(lists):
        raise ConfigError(
            f"questions: expected a list, or None, beside every image, got {len(shown)} images and {len(lists)} entries"
        )
    unusable: dict[str, RowError] = {}
    asked = [_read_prompt(prompt, listed, unusable) for prompt, listed in zip(given, lists, strict=True)]
    each = {prompt.prompt_id: prompt for prompt in asked}
    prompt_rows = [{"prompt_id": prompt.prompt_id, "text": prompt.text} for prompt in each.values()]
    image_rows = _image_rows(shown, [prompt.prompt_id for prompt in asked])
    if sources is not None:
        image_rows = _with_sources(image_rows, sources)
    if captions is not None:
        image_rows = _with_captions(image_rows, list_values(captions, "captions"))
    return Call(each, rows.table(prompt_rows, schemas.PROMPTS), image_rows, unusable, {})


def list_values(values: Any, name: str) -> list[Any]:
    """Return the values of a list, array, pandas Series, column or iterator in order, whatever index they have.

    Raises ConfigError for what has no order or several dimensions.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return list(values.to_pylist())
    unordered = isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable)
    if unordered or getattr(values, "ndim", 1) != 1:
        raise ConfigError(
            f"{name}: expected a list, array of one dimension, Series or iterator, got a value of type "
            f"{_type_name(values)}"
        )
    return [*values]


def find_prompt_error(prompt: Any) -> RowError | None:
    """Return why no image can be scored for this prompt, or None if it is a text to ask about, with a form in UTF-8."""
    if rows.is_missing(prompt):
        return EMPTY_PROMPT
    if not isinstance(prompt, str):
        return RowError("unusable_prompt", f"expected the prompt as text, found {_type_name(prompt)}; convert it")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        found = f"half a character (U+{ord(prompt[error.start]):04X}) at position {error.start}"
        return RowError("unusable_prompt", f"expected the prompt as text, found {found}; remove it")
    return check_prompt(prompt)


def hash_prompt(prompt: str) -> str:
    """Return the id of a prompt that has none of its own."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def read_file(path: str) -> bytes:
    """Return the bytes of a file of this machine; raises RefusedUri for an address, OSError for no file."""
    if "://" in path:
        raise RefusedUri("it is an address, and only files of this machine are read; download it, or pass its bytes")
    return Path(path).expanduser().read_bytes()


def _read_prompt(prompt: Any, questions: Any, unusable: dict[str, RowError]) -> AskedPrompt:
    """Return the prompt with an id made of its text and questions; an unusable one is empty, and adds its reason."""
    error = find_prompt_error(prompt)
    of_questions = "" if questions is None else f"-{hash_prompt(repr(questions))}"
    if error is None or error == EMPTY_PROMPT:
        text = "" if error else str(prompt)
        return AskedPrompt(hash_prompt(text) + of_questions, text, questions)
    prompt_id = hash_prompt(f"\0{error.message}") + of_questions  # no prompt that anybody writes has this id
    unusable[prompt_id] = error
    return AskedPrompt(prompt_id, "", questions)


def _image_rows(images: Sequence[Sequence[Picture | None]], prompt_ids: Sequence[str]) -> pa.Table:
    ids = {"image_id": [str(place) for place in range(len(images))], "prompt_id": prompt_ids}
    return pa.table({**ids, **_picture_columns(images, "image", "uri")})


def _with_sources(image_rows: pa.Table, sources: Picture | Iterable[Shown | None]) -> pa.Table:
    """Return the rows with the sources beside their images; raises ConfigError for another number of sources."""
    each = _list_images(sources, "sources") * (len(image_rows) if _is_alone(sources) else 1)
    if len(each) != len(image_rows):
        raise ConfigError(
            f"sources: expected one, or a list or None, beside every image, got {len(image_rows)} images and "
            f"{len(each)} sources"
        )
    shown = [_pictures(source, f"sources[{place}]") for place, source in enumerate(each)]
    for name, column in _picture_columns(shown, *SOURCES).items():
        image_rows = image_rows.append_column(name, column)
    return image_rows


def _with_captions(image_rows: pa.Table, captions: Sequence[Any]) -> pa.Table:
    """Return the rows with the captions of their edits; raises ConfigError for another number of them.

    An edit has no captions if one of its two cannot be used.
    """
    if len(captions) != len(image_rows):
        raise ConfigError(
            f"captions: expected two, or None, beside every image, got {len(image_rows)} images and {len(captions)} "
            "entries"
        )
    for place, both in enumerate(captions):
        texts = isinstance(both, tuple | list) and [isinstance(one, str) for one in both] == [True, True]
        if not rows.is_missing(both) and not texts:
            raise ConfigError(f"captions[{place}]: expected two texts, (source, target), got {both!r}")
    usable = [None if rows.is_missing(both) or any(map(find_prompt_error, both)) else both for both in captions]
    for place, name in enumerate(CAPTIONS):
        image_rows = image_rows.append_column(name, pa.array([both and both[place] for both in usable], pa.string()))
    return image_rows


def _picture_columns(pictures: Sequence[Sequence[Picture | None]], image: str, uri: str) -> dict[str, pa.Array]:
    """Return the columns of these names with what is encoded, and with the addresses of files."""
    return {
        image: pa.array([[_encoded(one) for one in shown] for shown in pictures], pa.list_(pa.large_binary())),
        uri: pa.array([[_address(one) for one in shown] for shown in pictures], pa.list_(pa.string())),
    }


def _is_alone(images: Any) -> bool:
    """Return True for a single image; an array of four dimensions contains several, and one of objects or texts too."""
    if isinstance(images, np.ndarray):
        return images.ndim < 4 and images.dtype.kind not in "OU"
    return isinstance(images, Picture)


def _list_images(images: Any, name: str) -> list[Any]:
    """Return the images of a call in order."""
    if _is_alone(images):
        return [images]
    return [*images] if isinstance(images, np.ndarray) and images.ndim > 3 else list_values(images, name)


def _pictures(shown: Any, where: str) -> list[Picture | None]:
    """Return an image, or each of several, None where one is missing; raises ConfigError for what is no image."""
    if isinstance(shown, Mapping) and not {"bytes", "path"}.isdisjoint(shown):  # as `datasets` writes images
        shown = shown.get("bytes") or shown.get("path")
    if rows.is_missing(shown):
        return [None]
    if isinstance(shown, list | tuple) or (isinstance(shown, np.ndarray) and shown.dtype == object):
        return [picture for place, each in enumerate(shown) for picture in _pictures(each, f"{where}[{place}]")]
    if isinstance(shown, np.ndarray) and not _holds_colours(shown):
        found = f"an array of {shown.dtype} and shape {shown.shape}"
    elif isinstance(shown, Picture):
        return [shown]
    else:
        found = f"a value of type {type(shown).__module__}.{type(shown).__name__}"
    raise ConfigError(
        f"{where}: expected a path, encoded bytes, a PIL.Image, an array of uint8 and shape (height, width, 3), or a "
        f"list of these, got {found}; convert it, as by torchvision's to_pil_image"
    )


def _holds_colours(array: np.ndarray) -> bool:
    return array.dtype == np.uint8 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4)))


def _type_name(value: object) -> str:
    return type(value).__name__


def _address(image: Picture | None) -> str | None:
    return str(image) if isinstance(image, str | Path) and _is_text(str(image)) else None


def _is_text(path: str) -> bool:
    """Return True if a path has a form in UTF-8; the bytes of one that has none are surrogates."""
    return path.isascii() or path.encode(errors="replace").decode() == path


def _encoded(image: Picture | None) -> bytes | None:
    """Return the image's bytes; None for a file, which is read where it is decoded, if its path is text."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, np.ndarray):
        return _saved(Image.fromarray(image))
    if isinstance(image, Image.Image):
        return _saved(image)
    return _read_odd_path(image) if image is not None and _address(image) is None else None


def _read_odd_path(path: str | Path) -> bytes:
    """Return the bytes of a file whose path is not UTF-8, which no table can contain; none if it cannot be read."""
    try:
        return read_file(str(path))
    except (OSError, ValueError, RuntimeError, RefusedUri):
        return b""


def _saved(image: Image.Image) -> bytes:
    """Return the pixels without loss; if they do not decode, the bytes that they should be decoded from."""
    file = io.BytesIO()
    try:
        kept = image if image.mode in (*IN_PNG, *IN_TIFF) else image.convert("RGB")
        kept.save(file, "TIFF" if kept.mode in IN_TIFF else "PNG", compress_level=1)
    except Exception:
        return _source(image) or CLOSED_IMAGE
    return file.getvalue()


def _source(image: Image.Image) -> bytes | None:
    """Return the file of an image that was opened and not yet read; None if it is closed."""
    stream = getattr(image, "fp", None)
    if stream is None or stream.closed:
        return None
    stream.seek(0)
    return bytes(stream.read())
