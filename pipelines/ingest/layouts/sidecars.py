"""Folders in which each image has a .txt or .json of its name beside it, as img2dataset and trainers' datasets have."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from plumbline.pipelines.base.tables import Refused, Rejection, parse_object
from plumbline.pipelines.ingest.layouts.layout import DescribedImage, Folder, Layout


def _beside(folder: Folder) -> dict[str, str]:
    """By image the file that tells its prompt: the .txt before the .json, whose other fields nobody needs."""
    names = set(folder.names)
    both = {
        image: [f"{PurePosixPath(image).with_suffix(ending)}" for ending in (".txt", ".json")]
        for image in folder.images
    }
    return {image: next(name for name in two if name in names) for image, two in both.items() if names & set(two)}


def _read(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    beside = _beside(folder)
    for image in folder.images:
        if image not in beside:
            message = f"no .txt or .json of its name tells its prompt; write {PurePosixPath(image).stem}.txt"
            yield Refused("empty_prompt", message).at(folder.at(image))
    for (image, name), content in zip(beside.items(), folder.read_all(list(beside.values())), strict=True):
        try:
            if isinstance(content, Refused):
                raise content
            ending = PurePosixPath(name).suffix
            yield DescribedImage(
                image, _values(name, content), f"the {ending} beside each image", named=ending == ".json"
            )
        except Refused as refused:
            yield refused.at(folder.at(name))


def _values(name: str, content: bytes) -> dict[str, Any]:
    if name.endswith(".json"):
        return parse_object(content)
    try:
        return {"prompt": content.decode("utf-8-sig").strip()}
    except UnicodeDecodeError as error:
        raise Refused("not_utf8", f"it is not UTF-8 at byte {error.start}; save it as UTF-8") from error


LAYOUT = Layout(
    name="beside",
    looks="a .txt or .json of its name beside each image",
    files=lambda folder: _beside(folder).values(),
    read=_read,
)
