"""Source tables of a sweep on disk or S3: its prompts, and the images of every generator, as shards."""

import hashlib
import io
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import compress
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from plumbline.operators.base import rows
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.generation_settings import (
    COLUMN,
    Ways,
    columns_in,
    columns_of,
    is_kept,
    setting_ways,
    settings_type,
)
from plumbline.operators.images.rows import SOURCES
from plumbline.operators.results.summary import Skills
from plumbline.operators.stages.question_pack import PackIndex
from plumbline.operators.statistics.poisson_bootstrap import draw_prompts, hash_ids
from plumbline.pipelines.base.storage import Entry, Place, StorageConfig, readable_errors
from plumbline.pipelines.base.tables import DAMAGED, NO_GENERATOR, REJECTED, Rejection, printable
from plumbline.pipelines.base.view_types import schema_without_views
from plumbline.pipelines.sources.benchmark import (
    GENERATORS,
    IMAGE_COLUMNS,
    BenchmarkConfig,
    ColumnsConfig,
    check_extra,
    name_generators,
)
from plumbline.pipelines.sources.edit_columns import digest_edit_columns
from plumbline.pipelines.sources.example_pairs import ExamplePair, read_pairs
from plumbline.pipelines.sources.file_memory import FileMemory
from plumbline.pipelines.sources.origins import (
    MANIFEST,
    Origins,
    count_suffixes,
    name_some,
    pass_over,
    read_origins,
)
from plumbline.pipelines.sources.picked_shards import LEFT_OUT, split_images, split_prompts
from plumbline.pipelines.sources.prompts import (
    Prompted,
    PromptTables,
    UnknownPrompts,
    gather_prompts,
    match_prompts,
    open_prompts,
    own_ids,
)
from plumbline.pipelines.sources.question_packs import PackFile, pack_digest, read_pack
from plumbline.pipelines.sources.shards import (
    FILE_READERS,
    INGESTED,
    BrokenFile,
    ListedFile,
    Listing,
    ShardSize,
    check_columns,
    is_table,
    list_files,
    read_footer,
    require_columns,
    split_file,
    state_of,
)
from plumbline.pipelines.sources.uris import Uris, benchmark_uris
from plumbline.pipelines.store.cells import Shard, digest
from plumbline.pipelines.store.store import MARK, is_store

PARQUET = (".parquet",)
PROMPTS_AT_ONCE = 4096
REJECTED_FILE = "rejected.parquet"
"""File with the rejected rows of an ingest, next to the folders of its generators."""
MAX_REJECTED, MAX_REJECTED_BYTES = 1_000_000, 256 * 2**20
"""Maximum number of rejected rows that a sweep reads, and of their bytes, compressed or not."""


class FullSize(NamedTuple):
    """Full size of a benchmark that is only scored in part."""

    prompts: int
    images: int


