"""All layouts of folders, in the order in which they are looked for."""

from collections.abc import Iterator

from operators.errors import ConfigError
from pipelines.ingest.layouts import file_names, metadata, prompt_list, sidecars
from pipelines.ingest.layouts.layout import Folder, Layout, Told
from pipelines.tables import Rejection

LAYOUTS: tuple[Layout, ...] = (metadata.LAYOUT, prompt_list.LAYOUT, sidecars.LAYOUT, file_names.LAYOUT)


def read_layout(folder: Folder) -> Iterator[Told | Rejection]:
    """Every image with what is told of it; raises ConfigError for a folder without images, or of no known layout."""
    if not folder.images:
        raise ConfigError(f"images {folder.location.url}: expected image files, found none")
    for layout in LAYOUTS:
        if layout.recognises(folder):
            return layout.read(folder)
    known = "; or ".join(layout.looks for layout in LAYOUTS)
    raise ConfigError(
        f"images {folder.location.url}: nothing tells the prompts of its {len(folder.images)} images; "
        f"expected {known}; or a table (table=FILE)"
    )
