"""Listing of a folder of image files, with the generators and source images that the paths imply."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from unicodedata import normalize

from plumbline.pipelines.base.storage import Place, convert_read_errors
from plumbline.pipelines.base.tables import (
    JSON_LINES_SUFFIXES,
    SEPARATORS_BY_SUFFIX,
    SKIPPED_KIND,
    Refused,
    Rejection,
    Row,
    escape_bytes,
)
from plumbline.pipelines.ingest.input_rows import (
    EDIT_RESULT_COLUMNS,
    EDIT_SOURCE_COLUMNS,
    FOREIGN_SUFFIXES,
    IMAGE_SUFFIXES,
)
from plumbline.pipelines.sources.benchmark import name_generators, parse_generator
from plumbline.pipelines.sources.input_columns import InputColumnsConfig
from plumbline.pipelines.store.store import exclude_stores

N_READERS = 16
"""Number of small files that are read at once."""
MAX_FILES_READ_AHEAD = 1024
"""Number of small files that are queued to be read before they are needed."""
MAX_TEXT_BYTES = 2**20
"""Maximum size in bytes of a file that contains the prompt of an image."""
NON_GENERATOR_FOLDERS = frozenset({"images", "samples", "train", "test", "validation", "val"})
"""Names of image folders that are not names of generators."""
SOURCE_FOLDERS, RESULT_FOLDERS = frozenset({"source", "sources"}), frozenset({"result", "results"})
"""Names of folders that contain the source images of edits, and of folders that contain the edited images."""
NUMBER_SUFFIX_PATTERN = re.compile(r"(?<![ _-])[ _-]*(?:\(\d+\)|[_-]\d+|[_-](?:seed|sample)[_-]?\d+)$", re.IGNORECASE)
"""Suffix of a file name that distinguishes the images of one prompt by a number."""
NUMBER_AT_END_PATTERN = re.compile(r"(?<![ _-])[ _-]*(?<!\d)(?P<number>\d+)$")
"""Number at the end of a name, with the separator before it."""
CONTACT_SHEET_PATTERN = re.compile(r"(?:grid|montage|collage|contact[ _-]?sheet)(?:[ _-]?\d)*", re.IGNORECASE)
"""Name of an image that shows several images: GenEval's script writes grid.png, and Stable Diffusion's grid-0000.png.
"""
NON_GENERATOR_WORDS = frozenset(
    {*NON_GENERATOR_FOLDERS, *SOURCE_FOLDERS, *RESULT_FOLDERS, *EDIT_SOURCE_COLUMNS, *EDIT_RESULT_COLUMNS}
    | {"image", "img", "sample", "prompt", "seed", "target", "mask", "depth", "control", "cond", "before", "after"}
)
"""Words in image names that are not names of generators."""


class ExternalPrompts(NamedTuple):
    """A prompts file outside the image folder."""

    url: str
    rows: Sequence[Row]
    """Rows with `prompt_id` and `prompt`; if the file has no ids, they are hashes of the texts."""
    has_ids: bool
    """True if the file has ids; otherwise image names contain row numbers."""


class DescribedImage(NamedTuple):
    """An image file with values that describe the image (such as the prompt), by column name."""

    image: str
    """Path of the image, relative to the folder."""
    values: Mapping[str, Any]
    origin: str
    """Source of the description, for messages."""
    has_columns: bool = False
    """True if the names in `values` are a user's own columns or fields."""
    generator: str | None = None
    """The generator, if it was found elsewhere than in a column or a folder name."""
    generator_origin: str = "the images' names"
    """Source of `generator`, for messages."""
    file: str = ""
    """Address of the file with the description; empty if the description comes from the image's name alone."""
    line: int | None = None
    """Line number in that file, counted from 1."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Folder:
    """The files in a folder, without hidden files, by their relative paths."""

    place: Place
    names: Sequence[str]
    columns: InputColumnsConfig = field(default_factory=InputColumnsConfig)
    """Column names in the folder's tables."""
    hidden: Sequence[str] = ()
    """Images that are hidden or in hidden folders; `names` contains none of them."""
    outside: Mapping[str, str] = field(default_factory=dict)
    """Images that the configuration leaves out, with the reasons; `names` contains none of them."""
    badly_named: Sequence[str] = ()
    """Printable forms of file names that are not UTF-8; `names` contains none of them."""
    prompts: ExternalPrompts | None = None
    """A prompts file outside the folder."""
    warnings: dict[str, None] = field(default_factory=dict)
    """Warnings for the user that arose while the folder was read."""

    @cached_property
    def _images_and_sources(self) -> list[str]:
        return [name for name in self.names if is_image(name)]

    @cached_property
    def images(self) -> list[str]:
        """Image files and videos, except source images of edits."""
        return [name for name in self._images_and_sources if name not in self.source_paths]

    @property
    def foreign_format_images(self) -> list[str]:
        """Image files in formats that cannot be decoded."""
        return [name for name in self.names if _get_suffix(name) in FOREIGN_SUFFIXES]

    @property
    def text_tables(self) -> list[str]:
        return [name for name in self.names if name.lower().endswith((*SEPARATORS_BY_SUFFIX, *JSON_LINES_SUFFIXES))]

    @cached_property
    def referable_images(self) -> frozenset[str]:
        """All images that a table row may refer to."""
        return frozenset((*self._images_and_sources, *self.hidden, *self.outside))

    @cached_property
    def _referable_by_nfc(self) -> dict[str, str]:
        return {normalize("NFC", name): name for name in self.referable_images if not name.isascii()}

    def find_image(self, path: str) -> str | None:
        """Return the image at this path in any Unicode normalization: é can be one character or two."""
        return path if path in self.referable_images else self._referable_by_nfc.get(normalize("NFC", path))

    @cached_property
    def source_paths(self) -> dict[str, str]:
        """For each source image, the path without its `source` folder and extension, for comparison with edits.

        Empty if all images are in `source` folders.
        """
        paths: dict[str, str] = {}
        for name in self._images_and_sources:
            parts = PurePosixPath(name).with_suffix("").parts
            depth = next((depth for depth, folder in enumerate(parts[:-1]) if folder.lower() in SOURCE_FOLDERS), None)
            if depth is not None:
                paths[name] = "/".join((*parts[:depth], *parts[depth + 1 :]))
        return paths if len(paths) < len(self._images_and_sources) else {}

    @cached_property
    def _sources_by_path(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, path in self.source_paths.items():
            found.setdefault(path, []).append(name)
        return found

    def find_sources(self, image: str) -> list[str]:
        """Return the source images that match an edit's name, from the nearest folder of sources with a match.

        If no source has the edit's exact name, a number at the end is ignored. Inner folders such as `result` are
        ignored too.
        """
        if not image or not self.source_paths:
            return []
        path = PurePosixPath(image).with_suffix("")
        below = [(above, path.relative_to(above).parts) for above in path.parents]
        names = [str(PurePosixPath(above, *parts[first:])) for above, parts in below for first in range(len(parts))]
        paths = (each for name in names for each in (name, NUMBER_SUFFIX_PATTERN.sub("", name)))
        return next((self._sources_by_path[path] for path in paths if path in self._sources_by_path), [])

    def select_subfolders(self, name: str | None) -> "Folder":
        """Return the folder with only the images in subfolders of this name, or unchanged if there is no such folder.

        Other files, which may contain prompts, are kept if they are in such a subfolder or in one of its parent
        folders.
        """
        inner = {path for path in self.names if name in PurePosixPath(path).parts[:-1]}
        if not inner:
            return self
        above = {str(folder) for path in inner for folder in PurePosixPath(path).parents}
        images = {path for path in self.names if _get_suffix(path) in (*IMAGE_SUFFIXES, *FOREIGN_SUFFIXES)}
        kept = [
            path
            for path in self.names
            if path in inner or (path not in images and str(PurePosixPath(path).parent) in above)
        ]
        outside = [path for path in self.names if path in images and path not in inner]
        return replace(self, names=kept, outside=dict.fromkeys(outside, f"outside images_inside={name}"))

    @property
    def own_generator(self) -> str:
        """The generator given by the name of the folder itself."""
        return parse_generator(PurePosixPath(self.place.path).name)

    @cached_property
    def _generators(self) -> dict[str, str]:
        """The generator of each immediate subfolder, by the subfolder's name."""
        return name_generators(dict.fromkeys(name.partition("/")[0] for name in self.names if "/" in name))

    def get_generator(self, image: str) -> str:
        """Return the generator of an image: the first folder in its path, or else the generator of the whole folder.

        The first folder is not a generator if it is a number or a word such as `samples`.
        """
        first, _, rest = image.partition("/")
        shared = NON_GENERATOR_FOLDERS | RESULT_FOLDERS if self.source_paths else NON_GENERATOR_FOLDERS
        is_named = bool(rest) and not first.isdecimal() and first.lower() not in shared
        return self._generators.get(first, first) if is_named else self.own_generator

    def find_generators_in_names(self, prompts: Sequence[str]) -> dict[str, str]:
        """Map each image to the generator in its file name, such as flux in flux_0.png.

        Images in a folder that names a generator are left out.

        Every generator must have images with the same numbers, one for each prompt. A name does not count as a
        generator if it differs from another name only in a number, or if a prompt begins with the name.
        """
        in_folders: dict[PurePosixPath, dict[str, tuple[str, int]]] = defaultdict(dict)
        for image in self.images:
            path = PurePosixPath(image)
            unnamed = self.get_generator(image) == self.own_generator and not any(
                part.isdecimal() for part in path.parts
            )
            if unnamed and not is_contact_sheet(image) and (number := NUMBER_AT_END_PATTERN.search(path.stem)):
                in_folders[path.parent][image] = (path.stem[: number.start()], int(number["number"]))
        found: dict[str, str] = {}
        for numbered in in_folders.values():
            if _are_generators(numbered.values(), prompts):
                found |= {image: name for image, (name, _) in numbered.items()}
        return found

    def get_url(self, name: str) -> str:
        return f"{self.place.url}/{name}"

    def reject_unprompted_image(self, image: str, message: str) -> Rejection:
        """Return the rejection of an image without a prompt; mark a contact sheet, which needs none, as skipped."""
        if is_contact_sheet(image):
            return self.skip(image, "contact sheet, by its name")
        return self.reject(image, Refused("empty_prompt", message))

    def reject(self, image: str, refused: Refused) -> Rejection:
        return refused.to_rejection(self.get_url(image), generator=self.get_generator(image), image_id=image)

    def skip(self, image: str, reason: str) -> Rejection:
        return Refused(SKIPPED_KIND, reason).to_rejection(self.get_url(image))

    def read(self, name: str) -> bytes:
        """Read a small file; raise Refused if it is too large or has been removed since it was listed."""
        with convert_read_errors(self.place, f"{name} in images"):
            try:
                content = (self.place / name).read(MAX_TEXT_BYTES + 1)
            except FileNotFoundError as error:
                raise Refused(
                    "unreadable_line",
                    f"{self.get_url(name)} was removed while the folder was read; run the same command again",
                ) from error
        if len(content) > MAX_TEXT_BYTES:
            raise Refused(
                "text_too_large",
                f"{self.get_url(name)} is over {MAX_TEXT_BYTES} bytes; check that it contains a prompt",
            )
        return content

    def read_all(self, names: Sequence[str]) -> Iterator[bytes | Refused]:
        """Yield the contents of small files in order, reading in parallel; yield Refused for an unreadable file."""

        def read(name: str) -> bytes | Refused:
            try:
                return self.read(name)
            except Refused as refused:
                return refused

        with ThreadPoolExecutor(N_READERS) as pool:
            for start in range(0, len(names), MAX_FILES_READ_AHEAD):
                yield from pool.map(read, names[start : start + MAX_FILES_READ_AHEAD])


def list_image_folder(place: Place, key: str = "images", columns: InputColumnsConfig | None = None) -> Folder:
    """List the files of a folder by name, ignoring any stores in it.

    Raises ConfigError naming `key` if the folder does not exist.
    """
    with convert_read_errors(place, key):
        if not place.exists():
            raise FileNotFoundError(place.url)
        paths = exclude_stores(place, sorted(path for path, _ in place.files()))
    names = [path or place.name for path in paths]
    hidden = {name for name in names if any(part.startswith((".", "__MACOSX")) for part in name.split("/"))}
    visible = [name for name in names if name not in hidden]
    return Folder(
        place=place,
        names=[name for name in visible if name == escape_bytes(name)],
        columns=columns or InputColumnsConfig(),
        hidden=[escape_bytes(name) for name in names if name in hidden and is_image(name)],
        badly_named=[escape_bytes(name) for name in visible if name != escape_bytes(name)],
    )


def _are_generators(numbered: Iterable[tuple[str, int]], prompts: Sequence[str]) -> bool:
    """Return True if the words before the numbers name several generators, each with an image of every prompt.

    The names must differ in more than numbers; none may be a word such as `image` or the beginning of a prompt.
    """
    numbers: dict[str, set[int]] = defaultdict(set)
    for name, number in numbered:
        numbers[name].add(number)
    distinct = {frozenset(own) for own in numbers.values()}
    if len(numbers) < 2 or [len(own) for own in distinct] != [len(prompts)]:
        return False
    without_numbers = {re.sub(r"\d+", "", name.casefold()) for name in numbers}
    if len(without_numbers) < len(numbers) or not all(any(map(str.isalpha, name)) for name in without_numbers):
        return False
    words = [tuple(name.replace("_", " ").casefold().split()) for name in numbers]
    lengths = {len(each) for each in words if len(each) > 1}
    prompt_starts = {tuple(prompt.casefold().split()[:length]) for prompt in prompts for length in lengths}
    return without_numbers.isdisjoint(NON_GENERATOR_WORDS) and prompt_starts.isdisjoint(words)


def is_contact_sheet(image: str) -> bool:
    return CONTACT_SHEET_PATTERN.fullmatch(PurePosixPath(image).stem) is not None


def is_image(path: str) -> bool:
    """Return True if the path has the suffix of a supported image or video format."""
    return _get_suffix(path) in IMAGE_SUFFIXES


def _get_suffix(path: str) -> str:
    return PurePosixPath(path).suffix[1:].lower()
