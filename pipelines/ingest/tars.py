"""A WebDataset tar's samples: files side by side whose names agree up to the first dot."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pipelines.ingest.archives import TEXTS, Damage, Member, read_members
from pipelines.ingest.config import IngestConfig
from pipelines.ingest.held import HeldFile, Sample
from pipelines.ingest.rows import IMAGES, Candidate, find_names, make_candidate
from pipelines.tables import Refused, Rejection, parse_object


@dataclass(kw_only=True, slots=True)
class _Gathered:
    """The members of one sample."""

    key: str
    images: list[bytes] = field(default_factory=list)
    texts: dict[str, bytes] = field(default_factory=dict)
    refused: Refused | None = None


def read_samples(tar: HeldFile, config: IngestConfig) -> Iterator[Sample | Rejection]:
    """A tar's samples in order, one in memory at a time; nothing is written to disk.

    What is refused (links, devices, members that are too large) costs its sample alone; damage costs the sample that
    it meets and whatever is after it.
    """
    gathered: _Gathered | None = None
    try:
        for member in read_members(tar, config.limits.max_bytes):
            if isinstance(member, Rejection):
                yield member
                continue
            if gathered is not None and member.key != gathered.key:
                yield _sample(gathered, tar, config)
                gathered = None
            gathered = gathered or _Gathered(key=member.key)
            _gather(gathered, member)
    except Damage as damage:
        yield damage.at(tar.location.url)
        if gathered is None or gathered.key == damage.key:
            return
    if gathered is not None:
        yield _sample(gathered, tar, config)


def _gather(gathered: _Gathered, member: Member) -> None:
    if isinstance(member.content, Refused):
        gathered.refused = gathered.refused or member.content
    elif member.kind in IMAGES:
        gathered.images.append(member.content)
    elif member.kind in TEXTS:
        gathered.texts[member.kind] = member.content


def _sample(gathered: _Gathered, tar: HeldFile, config: IngestConfig) -> Sample | Rejection:
    where = f"{tar.location.url}/{gathered.key}"
    try:
        if gathered.refused:
            raise gathered.refused
        return Sample(_candidate(gathered, tar, config), _only_image(gathered.images))
    except Refused as refused:
        return refused.at(where)


def _only_image(images: list[bytes]) -> bytes:
    if not images:
        raise Refused("missing_image", f"the sample has no image ({', '.join(IMAGES)}); add it")
    if len(images) > 1:
        raise Refused("several_images", f"the sample has {len(images)} images; give each a sample of its own")
    if not images[0]:
        raise Refused("missing_image", "the image file is empty; generate it again")
    return images[0]


def _candidate(gathered: _Gathered, tar: HeldFile, config: IngestConfig) -> Candidate:
    """The row that a sample's JSON and text describe; the JSON's own prompt goes before the text."""
    encoded = gathered.texts.get("json")
    fields = parse_object(encoded) if encoded is not None else {}
    names = find_names(fields, config.columns)
    if names.prompt is None and "txt" in gathered.texts:
        fields, names = {**fields, "prompt": _decoded(gathered.texts["txt"])}, replace(names, prompt="prompt")
    return make_candidate(
        fields,
        names,
        file=f"{tar.location.url}/{gathered.key}",
        line=None,
        generator=config.generator,
        default_id=f"{tar.name}/{gathered.key}",
        extras={"sample": encoded.decode() if encoded is not None else None},
    )


def _decoded(text: bytes) -> str:
    try:
        return text.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise Refused("not_utf8", f"the .txt is not UTF-8 at byte {error.start}; save it as UTF-8") from error
