"""Recognises the layouts of image folders that contain their own prompts, and reads such a folder as a table."""

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import convert_read_errors
from plumbline.pipelines.base.tables import (
    JSON_LINES_SUFFIXES,
    SEPARATORS_BY_SUFFIX,
    WORKBOOK_SUFFIXES,
    Refused,
    Rejection,
    Row,
    parse_object,
)
from plumbline.pipelines.ingest.draft_workers import SourceFile
from plumbline.pipelines.ingest.image_folders import (
    NUMBER_SUFFIX_PATTERN,
    DescribedImage,
    ExternalPrompts,
    Folder,
    is_contact_sheet,
    is_image,
    list_image_folder,
)
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.input_rows import Candidate, refuse_foreign_format
from plumbline.pipelines.ingest.list_layout import (
    LIST_FILE,
    PromptList,
    describe_images_by_number,
    find_lists,
    find_numbers,
    read_lists,
)
from plumbline.pipelines.ingest.table_layout import find_tables, list_file_name_columns, match_rows, read_tables
from plumbline.pipelines.ingest.text_tables import Table, read_column_names
from plumbline.pipelines.sources.benchmark import PromptsFrom
from plumbline.pipelines.sources.input_columns import InputColumnsConfig, find_column_names
from plumbline.pipelines.sources.origins import (
    Origins,
    SeenOrigins,
    describe_ignored_files,
    format_first_names,
    format_suffix_counts,
)

TABLE_SUFFIXES = (*SEPARATORS_BY_SUFFIX, *JSON_LINES_SUFFIXES, ".json", ".parquet", ".arrow", *WORKBOOK_SUFFIXES)
PROMPT_WORD_PATTERN = re.compile(r"[^\W\d_]{2,}")
PROMPTS_FILE_PATTERN = re.compile(
    r"(?!\.).*(prompt|caption|metadata).*\.(csv|tsv|jsonl?|ndjson|txt|parquet)", re.IGNORECASE
)
"""Pattern of file names that suggest a prompts file."""
MIN_FOLDER_WORDS = 3
"""Minimum number of words in a folder name that counts as a prompt; `run one` has too few."""
DESCRIPTION_LOCATION_KEY = "described in"
"""Key in a row of a FolderTable. Its value names the file and the line that describe the image."""
FOLDER_TABLE_COLUMNS = InputColumnsConfig(
    image="file", prompt="prompt", prompt_id="prompt_id", generator="generator", skills="skills"
)
"""The columns of a FolderTable."""


class Layout(NamedTuple):
    """A way of storing prompts together with a folder's images."""

    name: PromptsFrom
    """The layout's name in `prompts_from`."""
    contents: str
    """Description of the contents of a folder with this layout."""
    files: Callable[[Folder], Collection[str]]
    """Function that returns the paths of the files with the prompts; empty if the folder has another layout."""
    read: Callable[[Folder], Iterator[DescribedImage | Rejection]]
    """Function that yields every image with its prompt, and rejections; raises ConfigError if no image can be matched
    to a prompt.
    """


def _find_sidecar_files(folder: Folder) -> dict[str, str]:
    """Return the prompt file for each image that has one: the .txt, or else the .json, with the same name."""
    names = set(folder.names)
    sidecar_files = {}
    for image in folder.images:
        candidates = (str(PurePosixPath(image).with_suffix(ending)) for ending in (".txt", ".json"))
        if name := next((name for name in candidates if name in names), None):
            sidecar_files[image] = name
    return sidecar_files


