"""A folder of images as a table, whose rows come from the folder's layout."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from plumbline.pipelines.base.tables import Rejection, Row
from plumbline.pipelines.ingest.drafting import SourceFile
from plumbline.pipelines.ingest.image_folders import DescribedImage, Folder, PromptsOutside, list_images
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.input_rows import Candidate
from plumbline.pipelines.ingest.layouts import read_layout
from plumbline.pipelines.ingest.table_layout import file_name_columns
from plumbline.pipelines.ingest.typed_tables import Table
from plumbline.pipelines.sources.benchmark import PromptsFrom
from plumbline.pipelines.sources.input_columns import InputColumnsConfig, find_names
from plumbline.pipelines.sources.origins import Origins, SeenOrigins, name_some, pass_over


@dataclass(slots=True)
class SeenSources:
    """Origins of the sources in a folder of edits, and the edits without a source."""

    columns: dict[str, None] = field(default_factory=dict)
    """Columns of sources, in words."""
    used: dict[str, None] = field(default_factory=dict)
    without: dict[str, None] = field(default_factory=dict)
    unclear: dict[str, None] = field(default_factory=dict)

    def note(self, image: str, sources: Sequence[str]) -> None:
        """Record the candidate sources of an image, found by its name."""
        self.used.update(dict.fromkeys(sources))
        if len(sources) != 1:
            (self.unclear if sources else self.without)[image] = None

    def __str__(self) -> str:
        """Return a line for people; empty without any sources."""
        parts = list(self.columns)
        if self.used:
            folders = dict.fromkeys(f"{PurePosixPath(source).parent}/" for source in sorted(self.used))
            parts.append(f"{len(self.used)}, from {name_some(list(folders))}, by name")
            for what, images in (("without one", self.without), ("with several of their name", self.unclear)):
                parts += [f"images {what}: {len(images)}, such as {next(iter(images))}"] if images else []
        return "; ".join(parts)


DESCRIBED_IN = "described in"
"""The value of a row that contains the file and line that describe the image."""
NAMES = InputColumnsConfig(image="file", prompt="prompt", prompt_id="prompt_id", generator="generator", skills="skills")


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderTable(Table):
    """A folder of images as a table with the columns of NAMES; it has no others, as descriptions have many forms."""

    columns: InputColumnsConfig
    prompts_from: PromptsFrom | None = None
    inside: str | None = None
    prompts: PromptsOutside | None = None
    """The prompts file of the Folder."""
    _seen: SeenOrigins = field(default_factory=SeenOrigins)
    _passed_over: list[str] = field(default_factory=list)
    _listed: list[Folder] = field(default_factory=list)
    """The folder, from when its columns are asked for until its rows are."""
    _sources: SeenSources = field(default_factory=SeenSources)
    _warnings: dict[str, None] = field(default_factory=dict)

    @property
    def files(self) -> list[SourceFile]:
        """Return no files: a folder may grow between two commands."""
        return []

    def names(self, config: IngestConfig) -> InputColumnsConfig:
        """Return the names of the columns of `rows`."""
        self._listed[:] = [self._list()]
        return replace(NAMES, source="source" if self._listed[0].source_paths or self.columns.source else None)

    def _list(self) -> Folder:
        return replace(list_images(self.place, columns=self.columns).inside(self.inside), prompts=self.prompts)

    def origins(self, config: IngestConfig) -> Origins:
        """Return the origins of prompts and generators of the rows that were read."""
        return self._seen.origins(config.generator)._replace(
            passed_over=pass_over(self._passed_over), sources=str(self._sources), warnings=list(self._warnings)
        )

    def source(self, row: Row) -> tuple[str, int | None]:
        """Return the file, and its line, that describes an image; the image file if no other does."""
        described: tuple[str, int | None] = row.values[DESCRIBED_IN]
        return described

    def hashed(self, candidate: Candidate) -> Candidate:
        """Return a row without the line of its description, because lines may move while an image is unchanged."""
        return candidate._replace(file=f"{self.url}/{candidate.image_id}", line=None)

    def rows(self, image: str) -> Iterator[Row | Rejection]:
        """Yield every image, under the usual names of columns; raises ConfigError for a folder of no known layout."""
        folder = self._listed.pop() if self._listed else self._list()
        descriptions, passed_over = read_layout(folder, self.prompts_from)
        self._passed_over[:] = passed_over
        for number, each in enumerate(descriptions, start=1):
            yield Row(number, self._values(each, folder)) if isinstance(each, DescribedImage) else each
        self._warnings.update(folder.warnings)

    def _values(self, description: DescribedImage, folder: Folder) -> dict[str, Any]:
        names = find_names(description.values, self.columns)
        roles = {"prompt": names.prompt, "prompt_id": names.prompt_id, "skills": names.skills}
        values = {role: description.values[name] for role, name in roles.items() if name is not None}
        named = description.values.get(names.generator) if names.generator is not None else None
        self._note(description, names)
        values["source"] = self._source(description, names, folder)
        generator = named or description.generator or folder.generator(description.image)
        described = (description.file or folder.at(description.image), description.line)
        return {"file": description.image, "generator": generator, DESCRIBED_IN: described, **values}

    def _source(self, description: DescribedImage, names: InputColumnsConfig, folder: Folder) -> Any:
        """Return the source of an edit: from its row, or the only image of the edit's name in a folder of sources."""
        if names.source is not None:
            self._sources.columns[f"the column {names.source!r} of {description.source}"] = None
            return description.values[names.source]
        sources = folder.sources(description.image)
        self._sources.note(description.image, sources)
        return sources[0] if len(sources) == 1 else None

    def _note(self, description: DescribedImage, names: InputColumnsConfig) -> None:
        column = f"the column {names.prompt or names.prompt_id!r} of {description.source}"
        named = names.generator is not None and description.values.get(names.generator)
        whose = description.named_by or "the folders' names"
        if named:
            whose = f"the column {names.generator!r} of {description.source}"
        read = (names.image, names.prompt, names.prompt_id, names.generator, names.skills, names.source)
        of_images = () if names.image else file_name_columns(description.values, self.columns)
        unread = [name for name in description.values if name not in (*read, *of_images)] if description.named else ()
        self._seen.note(column if description.named else description.source, whose, unread)
