"""A WebDataset tar's samples: files side by side whose names agree up to the first dot."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from plumbline.pipelines.base.tables import Refused, Rejection, parse_object
from plumbline.pipelines.ingest.archives import TEXTS, Damage, Member, read_members
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.input_rows import (
    IMAGES,
    Candidate,
    InputColumnsConfig,
    find_names,
    make_candidate,
    refuse_foreign,
)
from plumbline.pipelines.ingest.sample_files import MOST_LOOKED_AT, Sample, SampleFile
from plumbline.pipelines.sources.origins import Origins, SeenOrigins


@dataclass(kw_only=True, slots=True)
class _Gathered:
    """The members of one sample."""

    key: str
    images: list[bytes] = field(default_factory=list)
    texts: dict[str, bytes] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    """The endings of its other files."""
    refused: Refused | None = None


def read_samples(tar: SampleFile, config: IngestConfig) -> Iterator[Sample | Rejection]:
    """A tar's samples in order, one in memory at a time; nothing is written to disk.

    What is refused (links, devices, members that are too large) costs its sample alone; damage costs the sample that
    it meets and whatever is after it.
    """
    for gathered in _gather_all(tar, config):
        yield gathered if isinstance(gathered, Rejection) else _sample(gathered, tar, config)


def describe_samples(tar: SampleFile, config: IngestConfig) -> Origins:
    """Where a tar's first samples have their prompts and generators from."""
    seen, there = SeenOrigins(), "in each sample's .json"
    for fields, names in _first(tar, config):
        of_text = names.prompt is not None and names.prompt not in fields
        prompt = "each sample's .txt" if of_text else f"{(names.prompt or names.prompt_id)!r} {there}"
        unread = [name for name in fields if name not in asdict(names).values()]
        seen.note(prompt, f"{names.generator!r} {there}", unread)
    return seen.origins(config.generator)


def name_generators(tar: SampleFile, config: IngestConfig) -> bool:
    """Whether any of a tar's first samples names its generator."""
    return any(names.generator is not None for _, names in _first(tar, config))


def _first(tar: SampleFile, config: IngestConfig) -> Iterator[tuple[dict[str, Any], InputColumnsConfig]]:
    """The first samples' fields, and what those are called; of the prompt also where the .txt tells it."""
    for gathered in islice(_gather_all(tar, config), MOST_LOOKED_AT):
        with suppress(Refused):
            if isinstance(gathered, _Gathered):
                yield _fields(gathered), _names(gathered, _fields(gathered), config)


def _gather_all(tar: SampleFile, config: IngestConfig) -> Iterator[_Gathered | Rejection]:
    """A tar's samples as their files, one in memory at a time."""
    gathered: _Gathered | None = None
    try:
        for member in read_members(tar, config.limits.max_bytes):
            if isinstance(member, Rejection):
                yield member
                continue
            if gathered is not None and member.key != gathered.key:
                yield gathered
                gathered = None
            gathered = gathered or _Gathered(key=member.key)
            _gather(gathered, member)
    except Damage as damage:
        yield damage.at(tar.place.url)
        if gathered is None or gathered.key == damage.key:
            return
    if gathered is not None:
        yield gathered


def _gather(gathered: _Gathered, member: Member) -> None:
    if isinstance(member.content, Refused):
        gathered.refused = gathered.refused or member.content
    elif member.suffix in IMAGES:
        gathered.images.append(member.content)
    elif member.suffix in TEXTS:
        gathered.texts[member.suffix] = member.content
    else:
        gathered.others.append(member.suffix)


def _sample(gathered: _Gathered, tar: SampleFile, config: IngestConfig) -> Sample | Rejection:
    where = f"{tar.place.url}/{gathered.key}"
    try:
        if gathered.refused:
            raise gathered.refused
        return Sample(_candidate(gathered, tar, config), _only_image(gathered))
    except Refused as refused:
        return refused.at(where)


def _only_image(gathered: _Gathered) -> bytes:
    images = gathered.images
    if not images:
        for ending in gathered.others:
            refuse_foreign(f"{gathered.key}.{ending}")
        raise Refused("missing_image", f"the sample has no image ({', '.join(IMAGES)}); add it")
    if len(images) > 1:
        raise Refused("several_images", f"the sample has {len(images)} images; give each a sample of its own")
    if not images[0]:
        raise Refused("missing_image", "the image file is empty; generate it again")
    return images[0]


def _candidate(gathered: _Gathered, tar: SampleFile, config: IngestConfig) -> Candidate:
    """The row that a sample's JSON and text describe; the JSON's own prompt goes before the text."""
    encoded = gathered.texts.get("json")
    fields = _fields(gathered)
    names = _names(gathered, fields, config)
    if names.prompt is not None and names.prompt not in fields:
        fields = {**fields, names.prompt: _decoded(gathered.texts["txt"])}
    return make_candidate(
        fields,
        names,
        file=f"{tar.place.url}/{gathered.key}",
        line=None,
        generator=config.generator,
        default_id=f"{tar.name}/{gathered.key}",
        extras={"sample": encoded.decode() if encoded is not None else None},
    )


def _fields(gathered: _Gathered) -> dict[str, Any]:
    encoded = gathered.texts.get("json")
    return parse_object(encoded) if encoded is not None else {}


def _names(gathered: _Gathered, fields: Mapping[str, Any], config: IngestConfig) -> InputColumnsConfig:
    """What a sample's fields are called; where its text tells the prompt, that is `prompt`."""
    names = find_names(fields, config.columns)
    return replace(names, prompt="prompt") if names.prompt is None and "txt" in gathered.texts else names


def _decoded(text: bytes) -> str:
    try:
        return text.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise Refused("not_utf8", f"the .txt is not UTF-8 at byte {error.start}; save it as UTF-8") from error
