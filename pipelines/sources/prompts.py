"""A benchmark's prompts, from files of their own or gathered from the images' rows."""

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
from plumbline.operators.images.rows import ADDRESSES, CAPTIONS, id_text, image_records
from plumbline.pipelines.base.storage import Place, StorageConfig, readable_errors
from plumbline.pipelines.base.tables import WORKBOOKS, as_list
from plumbline.pipelines.sources import prompt_files
from plumbline.pipelines.sources.benchmark import PROMPT_COLUMNS, BenchmarkConfig
from plumbline.pipelines.sources.file_memory import FileMemory
from plumbline.pipelines.sources.question_packs import PackFile, read_pack
from plumbline.pipelines.sources.shards import (
    FILE_READERS,
    BrokenFile,
    ListedFile,
    ShardSize,
    check_columns,
    column_values,
    list_files,
    opened,
    picked_rows,
    prompt_text,
    read_each,
    read_footer,
    read_shard,
    require_columns,
    split_file,
    where,
)
from plumbline.pipelines.sources.uris import LocateImage, StoredObjects
from plumbline.pipelines.store.cells import Shard, digest

ReadFile = Callable[[Sequence[Shard], Sequence[str]], list[pa.Table | SourceError]]
"""Returns columns of the shards of one file, or the error in place of a shard that cannot be read."""
FILES_AT_ONCE = 2 * FILE_READERS
"""Number of files whose ids or prompts are in memory at once."""


class PromptTables(NamedTuple):
    """The prompts, and the shards that they are read from."""

    table: pa.Table
    """Schema PROMPTS."""
    shards: list[Shard]
    tables: list[pa.Table]
    """The prompts of each shard."""

    @property
    def edit_columns(self) -> set[str]:
        """Our names of the columns with sources, masks and captions of edits in any of the files."""
        return {name for shard in self.shards for name in shard.beside}


class UnknownPrompts(NamedTuple):
    """Images of prompts that a benchmark does not have."""

    images: int = 0
    prompt_id: str = ""
    """The first of these prompts."""

    def with_images(self, prompt_ids: Sequence[str]) -> "UnknownPrompts":
        """Count further images of unknown prompts."""
        return UnknownPrompts(self.images + len(prompt_ids), self.prompt_id or next(iter(prompt_ids), ""))


class Prompted(NamedTuple):
    """Images with the prompts that they were made of."""

    prompts: PromptTables
    images: Mapping[Shard, tuple[Shard, ...]]
    """Every readable shard of images, with the shards that contain its prompts."""
    named: Mapping[Shard, NDArray[np.int32]]
    """The rows of the prompts that each shard of images names, sorted by id; empty if rows contain their own prompts.
    """
    broken: list[BrokenFile]
    unknown: UnknownPrompts = UnknownPrompts()


def open_prompts(benchmark: BenchmarkConfig, storage: StorageConfig, shard_size: ShardSize) -> PromptTables:
    """Read the prompts of benchmark.prompts; raises ConfigError for any fault in them, before anything is computed."""
    place = storage.locate(str(benchmark.prompts))
    packed = benchmark.packed(storage)
    if packed is not None and packed.place == place:
        return _packed_prompts(packed, benchmark.name)
    with readable_errors(place, "benchmark.prompts"):
        files = list_prompt_files(place, benchmark.name)
    try:
        skills = locate_skills(place, benchmark)
        shards = [shard for file in files for shard in prompt_shards(file, benchmark, shard_size.of_prompts, skills)]
        tables = list(_read_prompt_files(shards))
    except SourceError as error:
        raise ConfigError(f"benchmark.prompts: {error}") from error
    if not shards and benchmark.prompt_columns.where:
        conditions = ", ".join(benchmark.prompt_columns.where)
        raise ConfigError(f"benchmark.prompts {place.url}: no prompt has {conditions}; correct prompt_columns.where")
    if not shards:
        kinds = f"Parquet files, or one {', '.join(prompt_files.SUFFIXES)} file, with prompts"
        remedy = "save the sheet as .csv" if place.path.lower().endswith(WORKBOOKS) else "check the path"
        raise ConfigError(f"benchmark.prompts {place.url}: expected {kinds}, found none; {remedy}")
    _check_prompts(shards, tables)
    _check_skills(shards[0], tables)
    keyed = [
        replace(shard, prompts=digest(sorted(pairs_of(table)))) for shard, table in zip(shards, tables, strict=True)
    ]
    return PromptTables(pa.concat_tables(tables), keyed, tables)


