"""One shard of an export: its examples with their images and scores, as rows, as files."""

import hashlib
import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base.errors import RowError
from plumbline.operators.images.image_formats import JPEG, PNG
from plumbline.operators.rewards.formats.format import Format, Picture, Sample, Source
from plumbline.operators.rewards.selection import HELD_OUT, Example
from plumbline.operators.rewards.values import Codes, Floats
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.rewards.copied_images import SEVERAL, Copied, Copier
from plumbline.pipelines.rewards.output import ExportedShardRecord, Output
from plumbline.pipelines.rewards.scored_images import ScoredRun, elements_of

IDENTICAL, UNFIT, APART = "identical_images", "not_representable", "different_sources"
NO_FAILURE = (IDENTICAL, UNFIT, APART, SEVERAL)
"""Reasons to leave an example out that are no fault of the run: there is nothing to prefer, or the format cannot hold
it."""
MOST_MESSAGES = 5
SHARDS_REMEMBERED = 64
SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class PlannedShard(NamedTuple):
    """A shard of a split, as the selection has it."""

    name: str
    split: str
    first: int
    """The number of its first example in the split."""
    examples: Sequence[Example]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewards:
    """What every image of a run is worth, by its number; nan where a metric has no score."""

    prompts: Codes
    """The row of its prompt in the sources; one more than the last for an image of none."""
    values: Floats
    noise: float
    z_scores: Floats
    rank_advantages: Floats


class MadeShard(NamedTuple):
    """A shard that is not in the output yet."""

    record: ExportedShardRecord
    files: Mapping[str, bytes]
    """By path: its images, and its table."""
    piece: bytes | None
    """Its part of the file of the whole split, where its format has one."""

    @property
    def failed(self) -> int:
        """Examples that a fault of the sources has cost."""
        return sum(count for kind, count in self.record.left_out.items() if kind not in NO_FAILURE)


