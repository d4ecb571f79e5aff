"""Folders with a list of prompts: the number in an image's name is that of its line."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import plural
from plumbline.pipelines.base.tables import JSON_LINES, SEPARATORS, Refused, Rejection, Row, split_lines
from plumbline.pipelines.ingest.image_folders import DescribedImage, Folder, is_contact_sheet
from plumbline.pipelines.ingest.image_numbers import first_number, image_numbers
from plumbline.pipelines.ingest.table_layout import all_tables
from plumbline.pipelines.ingest.typed_tables import column_names, read_rows
from plumbline.pipelines.sources.input_columns import find_names

LIST = "prompts.txt"


def find_lists(folder: Folder) -> list[str]:
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


def read_lists(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    left = folder.images
    for name in find_lists(folder):
        base = name[: name.rfind("/") + 1]
        within = [image for image in left if image.startswith(base)]
        yield from describe_by_numbers(folder, _lines(folder, name), within, base)
        left = [image for image in left if not image.startswith(base)]
    for image in left:
        yield folder.reject_without_prompt(image, f"no {LIST} in its folder or above it; write one")


class Lines(NamedTuple):
    """A list of prompts."""

    name: str
    """The file's path below the folder of images, for messages."""
    url: str
    texts: Sequence[str]
    numbers: Sequence[int | None]
    """Number of each line in the file, from 1; None if unknown."""


def describe_by_numbers(
    folder: Folder, lines: Lines, images: Sequence[str], base: str = ""
) -> Iterator[DescribedImage | Rejection]:
    """Describe images by the lines of their numbers; `base` is the folder of the list, from which their paths count."""
    foreign = [image for image in folder.foreign if image.startswith(base)]
    numbered = [image.removeprefix(base) for image in (*images, *foreign) if not is_contact_sheet(image)]
    generators = folder.generators_in_names(lines.texts)
    numbers = image_numbers(numbered, {image.removeprefix(base) for image in generators if image.startswith(base)})
    first = first_number(numbers, len(lines.texts), lines.url)
    _warn_of_lines(folder, lines, numbers, first)
    source = f"the lines of {lines.name}, by the numbers of images"
    for image in images:
        number = numbers.get(image.removeprefix(base), "")
        if isinstance(number, str):
            yield folder.reject_without_prompt(image, number)
        elif not 0 <= number - first < len(lines.texts):
            message = f"{lines.url} has {len(lines.texts)} lines, from number {first}, and none of number {number}"
            yield folder.reject_without_prompt(image, f"{message}; add it, or number the image otherwise")
        elif not lines.texts[number - first].strip():
            refused = Refused("empty_prompt", f"the line is empty, and {image} has its number; write a prompt there")
            ids = {"generator": generators.get(image) or folder.generator(image), "image_id": image}
            yield refused.at(lines.url, lines.numbers[number - first], **ids)
        else:
            generator = generators.get(image)
            named_by = "the images' names" if generator else ""
            prompt = {"prompt": lines.texts[number - first]}
            yield DescribedImage(image, prompt, source, generator=generator, named_by=named_by)


def _warn_of_lines(folder: Folder, lines: Lines, numbers: Mapping[str, int | str], first: int) -> None:
    """Warn of lines after the highest number: the list may belong to other images, or contain more than prompts."""
    highest = max((number for number in numbers.values() if isinstance(number, int)), default=first - 1)
    n_lines = len(lines.texts)
    if (left := n_lines - (highest - first + 1)) > 0:
        problem = f"no image belongs to the last {plural(left, 'line')} of {lines.name}"
        folder.warnings[f"{problem}: it has {plural(n_lines, 'line')}, and images have numbers up to {highest}"] = None


def _lines(folder: Folder, name: str) -> Lines:
    """Return the prompts of a list; of a table with nothing else those of its rows."""
    if name.lower().endswith((*SEPARATORS, *JSON_LINES)):
        rows = [_readable(row) for row in read_rows(folder.place / name)]
        pairs = [(str(value).strip(), row.line) for row in rows for value in row.values.values()]
        return Lines(name, folder.at(name), [text for text, _ in pairs], [line for _, line in pairs])
    try:
        text = folder.read(name).decode("utf-8-sig")
    except Refused as error:
        raise ConfigError(str(error)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{folder.at(name)}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    lines = [line.strip() for line in split_lines(text)]
    while lines and not lines[-1]:
        lines.pop()
    return Lines(name, folder.at(name), lines, range(1, len(lines) + 1))


def _readable(row: Row | Rejection) -> Row:
    """Return a row; raises ConfigError for one that cannot be read, whose number others would get."""
    if isinstance(row, Rejection):
        raise ConfigError(f"{row.file}:{row.line}: {row.message}")
    return row
