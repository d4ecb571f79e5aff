"""A benchmark's prompts, from a prompts file or the image tables, and the shards of images that belong to them."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.images.rows import ADDRESS_COLUMNS, CAPTION_COLUMNS, format_id, list_image_records
from plumbline.pipelines.base.storage import Place, StorageConfig, convert_read_errors
from plumbline.pipelines.base.tables import WORKBOOK_SUFFIXES, convert_to_list
from plumbline.pipelines.sources import prompt_files
from plumbline.pipelines.sources.benchmark import PROMPT_COLUMNS, BenchmarkConfig
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.question_packs import PackFile, read_pack
from plumbline.pipelines.sources.shards import (
    N_FILE_READERS,
    BrokenFile,
    ListedFile,
    ShardSize,
    check_columns,
    describe_row,
    list_files,
    open_shard,
    read_column,
    read_each_shard,
    read_footer,
    read_shard,
    require_columns,
    require_prompt_text,
    select_picked_rows,
    split_file,
)
from plumbline.pipelines.sources.uris import ImageFileDigester, LocateImage
from plumbline.pipelines.store.cells import Shard, digest

ReadFile = Callable[[Sequence[Shard], Sequence[str]], list[pa.Table | SourceError]]
"""Function that returns columns of the shards of one file; an unreadable shard is replaced by its error."""
FILES_AT_ONCE = 2 * N_FILE_READERS
"""Number of files whose ids or prompts are in memory at the same time."""
NO_ROUND = -1
"""Round number for rows that are left out of all shards."""
GetRound = Callable[[str], int]
"""Function that returns the round of a prompt's rows, counted from 0, or NO_ROUND. The argument is the prompt's
id, or an empty string for a row without a prompt.
"""


class PromptTables(NamedTuple):
    """A benchmark's prompts, and the shards that contain these prompts."""

    table: pa.Table
    """Prompts in the schema PROMPTS, in the order of the shards."""
    shards: list[Shard]

    @property
    def edit_columns(self) -> set[str]:
        """Our names for the columns with sources, masks and captions of edits that are in any of the files."""
        return {name for shard in self.shards for name in shard.edit_columns}


class UnknownPrompts(NamedTuple):
    """Number of images whose prompts are not in the benchmark, with an example."""

    images: int = 0
    prompt_id: str = ""
    """The id of the first prompt that is not in the benchmark."""


class MatchedImages(NamedTuple):
    """Images matched to the prompts that they were made from."""

    prompts: PromptTables
    images: Mapping[Shard, tuple[Shard, ...]]
    """Every readable shard of images, with the shards that contain its prompts."""
    prompt_rows: Mapping[Shard, NDArray[np.int32]]
    """Row numbers in the table of prompts for the prompts of each shard of images, sorted by prompt_id. Empty if the
    images' rows contain their prompts.
    """
    broken: list[BrokenFile]
    unknown: UnknownPrompts = UnknownPrompts()


def open_prompts(benchmark: BenchmarkConfig, storage: StorageConfig, shard_size: ShardSize) -> PromptTables:
    """Read the prompts from benchmark.prompts; raise every error as a ConfigError, before anything is computed."""
    place = storage.locate(str(benchmark.prompts))
    packed = benchmark.find_pack_file(storage)
    if packed is not None and packed.place == place:
        return _read_pack_prompts(packed, benchmark.name)
    with convert_read_errors(place, "benchmark.prompts"):
        files = list_prompt_files(place, benchmark.name)
    # prompts are small, but a model may write about each one for a long time: the byte limit is meant for images
    size = shard_size if shard_size.bytes is None else ShardSize()
    try:
        skills = locate_skills(place, benchmark)
        shards = [shard for file in files for shard in list_prompt_shards(file, benchmark, size, skills)]
        tables: list[pa.Table] = []
        if any(shard.url.lower().endswith(prompt_files.PROMPT_FILE_SUFFIXES) for shard in shards):
            tables = [read_prompts(shard) for shard in shards]
        else:  # each Parquet file is opened only once, because its footer grows with its shards
            for shard, table in read_files(shards, PROMPT_COLUMNS, read_each_shard):
                if isinstance(table, SourceError):
                    raise table
                tables.append(make_prompts_table(_list_records(table, shard), shard))
    except SourceError as error:
        raise ConfigError(f"benchmark.prompts: {error}") from error
    if not shards and benchmark.prompt_columns.where:
        conditions = ", ".join(benchmark.prompt_columns.where)
        raise ConfigError(f"benchmark.prompts {place.url}: no prompt has {conditions}; correct prompt_columns.where")
    if not shards:
        kinds = f"Parquet files, or one {', '.join(prompt_files.PROMPT_FILE_SUFFIXES)} file, with prompts"
        remedy = "save the sheet as .csv" if place.path.lower().endswith(WORKBOOK_SUFFIXES) else "check the path"
        raise ConfigError(f"benchmark.prompts {place.url}: expected {kinds}, found none; {remedy}")
    _check_prompts(shards, tables)
    keyed = [
        replace(shard, prompts=digest(sorted(list_ids_and_texts(table))))
        for shard, table in zip(shards, tables, strict=True)
    ]
    return PromptTables(pa.concat_tables(tables), keyed)


