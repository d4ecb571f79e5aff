"""Computed sections of a Markdown page, whose other text people write."""

from plumbline.operators.errors import ConfigError
from plumbline.pipelines.base.storage import Place, readable_errors


def write_section(page: Place, name: str, text: str) -> None:
    """Replaces the section between `<!-- begin NAME -->` and `<!-- end NAME -->` of a page, or starts a new page.

    Raises ConfigError where the page exists and lacks these comments, or cannot be read.
    """
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    with readable_errors(page, "a Markdown page"):
        content = page.read().decode() if page.exists() else f"{begin}\n{end}\n"
    before, begun, rest = content.partition(begin)
    _, ended, after = rest.partition(end)
    if not begun or not ended:
        raise ConfigError(f"{page}: expected the lines {begin} and {end}, between which the tables go; add both")
    page.write(f"{before}{begin}\n{text.strip()}\n{end}{after}".encode())
