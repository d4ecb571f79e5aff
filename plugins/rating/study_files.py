"""A study's folder: the versions of what is asked, their tasks, and the answers that people gave."""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place, first_line, readable_errors
from plumbline.pipelines.cells.checksums import DamagedError, decode_json
from plumbline.pipelines.judging.releases.sheets import files_in, read_content, read_sheet, read_text
from plumbline.plugins.rating.answers import REMEDY, TASK_ID, Answer, parse_answer
from plumbline.plugins.rating.tasks import Task, tasks_of

ANSWERS = "answers"
VERSION = re.compile(r"study\.([1-9]\d*)\.json")
ANSWER_FILE = re.compile(rf"(?P<rater>[^/]+)/(?P<task_id>{TASK_ID})\.(?P<repeat>\d+)\.(?P<revision>\d+)\.json")
READERS = 16


class AskedVersion(NamedTuple):
    """What a version of a study asks."""

    version: int
    design: Mapping[str, Any]
    """What decides its tasks."""
    tasks: Sequence[Task]


class AnswerKey(NamedTuple):
    """What an answer is to, whichever of its revisions it is."""

    rater: str
    task_id: str
    repeat: int


class Revision(NamedTuple):
    """An answer as it is kept."""

    revision: int
    answer: Answer


def version_path(version: int) -> str:
    """Where a study has the design of a version."""
    return f"study.{version}.json"


def tasks_path(version: int) -> str:
    """Where a study has the tasks of a version."""
    return f"tasks.{version}.parquet"


def answer_path(key: AnswerKey, revision: int) -> str:
    """Where a study has an answer."""
    return f"{ANSWERS}/{key.rater}/{key.task_id}.{key.repeat}.{revision}.json"


def study_versions(place: Place) -> list[int]:
    """The versions of a study, ascending; none where there is no study."""
    found = (VERSION.fullmatch(file.name) for file in files_in(place, ".json"))
    return sorted(int(match[1]) for match in found if match is not None)


def read_study(place: Place) -> AskedVersion:
    """The newest version of a study; raises SourceError where there is none, or a file of it is damaged."""
    versions = study_versions(place)
    if not versions:
        raise SourceError(f"{place}: expected a study's folder with {version_path(1)}, found none; check the path")
    return read_version(place, versions[-1])


def read_version(place: Place, version: int) -> AskedVersion:
    """One version of a study; raises SourceError naming the file that is damaged."""
    design = place / version_path(version)
    try:
        content = decode_json(read_text(design))["design"]
    except (DamagedError, ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{design}: the study's design is damaged ({first_line(error)}); restore the file") from error
    return AskedVersion(version, content, read_tasks(place, version))


def read_tasks(place: Place, version: int) -> list[Task]:
    """The tasks of a version; raises SourceError where their file is damaged."""
    file = place / tasks_path(version)
    try:
        return tasks_of(read_sheet(file).table)
    except SourceError as error:
        if isinstance(error.__cause__, DamagedError | pa.ArrowException):
            problem = first_line(error.__cause__)
            raise SourceError(f"{file}: the study's tasks are damaged ({problem}); restore the file") from error
        raise


def read_answers(place: Place) -> list[Answer]:
    """Every answer that people gave to any version of a study, of each its last revision, in the order of time.

    Raises SourceError naming a file that is damaged, or is none of a study's.
    """
    answers = AnswerReader(place)
    answers.look()
    for problem in answers.problems.values():
        raise SourceError(problem)
    return answers.all()


class AnswerReader:
    """The answers in a study's folder; a file is read once, because none is ever changed."""

    def __init__(self, place: Place) -> None:
        self.problems: dict[str, str] = {}
        """By file, why it is not among the answers."""
        self._place = place / ANSWERS
        self._seen: set[str] = set()
        self._taken: dict[AnswerKey, int] = {}
        self._last: dict[AnswerKey, Revision] = {}
        self._looking, self._adding = Lock(), Lock()

    def look(self, rater: str = "") -> None:
        """Reads the files that have come since, of one rater or of all; raises ConfigError where the folder cannot be
        listed.
        """
        with self._looking:
            with readable_errors(self._place, "study"):
                names = [f"{rater}/{name}".lstrip("/") for name, _ in (self._place / rater).files()]
            new = [name for name in names if name not in self._seen]
            with ThreadPoolExecutor(READERS) as pool:
                for name, found in zip(new, pool.map(self._read, new), strict=True):
                    self._seen.add(name)
                    if isinstance(found, str):
                        self.problems[name] = found
                    elif found is not None:
                        self.add(found)

    def add(self, kept: Revision) -> None:
        """Takes an answer that was just kept, or read."""
        key = key_of(kept.answer)
        self.take(key, kept.revision)
        with self._adding:
            if key not in self._last or self._last[key].revision < kept.revision:
                self._last[key] = kept

    def next_revision(self, key: AnswerKey) -> int:
        """The first that has no file yet, not even a damaged one."""
        return self._taken.get(key, -1) + 1

    def last(self, key: AnswerKey) -> Revision | None:
        """The last revision of an answer; None where there is none."""
        return self._last.get(key)

    def take(self, key: AnswerKey, revision: int) -> None:
        """Notes that a revision has a file, whatever is in it."""
        with self._adding:
            self._taken[key] = max(revision, self._taken.get(key, -1))

    def all(self) -> list[Answer]:
        """The last revision of every answer, in the order of time."""
        answers = [kept.answer for kept in list(self._last.values())]
        return sorted(answers, key=lambda answer: (answer.at, key_of(answer)))

    def _read(self, name: str) -> Revision | str | None:
        """The answer in a file, or what is wrong with it; None for a file that is being written."""
        if any(part.startswith(".") for part in name.split("/")):
            return None
        place = self._place / name
        path = ANSWER_FILE.fullmatch(name)
        if path is None:
            return f"{place}: expected RATER/TASK.REPEAT.REVISION.json below {ANSWERS}; remove the file"
        key, revision = AnswerKey(path["rater"], path["task_id"], int(path["repeat"])), int(path["revision"])
        self.take(key, revision)
        try:
            kept = read_revision(place, revision)
        except SourceError as error:
            return str(error)
        if key != key_of(kept.answer):
            return f"{place}: holds the answer of {_words_of(key_of(kept.answer))}; {REMEDY}"
        return kept


def read_revision(place: Place, revision: int) -> Revision:
    """The answer in a file; raises BadAnswer where it is none, ConfigError where it cannot be read."""
    return Revision(revision, parse_answer(read_content(place), place.url))


def key_of(answer: Answer) -> AnswerKey:
    """What an answer is to."""
    return AnswerKey(answer.rater, answer.task_id, answer.repeat)


def _words_of(key: AnswerKey) -> str:
    return f"rater {key.rater!r} to task {key.task_id}, repeat {key.repeat}"
