"""Reads the ids and the encoded images of a table's rows; the bytes are in the row or at an address."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows
from plumbline.operators.base.errors import REMEDIES_BY_KIND, RefusedUriError, RowError, hide_secrets

MAX_ADDRESS_CHARACTERS = 1000
"""Maximum number of characters of an address in a message; S3 keys can be about as long."""
MAX_REASON_CHARACTERS = 1000
"""Maximum number of characters of the reason that a table gives for a missing image."""
FetchUri = Callable[[str], bytes]
SOURCE_COLUMNS = ("source", "source_uri")
"""Columns of the source image that was edited, analogous to `image` and `uri` for the row's image."""
ORIGINAL_COLUMNS = ("original", "original_uri")
"""Columns of the original image if two edits of it are compared; the source columns then have the other edit."""
MASK_COLUMNS = ("mask", "mask_uri")
"""Columns of the mask of an edit: an image that is white in the area of the edit, and black elsewhere."""
CAPTION_COLUMNS = ("source_caption", "target_caption")
"""Columns with descriptions of the source and of the intended edit."""
EDIT_COLUMNS = (*SOURCE_COLUMNS, *MASK_COLUMNS, *CAPTION_COLUMNS)
"""Columns about edits. A table is read with them only if they are configured."""
ADDRESS_COLUMNS = ("uri", "source_uri", "mask_uri")
"""Columns with addresses of images."""


class ImageRow(NamedTuple):
    """The ids of a row in a table of images: image, prompt and generator."""

    image_id: str | None
    prompt_id: str | None
    generator: str

    def make_row(self, **columns: Any) -> dict[str, Any]:
        """Return a table row as a dictionary: the ids, and the given columns."""
        return {**self._asdict(), **columns}


def read_row_images(row: ImageRow, record: Mapping[str, Any], limit: int, fetch: FetchUri) -> list[bytes] | RowError:
    """Return the images of a row, or an error if one cannot be read or the row has no prompt."""
    if row.prompt_id is None:
        return RowError("missing_prompt_id", "the row has no prompt_id; fill it in")
    return read_images(record, limit, fetch)


def read_images(record: Mapping[str, Any], limit: int, fetch: FetchUri) -> list[bytes] | RowError:
    """Return the images of a row, or a RowError if one cannot be read or if there are more than `limit`."""
    images = _split_images(record)
    if len(images) > limit:
        problem = f"{len(images)} images in the row, but limits.max_images={limit}"
        return RowError("too_many_images", f"{problem}; remove some")
    encoded: list[bytes] = []
    for number, image in enumerate(images, 1):
        content = _read_image(image, fetch)
        if isinstance(content, RowError):
            return add_image_number(content, number, len(images))
        encoded.append(content)
    return encoded


