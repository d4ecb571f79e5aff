"""Layouts of folders of image files with their prompts; they are tried in this order.

- `tables`: Hugging Face's image folders, GenEval's folder per prompt, and scripts' CSVs. A row belongs to the images
  that it names (`file_name`, `file_names` or `flux_file_name`, as in Hugging Face's `imagefolder`), or whose names
  contain its id (row_matching.py). A metadata file with one row that names no image belongs to the images at and below
  its folder, as GenEval writes `metadata.jsonl`.
- `list`: a prompts.txt with a prompt a line: the number in an image's name is that of its line (list_layout.py).
- `beside`: each image has a .txt or .json of its name next to it, as in img2dataset's and trainers' datasets.
- `names`: the name of an image is its prompt, as T2I-CompBench names them: `a red cube on a table_000002.png`.
- `ids`: the name of an image is its prompt's id, as in GEdit-Bench and ImgEdit; only if the configuration asks for it.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import readable_errors
from plumbline.pipelines.base.tables import JSON_LINES, SEPARATORS, WORKBOOKS, Refused, Rejection, parse_object
from plumbline.pipelines.ingest.image_folders import (
    NUMBERED,
    DescribedImage,
    Folder,
    PromptsOutside,
    is_contact_sheet,
    is_image_path,
)
from plumbline.pipelines.ingest.input_rows import refuse_foreign
from plumbline.pipelines.ingest.list_layout import (
    LIST,
    Lines,
    describe_by_numbers,
    find_lists,
    image_numbers,
    read_lists,
)
from plumbline.pipelines.ingest.row_matching import match_rows
from plumbline.pipelines.ingest.table_layout import find_tables, read_tables
from plumbline.pipelines.ingest.typed_tables import column_names
from plumbline.pipelines.sources.benchmark import PromptsFrom
from plumbline.pipelines.sources.input_columns import InputColumnsConfig, find_names
from plumbline.pipelines.sources.origins import count_suffixes

TABLES = (*SEPARATORS, *JSON_LINES, ".json", ".parquet", ".arrow", *WORKBOOKS)
WORDS = re.compile(r"[^\W\d_]{2,}")
PROMPTS_FILE = re.compile(r"(?!\.).*(prompt|caption|metadata).*\.(csv|tsv|jsonl?|ndjson|txt|parquet)", re.IGNORECASE)
"""The name of a file of prompts."""
MIN_FOLDER_WORDS = 3
"""Minimum number of words of a folder's name that is a prompt, unlike `run one`."""
NAMES_OF_IDS = InputColumnsConfig(prompt_id="prompt_id", prompt="prompt")


class Layout(NamedTuple):
    """A way of keeping prompts with the images of a folder."""

    name: PromptsFrom
    """Its name in `prompts_from`."""
    looks: str
    """Contents of such a folder, in words."""
    files: Callable[[Folder], Collection[str]]
    """Returns the files with the prompts; none if the folder has another layout."""
    read: Callable[[Folder], Iterator[DescribedImage | Rejection]]
    """Yields every image with its prompt, and the rejections; raises ConfigError if it cannot match them."""


def _find_descriptions(folder: Folder) -> dict[str, str]:
    """Return the file with the prompt of each image: the .txt or else the .json of its name."""
    names = set(folder.names)
    both = {
        image: [f"{PurePosixPath(image).with_suffix(ending)}" for ending in (".txt", ".json")]
        for image in folder.images
    }
    return {image: next(name for name in two if name in names) for image, two in both.items() if names & set(two)}