def read_texts_without_ids(benchmark: BenchmarkConfig, storage: StorageConfig) -> list[str] | None:
    """Return the text of every line or row of a prompts file without ids, in order, also if it is empty or repeated.

    None if the prompts have ids.
    """
    place = storage.locate(str(benchmark.prompts))
    packed = benchmark.packed(storage)
    if not place.path.lower().endswith(prompt_files.SUFFIXES) or (packed is not None and packed.place == place):
        return None
    columns = prompt_files.PromptColumns(dict(prompt_files.DEFAULT_NAMES) | dict(benchmark.prompt_columns.renamed()))
    try:
        with readable_errors(place, "benchmark.prompts"):
            return prompt_files.read_texts_without_ids(place.read(prompt_files.MAX_BYTES + 1), place.url, columns)
    except SourceError as error:
        raise ConfigError(f"benchmark.prompts: {error}") from error


def list_prompt_files(place: Place, suite: str) -> Sequence[ListedFile]:
    """Return a file, or the Parquet files below a folder; raises FileNotFoundError."""
    suffixes = prompt_files.SUFFIXES if place.path.lower().endswith(prompt_files.SUFFIXES) else (".parquet",)
    return list_files(place, suite, suffixes).tables


def locate_skills(place: Place, benchmark: BenchmarkConfig) -> Shard | None:
    """Return the file of the prompts' skills here, as benchmark.skills names it; None if absent."""
    if benchmark.skills is None:
        return None
    is_file = place.path.lower().endswith((*prompt_files.SUFFIXES, ".parquet"))
    file = (place.parent if is_file else place) / benchmark.skills
    with readable_errors(file, "benchmark.skills"):
        try:
            entry = file.entry()
        except (FileNotFoundError, NotADirectoryError):
            return None
    return Shard(
        group=benchmark.name, name=file.name, place=file, size=entry.size, etag=entry.etag, row_groups=(), rows=0
    )


@lru_cache(maxsize=1)
def _read_skills(file: Shard) -> Mapping[str, Sequence[str]]:
    prompt_files.check_size(file.size, file.url)
    with opened(file) as stream:
        content = stream.read()
    return prompt_files.read_skills(content, file.url)


def _skills_in_file(prompt_id: str | None, shard: Shard) -> Sequence[str]:
    """Return a prompt's skills in the file of skills; none without such a file."""
    return () if shard.skills is None else _read_skills(shard.skills).get(prompt_id or "", ())


def _packed_prompts(packed: PackFile, suite: str) -> PromptTables:
    """Return the prompts of a question pack, as one shard however many they are."""
    place = packed.place
    try:
        table = read_pack(packed, suite).prompts
    except SourceError as error:
        raise ConfigError(f"benchmark.prompts: {error}") from error
    if not len(table):
        raise ConfigError(f"benchmark.prompts {place.url}: no prompt can be read of it; is it a {packed.pack}?")
    entry = place.entry()
    size, tag = (entry.size, entry.etag) if entry.type == "file" else (0, "")
    shard = Shard(
        group=suite, name=place.name, place=place, size=size,
        etag=tag, row_groups=(), rows=len(table), prompts=digest(sorted(pairs_of(table))), pack=packed.pack,
    )  # fmt: skip
    return PromptTables(table, [shard], [table])


def pairs_of(table: pa.Table) -> list[tuple[str, str]]:
    """Return the id and text of every prompt: everything about it that can change a result."""
    return list(zip(*(table.column(name).to_pylist() for name in ("prompt_id", "text")), strict=True))


