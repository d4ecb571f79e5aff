"""A benchmark's prompts: of files of their own, or gathered from the images' rows."""

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
from plumbline.pipelines.cells.cells import Shard, digest
from plumbline.pipelines.sources import prompt_files
from plumbline.pipelines.sources.benchmark import PROMPT_COLUMNS, BenchmarkConfig
from plumbline.pipelines.sources.file_memory import FileMemory
from plumbline.pipelines.sources.question_packs import PackFile, read_pack
from plumbline.pipelines.sources.shards import (
    FILE_READERS,
    BrokenFile,
    Cut,
    ListedFile,
    check_columns,
    column_values,
    cut_shards,
    list_files,
    opened,
    picked_rows,
    prompt_text,
    read_each,
    read_footer,
    read_shard,
    require_columns,
    where,
)
from plumbline.pipelines.sources.uris import LocateImage, StoredObjects

ReadFile = Callable[[Sequence[Shard], Sequence[str]], list[pa.Table | SourceError]]
"""Gives these columns of the shards of one file, or the error in place of one that cannot be read."""
FILES_AT_ONCE = 2 * FILE_READERS
"""Whose ids, or prompts, are in memory at a time."""


class PromptTables(NamedTuple):
    """The prompts, and where they are read."""

    table: pa.Table
    """Schema PROMPTS."""
    shards: list[Shard]
    tables: list[pa.Table]
    """Of every shard its prompts."""

    @property
    def beside(self) -> set[str]:
        """Our names of the columns with sources and masks of edits that some file has."""
        return {name for shard in self.shards for name in shard.beside}


class UnknownPrompts(NamedTuple):
    """Images of prompts that a benchmark does not have."""

    images: int = 0
    prompt_id: str = ""
    """The first of these."""

    def with_images(self, prompt_ids: Sequence[str]) -> "UnknownPrompts":
        """With as many images more."""
        return UnknownPrompts(self.images + len(prompt_ids), self.prompt_id or next(iter(prompt_ids), ""))


class Prompted(NamedTuple):
    """Images with the prompts that they were made of."""

    prompts: PromptTables
    images: Mapping[Shard, tuple[Shard, ...]]
    """Every readable images shard, with the shards that hold the prompts it names."""
    named: Mapping[Shard, NDArray[np.int32]]
    """By images shard, the rows of the prompts it names, in the order of their ids; none where rows hold their own."""
    broken: list[BrokenFile]
    unknown: UnknownPrompts = UnknownPrompts()


def open_prompts(benchmark: BenchmarkConfig, storage: StorageConfig, cut: Cut) -> PromptTables:
    """The prompts of benchmark.prompts; whatever is wrong with them stops the sweep before anything is computed."""
    place = storage.locate(str(benchmark.prompts))
    packed = benchmark.packed(storage)
    if packed is not None and packed.place == place:
        return _packed_prompts(packed, benchmark.name)
    with readable_errors(place, "benchmark.prompts"):
        files = list_prompt_files(place, benchmark.name)
    try:
        skills = locate_skills(place, benchmark)
        shards = [shard for file in files for shard in prompt_shards(file, benchmark, cut.of_prompts, skills)]
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
    """The Parquet files at or below a place, or the one file of another kind; raises FileNotFoundError for no place."""
    suffixes = prompt_files.SUFFIXES if place.path.lower().endswith(prompt_files.SUFFIXES) else (".parquet",)
    return list_files(place, suite, suffixes).tables


def locate_skills(place: Place, benchmark: BenchmarkConfig) -> Shard | None:
    """Return the file with the skills of the prompts at this place, as benchmark.skills names it; None if absent."""
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


def _skills_beside(prompt_id: str | None, shard: Shard) -> Sequence[str]:
    """Return a prompt's skills in the file of skills; none without such a file."""
    return () if shard.skills is None else _read_skills(shard.skills).get(prompt_id or "", ())


def _packed_prompts(packed: PackFile, suite: str) -> PromptTables:
    """The prompts that a question pack names: one shard, however many they are."""
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
    """The id and text of every prompt: all of it that can change a result."""
    return list(zip(*(table.column(name).to_pylist() for name in ("prompt_id", "text")), strict=True))


