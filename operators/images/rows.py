"""What a row of a table says of its image: its ids, and the encoded bytes, in the row or at an address."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows
from plumbline.operators.base.errors import REMEDIES, RefusedUri, RowError, without_secrets

LONGEST_ADDRESS = 1000
"""Characters of one that a message shows; S3 allows as many."""
LONGEST_REASON = 1000
"""Characters of what a table says itself of a row without an image."""
FetchUri = Callable[[str], bytes]
SOURCES = ("source", "source_uri")
"""The columns that hold the image that a row's image was edited from, as `image` and `uri` hold the image itself."""
MASKS = ("mask", "mask_uri")
"""Those that hold a picture of where it was to be edited: white there, and black where it was not."""
CAPTIONS = ("source_caption", "target_caption")
"""Those that hold what its source shows in words, and what the edit was to make of it."""
BESIDE = (*SOURCES, *MASKS, *CAPTIONS)
"""Columns that a table has only where they are named."""
ADDRESSES = ("uri", "source_uri", "mask_uri")
"""The columns with addresses of pictures."""


def _each_image(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """A row for each image of a row whose columns hold lists; the row itself where they hold one image or none."""
    images, uris = _listed(row.get("image")), _listed(row.get("uri"))
    if not images and (_embedded(row) or not uris):
        return [row]
    return [{"image": image, "uri": uri} for image, uri in zip_longest(images, uris)]


def _listed(value: Any) -> list[Any]:
    """The images or addresses of a column that holds several."""
    images = isinstance(value, list) and all(part is None or isinstance(part, (bytes, str, Mapping)) for part in value)
    return value if images else []


def _encoded(row: Mapping[str, Any], fetch: FetchUri) -> bytes | RowError:
    """The bytes of the row's image, embedded or fetched; never empty."""
    embedded, uri = _embedded(row), row.get("uri")
    if embedded is not None and not isinstance(embedded, bytes):
        found = "text" if isinstance(embedded, str) else f"a value of type {type(embedded).__name__}"
        return RowError(
            "corrupt_image",
            f"expected encoded bytes in the `image` column, found {found}; put bytes there, or addresses in `uri`",
        )
    if not embedded and uri:
        return fetch_image(uri, fetch)
    return embedded or _absent(row)


def _embedded(row: Mapping[str, Any]) -> Any:
    """What the `image` column holds, bare or in a struct; None where it is empty."""
    image = row.get("image")
    embedded = image.get("bytes") if isinstance(image, Mapping) else image
    return None if embedded == [] else embedded


def is_embedded(row: Mapping[str, Any]) -> bool:
    """Whether the row holds its image, so that nothing need be fetched."""
    return bool(_embedded(row))


def _absent(row: Mapping[str, Any]) -> RowError:
    """What to do about a row without bytes; its struct may still have a path, or it says itself why it has none."""
    image, error = row.get("image"), row.get("error")
    if isinstance(error, Mapping) and error.get("kind") in REMEDIES and isinstance(error.get("message"), str):
        return RowError(error["kind"], error["message"][:LONGEST_REASON])
    if isinstance(image, Mapping) and image.get("path"):
        found = f"only the path {image['path']!r} in `image`"
        return RowError("image_not_embedded", f"{found}; embed the bytes, or put the address in `uri`")
    return RowError("missing_image", "the row has neither image bytes nor a uri; generate the image again")


def fetch_image(uri: Any, fetch: FetchUri) -> bytes | RowError:
    """Return the bytes at an address, or why they cannot be read; a storage client's exception costs this row alone."""
    if not isinstance(uri, str):
        return RowError("unreadable_uri", f"expected text in the `uri` column, found {uri!r}; write addresses as text")
    shown = without_secrets(uri[:LONGEST_ADDRESS])
    try:
        encoded = fetch(uri)
    except RefusedUri as error:
        return RowError("uri_refused", f"{shown!r} is not read: {error}", retryable=True)
    except FileNotFoundError:
        return RowError(
            "missing_image", f"nothing at {shown!r}; check the address, or generate the image again", retryable=True
        )
    except Exception as error:
        found = without_secrets(str(error)) or type(error).__name__
        return RowError("unreadable_uri", f"cannot read {shown!r}: {found}; check the address", retryable=True)
    return encoded or RowError("missing_image", f"an empty file at {shown!r}; generate the image again", retryable=True)


class ImageRow(NamedTuple):
    """Which image a row is about, whatever became of it."""

    image_id: str | None
    prompt_id: str | None
    generator: str

    def row(self, **columns: Any) -> dict[str, Any]:
        """A row of an image table with these further columns."""
        return {**self._asdict(), **columns}


def row_bytes(row: ImageRow, record: Mapping[str, Any], most: int, fetch: FetchUri) -> list[bytes] | RowError:
    """The bytes of each of a row's images, or why one has none; nothing is read of a row that is refused anyhow."""
    if row.prompt_id is None:
        return RowError("missing_prompt_id", "the row names no prompt; fill its prompt_id")
    return each_encoded(record, most, fetch)


def each_encoded(record: Mapping[str, Any], most: int, fetch: FetchUri) -> list[bytes] | RowError:
    """The bytes of each of a row's images, or why one has none."""
    each = _each_image(record)
    if len(each) > most:
        found = f"{len(each)} images in the row, where limits.max_images={most}"
        return RowError("too_many_images", f"{found}; keep fewer")
    encoded: list[bytes] = []
    for number, image in enumerate(each, 1):
        content = _encoded(image, fetch)
        if isinstance(content, RowError):
            return of_image(content, number, len(each))
        encoded.append(content)
    return encoded


def source_bytes(record: Mapping[str, Any], most: int, fetch: FetchUri) -> list[bytes] | RowError:
    """The bytes of each source of a row's image, or why one has none."""
    return _beside(
        record, SOURCES, of_edit(RowError("missing_image", "the row has none; fill it in"), "source"), most, fetch
    )


def mask_bytes(record: Mapping[str, Any], most: int, fetch: FetchUri) -> bytes | RowError | None:
    """The bytes of the row's mask, or why it has none; None where the table has no masks."""
    if not any(name in record for name in MASKS):
        return None
    missing = of_edit(
        RowError("missing_image", "the row has none; fill it in, or give a black one where all pixels count"), "mask"
    )
    masks = _beside(record, MASKS, missing, most, fetch)
    if isinstance(masks, RowError):
        return masks
    return masks[0] if len(masks) == 1 else mask_error(f"{len(masks)} in the row; keep one")


def _beside(
    record: Mapping[str, Any], names: tuple[str, str], missing: RowError, most: int, fetch: FetchUri
) -> list[bytes] | RowError:
    """The bytes of each picture in two columns, one with bytes and one with addresses, or why one has none."""
    embedded, uri = (record.get(name) for name in names)
    if not any(any(_listed(value)) if isinstance(value, list) else value for value in (embedded, uri)):
        return missing
    encoded = each_encoded({"image": embedded, "uri": uri}, most, fetch)
    return of_edit(encoded, names[0]) if isinstance(encoded, RowError) else encoded


def of_edit(error: RowError, what: str) -> RowError:
    """The error of a `source` or a `mask`, which it names as one."""
    return error._replace(message=f"the {what} of the edit: {error.message}")


def mask_error(found: str) -> RowError:
    """Why a picture is no mask of the row's edit."""
    return of_edit(RowError("unusable_mask", found), "mask")


def of_image(error: RowError, number: int, count: int) -> RowError:
    """The error of one image of a row, which it names where there are several."""
    return error if count == 1 else error._replace(message=f"image {number} of {count}: {error.message}")


def digest_of(encoded: Sequence[bytes]) -> str:
    """The start of the SHA-256 of a row's encoded image, or of those of all its images."""
    digests = [hashlib.sha256(content) for content in encoded]
    whole = digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digest.digest() for digest in digests))
    return whole.hexdigest()[:16]


