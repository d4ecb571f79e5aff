"""Splits LLaVA's published conversations about images into one row per turn (VQAScore, appendix D)."""

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.sentences import format_quantity
from plumbline.pipelines.base.storage import Place, convert_read_errors
from plumbline.pipelines.base.tables import DOWNLOAD_AGAIN_REMEDY, Refused, require_utf8
from plumbline.pipelines.store.cells import digest

CONVERSATIONS_SUFFIX = ".json"
ROWS_FOLDER = "turns"
SUMMARY_FILE = "summary.json"
IMAGE_TOKEN = "<image>"
SPEAKERS = ("human", "gpt")
WHITESPACE = " \t\r\n"
MAX_RECORD_CHARACTERS = 2**22
"""Maximum length of a conversation in characters."""
MAX_TURNS = 1_000
"""Maximum number of questions in a conversation."""
MAX_STORED_REASONS = 20
"""Maximum number of reasons to store for conversations that were left out."""
MAX_ROWS_PER_FILE = 50_000
ROWS_PER_GROUP = 256
CONVERSION_VERSION = 1
"""Version of the row format. It is part of the name of the rows' folder."""


class SplitConversations(NamedTuple):
    """Parquet files with one row per turn of a conversation, and statistics about the source file."""

    folder: str
    """URL of the folder with the Parquet files."""
    records: int
    rows: int
    without_image: int
    """Number of conversations without an image, which are skipped."""
    left_out: int
    """Number of conversations that cannot be read."""
    reasons: list[str]
    """Reasons why conversations cannot be read, each with file and row; at most MAX_STORED_REASONS are stored."""

    @property
    def summary(self) -> str:
        parts = [
            f"{format_quantity(self.records, 'conversation')} split into {format_quantity(self.rows, 'row')} of "
            f"one turn"
        ]
        parts += [f"{self.without_image} without an image"] if self.without_image else []
        parts += [f"{self.left_out} left out, first {self.reasons[0]}"] if self.left_out else []
        return ", ".join(parts)


def split_conversations(source: Place, output: Place, kind: Literal["captions", "questions"]) -> SplitConversations:
    """Write Parquet files with one row per turn below `output`, unless the same file content has been split already.

    The file is a list of `{"image": path, "conversations": [{"from": "human", "value": question}, {"from": "gpt",
    "value": answer}, ...]}`, such as llava_v1_5_mix665k.json. Paths are relative to the file's folder. A row has the
    image, question and answer of a turn or, for `captions`, the image and the answer as its caption. Raises SourceError
    if the file is not a JSON list.
    """
    with convert_read_errors(source, "data"):
        entry = source.get_entry()
    folder = output / ROWS_FOLDER / digest([CONVERSION_VERSION, kind, source.url, entry.size, entry.etag])
    if not (folder / SUMMARY_FILE).exists():
        found = _write_rows(source, folder, kind)
        (folder / SUMMARY_FILE).write(json.dumps(found._asdict(), indent=2).encode())
    return SplitConversations(**json.loads((folder / SUMMARY_FILE).read()))


def _write_rows(source: Place, folder: Place, kind: str) -> SplitConversations:
    rows: list[dict[str, str]] = []
    records = written = without_image = left_out = 0
    reasons: list[str] = []
    for record in read_values(source):
        where = f"{source.url}, row {records}"
        records += 1
        try:
            turns = list(_read_turns(record))
        except Refused as error:
            left_out += 1
            reasons += [f"{where}: {error}"] if len(reasons) < MAX_STORED_REASONS else []
            continue
        without_image += not turns
        rows += [_make_row(source, *turn, kind) for turn in turns]
        if len(rows) >= MAX_ROWS_PER_FILE:
            written += _flush_rows(rows, folder, written)
    written += _flush_rows(rows, folder, written)
    if not written:
        reason = reasons[0] if reasons else f"{source.url}: no conversation is about an image"
        raise SourceError(f"{reason}; expected a list of conversations in LLaVA's format, each with an image")
    return SplitConversations(folder.url, records, written, without_image, left_out, reasons)


