"""WebDataset tars: files whose names agree up to the first dot are a sample; a tar is read once, front to back."""

import bz2
import gzip
import io
import lzma
import re
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import PurePosixPath
from typing import IO, Any, NamedTuple

from plumbline.operators.base.errors import ConfigError, PlumblineError
from plumbline.operators.images.generation_settings import field_settings
from plumbline.pipelines.base.storage import Entry, Place, readable_errors
from plumbline.pipelines.base.tables import (
    BLOCK_BYTES,
    DAMAGED_TAR,
    SKIPPED,
    Refused,
    Rejection,
    parse_object,
    printable,
)
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.input_rows import (
    EDIT_RESULTS,
    EDIT_SOURCES,
    FOREIGN,
    IMAGES,
    leads_out,
    link_roots,
    make_candidate,
    read_known_ids,
    refuse_foreign,
)
from plumbline.pipelines.ingest.sample_files import MAX_INSPECTED, ImageSample, SampleFile, SampleSource, stem
from plumbline.pipelines.sources.input_columns import InputColumnsConfig, find_names
from plumbline.pipelines.sources.origins import Origins, SeenOrigins

ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
TEXTS = ("json", "txt")
FIELD_NAME = re.compile("[a-z_]+")
"""Name of a further image of a sample, such as `depth` in 0.depth.png; 0.v2.png may be an image of its own."""
MAX_RATIO = 100
"""Bytes that a compressed tar may unpack to per stored byte, beyond FREE_BYTES; images hardly shrink at all."""
FREE_BYTES = 2**24
MAX_TEXT_BYTES = 2**20
"""Bytes of a sample's .json or .txt."""
MAX_HEADER_BYTES = 2**20
"""Bytes of a long name or other extended header, which tarfile reads whole."""
OPENERS: Mapping[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\0": lzma.open,
}
"""Decompressors by the first bytes of a tar."""
NO_NUMBER = "and how many rows that is cannot be known"


class TarSource(SampleSource):
    """WebDataset tars."""

    def read(self, file: SampleFile) -> Iterator[ImageSample | Rejection]:
        """Yield a tar's samples in order, one in memory at a time; write nothing to disk.

        A refused member (a link, a device, a file that is too large) costs only its sample. Damage costs its sample and
        everything after it.
        """
        for sample in _read_samples(file, self.config):
            if isinstance(sample, Rejection):
                yield sample
            else:
                yield from _take_sample(sample, file, self.config)

    def describe(self, file: SampleFile) -> Origins:
        """Return the origins of the prompts, generators and sources of a tar's first samples."""
        seen, place, sources = SeenOrigins(), "in each sample's .json", dict[str, None]()
        for sample in _first_samples(file, self.config):
            sources |= dict.fromkeys(sample.sources)
            with suppress(Refused):
                fields = _parse_fields(sample)
                names = _name_fields(sample, fields, self.config)
                in_text = names.prompt is not None and names.prompt not in fields
                prompt = "each sample's .txt" if in_text else f"{(names.prompt or names.prompt_id)!r} {place}"
                unread = [name for name in fields if name not in asdict(names).values()]
                seen.note(prompt, f"{names.generator!r} {place}", unread)
        endings = f"{' and '.join(f'.{ending}' for ending in sorted(sources))} of each sample" if sources else ""
        return seen.origins(self.config.generator)._replace(sources=endings)


def open_tars(config: IngestConfig) -> TarSource:
    """Return the tars of an ingest; they have sources of edits if any of the first tar's first samples has one."""
    tars = _find_tars(config)
    edited = any(sample.sources for sample in _first_samples(tars[0], config))
    return TarSource(config=config, sample_files=tars, edited=edited)


def name_generators(config: IngestConfig) -> bool:
    """Return True if any of the first tar's first samples names its generator."""
    for sample in _first_samples(_find_tars(config)[0], config):
        with suppress(Refused):
            if _name_fields(sample, _parse_fields(sample), config).generator is not None:
                return True
    return False


def _find_tars(config: IngestConfig) -> list[SampleFile]:
    """Return one tar, the tars below a folder, or those that match a pattern with *, by name.

    Raises ConfigError if there are none, or if a link leads out of the named folder and of `link_roots`.
    """
    place = config.storage.locate(str(config.tars))
    with readable_errors(place, "tars"):
        listed = place.glob() if "*" in place.path else ((place / path, entry) for path, entry in place.files())
        named = {tar: entry for tar, entry in listed if tar.path.endswith(ENDINGS)}
    if place.is_local:
        named = {tar: _local_entry(tar, place, config.link_roots) for tar in named}
    tars = [
        SampleFile(place=tar, size=entry.size, etag=entry.etag, name=printable(stem(tar.path, ENDINGS)))
        for tar, entry in sorted(named.items(), key=lambda found: found[0].url)
        if entry.type == "file" and not tar.name.startswith(".")
    ]
    if not tars:
        raise ConfigError(f"tars {place.url}: expected files that end in {', '.join(ENDINGS)}, found none")
    return tars