def match_prompts(
    images: Sequence[Shard], prompts: PromptTables, locate_image: LocateImage, memory: FileMemory
) -> Prompted:
    """Find the prompts of each shard of images by the ids alone.

    So adding or editing a prompt changes the keys of its images' shards, and no others.
    """
    ids, texts = (prompts.table.column(name).to_pylist() for name in ("prompt_id", "text"))
    row_of = {prompt_id: row for row, prompt_id in enumerate(ids)}
    first_rows = list(accumulate(map(len, prompts.tables), initial=0))
    matched: dict[Shard, tuple[Shard, ...]] = {}
    named: dict[Shard, NDArray[np.int32]] = {}
    broken: list[BrokenFile] = []
    unknown = UnknownPrompts()
    objects = StoredObjects(locate_image)
    for shard, table in read_files(images, ("prompt_id", *ADDRESSES), memory.read):
        if isinstance(table, SourceError):
            broken.append(BrokenFile(shard.group, str(table), shard.rows))
            continue
        named_ids = [id_text(record["prompt_id"]) or "" for record in image_records(table)]
        unknown = unknown.with_images([prompt_id for prompt_id in named_ids if prompt_id and prompt_id not in row_of])
        shard_ids = sorted(set(named_ids))
        shard_rows = [row_of.get(prompt_id) for prompt_id in shard_ids]
        pairs = [(one, None if row is None else texts[row]) for one, row in zip(shard_ids, shard_rows, strict=True)]
        known_rows = [row for row in shard_rows if row is not None]
        holders = [
            prompts.shards[number] for number in sorted({bisect_right(first_rows, row) - 1 for row in known_rows})
        ]
        sources = objects.digest_beside(table, [holder.sources for holder in holders])
        keyed = replace(shard, prompts=digest(pairs), objects=objects.digest(table), sources=sources)
        named[keyed] = np.array(known_rows, np.int32)
        matched[keyed] = tuple(holders)
    return Prompted(prompts, matched, named, broken, unknown)


def read_files(
    shards: Sequence[Shard], columns: Sequence[str], read_file: ReadFile
) -> Iterator[tuple[Shard, pa.Table | SourceError]]:
    """Yield the columns of every shard; several files are read in parallel, each by `read_file`."""
    files: dict[tuple[str, str], list[Shard]] = {}
    for shard in shards:
        files.setdefault((shard.group, shard.url), []).append(shard)
    in_files = list(files.values())
    with ThreadPoolExecutor(FILE_READERS) as pool:
        for first in range(0, len(in_files), FILES_AT_ONCE):
            window = in_files[first : first + FILES_AT_ONCE]
            for of_file, read in zip(window, pool.map(lambda file: read_file(file, columns), window), strict=True):
                yield from zip(of_file, read, strict=True)


def prompt_shards(
    file: ListedFile, benchmark: BenchmarkConfig, shard_size: ShardSize, skills: Shard | None
) -> list[Shard]:
    """Return the shards of a prompts file, whose skills may be in another; a CSV or JSON file is one shard.

    The shards have those columns of sources, masks and captions that the file has.
    """
    names, edits = benchmark.prompt_columns.renamed(), benchmark.columns.edit_columns
    if not file.url.lower().endswith(prompt_files.SUFFIXES):
        footer = read_footer(file)
        schema, own_names = footer.schema.to_arrow_schema(), dict(names)
        require_columns(schema, ("prompt_id", "text"), names, "benchmark.prompt_columns", file.url)
        read = [own_names.get(name, name) for name in PROMPT_COLUMNS]
        check_columns(schema, [*read, *edits.values()], read[:1], file.url)
        held = [(name, its) for name, its in edits.items() if its in schema.names]
        divided = (replace(shard, skills=skills) for shard in split_file(file, footer, (*names, *held), shard_size))
        return _filter_shards(divided, benchmark.prompt_columns.where)
    whole = Shard(
        group=file.group, name=file.name, place=file.place, size=file.size, etag=file.etag, row_groups=(), rows=0,
        columns=names, skills=skills,
    )  # fmt: skip
    count = len(read_prompts(whole))
    records = prompt_records(replace(whole, columns=(*names, *edits.items())), list(edits)) if edits else []
    columns = {name: its for name, its in edits.items() if any(record.get(name) for record in records)}
    for name in columns:
        if name not in (*ADDRESSES, *CAPTIONS):
            raise SourceError(
                f"{file.url}: {columns[name]!r} holds text, where benchmark.columns.{name} names images; name the "
                f"column by benchmark.columns.{name}_uri"
            )
    shards = [replace(whole, rows=count, columns=(*names, *columns.items()))] if count else []
    return _filter_shards(shards, benchmark.prompt_columns.where)


def _filter_shards(shards: Iterable[Shard], conditions: Sequence[str]) -> list[Shard]:
    """Return the shards with only the rows that meet all conditions (COLUMN:VALUE)."""
    if not conditions:
        return list(shards)
    wanted = {tuple(condition.split(":", 1)) for condition in conditions}
    columns = [name for name, _ in wanted]
    pieces: list[Shard] = []
    for shard in shards:
        texts = (
            {*_texts_of(record, columns), *(("skills", skill) for skill in _skills_in_file(prompt_id, shard))}
            for record in prompt_records(shard, ("prompt_id", *columns))
            for prompt_id in [id_text(record["prompt_id"])]
        )
        picked = tuple(row for row, values in enumerate(texts) if wanted <= values)
        pieces += [replace(shard, picked=picked, rows=len(picked))] if picked else []
    return pieces


