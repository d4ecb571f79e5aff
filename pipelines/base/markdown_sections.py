"""Computed sections of a Markdown or YAML file, whose other text people write."""

from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import Place, readable_errors


class Comments(NamedTuple):
    """How a kind of file writes a comment: what stands before it, and behind."""

    before: str
    behind: str

    def marks(self, name: str) -> tuple[str, str]:
        """The lines between which the section of this name stands."""
        return f"{self.before}begin {name}{self.behind}", f"{self.before}end {name}{self.behind}"


MARKDOWN, YAML = Comments("<!-- ", " -->"), Comments("# ", " #")


def write_section(page: Place, name: str, text: str) -> None:
    """Replaces the section between `<!-- begin NAME -->` and `<!-- end NAME -->` of a page, or starts a new page.

    Raises ConfigError where the page exists and lacks these comments, or cannot be read.
    """
    begin, end = MARKDOWN.marks(name)
    with readable_errors(page, "a Markdown page"):
        content = page.read().decode() if page.exists() else f"{begin}\n{end}\n"
    if begin not in content:
        raise _unmarked(str(page), begin, end)
    page.write(with_section(content, name, text, str(page)).encode())


def with_section(content: str, name: str, text: str, where: str, comments: Comments = MARKDOWN) -> str:
    """The content with the text as this section of it, in place of the former one, else behind all other.

    Raises ConfigError, naming `where` the content stands, for a section that begins and does not end, or a text that
    holds one of the marks.
    """
    begin, end = comments.marks(name)
    before, after = split_at_section(content, name, where, comments)
    if begin in text or end in text:
        raise ConfigError(f"{where}: the section's own text holds the line {begin} or {end}; name things otherwise")
    return f"{before}{begin}\n{text.strip()}\n{end}{after}"


def split_at_section(content: str, name: str, where: str, comments: Comments = MARKDOWN) -> tuple[str, str]:
    """What stands before and behind the section of this name, or would; raises ConfigError as `with_section`."""
    begin, end = comments.marks(name)
    before, begun, rest = content.partition(begin)
    if not begun:
        gap = "" if not content else "\n" if content.endswith("\n") else "\n\n"
        return f"{content}{gap}", "\n"
    _, ended, after = rest.partition(end)
    if not ended:
        raise _unmarked(where, begin, end)
    return before, after


def _unmarked(where: str, begin: str, end: str) -> ConfigError:
    return ConfigError(f"{where}: expected the lines {begin} and {end}, between which the tables go; add both")