class ShardMaker:
    """Makes the shards of one export."""

    def __init__(
        self,
        run: ScoredRun,
        store: Store,
        output: Output,
        form: Format,
        rewards: Rewards,
        copier: Copier,
        scorer: str,
        ended: datetime,
    ) -> None:
        self.run, self.store, self.output, self.form, self.rewards = run, store, output, form, rewards
        self.copier, self.scorer, self.ended = copier, scorer, ended
        self._elements = lru_cache(maxsize=SHARDS_REMEMBERED)(lambda first: elements_of(store, run.shard_of(first)))

    def commit(self, made: MadeShard) -> ExportedShardRecord:
        """Writes a shard, its images first, and last says that it stands."""
        for path, data in made.files.items():
            self.output.write(path, data)
        if made.piece is not None:
            self.output.piece(made.record.name, made.piece)
        self.output.commit(made.record)
        return made.record

    def make(self, planned: PlannedShard) -> MadeShard:
        """A shard with all that it takes, in memory."""
        copied = self.copier.read(self._images_of(planned.examples))
        left_out: Counter[str] = Counter()
        messages: list[str] = []
        whole: list[tuple[int, Example]] = []
        for number, example in enumerate(planned.examples, planned.first):
            error = self._refusal(example, copied)
            if error is None:
                whole.append((number, example))
            else:
                left_out[error.kind] += 1
                messages.append(f"{error.kind}: {error.message}")
        samples = self._samples(whole, planned.split, copied)
        rows_of = [(sample, self._rows(sample)) for sample in samples]
        left_out[UNFIT] += sum(not rows for _, rows in rows_of)
        made = [(sample, rows) for sample, rows in rows_of if rows]
        table, piece = self._encoded(planned.name, made)
        record = ExportedShardRecord(
            name=planned.name,
            split=planned.split,
            rows=sum(len(rows) for _, rows in made),
            examples=len(made),
            left_out=dict(+left_out),
            messages=messages[:MOST_MESSAGES],
            unverified=sum(isinstance(image, Copied) and not image.verified for image in copied.values()),
            files=list(table),
            sha256="".join(hashlib.sha256(data).hexdigest() for data in table.values()),
        )
        return MadeShard(record, {**self._images([sample for sample, _ in made]), **table}, piece)

    def expect(self, shards: Sequence[PlannedShard]) -> None:
        """Says which shards will be made."""
        self.copier.expect(self._images_of(shard.examples) for shard in shards)

    def _images_of(self, examples: Sequence[Example]) -> set[int]:
        """The images whose bytes examples want."""
        if self.form.images == "none":
            return set()
        return {image for example in examples for image in self._shown(example)}

    def _shown(self, example: Example) -> Sequence[int]:
        """The images of an example whose bytes its rows hold or name."""
        return example.images[:1] if self.form.unit == "best" else example.images

    def _refusal(self, example: Example, copied: Mapping[int, Copied | RowError]) -> RowError | None:
        """Why an example cannot be made: an image cannot be had, or two are the same to the byte."""
        if self.form.images == "none":
            return None
        images = [copied[image] for image in self._shown(example)]
        error = next((image for image in images if isinstance(image, RowError)), None)
        copies = [image for image in images if isinstance(image, Copied)]
        if error is None and len({image.content for image in copies}) < len(images):
            return RowError(IDENTICAL, "two images of the prompt are the same to the byte, and scored differently")
        if error is None and len({tuple(image.sources) for image in copies}) > 1:
            return RowError(APART, "the images of the prompt were edited from different sources")
        return error

    def _samples(
        self, examples: Sequence[tuple[int, Example]], split: str, copied: Mapping[int, Copied | RowError]
    ) -> list[Sample]:
        of_prompt = Counter(example.prompt for _, example in examples)
        shown = {image: self._picture(image, copied.get(image)) for _, example in examples for image in example.images}
        prompts = self._prompts.take(pa.array([example.prompt for _, example in examples], pa.int64())).to_pylist()
        return [
            Sample(
                number=number,
                split=split,
                prompt_id=prompt["prompt_id"],
                prompt=prompt["text"] or "",
                skills=prompt["skills"] or (),
                pictures=[shown[image] for image in example.images],
                of_prompt=of_prompt[example.prompt],
                run_ended=self.ended,
                scorer=self.scorer,
                sources=[_source(content) for content in _sources_of(copied.get(example.images[0]))],
            )
            for (number, example), prompt in zip(examples, prompts, strict=True)
        ]

    @cached_property
    def _prompts(self) -> pa.Table:
        """In one piece, of which rows are taken at once."""
        return self.run.sources.prompts.select(["prompt_id", "text", "skills"]).combine_chunks()

    def _picture(self, image: int, copied: Copied | RowError | None) -> Picture:
        image_id, scored = self.run.image_id(image), self.run.shard_of(image)
        generator, row = scored.shard.group, image - scored.first
        raw = {name: _number(scores[image]) for name, scores in self.run.scores.items()}
        unscored = [name for name, score in raw.items() if score is None] if self.form.unit == "image" else []
        elements = self._elements(scored.first) if self.form.elements else {}
        picture = Picture(
            image_id=image_id,
            generator=generator,
            reward=_number(self.rewards.values[image]),
            z_score=_number(self.rewards.z_scores[image]),
            rank_advantage=_number(self.rewards.rank_advantages[image]),
            raw=raw,
            errors={name: self._errors.get((generator, image_id, name), "not_scored") for name in unscored},
            elements={name: rows[row] or () for name, rows in elements.items()},
        )
        if not isinstance(copied, Copied):
            return picture
        sha256 = hashlib.sha256(copied.content).hexdigest()
        path = f"images/{_safe(generator)}/{sha256[:24]}.{extension(copied.content)}"
        return picture._replace(content=copied.content, digest=sha256, path=path, uri=copied.uri)

    @cached_property
    def _errors(self) -> dict[tuple[str, str, str], str]:
        """Why an image has no score by a metric."""
        table = self.store.read_table(
            f"runs/{self.run.run_id}/errors.parquet", ["generator", "image_id", "metric", "kind", "message"]
        )
        columns = (table.column(name).to_pylist() for name in table.column_names)
        return {tuple(ids): f"{kind}: {message}" for *ids, kind, message in zip(*columns, strict=True)}

    def _rows(self, sample: Sample) -> Sequence[Mapping[str, Any]]:
        if self.form.beside is not None and sample.split == HELD_OUT:
            return self.form.beside(sample)
        return self.form.rows(sample)

    def _images(self, samples: Sequence[Sample]) -> dict[str, bytes]:
        """By path the images that rows name."""
        if self.form.images != "files":
            return {}
        pictures = {picture.path: picture.content for sample in samples for picture in sample.pictures}
        return pictures | {source.path: source.content for sample in samples for source in sample.sources}

    def _encoded(
        self, name: str, made: Sequence[tuple[Sample, Sequence[Mapping[str, Any]]]]
    ) -> tuple[dict[str, bytes], bytes | None]:
        """The shard's table by its path, or its part of the file of the whole split."""
        rows = [row for _, rows in made for row in rows]
        container = self.form.container
        if container in ("json", "jsonl"):
            return {}, to_lines(rows)
        if container == "tar":
            data = to_tar(rows, [f"{sample.split}-{sample.number:08d}" for sample, rows in made for _ in rows])
        else:
            data = to_parquet(_row_groups(made), self.form.schema)
        return {f"data/{name}.{container}": data}, None


