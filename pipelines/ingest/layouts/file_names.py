"""Folders in which an image's name is its prompt, as T2I-CompBench names them: `a red cube on a table_000002.png`."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from pipelines.ingest.layouts.layout import Folder, Layout, Told
from pipelines.tables import Refused, Rejection

NUMBERED = re.compile(r"[ _-]*(?:\(\d+\)|[_-]\d+|[_-](?:seed|sample)[_-]?\d+)$", re.IGNORECASE)
"""What numbers the images of one prompt."""
WORDS = re.compile(r"[^\W\d_]{2,}")


def _prompt(image: str) -> str:
    """The words of an image's name; underscores are spaces where there are no others."""
    name = NUMBERED.sub("", PurePosixPath(image).stem)
    return (name if " " in name else name.replace("_", " ")).strip()


def _is_prompt(text: str) -> bool:
    """At least two words: `image_001` and `00001` tell no prompt."""
    return len(WORDS.findall(text)) > 1


def _read(folder: Folder) -> Iterator[Told | Rejection]:
    for image in folder.images:
        prompt = _prompt(image)
        if _is_prompt(prompt):
            yield Told(image, {"prompt": prompt})
        else:
            message = "its name has no prompt; write prompts.txt, a line for each image, or a table (docs/ingest.md)"
            yield Refused("empty_prompt", message).at(folder.at(image))


LAYOUT = Layout(
    looks="prompts as the images' names, such as a_red_cube_000.png",
    recognises=lambda folder: any(_is_prompt(_prompt(image)) for image in folder.images),
    read=_read,
)
