"""Reads the images, prompts, questions, sources and captions of a call, in any form, as a sweep's rows."""

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import EMPTY_PROMPT, ConfigError, RefusedUri, RowError, check_prompt
from plumbline.operators.base.sequences import list_values
from plumbline.operators.images.decoding import CLOSED_IMAGE
from plumbline.operators.images.rows import CAPTIONS, SOURCES

Picture = Image.Image | np.ndarray | bytes | str | Path
"""An image: decoded, as uint8 of shape (height, width), (height, width, 3) or (height, width, 4), encoded, or the path
of its file."""
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
    """The caller's questions, or None."""


class Call(NamedTuple):
    """The input of one call of the scorer."""

    prompts: Mapping[str, AskedPrompt]
    """Prompts by prompt_id."""
    prompt_rows: pa.Table
    """Schema PROMPTS."""
    image_rows: pa.Table
    unusable: Mapping[str, RowError]
    """Error of each prompt that cannot be used, by prompt_id; stages see an empty prompt instead."""
    tables: dict[tuple[str, str], pa.Table]
    """Computed tables, by metric and stage."""

    def explain(self, table: pa.Table) -> pa.Table:
        """Return the scores with errors about an empty prompt replaced by why the caller's prompt cannot be used."""
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
            f"expected one prompt for each image, got {len(shown)} images and {len(given)} prompts; a text outside a "
            "list is the prompt of all images"
        )
    if len(shown) != len(lists):
        raise ConfigError(
            f"questions: expected a list or None for each image, got {len(shown)} images and {len(lists)} entries"
        )
    unusable: dict[str, RowError] = {}
    asked = [_read_prompt(prompt, listed, unusable) for prompt, listed in zip(given, lists, strict=True)]
    each = {prompt.prompt_id: prompt for prompt in asked}
    prompt_rows = [{"prompt_id": prompt.prompt_id, "text": prompt.text} for prompt in each.values()]
    ids = {
        "image_id": [str(place) for place in range(len(shown))],
        "prompt_id": [prompt.prompt_id for prompt in asked],
    }
    image_rows = pa.table({**ids, **_picture_columns(shown, "image", "uri")})
    if sources is not None:
        image_rows = _add_sources(image_rows, sources)
    if captions is not None:
        image_rows = _add_captions(image_rows, list_values(captions, "captions"))
    return Call(each, rows.table(prompt_rows, schemas.PROMPTS), image_rows, unusable, {})


def find_prompt_error(prompt: Any) -> RowError | None:
    """Return why no image can be scored for this prompt, or None if it is a text that UTF-8 can encode."""
    if rows.is_missing(prompt):
        return EMPTY_PROMPT
    if not isinstance(prompt, str):
        return RowError("unusable_prompt", f"expected the prompt as text, found {type(prompt).__name__}; convert it")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        found = f"half a character (U+{ord(prompt[error.start]):04X}) at position {error.start}"
        return RowError("unusable_prompt", f"expected the prompt as text, found {found}; remove it")
    return check_prompt(prompt)


