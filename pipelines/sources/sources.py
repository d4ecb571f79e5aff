"""Sources of a sweep: its prompts and the images of every generator as shards, and the benchmark's own questions."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import compress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.generation_settings import ColumnAlternatives
from plumbline.operators.results.summary import Skills
from plumbline.operators.stages.question_pack import PackIndex
from plumbline.operators.statistics.poisson_bootstrap import draw_prompts, hash_ids
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.base.tables import DAMAGED_KINDS, Rejection
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.edit_columns import digest_edit_columns
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.image_files import ImageFiles, open_images
from plumbline.pipelines.sources.origins import ExamplePair, Origins, read_example_pairs
from plumbline.pipelines.sources.prompts import (
    NO_ROUND,
    UnknownPrompts,
    list_own_ids,
    match_prompts,
    open_prompts,
    split_images,
    split_prompts,
)
from plumbline.pipelines.sources.question_packs import PackFile, digest_pack, read_pack
from plumbline.pipelines.sources.shards import BrokenFile, ShardSize
from plumbline.pipelines.sources.uris import open_benchmark_uris
from plumbline.pipelines.store.cells import Shard, digest

PROMPTS_AT_ONCE = 4096


class FullSize(NamedTuple):
    """Full size of a benchmark that is only scored in part."""

    prompts: int
    images: int


class Sources(NamedTuple):
    """The inputs of a sweep."""

    prompts: pa.Table
    """All prompts, in the schema PROMPTS."""
    prompt_shards: list[Shard]
    prompts_of: Mapping[Shard, tuple[Shard, ...]]
    """The shards that contain the prompts of each shard of images."""
    prompt_rows: Mapping[Shard, NDArray[np.int32]]
    """Row numbers in `prompts` for the prompts of each shard of images; empty if images contain their own prompts."""
    broken: list[BrokenFile]
    rejected: tuple[Rejection, ...]
    """Rows that an ingest rejected; each counts as a row without a score."""
    generators: list[str]
    extra: pa.Schema
    """The extra columns that are copied to the scores; the settings come last."""
    settings: Mapping[str, ColumnAlternatives] = {}
    """Columns that may contain generation settings; empty if no file has any."""
    packed: PackFile | None = None
    """The benchmark's own questions, with their digest."""
    pack_problems: tuple[str, ...] = ()
    """A line for each row of questions that is left out or not read literally."""
    pack_choices: frozenset[int] = frozenset()
    """Numbers of choices that occur among the questions."""
    question_digests: Mapping[str, str] = {}
    """Digest of the questions about each prompt, by prompt_id; empty if a changed question affects the keys of all
    shards, and not only of shards with its prompt.
    """
    unknown: UnknownPrompts = UnknownPrompts()
    """Number of images whose prompts are not in the benchmark, with an example."""
    full_size: FullSize | None = None
    """Full size of the benchmark, if some of its prompts are left out."""
    pairs: Mapping[Shard, tuple[Shard, Shard]] = {}
    """The two shards of images that each shard of pairs consists of; empty if no metric compares generators."""
    pair_counts: Mapping[tuple[str, str], int] = {}
    """Number of pairs of images that any two generators have, whether or not they are compared."""
    origins: Origins | None = None
    """Origins of prompts and generators; None if no images are read."""

    @property
    def image_shards(self) -> list[Shard]:
        return list(self.prompts_of)

    @property
    def reads_addresses(self) -> bool:
        """True if rows refer to images, sources or masks by address; these can change while the tables do not."""
        return any(shard.objects or shard.sources for shard in (*self.prompt_shards, *self.prompts_of))

    @property
    def all_generators(self) -> list[str]:
        """All generators, including those whose rows were all rejected."""
        return list(dict.fromkeys([*self.generators, *(str(row.generator) for row in self.rejected)]))

    @property
    def damaged_files(self) -> list[str]:
        """Damaged files, from which an unknown number of rows is lost."""
        return sorted({row.file for row in self.rejected if row.kind in DAMAGED_KINDS})

    @property
    def has_problems(self) -> bool:
        """True if there is a problem that the user should be warned about."""
        return bool(self.broken or self.unknown.images or self.pack_problems)

    @property
    def origin_lines(self) -> list[str]:
        """Lines for the user about the origins of the prompts and generators."""
        if self.origins is None:
            return []
        images = Counter(dict.fromkeys(self.generators, 0))
        for shard in self.image_shards:
            images[shard.group] += shard.rows
        return self.origins.describe(len(self.prompts), images)

    @property
    def example_pairs(self) -> list[ExamplePair]:
        """The first, the middle and the last image with the prompts that they are scored against."""
        return read_example_pairs(self.image_shards, self.prompts)

    @property
    def skills(self) -> Skills:
        return collect_skills(self.prompts)

    @property
    def skill_labels(self) -> NDArray[np.uint64]:
        """One number per prompt that identifies its skills; the same skills have the same number in every sweep."""
        return hash_ids(pc.binary_join(self.prompts.column("skills"), "\0").to_pylist())