def _texts_of(record: Mapping[str, Any], columns: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each column with its value as text; a list gives a pair for each of its items."""
    for name in columns:
        value = record.get(name)
        yield from ((name, str(each)) for each in (value if isinstance(value, list) else [value]))


def _check_skills(shard: Shard, tables: Sequence[pa.Table]) -> None:
    """Raise ConfigError if a file of skills names none of the prompts, one of whose shards is given."""
    if shard.skills is None:
        return
    named = _read_skills(shard.skills)
    if not any(prompt_id in named for table in tables for prompt_id in table.column("prompt_id").to_pylist()):
        raise ConfigError(
            f"benchmark.skills {shard.skills.url}: none of its prompts, such as {next(iter(named), None)!r}, is in "
            f"{shard.url}; put the file of these prompts there, or set benchmark.skills=null"
        )


def _check_prompts(shards: Sequence[Shard], tables: Sequence[pa.Table]) -> None:
    """Raise ConfigError if a prompt has no id, or if an id occurs twice."""
    seen: set[str] = set()
    counted: dict[str, int] = {}
    for shard, table in zip(shards, tables, strict=True):
        first = counted.get(shard.url, 0)
        counted[shard.url] = first + len(table)
        for row, prompt_id in enumerate(table.column("prompt_id").to_pylist(), start=first):
            if not prompt_id:
                raise ConfigError(f"{shard.url}, row {row}: the prompt has no prompt_id; fill it in")
            if prompt_id in seen:
                raise ConfigError(f"{shard.url}, row {row}: prompt_id {prompt_id!r} stands twice; make ids unique")
            seen.add(prompt_id)


def gather_prompts(images: Sequence[Shard], name: str, locate_image: LocateImage, memory: FileMemory) -> Prompted:
    """Gather the prompts from the images' rows, reading only the columns of ids and texts.

    Each shard of images gets a shard of prompts that is named by its prompts and not by its file. So shards with the
    same prompts, such as those of two generators, share their questions.
    """
    unique: dict[str, tuple[str, str]] = {}
    matched: dict[Shard, tuple[Shard, ...]] = {}
    asked: dict[str, Shard] = {}
    broken: list[BrokenFile] = []
    objects = StoredObjects(locate_image)
    for shard, table in read_files(images, ("prompt_id", "prompt", *ADDRESSES), memory.read):
        if isinstance(table, SourceError):
            broken.append(BrokenFile(shard.group, str(table), shard.rows))
            continue
        pairs = _own_pairs(table)
        for prompt_id, text in pairs:
            _check_text(prompt_id, text, shard, unique)
        content = digest(sorted(pairs))
        holder = replace(shard, group=name, name=f"rows-{content[:16]}", rows=len(pairs), prompts=content)
        keyed = replace(shard, prompts=content, objects=objects.digest(table), sources=objects.digest_beside(table))
        matched[keyed] = (asked.setdefault(content, holder),)
    skills: list[list[str]] = [[]] * len(unique)
    columns = [list(unique), [text for text, _ in unique.values()], skills, [name] * len(unique)]
    arrays = [pa.array(values, dtype) for values, dtype in zip(columns, schemas.PROMPTS.types, strict=True)]
    table = pa.table(arrays, schema=schemas.PROMPTS)
    return Prompted(PromptTables(table, list(asked.values()), []), matched, {}, broken)


def own_ids(images: Sequence[Shard], memory: FileMemory) -> list[str]:
    """Return the ids of the prompts in the images' rows, each once, in order."""
    ids: dict[str, None] = {}
    for _, table in read_files(images, ("prompt_id",), memory.read):
        if not isinstance(table, SourceError):
            ids |= dict.fromkeys(id_text(record["prompt_id"]) or "" for record in image_records(table))
    return list(ids)


def _own_pairs(table: pa.Table) -> list[tuple[str, str]]:
    """Return each pair of id and text in the rows once."""
    pairs = zip(*(table.column(name).to_pylist() for name in ("prompt_id", "prompt")), strict=True)
    return list(dict.fromkeys((one, text or "") for one, text in pairs))


def _check_text(prompt_id: str, text: str, shard: Shard, unique: dict[str, tuple[str, str]]) -> None:
    """Raise ConfigError if an id has two texts, in one file or in two."""
    known, where = unique.setdefault(prompt_id, (text, shard.url))
    if known != text:
        other = "" if where == shard.url else f" in {where}"
        raise ConfigError(
            f"{shard.url}: prompt_id {prompt_id!r} stands for {text!r}, and for {known!r}{other}; make ids unique, "
            "or set benchmark.columns.prompt_id=null: ids are then made of the texts"
        )


def _read_prompt_files(shards: Sequence[Shard]) -> Iterator[pa.Table]:
    """Yield the prompts of every shard; a Parquet file is opened once, because its footer grows with its shards."""
    if any(shard.url.lower().endswith(prompt_files.SUFFIXES) for shard in shards):
        yield from (read_prompts(shard) for shard in shards)
        return
    for shard, table in read_files(shards, PROMPT_COLUMNS, read_each):
        if isinstance(table, SourceError):
            raise table
        yield prompts_table(_make_records(table, shard), shard)


def read_prompts(shard: Shard) -> pa.Table:
    """Return a shard's prompts in the schema PROMPTS; absent columns are filled, ids become text.

    An images shard whose rows contain their own prompts gives each id and text once. Raises SourceError naming the
    file.
    """
    if shard.pack:
        table = picked_rows(read_pack(PackFile(pack=shard.pack, place=shard.place), shard.group).prompts, shard)
        if digest(sorted(pairs_of(table))) != shard.prompts:
            raise SourceError(f"{shard.url}: the prompts have changed since the run was planned; run again")
        return table
    if shard.holds_prompts:
        pairs = _own_pairs(read_shard(shard, ("prompt_id", "prompt")))
        return prompts_table([{"prompt_id": prompt_id, "text": text} for prompt_id, text in pairs], shard)
    return prompts_table(prompt_records(shard), shard)


def prompts_table(found_rows: Iterable[Mapping[str, Any]], shard: Shard) -> pa.Table:
    """Return a prompts file's rows in the schema PROMPTS; raises SourceError naming a row without a valid prompt."""
    records = [
        {
            "prompt_id": prompt_id,
            "text": prompt_text(found["text"], shard, row),
            "skills": list(
                dict.fromkeys([*_skills(found.get("skills"), shard, row), *_skills_in_file(prompt_id, shard)])
            ),
            "suite": shard.group,
        }
        for row, found in enumerate(found_rows)
        for prompt_id in [_prompt_id(found["prompt_id"], shard, row)]
    ]
    return rows.table(records, schemas.PROMPTS)


def prompt_records(shard: Shard, columns: Sequence[str] = PROMPT_COLUMNS) -> list[dict[str, Any]]:
    """Return the shard's rows of a prompts file, unconverted, by our names; a Parquet file gives only these columns."""
    names = {name: dict(shard.columns).get(name, name) for name in (*PROMPT_COLUMNS, *columns)}
    if not shard.url.lower().endswith(prompt_files.SUFFIXES):
        return _make_records(read_shard(shard, columns), shard)
    prompt_files.check_size(shard.size, shard.url)
    with opened(shard) as stream:
        content = stream.read()
    if shard.url.lower().endswith(prompt_files.LIST):
        found = prompt_files.read_prompt_list(content, shard.url)
    else:
        read = prompt_files.read_prompts(content, shard.url, prompt_files.PromptColumns(names))
        found = prompt_files.with_ids(read, shard.url)
    return [found[row] for row in shard.picked] if shard.picked else found


def _make_records(table: pa.Table, shard: Shard) -> list[dict[str, Any]]:
    columns = {name: column_values(table, name, shard) for name in table.column_names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _prompt_id(value: Any, shard: Shard, row: int) -> str | None:
    if isinstance(value, bytes | list | dict | bool):
        found = type(value).__name__
        raise SourceError(
            f"{where(shard, row)}: expected prompt_id as text or a number, found {found}; write it as text"
        )
    return id_text(value)


def _skills(value: Any, shard: Shard, row: int) -> list[str]:
    """Return the skills of a prompt, a list or a text separated by semicolons; nulls in it are left out."""
    if rows.is_missing(value):
        return []
    if isinstance(value, str):
        return [str(skill) for skill in as_list(value)]
    if not isinstance(value, list):
        found = type(value).__name__
        raise SourceError(f"{where(shard, row)}: expected `skills` to be a list of text, found {found}; write a list")
    odd = [skill for skill in value if isinstance(skill, bytes | list | dict)]
    if odd:
        found = type(odd[0]).__name__
        raise SourceError(f"{where(shard, row)}: expected `skills` to hold text, found {found}; write skills as text")
    return [str(skill) for skill in value if not rows.is_missing(skill)]
