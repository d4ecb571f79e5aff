"""Ways in which folders of image files tell their prompts, in the order in which they are looked for.

- `tables`: Hugging Face's image folders, GenEval's folder per prompt, and scripts' CSVs. A row belongs to the images
  that it names (`file_name`, `file_names` or `flux_file_name`, as in Hugging Face's `imagefolder`), or whose names
  contain its id (row_matching.py). A metadata file with one row that names no image belongs to the images at and below
  its folder, as GenEval writes `metadata.jsonl`.
- `list`: a prompts.txt, one prompt a line: the number in an image's name is its line's (image_numbers.py).
- `beside`: each image has a .txt or .json of its name beside it, as img2dataset and trainers' datasets have.
- `names`: an image's name is its prompt, as T2I-CompBench names them: `a red cube on a table_000002.png`.
- `ids`: an image's name is its prompt's id, as GEdit-Bench and ImgEdit name them; only where that is asked for.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from plumbline.operators.errors import ConfigError
from plumbline.operators.sentences import plural
from plumbline.pipelines.base.storage import readable_errors
from plumbline.pipelines.base.tables import (
    JSON_LINES,
    SEPARATORS,
    WORKBOOKS,
    Refused,
    Rejection,
    Row,
    parse_object,
    split_lines,
)
from plumbline.pipelines.ingest.drafting import SourceFile
from plumbline.pipelines.ingest.image_folders import NUMBERED, RESULTS, Folder, is_contact_sheet, list_images
from plumbline.pipelines.ingest.image_numbers import first_number, image_numbers
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.input_rows import (
    EDIT_RESULTS,
    EDIT_SOURCES,
    IMAGES,
    InputColumnsConfig,
    find_names,
    refuse_foreign,
)
from plumbline.pipelines.ingest.row_matching import RowMatch, match_rows
from plumbline.pipelines.ingest.typed_tables import Table, column_names, read_rows
from plumbline.pipelines.sources.benchmark import PromptsFrom
from plumbline.pipelines.sources.origins import Origins, SeenOrigins, count_suffixes, name_some, pass_over
from plumbline.pipelines.sources.shards import text_id

METADATA = ("metadata.jsonl", "metadata.csv")
LIST = "prompts.txt"
FILE_NAMES = re.compile(r"(?:.+_)?file_names|.+_file_name")
"""Hugging Face's columns of image files, besides `file_name`."""
TARGETS = frozenset({*EDIT_RESULTS, *RESULTS, "target", "target_image", "image"})
"""Words that name the column of an image, but not a generator."""
UNSCORED = frozenset({*EDIT_SOURCES, "mask"})
"""Words that name the column of an edit's source or mask."""
TABLES = (*SEPARATORS, *JSON_LINES, ".json", ".parquet", ".arrow", *WORKBOOKS)
WORDS = re.compile(r"[^\W\d_]{2,}")
PROMPTS_FILE = re.compile(r"(?!\.).*(prompt|caption|metadata).*\.(csv|tsv|jsonl?|ndjson|txt|parquet)", re.IGNORECASE)
"""The name of a file of prompts."""
MIN_FOLDER_WORDS = 3
"""Words of a folder's name that is a prompt; `run one` is none."""
LINE = "line"
"""The column of the rows of a list that has the numbers of its lines."""
NAMES_OF_IDS = InputColumnsConfig(prompt_id="prompt_id")


@dataclass(slots=True)
class SeenSources:
    """Origins of the sources in a folder of edits, and the edits without a source."""

    columns: dict[str, None] = field(default_factory=dict)
    """In words."""
    used: dict[str, None] = field(default_factory=dict)
    without: dict[str, None] = field(default_factory=dict)
    unclear: dict[str, None] = field(default_factory=dict)

    def note(self, image: str, sources: Sequence[str]) -> None:
        """Notes the sources that an image could be edited from, by its name."""
        self.used.update(dict.fromkeys(sources))
        if len(sources) != 1:
            (self.unclear if sources else self.without)[image] = None

    def __str__(self) -> str:
        """Return a line for people; empty without any sources."""
        told = list(self.columns)
        if self.used:
            folders = dict.fromkeys(f"{PurePosixPath(source).parent}/" for source in sorted(self.used))
            told.append(f"{len(self.used)}, from {name_some(list(folders))}, by name")
            for what, images in (("without one", self.without), ("with several of their name", self.unclear)):
                told += [f"images {what}: {len(images)}, such as {next(iter(images))}"] if images else []
        return "; ".join(told)


