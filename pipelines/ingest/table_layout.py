"""Folders with tables that describe images: a row names the images, or the images' names contain the row's id.

An image's name contains a value if the value is the file's path or name, with or without the extension and sample
numbers at the end (`p7.png`, `p7_0.png` and `p7_seed3.png` all contain p7), or the number in the name, or the name of a
folder above the file. All rows of a table are matched in the same way and by the same column: the combination that
matches the most images.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from unicodedata import normalize

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import format_quantity
from plumbline.pipelines.base.tables import Refused, Rejection, Row
from plumbline.pipelines.ingest.image_folders import (
    NUMBER_SUFFIX_PATTERN,
    RESULT_FOLDERS,
    DescribedImage,
    Folder,
    is_contact_sheet,
    is_image,
)
from plumbline.pipelines.ingest.input_rows import EDIT_RESULT_COLUMNS, EDIT_SOURCE_COLUMNS
from plumbline.pipelines.ingest.list_layout import find_numbers
from plumbline.pipelines.ingest.text_tables import read_column_names, read_rows
from plumbline.pipelines.sources.input_columns import InputColumnsConfig, find_column_names

METADATA_FILES = ("metadata.jsonl", "metadata.csv")
FILE_NAMES_PATTERN = re.compile(r"(?:.+_)?file_names|.+_file_name")
"""Hugging Face's names for columns of image files, other than `file_name`."""
RESULT_WORDS = frozenset({*EDIT_RESULT_COLUMNS, *RESULT_FOLDERS, "target", "target_image", "image"})
"""Words in a column's name that refer to the image itself and are not names of generators."""
SOURCE_WORDS = frozenset({*EDIT_SOURCE_COLUMNS, "mask"})
"""Words in a column's name that refer to the source or mask of an edit."""
ID_COLUMNS = ("prompt_id", "id", "item_id", "index", "idx", "number", "unnamed: 0", "")
"""Names of id columns, in any case; the last two are pandas' index."""
FILE_PARTS, FOLDERS, NUMBERS = "images' names", "folders' names", "images' numbers"

MatchMethod = tuple[str, Mapping[str, Sequence[str]], Callable[[str], str]]
"""A way to match rows to images: the part of the path that is compared, the possible values of this part for each
image, and a function that converts a cell to such a value.
"""


class RowMatch(NamedTuple):
    """Result of matching the rows of a table to images in one way."""

    column: str
    """The column whose values occur in the image names."""
    path_part: str
    """Description of the part of the path that contains the values: FILE_PARTS, FOLDERS or NUMBERS."""
    rows: Mapping[str, Row]
    """The row of each image; images that match no row, or rows with different prompts, are left out."""
    all_rows: Sequence[Row]
    """All rows of the table, including rows without an image."""
    generators_in_names: Mapping[str, str]
    """Generator of each image in the folder, if image names contain the generators."""

    def find_generators(self, default: str) -> Mapping[str, str]:
        """Return the generator of each image.

        There are three cases:
        - Images were matched by number: return `generators_in_names`.
        - Images were matched by folder, and the first folder of every image is a value of `column`: the generator is
          the name of the subfolder or, without a subfolder, of the file. If no two images share a name, or if a name
          is a number, all images have the default generator.
        - In all other cases, the result is empty.
        """
        if self.path_part == NUMBERS:
            return self.generators_in_names
        paths = {image: PurePosixPath(image) for image in self.rows}
        ids = {_get_text(row, self.column) for row in self.rows.values()}
        if self.path_part != FOLDERS or any(path.parts[0] not in ids for path in paths.values()):
            return {}
        own = {image: path.parts[1] if len(path.parts) > 2 else _list_stems(path)[-1] for image, path in paths.items()}
        shared = max(Counter(own.values()).values(), default=0) > 1
        are_generators = shared and not any(name.isdecimal() for name in own.values())
        return own if are_generators else dict.fromkeys(own, default)


