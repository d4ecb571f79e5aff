"""Folders whose tables describe their images: a row belongs to images that it names, or whose names contain its id."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import plural
from plumbline.pipelines.base.tables import Refused, Rejection, Row
from plumbline.pipelines.ingest.image_folders import RESULTS, DescribedImage, Folder, is_contact_sheet, is_image_path
from plumbline.pipelines.ingest.input_rows import EDIT_RESULTS, EDIT_SOURCES
from plumbline.pipelines.ingest.row_matching import RowMatch, match_rows
from plumbline.pipelines.ingest.typed_tables import column_names, read_rows
from plumbline.pipelines.sources.input_columns import InputColumnsConfig, find_names

METADATA = ("metadata.jsonl", "metadata.csv")
FILE_NAMES = re.compile(r"(?:.+_)?file_names|.+_file_name")
"""Hugging Face's columns of image files, besides `file_name`."""
TARGETS = frozenset({*EDIT_RESULTS, *RESULTS, "target", "target_image", "image"})
"""Words that name the column of an image, but not a generator."""
UNSCORED = frozenset({*EDIT_SOURCES, "mask"})
"""Words that name the column of an edit's source or mask."""


def find_tables(folder: Folder) -> list[str]:
    """Return the tables that describe images.

    They are metadata files, and others with columns of image files and prompts, or of prompts and of ids in the images'
    names.
    """
    return [name for name in folder.text_tables if _is_metadata(name) or _describes_images(folder, name)]


def _is_metadata(table: str) -> bool:
    return PurePosixPath(table).name.lower() in METADATA


def _describes_images(folder: Folder, table: str) -> bool:
    try:
        columns = column_names(folder.place / table)
    except ConfigError:  # reported if nothing else contains the prompts
        return False
    names = find_names(columns, folder.columns)
    if names.image is not None or file_name_columns(columns, folder.columns):
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
        return match_rows(inner or images, rows, names, folder.columns.prompt_id, folder)
    except ConfigError as error:
        raise ConfigError(f"{folder.at(table)}: {error}") from error


def read_tables(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    """Describe images by the rows that name their paths, then those whose names contain a row's id, then the others.

    The others are described by the nearest metadata file whose row names none.
    """
    left = dict.fromkeys(folder.images)
    nameless: dict[str, _Nameless] = {}
    matches: dict[str, RowMatch] = {}
    tables = find_tables(folder)
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
            named_by = "the images' names" if generator else ""
            yield DescribedImage(image, values, source, True, generator, named_by, folder.at(table), row.line)
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
    if len(rows) == 1 and not any(isinstance(value, str) and is_image_path(value) for value in values):
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
            source, at = PurePosixPath(table).name, folder.at(table)
            yield DescribedImage(image, _add_skills(row.values), source, named=True, file=at, line=row.line)
    for table, row, _ in (nameless[base] for base in nameless if base not in used):
        message = "it names no image, and there is none in its folder; generate the image"
        yield Refused("missing_image", message).at(folder.at(table), row.line)


def _folders_above(image: str) -> list[str]:
    """Return the folders that contain an image, the nearest first and `` last."""
    return ["" if str(parent) == "." else str(parent) for parent in PurePosixPath(image).parents]


def _reject_without_image(folder: Folder, table: str, row: Row) -> Rejection:
    return Refused("missing_image", "the row names no image file; fill its path in").at(folder.at(table), row.line)


class _ImageCell(NamedTuple):
    """A cell of a table that names an image."""

    path: Any
    generator: str | None = None
    """The image's generator, if the column's name contains it."""
    unread: str = ""
    """The column, if it names no image that is scored, but its source or mask."""


def file_name_columns(available: Iterable[str], columns: InputColumnsConfig) -> list[str]:
    """Return Hugging Face's columns of image files other than `file_name`, unless another column was chosen."""
    return [] if columns.image else [name for name in available if FILE_NAMES.fullmatch(name)]


def _image_cells(values: Mapping[str, Any], columns: InputColumnsConfig) -> list[_ImageCell] | None:
    """Return the cells of a row that name images; None if no column is known to name any.

    Of several columns such as `flux_file_name` and `sdxl_file_name`, each is named after its generator.
    """
    image = find_names(values, columns).image
    others = file_name_columns(values, columns)
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
            source, at = PurePosixPath(table).name, folder.at(table)
            yield DescribedImage(image, values, source, True, generator, named_by, at, row.line)
        elif image in folder.known_images:
            yield folder.skip(image, f"named by the column {unread!r}; columns.image={unread} takes it")


def _find_image(folder: Folder, named: str, table: str) -> str:
    """Return the image of a path relative to the table's folder, to the folder of images, or to its parent."""
    named = named.removeprefix(f"{folder.place.url.rstrip('/')}/")
    base = table.rpartition("/")[0]
    below = str(PurePosixPath(named))
    own_name = PurePosixPath(folder.place.path).name
    paths = (str(PurePosixPath(base) / named), below, below.removeprefix(f"{own_name}/"))
    return next((found for path in paths if (found := folder.find(path)) is not None), paths[0])


def _add_skills(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values with `skills`; GenEval calls them tags."""
    return values if "skills" in values or not values.get("tag") else {**values, "skills": [values["tag"]]}
