"""Folders with a prompts.txt, one prompt a line: the number that an image's name begins or ends with is its line's."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from plumbline.operators.errors import ConfigError
from plumbline.pipelines.base.tables import Refused, Rejection
from plumbline.pipelines.ingest.layouts.layout import DescribedImage, Folder, Layout

NAME = "prompts.txt"
NUMBER = re.compile(r"\d+")


def _lists(folder: Folder) -> list[str]:
    """Every prompts.txt, those of inner folders first: an image takes the nearest."""
    return sorted(
        (name for name in folder.names if PurePosixPath(name).name == NAME), key=lambda name: -name.count("/")
    )


def _read(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    left = folder.images
    for name in _lists(folder):
        base = name[: -len(NAME)]
        yield from _numbered_images(folder, name, [image for image in left if image.startswith(base)])
        left = [image for image in left if not image.startswith(base)]
    for image in left:
        yield Refused("empty_prompt", f"no {NAME} in its folder or above it; write one").at(folder.at(image))


def _numbered_images(folder: Folder, name: str, images: list[str]) -> Iterator[DescribedImage | Rejection]:
    lines = _lines(folder, name)
    numbers = {image: _number(image) for image in images}
    known = [number for number in numbers.values() if number is not None]
    first = _first(known, len(lines), folder.at(name))
    for image, number in numbers.items():
        if number is None:
            message = f"no number in its name tells its line in {NAME}; number it, or write a table"
            yield Refused("empty_prompt", message).at(folder.at(image))
        elif not 0 <= number - first < len(lines):
            message = f"{folder.at(name)} has {len(lines)} lines, from number {first}, and none of number {number}"
            yield Refused("empty_prompt", f"{message}; add it, or number the image otherwise").at(folder.at(image))
        else:
            yield DescribedImage(
                image, {"prompt": lines[number - first]}, f"the lines of {name}, by the numbers of images"
            )


def _lines(folder: Folder, name: str) -> list[str]:
    try:
        text = folder.read(name).decode("utf-8-sig")
    except Refused as error:
        raise ConfigError(str(error)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{folder.at(name)}: not UTF-8 at byte {error.start}; save it as UTF-8") from error
    lines = [line.strip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _number(image: str) -> int | None:
    """That of a folder named by a number alone; or that an image's name begins with, as 00003_1.png, or its last."""
    path = PurePosixPath(image)
    if path.parent.name.isdecimal():
        return int(path.parent.name)
    found = NUMBER.match(path.stem) or next(reversed(list(NUMBER.finditer(path.stem))), None)
    return int(found[0]) if found else None


def _first(numbers: list[int], lines: int, url: str) -> int:
    """Whether images count from 0 or from 1; raises ConfigError where both could be."""
    if not numbers or 0 in numbers:
        return 0
    if lines in numbers:
        return 1
    raise ConfigError(
        f"{url}: {lines} lines, and images with numbers from {min(numbers)} to {max(numbers)}: it cannot be told "
        "whether they count from 0 or from 1; add the first or the last image, or write a table (docs/ingest.md)"
    )


LAYOUT = Layout(
    name="list",
    looks=f"a {NAME}, with a prompt a line, and the numbers of lines in the images' names",
    files=_lists,
    read=_read,
)