def image_records(images: pa.Table) -> list[dict[str, Any]]:
    """The table's rows; text that is not UTF-8 is read with replacement characters, not at the cost of the shard."""
    try:
        return list(images.to_pylist())
    except UnicodeDecodeError:
        columns = {name: [_value(scalar) for scalar in images.column(name)] for name in images.column_names}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _value(scalar: pa.Scalar) -> Any:
    if isinstance(scalar, pa.ListScalar) and scalar.is_valid:
        return [_value(part) for part in scalar]
    if isinstance(scalar, pa.StructScalar) and scalar.is_valid:
        return {name: _value(scalar[name]) for name in scalar}
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes().decode("utf-8", "replace")


def identify(record: Mapping[str, Any], generator: str) -> ImageRow:
    """The ids of a source row; a row without `image_id` gets a hash of its generator, prompt and content."""
    prompt_id, image_id = id_text(record.get("prompt_id")), id_text(record.get("image_id"))
    if image_id is None:
        image_id = _content_id(record, prompt_id, generator)
    return ImageRow(image_id, prompt_id, generator)


def id_text(value: Any) -> str | None:
    """An id as text; NaN, as pandas writes a missing number, is none."""
    return None if rows.is_missing(value) else str(value)


def _content_id(record: Mapping[str, Any], prompt_id: str | None, generator: str) -> str:
    contents = [_content(image) for image in _each_image(record)]
    content = contents[0] if len(contents) == 1 else b"".join(hashlib.sha256(one).digest() for one in contents)
    return hashlib.sha256(f"{generator}\0{prompt_id}\0".encode() + content).hexdigest()[:16]


def _content(record: Mapping[str, Any]) -> bytes:
    """An image's bytes, or where they are not in the row its address."""
    embedded = _embedded(record)
    address = record.get("uri") or (record["image"].get("path") if isinstance(record.get("image"), Mapping) else None)
    return embedded if isinstance(embedded, bytes) and embedded else str(embedded or address).encode()