class Sources(NamedTuple):
    """The inputs of a sweep."""

    prompts: pa.Table
    """Schema PROMPTS, all prompts."""
    prompt_shards: list[Shard]
    prompts_of: Mapping[Shard, tuple[Shard, ...]]
    """The shards with the prompts of each shard of images."""
    named: Mapping[Shard, NDArray[np.int32]]
    """The rows of `prompts` that each shard of images names, by id; empty if images contain their own prompts."""
    broken: list[BrokenFile]
    rejected: tuple[Rejection, ...]
    """Rows that an ingest rejected; each counts as a row without a score."""
    generators: list[str]
    extra: pa.Schema
    """The further columns that go to the scores, the settings last."""
    settings: Mapping[str, Ways] = {}
    """Columns that may contain the settings of generation; empty if no file has any."""
    packed: PackFile | None = None
    """The benchmark's own questions, with their digest."""
    pack_problems: tuple[str, ...] = ()
    """A line for each row of the questions that is left out or not read literally."""
    pack_choices: frozenset[int] = frozenset()
    """Numbers of choices of the questions."""
    asked: Mapping[str, str] = {}
    """Digest of the questions of each prompt, if they enter only the keys of their own shards."""
    unknown: UnknownPrompts = UnknownPrompts()
    """Images of prompts that the benchmark does not have."""
    full_size: FullSize | None = None
    """Full size of the benchmark, if some of its prompts are left out."""
    origins: Origins | None = None
    """Origins of prompts and generators; None if no images are read."""

    @property
    def image_shards(self) -> list[Shard]:
        return list(self.prompts_of)

    @property
    def reads_addresses(self) -> bool:
        """True if some rows name images, sources or masks by address, which no listing shows."""
        return any(shard.objects or shard.sources for shard in (*self.prompt_shards, *self.prompts_of))

    @property
    def every_generator(self) -> list[str]:
        """Return the generators, also those with rejected rows only."""
        return list(dict.fromkeys([*self.generators, *(str(row.generator) for row in self.rejected)]))

    @property
    def uncounted(self) -> list[str]:
        """Files that lost an unknown number of rows."""
        return sorted({row.file for row in self.rejected if row.kind in DAMAGED})

    @property
    def has_problems(self) -> bool:
        """True if there is something to warn people of."""
        return bool(self.broken or self.unknown.images or self.pack_problems)

    @property
    def origin_lines(self) -> list[str]:
        """Origins of prompts and generators, as lines for people."""
        if self.origins is None:
            return []
        images = Counter(dict.fromkeys(self.generators, 0))
        for shard in self.image_shards:
            images[shard.group] += shard.rows
        return self.origins.lines(len(self.prompts), images)

    @property
    def example_pairs(self) -> list[ExamplePair]:
        """The first, the middle and the last image with their prompts, as they are scored."""
        return read_pairs(self.image_shards, self.prompts)

    @property
    def skills(self) -> Skills:
        return skills_of(self.prompts)

    @property
    def skill_labels(self) -> NDArray[np.uint64]:
        """A number for each prompt that identifies its skills, the same in every sweep."""
        joined = pc.binary_join(self.prompts.column("skills"), "\0").to_pylist()
        return hash_ids(joined)


def skills_of(prompts: pa.Table) -> Skills:
    """Return the skills of each prompt of a table with the schema PROMPTS."""
    batches = prompts.select(["prompt_id", "skills"]).to_batches(max_chunksize=PROMPTS_AT_ONCE)
    columns = ([column.to_pylist() for column in batch.columns] for batch in batches)
    return Skills(pair for both in columns for pair in zip(*both, strict=True))


class _ImagesFile(NamedTuple):
    """The schema and shards of one file of images."""

    schema: pa.Schema
    shards: list[Shard]
    ingested: bool
    """True if an ingest wrote it."""
    several: str = ""
    """Message that its rows name several generators, unless the configuration names one for them; else empty."""


class ImageFiles(NamedTuple):
    """The files of all generators, as they are listed; none is opened."""

    places: Mapping[str, Place]
    """Folder or file of each generator, in the order of names or of the configuration."""
    listings: Mapping[str, Listing]
    beside: list[str]
    """Files next to the generators' folders that are not tables."""
    rejected: tuple[Rejection, ...] = ()
    """Rows that an ingest rejected."""

    @property
    def others(self) -> list[str]:
        """Files that are not tables."""
        return [*self.beside, *(f"{name}/{path}" for name, listing in self.listings.items() for path in listing.others)]

    @property
    def state(self) -> str:
        """Digest of the list of files and of their sizes and etags."""
        seen = hashlib.sha256("\0".join([*self.places, *self.others]).encode(errors="surrogateescape"))
        for listing in self.listings.values():
            seen.update(state_of(listing.tables).encode())
        if self.rejected:
            seen.update(digest(self.rejected).encode())
        return seen.hexdigest()


class Images(NamedTuple):
    """The images of all generators."""

    shards: list[Shard]
    broken: list[BrokenFile]
    rejected: tuple[Rejection, ...]
    generators: list[str]
    extra: pa.Schema
    settings: Mapping[str, Ways]
    origins: Origins


def list_images(benchmark: BenchmarkConfig, storage: StorageConfig) -> ImageFiles:
    """List the files of every generator; raises ConfigError if there are none or they cannot be listed."""
    places, beside = _find_generators(benchmark, storage)
    listings = {name: _listing(name, place) for name, place in places.items()}
    return ImageFiles(places, listings, beside, _read_rejected(benchmark, storage, places))