def _local_entry(tar: Place, place: Place, others: Sequence[str]) -> Entry:
    """Return the entry of a local file, with links followed; raises ConfigError if a link leads out of the folder.

    A tar that was named itself may be a link to anywhere.
    """
    folder = place.path.partition("*")[0].rpartition("/")[0] or "/" if "*" in place.path else place.path
    if tar != place and leads_out(tar.path, link_roots(folder, others)):
        raise ConfigError(
            f"tars {tar}: a link leads out of {folder}; put the tar itself there, or add its folder to link_roots"
        )
    with readable_errors(tar, "tars, a link:"):
        return tar.entry()


class Damage(Refused):
    """A tar cannot be read further: the sample of this key may be incomplete, and all samples after it are lost."""

    def __init__(self, problem: str, key: str) -> None:
        lost = f"the sample {key[:200]!r} and whatever is after it are" if key else "whatever is in it is"
        message = f"the tar is damaged ({problem}): {lost} lost, {NO_NUMBER}; write or upload the tar again"
        super().__init__(DAMAGED_TAR, message)
        self.key = key


class Member(NamedTuple):
    """A file of a sample."""

    key: str
    """The path up to the first dot of its last part."""
    suffix: str
    """The rest of the name after that dot, in lower case."""
    content: bytes | Refused


def read_members(tar: SampleFile, max_bytes: int) -> Iterator[Member | Rejection]:
    """Yield the files of a tar in order; raises Damage if it cannot be read further."""
    key = ""
    with readable_errors(tar.place, "tars"), _open(tar) as opened:
        stream = _ForwardStream(opened)
        try:
            with tarfile.TarFile(fileobj=stream) as archive:  # type: ignore[arg-type]  # it reads, seeks and tells
                while (header := archive.next()) is not None:
                    archive.members.clear()  # type: ignore[attr-defined]  # it would keep the header of every member
                    if not header.isdir():
                        own_key, suffix = _key_and_suffix(header)
                        key = own_key or key
                        yield _read_member(stream, header, own_key, suffix, tar, max_bytes)
                    stream.seek(archive.offset)
                stream.check_end_mark()
                joined = stream.has_more()
        except PlumblineError:
            raise
        except Exception as error:  # the standard library raises anything at all for bytes that are no tar
            raise Damage(str(error) or type(error).__name__, key) from error
    if joined:
        message = (
            "the tar goes on after its end mark, as tars do that were joined by cat: what is after the mark is lost, "
            f"{NO_NUMBER}; give each tar a file of its own"
        )
        yield Refused(DAMAGED_TAR, message).at(tar.place.url)


class _Stored(io.RawIOBase):
    """A stored file that raises ConfigError if its storage fails, so that no reader takes this for damage."""

    def __init__(self, stream: IO[bytes], place: Place) -> None:
        self._stream = stream
        self._place = place

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with readable_errors(self._place, "tars"):
            content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


class _Unpacked:
    """The unpacked bytes of a compressed tar, which fail at a limit that tars of images do not reach."""

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self._stream = stream
        self._left = most

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes; raise ReadError if the tar unpacks to more than the limit."""
        content = self._stream.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise tarfile.ReadError(f"it unpacks to more than {MAX_RATIO} times its size")
        return content


@contextmanager
def _open(tar: SampleFile) -> Iterator[Any]:
    """Open a tar, and decompress it if it is compressed."""
    with tar.place.open(size=tar.size, block_size=BLOCK_BYTES) as file:
        stored = io.BufferedReader(_Stored(file, tar.place), BLOCK_BYTES)
        start = stored.peek(8)
        opener = next((opener for mark, opener in OPENERS.items() if start.startswith(mark)), None)
        yield _Unpacked(opener(stored), FREE_BYTES + MAX_RATIO * tar.size) if opener else stored


class _ForwardStream:
    """A tar's bytes for tarfile, which reads the headers by `read`; we read only the contents that we want.

    tarfile stops at damage as silently as at the end mark. It loops forever at some broken headers, and reads extended
    headers of any size into memory.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._position = 0
        self._last_header = b""

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        """Return a header; raise ReadError for an extended one that is too large."""
        if not 0 <= size <= MAX_HEADER_BYTES + tarfile.BLOCKSIZE:
            raise tarfile.ReadError(f"an extended header of {size} bytes")
        self._last_header = self.read_content(size)
        return self._last_header

    def read_content(self, size: int) -> bytes:
        """Return the next bytes, which are fewer only at the end of the file."""
        chunks = []
        while size > 0 and (chunk := self._stream.read(min(size, BLOCK_BYTES))):
            chunks.append(chunk)
            size -= len(chunk)
            self._position += len(chunk)
        return b"".join(chunks)

    def seek(self, position: int) -> None:
        """Read on to a position; raise ReadError if it lies behind, or beyond the end."""
        if position < self._position:
            raise tarfile.ReadError("a header of negative size")
        while (left := position - self._position) > 0:
            if not self.read_content(min(left, BLOCK_BYTES)):
                raise tarfile.ReadError("unexpected end of data")

    def check_end_mark(self) -> None:
        """Raise ReadError unless the last block that was read as a header is empty and whole."""
        if len(self._last_header) != tarfile.BLOCKSIZE or any(self._last_header):
            raise tarfile.ReadError("it has no end-of-archive mark")

    def has_more(self) -> bool:
        """Return True if anything but padding is left."""
        while content := self.read_content(BLOCK_BYTES):
            if content.strip(b"\0"):
                return True
        return False


