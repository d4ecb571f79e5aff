"""Folders with a list of prompts: the number in an image's name is the line number of its prompt.

If a folder's name is just a number, this number applies to its images. Otherwise an image's number is the number at the
start of its name, or else the last number, or the only number that differs between names. An image with an uncertain
number is rejected, because a wrong number would assign it another image's prompt.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import format_quantity
from plumbline.pipelines.base.tables import JSON_LINES_SUFFIXES, SEPARATORS_BY_SUFFIX, Refused, Rejection, split_lines
from plumbline.pipelines.ingest.image_folders import NON_GENERATOR_FOLDERS, DescribedImage, Folder, is_contact_sheet
from plumbline.pipelines.ingest.text_tables import read_column_names, read_rows
from plumbline.pipelines.sources.input_columns import find_column_names

LIST_FILE = "prompts.txt"
NUMBER_PATTERN = re.compile(r"\d+")
WRITE_TABLE_REMEDY = "or write a table (docs/ingest.md)"
NO_NUMBER_MESSAGE = f"its name has no number for the line of its prompt; number it, {WRITE_TABLE_REMEDY}"


def find_lists(folder: Folder) -> list[str]:
    """Return every prompts.txt, inner folders first, because an image belongs to the list in the nearest folder above.

    If there is no prompts.txt, return tables that contain only prompts; each row counts as a line.
    """
    lists = [name for name in folder.names if PurePosixPath(name).name.lower() == LIST_FILE]
    for table in folder.text_tables if not lists else ():
        with suppress(ConfigError):
            columns = read_column_names(folder.place / table)
            if len(columns) == 1 and find_column_names(columns, folder.columns).prompt:
                lists.append(table)
    return sorted(lists, key=lambda name: -name.count("/"))


def read_lists(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    left = folder.images
    for name in find_lists(folder):
        base = name[: name.rfind("/") + 1]
        within = [image for image in left if image.startswith(base)]
        yield from describe_images_by_number(folder, _read_prompt_list(folder, name), within, base)
        left = [image for image in left if not image.startswith(base)]
    for image in left:
        yield folder.reject_unprompted_image(image, f"no {LIST_FILE} in its folder or above it; write one")


class PromptList(NamedTuple):
    """The prompts in a prompts.txt, or in a table that contains only prompts."""

    name: str
    """The file's path relative to the image folder, for messages."""
    url: str
    texts: Sequence[str]
    numbers: Sequence[int | None]
    """Line number of each prompt in the file, counted from 1; None if unknown."""


def describe_images_by_number(
    folder: Folder, lines: PromptList, images: Sequence[str], base: str = ""
) -> Iterator[DescribedImage | Rejection]:
    """Yield each image with its prompt, found on the line with the image's number; `base` is the list's folder."""
    foreign = [image for image in folder.foreign_format_images if image.startswith(base)]
    numbered = [image.removeprefix(base) for image in (*images, *foreign) if not is_contact_sheet(image)]
    generators = folder.find_generators_in_names(lines.texts)
    numbers = find_numbers(numbered, {image.removeprefix(base) for image in generators if image.startswith(base)})
    n_lines = len(lines.texts)
    first = _find_first_number(numbers, n_lines, lines.url)
    # Lines beyond the highest number indicate that the list belongs to other images, or contains more than prompts.
    highest = max((number for number in numbers.values() if isinstance(number, int)), default=first - 1)
    if (left := n_lines - (highest - first + 1)) > 0:
        problem = f"no image belongs to the last {format_quantity(left, 'line')} of {lines.name}"
        folder.warnings[
            f"{problem}: it has {format_quantity(n_lines, 'line')}, and images have numbers up to {highest}"
        ] = None
    for image in images:
        number = numbers.get(image.removeprefix(base), "")
        if isinstance(number, str):
            yield folder.reject_unprompted_image(image, number)
        elif not 0 <= number - first < n_lines:
            message = f"{lines.url} has {n_lines} lines, counted from {first}, so line {number} is missing"
            yield folder.reject_unprompted_image(image, f"{message}; add it, or change the image's number")
        elif not lines.texts[number - first].strip():
            refused = Refused(
                "empty_prompt", f"the line is empty, but {image} has its number; write the prompt of this image there"
            )
            ids = {"generator": generators.get(image) or folder.get_generator(image), "image_id": image}
            yield refused.to_rejection(lines.url, lines.numbers[number - first], **ids)
        else:
            origin = f"the lines of {lines.name}, by the numbers of images"
            prompt = {"prompt": lines.texts[number - first]}
            yield DescribedImage(image, prompt, origin, generator=generators.get(image))