def read_texts_without_ids(benchmark: BenchmarkConfig, storage: StorageConfig) -> list[str] | None:
    """Return the text of every line or row of a prompts file, even if repeated; None if the file has ids.

    Blank lines at the end of a list are left out.
    """
    place = storage.locate(str(benchmark.prompts))
    packed = benchmark.find_pack_file(storage)
    if not place.path.lower().endswith(prompt_files.PROMPT_FILE_SUFFIXES) or (
        packed is not None and packed.place == place
    ):
        return None
    columns = prompt_files.PromptColumns(
        dict(prompt_files.DEFAULT_COLUMN_NAMES) | dict(benchmark.prompt_columns.list_renamed_columns())
    )
    try:
        with convert_read_errors(place, "benchmark.prompts"):
            return prompt_files.read_texts_without_ids(place.read(prompt_files.MAX_FILE_BYTES + 1), place.url, columns)
    except SourceError as error:
        raise ConfigError(f"benchmark.prompts: {error}") from error


def list_prompt_files(place: Place, suite: str) -> Sequence[ListedFile]:
    """Return the file, or the Parquet files below a folder; raise FileNotFoundError if `place` does not exist."""
    suffixes = (
        prompt_files.PROMPT_FILE_SUFFIXES
        if place.path.lower().endswith(prompt_files.PROMPT_FILE_SUFFIXES)
        else (".parquet",)
    )
    return list_files(place, suite, suffixes).tables


def locate_skills(place: Place, benchmark: BenchmarkConfig) -> Shard | None:
    """Return the benchmark's skills file in the folder of the prompts at `place`, or None if there is no such file."""
    if benchmark.skills is None:
        return None
    is_file = place.path.lower().endswith((*prompt_files.PROMPT_FILE_SUFFIXES, ".parquet"))
    file = (place.parent if is_file else place) / benchmark.skills
    with convert_read_errors(file, "benchmark.skills"):
        try:
            entry = file.get_entry()
        except (FileNotFoundError, NotADirectoryError):
            return None
    return Shard(
        group=benchmark.name, name=file.name, place=file, size=entry.size, etag=entry.etag, row_groups=(), rows=0
    )


@lru_cache(maxsize=1)
def _read_skills(file: Shard) -> Mapping[str, Sequence[str]]:
    prompt_files.check_size(file.size, file.url)
    with open_shard(file) as stream:
        content = stream.read()
    return prompt_files.read_skills(content, file.url)


def _find_skills(prompt_id: str | None, shard: Shard) -> Sequence[str]:
    return () if shard.skills is None else _read_skills(shard.skills).get(prompt_id or "", ())


def _read_pack_prompts(packed: PackFile, suite: str) -> PromptTables:
    place = packed.place
    try:
        table = read_pack(packed, suite).prompts
    except SourceError as error:
        raise ConfigError(f"benchmark.prompts: {error}") from error
    if not len(table):
        raise ConfigError(
            f"benchmark.prompts {place.url}: no prompt can be read from it; check that it is a {packed.pack}"
        )
    entry = place.get_entry()
    size, tag = (entry.size, entry.etag) if entry.type == "file" else (0, "")
    shard = Shard(
        group=suite, name=place.name, place=place, size=size,
        etag=tag, row_groups=(), rows=len(table), prompts=digest(sorted(list_ids_and_texts(table))), pack=packed.pack,
    )  # fmt: skip
    return PromptTables(table, [shard])


