"""A folder of image files as a table: a row for each image, of what its layout tells."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from plumbline.pipelines.base.tables import Rejection, Row
from plumbline.pipelines.ingest.drafting import SourceFile
from plumbline.pipelines.ingest.image_folders import Folder, list_images
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.input_rows import InputColumnsConfig, find_names
from plumbline.pipelines.ingest.layouts import DescribedImage, read_layout
from plumbline.pipelines.ingest.typed_tables import Table
from plumbline.pipelines.sources.benchmark import PromptsFrom
from plumbline.pipelines.sources.origins import Origins, SeenOrigins, pass_over

NAMES = InputColumnsConfig(image="file", prompt="prompt", prompt_id="prompt_id", generator="generator", skills="skills")


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderTable(Table):
    """What the layout of a folder tells of its images; no further columns, for what stands beside is of no one form."""

    columns: InputColumnsConfig
    prompts_from: PromptsFrom | None = None
    _seen: SeenOrigins = field(default_factory=SeenOrigins)
    _passed_over: list[str] = field(default_factory=list)

    @property
    def files(self) -> list[SourceFile]:
        """None that must stay as it is: a folder grows."""
        return []

    def names(self, config: IngestConfig) -> InputColumnsConfig:
        """Those of the values that `rows` gives."""
        return NAMES

    def origins(self, config: IngestConfig) -> Origins:
        """What told the prompts and the generators of the rows that were read."""
        return self._seen.origins(config.generator)._replace(passed_over=pass_over(self._passed_over))

    def source(self, row: Row) -> tuple[str, int | None]:
        """The image file of a row."""
        return f"{self.url}/{row.values['file']}", None

    def rows(self, image: str) -> Iterator[Row | Rejection]:
        """Every image, by the usual names of columns; raises ConfigError for a folder of no known layout."""
        folder = list_images(self.place, columns=self.columns)
        told_rows, passed_over = read_layout(folder, self.prompts_from)
        self._passed_over[:] = passed_over
        for number, told in enumerate(told_rows, start=1):
            yield Row(number, self._values(told, folder)) if isinstance(told, DescribedImage) else told

    def _values(self, told: DescribedImage, folder: Folder) -> dict[str, Any]:
        names = find_names(told.values, self.columns)
        roles = {"prompt": names.prompt, "prompt_id": names.prompt_id, "skills": names.skills}
        values = {role: told.values[name] for role, name in roles.items() if name is not None}
        named = told.values.get(names.generator) if names.generator is not None else None
        self._note(told, names)
        return {"file": told.image, "generator": named or folder.generator(told.image), **values}

    def _note(self, told: DescribedImage, names: InputColumnsConfig) -> None:
        column = f"the column {names.prompt or names.prompt_id!r} of {told.source}"
        named = names.generator is not None and told.values.get(names.generator)
        whose = f"the column {names.generator!r} of {told.source}" if named else "the folders' names"
        read = (names.image, names.prompt, names.prompt_id, names.generator, names.skills)
        unread = [name for name in told.values if name not in read] if told.named else ()
        self._seen.note(column if told.named else told.source, whose, unread)
