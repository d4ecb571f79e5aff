"""Folders with a list of prompts, whose lines the images belong to by the numbers in their names.

If a folder's name is a number alone, this is the number of its images. Otherwise it is the number that the image's name
begins with, or else the last number, or the only number that differs between names. An image whose number is doubtful
gets none, because a wrong number would give it another image's prompt.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import plural
from plumbline.pipelines.base.tables import JSON_LINES, SEPARATORS, Refused, Rejection, Row, split_lines
from plumbline.pipelines.ingest.image_folders import NO_GENERATORS, DescribedImage, Folder, is_contact_sheet
from plumbline.pipelines.ingest.typed_tables import column_names, read_rows
from plumbline.pipelines.sources.input_columns import find_names

LIST = "prompts.txt"
NUMBER = re.compile(r"\d+")
WRITE_TABLE = "or write a table (docs/ingest.md)"
NO_NUMBER = f"no number in its name tells its line; number it, {WRITE_TABLE}"


def find_lists(folder: Folder) -> list[str]:
    """Return every prompts.txt, inner folders first: an image belongs to the nearest list above it."""
    lists = [name for name in folder.names if PurePosixPath(name).name.lower() == LIST]
    return sorted(lists or _prompt_columns(folder), key=lambda name: -name.count("/"))


def _prompt_columns(folder: Folder) -> list[str]:
    """Return the tables that have prompts and nothing else: a row is a line."""
    found = []
    for table in folder.text_tables:
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
    """Describe images by the lines of their numbers; `base` is the folder of the list."""
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
    """Return the prompts of a list, or of a table with nothing else."""
    if name.lower().endswith((*SEPARATORS, *JSON_LINES)):
        rows = [_require_readable(row) for row in read_rows(folder.place / name)]
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


def _require_readable(row: Row | Rejection) -> Row:
    """Return a row; raise ConfigError if it cannot be read, because later rows would get its number."""
    if isinstance(row, Rejection):
        raise ConfigError(f"{row.file}:{row.line}: {row.message}")
    return row


def image_numbers(images: Sequence[str], of_generators: Container[str] = ()) -> dict[str, int | str]:
    """Return each image's number, or why it has none; paths are relative to the folder of the list.

    Names of images in `of_generators` are a generator's name and a number (Folder.generators_in_names).
    """
    numbers: dict[str, int | str] = {}
    folders: dict[str, list[str]] = defaultdict(list)
    for image in images:
        folder = _numbered_folder(image)
        if folder is not None:
            numbers[image] = int(folder.name)
        else:
            folders[str(PurePosixPath(image).parent)].append(image)
    for together in folders.values():
        numbers |= _numbers_in_names(together, of_generators)
    return numbers


def first_number(numbers: Mapping[str, int | str], lines: int, url: str) -> int:
    """Return 0 or 1, the number of the list's first line.

    Raises ConfigError if folders of images disagree, or if both numbers are possible.
    """
    folders: dict[str, list[int]] = defaultdict(list)
    for image, number in numbers.items():
        if isinstance(number, int):
            folders[_numbering_folder(image)].append(number)
    firsts = {folder: _first_in(known, lines) for folder, known in folders.items()}
    decided = set(firsts.values()) - {None}
    if len(decided) == 1 or not folders:
        return next(iter(decided), 0) or 0
    known = [number for in_folder in folders.values() for number in in_folder]
    if decided:
        from_0, from_1 = (next(folder for folder, first in firsts.items() if first == each) for each in (0, 1))
        problem = f"those in {from_0!r} seem to count from 0 and those in {from_1!r} from 1"
    else:
        problem = "it cannot be told whether they count from 0 or from 1"
    raise ConfigError(
        f"{url}: {lines} lines, and images with numbers from {min(known)} to {max(known)}: {problem}; add the first or "
        "the last image, or remove one that does not belong, or write a table (docs/ingest.md)"
    )


def _first_in(numbers: Sequence[int], lines: int) -> int | None:
    """Return the number of the first line, 0 or 1, by a folder's numbers; None if they do not decide it."""
    if (0 in numbers) == (lines in numbers):
        return None
    return 0 if 0 in numbers else 1


def _numbered_folder(image: str) -> PurePosixPath | None:
    """Return the folder named by a number that contains an image, directly or in a folder such as `samples`."""
    for folder in PurePosixPath(image).parents:
        if folder.name.isdecimal():
            return folder
        if folder.name.lower() not in NO_GENERATORS:
            return None
    return None


def _numbering_folder(image: str) -> str:
    """Return the folder whose images are numbered together with this image."""
    folder = _numbered_folder(image)
    return str(folder.parent if folder is not None else PurePosixPath(image).parent)


def _numbers_in_names(images: Sequence[str], of_generators: Container[str]) -> dict[str, int | str]:
    """Return the numbers of the images of one folder."""
    stems = {image: PurePosixPath(image).stem for image in images}
    begin = {image: int(found[0]) for image, stem in stems.items() if (found := NUMBER.match(stem))}
    others = {image: stem for image, stem in stems.items() if image not in begin}
    if begin:
        message = f"its name does not begin with the number of its line, as {min(begin)} does; number it, {WRITE_TABLE}"
        return {**begin, **{image: message if NUMBER.search(stem) else NO_NUMBER for image, stem in others.items()}}
    certain = {image: int(NUMBER.findall(stem)[-1]) for image, stem in others.items() if image in of_generators}
    return certain | _last_numbers({image: stem for image, stem in others.items() if image not in certain})


def _last_numbers(stems: Mapping[str, str]) -> dict[str, int | str]:
    """Return the last number of each name, or the only one that differs among names of the same words."""
    numbers: dict[str, int | str] = {}
    alike: dict[str, list[str]] = defaultdict(list)
    for image, stem in stems.items():
        alike[NUMBER.sub("#", stem)].append(image)
    for images in alike.values():
        found = {image: [int(number) for number in NUMBER.findall(stems[image])] for image in images}
        positions = [place for place, column in enumerate(zip(*found.values(), strict=True)) if len(set(column)) > 1]
        for image, own in found.items():
            if not own:
                numbers[image] = NO_NUMBER
            elif len(positions) > 1:
                several = " and ".join(str(own[place]) for place in positions)
                numbers[image] = f"{several} could each be its line; begin its name with that number, {WRITE_TABLE}"
            else:
                numbers[image] = own[positions[0] if positions else -1]
    return {**numbers, **_find_doubtful(numbers, stems)}


def _find_doubtful(numbers: Mapping[str, int | str], stems: Mapping[str, str]) -> dict[str, str]:
    """Return the images of other words than most that claim a line of those or of each other, with the reason."""
    words = {image: NUMBER.sub("#", stem) for image, stem in stems.items()}
    counts = Counter(words.values())
    claims: dict[int, list[str]] = defaultdict(list)
    for image, number in numbers.items():
        if isinstance(number, int):
            claims[number].append(image)
    reasons: dict[str, str] = {}
    for number, images in claims.items():
        first, *rest = Counter({words[image]: counts[words[image]] for image in images}).most_common()
        if rest:
            most = first[0] if first[1] > rest[0][1] else None
            for image in images:
                if words[image] != most:
                    other = next(each for each in images if words[each] != words[image])
                    problem = f"{PurePosixPath(other).name} beside it has the number {number} too, and other words"
                    reasons[image] = f"{problem}; put pictures of other kinds into other folders, {WRITE_TABLE}"
    return reasons