def list_ids_and_texts(table: pa.Table) -> list[tuple[str, str]]:
    """Return the id and text of every prompt, the only columns that can change a result."""
    return list(zip(*(table.column(name).to_pylist() for name in ("prompt_id", "text")), strict=True))


def match_prompts(
    images: Sequence[Shard], prompts: PromptTables | None, suite: str, locate_image: LocateImage, cache: ImageFileCache
) -> MatchedImages:
    """Match images to the benchmark's prompts or, if `prompts` is None, to the prompts in their own rows.

    A shard of images depends only on the prompts that its rows refer to. Adding or editing a prompt therefore changes
    only the keys of these shards.
    """
    if prompts is None:
        return _gather_prompts(images, suite, locate_image, cache)
    ids, texts = (prompts.table.column(name).to_pylist() for name in ("prompt_id", "text"))
    row_of = {prompt_id: row for row, prompt_id in enumerate(ids)}
    first_rows = list(accumulate((shard.rows for shard in prompts.shards), initial=0))
    matched: dict[Shard, tuple[Shard, ...]] = {}
    prompt_rows: dict[Shard, NDArray[np.int32]] = {}
    broken: list[BrokenFile] = []
    unknown = UnknownPrompts()
    objects = ImageFileDigester(locate_image)
    for shard, table in read_files(images, ("prompt_id", *ADDRESS_COLUMNS), cache.read):
        if isinstance(table, SourceError):
            broken.append(BrokenFile(shard.group, str(table), shard.rows))
            continue
        named_ids = [format_id(record["prompt_id"]) or "" for record in list_image_records(table)]
        absent = [prompt_id for prompt_id in named_ids if prompt_id and prompt_id not in row_of]
        unknown = UnknownPrompts(unknown.images + len(absent), unknown.prompt_id or next(iter(absent), ""))
        shard_ids = sorted(set(named_ids))
        shard_rows = [row_of.get(prompt_id) for prompt_id in shard_ids]
        pairs = [(name, None if row is None else texts[row]) for name, row in zip(shard_ids, shard_rows, strict=True)]
        known_rows = [row for row in shard_rows if row is not None]
        holders = [
            prompts.shards[number] for number in sorted({bisect_right(first_rows, row) - 1 for row in known_rows})
        ]
        sources = objects.digest_edits(table, [holder.sources for holder in holders])
        keyed = replace(shard, prompts=digest(pairs), objects=objects.digest(table), sources=sources)
        prompt_rows[keyed] = np.array(known_rows, np.int32)
        matched[keyed] = tuple(holders)
    return MatchedImages(prompts, matched, prompt_rows, broken, unknown)


def read_files(
    shards: Sequence[Shard], columns: Sequence[str], read_file: ReadFile
) -> Iterator[tuple[Shard, pa.Table | SourceError]]:
    """Yield the columns of every shard, reading several files in parallel."""
    files: dict[tuple[str, str], list[Shard]] = {}
    for shard in shards:
        files.setdefault((shard.group, shard.url), []).append(shard)
    in_files = list(files.values())
    with ThreadPoolExecutor(N_FILE_READERS) as pool:
        for first in range(0, len(in_files), FILES_AT_ONCE):
            window = in_files[first : first + FILES_AT_ONCE]
            for of_file, read in zip(window, pool.map(lambda file: read_file(file, columns), window), strict=True):
                yield from zip(of_file, read, strict=True)


