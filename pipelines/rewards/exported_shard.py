"""Builds a shard of an export by converting examples with images and scores to rows and files."""

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
from plumbline.operators.images.image_formats import JPEG_SIGNATURE, PNG_SIGNATURE
from plumbline.operators.rewards.formats.format import Format, Sample, ScoredImage, Source
from plumbline.operators.rewards.selection import HELD_OUT, Example
from plumbline.operators.rewards.values import Floats
from plumbline.pipelines.rewards.copied_images import SEVERAL_IMAGES_KIND, CopiedImage, ImageCopier
from plumbline.pipelines.rewards.output import ExportedShardRecord, ExportOutput
from plumbline.pipelines.rewards.scored_images import ScoredRun, read_elements
from plumbline.pipelines.store.store import Store

IDENTICAL_IMAGES, NOT_REPRESENTABLE, DIFFERENT_SOURCES = "identical_images", "not_representable", "different_sources"
REASONS_NOT_COUNTED_AS_FAILED = (IDENTICAL_IMAGES, NOT_REPRESENTABLE, DIFFERENT_SOURCES, SEVERAL_IMAGES_KIND)
"""Reasons for leaving out an example without counting it as a failure, such as identical images."""
MAX_LISTED_MESSAGES = 5
MAX_CACHED_SHARDS = 64
SAFE_NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class PlannedShard(NamedTuple):
    """The examples selected for a shard."""

    name: str
    split: str
    first: int
    """Index of the shard's first example in the split."""
    examples: Sequence[Example]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rewards:
    """Rewards of a run's images, in arrays of shape (n,), and the noise of the rewards.

    The reward is nan if the image's prompt is unknown, or if any of the reward's metrics has no score for the image.
    """

    values: Floats
    noise: float
    z_scores: Floats
    rank_advantages: Floats


class BuiltShard(NamedTuple):
    """An exported shard in memory, before it is written."""

    record: ExportedShardRecord
    files: Mapping[str, bytes]
    """Contents of the images and the table, by path."""
    piece: bytes | None
    """The part that this shard contributes to the file of its split; None unless the format has one file per split."""

    @property
    def failed(self) -> int:
        """Number of examples left out because of faulty sources."""
        return sum(count for kind, count in self.record.left_out.items() if kind not in REASONS_NOT_COUNTED_AS_FAILED)


