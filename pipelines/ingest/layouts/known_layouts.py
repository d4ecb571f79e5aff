"""All layouts of folders, in the order in which they are looked for."""

from collections.abc import Iterator
from typing import NamedTuple

from plumbline.operators.errors import ConfigError
from plumbline.pipelines.base.tables import Refused, Rejection
from plumbline.pipelines.ingest.input_rows import refuse_foreign
from plumbline.pipelines.ingest.layouts import file_names, metadata, prompt_list, sidecars
from plumbline.pipelines.ingest.layouts.layout import DescribedImage, Folder, Layout
from plumbline.pipelines.sources.benchmark import PromptsFrom
from plumbline.pipelines.sources.origins import count_kinds

LAYOUTS: tuple[Layout, ...] = (metadata.LAYOUT, prompt_list.LAYOUT, sidecars.LAYOUT, file_names.LAYOUT)


class ReadFolder(NamedTuple):
    """A folder as it is read."""

    rows: Iterator[DescribedImage | Rejection]
    """Every image with what is told of it, or why it is not taken."""
    passed_over: list[str]
    """The files that are neither images nor read for them."""


def read_layout(folder: Folder, prompts_from: PromptsFrom | None) -> ReadFolder:
    """Reads a folder as it is laid out; raises ConfigError for one without images, or of no known layout."""
    if not folder.images:
        kinds = count_kinds(folder.names)
        raise ConfigError(f"images {folder.place.url}: expected image files, found {kinds or 'none'}")
    layout = _layout(folder, prompts_from)
    read = {*folder.images, *folder.foreign, *layout.files(folder)}
    return ReadFolder(_rows(folder, layout), [name for name in folder.names if name not in read])


def _rows(folder: Folder, layout: Layout) -> Iterator[DescribedImage | Rejection]:
    yield from layout.read(folder)
    for image in folder.foreign:
        try:
            refuse_foreign(image)
        except Refused as refused:
            yield refused.at(folder.at(image))


def _layout(folder: Folder, prompts_from: PromptsFrom | None) -> Layout:
    for layout in LAYOUTS:
        if prompts_from in (None, layout.name) and layout.files(folder):
            if prompts_from is None and layout is file_names.LAYOUT and not file_names.are_prompts(folder):
                continue
            return layout
    if prompts_from is not None:
        looks = next(layout.looks for layout in LAYOUTS if layout.name == prompts_from)
        raise ConfigError(f"images {folder.place.url}: prompts_from={prompts_from} expects {looks}; found none")
    raise ConfigError(
        f"images {folder.place.url}: nothing tells the prompts of its {len(folder.images)} images.{_hints(folder)} "
        "Add a table images.csv with the columns file, prompt and generator; or prompts.txt with a prompt a line, for "
        "images that are numbered; or a .txt beside each image (docs/ingest.md)"
    )


def _hints(folder: Folder) -> str:
    """What is there that could tell them, and how that is taken."""
    hints = [_hint_of(folder, table) for table in metadata.all_tables(folder)[:1]]
    others = [name for name in folder.names if name.lower().endswith(file_names.TABLES)]
    if others and not hints:
        hints = [f" {others[0]} is not read here: write it as CSV, JSON Lines or prompts.txt."]
    if images := file_names.images_named_by_prompt(folder):
        hints.append(f" prompts_from=names takes the images' names, such as {file_names.prompt_of(images[0])!r}.")
    return "".join(hints)


def _hint_of(folder: Folder, table: str) -> str:
    """How a table that could tell the prompts is taken, or why it is not."""
    try:
        columns = ", ".join(metadata.column_names(folder, table))
    except ConfigError as error:
        return f" {error}."
    return (
        f" {table} has the columns {columns}: say which of them names the image files and which has the prompts, by "
        "columns.image=NAME and columns.prompt=NAME (for jobs.score benchmark.columns.image and .prompt)."
    )
