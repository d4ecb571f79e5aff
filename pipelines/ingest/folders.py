"""A folder of image files as a table: a row for each image, of what its layout tells."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from pipelines.ingest.config import IngestConfig
from pipelines.ingest.drafting import SourceFile
from pipelines.ingest.layouts.layout import Told, list_images
from pipelines.ingest.layouts.table import read_layout
from pipelines.ingest.rows import InputColumnsConfig, find_names
from pipelines.storage import Location
from pipelines.tables import Rejection, Row

NAMES = InputColumnsConfig(image="file", prompt="prompt", prompt_id="prompt_id", generator="generator", skills="skills")
NO_GENERATORS = frozenset({"images", "samples", "train", "test", "validation", "val"})
"""Folders that images lie in, whoever made them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderTable:
    """What the layout of a folder tells of its images."""

    location: Location
    columns: InputColumnsConfig

    @property
    def kinds(self) -> Mapping[str, str]:
        """No further columns: what stands beside images is of no one form."""
        return {}

    @property
    def url(self) -> str:
        """The folder's address."""
        return self.location.url

    @property
    def files(self) -> list[SourceFile]:
        """None that must stay as it is: a folder grows."""
        return []

    def names(self, config: IngestConfig) -> InputColumnsConfig:
        """Those of the values that `rows` gives."""
        return NAMES

    def place(self, row: Row) -> tuple[str, int | None]:
        """The image file of a row."""
        return f"{self.url}/{row.values['file']}", None

    def rows(self, image: str) -> Iterator[Row | Rejection]:
        """Every image, by the usual names of columns; raises ConfigError for a folder of no known layout."""
        for number, told in enumerate(read_layout(list_images(self.location)), start=1):
            yield Row(number, self._values(told)) if isinstance(told, Told) else told

    def _values(self, told: Told) -> dict[str, Any]:
        names = find_names(told.values, self.columns)
        roles = {"prompt": names.prompt, "prompt_id": names.prompt_id, "skills": names.skills}
        values = {role: told.values[name] for role, name in roles.items() if name is not None}
        named = told.values.get(names.generator) if names.generator is not None else None
        return {"file": told.image, "generator": named or self._generator(told.image), **values}

    def _generator(self, image: str) -> str:
        """The folder's own name; or that of the folder in it, where it is neither a number nor says what is in it."""
        first, _, rest = image.partition("/")
        inner = bool(rest) and not first.isdecimal() and first.lower() not in NO_GENERATORS
        return first if inner else PurePosixPath(self.location.path).name

    def schema(self, names: list[str]) -> pa.Schema:
        """As `kinds`."""
        return pa.schema([])

    def values(self, row: Row, names: list[str]) -> dict[str, Any]:
        """As `kinds`."""
        return {}