def _read_beside(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    beside = _find_descriptions(folder)
    for image in folder.images:
        if image not in beside:
            message = f"no .txt or .json of its name tells its prompt; write {PurePosixPath(image).stem}.txt"
            yield folder.reject_without_prompt(image, message)
    for (image, name), content in zip(beside.items(), folder.read_all(list(beside.values())), strict=True):
        try:
            if isinstance(content, Refused):
                raise content
            ending = PurePosixPath(name).suffix
            values, source = _parse_description(folder, name, content), f"the {ending} beside each image"
            yield DescribedImage(image, values, source, named=ending == ".json")
        except Refused as refused:
            yield refused.at(folder.at(name), generator=folder.generator(image), image_id=image)


def _parse_description(folder: Folder, name: str, content: bytes) -> dict[str, Any]:
    """Return the values in an image's own .txt or .json; raises Refused if it has no prompt."""
    if name.endswith(".json"):
        values = parse_object(content)
        columns = find_names(values, folder.columns)
        if not any(str(values[each] or "").strip() for each in (columns.prompt, columns.prompt_id) if each):
            raise Refused("empty_prompt", "it has neither a prompt nor a prompt_id; add one")
        return values
    try:
        prompt = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise Refused("not_utf8", f"it is not UTF-8 at byte {error.start}; save it as UTF-8") from error
    if not prompt:
        raise Refused("empty_prompt", "the .txt is empty; write the prompt of its image into it")
    return {"prompt": prompt}


def _prompt_of(image: str) -> str:
    """Return the prompt in an image's name, or else in its folder's within a generator's folder; empty if none."""
    path = PurePosixPath(image)
    words = _words(NUMBERED.sub("", path.stem))
    if _is_prompt(words):
        return words
    words = _words(path.parts[-2]) if len(path.parts) > 2 else ""
    return words if _is_prompt(words) and len(words.split()) >= MIN_FOLDER_WORDS else ""


def _words(name: str) -> str:
    """Return the words of a name; underscores count as spaces in a name without spaces."""
    return (name if " " in name else name.replace("_", " ")).strip()


def _is_prompt(text: str) -> bool:
    """Return True for at least two words, unlike `image_001` and `00001`."""
    return len(WORDS.findall(text)) > 1


def _images_named_by_prompt(folder: Folder) -> list[str]:
    """Return the images whose names, or whose folders' names, could be their prompts."""
    return [image for image in folder.images if _prompt_of(image) and not is_contact_sheet(image)]


def _are_prompts(folder: Folder) -> bool:
    """Return True if images' names may be taken as prompts without being asked to.

    This needs a folder without tables, which could contain other prompts, and for each generator names that differ by
    more than a number: `sdxl_turbo_0001.png` and `sdxl_turbo_0002.png` do not.
    """
    prompts: dict[str, set[str]] = {}
    for image in _images_named_by_prompt(folder):
        prompts.setdefault(folder.generator(image), set()).add(_prompt_of(image))
    tables = any(name.lower().endswith(TABLES) for name in folder.names)
    return not tables and bool(prompts) and all(len(different) > 1 for different in prompts.values())


def _read_ids(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    """Describe images by the ids of prompts in their names; a name that contains none is taken for an id.

    Prompts without ids are numbered. Raises ConfigError if no image belongs to any prompt.
    """
    prompts = folder.prompts
    images = [image for image in folder.images if not is_contact_sheet(image)]
    match = match_rows(images, prompts.rows, NAMES_OF_IDS, "prompt_id", folder) if prompts else None
    if match is None and prompts is not None and not prompts.has_ids:
        texts = [row.values["prompt"] for row in prompts.rows]
        numbers = range(1, len(texts) + 1) if prompts.url.lower().endswith(".txt") else [None] * len(texts)
        lines = Lines(PurePosixPath(prompts.url).name, prompts.url, texts, numbers)
        yield from describe_by_numbers(folder, lines, folder.images)
        return
    if match is None and prompts is not None:
        _require_an_id(folder, prompts, images)
    source = f"the ids in the {match.way}" if match else "the images' names, which are ids"
    generators = match.name_generators(folder.own_generator) if match else {}
    for image in folder.images:
        own = match.rows.get(image) if match else None
        if own is None and is_contact_sheet(image):
            yield folder.reject_without_prompt(image, "")
            continue
        prompt_id = own.values["prompt_id"] if own else PurePosixPath(image).stem
        generator = generators.get(image)
        named_by = "the images' names" if generator else ""
        yield DescribedImage(image, {"prompt_id": prompt_id}, source, generator=generator, named_by=named_by)


def _require_an_id(folder: Folder, prompts: PromptsOutside, images: Sequence[str]) -> None:
    """Raise ConfigError if no image is named by an id."""
    ids = [str(row.values["prompt_id"]) for row in prompts.rows]
    if {PurePosixPath(image).stem for image in images} & {*ids}:
        return
    problem = f"none of its ids, such as {ids[0]}, is in the images' names, such as {images[0]}" if images else ""
    if all(map(str.isdecimal, ids)):
        known = {int(prompt_id) for prompt_id in ids}
        for image, number in image_numbers(images).items():
            if number not in known:
                reason = f"{image}: {number if isinstance(number, str) else f'no prompt has the number {number}'}"
                problem = f"its ids are numbers, which must be in the names of all images; {reason}"
                break
    raise ConfigError(f"images {folder.place.url}: no image belongs to a prompt of {prompts.url}: {problem}")


def _read_names(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    for image in folder.images:
        prompt = _prompt_of(image)
        if prompt and not is_contact_sheet(image):
            yield DescribedImage(image, {"prompt": prompt}, "the images' names")
        else:
            message = "its name has no prompt; write prompts.txt, a line for each image, or a table (docs/ingest.md)"
            yield folder.reject_without_prompt(image, message)


LAYOUTS = (
    Layout(
        name="tables",
        looks="a metadata.jsonl or metadata.csv, with the names of image files or beside those of one prompt, or "
        "another CSV or JSON Lines file with columns file and prompt",
        files=find_tables,
        read=read_tables,
    ),
    Layout(
        name="list",
        looks=f"a {LIST}, with a prompt a line, and the numbers of lines in the images' names",
        files=find_lists,
        read=read_lists,
    ),
    Layout(
        name="beside",
        looks="a .txt or .json of its name beside each image",
        files=lambda folder: _find_descriptions(folder).values(),
        read=_read_beside,
    ),
    Layout(
        name="names",
        looks="prompts as the images' names, such as a_red_cube_000.png",
        files=_images_named_by_prompt,
        read=_read_names,
    ),
    Layout(
        name="ids",
        looks="images",
        files=lambda folder: folder.images,
        read=_read_ids,
    ),
)


def read_layout(
    folder: Folder, prompts_from: PromptsFrom | None
) -> tuple[Iterator[DescribedImage | Rejection], list[str]]:
    """Read a folder by its layout; raise ConfigError if it has no images or no known layout.

    Returns:
        Every image with its description, or the reason why it is left out; and the files that are passed over, because
        they are neither images nor descriptions.
    """
    if not folder.images:
        kinds = count_suffixes(folder.names)
        raise ConfigError(f"images {folder.place.url}: expected image files, found {kinds or 'none'}")
    layout = _layout(folder, prompts_from)
    read = {*folder.images, *folder.source_paths, *folder.foreign, *layout.files(folder)}
    others = [name for name in (*folder.names, *folder.badly_named) if name not in read and not is_image_path(name)]
    return _rows(folder, layout), others


def _rows(folder: Folder, layout: Layout) -> Iterator[DescribedImage | Rejection]:
    described: set[str] = set()
    for each in layout.read(folder):
        if isinstance(each, DescribedImage):
            described.add(each.image)
        yield each
    left_out = {
        **dict.fromkeys(folder.source_paths, "source of an edit"),
        **dict.fromkeys(folder.hidden, "hidden"),
        **folder.outside,
    }
    yield from (folder.skip(image, reason) for image, reason in left_out.items() if image not in described)
    for image in filter(is_image_path, folder.badly_named):
        yield folder.reject(image, Refused("not_utf8", "the file's name is not UTF-8; rename it"))
    for image in folder.foreign:
        try:
            refuse_foreign(image)
        except Refused as refused:
            yield folder.reject(image, refused)


def _layout(folder: Folder, prompts_from: PromptsFrom | None) -> Layout:
    for layout in LAYOUTS:
        if prompts_from in (None, layout.name) and layout.files(folder):
            if prompts_from is None and (layout.name == "ids" or (layout.name == "names" and not _are_prompts(folder))):
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
    """Return the files and columns that could contain the prompts, each with the command or option that reads it."""
    hints = [_hint_of(folder, table) for table in folder.text_tables[:1]]
    others = [folder.at(name) for name in folder.names if name.lower().endswith(TABLES)]
    if not hints and (prompts := next(iter(others or _find_prompt_files(folder)), None)):
        command = shlex.join(["plumbline", "score", f"images={folder.place.url}", f"prompts={prompts}"])
        hints.append(f" If the ids or numbers of {prompts} are in their names: {command}.")
    if images := _images_named_by_prompt(folder):
        hints.append(f" prompts_from=names takes the images' names, such as {_prompt_of(images[0])!r}.")
    return "".join(hints)


def _find_prompt_files(folder: Folder) -> list[str]:
    """Return the files next to the folder that are named like prompt files."""
    with suppress(ConfigError), readable_errors(folder.place.parent, "images"):
        names = sorted(name for name, entry in folder.place.parent.list().items() if entry.type == "file")
        return [f"{folder.place.parent.url}/{name}" for name in names if PROMPTS_FILE.fullmatch(name)]
    return []


def _hint_of(folder: Folder, table: str) -> str:
    """Return a hint how to read a table that may contain the prompts, or why it cannot be read."""
    try:
        columns = ", ".join(column_names(folder.place / table))
    except ConfigError as error:
        return f" {error}."
    return (
        f" {table} has the columns {columns}, and none whose values are in the images' names, such as "
        f"{folder.images[0]}: name the column of files or ids by columns.image=NAME or columns.prompt_id=NAME, and "
        "that of prompts by columns.prompt=NAME."
    )
