"""Generated sections of a Markdown or YAML file; the rest of the file is written by hand."""

from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import Place, convert_read_errors


class CommentSyntax(NamedTuple):
    prefix: str
    suffix: str

    def make_marks(self, name: str) -> tuple[str, str]:
        """Return the comment lines that mark the beginning and the end of the section with this name."""
        return f"{self.prefix}begin {name}{self.suffix}", f"{self.prefix}end {name}{self.suffix}"


MARKDOWN, YAML = CommentSyntax("<!-- ", " -->"), CommentSyntax("# ", " #")


def write_section(page: Place, name: str, text: str) -> None:
    """Replace the section between `<!-- begin NAME -->` and `<!-- end NAME -->` of a page, or start a new page.

    Raise ConfigError if the page exists but lacks these comments, or cannot be read.
    """
    begin, end = MARKDOWN.make_marks(name)
    with convert_read_errors(page, "a Markdown page"):
        content = page.read().decode() if page.exists() else f"{begin}\n{end}\n"
    if begin not in content:
        raise _make_missing_marks_error(str(page), begin, end)
    page.write(replace_section(content, name, text, str(page)).encode())


def replace_section(content: str, name: str, text: str, where: str, comments: CommentSyntax = MARKDOWN) -> str:
    """Return the content with the section replaced by the text, or with the section appended if it is missing.

    Raise ConfigError naming the file (`where`) if the section has no end, or if the text contains one of its comments.
    """
    begin, end = comments.make_marks(name)
    before, after = split_at_section(content, name, where, comments)
    if begin in text or end in text:
        raise ConfigError(f"{where}: the text of the section contains the line {begin} or {end}; change that line")
    return f"{before}{begin}\n{text.strip()}\n{end}{after}"


def split_at_section(content: str, name: str, where: str, comments: CommentSyntax = MARKDOWN) -> tuple[str, str]:
    """Return the text before and after the section.

    If the section does not exist, return the texts that would surround it at the end of the content. Raise
    ConfigError if the section has no end.
    """
    begin, end = comments.make_marks(name)
    before, begun, rest = content.partition(begin)
    if not begun:
        gap = "" if not content else "\n" if content.endswith("\n") else "\n\n"
        return f"{content}{gap}", "\n"
    _, ended, after = rest.partition(end)
    if not ended:
        raise _make_missing_marks_error(where, begin, end)
    return before, after


def _make_missing_marks_error(where: str, begin: str, end: str) -> ConfigError:
    return ConfigError(f"{where}: expected the lines {begin} and {end} around the tables; add both")