def _flush_rows(rows: list[dict[str, str]], folder: Place, written: int) -> int:
    """Write the rows to a file and clear the list. The file is named after the number of rows written before.

    Returns the number of rows in the file.
    """
    count = len(rows)
    if rows:
        table = pa.Table.from_pylist(rows)
        (folder / f"{written:09}.parquet").write_table(table, row_group_size=ROWS_PER_GROUP)
    rows.clear()
    return count


def _make_row(source: Place, image: str, question: str, answer: str, kind: str) -> dict[str, str]:
    texts = {"caption": answer} if kind == "captions" else {"question": question, "answer": answer}
    return {"uri": (source.parent / image).url, **texts}


class Turn(NamedTuple):
    """A question about an image, and its answer."""

    image: str
    question: str
    answer: str


def _read_turns(record: Any) -> Iterator[Turn]:
    """Yield the turns of a conversation that has an image. Raise Refused if the conversation cannot be read."""
    if not isinstance(record, Mapping):
        raise Refused("unreadable", f"expected an object, found {type(record).__name__}")
    image, parts = record.get("image"), record.get("conversations")
    if image is None:
        return
    if not isinstance(image, str) or not image:
        raise Refused("unreadable", f"expected the image's path as image, found {image!r:.80}")
    if not isinstance(parts, list) or not parts or len(parts) % 2:
        raise Refused("unreadable", "expected conversations as a list of questions, each with its answer")
    if len(parts) > 2 * MAX_TURNS:
        raise Refused("unreadable", f"expected at most {MAX_TURNS:,} questions, found {len(parts) // 2:,}")
    texts = [_read_text(part, SPEAKERS[index % 2], index) for index, part in enumerate(parts)]
    require_utf8(image)
    for question, answer in zip(texts[::2], texts[1::2], strict=True):
        yield Turn(image, question, answer)


def _read_text(part: Any, speaker: str, index: int) -> str:
    """Return the text of a message without the image token; raise Refused unless it is from `speaker`."""
    text = part.get("value") if isinstance(part, Mapping) and part.get("from") == speaker else None
    text = text.replace(IMAGE_TOKEN, "").strip() if isinstance(text, str) else None
    if not text:
        found = "none" if text == "" else f"{part!r:.80}"
        raise Refused("unreadable", f"expected a text from {speaker} as item {index} of conversations, found {found}")
    require_utf8(text)
    return text


def read_values(source: Place) -> Iterator[Any]:
    """Yield the values of a JSON list without loading it whole; raise SourceError if a value cannot be read."""
    with convert_read_errors(source, "data"), source.open() as stream:
        try:
            yield from _parse_values(io.TextIOWrapper(stream, "utf-8"), source.url)
        except UnicodeDecodeError as error:
            raise SourceError(f"{source.url}: not UTF-8 ({error.reason}); save the file as UTF-8") from error


def _parse_values(text: io.TextIOWrapper, url: str) -> Iterator[Any]:
    decoder, unread, row = json.JSONDecoder(), text.read(MAX_RECORD_CHARACTERS).lstrip(WHITESPACE), 0
    if not unread.startswith("["):
        raise SourceError(
            f"{url}: expected a JSON list of conversations, found {unread[:40]!r}; {DOWNLOAD_AGAIN_REMEDY}"
        )
    place = 1
    while True:
        try:
            place = _skip_characters(unread, place, WHITESPACE if row == 0 else WHITESPACE + ",")
            if unread[place] == "]":
                return
            value, place = decoder.raw_decode(unread, place)
        except (ValueError, IndexError, RecursionError) as error:
            more = text.read(MAX_RECORD_CHARACTERS) if len(unread) - place < MAX_RECORD_CHARACTERS else ""
            if not more or isinstance(error, RecursionError):
                problem = f"not JSON, cut off, or longer than {MAX_RECORD_CHARACTERS:,} characters"
                raise SourceError(f"{url}, row {row}: {problem}; {DOWNLOAD_AGAIN_REMEDY}") from error
            unread, place = unread[place:] + more, 0
            continue
        yield value
        row += 1


def _skip_characters(text: str, place: int, characters: str) -> int:
    while text[place] in characters:
        place += 1
    return place
