"""People's notes on a store's images; each note is a file that is created once and never changed."""

import hashlib
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from functools import lru_cache
from threading import Lock
from typing import Annotated, NamedTuple

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from plumbline.operators.base.errors import ConfigError, PlumblineError
from plumbline.pipelines.store.runs import N_READERS
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.web.page_input import BadNameError, clean_name, describe_mistake
from plumbline.plugins.viewer.run_database import NamedImage, Score

NOTES_FOLDER = "notes"
NOTE_FILE_PATTERN = re.compile(rf"{NOTES_FOLDER}/(?P<image>[0-9a-f]{{32}})/(?P<number>\d{{6}})\.json")
MAX_NOTE_CHARACTERS = 2000
MAX_TAG_CHARACTERS = 24
MAX_NOTES_PER_IMAGE = 1000
MAX_CACHED_NOTES = 5000
"""Maximum number of notes, newest first, that are kept in memory and searched."""
LIST_REFRESH_SECONDS = 2.0
"""Time in seconds after which the store is listed again."""

NoteText = Annotated[str, Field(min_length=1, max_length=MAX_NOTE_CHARACTERS)]
NoteTag = Annotated[str, Field(pattern=rf"^[\w-]{{0,{MAX_TAG_CHARACTERS}}}$")]


class BadNote(PlumblineError):
    """Raised for a note that is not valid or cannot be added."""


@checked(frozen=True, kw_only=True, slots=True, config=ConfigDict(extra="forbid", str_strip_whitespace=True))
class SentNote:
    """A note as sent by a page."""

    author: str
    text: NoteText
    tag: NoteTag = ""


@checked(frozen=True, kw_only=True, slots=True)
class Note:
    """A note as it is stored, with everything needed to find its image."""

    generator: str
    image_id: str
    prompt_id: str
    run_id: str
    row: int
    """The row that the author saw, in the scores of the run."""
    author: str
    text: NoteText
    tag: NoteTag
    at: str
    """Time of the note in ISO 8601 (UTC)."""


class StoredNote(NamedTuple):
    """A note's file and its content."""

    path: str
    note: Note | None
    problem: str
    """The reason why `note` is None."""


_SENT_NOTE_ADAPTER, _NOTE_ADAPTER = TypeAdapter(SentNote), TypeAdapter(Note)


def parse_note(body: bytes) -> SentNote:
    """Parse the note that a page sends; raise BadNote if it is not valid."""
    try:
        sent = _SENT_NOTE_ADAPTER.validate_json(body, strict=True)
        return SentNote(author=clean_name(sent.author, "author"), text=sent.text, tag=sent.tag)
    except ValidationError as error:
        raise BadNote(describe_mistake(error)) from error
    except BadNameError as error:
        raise BadNote(str(error)) from error


def hash_image(score: Score) -> str:
    """Return the name of the folder for an image's notes; it does not depend on the run."""
    names = json.dumps([score.generator, score.image_id, score.prompt_id])
    return hashlib.sha256(names.encode()).hexdigest()[:32]