class DescribedImage(NamedTuple):
    """An image file with its description, by the names of a table's columns."""

    image: str
    """Its path below the folder."""
    values: Mapping[str, Any]
    source: str
    """Origin of the description, in words."""
    named: bool = False
    """True if people chose the names of the values' columns or fields."""
    generator: str | None = None
    """The generator that neither a column nor a folder names."""
    named_by: str = ""
    """The part of the input that names the generator, in words."""


class Layout(NamedTuple):
    """A way of keeping prompts with the images of a folder."""

    name: PromptsFrom
    """Its name in `prompts_from`."""
    looks: str
    """Contents of such a folder, in words."""
    files: Callable[[Folder], Collection[str]]
    """Returns the files with the prompts; none if the folder has another layout."""
    read: Callable[[Folder], Iterator[DescribedImage | Rejection]]
    """Yields every image with its prompt, and the rejections; raises ConfigError if it cannot match them."""


def all_tables(folder: Folder) -> list[str]:
    """The CSVs and JSON Lines files of a folder."""
    return [name for name in folder.names if name.lower().endswith((*SEPARATORS, *JSON_LINES))]


def _telling_tables(folder: Folder) -> list[str]:
    """Return the tables that describe images: metadata files, and others with columns of image files and prompts, or of
    prompts and of ids in the images' names.
    """
    return [name for name in all_tables(folder) if _is_metadata(name) or _tells_of_images(folder, name)]


def _is_metadata(table: str) -> bool:
    return PurePosixPath(table).name.lower() in METADATA


def _tells_of_images(folder: Folder, table: str) -> bool:
    try:
        columns = column_names(folder.place / table)
    except ConfigError:  # told where nothing else tells the prompts
        return False
    names = find_names(columns, folder.columns)
    if names.image is not None or _file_name_columns(columns, folder.columns):
        return (names.prompt or names.prompt_id) is not None
    return names.prompt is not None and _match_table(folder, table) is not None


@lru_cache(maxsize=8)
def _match_table(folder: Folder, table: str) -> RowMatch | None:
    """Match the images of a folder with the rows of a table that names no files."""
    rows = [row for row in read_rows(folder.place / table) if isinstance(row, Row)]
    return _match_rows(folder, table, rows)


def _match_rows(folder: Folder, table: str, rows: Sequence[Row]) -> RowMatch | None:
    """Match rows with the images in their table's folder, or with all if there are none."""
    base = table.rpartition("/")[0]
    images = [image for image in folder.images if not is_contact_sheet(image)]
    inner = [image for image in images if base in _folders_above(image)]
    names = find_names(dict.fromkeys(name for row in rows for name in row.values), folder.columns)
    if names.prompt is None or (len(rows) == 1 and _is_metadata(table)):
        return None
    try:
        return match_rows(inner or images, rows, names, folder.columns.prompt_id, folder.generator)
    except ConfigError as error:
        raise ConfigError(f"{folder.at(table)}: {error}") from error