def list_prompt_shards(
    file: ListedFile, benchmark: BenchmarkConfig, shard_size: ShardSize, skills: Shard | None
) -> list[Shard]:
    """Return the shards of a prompts file; a CSV or JSON file is one shard.

    The shards contain the configured source, mask and caption columns, except columns that are not in the file.
    """
    names, edits = benchmark.prompt_columns.list_renamed_columns(), benchmark.columns.edit_columns
    if not file.url.lower().endswith(prompt_files.PROMPT_FILE_SUFFIXES):
        footer = read_footer(file)
        schema, own_names = footer.schema.to_arrow_schema(), dict(names)
        require_columns(schema, ("prompt_id", "text"), names, "benchmark.prompt_columns", file.url)
        read = [own_names.get(name, name) for name in PROMPT_COLUMNS]
        check_columns(schema, [*read, *edits.values()], read[:1], file.url)
        found = [(name, own) for name, own in edits.items() if own in schema.names]
        shards = [replace(shard, skills=skills) for shard in split_file(file, footer, (*names, *found), shard_size)]
        return _filter_shards(shards, benchmark.prompt_columns.where)
    whole = Shard(
        group=file.group, name=file.name, place=file.place, size=file.size, etag=file.etag, row_groups=(), rows=0,
        columns=names, skills=skills,
    )  # fmt: skip
    count = len(read_prompts(whole))
    records = read_prompt_records(replace(whole, columns=(*names, *edits.items())), list(edits)) if edits else []
    columns = {name: own for name, own in edits.items() if any(record.get(name) for record in records)}
    for name in columns:
        if name not in (*ADDRESS_COLUMNS, *CAPTION_COLUMNS):
            raise SourceError(
                f"{file.url}: {columns[name]!r} contains text, but benchmark.columns.{name} is for image bytes; set "
                f"benchmark.columns.{name}_uri instead"
            )
    shards = [replace(whole, rows=count, columns=(*names, *columns.items()))] if count else []
    return _filter_shards(shards, benchmark.prompt_columns.where)


def _filter_shards(shards: list[Shard], conditions: Sequence[str]) -> list[Shard]:
    if not conditions:
        return shards
    wanted = {tuple(condition.split(":", 1)) for condition in conditions}
    filtered: list[Shard] = []
    for shard in shards:
        picked: list[int] = []
        for row, record in enumerate(read_prompt_records(shard, ("prompt_id", *(name for name, _ in wanted)))):
            values = {("skills", skill) for skill in _find_skills(format_id(record["prompt_id"]), shard)}
            for name, _ in wanted:
                value = record.get(name)
                values |= {(name, str(each)) for each in (value if isinstance(value, list) else [value])}
            if wanted <= values:
                picked.append(row)
        if picked:
            filtered.append(replace(shard, picked=tuple(picked), rows=len(picked)))
    return filtered


def _check_prompts(shards: Sequence[Shard], tables: Sequence[pa.Table]) -> None:
    """Raise ConfigError if a prompt has no id, an id occurs twice, or the skills file contains none of the ids."""
    seen: set[str] = set()
    counted: dict[str, int] = {}
    for shard, table in zip(shards, tables, strict=True):
        first = counted.get(shard.url, 0)
        counted[shard.url] = first + len(table)
        for row, prompt_id in enumerate(table.column("prompt_id").to_pylist(), start=first):
            if not prompt_id:
                raise ConfigError(f"{shard.url}, row {row}: the prompt has no prompt_id; fill it in")
            if prompt_id in seen:
                raise ConfigError(f"{shard.url}, row {row}: prompt_id {prompt_id!r} occurs twice; make ids unique")
            seen.add(prompt_id)
    skills = shards[0].skills
    named = {} if skills is None else _read_skills(skills)
    if skills is not None and seen.isdisjoint(named):
        raise ConfigError(
            f"benchmark.skills {skills.url}: expected skills of the prompts in {shards[0].url}, found only other "
            f"prompts, such as {next(iter(named), None)!r}; use the skills file of these prompts, or set "
            "benchmark.skills=null"
        )


