"""Computed sections of a Markdown page, whose other text people write."""

from plumbline.operators.errors import ConfigError
from plumbline.pipelines.base.storage import StorageConfig, locate, readable_errors, write_file


def write_section(url: str, storage: StorageConfig, name: str, text: str) -> None:
    """Replaces the section between `<!-- begin NAME -->` and `<!-- end NAME -->` of a page, or starts a new page.

    Raises ConfigError where the page exists and lacks these comments, or cannot be read.
    """
    location = locate(url, storage)
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    with readable_errors(location, "a Markdown page"):
        exists = location.fs.exists(location.path)
        page = location.fs.cat_file(location.path).decode() if exists else f"{begin}\n{end}\n"
    before, begun, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise ConfigError(f"{url}: expected the lines {begin} and {end}, between which the tables go; add both")
    write_file(location, location.path, f"{before}{begin}\n{text.strip()}\n{end}{after}".encode())