def hash_prompt(prompt: str) -> str:
    """Return the id of a prompt without an id of its own."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def read_file(path: str) -> bytes:
    """Return the bytes of a local file; raises RefusedUri for an address, OSError if the file cannot be read."""
    if "://" in path:
        raise RefusedUri("it is an address, and only files of this machine are read; download it, or pass its bytes")
    return Path(path).expanduser().read_bytes()


def _read_prompt(prompt: Any, questions: Any, unusable: dict[str, RowError]) -> AskedPrompt:
    """Return the prompt with an id made of its text and questions.

    If it cannot be used, its text is empty and its error is added to `unusable`.
    """
    error = find_prompt_error(prompt)
    suffix = "" if questions is None else f"-{hash_prompt(repr(questions))}"
    if error is None or error == EMPTY_PROMPT:
        text = "" if error else str(prompt)
        return AskedPrompt(hash_prompt(text) + suffix, text, questions)
    prompt_id = hash_prompt(f"\0{error.message}") + suffix  # the id of no usable prompt
    unusable[prompt_id] = error
    return AskedPrompt(prompt_id, "", questions)


def _add_sources(image_rows: pa.Table, sources: Picture | Iterable[Shown | None]) -> pa.Table:
    """Return the rows with the sources of their images; raises ConfigError for another number of sources."""
    each = _list_images(sources, "sources") * (len(image_rows) if _is_alone(sources) else 1)
    if len(each) != len(image_rows):
        raise ConfigError(
            f"sources: expected a source, a list of sources or None for each image, got {len(image_rows)} images and "
            f"{len(each)} sources"
        )
    shown = [_pictures(source, f"sources[{place}]") for place, source in enumerate(each)]
    for name, column in _picture_columns(shown, *SOURCES).items():
        image_rows = image_rows.append_column(name, column)
    return image_rows


def _add_captions(image_rows: pa.Table, captions: Sequence[Any]) -> pa.Table:
    """Return the rows with the captions of their edits; raises ConfigError for another number of captions.

    An edit has no captions if either of the two cannot be used.
    """
    if len(captions) != len(image_rows):
        raise ConfigError(
            f"captions: expected two texts or None for each image, got {len(image_rows)} images and {len(captions)} "
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
    """Return two columns by their names: `image` has encoded images, `uri` the addresses of files."""
    return {
        image: pa.array([[_encode(one) for one in shown] for shown in pictures], pa.list_(pa.large_binary())),
        uri: pa.array([[_find_address(one) for one in shown] for shown in pictures], pa.list_(pa.string())),
    }


def _is_alone(images: Any) -> bool:
    """Return True for a single image; an array of four dimensions, of objects or of texts contains several."""
    if isinstance(images, np.ndarray):
        return images.ndim < 4 and images.dtype.kind not in "OU"
    return isinstance(images, Picture)


def _list_images(images: Any, name: str) -> list[Any]:
    """Return the images of a call in order."""
    if _is_alone(images):
        return [images]
    return [*images] if isinstance(images, np.ndarray) and images.ndim > 3 else list_values(images, name)


def _pictures(shown: Any, where: str) -> list[Picture | None]:
    """Return an image, or each of several, with None for a missing image; raises ConfigError for anything else."""
    if isinstance(shown, Mapping) and not {"bytes", "path"}.isdisjoint(shown):  # as `datasets` writes images
        shown = shown.get("bytes") or shown.get("path")
    if rows.is_missing(shown):
        return [None]
    if isinstance(shown, list | tuple) or (isinstance(shown, np.ndarray) and shown.dtype == object):
        return [picture for place, each in enumerate(shown) for picture in _pictures(each, f"{where}[{place}]")]
    if isinstance(shown, np.ndarray) and not _has_pixel_shape(shown):
        found = f"an array of {shown.dtype} and shape {shown.shape}"
    elif isinstance(shown, Picture):
        return [shown]
    else:
        found = f"a value of type {type(shown).__module__}.{type(shown).__name__}"
    raise ConfigError(
        f"{where}: expected a path, encoded bytes, a PIL.Image, an array of uint8 and shape (height, width, 3), or a "
        f"list of these, got {found}; convert it, as by torchvision's to_pil_image"
    )


def _has_pixel_shape(array: np.ndarray) -> bool:
    return array.dtype == np.uint8 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4)))


def _find_address(image: Picture | None) -> str | None:
    return str(image) if isinstance(image, str | Path) and _is_text(str(image)) else None


def _is_text(path: str) -> bool:
    """Return True if UTF-8 can encode a path; other bytes of a path are surrogates in Python."""
    return path.isascii() or path.encode(errors="replace").decode() == path


def _encode(image: Picture | None) -> bytes | None:
    """Return the image's bytes, or None for a file with a path that is text: it is read when it is decoded."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, np.ndarray):
        return _save(Image.fromarray(image))
    if isinstance(image, Image.Image):
        return _save(image)
    return _read_odd_path(image) if image is not None and _find_address(image) is None else None


def _read_odd_path(path: str | Path) -> bytes:
    """Return the bytes of a file whose path is not UTF-8, which no table can contain; empty if it cannot be read."""
    try:
        return read_file(str(path))
    except (OSError, ValueError, RuntimeError, RefusedUri):
        return b""


def _save(image: Image.Image) -> bytes:
    """Return the pixels, encoded without loss; if they do not decode, return the bytes of the image's file."""
    file = io.BytesIO()
    try:
        kept = image if image.mode in (*IN_PNG, *IN_TIFF) else image.convert("RGB")
        kept.save(file, "TIFF" if kept.mode in IN_TIFF else "PNG", compress_level=1)
    except Exception:
        return _source(image) or CLOSED_IMAGE
    return file.getvalue()


def _source(image: Image.Image) -> bytes | None:
    """Return the bytes of an image's file if the image was opened and not read yet; None if it is closed."""
    stream = getattr(image, "fp", None)
    if stream is None or stream.closed:
        return None
    stream.seek(0)
    return bytes(stream.read())