def _split_images(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Split a row with several images into one row per image; a row with at most one image is returned unchanged."""
    images, uris = _list_images(record.get("image")), _list_images(record.get("uri"))
    if not images and (_get_embedded_image(record) or not uris):
        return [record]
    return [{"image": image, "uri": uri} for image, uri in zip_longest(images, uris)]


def _list_images(cell: Any) -> list[Any]:
    several = isinstance(cell, list) and all(item is None or isinstance(item, (bytes, str, Mapping)) for item in cell)
    return cell if several else []


def _get_embedded_image(record: Mapping[str, Any]) -> Any:
    """Return the content of the `image` column, taken out of its struct if necessary; None if it is empty."""
    image = record.get("image")
    embedded = image.get("bytes") if isinstance(image, Mapping) else image
    return None if embedded == [] else embedded


def is_embedded(record: Mapping[str, Any]) -> bool:
    """Return True if the row contains its image."""
    return bool(_get_embedded_image(record))


def _read_image(record: Mapping[str, Any], fetch: FetchUri) -> bytes | RowError:
    """Return the non-empty bytes of the row's image, embedded or fetched, or the reason why there are none."""
    embedded, uri = _get_embedded_image(record), record.get("uri")
    if embedded is not None and not isinstance(embedded, bytes):
        found = "text" if isinstance(embedded, str) else f"a value of type {type(embedded).__name__}"
        return RowError(
            "corrupt_image",
            f"expected encoded bytes in the `image` column, found {found}; put bytes there, or addresses in `uri`",
        )
    if embedded:
        return embedded
    if uri:
        return fetch_image(uri, fetch)
    image, error = record.get("image"), record.get("error")
    if isinstance(error, Mapping) and error.get("kind") in REMEDIES_BY_KIND and isinstance(error.get("message"), str):
        # the table itself says why it has no image
        return RowError(error["kind"], error["message"][:MAX_REASON_CHARACTERS])
    if isinstance(image, Mapping) and image.get("path"):
        found = f"only the path {image['path']!r} in `image`"
        return RowError("image_not_embedded", f"{found}; embed the bytes, or put the address in `uri`")
    return RowError("missing_image", "the row has neither image bytes nor a uri; generate the image again")


def fetch_image(uri: Any, fetch: FetchUri) -> bytes | RowError:
    """Return the bytes at an address, or a RowError if they cannot be read, whatever the exception."""
    if not isinstance(uri, str):
        return RowError("unreadable_uri", f"expected text in the `uri` column, found {uri!r}; write addresses as text")
    shown = hide_secrets(uri[:MAX_ADDRESS_CHARACTERS])
    try:
        encoded = fetch(uri)
    except RefusedUriError as error:
        return RowError("uri_refused", f"{shown!r} was refused: {error}", retryable=True)
    except FileNotFoundError:
        return RowError(
            "missing_image", f"nothing at {shown!r}; check the address, or generate the image again", retryable=True
        )
    except Exception as error:
        found = hide_secrets(str(error)) or type(error).__name__
        return RowError("unreadable_uri", f"cannot read {shown!r}: {found}; check the address", retryable=True)
    return encoded or RowError(
        "missing_image", f"the file at {shown!r} is empty; generate the image again", retryable=True
    )


def read_sources(record: Mapping[str, Any], limit: int, fetch: FetchUri) -> list[bytes] | RowError:
    """Return the source images of an edit, or a RowError if one cannot be read."""
    return _read_edit_images(record, SOURCE_COLUMNS, "the row has none; fill it in", limit, fetch)


def read_original(record: Mapping[str, Any], limit: int, fetch: FetchUri) -> bytes | RowError | None:
    """Return the original image that two edits were made from; None if the table has no originals.

    If the image cannot be read, a RowError is returned.
    """
    if not any(name in record for name in ORIGINAL_COLUMNS):
        return None
    images = _read_edit_images(record, ORIGINAL_COLUMNS, "the row has none; fill it in", limit, fetch)
    if isinstance(images, RowError):
        return images
    found = f"{len(images)} images in the row, but metrics use only one; keep only the original image"
    return images[0] if len(images) == 1 else name_edit_error(RowError("too_many_images", found), ORIGINAL_COLUMNS[0])


def read_mask(record: Mapping[str, Any], limit: int, fetch: FetchUri) -> bytes | RowError | None:
    """Return the row's mask, a RowError if it cannot be read, or None if the table has no masks."""
    if not any(name in record for name in MASK_COLUMNS):
        return None
    missing = "the row has none; fill it in, or use a black mask if all pixels count"
    masks = _read_edit_images(record, MASK_COLUMNS, missing, limit, fetch)
    if isinstance(masks, RowError):
        return masks
    return masks[0] if len(masks) == 1 else make_mask_error(f"{len(masks)} in the row; keep one")


def _read_edit_images(
    record: Mapping[str, Any], columns: tuple[str, str], missing: str, limit: int, fetch: FetchUri
) -> list[bytes] | RowError:
    """Return the images in the column with bytes or the column with addresses (`columns`), or an error.

    If both columns are empty, the error's message is `missing`.
    """
    image, uri = (record.get(column) for column in columns)
    if any(any(_list_images(cell)) if isinstance(cell, list) else cell for cell in (image, uri)):
        encoded = read_images({"image": image, "uri": uri}, limit, fetch)
    else:
        encoded = RowError("missing_image", missing)
    return name_edit_error(encoded, columns[0]) if isinstance(encoded, RowError) else encoded


def name_edit_error(error: RowError, what: str) -> RowError:
    """Return the error with a message that says which image of the edit failed; `what` is `source` or `mask`."""
    return error._replace(message=f"the {what} of the edit: {error.message}")


def make_mask_error(found: str) -> RowError:
    """Return an error for a mask that cannot be used; `found` describes the mask."""
    return name_edit_error(RowError("unusable_mask", found), "mask")


def add_image_number(error: RowError, number: int, count: int) -> RowError:
    """Return the error for one of a row's images; if there are several, the message says `image NUMBER of COUNT`."""
    return error if count == 1 else error._replace(message=f"image {number} of {count}: {error.message}")


def digest_images(encoded: Sequence[bytes]) -> str:
    """Return the first 16 hex digits of the SHA-256 of a row's image; if it has several, of their joined digests."""
    digests = [hashlib.sha256(content) for content in encoded]
    joined = digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digest.digest() for digest in digests))
    return joined.hexdigest()[:16]


def list_image_records(images: pa.Table) -> list[dict[str, Any]]:
    """Return the table's rows. Invalid UTF-8 gets replacement characters, so that the shard does not fail."""
    try:
        return list(images.to_pylist())
    except UnicodeDecodeError:
        columns = {name: [_read_value(scalar) for scalar in images.column(name)] for name in images.column_names}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _read_value(scalar: pa.Scalar) -> Any:
    if isinstance(scalar, pa.ListScalar) and scalar.is_valid:
        return [_read_value(item) for item in scalar]
    if isinstance(scalar, pa.StructScalar) and scalar.is_valid:
        return {name: _read_value(scalar[name]) for name in scalar}
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes().decode("utf-8", "replace")


def read_image_row(record: Mapping[str, Any], generator: str) -> ImageRow:
    """Return a row's ids. A missing `image_id` is replaced by a hash of the generator, the prompt and the content."""
    prompt_id, image_id = format_id(record.get("prompt_id")), format_id(record.get("image_id"))
    if image_id is None:
        contents = [_read_content(image) for image in _split_images(record)]
        content = contents[0] if len(contents) == 1 else b"".join(hashlib.sha256(one).digest() for one in contents)
        image_id = hashlib.sha256(f"{generator}\0{prompt_id}\0".encode() + content).hexdigest()[:16]
    return ImageRow(image_id, prompt_id, generator)


def format_id(value: Any) -> str | None:
    """Return an id as a string; None for null values, including NaN, which pandas writes for a missing number."""
    return None if rows.is_missing(value) else str(value)


def _read_content(record: Mapping[str, Any]) -> bytes:
    """Return an image's bytes or, if the row contains only its address, the address encoded as UTF-8."""
    embedded = _get_embedded_image(record)
    address = record.get("uri") or (record["image"].get("path") if isinstance(record.get("image"), Mapping) else None)
    return embedded if isinstance(embedded, bytes) and embedded else str(embedded or address).encode()
