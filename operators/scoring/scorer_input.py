"""Converts a caller's images, prompts, questions, sources and captions to rows like those of a sweep."""

import hashlib
import io
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from PIL import Image

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import EMPTY_PROMPT_ERROR, ConfigError, RefusedUriError, RowError, check_prompt
from plumbline.operators.base.rows import list_values
from plumbline.operators.images.decoding import CLOSED_IMAGE_MARK
from plumbline.operators.images.rows import CAPTION_COLUMNS, ORIGINAL_COLUMNS, SOURCE_COLUMNS
from plumbline.operators.stages.comparisons import NO_OTHER_IMAGE_ERROR

AnyImage = Image.Image | np.ndarray | bytes | str | Path
"""An image: a PIL image, a uint8 array of shape (height, width), (height, width, 3) or (height, width, 4), encoded
bytes, or the path of a file.
"""
ImageOrFrames = AnyImage | Sequence[AnyImage]
"""An image, the frames of a video, or the views of a 3D model."""
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
TIFF_MODES = ("CMYK", "LAB", "F")
"""Image modes that TIFF stores unchanged. Images in modes that are in neither PNG_MODES nor TIFF_MODES are converted to
RGB.
"""


class AskedPrompt(NamedTuple):
    """A prompt, the questions passed with it, and an id derived from both."""

    prompt_id: str
    text: str
    """The prompt's text; empty if the prompt cannot be used."""
    questions: Any = None
    """The caller's questions, or None."""


class ScorerCall(NamedTuple):
    prompts: Mapping[str, AskedPrompt]
    """Prompts by prompt_id."""
    prompt_rows: pa.Table
    """Rows of the prompts (schema PROMPTS)."""
    image_rows: pa.Table
    unusable: Mapping[str, RowError]
    """Errors of the prompts that cannot be used, by prompt_id. Stages see an empty prompt instead of such a prompt."""
    tables: dict[tuple[str, str], pa.Table]
    """Computed tables, by metric and stage."""
    pairs: Sequence[tuple[int, int]] = ()
    """Images that a judge compares, by their positions."""

    def list_group_keys(self, *, by_sources: bool) -> list[Hashable]:
        """Return a key for each image, which is equal for images with the same prompt and, if required, sources."""
        columns = [self.image_rows.column(name) for name in ("prompt_id", *(SOURCE_COLUMNS if by_sources else ()))]
        return [
            tuple(tuple(value) if isinstance(value, list) else value for value in row)
            for row in zip(*(column.to_pylist() for column in columns), strict=True)
        ]

    def explain_unusable_prompts(self, table: pa.Table) -> pa.Table:
        """Return the scores, with the actual reason for each image that has no score because of its prompt.

        Stages see an empty prompt instead of an unusable one, and images with an empty prompt are not compared.
        """
        errors = table.column("error").to_pylist()
        for row, prompt_id in enumerate(table.column("prompt_id").to_pylist()):
            error = errors[row]
            kinds = (EMPTY_PROMPT_ERROR.kind, NO_OTHER_IMAGE_ERROR.kind)
            if error is not None and error["kind"] in kinds and not self.prompts[prompt_id].text:
                errors[row] = self.unusable.get(prompt_id, EMPTY_PROMPT_ERROR)._asdict()
        field = table.schema.field("error")
        return table.set_column(table.column_names.index("error"), field, pa.array(errors, field.type))


