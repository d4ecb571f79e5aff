"""Notes that people leave on a store's images: a file each, written create-only and never changed."""

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
from plumbline.pipelines.cells.runs import READERS
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.web.mistakes import describe_mistake
from plumbline.pipelines.web.person_names import BadName, clean_name
from plumbline.plugins.viewer.run_database import NamedImage, Score

NOTES = "notes"
FILE = re.compile(rf"{NOTES}/(?P<image>[0-9a-f]{{32}})/(?P<number>\d{{6}})\.json")
LONGEST_NOTE, LONGEST_TAG = 2000, 24
MOST_OF_IMAGE = 1000
MOST_READ = 5000
"""Notes that are kept in memory, and that are looked through for words or images: the newest."""
LOOK_SECONDS = 2.0
"""After which the store is listed again for what others wrote."""

Text = Annotated[str, Field(min_length=1, max_length=LONGEST_NOTE)]
Tag = Annotated[str, Field(pattern=rf"^[\w-]{{0,{LONGEST_TAG}}}$")]


class BadNote(PlumblineError):
    """A note is not of its form."""


@checked(frozen=True, kw_only=True, slots=True, config=ConfigDict(extra="forbid", str_strip_whitespace=True))
class GivenNote:
    """A note as a page sends it."""

    author: str
    text: Text
    tag: Tag = ""


@checked(frozen=True, kw_only=True, slots=True)
class Note:
    """A note as it is kept; it holds all that is needed to find its image."""

    generator: str
    image_id: str
    prompt_id: str
    run_id: str
    """Where its author saw the image."""
    row: int
    """Of that run's scores."""
    author: str
    text: Text
    tag: Tag
    at: str
    """ISO 8601, in UTC."""


class StoredNote(NamedTuple):
    """A note's file with what it holds."""

    path: str
    note: Note | None
    problem: str
    """Why there is no note; empty where there is."""


_GIVEN, _NOTE = TypeAdapter(GivenNote), TypeAdapter(Note)


def parse_note(body: bytes) -> GivenNote:
    """The note that a page sends; raises BadNote with what is wrong."""
    try:
        given = _GIVEN.validate_json(body, strict=True)
        return GivenNote(author=clean_name(given.author, "author"), text=given.text, tag=given.tag)
    except ValidationError as error:
        raise BadNote(describe_mistake(error)) from error
    except BadName as error:
        raise BadNote(str(error)) from error


def image_of(score: Score) -> str:
    """By what an image's notes are found, whichever run shows it."""
    named = json.dumps([score.generator, score.image_id, score.prompt_id])
    return hashlib.sha256(named.encode()).hexdigest()[:32]


class Notes:
    """The notes of a store, as all its viewers wrote them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looked = -math.inf
        self._written: Mapping[str, float] = {}
        self._of_image: Mapping[str, Sequence[str]] = {}
        self._looking = Lock()
        self._read = lru_cache(MOST_READ)(self._read_file)

    def may_be_written(self) -> bool:
        """Whether the store takes writes at all."""
        try:
            self._store.place.writable()
        except ConfigError:
            return False
        return True

    def count(self, image: str) -> int:
        """How many an image has."""
        self._look()
        return len(self._of_image.get(image, ()))

    def images(self) -> tuple[NamedImage, ...]:
        """The images that the newest notes are on."""
        self._look()
        notes = (stored.note for stored in self._read_all(self._newest_paths()[:MOST_READ]))
        return tuple(dict.fromkeys((note.generator, note.image_id, note.prompt_id) for note in notes if note))

    def of(self, image: str) -> list[StoredNote]:
        """An image's notes, the newest first."""
        self._look()
        return self._read_all(self._of_image.get(image, ())[::-1])

    def newest(self, words: str, tag: str, first: int, most: int) -> tuple[int, list[StoredNote]]:
        """How many notes have all of the words and the tag, and some of them, the newest first."""
        self._look()
        paths = self._newest_paths()
        if not words and not tag:
            return len(paths), self._read_all(paths[first : first + most])
        wanted = [word.lower() for word in words.split()]
        found = [one for one in self._read_all(paths[:MOST_READ]) if _holds(one.note, wanted, tag)]
        return len(found), found[first : first + most]

    def add(self, run_id: str, score: Score, given: GivenNote) -> Note:
        """Keeps a note on the image of a row as the next of its files; the last one once more changes nothing.

        Raises BadNote where the row names no image, or that has too many notes; ConfigError for a store that does not
        keep what is there; and WriteError.
        """
        if score.image_id is None or score.prompt_id is None:
            raise BadNote("the row names no image that a note could be on")
        self._store.check()
        image = image_of(score)
        note = Note(
            generator=score.generator,
            image_id=score.image_id,
            prompt_id=score.prompt_id,
            run_id=run_id,
            row=score.row,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            **asdict(given),
        )
        self._look(at_once=True)
        paths = self._of_image.get(image, ())
        last = self._read(paths[-1]).note if paths else None
        if last is not None and (last.author, last.text, last.tag) == (note.author, note.text, note.tag):
            return last
        number = int(paths[-1][-11:-5]) + 1 if paths else 0
        while number < MOST_OF_IMAGE:
            if self._store.create_json(f"{NOTES}/{image}/{number:06d}.json", asdict(note)):
                self._look(at_once=True)
                return note
            number += 1
        raise BadNote(f"the image has {MOST_OF_IMAGE} notes already")

    def _newest_paths(self) -> list[str]:
        return sorted(self._written, key=lambda path: (-self._written[path], path))

    def _look(self, *, at_once: bool = False) -> None:
        """Lists what there is, but not more often than each `LOOK_SECONDS`."""
        with self._looking:
            if not at_once and time.monotonic() - self._looked < LOOK_SECONDS:
                return
            listed = {path: written for path, written in self._store.listing(NOTES).items() if FILE.fullmatch(path)}
            of_image: dict[str, list[str]] = {}
            for path in sorted(listed):
                of_image.setdefault(path.split("/")[1], []).append(path)
            self._written, self._of_image, self._looked = listed, of_image, time.monotonic()

    def _read_all(self, paths: Sequence[str]) -> list[StoredNote]:
        with ThreadPoolExecutor(READERS) as pool:
            return list(pool.map(self._read, paths))

    def _read_file(self, path: str) -> StoredNote:
        try:
            return StoredNote(path, _NOTE.validate_python(self._store.read_json(path) or {}), "")
        except ValidationError as error:
            return StoredNote(path, None, f"{path}: not a note ({describe_mistake(error)}); delete the file")


def _holds(note: Note | None, words: Sequence[str], tag: str) -> bool:
    if note is None or tag not in ("", note.tag):
        return False
    said = " ".join((note.author, note.text, note.tag, note.generator, note.image_id, note.prompt_id)).lower()
    return all(word in said for word in words)