def _read_rejected(
    benchmark: BenchmarkConfig, storage: StorageConfig, generators: Container[str]
) -> tuple[Rejection, ...]:
    """Return the rows that an ingest could not take, of the generators that are scored.

    A trial of the first prompts has none: rejected rows are not among these prompts.
    """
    if benchmark.images is None or benchmark.limit is not None:
        return ()
    place = storage.locate(benchmark.images) / REJECTED_FILE
    with readable_errors(place, "benchmark.images"):
        try:
            content = place.read(MAX_REJECTED_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            return ()
    try:
        held = pq.read_metadata(io.BytesIO(content)) if len(content) <= MAX_REJECTED_BYTES else None
        if held is None or held.num_rows > MAX_REJECTED or _uncompressed_size(held) > MAX_REJECTED_BYTES:
            raise ConfigError(
                f"{place}: more than {MAX_REJECTED:,} rows or {MAX_REJECTED_BYTES >> 20} MiB, the limit of rejected "
                "rows; mend the input and run the ingest again, or remove the file to leave its rows out"
            )
        table = pq.read_table(io.BytesIO(content), use_threads=False)
    except pa.ArrowException as error:
        raise ConfigError(f"{place}: damaged ({error}); run the ingest again") from error
    if not {*Rejection._fields} - {*Rejection._field_defaults} <= {*table.column_names}:
        return ()  # somebody else's file
    known = table.select([name for name in REJECTED.names if name in table.column_names])
    rejected = [Rejection(**row) for row in known.to_pylist()]
    return tuple(row for row in rejected if benchmark.generators is None or row.generator in generators)


def _uncompressed_size(file: pq.FileMetaData) -> int:
    """Return the uncompressed bytes of all row groups, from the footer."""
    return sum(file.row_group(number).total_byte_size for number in range(file.num_row_groups))


def open_sources(
    benchmark: BenchmarkConfig,
    storage: StorageConfig,
    *,
    shard_size: ShardSize,
    memory: FileMemory,
    files: ImageFiles | None = None,
) -> Sources:
    """List the sources, and read their footers, the prompts, and the prompt of each image; no image is read.

    Files in `memory` are not opened. `files` are the image files if they are listed already. A Parquet file without
    rows is read like any other and counts no rows. Raises ConfigError if prompts or images are missing or cannot be
    reached, or if no file has the columns that the configuration names.
    """
    prompts = open_prompts(benchmark, storage, shard_size) if benchmark.prompts is not None else None
    uris = benchmark_uris(benchmark, storage, ImageLimits())
    if prompts is not None:
        prompts = digest_edit_columns(prompts, uris.locate)
    images = open_images(benchmark, storage, shard_size, prompts, memory, files)
    selected = _select(prompts, images.shards, benchmark, memory)
    prompted = with_prompts(selected.images, selected.prompts, benchmark.name, uris, memory)
    return Sources(
        prompts=prompted.prompts.table,
        prompt_shards=prompted.prompts.shards,
        prompts_of=prompted.images,
        named=prompted.named,
        broken=images.broken + prompted.broken,
        rejected=images.rejected,
        generators=images.generators,
        extra=images.extra,
        settings=images.settings,
        unknown=prompted.unknown,
        full_size=selected.full_size,
        origins=images.origins,
    )


class _Selected(NamedTuple):
    prompts: PromptTables | None
    """None if the images' rows contain their own prompts."""
    images: list[Shard]
    full_size: FullSize | None = None
    """Full size, if prompts are left out."""


def _select(
    prompts: PromptTables | None, images: list[Shard], benchmark: BenchmarkConfig, memory: FileMemory
) -> _Selected:
    """Return the limited number of prompts with their images; without a limit all, except images that are left out."""
    if benchmark.limit is None and (prompts is None or benchmark.require_every_image):
        return _Selected(prompts, images)
    ids = own_ids(images, memory) if prompts is None else prompts.table.column("prompt_id").to_pylist()
    first = _limit_ids(ids, benchmark)
    left_out = len(first) < len(ids)
    round_of_prompt = dict.fromkeys(first if left_out else [*ids, ""], 0)

    def round_of(prompt_id: str) -> int:
        return round_of_prompt.get(prompt_id, LEFT_OUT)

    selected = images
    if left_out or not benchmark.require_every_image:
        selected = [piece for piece, _ in split_images(images, round_of, memory)]
    if not left_out:
        return _Selected(prompts, selected)
    full_size = FullSize(len(ids), sum(shard.rows for shard in images))
    return _Selected(prompts and split_prompts(prompts.table, prompts.shards, round_of), selected, full_size)


def _limit_ids(ids: Sequence[str], benchmark: BenchmarkConfig) -> Sequence[str]:
    """Return the first prompts, or those that the seed draws."""
    if benchmark.limit_seed is None:
        return ids[: benchmark.limit]
    return list(compress(ids, draw_prompts(hash_ids(ids), benchmark.limit, benchmark.limit_seed)))


def with_prompts(
    images: Sequence[Shard], prompts: PromptTables | None, suite: str, uris: Uris, memory: FileMemory
) -> Prompted:
    """Return the images with their prompts: the benchmark's, or those in their own rows."""
    if prompts is None:
        return gather_prompts(images, suite, uris.locate, memory)
    return match_prompts(images, prompts, uris.locate, memory)


def with_pack(sources: Sources, packed: PackFile, suite: str) -> Sources:
    """Return the sources with the benchmark's own questions, and the problems of these.

    Raises ConfigError if the questions cannot be read at all.
    """
    try:
        pack = read_pack(packed, suite)
    except SourceError as error:
        raise ConfigError(f"{packed.key}: {error}") from error
    ids, texts = (sources.prompts.column(name).to_pylist() for name in ("prompt_id", "text"))
    index = PackIndex(pack.questions)
    known = {prompt_id: index.find_id(prompt_id, text or "") for prompt_id, text in zip(ids, texts, strict=True)}
    named = set(known.values())
    asked = {prompt_id: digest(index.asked[name]) for prompt_id, name in known.items() if isinstance(name, str)}
    unknown = [] if sources.full_size else [prompt_id for prompt_id in pack.places if prompt_id not in named]
    problems = [*pack.problems]
    if unknown:
        others = f", nor are {len(unknown) - 1} other prompts of the pack" if len(unknown) > 1 else ""
        problems.append(
            f"{pack.places[unknown[0]]}: prompt_id {unknown[0]!r} is not among the benchmark's prompts{others}; "
            "nothing is asked about it"
        )
    return sources._replace(
        packed=replace(packed, digest=pack_digest(pack)),
        pack_problems=tuple(problems),
        pack_choices=pack.choices,
        asked=asked if packed.by_prompt else {},
    )


def open_images(
    benchmark: BenchmarkConfig,
    storage: StorageConfig,
    shard_size: ShardSize,
    prompts: PromptTables | None,
    memory: FileMemory,
    files: ImageFiles | None = None,
) -> Images:
    """Read the footers of every generator's files; a file that cannot be read affects no other.

    Columns of sources, masks and captions that `prompts` have may be absent.
    """
    root = storage.locate(benchmark.images) if benchmark.images is not None else None
    files = files or list_images(benchmark, storage)
    places, listed, others = files.places, files.listings, files.others
    memory.load(places)
    if places and not any(listing.tables for listing in listed.values()):
        raise _no_tables(benchmark, others)
    with ThreadPoolExecutor(FILE_READERS) as pool:
        tables_listed = [file for listing in listed.values() for file in listing.tables]
        elsewhere = set() if prompts is None else prompts.edit_columns
        results = list(
            pool.map(lambda file: _images_file(file, benchmark, shard_size, elsewhere, memory.footer), tables_listed)
        )
    broken = [result for result in results if isinstance(result, BrokenFile)]
    broken += [_no_files(name, places[name]) for name, listing in listed.items() if not listing.tables]
    tables = [result for result in results if isinstance(result, _ImagesFile)]
    if broken and not tables and (benchmark.prompts is None or benchmark.columns != ColumnsConfig()):
        raise ConfigError(f"benchmark.images: {broken[0].message}")
    if several := next((table.several for table in tables if table.several), ""):
        raise ConfigError(several)
    shards = [shard for table in tables for shard in table.shards]
    schemas = [table.schema for table in tables]
    settings = _settings(benchmark.columns, schemas)
    extra = _extra_schema(benchmark.columns, schemas, settings)
    origins = _origins(benchmark, root, places, tables, others)
    origins = origins._replace(
        sources=_sources(benchmark, tables, origins),
        settings=_settings_in_words(settings, schemas),
        unread=[name for name in origins.unread if name not in columns_of(settings)],
    )
    rejected = _add_generators(files.rejected, list(places))
    return Images(shards, broken, rejected, list(places), extra, settings, origins)


def _add_generators(rejected: Sequence[Rejection], generators: Sequence[str]) -> tuple[Rejection, ...]:
    """Return the rejected rows; a row without a generator gets the only one there is, or NO_GENERATOR."""
    fallback = generators[0] if len(generators) == 1 else NO_GENERATOR
    return tuple(row._replace(generator=row.generator or fallback) for row in rejected)


def ingested_sources(benchmark: BenchmarkConfig, storage: StorageConfig) -> dict[str, str]:
    """Return the columns of sources, by our names, of the first readable table of images if an ingest wrote it."""
    for listing in list_images(benchmark, storage).listings.values():
        for file in listing.tables:
            try:
                footer = read_footer(file)
            except SourceError:
                continue
            held = footer.schema.to_arrow_schema().names if INGESTED in (footer.metadata or {}) else []
            return {column: column for column in SOURCES if column in held}
    return {}


def _listing(generator: str, place: Place) -> Listing:
    with readable_errors(place, f"benchmark.generators.{generator}"):
        return list_files(place, generator, PARQUET)


def _no_tables(benchmark: BenchmarkConfig, others: Sequence[str]) -> ConfigError:
    """Return the error if no generator has any table, as in folders of image files."""
    images = benchmark.images or "PATH"
    inside = "" if benchmark.prompts is None else ", with the prompts in that folder itself (docs/ingest.md)"
    return ConfigError(
        f"benchmark.images {images}: expected one folder per generator, or Parquet files, found "
        f"{count_suffixes(others) or 'none'}; image files and tars are scored by plumbline score "
        f"images={images}{inside}, and made into Parquet by plumbline ingest"
    )


def _origins(
    benchmark: BenchmarkConfig,
    root: Place | None,
    places: Mapping[str, Place],
    tables: Sequence[_ImagesFile],
    others: Sequence[str],
) -> Origins:
    """Return the origins of prompts and generators, and the columns and files that are not read."""
    if root is not None and tables and all(table.ingested for table in tables):
        ingested = read_origins(root)
        if ingested is not None:
            return ingested
    columns = benchmark.columns
    prompts = f"the column {columns.prompt!r} of the images' tables" if benchmark.prompts is None else benchmark.prompts
    whose = "the name of" if root in places.values() else "the folders in"
    read = {*_read_columns(benchmark, pa.schema([])), *columns.extra}
    names = dict.fromkeys(name for table in tables for name in table.schema.names)
    return Origins(
        prompts,
        "benchmark.generators" if benchmark.images is None else f"{whose} {benchmark.images}",
        [] if columns.extra == "*" else [name for name in names if name not in read],
        pass_over(others),
    )


def _sources(benchmark: BenchmarkConfig, tables: Sequence[_ImagesFile], origins: Origins) -> str:
    """Return the origin of the sources of edits in words; empty if the benchmark has none."""
    if not (named := set(benchmark.columns.sources)) or origins.sources:
        return origins.sources
    own = sum(bool(named & set(table.schema.names)) for table in tables)
    columns = " and ".join(map(repr, benchmark.columns.sources))
    holders = ["the images' tables"] * (own > 0) + [str(benchmark.prompts)] * (own < len(tables))
    return f"the column {columns} of {' and of '.join(holders)}"


def _no_files(generator: str, place: Place) -> BrokenFile:
    return BrokenFile(
        generator,
        f"{place.url}: expected Parquet files, found none; add the images, or leave it out (benchmark.generators)",
    )


def _find_generators(benchmark: BenchmarkConfig, storage: StorageConfig) -> tuple[dict[str, Place], list[str]]:
    """Find each generator's folder or file; raises ConfigError if there are none, or if a configured one is missing.

    Returns:
        The places in the order of names or of the configuration, and the files next to them that are not tables.
    """
    if isinstance(benchmark.generators, Mapping):
        return {name: storage.locate(url) for name, url in benchmark.generators.items()}, []
    images = storage.locate(str(benchmark.images))
    with readable_errors(images, "benchmark.images"):
        found, beside = _find_folders(images, benchmark)
    wanted = benchmark.generators
    missing = sorted(set(wanted or ()) - set(found))
    if missing:
        raise ConfigError(
            f"benchmark.generators: no folder {missing[0]!r} in {images.url}; found {', '.join(found) or 'none'}"
        )
    if not found:
        raise _no_tables(benchmark, beside)
    return {name: found[name] for name in wanted} if wanted is not None else found, beside


def _find_folders(images: Place, benchmark: BenchmarkConfig) -> tuple[dict[str, Place], list[str]]:
    """Return the folder of each generator and the other files; a Parquet file, or a folder of such, is one generator.

    Raises ConfigError for a store, and if Parquet files of an unknown generator are next to generators' folders.
    """
    entries = images.list()
    if MARK in entries and is_store(images):
        raise ConfigError(f"benchmark.images {images.url}: is a store of scores; name the folder with the images")
    names = [name for name in sorted(_select_type(entries, "directory")) if not name.startswith(".")]
    folders = {printable(name): images / name for name in names}
    folders = {generator: folders[name] for name, generator in name_generators(folders).items()}
    folders = {name: folder for name, folder in folders.items() if not is_store(folder)}
    files = [name for name in sorted(_select_type(entries, "file")) if is_table(name, ("",)) and name != MANIFEST]
    tables = [name for name in files if is_table(name, PARQUET)]
    full = [name for name, folder in folders.items() if tables and list_files(folder, name, PARQUET).tables]
    beside = [name for name in tables if full and _may_have_images(images / name, benchmark)]
    if beside:
        raise ConfigError(
            f"benchmark.images {images.url}: Parquet files ({name_some(beside)}) lie beside folders that have some "
            f"({name_some(full)}); move the files into a folder of their generator's, or name every generator's place "
            "by benchmark.generators"
        )
    if tables and not full:
        return {images.name.removesuffix(".parquet"): images}, []  # whose listing has the other files
    return folders, [name for name in files if name not in tables]


def _select_type(entries: Mapping[str, Entry], entry_type: str) -> list[str]:
    return [name for name, entry in entries.items() if entry.type == entry_type]


def _may_have_images(file: Place, benchmark: BenchmarkConfig) -> bool:
    """Return True if a Parquet file may contain images; ingest writes tables without any next to its folders."""
    columns = {benchmark.columns.image, benchmark.columns.uri}
    try:
        (listed,) = list_files(file, "", PARQUET).tables
        return bool(columns & set(read_footer(listed).schema.to_arrow_schema().names))
    except SourceError:
        return True


def _images_file(
    file: ListedFile,
    benchmark: BenchmarkConfig,
    shard_size: ShardSize,
    elsewhere: Container[str],
    footer_of: Callable[[ListedFile], pq.FileMetaData],
) -> _ImagesFile | BrokenFile:
    """Read a file's schema and shards; columns that are `elsewhere` may be absent."""
    names = benchmark.columns.renamed(prompts=benchmark.prompts is None)
    required = [name for name, its in names if its and name not in elsewhere]
    required += [] if benchmark.prompts is None else ["prompt_id"]
    try:
        footer = footer_of(file)
        schema = schema_without_views(footer.schema.to_arrow_schema())
        require_columns(schema, required, names, "benchmark.columns", file.url)
        ids = [name for name in (benchmark.columns.image_id, benchmark.columns.prompt_id) if name is not None]
        check_columns(schema, _read_columns(benchmark, schema), ids, file.url)
        if not {benchmark.columns.image, benchmark.columns.uri} & set(schema.names):
            rows.require_columns(schema.names, ["image or uri"], file.url, key="benchmark.columns.image or .uri")
    except SourceError as error:
        return BrokenFile(file.group, str(error))
    shards, ingested = split_file(file, footer, names, shard_size), INGESTED in (footer.metadata or {})
    return _ImagesFile(schema, shards, ingested, "" if ingested else _refuse_several(file, footer, benchmark))


def _refuse_several(file: ListedFile, footer: pq.FileMetaData, benchmark: BenchmarkConfig) -> str:
    """Return a message if a file's footer shows several generators and the configuration has no column for them."""
    if isinstance(benchmark.generators, Mapping):
        return ""
    names = [benchmark.columns.generator] if benchmark.columns.generator else GENERATORS
    for index in range(footer.num_columns):
        if (name := footer.schema.column(index).path) in names:
            groups = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
            ends = [str(end) for one in groups if one is not None and one.has_min_max for end in (one.min, one.max)]
            if len(set(ends)) > 1:
                return (
                    f"{file.url}: the column {name!r} names several generators ({min(ends)!r} to {max(ends)!r}), and a "
                    f"sweep would take all for one, {file.group!r}. plumbline score with "
                    f"benchmark.columns.generator={name}, or jobs.ingest with columns.generator={name}, tells them "
                    f"apart; benchmark.generators={{{file.group}: PATH}} with benchmark.images=null takes them as one"
                )
    return ""


def _read_columns(benchmark: BenchmarkConfig, schema: pa.Schema) -> list[str]:
    """Return the names, in an images file, of the columns that are read."""
    columns = benchmark.columns
    names = IMAGE_COLUMNS if benchmark.prompts is not None else (*IMAGE_COLUMNS, "prompt")
    extra = schema.names if columns.extra == "*" else columns.extra
    settings = columns_of(setting_ways(columns.settings))
    return [*(getattr(columns, name) for name in names), *columns.edit_columns.values(), *extra, *settings]


def _settings(columns: ColumnsConfig, schemas: Sequence[pa.Schema]) -> dict[str, Ways]:
    """Return the columns that may contain settings; none if no file has any.

    Raises ConfigError for a configured column that no file has.
    """
    ways = setting_ways(columns.settings)
    found = {name for schema in schemas for name in columns_in(schema.names, ways)}
    if any(map(is_kept, schemas)):
        return ways
    if columns.settings is None:
        return ways if found else {}
    if schemas and (absent := [columns_of({name: of})[0] for name, of in ways.items() if name not in found]):
        known = ", ".join(dict.fromkeys(name for schema in schemas for name in schema.names))
        raise ConfigError(f"benchmark.columns.settings: no images table has a column {absent[0]!r}; found {known}")
    return ways if found else {}


def _settings_in_words(settings: Mapping[str, Ways], schemas: Sequence[pa.Schema]) -> str:
    """Describe each setting, with the columns that contain it if these have other names."""
    columns: dict[str, dict[str, None]] = {}
    for schema in schemas:
        for name, own in columns_in(schema.names, settings).items():
            columns.setdefault(name, {})[" x ".join(own)] = None
    said = [name if [*own] == [name] else f"{name} ({', '.join(own)})" for name, own in columns.items()]
    return ", ".join(
        [*said, *(["what pictures and their rows say"] if settings and any(map(is_kept, schemas)) else [])]
    )


def _extra_schema(columns: ColumnsConfig, schemas: Sequence[pa.Schema], settings: Mapping[str, Ways]) -> pa.Schema:
    """Return the further columns of any file; raises ConfigError for one that is missing, or that differs in type."""
    taken = {*(getattr(columns, name) for name in IMAGE_COLUMNS), *columns.edit_columns.values()}
    taken |= {COLUMN} if settings else set()
    everything = dict.fromkeys(name for schema in schemas for name in schema.names if name not in taken)
    wanted = list(everything) if columns.extra == "*" else list(dict.fromkeys(columns.extra))
    check_extra(wanted)
    kept = [pa.field(COLUMN, settings_type(settings))] if settings else []
    further = [name for name in wanted if schemas and not (kept and name == COLUMN)]
    return pa.schema([*(_extra_field(name, schemas) for name in further), *kept])


def _extra_field(name: str, schemas: Sequence[pa.Schema]) -> pa.Field:
    types = list(dict.fromkeys(schema.field(name).type for schema in schemas if name in schema.names))
    if not types:
        known = ", ".join(dict.fromkeys(name for schema in schemas for name in schema.names))
        raise ConfigError(f"benchmark.columns.extra: no images table has a column {name!r}; found {known}")
    if len(types) > 1:
        raise ConfigError(
            f"benchmark.columns.extra: {name!r} is {types[0]} in one images table and {types[1]} in another; "
            "write them with one type, or leave it out"
        )
    return pa.field(name, types[0])