def list_groups(keys: Sequence[Hashable], call: ScorerCall) -> list[list[int]]:
    """Return the positions of the images of a call with equal keys; images whose prompt has no text are left out."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    prompt_ids = call.image_rows.column("prompt_id").to_pylist()
    for place, (key, prompt_id) in enumerate(zip(keys, prompt_ids, strict=True)):
        if call.prompts[prompt_id].text.strip():
            groups[key].append(place)
    return [*groups.values()]


def list_pairs(groups: Iterable[Sequence[int]]) -> list[tuple[int, int]]:
    """Return every two images of each group once."""
    return [pair for group in groups for pair in combinations(group, 2)]


def make_pair_rows(images: pa.Table, pairs: Sequence[tuple[int, int]]) -> pa.Table:
    """Return a row for each pair of rows of `images`, as a stage over pairs reads them: without generators.

    The columns for the source of an edit contain the other image; the sources of edits become the original images.
    """
    first, second = (images.take(pa.array([pair[side] for pair in pairs], pa.int64())) for side in range(2))
    originals = dict(zip(SOURCE_COLUMNS, ORIGINAL_COLUMNS, strict=True))
    others = {
        **{source: second.column(name) for name, source in zip(("image", "uri"), SOURCE_COLUMNS, strict=True)},
        "other_image_id": second.column("image_id"),
        "other_generator": pa.array([""] * len(pairs), pa.string()),
    }
    own = {originals.get(name, name): first.column(name) for name in first.column_names}
    return pa.table({**own, **others})


def convert_arguments(
    images: AnyImage | Iterable[ImageOrFrames | None],
    prompts: str | Iterable[str | None],
    questions: Iterable[Any] | None,
    sources: AnyImage | Iterable[ImageOrFrames | None] | None,
    captions: Iterable[tuple[str, str] | None] | None,
) -> ScorerCall:
    """Convert the caller's values to rows that a sweep could read. Raise ConfigError for lists of different lengths."""
    listed = _list_images(images, "images")
    count = len(listed)
    given = [prompts] * count if isinstance(prompts, str) else list_values(prompts, "prompts")
    lists = [None] * count if questions is None else list_values(questions, "questions")
    if count != len(given):
        raise ConfigError(
            f"expected one prompt per image, got {count} images and {len(given)} prompts; a single string "
            "is used as the prompt for all images"
        )
    if count != len(lists):
        raise ConfigError(
            f"questions: expected a list or None for each image, got {count} images and {len(lists)} entries"
        )
    unusable: dict[str, RowError] = {}
    asked = [_read_prompt(*each, unusable) for each in zip(given, lists, strict=True)]
    by_id = {prompt.prompt_id: prompt for prompt in asked}
    prompt_rows = [{"prompt_id": prompt.prompt_id, "text": prompt.text} for prompt in by_id.values()]
    columns: dict[str, Any] = {
        "image_id": [str(number) for number in range(count)],
        "prompt_id": [prompt.prompt_id for prompt in asked],
        **_make_image_columns(listed, "images", ("image", "uri")),
    }
    if sources is not None:
        each_source = _list_images(sources, "sources") * (count if _is_single_image(sources) else 1)
        if len(each_source) != count:
            raise ConfigError(
                f"sources: expected a source, a list of sources or None for each image, got {count} images and "
                f"{len(each_source)} sources"
            )
        columns |= _make_image_columns(each_source, "sources", SOURCE_COLUMNS)
    if captions is not None:
        columns |= _make_caption_columns(list_values(captions, "captions"), count)
    return ScorerCall(by_id, rows.table(prompt_rows, schemas.PROMPTS), pa.table(columns), unusable, {})


def find_prompt_error(prompt: Any) -> RowError | None:
    """Return the reason why no image can be scored for this prompt, or None if the prompt is usable."""
    if rows.is_missing(prompt):
        return EMPTY_PROMPT_ERROR
    if not isinstance(prompt, str):
        return RowError("unusable_prompt", f"expected the prompt as text, found {type(prompt).__name__}; convert it")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        found = f"a lone surrogate (U+{ord(prompt[error.start]):04X}) at position {error.start}"
        return RowError("unusable_prompt", f"expected the prompt as text, found {found}; remove it")
    return check_prompt(prompt)


def hash_prompt(prompt: str) -> str:
    """Return an id derived from a prompt's text, for a prompt that has no id."""
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def read_file(path: str) -> bytes:
    """Return a local file's bytes; raise RefusedUriError if the path is a URL, OSError if the file cannot be read."""
    if "://" in path:
        raise RefusedUriError("it is an address, but only local files are read; download it, or pass its bytes")
    return Path(path).expanduser().read_bytes()


def _read_prompt(prompt: Any, questions: Any, unusable: dict[str, RowError]) -> AskedPrompt:
    """Return the prompt with an id derived from its text and questions.

    If the prompt cannot be used, its error is added to `unusable`.
    """
    error = find_prompt_error(prompt)
    suffix = "" if questions is None else f"-{hash_prompt(repr(questions))}"
    if error is None or error == EMPTY_PROMPT_ERROR:
        text = "" if error else str(prompt)
        return AskedPrompt(hash_prompt(text) + suffix, text, questions)
    prompt_id = hash_prompt(f"\0{error.message}") + suffix  # no usable prompt has this id
    unusable[prompt_id] = error
    return AskedPrompt(prompt_id, "", questions)


