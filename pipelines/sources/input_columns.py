"""Usual column names of tables with a row for each image."""

from collections.abc import Iterable
from dataclasses import dataclass

from plumbline.pipelines.sources.benchmark import GENERATORS

DEFAULT_NAMES = {
    "image": ("file", "file_name", "image", "filename", "image_path", "path"),
    "prompt": ("prompt", "text", "caption"),
    "prompt_id": ("prompt_id",),
    "image_id": ("image_id",),
    "generator": GENERATORS,
    "skills": ("skills",),
    "source": (),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class InputColumnsConfig:
    """Names of a table's columns, or of the fields in a sample's JSON; null tries the usual names."""

    image: str | None = None
    """The image's path below the folder of images: file, file_name, image, filename, image_path or path."""
    prompt: str | None = None
    """The prompt's text: prompt, text or caption."""
    prompt_id: str | None = None
    """The prompt's id; without one it is a hash of the text."""
    image_id: str | None = None
    """The image's id; without one it is the path, or the tar's name and the sample's."""
    generator: str | None = None
    """The generator's name, unless `generator` fixes one for all rows: generator, model or model_name."""
    skills: str | None = None
    """The prompt's skills, a list or a text with semicolons between them: skills. May be absent."""
    source: str | None = None
    """The source of an edit, in the form of `image`, or a list of several; only read if it is set."""


def find_names(available: Iterable[str], columns: InputColumnsConfig) -> InputColumnsConfig:
    """Return the available name for each role: the configured name, or the first usual name (in any case), or None."""
    exact = {name: name for name in available}
    lower = {name.lower(): name for name in reversed(exact)} | exact
    chosen: dict[str, str | None] = {}
    for role, defaults in DEFAULT_NAMES.items():
        name = getattr(columns, role)
        chosen[role] = exact.get(name) if name else next((lower[usual] for usual in defaults if usual in lower), None)
    return InputColumnsConfig(**chosen)