def collect_skills(prompts: pa.Table) -> Skills:
    """Return the skills of each prompt in a table with the schema PROMPTS."""
    batches = prompts.select(["prompt_id", "skills"]).to_batches(max_chunksize=PROMPTS_AT_ONCE)
    columns = ([column.to_pylist() for column in batch.columns] for batch in batches)
    return Skills(pair for both in columns for pair in zip(*both, strict=True))


def open_sources(
    benchmark: BenchmarkConfig,
    storage: StorageConfig,
    *,
    shard_size: ShardSize,
    cache: ImageFileCache,
    files: ImageFiles | None = None,
) -> Sources:
    """List the source files, and read the footers, the prompts, and the prompt of each image; no image is read.

    Files in the cache are not opened. If `files` is given, images are not listed again. Raise ConfigError if prompts or
    images are missing or cannot be reached, or if no file has the configured columns.
    """
    prompts = open_prompts(benchmark, storage, shard_size) if benchmark.prompts is not None else None
    uris = open_benchmark_uris(benchmark, storage, ImageLimits())
    if prompts is not None:
        prompts = digest_edit_columns(prompts, uris.locate)
    images = open_images(benchmark, storage, shard_size, prompts, cache, files)
    shards, full_size = images.shards, None
    if benchmark.limit is not None or (prompts is not None and not benchmark.require_every_image):
        ids = list_own_ids(shards, cache) if prompts is None else prompts.table.column("prompt_id").to_pylist()
        if benchmark.limit_seed is None:
            chosen = ids[: benchmark.limit]
        else:
            chosen = list(compress(ids, draw_prompts(hash_ids(ids), benchmark.limit, benchmark.limit_seed)))
        leaves_out = len(chosen) < len(ids)
        rounds = dict.fromkeys(chosen if leaves_out else [*ids, ""], 0)  # an image without a prompt stays

        def get_round(prompt_id: str) -> int:
            return rounds.get(prompt_id, NO_ROUND)

        if leaves_out:
            full_size = FullSize(len(ids), sum(shard.rows for shard in shards))
            prompts = prompts and split_prompts(prompts, get_round)
        if leaves_out or not benchmark.require_every_image:
            shards = [piece for piece, _ in split_images(shards, get_round, cache)]
    matched = match_prompts(shards, prompts, benchmark.name, uris.locate, cache)
    return Sources(
        prompts=matched.prompts.table,
        prompt_shards=matched.prompts.shards,
        prompts_of=matched.images,
        prompt_rows=matched.prompt_rows,
        broken=images.broken + matched.broken,
        rejected=images.rejected,
        generators=images.generators,
        extra=images.extra,
        settings=images.settings,
        unknown=matched.unknown,
        full_size=full_size,
        origins=images.origins,
    )


def add_pack(sources: Sources, packed: PackFile, suite: str) -> Sources:
    """Return the sources with the benchmark's own questions and the problems found in these questions.

    Raise ConfigError if the questions cannot be read at all.
    """
    try:
        pack = read_pack(packed, suite)
    except SourceError as error:
        raise ConfigError(f"{packed.key}: {error}") from error
    ids, texts = (sources.prompts.column(name).to_pylist() for name in ("prompt_id", "text"))
    index = PackIndex(pack.questions)
    known = {prompt_id: index.find_id(prompt_id, text or "") for prompt_id, text in zip(ids, texts, strict=True)}
    named = set(known.values())
    question_digests = {
        prompt_id: digest(index.questions[name]) for prompt_id, name in known.items() if isinstance(name, str)
    }
    unknown = [] if sources.full_size else [prompt_id for prompt_id in pack.places if prompt_id not in named]
    problems = [*pack.problems]
    if unknown:
        others = f", nor are {len(unknown) - 1} other prompts of the pack" if len(unknown) > 1 else ""
        problems.append(
            f"{pack.places[unknown[0]]}: prompt_id {unknown[0]!r} is not among the benchmark's prompts{others}; "
            "nothing is asked about it"
        )
    return sources._replace(
        packed=replace(packed, digest=digest_pack(pack)),
        pack_problems=tuple(problems),
        pack_choices=pack.choices,
        question_digests=question_digests if packed.by_prompt else {},
    )
