"""Reads a study's folder: its versions with their tasks, and its answers."""

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place, convert_read_errors, get_first_line
from plumbline.pipelines.metaeval.releases.sheets import list_files, read_content, read_sheet, read_text
from plumbline.pipelines.store.checksums import DamagedError, decode_json
from plumbline.plugins.rating.answers import DAMAGED_ANSWER_REMEDY, TASK_ID_PATTERN, Answer, parse_answer
from plumbline.plugins.rating.tasks import Task, decode_tasks

ANSWERS_FOLDER = "answers"
VERSION_FILE_PATTERN = re.compile(r"study\.([1-9]\d*)\.json")
ANSWER_FILE_PATTERN = re.compile(
    rf"(?P<rater>[^/]+)/(?P<task_id>{TASK_ID_PATTERN})\.(?P<repeat>\d+)\.(?P<revision>\d+)\.json"
)
MAX_PARALLEL_READS = 16


class StudyVersion(NamedTuple):
    version: int
    design: Mapping[str, Any]
    """The options that determine the version's tasks."""
    tasks: Sequence[Task]


class AnswerKey(NamedTuple):
    """Key of an answer, shared by all its revisions."""

    rater: str
    task_id: str
    repeat: int


class Revision(NamedTuple):
    """One revision of a rater's answer to a task."""

    revision: int
    answer: Answer


def make_version_path(version: int) -> str:
    return f"study.{version}.json"


def make_tasks_path(version: int) -> str:
    return f"tasks.{version}.parquet"


def make_answer_path(key: AnswerKey, revision: int) -> str:
    return f"{ANSWERS_FOLDER}/{key.rater}/{key.task_id}.{key.repeat}.{revision}.json"


def list_versions(place: Place) -> list[int]:
    """Return the version numbers of a study in ascending order; empty if the folder has none."""
    found = (VERSION_FILE_PATTERN.fullmatch(file.name) for file in list_files(place, ".json"))
    return sorted(int(match[1]) for match in found if match is not None)


def read_study(place: Place) -> StudyVersion:
    """Return the newest version of a study; raise SourceError if the folder has none or a file is damaged."""
    versions = list_versions(place)
    if not versions:
        raise SourceError(f"{place}: expected a study's folder with {make_version_path(1)}, found none; check the path")
    return read_version(place, versions[-1])


def read_version(place: Place, version: int) -> StudyVersion:
    """Return one version of a study; raise SourceError with the name of a damaged file."""
    design = place / make_version_path(version)
    try:
        content = decode_json(read_text(design))["design"]
    except (DamagedError, ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{design}: the study's design is damaged ({get_first_line(error)}); restore the file"
        ) from error
    return StudyVersion(version, content, read_tasks(place, version))


def read_tasks(place: Place, version: int) -> list[Task]:
    """Return the tasks of a version; raise SourceError if the task table is damaged."""
    file = place / make_tasks_path(version)
    try:
        return decode_tasks(read_sheet(file).table)
    except SourceError as error:
        if isinstance(error.__cause__, DamagedError | pa.ArrowException):
            problem = get_first_line(error.__cause__)
            raise SourceError(f"{file}: the study's tasks are damaged ({problem}); restore the file") from error
        raise


def read_answers(place: Place) -> list[Answer]:
    """Return the last revision of each answer to any version of a study, ordered by time.

    Raises SourceError naming the first file that is damaged or is not an answer of the study.
    """
    answers = AnswerReader(place)
    answers.refresh()
    for problem in answers.problems.values():
        raise SourceError(problem)
    return answers.list_answers()


class AnswerReader:
    """Reader for the answers in a study's folder; each file is read only once, because files never change."""

    def __init__(self, place: Place) -> None:
        self.problems: dict[str, str] = {}
        """Files that cannot be read, with the reason."""
        self._place = place / ANSWERS_FOLDER
        self._seen: set[str] = set()
        self._newest: dict[AnswerKey, int] = {}
        """Highest revision number of each answer, including revisions whose file is damaged."""
        self._last: dict[AnswerKey, Revision] = {}
        self._refreshing, self._adding = Lock(), Lock()

    def refresh(self, rater: str = "") -> None:
        """Read the new files of one rater, or of all raters if `rater` is empty.

        Raises ConfigError if the folder cannot be listed.
        """
        with self._refreshing:
            with convert_read_errors(self._place, "study"):
                names = [f"{rater}/{name}".lstrip("/") for name, _ in (self._place / rater).files()]
            new = [name for name in names if name not in self._seen]
            with ThreadPoolExecutor(MAX_PARALLEL_READS) as pool:
                for name, found in zip(new, pool.map(self._read, new), strict=True):
                    self._seen.add(name)
                    if isinstance(found, str):
                        self.problems[name] = found
                    elif found is not None:
                        self.add(found)

    def add(self, stored: Revision) -> None:
        """Add an answer whose file has just been written or read."""
        key = make_key(stored.answer)
        self.note_revision(key, stored.revision)
        with self._adding:
            if key not in self._last or self._last[key].revision < stored.revision:
                self._last[key] = stored

    def find_next_revision(self, key: AnswerKey) -> int:
        """Return the number that follows the highest revision with a file; 0 if there is no revision."""
        return self._newest.get(key, -1) + 1

    def find_last_revision(self, key: AnswerKey) -> Revision | None:
        return self._last.get(key)

    def note_revision(self, key: AnswerKey, revision: int) -> None:
        """Record that a revision has a file, even if the file is damaged."""
        with self._adding:
            self._newest[key] = max(revision, self._newest.get(key, -1))

    def list_answers(self) -> list[Answer]:
        """Return the last revision of each answer, ordered by time."""
        answers = [stored.answer for stored in list(self._last.values())]
        return sorted(answers, key=lambda answer: (answer.at, make_key(answer)))

    def _read(self, name: str) -> Revision | str | None:
        """Return a file's answer, a message that says what is wrong with it, or None if it is still being written."""
        if any(part.startswith(".") for part in name.split("/")):
            return None
        place = self._place / name
        path = ANSWER_FILE_PATTERN.fullmatch(name)
        if path is None:
            return f"{place}: expected RATER/TASK.REPEAT.REVISION.json below {ANSWERS_FOLDER}; remove the file"
        key, revision = AnswerKey(path["rater"], path["task_id"], int(path["repeat"])), int(path["revision"])
        self.note_revision(key, revision)
        try:
            stored = read_revision(place, revision)
        except SourceError as error:
            return str(error)
        if key != (found := make_key(stored.answer)):
            other = f"rater {found.rater!r} to task {found.task_id}, repeat {found.repeat}"
            return f"{place}: contains the answer of {other}; {DAMAGED_ANSWER_REMEDY}"
        return stored


def read_revision(place: Place, revision: int) -> Revision:
    """Return the answer in a file; raise BadAnswer if it is not an answer, ConfigError if it cannot be read."""
    return Revision(revision, parse_answer(read_content(place), place.url))


def make_key(answer: Answer) -> AnswerKey:
    return AnswerKey(answer.rater, answer.task_id, answer.repeat)