def _make_caption_columns(captions: Sequence[Any], count: int) -> dict[str, pa.Array]:
    """Return the two columns of edit captions by name; a row has null in both if either caption is unusable.

    Raises ConfigError if the number of captions is not `count`.
    """
    if len(captions) != count:
        raise ConfigError(
            f"captions: expected two texts or None for each image, got {count} images and {len(captions)} entries"
        )
    for number, pair in enumerate(captions):
        is_pair = isinstance(pair, tuple | list) and [isinstance(text, str) for text in pair] == [True, True]
        if not rows.is_missing(pair) and not is_pair:
            raise ConfigError(f"captions[{number}]: expected two texts, (source, target), got {pair!r}")
    usable = [None if rows.is_missing(pair) or any(map(find_prompt_error, pair)) else pair for pair in captions]
    return {
        name: pa.array([pair and pair[index] for pair in usable], pa.string())
        for index, name in enumerate(CAPTION_COLUMNS)
    }


def _make_image_columns(listed: Sequence[Any], argument: str, names: tuple[str, str]) -> dict[str, pa.Array]:
    """Return two columns with the given names: the encoded images, and the paths of images that are files."""
    images = [_list_frames(image, f"{argument}[{number}]") for number, image in enumerate(listed)]
    return {
        names[0]: pa.array([list(map(_encode_image, frames)) for frames in images], pa.list_(pa.large_binary())),
        names[1]: pa.array([list(map(_get_path, frames)) for frames in images], pa.list_(pa.string())),
    }


def _is_single_image(images: Any) -> bool:
    """Return True for a single image.

    An array counts as several images if it has four dimensions or contains objects or strings.
    """
    if isinstance(images, np.ndarray):
        return images.ndim < 4 and images.dtype.kind not in "OU"
    return isinstance(images, AnyImage)


def _list_images(images: Any, name: str) -> list[Any]:
    if _is_single_image(images):
        return [images]
    return [*images] if isinstance(images, np.ndarray) and images.ndim > 3 else list_values(images, name)


def _list_frames(image: Any, where: str) -> list[AnyImage | None]:
    """Return a value's images as a list, with None for a missing image; raise ConfigError for any other value."""
    if isinstance(image, Mapping) and not {"bytes", "path"}.isdisjoint(image):  # as `datasets` writes images
        image = image.get("bytes") or image.get("path")
    if rows.is_missing(image):
        return [None]
    if isinstance(image, list | tuple) or (isinstance(image, np.ndarray) and image.dtype == object):
        return [frame for number, each in enumerate(image) for frame in _list_frames(each, f"{where}[{number}]")]
    if isinstance(image, np.ndarray):
        if image.dtype == np.uint8 and (image.ndim == 2 or (image.ndim == 3 and image.shape[2] in (3, 4))):
            return [image]
        found = f"an array of type {image.dtype} and shape {image.shape}"
    elif isinstance(image, AnyImage):
        return [image]
    else:
        found = f"a value of type {type(image).__module__}.{type(image).__name__}"
    raise ConfigError(
        f"{where}: expected a path, encoded bytes, a PIL.Image, a uint8 array of shape (height, width, 3), or a "
        f"list of these, got {found}; convert it, for example with torchvision's to_pil_image"
    )


def _get_path(image: AnyImage | None) -> str | None:
    """Return the path if the image is given as a path that can be encoded as UTF-8, otherwise None."""
    path = str(image) if isinstance(image, str | Path) else None
    return path if path is not None and path.encode(errors="replace").decode() == path else None


def _encode_image(image: AnyImage | None) -> bytes | None:
    """Return the bytes of an image; None if it is missing, or given as a path whose file is read later.

    A file whose path is not UTF-8 is read now; the result is empty if that fails.
    """
    if isinstance(image, bytes):
        return image
    if isinstance(image, np.ndarray):
        return _encode_losslessly(Image.fromarray(image))
    if isinstance(image, Image.Image):
        return _encode_losslessly(image)
    if image is None or _get_path(image) is not None:
        return None
    try:
        return read_file(str(image))  # no table can contain a path that is not UTF-8
    except (OSError, ValueError, RuntimeError, RefusedUriError):
        return b""


def _encode_losslessly(image: Image.Image) -> bytes:
    """Return the pixels, encoded losslessly. If they cannot be decoded, return the bytes of the image's file.

    If the file is closed or empty, return CLOSED_IMAGE_MARK.
    """
    file = io.BytesIO()
    try:
        kept = image if image.mode in (*PNG_MODES, *TIFF_MODES) else image.convert("RGB")
        kept.save(file, "TIFF" if kept.mode in TIFF_MODES else "PNG", compress_level=1)
    except Exception:
        stream = getattr(image, "fp", None)  # the file of an image that was opened and not read yet
        if stream is None or stream.closed:
            return CLOSED_IMAGE_MARK
        stream.seek(0)
        return bytes(stream.read()) or CLOSED_IMAGE_MARK
    return file.getvalue()