class Notes:
    """All notes in a store, including those written through other viewers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._listed_at = -math.inf
        self._times: Mapping[str, float] = {}
        """Time at which each note was written, by path."""
        self._by_image: Mapping[str, Sequence[str]] = {}
        """Paths of notes by image, oldest first."""
        self._lock = Lock()
        self._read = lru_cache(MAX_CACHED_NOTES)(self._read_file)

    def is_writable(self) -> bool:
        """Return True if notes can be written to the store."""
        try:
            self._store.place.get_writable()
        except ConfigError:
            return False
        return True

    def count(self, image: str) -> int:
        """Return the number of notes on an image."""
        self._refresh_files()
        return len(self._by_image.get(image, ()))

    def list_images(self) -> tuple[NamedImage, ...]:
        """Return the images that the newest notes are about."""
        self._refresh_files()
        notes = (stored.note for stored in self._read_notes(self._list_newest_paths()[:MAX_CACHED_NOTES]))
        return tuple(dict.fromkeys((note.generator, note.image_id, note.prompt_id) for note in notes if note))

    def read(self, image: str) -> list[StoredNote]:
        """Return an image's notes, newest first."""
        self._refresh_files()
        return self._read_notes(self._by_image.get(image, ())[::-1])

    def find(self, words: str, tag: str, first: int, limit: int) -> tuple[int, list[StoredNote]]:
        """Return the number of notes with all these words and the tag, and a page of these notes, newest first.

        Only the newest MAX_CACHED_NOTES notes are searched for words or a tag.
        """
        self._refresh_files()
        paths = self._list_newest_paths()
        if not words and not tag:
            return len(paths), self._read_notes(paths[first : first + limit])
        terms = [word.lower() for word in words.split()]
        found = [stored for stored in self._read_notes(paths[:MAX_CACHED_NOTES]) if _is_match(stored.note, terms, tag)]
        return len(found), found[first : first + limit]

    def add(self, run_id: str, score: Score, sent: SentNote) -> Note:
        """Store a note on the image of a row and return it; if it repeats the image's last note, return that note.

        Raises BadNote if the row has no image id or the image has too many notes, ConfigError if the store does not
        support create-only writes, and WriteError if writing fails.
        """
        if score.image_id is None or score.prompt_id is None:
            raise BadNote("the row has no image id, so it cannot have a note; choose a row with an image")
        self._store.check()
        image = hash_image(score)
        note = Note(
            generator=score.generator,
            image_id=score.image_id,
            prompt_id=score.prompt_id,
            run_id=run_id,
            row=score.row,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            **asdict(sent),
        )
        self._refresh_files(force=True)
        paths = self._by_image.get(image, ())
        last = self._read(paths[-1]).note if paths else None
        if last is not None and (last.author, last.text, last.tag) == (note.author, note.text, note.tag):
            return last
        number = int(paths[-1][-11:-5]) + 1 if paths else 0
        while number < MAX_NOTES_PER_IMAGE:
            if self._store.create_json(f"{NOTES_FOLDER}/{image}/{number:06d}.json", asdict(note)):
                self._refresh_files(force=True)
                return note
            number += 1
        raise BadNote(f"this image already has {MAX_NOTES_PER_IMAGE} notes, which is the maximum")

    def _list_newest_paths(self) -> list[str]:
        return sorted(self._times, key=lambda path: (-self._times[path], path))

    def _refresh_files(self, *, force: bool = False) -> None:
        """List the store's note files again, if the last list is older than LIST_REFRESH_SECONDS or `force` is True."""
        with self._lock:
            if not force and time.monotonic() - self._listed_at < LIST_REFRESH_SECONDS:
                return
            times = {
                path: written
                for path, written in self._store.list_files(NOTES_FOLDER).items()
                if NOTE_FILE_PATTERN.fullmatch(path)
            }
            by_image: dict[str, list[str]] = {}
            for path in sorted(times):
                by_image.setdefault(path.split("/")[1], []).append(path)
            self._times, self._by_image, self._listed_at = times, by_image, time.monotonic()

    def _read_notes(self, paths: Sequence[str]) -> list[StoredNote]:
        with ThreadPoolExecutor(N_READERS) as pool:
            return list(pool.map(self._read, paths))

    def _read_file(self, path: str) -> StoredNote:
        try:
            return StoredNote(path, _NOTE_ADAPTER.validate_python(self._store.read_json(path) or {}), "")
        except ValidationError as error:
            return StoredNote(path, None, f"{path}: not a note ({describe_mistake(error)}); delete the file")


def _is_match(note: Note | None, words: Sequence[str], tag: str) -> bool:
    if note is None or tag not in ("", note.tag):
        return False
    text = " ".join((note.author, note.text, note.tag, note.generator, note.image_id, note.prompt_id)).lower()
    return all(word in text for word in words)
