"""WebDataset tars: files with the same name up to the first dot form a sample. A tar is read once, front to back."""

import bz2
import gzip
import io
import lzma
import math
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import PurePosixPath
from typing import IO, Any, NamedTuple

from plumbline.operators.base.errors import ConfigError, PlumblineError
from plumbline.operators.images.generation_settings import read_field_settings
from plumbline.pipelines.base.storage import Place, convert_read_errors
from plumbline.pipelines.base.tables import (
    BLOCK_BYTES,
    DAMAGED_TAR,
    SKIPPED_KIND,
    Refused,
    Rejection,
    escape_bytes,
    parse_object,
)
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.input_rows import (
    EDIT_RESULT_COLUMNS,
    EDIT_SOURCE_COLUMNS,
    FOREIGN_SUFFIXES,
    IMAGE_SUFFIXES,
    is_outside_roots,
    make_candidate,
    read_known_ids,
    refuse_foreign_format,
    resolve_link_roots,
)
from plumbline.pipelines.ingest.sample_files import (
    MAX_INSPECTED_FILES,
    ImageSample,
    SampleFile,
    SampleSource,
    remove_ending,
)
from plumbline.pipelines.sources.input_columns import InputColumnsConfig, find_column_names
from plumbline.pipelines.sources.origins import Origins, SeenOrigins

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
TEXT_SUFFIXES = ("json", "txt")
FIELD_NAME_PATTERN = re.compile("[a-z_]+")
"""Name of an additional image in a sample, such as `depth` in 0.depth.png; 0.v2.png may be an image in its own right.
"""
MAX_COMPRESSION_RATIO = 100
"""Maximum number of unpacked bytes per compressed byte of a tar, in addition to ALWAYS_ALLOWED_BYTES.

Images can hardly be compressed, so a tar of images stays far below this.
"""
ALWAYS_ALLOWED_BYTES = 2**24
"""Number of bytes that any compressed tar may unpack to."""
MAX_TEXT_BYTES = 2**20
"""Maximum bytes of a sample's .json or .txt."""
MAX_HEADER_BYTES = 2**20
"""Maximum bytes of a long name or other extended header, which tarfile reads into memory as a whole."""
OPENERS_BY_SIGNATURE: Mapping[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
"""Decompressors by the magic bytes at the start of a tar."""
UNKNOWN_LOSS_NOTE = "and the number of lost rows is unknown"


def _find_tars(config: IngestConfig) -> list[SampleFile]:
    """List the configured tars by name: a single tar, all tars below a folder, or tars that match a pattern with *.

    Raises ConfigError if there are none, or if a link leads out of the given folder and `link_roots`. A tar that is
    given by its own path may be a link to anywhere.
    """
    place = config.storage.locate(str(config.tars))
    with convert_read_errors(place, "tars"):
        listed = place.glob() if "*" in place.path else ((place / path, entry) for path, entry in place.files())
        named = {tar: entry for tar, entry in listed if tar.path.endswith(TAR_SUFFIXES)}
    if place.is_local:
        folder = place.path.partition("*")[0].rpartition("/")[0] or "/" if "*" in place.path else place.path
        for tar in named:
            if tar != place and is_outside_roots(tar.path, resolve_link_roots(folder, config.link_roots)):
                remedy = "put the tar itself there, or add the folder of the link's target to link_roots"
                raise ConfigError(f"tars {tar}: a link points outside {folder}; {remedy}")
            with convert_read_errors(tar, "tars, a link:"):
                named[tar] = tar.get_entry()  # follows links
    tars = [
        SampleFile(
            place=tar, size=entry.size, etag=entry.etag, name=escape_bytes(remove_ending(tar.path, TAR_SUFFIXES))
        )
        for tar, entry in sorted(named.items(), key=lambda found: found[0].url)
        if entry.type == "file" and not tar.name.startswith(".")
    ]
    if not tars:
        raise ConfigError(f"tars {place.url}: expected files that end in {', '.join(TAR_SUFFIXES)}, found none")
    return tars


class DamagedTarError(Refused):
    """Raised when a tar turns out to be damaged and cannot be read any further.

    The sample with the key `key` may be incomplete, and all later samples are lost.
    """

    def __init__(self, problem: str, key: str) -> None:
        lost = f"the sample {key[:200]!r} and everything after it are" if key else "everything in it is"
        message = f"the tar is damaged ({problem}): {lost} lost, {UNKNOWN_LOSS_NOTE}; write or upload the tar again"
        super().__init__(DAMAGED_TAR, message)
        self.key = key


class TarMember(NamedTuple):
    """A file in a tar that belongs to a sample."""

    key: str
    """The path up to the first dot in the file name."""
    suffix: str
    """The file name after the first dot, in lower case."""
    content: bytes | Refused


def read_members(tar: SampleFile, max_bytes: int) -> Iterator[TarMember | Rejection]:
    """Yield the files of a tar in order; raise DamagedTarError if it cannot be read further."""
    key = ""
    with convert_read_errors(tar.place, "tars"), _open_tar(tar) as stream:
        try:
            with tarfile.TarFile(fileobj=stream) as archive:  # type: ignore[arg-type]  # it has read, seek and tell
                while (header := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined]  # it would keep the header of every member
                    name = header.name.encode(errors="replace").decode()
                    path = PurePosixPath(name)
                    stem, _, suffix = path.name.partition(".")
                    if header.isdir():
                        pass
                    elif stem:
                        key, suffix = str(path.with_name(stem)), suffix.lower()
                        yield TarMember(key, suffix, _read_content(stream, header, suffix, max_bytes))
                    else:
                        problem = "a file whose name begins with a dot belongs to no sample; remove it"
                        yield Rejection(f"{tar.place.url}/{name}", None, "refused_member", problem)
                    stream.seek(archive.offset)
                stream.require_end_mark()
                joined = stream.has_more()
        except PlumblineError:
            raise
        except Exception as error:  # the standard library may raise any exception for bytes that are not a tar
            raise DamagedTarError(str(error) or type(error).__name__, key) from error
    if joined:
        message = (
            "the tar continues after its end mark, like tars joined by cat: everything after the mark is lost, "
            f"{UNKNOWN_LOSS_NOTE}; give each tar a file of its own"
        )
        yield Refused(DAMAGED_TAR, message).to_rejection(tar.place.url)


class _StorageStream(io.RawIOBase):
    """Stream that raises ConfigError if the storage fails, so that no reader mistakes the failure for damage."""

    def __init__(self, stream: IO[bytes], place: Place) -> None:
        self._stream = stream
        self._place = place

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with convert_read_errors(self._place, "tars"):
            content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


@contextmanager
def _open_tar(tar: SampleFile) -> Iterator["_ForwardStream"]:
    with tar.place.open(size=tar.size, block_size=BLOCK_BYTES) as file:
        stored = io.BufferedReader(_StorageStream(file, tar.place), BLOCK_BYTES)
        start = stored.peek(8)
        opener = next((opener for mark, opener in OPENERS_BY_SIGNATURE.items() if start.startswith(mark)), None)
        if opener is None:
            yield _ForwardStream(stored)
        else:
            yield _ForwardStream(opener(stored), ALWAYS_ALLOWED_BYTES + MAX_COMPRESSION_RATIO * tar.size)


class _ForwardStream:
    """A tar's byte stream for tarfile, which calls `read` only for headers; we read only the contents that we need.

    On its own, tarfile stops at damage without an error, as if it had reached the end marker. It also loops forever on
    some broken headers, and reads extended headers of any size into memory.
    """

    def __init__(self, stream: IO[bytes], limit: float = math.inf) -> None:
        """Wrap a stream; more than `limit` unpacked bytes mean that the file is not a genuine tar of images."""
        self._stream = stream
        self._limit = limit
        self._position = 0
        self._last_header = b""

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        """Return a header; raise ReadError if it is an extended header that is too large."""
        if not 0 <= size <= MAX_HEADER_BYTES + tarfile.BLOCKSIZE:
            raise tarfile.ReadError(f"an extended header has {size} bytes, which is too many")
        self._last_header = self.read_content(size)
        return self._last_header

    def read_content(self, size: int) -> bytes:
        """Return the next `size` bytes, or fewer at the end of the file; raise ReadError above the limit."""
        chunks = []
        while size > 0 and (chunk := self._stream.read(min(size, BLOCK_BYTES))):
            chunks.append(chunk)
            size -= len(chunk)
            self._position += len(chunk)
            if self._position > self._limit:
                raise tarfile.ReadError(f"it unpacks to more than {MAX_COMPRESSION_RATIO} times its size")
        return b"".join(chunks)

    def seek(self, position: int) -> None:
        """Read forward to a position; raise ReadError if it has been passed, or is beyond the end."""
        if position < self._position:
            raise tarfile.ReadError("a header has a negative size")
        while (left := position - self._position) > 0:
            if not self.read_content(min(left, BLOCK_BYTES)):
                raise tarfile.ReadError("unexpected end of data")

    def require_end_mark(self) -> None:
        """Raise ReadError unless the last header that was read is a complete block of zeros, which ends a tar."""
        if len(self._last_header) != tarfile.BLOCKSIZE or any(self._last_header):
            raise tarfile.ReadError("it has no end-of-archive marker")

    def has_more(self) -> bool:
        """Return True if there is anything left except padding."""
        while content := self.read_content(BLOCK_BYTES):
            if content.strip(b"\0"):
                return True
        return False


def _read_content(stream: _ForwardStream, header: tarfile.TarInfo, suffix: str, max_bytes: int) -> bytes | Refused:
    """Return the content of an image or text file, or the reason for refusing it; empty for any other kind of file."""
    role, _, ending = suffix.rpartition(".")
    suffix = ending if role in EDIT_SOURCE_COLUMNS + EDIT_RESULT_COLUMNS else suffix
    if suffix not in IMAGE_SUFFIXES + TEXT_SUFFIXES:
        return b""
    if not header.isreg() or header.issparse():
        message = f"{header.name!r}: only regular files are read from a tar; add the file itself"
        return Refused("refused_member", message)
    limit, setting = (
        (max_bytes, "limits.max_bytes") if suffix in IMAGE_SUFFIXES else (MAX_TEXT_BYTES, "the text's limit")
    )
    if header.size > limit:
        message = f"{header.name!r}: {header.size} bytes are over {setting}={limit}; check the file, or raise the limit"
        return Refused("image_too_large" if suffix in IMAGE_SUFFIXES else "text_too_large", message)
    stream.seek(header.offset_data)
    content = stream.read_content(header.size)
    if len(content) != header.size:
        raise tarfile.ReadError("unexpected end of data")
    return content


@dataclass(kw_only=True, slots=True)
class _Sample:
    """The files of one sample in a tar, grouped by the suffixes of their names."""

    key: str
    config: IngestConfig
    images: list[tuple[str, bytes | Refused]] = field(default_factory=list)
    sources: dict[str, bytes | Refused] = field(default_factory=dict)
    """Source images of an edit."""
    results: list[tuple[str, bytes | Refused]] = field(default_factory=list)
    """Images that are named as the result of an edit; used only if `images` is empty."""
    other_images: list[str] = field(default_factory=list)
    """Suffixes of images whose names have more than a file extension after the first dot, such as `depth.png`."""
    texts: dict[str, bytes] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    refused: Refused | None = None
    """The first text file that was refused."""

    def add(self, member: TarMember) -> None:
        role, _, ending = member.suffix.rpartition(".")
        if role in EDIT_SOURCE_COLUMNS and ending in IMAGE_SUFFIXES:
            self.sources[member.suffix] = member.content
        elif role in EDIT_RESULT_COLUMNS and ending in IMAGE_SUFFIXES:
            self.results.append((member.suffix, member.content))
        elif member.suffix in IMAGE_SUFFIXES:
            self.images.append((member.suffix, member.content))
        elif isinstance(member.content, Refused):
            self.refused = self.refused or member.content
        elif member.suffix in TEXT_SUFFIXES:
            self.texts[member.suffix] = member.content
        elif role and ending in (*IMAGE_SUFFIXES, *FOREIGN_SUFFIXES):
            self.other_images.append(member.suffix)
        else:
            self.others.append(member.suffix)

    @property
    def candidates(self) -> list[tuple[str, bytes | Refused]]:
        """Candidates for the sample's image; if there are several, all are rejected."""
        return self.images or self.results

    @property
    def fields(self) -> dict[str, Any]:
        return parse_object(self.texts["json"]) if "json" in self.texts else {}

    def map_columns(self, fields: Mapping[str, Any]) -> InputColumnsConfig:
        """Return the names of the sample's fields by role, with the .txt as `prompt` if the .json has no prompt."""
        names = find_column_names(fields, self.config.columns)
        return replace(names, prompt="prompt") if names.prompt is None and "txt" in self.texts else names

    def describe(self) -> tuple[dict[str, Any], InputColumnsConfig]:
        fields = self.fields
        names = self.map_columns(fields)
        if names.prompt is None or names.prompt in fields:
            return fields, names
        try:
            prompt = self.texts["txt"].decode("utf-8-sig").strip()
        except UnicodeDecodeError as error:
            raise Refused("not_utf8", f"the .txt is not UTF-8 at byte {error.start}; save it as UTF-8") from error
        return {**fields, names.prompt: prompt}, names

    def reject(self, refused: Refused, url: str) -> Rejection:
        ids: dict[str, str | None] = {"generator": self.config.generator}
        with suppress(Refused):
            fields, names = self.describe()
            ids = read_known_ids(fields, names, self.config.generator)
        return refused.to_rejection(url, None, **ids)


class TarSource(SampleSource):
    def read(self, file: SampleFile) -> Iterator[ImageSample | Rejection]:
        """Yield a tar's samples in order, one in memory at a time; write nothing to disk.

        If a member is refused (a link, a device, a file that is too large), only its sample is lost. If the tar is
        damaged, the affected sample and everything after it are lost.
        """
        for sample in _read_samples(file, self.config):
            if isinstance(sample, Rejection):
                yield sample
            else:
                yield from _convert_sample(sample, file)

    def describe(self, file: SampleFile) -> Origins:
        """Say where a tar keeps prompts, generators and source images, judging by its first samples."""
        seen, in_json, sources = SeenOrigins(), "in each sample's .json", dict[str, None]()
        for sample in _read_first_samples(file, self.config):
            sources |= dict.fromkeys(sample.sources)
            with suppress(Refused):
                fields = sample.fields
                names = sample.map_columns(fields)
                in_text = names.prompt is not None and names.prompt not in fields
                prompt = "each sample's .txt" if in_text else f"{(names.prompt or names.prompt_id)!r} {in_json}"
                unread = [name for name in fields if name not in asdict(names).values()]
                seen.note(prompt, f"{names.generator!r} {in_json}", unread)
        endings = f"{' and '.join(f'.{ending}' for ending in sorted(sources))} of each sample" if sources else ""
        return seen.to_origins(self.config.generator)._replace(sources=endings)


def open_tars(config: IngestConfig) -> TarSource:
    """Return an ingest's tars; they count as edits if any of the first samples in the first tar has a source image."""
    tars = _find_tars(config)
    edited = any(sample.sources for sample in _read_first_samples(tars[0], config))
    return TarSource(config=config, sample_files=tars, edited=edited)


def has_generators(config: IngestConfig) -> bool:
    """Return True if any of the first samples of the first tar names its generator."""
    for sample in _read_first_samples(_find_tars(config)[0], config):
        with suppress(Refused):
            if sample.map_columns(sample.fields).generator is not None:
                return True
    return False


def _read_first_samples(tar: SampleFile, config: IngestConfig) -> Iterator[_Sample]:
    first = islice(_read_samples(tar, config), MAX_INSPECTED_FILES)
    return (sample for sample in first if isinstance(sample, _Sample))


def _read_samples(tar: SampleFile, config: IngestConfig) -> Iterator[_Sample | Rejection]:
    sample: _Sample | None = None
    try:
        for member in read_members(tar, config.limits.max_bytes):
            if isinstance(member, Rejection):
                yield member
                continue
            if sample is not None and member.key != sample.key:
                yield sample
                sample = None
            sample = sample or _Sample(key=member.key, config=config)
            sample.add(member)
    except DamagedTarError as damage:
        yield damage.to_rejection(tar.place.url)
        if sample is None or sample.key == damage.key:
            return
    if sample is not None:
        yield sample


def _convert_sample(sample: _Sample, tar: SampleFile) -> Iterator[ImageSample | Rejection]:
    url = f"{tar.place.url}/{sample.key}"
    if len(sample.candidates) > 1:
        message = f"the sample has {len(sample.candidates)} images; give each a sample of its own"
        for ending, _ in sample.candidates:
            yield sample.reject(Refused("several_images", message), f"{url}.{ending}")
    elif sample.candidates or sample.refused or not sample.other_images:
        try:
            yield _read_image(sample, tar, url)
        except Refused as refused:
            yield sample.reject(refused, url)
    unused = [*sample.other_images, *(ending for ending, _ in (sample.results if sample.images else ()))]
    if sample.candidates:
        unused += [ending for ending in sample.others if ending in FOREIGN_SUFFIXES]
    for ending in unused:
        field_name = ending.rpartition(".")[0]
        if sample.candidates and (not field_name or FIELD_NAME_PATTERN.fullmatch(field_name)):
            reason = Refused(SKIPPED_KIND, f"another image of its sample, by the ending .{ending}")
        else:
            reason = Refused(
                "dotted_name",
                "in a tar, the name up to the first dot identifies the sample: here "
                f"{PurePosixPath(sample.key).name!r}, and {ending!r} is not a known extension; rename the image "
                "without that dot",
            )
        yield sample.reject(reason, f"{url}.{ending}")


def _read_image(sample: _Sample, tar: SampleFile, url: str) -> ImageSample:
    if sample.refused:
        raise sample.refused
    if not sample.candidates:
        for ending in sample.others:
            refuse_foreign_format(f"{sample.key}.{ending}")
        raise Refused("missing_image", f"the sample has no image ({', '.join(IMAGE_SUFFIXES)}); add it")
    [(_, image)] = sample.candidates
    if isinstance(image, Refused):
        raise image
    if not image:
        raise Refused("missing_image", "the image file is empty; generate it again")
    fields, names = sample.describe()
    candidate = make_candidate(
        fields,
        names,
        file=url,
        line=None,
        generator=sample.config.generator,
        default_id=f"{tar.name}/{sample.key}",
        extras={"sample": sample.texts["json"].decode() if "json" in sample.texts else None},
    )
    sources = [source for source in sample.sources.values() if isinstance(source, bytes)]
    return ImageSample(candidate, image, sources, read_field_settings(sample.fields))
