"""Images of the rows of a table that names no paths: those whose names contain the value of one of its columns.

A value may be the file's path or name, with or without the ending and the numbers of samples behind it (`p7.png`,
`p7_0.png` and `p7_seed3.png` are of p7), the number in it, or the name of a folder above it. One column and one way are
taken for a whole table: those that match the most images.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from unicodedata import normalize

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.tables import Row
from plumbline.pipelines.ingest.image_folders import NUMBERED, Folder
from plumbline.pipelines.ingest.list_layout import image_numbers
from plumbline.pipelines.sources.input_columns import InputColumnsConfig

ID_COLUMNS = ("prompt_id", "id", "item_id", "index", "idx", "number", "unnamed: 0", "")
"""Names of columns of ids, in any case; the last two are pandas' index."""
FOLDERS, NUMBERS = "folders' names", "images' numbers"


class RowMatch(NamedTuple):
    """The rows that images belong to."""

    column: str
    """The column whose values are in the images' names."""
    way: str
    """The part of the name that contains the values, in words."""
    rows: Mapping[str, Row]
    """The row of each image; images with no row, or with rows of several prompts, are left out."""
    all_rows: Sequence[Row]
    """All rows of the table, also those without an image."""
    generators_in_names: Mapping[str, str]
    """The folder's generators by image, if names of images contain them."""

    def name_generators(self, default: str) -> Mapping[str, str]:
        """Return each image's generator if the first folder of its path, or its name, shows the prompt too; else none.

        In folders of prompts they are the folders within, or the images' names if images of several prompts share any;
        else the default.
        """
        if self.way == NUMBERS:
            return self.generators_in_names
        paths = {image: PurePosixPath(image) for image in self.rows}
        ids = {_cell(row, self.column) for row in self.rows.values()}
        if self.way != FOLDERS or any(path.parts[0] not in ids for path in paths.values()):
            return {}
        own = {image: path.parts[1] if len(path.parts) > 2 else _stems(path)[-1] for image, path in paths.items()}
        shared = max(Counter(own.values()).values(), default=0) > 1
        named = shared and not any(name.isdecimal() for name in own.values())
        return own if named else dict.fromkeys(own, default)


class _ImageKeys:
    """The names of images by each way of matching, the likeliest first."""

    def __init__(self, images: Sequence[str], generators_in_names: Mapping[str, str]) -> None:
        self.images = images
        self.generators_in_names = generators_in_names
        self._paths = {image: PurePosixPath(normalize("NFC", image)) for image in images}

    @cached_property
    def names(self) -> Mapping[str, Sequence[str]]:
        return {image: [*_stems(path, str(path)), *_stems(path, path.name)] for image, path in self._paths.items()}

    @cached_property
    def folded(self) -> Mapping[str, Sequence[str]]:
        return {image: [name.casefold() for name in names] for image, names in self.names.items()}

    @cached_property
    def numbers(self) -> Mapping[str, Sequence[str]]:
        numbers = image_numbers(self.images, self.generators_in_names)
        return {image: [] if isinstance(number, str) else [str(number)] for image, number in numbers.items()}

    @cached_property
    def folders(self) -> Mapping[str, Sequence[str]]:
        return {image: [folder.name for folder in path.parents] for image, path in self._paths.items()}

    def ways(self) -> Iterator[tuple[str, Mapping[str, Sequence[str]], Callable[[str], str]]]:
        """Yield each way in words, the names of images by it, and a function that turns a cell into such a name."""
        yield "images' names", self.names, str
        yield "images' names", self.folded, str.casefold
        yield NUMBERS, self.numbers, lambda text: str(int(text)) if _is_number(text) else text
        yield FOLDERS, self.folders, str