def _key_and_suffix(header: tarfile.TarInfo) -> tuple[str, str]:
    """Return a Member's key and suffix by its name; the key is empty for a hidden file, which belongs to no sample."""
    path = PurePosixPath(header.name.encode(errors="replace").decode())
    stem, _, suffix = path.name.partition(".")
    return str(path.with_name(stem)) if stem else "", suffix.lower()


def _read_member(
    stream: _ForwardStream, header: tarfile.TarInfo, key: str, suffix: str, tar: SampleFile, max_bytes: int
) -> Member | Rejection:
    """Return a member of the sample with this key; reject a member that belongs to no sample."""
    if not key:
        where = f"{tar.place.url}/{header.name}".encode(errors="replace").decode()
        return Rejection(where, None, "refused_member", "a name that begins with a dot is no sample; remove it")
    return Member(key, suffix, _content(stream, header, suffix, max_bytes))


def _content(stream: _ForwardStream, header: tarfile.TarInfo, suffix: str, max_bytes: int) -> bytes | Refused:
    role, _, ending = suffix.rpartition(".")
    suffix = ending if role in EDIT_SOURCES + EDIT_RESULTS else suffix
    if suffix not in IMAGES + TEXTS:
        return b""
    if not header.isreg() or header.issparse():
        message = f"{header.name!r}: only plain files are read from a tar; put the file itself in"
        return Refused("refused_member", message)
    limit, setting = (max_bytes, "limits.max_bytes") if suffix in IMAGES else (MAX_TEXT_BYTES, "the text's limit")
    if header.size > limit:
        message = f"{header.name!r}: {header.size} bytes are over {setting}={limit}; check the file, or raise the limit"
        return Refused("image_too_large" if suffix in IMAGES else "text_too_large", message)
    stream.seek(header.offset_data)
    content = stream.read_content(header.size)
    if len(content) != header.size:
        raise tarfile.ReadError("unexpected end of data")
    return content


@dataclass(kw_only=True, slots=True)
class _Sample:
    """The members of one sample."""

    key: str
    images: list[tuple[str, bytes | Refused]] = field(default_factory=list)
    """Images with the endings of their files."""
    sources: dict[str, bytes | Refused] = field(default_factory=dict)
    results: list[tuple[str, bytes | Refused]] = field(default_factory=list)
    """Its images, if none has an ending alone."""
    other_images: list[str] = field(default_factory=list)
    """The endings of files that look like images and have more than an ending after the first dot."""
    texts: dict[str, bytes] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    """The endings of its other files."""
    refused: Refused | None = None

    def add(self, member: Member) -> None:
        role, _, ending = member.suffix.rpartition(".")
        if role in EDIT_SOURCES and ending in IMAGES:
            self.sources[member.suffix] = member.content
        elif role in EDIT_RESULTS and ending in IMAGES:
            self.results.append((member.suffix, member.content))
        elif member.suffix in IMAGES:
            self.images.append((member.suffix, member.content))
        elif isinstance(member.content, Refused):
            self.refused = self.refused or member.content
        elif member.suffix in TEXTS:
            self.texts[member.suffix] = member.content
        elif role and ending in (*IMAGES, *FOREIGN):
            self.other_images.append(member.suffix)
        else:
            self.others.append(member.suffix)

    @property
    def chosen_images(self) -> list[tuple[str, bytes | Refused]]:
        """The sample's image; if there are several, none can be taken."""
        return self.images or self.results


def _take_sample(sample: _Sample, tar: SampleFile, config: IngestConfig) -> Iterator[ImageSample | Rejection]:
    """Yield a sample's image, and a rejection for each of its other images."""
    where = f"{tar.place.url}/{sample.key}"
    if len(sample.chosen_images) > 1:
        message = f"the sample has {len(sample.chosen_images)} images; give each a sample of its own"
        ids = _read_ids(sample, config)
        for ending, _ in sample.chosen_images:
            yield Refused("several_images", message).at(f"{where}.{ending}", None, **ids)
    elif sample.chosen_images or sample.refused or not sample.other_images:
        yield _take_image(sample, tar, config)
    unused = [*sample.other_images, *(ending for ending, _ in (sample.results if sample.images else ()))]
    if sample.chosen_images:
        unused += [ending for ending in sample.others if ending in FOREIGN]
    for ending in unused:
        yield _refuse_unused(sample, ending).at(f"{where}.{ending}", None, **_read_ids(sample, config))