def _gather_prompts(
    images: Sequence[Shard], name: str, locate_image: LocateImage, cache: ImageFileCache
) -> MatchedImages:
    """Gather the prompts from the images' rows, reading only the columns with ids, texts and addresses.

    Each shard of images gets a shard of prompts that is named after its prompts rather than after its file. Shards with
    the same prompts, for example from two generators, therefore share their questions.
    """
    unique: dict[str, tuple[str, str]] = {}
    matched: dict[Shard, tuple[Shard, ...]] = {}
    asked: dict[str, Shard] = {}
    broken: list[BrokenFile] = []
    objects = ImageFileDigester(locate_image)
    for shard, table in read_files(images, ("prompt_id", "prompt", *ADDRESS_COLUMNS), cache.read):
        if isinstance(table, SourceError):
            broken.append(BrokenFile(shard.group, str(table), shard.rows))
            continue
        pairs = _list_distinct_ids_and_texts(table)
        for prompt_id, text in pairs:
            known, url = unique.setdefault(prompt_id, (text, shard.url))
            if known != text:
                other = "" if url == shard.url else f" in {url}"
                raise ConfigError(
                    f"{shard.url}: prompt_id {prompt_id!r} has two texts, {text!r} and {known!r}{other}; make ids "
                    "unique, or set benchmark.columns.prompt_id=null to make ids from the texts"
                )
        content = digest(sorted(pairs))
        holder = replace(shard, group=name, name=f"rows-{content[:16]}", rows=len(pairs), prompts=content)
        keyed = replace(shard, prompts=content, objects=objects.digest(table), sources=objects.digest_edits(table))
        matched[keyed] = (asked.setdefault(content, holder),)
    skills: list[list[str]] = [[]] * len(unique)
    columns = [list(unique), [text for text, _ in unique.values()], skills, [name] * len(unique)]
    table = pa.table(columns, schema=schemas.PROMPTS)
    return MatchedImages(PromptTables(table, list(asked.values())), matched, {}, broken)


def list_own_ids(images: Sequence[Shard], cache: ImageFileCache) -> list[str]:
    """Return the distinct prompt ids in the rows of images, in order of appearance."""
    ids: dict[str, None] = {}
    for _, table in read_files(images, ("prompt_id",), cache.read):
        if not isinstance(table, SourceError):
            ids |= dict.fromkeys(format_id(record["prompt_id"]) or "" for record in list_image_records(table))
    return list(ids)


def _list_distinct_ids_and_texts(table: pa.Table) -> list[tuple[str, str]]:
    pairs = zip(*(table.column(name).to_pylist() for name in ("prompt_id", "prompt")), strict=True)
    return list(dict.fromkeys((prompt_id, text or "") for prompt_id, text in pairs))


def read_prompts(shard: Shard) -> pa.Table:
    """Return a shard's prompts in the schema PROMPTS: absent columns are filled, and ids are converted to text.

    For a shard of images with their own prompts, each pair of id and text occurs once. Raise SourceError naming the
    file if prompts cannot be read.
    """
    if shard.pack:
        table = select_picked_rows(read_pack(PackFile(pack=shard.pack, place=shard.place), shard.group).prompts, shard)
        if digest(sorted(list_ids_and_texts(table))) != shard.prompts:
            raise SourceError(f"{shard.url}: the prompts have changed since the run was planned; run again")
        return table
    if shard.contains_prompts:
        pairs = _list_distinct_ids_and_texts(read_shard(shard, ("prompt_id", "prompt")))
        return make_prompts_table([{"prompt_id": prompt_id, "text": text} for prompt_id, text in pairs], shard)
    return make_prompts_table(read_prompt_records(shard), shard)


def make_prompts_table(found_rows: Iterable[Mapping[str, Any]], shard: Shard) -> pa.Table:
    """Return the rows of a prompts file in the schema PROMPTS; raise SourceError naming an invalid row."""
    records = []
    for row, found in enumerate(found_rows):
        own_id = found["prompt_id"]
        if isinstance(own_id, bytes | list | dict | bool):
            kind = type(own_id).__name__
            raise SourceError(
                f"{describe_row(shard, row)}: expected prompt_id as text or a number, found {kind}; write it as text"
            )
        prompt_id, text = format_id(own_id), require_prompt_text(found["text"], shard, row)
        skills = [*_list_skills(found.get("skills"), shard, row), *_find_skills(prompt_id, shard)]
        unique_skills = list(dict.fromkeys(skills))
        records.append({"prompt_id": prompt_id, "text": text, "skills": unique_skills, "suite": shard.group})
    return rows.table(records, schemas.PROMPTS)