def match_rows(
    images: Sequence[str],
    rows: Sequence[Row],
    names: InputColumnsConfig,
    asked: str | None,
    folder: Folder,
) -> RowMatch | None:
    """Return the rows that images belong to; None if no column matches.

    `names` has the table's columns by role; rows that name a generator belong to its images alone. If a column was
    `asked` for, only that one is matched. Raises ConfigError if two columns match equally many images and disagree.
    """
    columns = [asked] if asked else _columns(rows, names)
    prompts = [_cell(row, names.prompt or "") for row in rows]
    keys = _ImageKeys(images, folder.generators_in_names(prompts))
    narrowed = _ByGenerator(images, rows, names, folder.generator)
    found = [match for column in columns for match in _matches(keys, rows, column, narrowed)]
    best = max(found, key=lambda match: len(match.rows), default=None)
    if best is None or _is_id(best.column) or best.column in (asked, names.image):
        return best
    rival = next((other for other in found if len(other.rows) == len(best.rows) and other.rows != best.rows), None)
    if rival is not None and rival.column != best.column:
        raise ConfigError(
            f"the columns {best.column!r} and {rival.column!r} are both in the images' names, and disagree; choose one "
            f"by columns.prompt_id={best.column} or columns.prompt_id={rival.column}"
        )
    return best


def _is_id(column: str) -> bool:
    return column.lower() in ID_COLUMNS


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _stems(path: PurePosixPath, name: str | None = None) -> list[str]:
    """Return a name, the same without its ending, and without each number of a sample behind it."""
    found = [name or path.name]
    stem = found[0].removesuffix(path.suffix)
    while stem and stem not in found:
        found.append(stem)
        stem = NUMBERED.sub("", stem)
    return found


def _columns(rows: Sequence[Row], names: InputColumnsConfig) -> list[str]:
    """Return the columns that may match, image files and ids first; a column of numbers must be named like ids."""
    present = dict.fromkeys(name for row in rows for name in row.values)
    others = [name for name in present if name not in (names.prompt, names.generator, names.skills, names.source)]
    texts = [name for name in others if not all(_is_number(text) for row in rows if (text := _cell(row, name)))]
    ids = sorted(filter(_is_id, others), key=lambda name: ID_COLUMNS.index(name.lower()))
    return list(dict.fromkeys([*([names.image] if names.image else []), *ids, *texts]))


def _cell(row: Row, column: str) -> str:
    """Return the text or whole number in a cell; empty for anything else."""
    value: Any = row.values.get(column)
    return normalize("NFC", str(value).strip()) if isinstance(value, str | int) and value is not True else ""


class _ByGenerator:
    """Chooses the row that an image belongs to."""

    def __init__(
        self,
        images: Sequence[str],
        rows: Sequence[Row],
        names: InputColumnsConfig,
        generator_of: Callable[[str], str],
    ) -> None:
        self._names = names
        self._generator_of = generator_of
        named = {_cell(row, names.generator) for row in rows} if names.generator else set()
        self._both = bool(named & {generator_of(image) for image in images})

    def choose(self, image: str, rows: Sequence[Row]) -> Row | None:
        """Return the row of an image's generator; None without one, or if there are several prompts."""
        if self._both and self._names.generator:
            whose = self._generator_of(image)
            rows = [row for row in rows if _cell(row, self._names.generator) == whose]
        prompts = {
            (row.values.get(self._names.prompt or ""), row.values.get(self._names.prompt_id or "")) for row in rows
        }
        return rows[0] if len(prompts) == 1 else None


def _matches(keys: _ImageKeys, rows: Sequence[Row], column: str, whose: _ByGenerator) -> Iterator[RowMatch]:
    """Yield the match of a column by each way.

    Values that are all numbers must be in the names of all images, and those of a column that is not called ids in half
    of them. Otherwise they may count from another number, or be in a name by accident.
    """
    numeric = all(_is_number(text) for row in rows if (text := _cell(row, column)))
    least = len(keys.images) if numeric else 1 if _is_id(column) else (len(keys.images) + 1) // 2
    for way, names, as_name in keys.ways():
        of_value: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            if text := _cell(row, column):
                of_value[as_name(text)].append(row)
        if not any(name in of_value for each in names.values() for name in each):
            continue
        matched = {}
        for image, each in names.items():
            rows_of_image = next((of_value[name] for name in each if name in of_value), [])
            if (chosen := whose.choose(image, rows_of_image)) is not None:
                matched[image] = chosen
        if len(matched) >= max(least, 1):
            yield RowMatch(column, way, matched, rows, keys.generators_in_names)