def _read_tables(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    """Describe the images that rows name by their paths, then those whose names contain the id of a row, then the
    others by the nearest metadata file whose row names none.
    """
    left = dict.fromkeys(folder.images)
    nameless: dict[str, _Nameless] = {}
    matches: dict[str, RowMatch] = {}
    tables = _telling_tables(folder)
    for table in tables:
        unnamed: list[Row] = []
        named = False
        for row in read_rows(folder.place / table):
            if isinstance(row, Rejection):
                yield row
                continue
            named = named or _names_a_file(folder, row, table)
            if not named:  # as far as this row, the table may be one of ids
                unnamed.append(row)
                continue
            for waiting in (*unnamed, row):
                yield from _take_row(folder, waiting, table, left)
            unnamed = []
        if unnamed and (match := _match_rows(folder, table, unnamed)) is not None:
            matches[table] = match
            continue
        without = [row for row in unnamed if _image_cells(row.values, folder.columns) is None]
        base = table.rpartition("/")[0]
        if without and len(without) == len(unnamed) and _is_metadata(table) and base not in nameless:
            nameless[base] = _Nameless(table, unnamed[0], _why_no_prompt(table, unnamed))
        else:
            for row in unnamed:
                yield from _take_row(folder, row, table, left)
    yield from _read_matches(folder, left, matches)
    yield from _read_nameless(folder, list(left), nameless, tables[0])


def _names_a_file(folder: Folder, row: Row, table: str) -> bool:
    """Return True if a row names an image that is there."""
    cells = _image_cells(row.values, folder.columns) or ()
    paths = [cell.path for cell in cells if isinstance(cell.path, str) and cell.path]
    return any(_find_image(folder, path, table) in folder.known_images for path in paths)


def _take_row(folder: Folder, row: Row, table: str, left: dict[str, None]) -> Iterator[DescribedImage | Rejection]:
    """Describe the images that a row names, and take them from those that are left."""
    cells = _image_cells(row.values, folder.columns)
    if cells is None:
        yield _reject_without_image(folder, table, row)
        return
    for each in _images_of_row(folder, row, table, cells):
        image = each.image if isinstance(each, DescribedImage) else each.file.removeprefix(folder.at(""))
        left.pop(image, None)
        yield each


def _read_matches(
    folder: Folder, left: dict[str, None], matches: Mapping[str, RowMatch]
) -> Iterator[DescribedImage | Rejection]:
    """Describe images by the rows whose ids are in their names: by those of the nearest table, or of the best one."""
    for table, match in sorted(matches.items(), key=lambda each: (-each[0].count("/"), -len(each[1].rows))):
        source = f"{PurePosixPath(table).name}, by {match.column!r} in the {match.way}"
        generators = match.name_generators(folder.own_generator)
        unread = () if match.column == "prompt_id" else (match.column,)
        for image, row in match.rows.items():
            if image not in left:
                continue
            left.pop(image)
            values = {name: value for name, value in _add_skills(row.values).items() if name not in unread}
            generator = generators.get(image)
            yield DescribedImage(image, values, source, True, generator, "the images' names" if generator else "")
        bearing = {id(row) for row in match.rows.values()}
        if unused := [row for row in match.all_rows if id(row) not in bearing]:
            example = f"{match.column} {unused[0].values.get(match.column)!r}"
            folder.warnings[f"{plural(len(unused), 'row')} of {table} belong to no image, such as {example}"] = None


class _Nameless(NamedTuple):
    """A metadata file whose rows name no image."""

    table: str
    row: Row
    """Its first row."""
    problem: str
    """Reason why the row is not the prompt of all images of its folder; empty if it is."""


def _why_no_prompt(table: str, rows: Sequence[Row]) -> str:
    """Return why rows that name no image are not the prompt of a folder; empty for a single one without a file."""
    values = [value for row in rows for value in row.values.values()]
    if len(rows) == 1 and not any(isinstance(value, str) and _is_image_path(value) for value in values):
        return ""
    columns = ", ".join(dict.fromkeys(name for row in rows for name in row.values))
    return (
        f"{table} has {plural(len(rows), 'row')} and no known column of image files (found {columns}); "
        "name it by columns.image=NAME"
    )


def _read_nameless(
    folder: Folder, images: Sequence[str], nameless: Mapping[str, _Nameless], first: str
) -> Iterator[DescribedImage | Rejection]:
    """Describe images by the nearest metadata file whose only row names no image."""
    folders = {above for image in folder.images for above in _folders_above(image)}
    used: set[str] = set()
    for image in sorted(images):
        base = next((base for base in _folders_above(image) if base in nameless), None)
        if base is None:
            yield folder.reject_without_prompt(
                image, f"no row of {PurePosixPath(first).name} tells its prompt; add one"
            )
            continue
        used.add(base)
        table, row, problem = nameless[base]
        samples = f"{base}/samples".removeprefix("/")
        if problem or is_contact_sheet(image):
            yield folder.reject_without_prompt(image, problem)
        elif samples in folders and samples not in _folders_above(image):
            yield folder.skip(image, "beside samples/, which holds the images of its prompt")
        else:
            yield DescribedImage(image, _add_skills(row.values), PurePosixPath(table).name, named=True)
    for table, row, _ in (nameless[base] for base in nameless if base not in used):
        message = "it names no image, and there is none in its folder; generate the image"
        yield Refused("missing_image", message).at(folder.at(table), row.line)


def _folders_above(image: str) -> list[str]:
    """Return the folders that an image lies in, the nearest first and `` last."""
    return ["" if str(parent) == "." else str(parent) for parent in PurePosixPath(image).parents]


def _is_image_path(text: str) -> bool:
    return PurePosixPath(text).suffix[1:].lower() in IMAGES


def _reject_without_image(folder: Folder, table: str, row: Row) -> Rejection:
    return Refused("missing_image", "the row names no image file; fill its path in").at(folder.at(table), row.line)


class _ImageCell(NamedTuple):
    """A cell of a table that names an image."""

    path: Any
    generator: str | None = None
    """The image's generator, if the column's name contains it."""
    unread: str = ""
    """The column, if it names no image that is scored, but its source or mask."""


def _file_name_columns(available: Iterable[str], columns: InputColumnsConfig) -> list[str]:
    """Return Hugging Face's columns of image files other than `file_name`, unless another column was chosen."""
    return [] if columns.image else [name for name in available if FILE_NAMES.fullmatch(name)]


def _image_cells(values: Mapping[str, Any], columns: InputColumnsConfig) -> list[_ImageCell] | None:
    """Return the cells of a row that name images; None if no column is known to name any.

    Of several columns such as `flux_file_name` and `sdxl_file_name`, each is named after its generator.
    """
    image = find_names(values, columns).image
    others = _file_name_columns(values, columns)
    if image is None and not others:
        return None
    prefixes = {name: name.removesuffix("s").removesuffix("file_name").removesuffix("_") for name in others}
    read = [name for name, prefix in prefixes.items() if prefix.lower() not in UNSCORED and image is None]
    several = len(read) > 1
    cells = [_ImageCell(path) for path in _paths(values.get(image or ""))]
    for name, prefix in prefixes.items():
        generator = prefix if several and prefix and prefix.lower() not in TARGETS else None
        unread = "" if name in read else name
        cells += [_ImageCell(path, generator, unread) for path in _paths(values[name])]
    return cells


def _paths(value: Any) -> list[Any]:
    """Return the paths in a cell, of one image or of several."""
    return value if isinstance(value, list) else [value]


def _images_of_row(
    folder: Folder, row: Row, table: str, cells: Sequence[_ImageCell]
) -> Iterator[DescribedImage | Rejection]:
    """Describe the images that a row names, whether they are there or not."""
    paths = [cell for cell in cells if isinstance(cell.path, str) and cell.path]
    if all(cell.unread for cell in paths):
        yield _reject_without_image(folder, table, row)
    values = _add_skills(row.values)
    for path, generator, unread in paths:
        image = _find_image(folder, path, table)
        if image in folder.outside:
            continue
        if not unread:
            named_by = f"the columns' names in {PurePosixPath(table).name}" if generator else ""
            yield DescribedImage(image, values, PurePosixPath(table).name, True, generator, named_by)
        elif image in folder.known_images:
            yield folder.skip(image, f"named by the column {unread!r}; columns.image={unread} takes it")


def _find_image(folder: Folder, named: str, table: str) -> str:
    """Return the image of a path relative to the table's folder, the folder of images, or the latter's parent."""
    named = named.removeprefix(f"{folder.place.url.rstrip('/')}/")
    base = table.rpartition("/")[0]
    below = str(PurePosixPath(named))
    own_name = PurePosixPath(folder.place.path).name
    paths = (str(PurePosixPath(base) / named), below, below.removeprefix(f"{own_name}/"))
    return next((found for path in paths if (found := folder.find(path)) is not None), paths[0])


def _add_skills(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values with `skills`; GenEval calls a prompt's skill its tag."""
    return values if "skills" in values or not values.get("tag") else {**values, "skills": [values["tag"]]}


def _lists(folder: Folder) -> list[str]:
    """Every prompts.txt, those of inner folders first: an image takes the nearest."""
    lists = [name for name in folder.names if PurePosixPath(name).name.lower() == LIST]
    return sorted(lists or _prompt_columns(folder), key=lambda name: -name.count("/"))


def _prompt_columns(folder: Folder) -> list[str]:
    """Return the tables that have prompts and nothing else: a row is a line."""
    found = []
    for table in all_tables(folder):
        with suppress(ConfigError):
            columns = column_names(folder.place / table)
            if len(columns) == 1 and find_names(columns, folder.columns).prompt:
                found.append(table)
    return found


def _read_lists(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    left = folder.images
    for name in _lists(folder):
        base = name[: name.rfind("/") + 1]
        yield from _numbered_images(folder, name, [image for image in left if image.startswith(base)])
        left = [image for image in left if not image.startswith(base)]
    for image in left:
        yield folder.reject_without_prompt(image, f"no {LIST} in its folder or above it; write one")


def _numbered_images(folder: Folder, name: str, images: list[str]) -> Iterator[DescribedImage | Rejection]:
    lines = _lines(folder, name)
    base = name[: name.rfind("/") + 1]
    foreign = [image for image in folder.foreign if image.startswith(base)]
    numbered = [image.removeprefix(base) for image in (*images, *foreign) if not is_contact_sheet(image)]
    numbers = image_numbers(numbered)
    first = first_number(numbers, len(lines), folder.at(name))
    _warn_of_lines(folder, name, len(lines), numbers, first)
    for image in images:
        number = numbers.get(image.removeprefix(base), "")
        if isinstance(number, str):
            yield folder.reject_without_prompt(image, number)
        elif not 0 <= number - first < len(lines):
            message = f"{folder.at(name)} has {len(lines)} lines, from number {first}, and none of number {number}"
            yield folder.reject_without_prompt(image, f"{message}; add it, or number the image otherwise")
        else:
            yield DescribedImage(
                image, {"prompt": lines[number - first]}, f"the lines of {name}, by the numbers of images"
            )


def _warn_of_lines(folder: Folder, name: str, lines: int, numbers: Mapping[str, int | str], first: int) -> None:
    """Warn of lines after the highest number: the list may belong to other images, or contain more than prompts."""
    highest = max((number for number in numbers.values() if isinstance(number, int)), default=first - 1)
    if (left := lines - (highest - first + 1)) > 0:
        problem = f"no image belongs to the last {plural(left, 'line')} of {name}"
        folder.warnings[f"{problem}: it has {plural(lines, 'line')}, and images have numbers up to {highest}"] = None


def _lines(folder: Folder, name: str) -> list[str]:
    """Return the prompts of a list; of a table with nothing else those of its rows."""
    if name.lower().endswith((*SEPARATORS, *JSON_LINES)):
        return [str(value).strip() for row in read_rows(folder.place / name) for value in _values_of(row)]
    try:
        text = folder.read(name).decode("utf-8-sig")
    except Refused as error:
        raise ConfigError(str(error)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{folder.at(name)}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    lines = [line.strip() for line in split_lines(text)]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _values_of(row: Row | Rejection) -> Iterable[Any]:
    """Return the values of a row; raises ConfigError for one that cannot be read, whose number others would get."""
    if isinstance(row, Rejection):
        raise ConfigError(f"{row.file}:{row.line}: {row.message}")
    return row.values.values()


def _beside(folder: Folder) -> dict[str, str]:
    """By image the file that tells its prompt: the .txt before the .json, whose other fields nobody needs."""
    names = set(folder.names)
    both = {
        image: [f"{PurePosixPath(image).with_suffix(ending)}" for ending in (".txt", ".json")]
        for image in folder.images
    }
    return {image: next(name for name in two if name in names) for image, two in both.items() if names & set(two)}


def _read_beside(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    beside = _beside(folder)
    for image in folder.images:
        if image not in beside:
            message = f"no .txt or .json of its name tells its prompt; write {PurePosixPath(image).stem}.txt"
            yield folder.reject_without_prompt(image, message)
    for (image, name), content in zip(beside.items(), folder.read_all(list(beside.values())), strict=True):
        try:
            if isinstance(content, Refused):
                raise content
            ending = PurePosixPath(name).suffix
            yield DescribedImage(
                image, _values_beside(name, content), f"the {ending} beside each image", named=ending == ".json"
            )
        except Refused as refused:
            yield refused.at(folder.at(name), generator=folder.generator(image))


def _values_beside(name: str, content: bytes) -> dict[str, Any]:
    if name.endswith(".json"):
        return parse_object(content)
    try:
        return {"prompt": content.decode("utf-8-sig").strip()}
    except UnicodeDecodeError as error:
        raise Refused("not_utf8", f"it is not UTF-8 at byte {error.start}; save it as UTF-8") from error


def _prompt_of(image: str) -> str:
    """Return the prompt in an image's name, or else in that of its folder within a generator's; empty if none is."""
    path = PurePosixPath(image)
    words = _words(NUMBERED.sub("", path.stem))
    if _is_prompt(words):
        return words
    words = _words(path.parts[-2]) if len(path.parts) > 2 else ""
    return words if _is_prompt(words) and len(words.split()) >= MIN_FOLDER_WORDS else ""


def _words(name: str) -> str:
    """Return the words of a name; underscores are spaces if there are no others."""
    return (name if " " in name else name.replace("_", " ")).strip()


def _is_prompt(text: str) -> bool:
    """At least two words: `image_001` and `00001` tell no prompt."""
    return len(WORDS.findall(text)) > 1


def _images_named_by_prompt(folder: Folder) -> list[str]:
    """The images whose names, or their folders', could be their prompts."""
    return [image for image in folder.images if _prompt_of(image) and not is_contact_sheet(image)]


def _are_prompts(folder: Folder) -> bool:
    """Whether the names may be taken for prompts by themselves: no table lies there that could tell other ones, and the
    names of each generator differ by more than a number, as `sdxl_turbo_0001.png` and `sdxl_turbo_0002.png` do not.
    """
    prompts: dict[str, set[str]] = {}
    for image in _images_named_by_prompt(folder):
        prompts.setdefault(folder.generator(image), set()).add(_prompt_of(image))
    tables = any(name.lower().endswith(TABLES) for name in folder.names)
    return not tables and bool(prompts) and all(len(different) > 1 for different in prompts.values())


def _read_ids(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    """Describe images by the ids of prompts in their names; a name that contains none is taken for an id."""
    rows, columns = folder.prompts, ("prompt_id", LINE)
    asked = (match_rows(folder.images, rows, NAMES_OF_IDS, column, folder.generator) for column in columns)
    match = next(filter(None, asked), None)
    if match is None:
        source = "the images' names, which are ids"
    elif match.column == LINE:
        source = "the lines of the prompts file, by the numbers of images"
    else:
        source = f"the ids in the {match.way}"
    generators = match.name_generators(folder.own_generator) if match else {}
    for image in folder.images:
        own = match.rows.get(image) if match else None
        prompt_id = own.values["prompt_id"] if own else PurePosixPath(image).stem
        generator = generators.get(image)
        named_by = "the images' names" if generator else ""
        yield DescribedImage(image, {"prompt_id": prompt_id}, source, generator=generator, named_by=named_by)


def list_rows(folder: Folder, lines: Sequence[str], url: str) -> list[Row]:
    """Return the prompts of a list as rows with their ids, and with the numbers that images may have."""
    numbers = image_numbers([image for image in folder.images if not is_contact_sheet(image)])
    first = first_number(numbers, len(lines), url)
    values = ({"prompt_id": text_id(line), LINE: str(number)} for number, line in enumerate(lines, first))
    return [Row(place, each) for place, each in enumerate(values, start=1)]


def _read_names(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    for image in folder.images:
        prompt = _prompt_of(image)
        if prompt and not is_contact_sheet(image):
            yield DescribedImage(image, {"prompt": prompt}, "the images' names")
        else:
            message = "its name has no prompt; write prompts.txt, a line for each image, or a table (docs/ingest.md)"
            yield folder.reject_without_prompt(image, message)


LAYOUTS = (
    Layout(
        name="tables",
        looks="a metadata.jsonl or metadata.csv, with the names of image files or beside those of one prompt, or "
        "another CSV or JSON Lines file with columns file and prompt",
        files=_telling_tables,
        read=_read_tables,
    ),
    Layout(
        name="list",
        looks=f"a {LIST}, with a prompt a line, and the numbers of lines in the images' names",
        files=_lists,
        read=_read_lists,
    ),
    Layout(
        name="beside",
        looks="a .txt or .json of its name beside each image",
        files=lambda folder: _beside(folder).values(),
        read=_read_beside,
    ),
    Layout(
        name="names",
        looks="prompts as the images' names, such as a_red_cube_000.png",
        files=_images_named_by_prompt,
        read=_read_names,
    ),
    Layout(
        name="ids",
        looks="images",
        files=lambda folder: folder.images,
        read=_read_ids,
    ),
)


class ReadFolder(NamedTuple):
    """A folder as it is read."""

    rows: Iterator[DescribedImage | Rejection]
    """Every image with what is told of it, or why it is not taken."""
    passed_over: list[str]
    """The files that are neither images nor read for them."""


def read_layout(folder: Folder, prompts_from: PromptsFrom | None) -> ReadFolder:
    """Reads a folder as it is laid out; raises ConfigError for one without images, or of no known layout."""
    if not folder.images:
        kinds = count_suffixes(folder.names)
        raise ConfigError(f"images {folder.place.url}: expected image files, found {kinds or 'none'}")
    layout = _layout(folder, prompts_from)
    read = {*folder.images, *folder.source_paths, *folder.foreign, *layout.files(folder)}
    others = [name for name in (*folder.names, *folder.badly_named) if name not in read and not _is_image_path(name)]
    return ReadFolder(_rows(folder, layout), others)


def _rows(folder: Folder, layout: Layout) -> Iterator[DescribedImage | Rejection]:
    described: set[str] = set()
    for each in layout.read(folder):
        if isinstance(each, DescribedImage):
            described.add(each.image)
        yield each
    left_out = {
        **dict.fromkeys(folder.source_paths, "source of an edit"),
        **dict.fromkeys(folder.hidden, "hidden"),
        **folder.outside,
    }
    yield from (folder.skip(image, reason) for image, reason in left_out.items() if image not in described)
    for image in filter(_is_image_path, folder.badly_named):
        yield folder.reject(image, Refused("not_utf8", "the file's name is not UTF-8; rename it"))
    for image in folder.foreign:
        try:
            refuse_foreign(image)
        except Refused as refused:
            yield folder.reject(image, refused)


def _layout(folder: Folder, prompts_from: PromptsFrom | None) -> Layout:
    for layout in LAYOUTS:
        if prompts_from in (None, layout.name) and layout.files(folder):
            if prompts_from is None and (layout.name == "ids" or (layout.name == "names" and not _are_prompts(folder))):
                continue
            return layout
    if prompts_from is not None:
        looks = next(layout.looks for layout in LAYOUTS if layout.name == prompts_from)
        raise ConfigError(f"images {folder.place.url}: prompts_from={prompts_from} expects {looks}; found none")
    raise ConfigError(
        f"images {folder.place.url}: nothing tells the prompts of its {len(folder.images)} images.{_hints(folder)} "
        "Add a table images.csv with the columns file, prompt and generator; or prompts.txt with a prompt a line, for "
        "images that are numbered; or a .txt beside each image (docs/ingest.md)"
    )


def _hints(folder: Folder) -> str:
    """Return the files and columns that could contain the prompts, each with the command or option that reads it."""
    hints = [_hint_of(folder, table) for table in all_tables(folder)[:1]]
    others = [folder.at(name) for name in folder.names if name.lower().endswith(TABLES)]
    if not hints and (prompts := next(iter(others or _prompts_beside(folder)), None)):
        command = shlex.join(["python", "-m", "jobs.score", f"images={folder.place.url}", f"prompts={prompts}"])
        hints.append(f" If the ids or numbers of {prompts} are in their names: {command}.")
    if images := _images_named_by_prompt(folder):
        hints.append(f" prompts_from=names takes the images' names, such as {_prompt_of(images[0])!r}.")
    return "".join(hints)


def _prompts_beside(folder: Folder) -> list[str]:
    """Return the files next to the folder that are named like prompt files."""
    with suppress(ConfigError), readable_errors(folder.place.parent, "images"):
        names = sorted(name for name, entry in folder.place.parent.list().items() if entry.type == "file")
        return [f"{folder.place.parent.url}/{name}" for name in names if PROMPTS_FILE.fullmatch(name)]
    return []


def _hint_of(folder: Folder, table: str) -> str:
    """How a table that could tell the prompts is taken, or why it is not."""
    try:
        columns = ", ".join(column_names(folder.place / table))
    except ConfigError as error:
        return f" {error}."
    return (
        f" {table} has the columns {columns}, and none whose values are in the images' names, such as "
        f"{folder.images[0]}: name the column of files or ids by columns.image=NAME or columns.prompt_id=NAME, and "
        "that of prompts by columns.prompt=NAME."
    )


NAMES = InputColumnsConfig(image="file", prompt="prompt", prompt_id="prompt_id", generator="generator", skills="skills")


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderTable(Table):
    """What the layout of a folder tells of its images; no further columns, for what stands beside is of no one form."""

    columns: InputColumnsConfig
    prompts_from: PromptsFrom | None = None
    inside: str | None = None
    prompts: Sequence[Row] = ()
    """As of a Folder."""
    _seen: SeenOrigins = field(default_factory=SeenOrigins)
    _passed_over: list[str] = field(default_factory=list)
    _listed: list[Folder] = field(default_factory=list)
    """The folder, from when its columns are asked for until its rows are."""
    _sources: SeenSources = field(default_factory=SeenSources)
    _warnings: dict[str, None] = field(default_factory=dict)

    @property
    def files(self) -> list[SourceFile]:
        """None that must stay as it is: a folder grows."""
        return []

    def names(self, config: IngestConfig) -> InputColumnsConfig:
        """Those of the values that `rows` gives."""
        self._listed[:] = [self._list()]
        return replace(NAMES, source="source" if self._listed[0].source_paths or self.columns.source else None)

    def _list(self) -> Folder:
        return replace(list_images(self.place, columns=self.columns).inside(self.inside), prompts=self.prompts)

    def origins(self, config: IngestConfig) -> Origins:
        """What told the prompts and the generators of the rows that were read."""
        return self._seen.origins(config.generator)._replace(
            passed_over=pass_over(self._passed_over), sources=str(self._sources), warnings=list(self._warnings)
        )

    def source(self, row: Row) -> tuple[str, int | None]:
        """The image file of a row."""
        return f"{self.url}/{row.values['file']}", None

    def rows(self, image: str) -> Iterator[Row | Rejection]:
        """Every image, by the usual names of columns; raises ConfigError for a folder of no known layout."""
        folder = self._listed.pop() if self._listed else self._list()
        told_rows, passed_over = read_layout(folder, self.prompts_from)
        self._passed_over[:] = passed_over
        for number, told in enumerate(told_rows, start=1):
            yield Row(number, self._values(told, folder)) if isinstance(told, DescribedImage) else told
        self._warnings.update(folder.warnings)

    def _values(self, told: DescribedImage, folder: Folder) -> dict[str, Any]:
        names = find_names(told.values, self.columns)
        roles = {"prompt": names.prompt, "prompt_id": names.prompt_id, "skills": names.skills}
        values = {role: told.values[name] for role, name in roles.items() if name is not None}
        named = told.values.get(names.generator) if names.generator is not None else None
        self._note(told, names)
        values["source"] = self._source(told, names, folder)
        return {"file": told.image, "generator": named or told.generator or folder.generator(told.image), **values}

    def _source(self, told: DescribedImage, names: InputColumnsConfig, folder: Folder) -> Any:
        """What an edit started from: as its row says, or the one image of its name in a folder of sources."""
        if names.source is not None:
            self._sources.columns[f"the column {names.source!r} of {told.source}"] = None
            return told.values[names.source]
        sources = folder.sources(told.image)
        self._sources.note(told.image, sources)
        return sources[0] if len(sources) == 1 else None

    def _note(self, told: DescribedImage, names: InputColumnsConfig) -> None:
        column = f"the column {names.prompt or names.prompt_id!r} of {told.source}"
        named = names.generator is not None and told.values.get(names.generator)
        whose = f"the column {names.generator!r} of {told.source}" if named else told.named_by or "the folders' names"
        read = (names.image, names.prompt, names.prompt_id, names.generator, names.skills, names.source)
        of_images = () if names.image else _file_name_columns(told.values, self.columns)
        unread = [name for name in told.values if name not in (*read, *of_images)] if told.named else ()
        self._seen.note(column if told.named else told.source, whose, unread)