def find_tables(folder: Folder) -> list[str]:
    """Return the tables that describe images.

    These are metadata files, and tables with columns for image files and prompts, or for prompts and ids that occur in
    image names.
    """
    return [name for name in folder.text_tables if _is_metadata(name) or _describes_images(folder, name)]


def _is_metadata(table: str) -> bool:
    return PurePosixPath(table).name.lower() in METADATA_FILES


def _describes_images(folder: Folder, table: str) -> bool:
    try:
        columns = read_column_names(folder.place / table)
    except ConfigError:  # reported if nothing else contains the prompts
        return False
    names = find_column_names(columns, folder.columns)
    if names.image is not None or list_file_name_columns(columns, folder.columns):
        return (names.prompt or names.prompt_id) is not None
    return names.prompt is not None and _match_table(folder, table) is not None


@lru_cache(maxsize=8)
def _match_table(folder: Folder, table: str) -> RowMatch | None:
    rows = [row for row in read_rows(folder.place / table) if isinstance(row, Row)]
    return _match_own_images(folder, table, rows)


def _match_own_images(folder: Folder, table: str, rows: Sequence[Row]) -> RowMatch | None:
    """Match rows to the images in their table's folder, or to all images if that folder has none."""
    names = find_column_names(dict.fromkeys(name for row in rows for name in row.values), folder.columns)
    if names.prompt is None or (len(rows) == 1 and _is_metadata(table)):
        return None
    base = table.rpartition("/")[0]
    images = [image for image in folder.images if not is_contact_sheet(image)]
    inner = [image for image in images if base in _list_folders_above(image)]
    try:
        return match_rows(inner or images, rows, names, folder.columns.prompt_id, folder)
    except ConfigError as error:
        raise ConfigError(f"{folder.get_url(table)}: {error}") from error