def read_prompt_records(shard: Shard, columns: Sequence[str] = PROMPT_COLUMNS) -> list[dict[str, Any]]:
    """Return a shard's rows from a prompts file, unconverted, under our column names.

    From Parquet, only `columns` are read.
    """
    if not shard.url.lower().endswith(prompt_files.PROMPT_FILE_SUFFIXES):
        return _list_records(read_shard(shard, columns), shard)
    names = {name: dict(shard.columns).get(name, name) for name in (*PROMPT_COLUMNS, *columns)}
    prompt_files.check_size(shard.size, shard.url)
    with open_shard(shard) as stream:
        content = stream.read()
    found = prompt_files.read_prompts_with_ids(content, shard.url, prompt_files.PromptColumns(names))
    return [found[row] for row in shard.picked] if shard.picked else found


def _list_records(table: pa.Table, shard: Shard) -> list[dict[str, Any]]:
    columns = {name: read_column(table, name, shard) for name in table.column_names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _list_skills(value: Any, shard: Shard, row: int) -> list[str]:
    """Return the skills in a cell: a list, or text separated by semicolons. Nulls in a list are dropped."""
    if rows.is_missing(value):
        return []
    if isinstance(value, str):
        return [str(skill) for skill in convert_to_list(value)]
    if not isinstance(value, list):
        found = type(value).__name__
        raise SourceError(
            f"{describe_row(shard, row)}: expected `skills` to be a list of strings, found {found}; write a list"
        )
    odd = [skill for skill in value if isinstance(skill, bytes | list | dict)]
    if odd:
        found = type(odd[0]).__name__
        raise SourceError(
            f"{describe_row(shard, row)}: expected `skills` to contain text, found {found}; write skills as text"
        )
    return [str(skill) for skill in value if not rows.is_missing(skill)]


def split_images(shards: Sequence[Shard], round_of: GetRound, cache: ImageFileCache) -> Iterator[tuple[Shard, int]]:
    """Split shards of images by round, and yield each part with its round; unreadable shards are in the first round."""
    # addresses are read too, because the memory keeps ids only of rows without addresses
    for shard, table in read_files(shards, ("prompt_id", *ADDRESS_COLUMNS), cache.read):
        if isinstance(table, SourceError):
            yield shard, 0
            continue
        ids = [format_id(record["prompt_id"]) or "" for record in list_image_records(table)]
        yield from ((piece, round) for piece, round, _ in _split_shard(shard, ids, round_of))


def split_prompts(prompts: PromptTables, round_of: GetRound) -> PromptTables:
    """Split shards of prompts by round; return the parts with their prompts, sorted by round."""
    starts = accumulate((shard.rows for shard in prompts.shards), initial=0)
    pieces: list[tuple[int, Shard, pa.Table]] = []
    for shard, start in zip(prompts.shards, starts, strict=False):
        table = prompts.table.slice(start, shard.rows)
        for piece, round, numbers in _split_shard(shard, table.column("prompt_id").to_pylist(), round_of):
            part = table.take(pa.array(numbers))
            pieces.append((round, replace(piece, prompts=digest(sorted(list_ids_and_texts(part)))), part))
    pieces.sort(key=lambda piece: piece[0])
    return PromptTables(pa.concat_tables(part for _, _, part in pieces), [shard for _, shard, _ in pieces])


def _split_shard(
    shard: Shard, prompt_ids: Sequence[str], round_of: GetRound
) -> Iterator[tuple[Shard, int, NDArray[np.intp]]]:
    """Split a shard by round; yield each part with its round and with its rows' indices in the original shard.

    Rows without a round are left out. A shard whose rows are all in one round is yielded unchanged.
    """
    rounds = np.asarray([round_of(prompt_id) for prompt_id in prompt_ids])
    for round in np.unique(rounds[rounds != NO_ROUND]):
        numbers = np.flatnonzero(rounds == round)
        picked = [shard.picked[row] for row in numbers] if shard.picked else numbers.tolist()
        piece = replace(shard, name=f"{shard.name}+w{round:02d}", rows=len(numbers), picked=tuple(picked))
        yield shard if len(numbers) == len(rounds) else piece, int(round), numbers