def _read_prompt_list(folder: Folder, name: str) -> PromptList:
    url = folder.get_url(name)
    if name.lower().endswith((*SEPARATORS_BY_SUFFIX, *JSON_LINES_SUFFIXES)):
        texts, numbers = [], []
        for row in read_rows(folder.place / name):
            if isinstance(row, Rejection):  # later rows would get its number
                raise ConfigError(f"{row.file}:{row.line}: {row.message}")
            for value in row.values.values():
                texts.append(str(value).strip())
                numbers.append(row.line)
        return PromptList(name, url, texts, numbers)
    try:
        text = folder.read(name).decode("utf-8-sig")
    except Refused as error:
        raise ConfigError(str(error)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{url}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    lines = [line.strip() for line in split_lines(text)]
    while lines and not lines[-1]:
        lines.pop()
    return PromptList(name, url, lines, range(1, len(lines) + 1))


def find_numbers(images: Sequence[str], named_by_generator: Container[str] = ()) -> dict[str, int | str]:
    """Return each image's number, or the reason why it has none; paths are relative to the folder of the list.

    The names of images in `named_by_generator` consist of a generator's name and a number, as found by
    Folder.find_generators_in_names.
    """
    numbers: dict[str, int | str] = {}
    folders: dict[str, list[str]] = defaultdict(list)
    for image in images:
        folder = _find_numbered_folder(image)
        if folder is not None:
            numbers[image] = int(folder.name)
        else:
            folders[str(PurePosixPath(image).parent)].append(image)
    for in_folder in folders.values():
        stems = {image: PurePosixPath(image).stem for image in in_folder}
        begin = {image: int(found[0]) for image, stem in stems.items() if (found := NUMBER_PATTERN.match(stem))}
        others = {image: stem for image, stem in stems.items() if image not in begin}
        if begin:
            expected = f"its name does not begin with the number of its line, as {min(begin)} does"
            message = f"{expected}; number it, {WRITE_TABLE_REMEDY}"
            numbers |= begin
            numbers |= {
                image: message if NUMBER_PATTERN.search(stem) else NO_NUMBER_MESSAGE for image, stem in others.items()
            }
        else:
            certain = {
                image: int(NUMBER_PATTERN.findall(stem)[-1])
                for image, stem in others.items()
                if image in named_by_generator
            }
            numbers |= certain
            numbers |= _find_last_numbers({image: stem for image, stem in others.items() if image not in certain})
    return numbers


def _find_first_number(numbers: Mapping[str, int | str], n_lines: int, url: str) -> int:
    """Return the number, 0 or 1, that image names use for the first line of the list.

    Raises ConfigError if folders of images disagree, or if both numbers are possible.
    """
    folders: dict[str, set[int]] = defaultdict(set)
    for image, number in numbers.items():
        if isinstance(number, int):
            folder = _find_numbered_folder(image) or PurePosixPath(image)
            folders[str(folder.parent)].add(number)
    # A folder decides it if it has an image with number 0 or one with the last number, but not both.
    firsts = {folder: 0 if 0 in known else 1 for folder, known in folders.items() if (0 in known) != (n_lines in known)}
    if len(set(firsts.values())) == 1 or not folders:
        return next(iter(firsts.values()), 0)
    if firsts:
        from_0, from_1 = (next(folder for folder, first in firsts.items() if first == each) for each in (0, 1))
        problem = f"those in {from_0!r} seem to count from 0 and those in {from_1!r} from 1"
    else:
        problem = "they may count from 0 or from 1"
    known = set.union(*folders.values())
    raise ConfigError(
        f"{url}: {n_lines} lines, but images numbered {min(known)} to {max(known)}: {problem}; add the first or the "
        "last image, or remove one that does not belong, or write a table (docs/ingest.md)"
    )


def _find_numbered_folder(image: str) -> PurePosixPath | None:
    """Return the numbered folder that contains the image, directly or in a subfolder such as `samples`, or None."""
    for folder in PurePosixPath(image).parents:
        if folder.name.isdecimal():
            return folder
        if folder.name.lower() not in NON_GENERATOR_FOLDERS:
            return None
    return None


def _find_last_numbers(stems: Mapping[str, str]) -> dict[str, int | str]:
    """Return each image's number by its path, or the reason why the image has none.

    The number is the only one that differs among names with the same words, or else the last one in the name. The words
    are the text around the numbers.

    If images with different words claim the same number, only the images with the most frequent words get it.
    """
    numbers: dict[str, int | str] = {}
    words = {image: NUMBER_PATTERN.sub("#", stem) for image, stem in stems.items()}
    with_words: dict[str, list[str]] = defaultdict(list)
    for image, own_words in words.items():
        with_words[own_words].append(image)
    for images in with_words.values():
        found = {image: [int(number) for number in NUMBER_PATTERN.findall(stems[image])] for image in images}
        positions = [index for index, column in enumerate(zip(*found.values(), strict=True)) if len(set(column)) > 1]
        for image, own in found.items():
            if not own:
                numbers[image] = NO_NUMBER_MESSAGE
            elif len(positions) > 1:
                several = " and ".join(str(own[index]) for index in positions)
                numbers[image] = (
                    f"{several} could each be its line; begin its name with that number, {WRITE_TABLE_REMEDY}"
                )
            else:
                numbers[image] = own[positions[0] if positions else -1]
    claims: dict[int, list[str]] = defaultdict(list)
    for image, number in numbers.items():
        if isinstance(number, int):
            claims[number].append(image)
    for number, images in claims.items():
        first, *rest = Counter({words[image]: len(with_words[words[image]]) for image in images}).most_common()
        trusted = first[0] if not rest or first[1] > rest[0][1] else None
        for image in images:
            if words[image] != trusted:
                other = next(each for each in images if words[each] != words[image])
                problem = f"{PurePosixPath(other).name} in its folder has the number {number} too, but other words"
                numbers[image] = f"{problem}; put images of other kinds into other folders, {WRITE_TABLE_REMEDY}"
    return numbers