def _sources_of(copied: Copied | RowError | None) -> Sequence[bytes]:
    return copied.sources if isinstance(copied, Copied) else ()


def _source(content: bytes) -> Source:
    return Source(content, f"images/source/{hashlib.sha256(content).hexdigest()[:24]}.{extension(content)}")


def _number(value: Any) -> float | None:
    return None if value != value else float(value)


def _safe(name: str) -> str:
    """A generator's name as a folder, or a hash where it cannot be one."""
    return name if SAFE.fullmatch(name) else hashlib.sha256(name.encode(errors="replace")).hexdigest()[:24]


MIN_ROW_GROUP_ROWS = 64
MAX_ROW_GROUP_BYTES = 64 << 20
"""Bytes of images in a row group's rows, which a reader holds; they may be fewer in the file."""
MAX_DICTIONARY = 1 << 30
"""Bytes of a row group's different images; they are fewer than those of its rows."""
EXTENSIONS = ((PNG, "png"), (JPEG, "jpg"), (b"GIF8", "gif"), (b"BM", "bmp"), (b"II", "tiff"), (b"MM", "tiff"))
Row = Mapping[str, Any]


def _row_groups(made: Sequence[tuple[Sample, Sequence[Row]]]) -> Iterator[list[Row]]:
    """Yield the rows in groups that a reader can hold, the rows of a prompt in one if possible: they share images."""
    group: list[Row] = []
    size = 0
    for _, samples in groupby(made, lambda each: each[0].prompt_id):
        if len(group) >= MIN_ROW_GROUP_ROWS:
            yield group
            group, size = [], 0
        for sample, rows in samples:
            added = sum(len(picture.content) for picture in sample.pictures)
            if group and size + added > MAX_ROW_GROUP_BYTES:
                yield group
                group, size = [], 0
            group += rows
            size += added
    yield group


def to_parquet(row_groups: Iterable[Sequence[Row]], schema: pa.Schema) -> bytes:
    """Return the rows as Parquet with page checksums; a column contains each image of a row group once."""
    buffer = io.BytesIO()
    with pq.ParquetWriter(
        buffer, schema, compression="snappy", dictionary_pagesize_limit=MAX_DICTIONARY, write_page_checksum=True
    ) as writer:
        for rows in row_groups:
            table = pa.Table.from_pylist([dict(row) for row in rows], schema)
            writer.write_table(table, row_group_size=max(1, len(rows)))
    return buffer.getvalue()


def to_tar(rows: Sequence[Row], keys: Sequence[str]) -> bytes:
    """A WebDataset tar: of every row a file for each of its columns, named by the row's key and the column."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for key, row in zip(keys, rows, strict=True):
            for extension, content in row.items():
                entry = tarfile.TarInfo(f"{key}.{extension}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def to_lines(rows: Sequence[Row]) -> bytes:
    """A line of JSON for each row."""
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode(errors="replace")


def extension(encoded: bytes) -> str:
    """What a file with an encoded image is to be called."""
    if encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP":
        return "webp"
    return next((name for signature, name in EXTENSIONS if encoded.startswith(signature)), "img")