def _refuse_unused(sample: _Sample, ending: str) -> Refused:
    """Return why an image is not taken: its sample has another image, or its name has a dot too many."""
    field_name = ending.rpartition(".")[0]
    if sample.chosen_images and (not field_name or FIELD_NAME.fullmatch(field_name)):
        return Refused(SKIPPED, f"another image of its sample, by the ending .{ending}")
    return Refused(
        "dotted_name",
        f"in a tar, what comes before the first dot names the sample: here {PurePosixPath(sample.key).name!r}, and "
        f"{ending!r} is none of its endings; write the image's name without that dot",
    )


def _first_samples(tar: SampleFile, config: IngestConfig) -> Iterator[_Sample]:
    first = islice(_read_samples(tar, config), MAX_INSPECTED)
    return (sample for sample in first if isinstance(sample, _Sample))


def _read_samples(tar: SampleFile, config: IngestConfig) -> Iterator[_Sample | Rejection]:
    """Yield the members of each sample together, one sample in memory at a time."""
    sample: _Sample | None = None
    try:
        for member in read_members(tar, config.limits.max_bytes):
            if isinstance(member, Rejection):
                yield member
                continue
            if sample is not None and member.key != sample.key:
                yield sample
                sample = None
            sample = sample or _Sample(key=member.key)
            sample.add(member)
    except Damage as damage:
        yield damage.at(tar.place.url)
        if sample is None or sample.key == damage.key:
            return
    if sample is not None:
        yield sample


def _take_image(sample: _Sample, tar: SampleFile, config: IngestConfig) -> ImageSample | Rejection:
    """Return a sample's image with the row that its JSON and text describe, or why it is refused."""
    where = f"{tar.place.url}/{sample.key}"
    try:
        if sample.refused:
            raise sample.refused
        sources = [source for source in sample.sources.values() if isinstance(source, bytes)]
        image = _only_image(sample)
        encoded = sample.texts.get("json")
        fields, names = _describe_sample(sample, config)
        candidate = make_candidate(
            fields,
            names,
            file=where,
            line=None,
            generator=config.generator,
            default_id=f"{tar.name}/{sample.key}",
            extras={"sample": encoded.decode() if encoded is not None else None},
        )
        return ImageSample(candidate, image, sources, field_settings(_parse_fields(sample)))
    except Refused as refused:
        return refused.at(where, None, **_read_ids(sample, config))


def _read_ids(sample: _Sample, config: IngestConfig) -> dict[str, str | None]:
    """Return the ids in the JSON or text of a sample that is rejected, as Refused.at takes them."""
    with suppress(Refused):
        fields, names = _describe_sample(sample, config)
        return read_known_ids(fields, names, config.generator)
    return {"generator": config.generator, "prompt_id": None, "image_id": None}


def _only_image(sample: _Sample) -> bytes:
    for ending in () if sample.chosen_images else sample.others:
        refuse_foreign(f"{sample.key}.{ending}")
    if not sample.chosen_images:
        raise Refused("missing_image", f"the sample has no image ({', '.join(IMAGES)}); add it")
    [(_, image)] = sample.chosen_images
    if isinstance(image, Refused):
        raise image
    if not image:
        raise Refused("missing_image", "the image file is empty; generate it again")
    return image


def _parse_fields(sample: _Sample) -> dict[str, Any]:
    encoded = sample.texts.get("json")
    return parse_object(encoded) if encoded is not None else {}


def _describe_sample(sample: _Sample, config: IngestConfig) -> tuple[dict[str, Any], InputColumnsConfig]:
    """Return the fields of a sample, its .txt among them, and their names by role."""
    fields = _parse_fields(sample)
    names = _name_fields(sample, fields, config)
    if names.prompt is None or names.prompt in fields:
        return fields, names
    try:
        prompt = sample.texts["txt"].decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise Refused("not_utf8", f"the .txt is not UTF-8 at byte {error.start}; save it as UTF-8") from error
    return {**fields, names.prompt: prompt}, names


def _name_fields(sample: _Sample, fields: Mapping[str, Any], config: IngestConfig) -> InputColumnsConfig:
    """Return the names of a sample's fields by role; without a prompt in its JSON, its .txt is the field `prompt`."""
    names = find_names(fields, config.columns)
    return replace(names, prompt="prompt") if names.prompt is None and "txt" in sample.texts else names