def match_prompts(
    images: Sequence[Shard], prompts: PromptTables, locate_image: LocateImage, memory: FileMemory
) -> Prompted:
    """Which of a benchmark's prompts every images shard names, read from the ids alone.

    So a prompt that is added or edited touches the images that were made of it, and no others.
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
        sources = objects.beside(table, [holder.sources for holder in holders])
        keyed = replace(shard, prompts=digest(pairs), objects=objects.digest(table), sources=sources)
        named[keyed] = np.array(known_rows, np.int32)
        matched[keyed] = tuple(holders)
    return Prompted(prompts, matched, named, broken, unknown)


def read_files(
    shards: Sequence[Shard], columns: Sequence[str], read_file: ReadFile
) -> Iterator[tuple[Shard, pa.Table | SourceError]]:
    """The columns of every shard, some files at once; `read_file` gives those of the shards of one."""
    files: dict[tuple[str, str], list[Shard]] = {}
    for shard in shards:
        files.setdefault((shard.group, shard.url), []).append(shard)
    in_files = list(files.values())
    with ThreadPoolExecutor(FILE_READERS) as pool:
        for first in range(0, len(in_files), FILES_AT_ONCE):
            window = in_files[first : first + FILES_AT_ONCE]
            for of_file, read in zip(window, pool.map(lambda file: read_file(file, columns), window), strict=True):
                yield from zip(of_file, read, strict=True)


def prompt_shards(file: ListedFile, benchmark: BenchmarkConfig, cut: Cut, skills: Shard | None) -> list[Shard]:
    """Return the shards of a prompts file, whose skills may be in another; a CSV or JSON file is one shard.

    They have those columns of sources and masks that the file has.
    """
    names, beside = benchmark.prompt_columns.renamed(), benchmark.columns.beside
    if not file.url.lower().endswith(prompt_files.SUFFIXES):
        footer = read_footer(file)
        schema, own_names = footer.schema.to_arrow_schema(), dict(names)
        require_columns(schema, ("prompt_id", "text"), names, "benchmark.prompt_columns", file.url)
        read = [own_names.get(name, name) for name in PROMPT_COLUMNS]
        check_columns(schema, [*read, *beside.values()], read[:1], file.url)
        held = [(name, its) for name, its in beside.items() if its in schema.names]
        cut_file = (replace(shard, skills=skills) for shard in cut_shards(file, footer, (*names, *held), cut))
        return _where(cut_file, benchmark.prompt_columns.where)
    whole = Shard(
        group=file.group, name=file.name, place=file.place, size=file.size, etag=file.etag, row_groups=(), rows=0,
        columns=names, skills=skills,
    )  # fmt: skip
    count = len(read_prompts(whole))
    records = prompt_records(replace(whole, columns=(*names, *beside.items())), list(beside)) if beside else []
    columns = {name: its for name, its in beside.items() if any(record.get(name) for record in records)}
    for name in columns:
        if name not in (*ADDRESSES, *CAPTIONS):
            raise SourceError(
                f"{file.url}: {columns[name]!r} holds text, where benchmark.columns.{name} names images; name the "
                f"column by benchmark.columns.{name}_uri"
            )
    shards = [replace(whole, rows=count, columns=(*names, *columns.items()))] if count else []
    return _where(shards, benchmark.prompt_columns.where)


def _where(shards: Iterable[Shard], conditions: Sequence[str]) -> list[Shard]:
    """The shards with the rows that meet all conditions (COLUMN:VALUE), where there are any."""
    if not conditions:
        return list(shards)
    wanted = {tuple(condition.split(":", 1)) for condition in conditions}
    columns = [name for name, _ in wanted]
    pieces: list[Shard] = []
    for shard in shards:
        texts = (
            {*_texts_of(record, columns), *(("skills", skill) for skill in _skills_beside(prompt_id, shard))}
            for record in prompt_records(shard, ("prompt_id", *columns))
            for prompt_id in [id_text(record["prompt_id"])]
        )
        picked = tuple(row for row, values in enumerate(texts) if wanted <= values)
        pieces += [replace(shard, picked=picked, rows=len(picked))] if picked else []
    return pieces


def _texts_of(record: Mapping[str, Any], columns: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The columns with their values as text, with each one of a list."""
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
    """Every prompt has an id, and no id stands twice."""
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
    """The prompts that the images' rows hold, read from the id and text columns alone.

    Every images shard gets a prompts shard that is named by the prompts in it and not by its file. So shards with the
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
        keyed = replace(shard, prompts=content, objects=objects.digest(table), sources=objects.beside(table))
        matched[keyed] = (asked.setdefault(content, holder),)
    skills: list[list[str]] = [[]] * len(unique)
    columns = [list(unique), [text for text, _ in unique.values()], skills, [name] * len(unique)]
    arrays = [pa.array(values, dtype) for values, dtype in zip(columns, schemas.PROMPTS.types, strict=True)]
    table = pa.table(arrays, schema=schemas.PROMPTS)
    return Prompted(PromptTables(table, list(asked.values()), []), matched, {}, broken)


def own_ids(images: Sequence[Shard], memory: FileMemory) -> list[str]:
    """The ids of the prompts that the images' rows hold, in their order, each once."""
    ids: dict[str, None] = {}
    for _, table in read_files(images, ("prompt_id",), memory.read):
        if not isinstance(table, SourceError):
            ids |= dict.fromkeys(id_text(record["prompt_id"]) or "" for record in image_records(table))
    return list(ids)


