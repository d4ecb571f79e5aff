"""WebDataset tars to shards: a tar's samples, a row group of them in memory at a time."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from pipelines import storage
from pipelines.ingest.archives import TEXTS, Damage, Member, Tar, read_members
from pipelines.ingest.config import IngestConfig
from pipelines.ingest.drafting import Begin, Source, SourceFile
from pipelines.ingest.placing import Shards
from pipelines.ingest.rows import COLUMNS, IMAGES, SKILLS, Candidate, digest, find_names, make_candidate
from pipelines.ingest.shards import Drafted, DraftedShard, ShardDraft
from pipelines.storage import Location, readable_errors
from pipelines.tables import Refused, Rejection, parse_object

EXTRAS = pa.schema([("sample", pa.string())])
"""A sample's JSON as it stands in the tar."""


@dataclass(frozen=True, kw_only=True)
class TarSource(Source):
    """Tars, each of which makes shards of its own."""

    tars: list[Tar]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*COLUMNS, SKILLS, *EXTRAS])

    @property
    def files(self) -> list[SourceFile]:
        return [SourceFile(tar.location.url, tar.size, tar.etag) for tar in self.tars]

    def units(self, rejected: list[Rejection]) -> Iterator[Tar]:
        """The tars by name."""
        return iter(self.tars)

    def outline(self, tar: Tar, shards: Shards) -> Drafted | None:
        """What a tar became, where it was read to its end before."""
        key = self._key(tar)
        path = shards.output.at(_receipt_path(key))
        with readable_errors(shards.output, "output"):
            if not shards.output.fs.exists(path):
                return None
            encoded = shards.output.fs.cat_file(path)
        try:
            receipt = json.loads(encoded)
            made = [DraftedShard(name, _content(key, index)) for index, name in enumerate(receipt["generators"])]
            return Drafted(made, [Rejection(*values) for values in receipt["rejected"]])
        except (ValueError, KeyError, TypeError):  # damaged: the tar is read again
            return None

    def draft(self, tar: Tar, begin: Begin) -> list[Rejection]:
        """Drafts a tar's shards; its samples that are refused."""
        key = self._key(tar)
        current: dict[str, ShardDraft] = {}
        begun = 0
        refused: list[Rejection] = []
        for sample in read_samples(tar, self.config):
            if isinstance(sample, Rejection):
                refused.append(sample)
                continue
            generator = sample.candidate.generator
            if generator not in current or current[generator].full:
                current[generator] = begin(generator, _content(key, begun))
                begun += 1
            current[generator].add(sample.candidate, sample.image)
        return refused

    def end(self, tar: Tar, drafted: Drafted, output: Location) -> None:
        """Leaves a receipt that the tar was read to its end, so that it need not be read again."""
        receipt = {"generators": [shard.generator for shard in drafted.shards], "rejected": drafted.rejected}
        storage.write_file(output, output.at(_receipt_path(self._key(tar))), json.dumps(receipt).encode())

    def _key(self, tar: Tar) -> str:
        return digest([self.config.recipe, tar.location.url, tar.size, tar.etag])


def _content(tar_key: str, index: int) -> str:
    """What is in a tar's shard of this number, counted in the order in which they begin."""
    return digest([tar_key, index])


def _receipt_path(key: str) -> str:
    return f".ingest/{key[:32]}.json"


class Sample(NamedTuple):
    """A sample that can be taken."""

    candidate: Candidate
    image: bytes


@dataclass(kw_only=True, slots=True)
class _Gathered:
    """The members of one sample."""

    key: str
    images: list[bytes] = field(default_factory=list)
    texts: dict[str, bytes] = field(default_factory=dict)
    refused: Refused | None = None


def read_samples(tar: Tar, config: IngestConfig) -> Iterator[Sample | Rejection]:
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


def _sample(gathered: _Gathered, tar: Tar, config: IngestConfig) -> Sample | Rejection:
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


def _candidate(gathered: _Gathered, tar: Tar, config: IngestConfig) -> Candidate:
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