def _read_sidecar_files(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    sidecar_files = _find_sidecar_files(folder)
    for image in folder.images:
        if image not in sidecar_files:
            message = (
                f"there is no .txt or .json of the same name with its prompt; write {PurePosixPath(image).stem}.txt"
            )
            yield folder.reject_unprompted_image(image, message)
    for (image, name), content in zip(
        sidecar_files.items(), folder.read_all(list(sidecar_files.values())), strict=True
    ):
        try:
            if isinstance(content, Refused):
                raise content
            ending = PurePosixPath(name).suffix
            values, origin = _parse_description(folder, name, content), f"the {ending} next to each image"
            yield DescribedImage(image, values, origin, has_columns=ending == ".json")
        except Refused as refused:
            yield refused.to_rejection(folder.get_url(name), generator=folder.get_generator(image), image_id=image)


def _parse_description(folder: Folder, name: str, content: bytes) -> dict[str, Any]:
    if name.endswith(".json"):
        values = parse_object(content)
        columns = find_column_names(values, folder.columns)
        if not any(str(values[each] or "").strip() for each in (columns.prompt, columns.prompt_id) if each):
            raise Refused("empty_prompt", "the .json has neither a prompt nor a prompt_id; add one")
        return values
    try:
        prompt = content.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise Refused("not_utf8", f"the .txt is not UTF-8 at byte {error.start}; save it as UTF-8") from error
    if not prompt:
        raise Refused("empty_prompt", "the .txt is empty; write the prompt of its image into it")
    return {"prompt": prompt}


def _find_prompt_in_name(image: str) -> str:
    """Return the prompt in the name of an image or of its folder; empty if there is none.

    The name of the image's folder counts only if that folder is within a generator's folder.

    A prompt has at least two words, unlike `image_001` and `00001`. In a name without spaces, underscores count as
    spaces.
    """
    path = PurePosixPath(image)
    candidates = [(NUMBER_SUFFIX_PATTERN.sub("", path.stem), 0)]
    if len(path.parts) > 2:
        candidates.append((path.parts[-2], MIN_FOLDER_WORDS))
    for name, least in candidates:
        words = (name if " " in name else name.replace("_", " ")).strip()
        if len(PROMPT_WORD_PATTERN.findall(words)) > 1 and len(words.split()) >= least:
            return words
    return ""


def _list_images_named_by_prompt(folder: Folder) -> list[str]:
    return [image for image in folder.images if _find_prompt_in_name(image) and not is_contact_sheet(image)]


def _may_use_names_as_prompts(folder: Folder) -> bool:
    """Return True if image names may be used as prompts without the user asking for it.

    The folder must not have tables, which could contain other prompts. For each generator the names must differ in more
    than a number, unlike `sdxl_turbo_0001.png` and `sdxl_turbo_0002.png`.
    """
    prompts: dict[str, set[str]] = {}
    for image in _list_images_named_by_prompt(folder):
        prompts.setdefault(folder.get_generator(image), set()).add(_find_prompt_in_name(image))
    tables = any(name.lower().endswith(TABLE_SUFFIXES) for name in folder.names)
    return not tables and bool(prompts) and all(len(different) > 1 for different in prompts.values())


def _read_prompts_from_names(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    for image in folder.images:
        prompt = _find_prompt_in_name(image)
        if prompt and not is_contact_sheet(image):
            yield DescribedImage(image, {"prompt": prompt}, "the images' names")
        else:
            message = "its name has no prompt; write prompts.txt, a line for each image, or a table (docs/ingest.md)"
            yield folder.reject_unprompted_image(image, message)


def _read_ids(folder: Folder) -> Iterator[DescribedImage | Rejection]:
    """Yield each image with the prompt id in the image's name; a name without a known id is itself used as an id.

    If the prompts have no ids, line numbers are used instead. Raises ConfigError if no image belongs to any prompt.
    """
    prompts = folder.prompts
    images = [image for image in folder.images if not is_contact_sheet(image)]
    columns = InputColumnsConfig(prompt_id="prompt_id", prompt="prompt")
    match = match_rows(images, prompts.rows, columns, "prompt_id", folder) if prompts else None
    if match is None and prompts is not None:
        if not prompts.has_ids:
            texts = [row.values["prompt"] for row in prompts.rows]
            numbers = range(1, len(texts) + 1) if prompts.url.lower().endswith(".txt") else [None] * len(texts)
            lines = PromptList(PurePosixPath(prompts.url).name, prompts.url, texts, numbers)
            yield from describe_images_by_number(folder, lines, folder.images)
            return
        _require_known_id(folder, prompts, images)
    origin = f"the ids in the {match.path_part}" if match else "the images' names, which are ids"
    generators = match.find_generators(folder.own_generator) if match else {}
    for image in folder.images:
        row = match.rows.get(image) if match else None
        if row is None and is_contact_sheet(image):
            yield folder.reject_unprompted_image(image, "")
        else:
            prompt_id = row.values["prompt_id"] if row else PurePosixPath(image).stem
            yield DescribedImage(image, {"prompt_id": prompt_id}, origin, generator=generators.get(image))


def _require_known_id(folder: Folder, prompts: ExternalPrompts, images: Sequence[str]) -> None:
    ids = [str(row.values["prompt_id"]) for row in prompts.rows]
    if {PurePosixPath(image).stem for image in images} & {*ids}:
        return
    problem = f"none of its ids, such as {ids[0]}, is in the images' names, such as {images[0]}" if images else ""
    if all(map(str.isdecimal, ids)):
        known = {int(prompt_id) for prompt_id in ids}
        for image, number in find_numbers(images).items():
            if number not in known:
                reason = f"{image}: {number if isinstance(number, str) else f'no prompt has the number {number}'}"
                problem = f"its ids are numbers, which must be in the names of all images; {reason}"
                break
    raise ConfigError(f"images {folder.place.url}: no image belongs to a prompt of {prompts.url}: {problem}")


LAYOUTS = (
    # Hugging Face's image folders, GenEval's folder per prompt, and scripts' CSVs. A row describes the images that it
    # names (`file_name`, `file_names` or `flux_file_name`, as in Hugging Face's `imagefolder`), or images whose names
    # contain the row's id. A metadata file whose only row names no image describes all images in the file's folder and
    # in its subfolders, as GenEval writes metadata.jsonl.
    Layout(
        name="tables",
        contents="a metadata.jsonl or metadata.csv, with the names of image files or next to those of one prompt, or "
        "another CSV or JSON Lines file with columns file and prompt",
        files=find_tables,
        read=read_tables,
    ),
    Layout(
        name="list",
        contents=f"a {LIST_FILE}, with one prompt per line, and line numbers in the image names",
        files=find_lists,
        read=read_lists,
    ),
    # Datasets made by img2dataset, or for trainers.
    Layout(
        name="beside",
        contents="a .txt or .json of its name next to each image",
        files=lambda folder: _find_sidecar_files(folder).values(),
        read=_read_sidecar_files,
    ),
    # T2I-CompBench's names: `a red cube on a table_000002.png`.
    Layout(
        name="names",
        contents="prompts as the images' names, such as a_red_cube_000.png",
        files=_list_images_named_by_prompt,
        read=_read_prompts_from_names,
    ),
    # The name of an image is its prompt's id, as in GEdit-Bench and ImgEdit; only if the configuration asks for it.
    Layout(name="ids", contents="images", files=lambda folder: folder.images, read=_read_ids),
)
"""All layouts; the first layout that fits a folder is used."""


def read_layout(
    folder: Folder, prompts_from: PromptsFrom | None
) -> tuple[Iterator[DescribedImage | Rejection], list[str]]:
    """Read a folder according to its layout; raise ConfigError if it has no images or no known layout.

    Returns:
        Every image with its description or the reason for leaving it out, and the ignored files, which are neither
        images nor descriptions.
    """
    if not folder.images:
        kinds = format_suffix_counts(folder.names)
        raise ConfigError(f"images {folder.place.url}: expected image files, found {kinds or 'none'}")
    layout = _find_layout(folder, prompts_from)
    read = {*folder.images, *folder.source_paths, *folder.foreign_format_images, *layout.files(folder)}
    ignored = [name for name in (*folder.names, *folder.badly_named) if name not in read and not is_image(name)]
    return _read_all_descriptions(folder, layout), ignored


def _find_layout(folder: Folder, prompts_from: PromptsFrom | None) -> Layout:
    for layout in LAYOUTS:
        if prompts_from in (None, layout.name) and layout.files(folder):
            if prompts_from is None and (
                layout.name == "ids" or (layout.name == "names" and not _may_use_names_as_prompts(folder))
            ):
                continue
            return layout
    if prompts_from is not None:
        contents = next(layout.contents for layout in LAYOUTS if layout.name == prompts_from)
        raise ConfigError(f"images {folder.place.url}: prompts_from={prompts_from} expects {contents}, found none")
    raise ConfigError(
        f"images {folder.place.url}: found no prompts for its {len(folder.images)} images."
        f"{_suggest_prompt_files(folder)} Add a table images.csv with the columns file, prompt and generator; "
        "or prompts.txt with one prompt per line, for numbered images; or a .txt next to each image (docs/ingest.md)"
    )


def _read_all_descriptions(folder: Folder, layout: Layout) -> Iterator[DescribedImage | Rejection]:
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
    for image in filter(is_image, folder.badly_named):
        yield folder.reject(image, Refused("not_utf8", "the file's name is not UTF-8; rename it"))
    for image in folder.foreign_format_images:
        try:
            refuse_foreign_format(image)
        except Refused as refused:
            yield folder.reject(image, refused)


def _suggest_prompt_files(folder: Folder) -> str:
    """Return hints about files and columns that may contain the prompts, with the command or option to read each."""
    hints = ""
    other_tables = [folder.get_url(name) for name in folder.names if name.lower().endswith(TABLE_SUFFIXES)]
    if folder.text_tables:
        table = folder.text_tables[0]
        try:
            columns = ", ".join(read_column_names(folder.place / table))
            hints += (
                f" {table} has the columns {columns}, but none has values that occur in the image names, such as "
                f"{folder.images[0]}: set columns.image=NAME or columns.prompt_id=NAME to the column of files or ids, "
                "and columns.prompt=NAME to the column of prompts."
            )
        except ConfigError as error:
            hints += f" {error}."
    elif prompts := next(iter(other_tables or _find_prompt_files(folder)), None):
        command = shlex.join(["plumbline", "score", f"images={folder.place.url}", f"prompts={prompts}"])
        hints += f" If the image names contain the ids or numbers of {prompts}, run: {command}."
    if images := _list_images_named_by_prompt(folder):
        hints += f" prompts_from=names uses the images' names, such as {_find_prompt_in_name(images[0])!r}."
    return hints


def _find_prompt_files(folder: Folder) -> list[str]:
    """Return the URLs of files next to the folder whose names suggest that they list prompts."""
    with suppress(ConfigError), convert_read_errors(folder.place.parent, "images"):
        names = sorted(name for name, entry in folder.place.parent.list().items() if entry.type == "file")
        return [f"{folder.place.parent.url}/{name}" for name in names if PROMPTS_FILE_PATTERN.fullmatch(name)]
    return []


@dataclass(slots=True)
class SeenSources:
    """Source images found so far in a folder of edits, and edits without a source."""

    columns: dict[str, None] = field(default_factory=dict)
    """Descriptions of the columns that name sources."""
    matched: dict[str, None] = field(default_factory=dict)
    """Source images that were matched to edits by name."""
    unmatched_edits: dict[str, None] = field(default_factory=dict)
    """Edits for which no source was found."""
    ambiguous_edits: dict[str, None] = field(default_factory=dict)
    """Edits for which several sources were found."""

    def describe(self) -> str:
        """Describe the source columns and source images in one line; it is empty if the folder has no source images."""
        lines = list(self.columns)
        if self.matched:
            folders = dict.fromkeys(f"{PurePosixPath(source).parent}/" for source in sorted(self.matched))
            lines.append(f"{len(self.matched)}, from {format_first_names(list(folders))}, by name")
            if self.unmatched_edits:
                lines.append(
                    f"images without a source: {len(self.unmatched_edits)}, such as {next(iter(self.unmatched_edits))}"
                )
            if self.ambiguous_edits:
                example = next(iter(self.ambiguous_edits))
                lines.append(
                    f"images with several sources of the same name: {len(self.ambiguous_edits)}, such as {example}"
                )
        return "; ".join(lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderTable(Table):
    """A folder of images as a table with the columns in FOLDER_TABLE_COLUMNS, and `source` if it has source images."""

    columns: InputColumnsConfig
    prompts_from: PromptsFrom | None = None
    images_inside: str | None = None
    prompts: ExternalPrompts | None = None
    """The prompts file that is passed to Folder."""
    _seen: SeenOrigins = field(default_factory=SeenOrigins)
    _ignored: list[str] = field(default_factory=list)
    _listed: list[Folder] = field(default_factory=list)
    """Cache with the listed folder, which `map_columns` and `iterate_rows` need; empty before the first listing."""
    _sources: SeenSources = field(default_factory=SeenSources)
    _warnings: dict[str, None] = field(default_factory=dict)

    @property
    def files(self) -> list[SourceFile]:
        """An empty list: a folder may grow between two commands, so it is not recorded as an input file."""
        return []

    def map_columns(self, config: IngestConfig) -> InputColumnsConfig:
        """Return the column names that `iterate_rows` uses."""
        self._listed[:] = [self._list_folder()]
        return replace(
            FOLDER_TABLE_COLUMNS, source="source" if self._listed[0].source_paths or self.columns.source else None
        )

    def _list_folder(self) -> Folder:
        folder = list_image_folder(self.place, columns=self.columns).select_subfolders(self.images_inside)
        return replace(folder, prompts=self.prompts)

    def describe_origins(self, config: IngestConfig) -> Origins:
        """Return the origins of the prompts and generators in the rows that have been read."""
        return self._seen.to_origins(config.generator)._replace(
            passed_over=describe_ignored_files(self._ignored),
            sources=self._sources.describe(),
            warnings=list(self._warnings),
        )

    def locate_row(self, row: Row) -> tuple[str, int | None]:
        """Return the file and line that describe an image, or the image file itself if nothing describes it."""
        described: tuple[str, int | None] = row.values[DESCRIPTION_LOCATION_KEY]
        return described

    def select_hashed_part(self, candidate: Candidate) -> Candidate:
        """Return the part of a row that is hashed into the key of its shard.

        The file and line of the description are replaced by the address of the image, because a description can move
        while the image stays the same.
        """
        return candidate._replace(file=f"{self.url}/{candidate.image_id}", line=None)

    def iterate_rows(self, image: str) -> Iterator[Row | Rejection]:
        """Yield every image as a row with the usual column names; raise ConfigError if the layout is unknown."""
        folder = self._listed.pop() if self._listed else self._list_folder()
        descriptions, self._ignored[:] = read_layout(folder, self.prompts_from)
        for number, each in enumerate(descriptions, start=1):
            yield Row(number, self._read_values(each, folder)) if isinstance(each, DescribedImage) else each
        self._warnings.update(folder.warnings)

    def _read_values(self, description: DescribedImage, folder: Folder) -> dict[str, Any]:
        """Return a row's values under the columns in FOLDER_TABLE_COLUMNS, and record their origins."""
        image, values, origin = description.image, description.values, description.origin
        names = find_column_names(values, self.columns)
        roles = {"prompt": names.prompt, "prompt_id": names.prompt_id, "skills": names.skills}
        row: dict[str, Any] = {role: values[name] for role, name in roles.items() if name is not None}
        row["generator"] = values.get(names.generator) if names.generator is not None else None
        generator_origin = f"the column {names.generator!r} of {origin}"
        if not row["generator"]:
            generator_origin = description.generator_origin if description.generator else "the folders' names"
            row["generator"] = description.generator or folder.get_generator(image)
        used = (names.image, names.prompt, names.prompt_id, names.generator, names.skills, names.source)
        file_names = () if names.image else list_file_name_columns(values, self.columns)
        unread = [name for name in values if name not in (*used, *file_names)] if description.has_columns else ()
        column = f"the column {names.prompt or names.prompt_id!r} of {origin}"
        self._seen.note(column if description.has_columns else origin, generator_origin, unread)
        if names.source is not None:
            self._sources.columns[f"the column {names.source!r} of {origin}"] = None
            row["source"] = values[names.source]
        else:
            sources = folder.find_sources(image)
            self._sources.matched.update(dict.fromkeys(sources))
            if len(sources) != 1:
                (self._sources.ambiguous_edits if sources else self._sources.unmatched_edits)[image] = None
            row["source"] = sources[0] if len(sources) == 1 else None
        described_in = (description.file or folder.get_url(image), description.line)
        return {**row, "file": image, DESCRIPTION_LOCATION_KEY: described_in}