class ShardBuilder:
    """Makes the shards of an export."""

    def __init__(
        self,
        run: ScoredRun,
        store: Store,
        output: ExportOutput,
        form: Format,
        rewards: Rewards,
        copier: ImageCopier,
        scorer: str,
        ended: datetime,
    ) -> None:
        self.run, self.store, self.output, self.form, self.rewards = run, store, output, form, rewards
        self.copier, self.scorer, self.ended = copier, scorer, ended
        self._elements = lru_cache(maxsize=MAX_CACHED_SHARDS)(lambda first: read_elements(store, run.find_shard(first)))

    def commit(self, built: BuiltShard) -> ExportedShardRecord:
        """Write a shard: its images, then its table, and finally its record."""
        for path, data in built.files.items():
            self.output.write(path, data)
        if built.piece is not None:
            self.output.write_piece(built.record.name, built.piece)
        self.output.commit(built.record)
        return built.record

    def build(self, planned: PlannedShard) -> BuiltShard:
        """Read the images of a shard and convert its examples to rows."""
        copied = self.copier.read(self._find_needed_images(planned.examples))
        left_out: Counter[str] = Counter()
        messages: list[str] = []
        complete: list[tuple[int, Example]] = []
        for number, example in enumerate(planned.examples, planned.first):
            error = self._find_problem(example, copied)
            if error is None:
                complete.append((number, example))
            else:
                left_out[error.kind] += 1
                messages.append(f"{error.kind}: {error.message}")
        made: list[tuple[Sample, Sequence[Row]]] = []
        files: dict[str, bytes] = {}
        for sample in self._make_samples(complete, planned.split, copied):
            held_out = self.form.held_out_rows if sample.split == HELD_OUT else None
            rows = (held_out or self.form.rows)(sample)
            if not rows:
                left_out[NOT_REPRESENTABLE] += 1
                continue
            made.append((sample, rows))
            if self.form.images == "files":
                files |= {image.path: image.content for image in sample.images}
                files |= {source.path: source.content for source in sample.sources}
        table, piece = self._encode_shard(planned.name, made)
        record = ExportedShardRecord(
            name=planned.name,
            split=planned.split,
            rows=sum(len(rows) for _, rows in made),
            examples=len(made),
            left_out=dict(+left_out),
            messages=messages[:MAX_LISTED_MESSAGES],
            unverified=sum(isinstance(image, CopiedImage) and not image.verified for image in copied.values()),
            files=list(table),
            sha256="".join(hashlib.sha256(data).hexdigest() for data in table.values()),
        )
        return BuiltShard(record, {**files, **table}, piece)

    def register_shards(self, shards: Sequence[PlannedShard]) -> None:
        """Register the shards that will be made."""
        self.copier.register_shards(self._find_needed_images(shard.examples) for shard in shards)

    def _find_needed_images(self, examples: Sequence[Example]) -> set[int]:
        if self.form.images == "none":
            return set()
        return {image for example in examples for image in self._list_images_to_copy(example)}

    def _list_images_to_copy(self, example: Example) -> Sequence[int]:
        return example.images[:1] if self.form.unit == "best" else example.images

    def _find_problem(self, example: Example, copied: Mapping[int, CopiedImage | RowError]) -> RowError | None:
        if self.form.images == "none":
            return None
        images = [copied[image] for image in self._list_images_to_copy(example)]
        error = next((image for image in images if isinstance(image, RowError)), None)
        copies = [image for image in images if isinstance(image, CopiedImage)]
        if error is None and len({image.content for image in copies}) < len(images):
            return RowError(IDENTICAL_IMAGES, "two images of the prompt have the same bytes, but different scores")
        if error is None and len({tuple(image.sources) for image in copies}) > 1:
            return RowError(DIFFERENT_SOURCES, "the images of the prompt were edited from different sources")
        return error

    def _make_samples(
        self, examples: Sequence[tuple[int, Example]], split: str, copied: Mapping[int, CopiedImage | RowError]
    ) -> list[Sample]:
        counts = Counter(example.prompt for _, example in examples)
        images = {
            image: self._make_image(image, copied.get(image)) for _, example in examples for image in example.images
        }
        prompts = self._prompts.take(pa.array([example.prompt for _, example in examples], pa.int64())).to_pylist()
        return [
            Sample(
                number=number,
                split=split,
                prompt_id=prompt["prompt_id"],
                prompt=prompt["text"] or "",
                skills=prompt["skills"] or (),
                images=[images[image] for image in example.images],
                n_of_prompt=counts[example.prompt],
                run_ended=self.ended,
                scorer=self.scorer,
                sources=_make_sources(copied.get(example.images[0])),
            )
            for (number, example), prompt in zip(examples, prompts, strict=True)
        ]

    @cached_property
    def _prompts(self) -> pa.Table:
        return self.run.sources.prompts.select(["prompt_id", "text", "skills"]).combine_chunks()  # faster to index

    def _make_image(self, image: int, copied: CopiedImage | RowError | None) -> ScoredImage:
        image_id, scored = self.run.get_image_id(image), self.run.find_shard(image)
        generator, row = scored.shard.group, image - scored.first
        raw = {name: _convert_number(scores[image]) for name, scores in self.run.scores.items()}
        unscored = [name for name, score in raw.items() if score is None] if self.form.unit == "image" else []
        elements = self._elements(scored.first) if self.form.elements else {}
        scored_image = ScoredImage(
            image_id=image_id,
            generator=generator,
            reward=_convert_number(self.rewards.values[image]),
            z_score=_convert_number(self.rewards.z_scores[image]),
            rank_advantage=_convert_number(self.rewards.rank_advantages[image]),
            raw=raw,
            errors={name: self._errors.get((generator, image_id, name), "not_scored") for name in unscored},
            elements={name: rows[row] or () for name, rows in elements.items()},
        )
        if not isinstance(copied, CopiedImage):
            return scored_image
        sha256 = hashlib.sha256(copied.content).hexdigest()
        is_safe = SAFE_NAME_PATTERN.fullmatch(generator)
        folder = generator if is_safe else hashlib.sha256(generator.encode(errors="replace")).hexdigest()[:24]
        path = f"images/{folder}/{sha256[:24]}.{find_extension(copied.content)}"
        return scored_image._replace(content=copied.content, digest=sha256, path=path, uri=copied.uri)

    @cached_property
    def _errors(self) -> dict[tuple[str, str, str], str]:
        """Kind and message of the error that explains each missing score, by (generator, image_id, metric)."""
        table = self.store.read_table(
            f"runs/{self.run.run_id}/errors.parquet", ["generator", "image_id", "metric", "kind", "message"]
        )
        columns = (table.column(name).to_pylist() for name in table.column_names)
        return {tuple(ids): f"{kind}: {message}" for *ids, kind, message in zip(*columns, strict=True)}

    def _encode_shard(
        self, name: str, made: Sequence[tuple[Sample, Sequence[Mapping[str, Any]]]]
    ) -> tuple[dict[str, bytes], bytes | None]:
        """Encode the shard's rows; return the shard's own files by path, and its part of the split's file.

        If the format has one file per split, the shard has no files of its own; otherwise the part is None.
        """
        rows = [row for _, rows in made for row in rows]
        container = self.form.container
        if container in ("json", "jsonl"):
            lines = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
            return {}, lines.encode(errors="replace")
        if container == "tar":
            data = encode_tar(rows, [f"{sample.split}-{sample.number:08d}" for sample, rows in made for _ in rows])
        else:
            data = encode_parquet(_group_rows(made), self.form.schema)
        return {f"data/{name}.{container}": data}, None


