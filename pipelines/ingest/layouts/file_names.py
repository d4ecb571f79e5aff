"""Folders in which an image's name is its prompt, as T2I-CompBench names them: `a red cube on a table_000002.png`."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from plumbline.pipelines.base.tables import JSON_LINES, SEPARATORS, Refused, Rejection
from plumbline.pipelines.ingest.layouts.layout import DescribedImage, Folder, Layout

NUMBERED = re.compile(r"[ _-]*(?:\(\d+\)|[_-]\d+|[_-](?:seed|sample)[_-]?\d+)$", re.IGNORECASE)
"""What numbers the images of one prompt."""
TABLES = (*SEPARATORS, *JSON_LINES, ".json", ".parquet", ".arrow", ".xlsx", ".xls", ".ods")
WORDS = re.compile(r"[^\W\d_]{2,}")


def prompt_of(image: str) -> str:
    """The words of an image's name; underscores are spaces where there are no others."""
    name = NUMBERED.sub("", PurePosixPath(image).stem)
    return (name if " " in name else name.replace("_", " ")).strip()


def _is_prompt(text: str) -> bool:
    """At least two words: `image_001` and `00001` tell no prompt."""
    return len(WORDS.findall(text)) > 1


def images_named_by_prompt(folder: Folder) -> list[str]:
    """The images whose names could be their prompts."""
    return [image for image in folder.images if _is_prompt(prompt_of(image))]


def are_prompts(folder: Folder) -> bool:
    """Whether the names may be taken for prompts by themselves: no table lies there that could tell other ones, and the
    names of each generator differ by more than a number, as `sdxl_turbo_0001.png` and `sdxl_turbo_0002.png` do not.
    """
    prompts: dict[str, set[str]] = {}
    for image in images_named_by_prompt(folder):
        prompts.setdefault(folder.generator(image), set()).add(prompt_of(image))
    tables = any(name.lower().endswith(TABLES) for name in folder.names)
    return not tables and bool(prompts) and all(len(different) > 1 for different in prompts.values())


def _read(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    for image in folder.images:
        prompt = prompt_of(image)
        if _is_prompt(prompt):
            yield DescribedImage(image, {"prompt": prompt}, "the images' names")
        else:
            message = "its name has no prompt; write prompts.txt, a line for each image, or a table (docs/ingest.md)"
            yield Refused("empty_prompt", message).at(folder.at(image))


LAYOUT = Layout(
    name="names",
    looks="prompts as the images' names, such as a_red_cube_000.png",
    files=images_named_by_prompt,
    read=_read,
)