def read_tables(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    """Match images to rows that contain their paths, then to rows whose ids are in the names of images or folders.

    Each remaining image is matched to the nearest metadata file that has a single row, without an image path. Images
    without a row become rejections. Rows without an image become rejections too, or a warning if other rows of their
    table were matched by id.
    """
    left = dict.fromkeys(folder.images)
    unlinked: dict[str, _UnlinkedTable] = {}
    """Metadata files whose rows name no image, keyed by the folder of the file."""
    matches: dict[str, RowMatch] = {}
    tables = find_tables(folder)
    for table in tables:
        unnamed: list[Row] = []
        names_files = False
        for row in read_rows(folder.place / table):
            if isinstance(row, Rejection):
                yield row
                continue
            names_files = names_files or any(
                _find_image(folder, cell.path, table) in folder.referable_images
                for cell in _find_image_cells(row.values, folder.columns) or ()
                if isinstance(cell.path, str) and cell.path
            )
            unnamed.append(row)
            if names_files:  # before such a row, the table may still turn out to contain ids
                for waiting in unnamed:
                    yield from _describe_named_images(folder, waiting, table, left)
                unnamed = []
        if unnamed and (match := _match_own_images(folder, table, unnamed)) is not None:
            matches[table] = match
            continue
        base = table.rpartition("/")[0]
        has_no_column = all(_find_image_cells(row.values, folder.columns) is None for row in unnamed)
        if unnamed and has_no_column and _is_metadata(table) and base not in unlinked:
            unlinked[base] = _UnlinkedTable(table, unnamed[0], _explain_unusable_rows(table, unnamed))
        else:
            for row in unnamed:
                yield from _describe_named_images(folder, row, table, left)
    yield from _describe_matches(folder, left, matches)
    yield from _describe_by_nearest_table(folder, list(left), unlinked, tables[0])


def _describe_named_images(
    folder: Folder, row: Row, table: str, left: dict[str, None]
) -> Iterator[DescribedImage | Rejection]:
    """Yield the images that a row names, with the row's values, and remove these images from `left`."""
    cells = _find_image_cells(row.values, folder.columns) or []
    paths = [cell for cell in cells if isinstance(cell.path, str) and cell.path]
    name, url = PurePosixPath(table).name, folder.get_url(table)
    if all(cell.unscored_column for cell in paths):
        yield Refused("missing_image", "the row names no image file; fill its path in").to_rejection(url, row.line)
    for path, generator, unscored_column in paths:
        image = _find_image(folder, path, table)
        if image in folder.outside:
            continue
        if not unscored_column:
            left.pop(image, None)
            values, origin = _add_skills(row.values), f"the columns' names in {name}"
            yield DescribedImage(image, values, name, True, generator, origin, url, row.line)
        elif image in folder.referable_images:
            left.pop(image, None)
            reason = f"named by the column {unscored_column!r}; columns.image={unscored_column} ingests it"
            yield folder.skip(image, reason)


def _describe_matches(
    folder: Folder, left: dict[str, None], matches: Mapping[str, RowMatch]
) -> Iterator[DescribedImage | Rejection]:
    """Yield the images whose names contain the id of a row, with the values of this row, and remove them from `left`.

    If several tables match an image, the nearest table is used, or else the table that matches the most images.
    """
    for table, match in sorted(matches.items(), key=lambda each: (-each[0].count("/"), -len(each[1].rows))):
        origin = f"{PurePosixPath(table).name}, by {match.column!r} in the {match.path_part}"
        generators = match.find_generators(folder.own_generator)
        unread = () if match.column == "prompt_id" else (match.column,)
        for image, row in match.rows.items():
            if image in left:
                left.pop(image)
                values = {name: value for name, value in _add_skills(row.values).items() if name not in unread}
                yield DescribedImage(
                    image,
                    values,
                    origin,
                    has_columns=True,
                    generator=generators.get(image),
                    file=folder.get_url(table),
                    line=row.line,
                )
        matched = {id(row) for row in match.rows.values()}
        if unused := [row for row in match.all_rows if id(row) not in matched]:
            example = f"{match.column} {unused[0].values.get(match.column)!r}"
            folder.warnings[
                f"{format_quantity(len(unused), 'row')} of {table} belong to no image, such as {example}"
            ] = None


class _UnlinkedTable(NamedTuple):
    """A metadata file whose rows name no image."""

    table: str
    row: Row
    """The table's first row."""
    problem: str
    """Reason why the row does not describe all images in its folder; empty if it does."""


def _explain_unusable_rows(table: str, rows: Sequence[Row]) -> str:
    """Return the reason why rows that name no image cannot describe all images of a folder; empty if they can."""
    values = [value for row in rows for value in row.values.values()]
    if len(rows) == 1 and not any(isinstance(value, str) and is_image(value) for value in values):
        return ""
    columns = ", ".join(dict.fromkeys(name for row in rows for name in row.values))
    return (
        f"{table} has {format_quantity(len(rows), 'row')} and no known column of image files (found {columns}); "
        "set columns.image=NAME"
    )


def _describe_by_nearest_table(
    folder: Folder, images: Sequence[str], unlinked: Mapping[str, _UnlinkedTable], first_table: str
) -> Iterator[DescribedImage | Rejection]:
    """Match each image to the nearest metadata file that has a single row, without an image path.

    Reject each image without such a file, and the row of each such file that matches no image. Skip an image that lies
    next to the samples/ folder.
    """
    folders = {above for image in folder.images for above in _list_folders_above(image)}
    used: set[str] = set()
    for image in sorted(images):
        base = next((base for base in _list_folders_above(image) if base in unlinked), None)
        if base is None:
            message = f"no row in {PurePosixPath(first_table).name} has its prompt; add one"
            yield folder.reject_unprompted_image(image, message)
            continue
        used.add(base)
        table, row, problem = unlinked[base]
        samples = f"{base}/samples".removeprefix("/")
        if problem or is_contact_sheet(image):
            yield folder.reject_unprompted_image(image, problem)
        elif samples in folders and samples not in _list_folders_above(image):
            yield folder.skip(image, "next to samples/, which has the images of its prompt")
        else:
            name, url = PurePosixPath(table).name, folder.get_url(table)
            yield DescribedImage(image, _add_skills(row.values), name, has_columns=True, file=url, line=row.line)
    for table, row, _ in (unlinked[base] for base in unlinked if base not in used):
        message = "it names no image, and there is none in its folder; generate the image"
        yield Refused("missing_image", message).to_rejection(folder.get_url(table), row.line)


def _list_folders_above(image: str) -> list[str]:
    return ["" if str(parent) == "." else str(parent) for parent in PurePosixPath(image).parents]


class _ImageCell(NamedTuple):
    """A table cell that names an image."""

    path: Any
    generator: str | None = None
    """The generator of the image, if the name of the column contains it."""
    unscored_column: str = ""
    """Name of the column if its images are sources or masks of edits, which are not scored; otherwise empty."""


def list_file_name_columns(available: Iterable[str], columns: InputColumnsConfig) -> list[str]:
    """Return Hugging Face's image file columns other than `file_name`, unless the configuration names a column."""
    return [] if columns.image else [name for name in available if FILE_NAMES_PATTERN.fullmatch(name)]


def _find_image_cells(values: Mapping[str, Any], columns: InputColumnsConfig) -> list[_ImageCell] | None:
    """Return the cells of a row that name images; None if the row has no column of image files.

    If there are several columns such as `flux_file_name` and `sdxl_file_name`, each is named after its generator.
    """
    image = find_column_names(values, columns).image
    others = list_file_name_columns(values, columns)
    if image is None and not others:
        return None
    prefixes = {name: name.removesuffix("s").removesuffix("file_name").removesuffix("_") for name in others}
    scored = [name for name, prefix in prefixes.items() if prefix.lower() not in SOURCE_WORDS and image is None]
    cells = [_ImageCell(path) for path in _list_paths(values.get(image or ""))]
    for name, prefix in prefixes.items():
        generator = prefix if len(scored) > 1 and prefix and prefix.lower() not in RESULT_WORDS else None
        cells += [_ImageCell(path, generator, "" if name in scored else name) for path in _list_paths(values[name])]
    return cells


def _list_paths(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _find_image(folder: Folder, named: str, table: str) -> str:
    """Return the image at a path relative to the folder of the table, to the image folder or to its parent."""
    named = named.removeprefix(f"{folder.place.url.rstrip('/')}/")
    below = str(PurePosixPath(named))
    own_name = PurePosixPath(folder.place.path).name
    paths = (str(PurePosixPath(table).parent / named), below, below.removeprefix(f"{own_name}/"))
    return next((found for path in paths if (found := folder.find_image(path)) is not None), paths[0])


def _add_skills(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values; if they have a `tag` but no `skills`, as in GenEval, add the tag as the only skill."""
    return values if "skills" in values or not values.get("tag") else {**values, "skills": [values["tag"]]}


def _list_match_methods(images: Sequence[str], generators_in_names: Container[str]) -> list[MatchMethod]:
    paths = {image: PurePosixPath(normalize("NFC", image)) for image in images}
    stems = {image: [*_list_stems(path, str(path)), *_list_stems(path)] for image, path in paths.items()}
    folded = {image: [stem.casefold() for stem in own] for image, own in stems.items()}
    numbers = {
        image: [] if isinstance(number, str) else [str(number)]
        for image, number in find_numbers(images, generators_in_names).items()
    }
    folders = {image: [above.name for above in path.parents] for image, path in paths.items()}
    return [
        (FILE_PARTS, stems, str),
        (FILE_PARTS, folded, str.casefold),
        (NUMBERS, numbers, lambda text: str(int(text)) if _is_number(text) else text),
        (FOLDERS, folders, str),
    ]


def match_rows(
    images: Sequence[str],
    rows: Sequence[Row],
    names: InputColumnsConfig,
    only_column: str | None,
    folder: Folder,
) -> RowMatch | None:
    """Match images to rows; return None if no column matches.

    `names` are the table's columns by role. Rows that name a generator match only images of that generator. If
    `only_column` is set, no other column is tried. Raises ConfigError if two columns match the same number of images,
    but match them to different rows.
    """
    generators_in_names = folder.find_generators_in_names([_get_text(row, names.prompt or "") for row in rows])
    methods = _list_match_methods(images, generators_in_names)
    image_generators = {image: folder.get_generator(image) for image in images}
    named_generators = {_get_text(row, names.generator) for row in rows} if names.generator else set()
    by_generator = not named_generators.isdisjoint(image_generators.values())

    def choose(image: str, candidates: Sequence[Row]) -> Row | None:
        """Return a row of the image's generator; None if there are no such rows, or if their prompts differ."""
        if by_generator and names.generator:
            candidates = [row for row in candidates if _get_text(row, names.generator) == image_generators[image]]
        prompts = {(row.values.get(names.prompt or ""), row.values.get(names.prompt_id or "")) for row in candidates}
        return candidates[0] if len(prompts) == 1 else None

    matches: list[RowMatch] = []
    for column in [only_column] if only_column else _list_columns(rows, names):
        # If all values are numbers, every image name must contain one. For a column that is not named like an id, half
        # of the image names must. Otherwise the numbers may start elsewhere, or values may be in names by accident.
        texts = [(text, row) for row in rows if (text := _get_text(row, column))]
        numeric = all(_is_number(text) for text, _ in texts)
        least = len(images) if numeric else 1 if _is_id_column(column) else (len(images) + 1) // 2
        for path_part, names_by_image, as_name in methods:
            rows_by_name: dict[str, list[Row]] = defaultdict(list)
            for text, row in texts:
                rows_by_name[as_name(text)].append(row)
            matched = {}
            for image, own_names in names_by_image.items():
                found = next((rows_by_name[name] for name in own_names if name in rows_by_name), [])
                if (chosen := choose(image, found)) is not None:
                    matched[image] = chosen
            if len(matched) >= max(least, 1):
                matches.append(RowMatch(column, path_part, matched, rows, generators_in_names))
    best = max(matches, key=lambda match: len(match.rows), default=None)
    if best is None or _is_id_column(best.column) or best.column in (only_column, names.image):
        return best
    equal = (other for other in matches if len(other.rows) == len(best.rows) and other.rows != best.rows)
    rival = next(equal, None)
    if rival is not None and rival.column != best.column:
        raise ConfigError(
            f"the image names contain values of both columns {best.column!r} and {rival.column!r}, which disagree; set "
            f"columns.prompt_id={best.column} or columns.prompt_id={rival.column}"
        )
    return best


def _is_id_column(column: str) -> bool:
    return column.lower() in ID_COLUMNS


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _list_stems(path: PurePosixPath, name: str | None = None) -> list[str]:
    """Return the name, its stem, and the stem with one, two, ... trailing sample numbers removed."""
    found = [name or path.name]
    stem = found[0].removesuffix(path.suffix)
    while stem and stem not in found:
        found.append(stem)
        stem = NUMBER_SUFFIX_PATTERN.sub("", stem)
    return found


def _list_columns(rows: Sequence[Row], names: InputColumnsConfig) -> list[str]:
    """Return the columns to try, image files and ids first; a column of integers must be named like an id."""
    present = dict.fromkeys(name for row in rows for name in row.values)
    others = [name for name in present if name not in (names.prompt, names.generator, names.skills, names.source)]
    texts = [name for name in others if not all(_is_number(text) for row in rows if (text := _get_text(row, name)))]
    ids = sorted(filter(_is_id_column, others), key=lambda name: ID_COLUMNS.index(name.lower()))
    return list(dict.fromkeys([*([names.image] if names.image else []), *ids, *texts]))


def _get_text(row: Row, column: str) -> str:
    value: Any = row.values.get(column)
    return normalize("NFC", str(value).strip()) if isinstance(value, str | int) and value is not True else ""