def _make_sources(copied: CopiedImage | RowError | None) -> list[Source]:
    return [
        Source(content, f"images/source/{hashlib.sha256(content).hexdigest()[:24]}.{find_extension(content)}")
        for content in (copied.sources if isinstance(copied, CopiedImage) else ())
    ]


def _convert_number(value: Any) -> float | None:
    return None if value != value else float(value)


MIN_ROW_GROUP_ROWS = 64
MAX_ROW_GROUP_BYTES = 64 << 20
"""Maximum bytes of the images in all rows of a row group, because a reader has the whole group in memory. In the file
itself, each image is stored once.
"""
MAX_DICTIONARY_BYTES = 1 << 30
"""Maximum total bytes of the distinct images in a row group."""
SUFFIXES_BY_SIGNATURE = (
    (PNG_SIGNATURE, "png"),
    (JPEG_SIGNATURE, "jpg"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II", "tiff"),
    (b"MM", "tiff"),
)
Row = Mapping[str, Any]


def _group_rows(made: Sequence[tuple[Sample, Sequence[Row]]]) -> Iterator[list[Row]]:
    """Yield the rows in groups that fit in a reader's memory.

    If possible, all rows of a prompt are in the same group, because they share images.
    """
    group: list[Row] = []
    size = 0
    for _, samples in groupby(made, lambda each: each[0].prompt_id):
        if len(group) >= MIN_ROW_GROUP_ROWS:
            yield group
            group, size = [], 0
        for sample, rows in samples:
            added = sum(len(image.content) for image in sample.images)
            if group and size + added > MAX_ROW_GROUP_BYTES:
                yield group
                group, size = [], 0
            group += rows
            size += added
    yield group


def encode_parquet(row_groups: Iterable[Sequence[Row]], schema: pa.Schema) -> bytes:
    """Return the rows as Parquet with page checksums; each column stores an image only once per row group."""
    buffer = io.BytesIO()
    with pq.ParquetWriter(
        buffer, schema, compression="snappy", dictionary_pagesize_limit=MAX_DICTIONARY_BYTES, write_page_checksum=True
    ) as writer:
        for rows in row_groups:
            table = pa.Table.from_pylist([dict(row) for row in rows], schema)
            writer.write_table(table, row_group_size=max(1, len(rows)))
    return buffer.getvalue()


def encode_tar(rows: Sequence[Row], keys: Sequence[str]) -> bytes:
    """Return the rows as a WebDataset tar, with a file KEY.COLUMN for every row and column."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for key, row in zip(keys, rows, strict=True):
            for extension, content in row.items():
                entry = tarfile.TarInfo(f"{key}.{extension}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def find_extension(encoded: bytes) -> str:
    """Return the file name extension of an encoded image."""
    if encoded[:4] == b"RIFF" and encoded[8:12] == b"WEBP":
        return "webp"
    return next((name for signature, name in SUFFIXES_BY_SIGNATURE if encoded.startswith(signature)), "img")