def _own_pairs(table: pa.Table) -> list[tuple[str, str]]:
    """Each id and text of the rows once."""
    pairs = zip(*(table.column(name).to_pylist() for name in ("prompt_id", "prompt")), strict=True)
    return list(dict.fromkeys((one, text or "") for one, text in pairs))


def _check_text(prompt_id: str, text: str, shard: Shard, unique: dict[str, tuple[str, str]]) -> None:
    """No id stands for two texts, in one file or in two."""
    known, where = unique.setdefault(prompt_id, (text, shard.url))
    if known != text:
        other = "" if where == shard.url else f" in {where}"
        raise ConfigError(
            f"{shard.url}: prompt_id {prompt_id!r} stands for {text!r}, and for {known!r}{other}; make ids unique, "
            "or set benchmark.columns.prompt_id=null: ids are then made of the texts"
        )


def _read_prompt_files(shards: Sequence[Shard]) -> Iterator[pa.Table]:
    """Of every shard its prompts; a Parquet file is opened once, for its footer grows with the shards that it has."""
    if any(shard.url.lower().endswith(prompt_files.SUFFIXES) for shard in shards):
        yield from (read_prompts(shard) for shard in shards)
        return
    for shard, table in read_files(shards, PROMPT_COLUMNS, read_each):
        if isinstance(table, SourceError):
            raise table
        yield prompts_table(_as_records(table, shard), shard)


def read_prompts(shard: Shard) -> pa.Table:
    """A shard's prompts in the schema PROMPTS; absent columns are filled, ids become text.

    Of an images shard whose rows hold their own prompts, each id and text once; raises SourceError naming the file.
    """
    if shard.pack:
        table = picked_rows(read_pack(PackFile(pack=shard.pack, place=shard.place), shard.group).prompts, shard)
        if digest(sorted(pairs_of(table))) != shard.prompts:
            raise SourceError(f"{shard.url}: the prompts have changed since the run was planned; run again")
        return table
    return prompts_table(_own_prompts(shard) if shard.holds_prompts else prompt_records(shard), shard)


def prompts_table(found_rows: Iterable[Mapping[str, Any]], shard: Shard) -> pa.Table:
    """A prompts file's rows in the schema PROMPTS; raises SourceError naming the row that is none."""
    records = [
        {
            "prompt_id": prompt_id,
            "text": prompt_text(found["text"], shard, row),
            "skills": list(
                dict.fromkeys([*_skills(found.get("skills"), shard, row), *_skills_beside(prompt_id, shard)])
            ),
            "suite": shard.group,
        }
        for row, found in enumerate(found_rows)
        for prompt_id in [_prompt_id(found["prompt_id"], shard, row)]
    ]
    return rows.table(records, schemas.PROMPTS)


def _own_prompts(shard: Shard) -> list[dict[str, Any]]:
    pairs = _own_pairs(read_shard(shard, ("prompt_id", "prompt")))
    return [{"prompt_id": one, "text": text} for one, text in pairs]


def prompt_records(shard: Shard, columns: Sequence[str] = PROMPT_COLUMNS) -> list[dict[str, Any]]:
    """The shard's rows of a prompts file as they stand, by our names; of a Parquet file those of its columns."""
    names = {name: dict(shard.columns).get(name, name) for name in (*PROMPT_COLUMNS, *columns)}
    if not shard.url.lower().endswith(prompt_files.SUFFIXES):
        return _as_records(read_shard(shard, columns), shard)
    prompt_files.check_size(shard.size, shard.url)
    with opened(shard) as stream:
        content = stream.read()
    if shard.url.lower().endswith(prompt_files.LIST):
        found = prompt_files.read_prompt_list(content, shard.url)
    else:
        read = prompt_files.read_prompts(content, shard.url, prompt_files.PromptColumns(names))
        found = prompt_files.with_ids(read, shard.url)
    return [found[row] for row in shard.picked] if shard.picked else found


def _as_records(table: pa.Table, shard: Shard) -> list[dict[str, Any]]:
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
    """The skills of a prompt, also of a text with semicolons between them; a null among them is none."""
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
