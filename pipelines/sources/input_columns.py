"""Column names that are recognized in tables with one row per image."""

from collections.abc import Iterable
from dataclasses import dataclass

from plumbline.pipelines.sources.benchmark import GENERATOR_COLUMNS

DEFAULT_COLUMN_NAMES = {
    "image": ("file", "file_name", "image", "filename", "image_path", "path"),
    "prompt": ("prompt", "text", "caption"),
    "prompt_id": ("prompt_id",),
    "image_id": ("image_id",),
    "generator": GENERATOR_COLUMNS,
    "skills": ("skills",),
    "source": (),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class InputColumnsConfig:
    """Names of a table's columns, or of the fields in a sample's JSON; if a name is null, the usual names are tried."""

    image: str | None = None
    """The image's path relative to the image folder. Usual names: file, file_name, image, filename, image_path, path.
    """
    prompt: str | None = None
    """The prompt's text. Usual names: prompt, text, caption."""
    prompt_id: str | None = None
    """The prompt's id. By default, a hash of its text."""
    image_id: str | None = None
    """The image's id. By default, its path, or the names of its tar and sample."""
    generator: str | None = None
    """The generator's name, unless `generator` sets one for all rows. Usual names: generator, model, model_name."""
    skills: str | None = None
    """The prompt's skills: a list, or a string separated by semicolons. Optional. Usual name: skills."""
    source: str | None = None
    """The source of an edit, in the same form as `image`, or a list of several sources; read only if this is set."""


def find_column_names(available: Iterable[str], columns: InputColumnsConfig) -> InputColumnsConfig:
    """Return the name of the column for each role, or None if no such column is available.

    This is the configured name or, if none is configured, the first usual name, compared without regard to case.
    """
    exact = {name: name for name in available}
    lower = {name.lower(): name for name in reversed(exact)} | exact
    chosen: dict[str, str | None] = {}
    for role, defaults in DEFAULT_COLUMN_NAMES.items():
        name = getattr(columns, role)
        chosen[role] = exact.get(name) if name else next((lower[usual] for usual in defaults if usual in lower), None)
    return InputColumnsConfig(**chosen)
