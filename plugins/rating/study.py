"""An open study: its newest version, its answers, and the rules for accepting new answers."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked

from plumbline.operators.base.errors import PlumblineError
from plumbline.pipelines.base.storage import Place, convert_read_errors
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.store.checksums import encode_json
from plumbline.pipelines.store.store import encode_table
from plumbline.plugins.rating.answers import (
    Answer,
    BadAnswer,
    NoteText,
    RepeatNumber,
    RevisionNumber,
    Seconds,
    TaskId,
    VersionNumber,
    encode_answer,
)
from plumbline.plugins.rating.designs import (
    Design,
    DesignedTasks,
    UnreadableImages,
    locate_study,
    make_design,
    make_tasks,
    open_originals,
)
from plumbline.plugins.rating.open_queue import open_queue
from plumbline.plugins.rating.order import RaterTurn, draw_image_order
from plumbline.plugins.rating.question_templates import TEMPLATES, find_problem
from plumbline.plugins.rating.queue import Queue
from plumbline.plugins.rating.rate_config import RateConfig
from plumbline.plugins.rating.study_files import (
    AnswerReader,
    Revision,
    StudyVersion,
    list_versions,
    make_answer_path,
    make_key,
    make_tasks_path,
    make_version_path,
    read_revision,
    read_study,
    read_version,
)
from plumbline.plugins.rating.task_images import TaskImages
from plumbline.plugins.rating.tasks import Task, encode_tasks

MARKER_FILE = "study.json"
"""File that marks a study's folder; writing it also checks that the storage supports create-only writes."""
DESIGN_OPTIONS = ("templates", "run", "images", "generators", "pictures", "questions", "gold", "seed")
"""Options that determine the tasks."""
IMAGE_MISSING_MESSAGE = "an image of this task is missing; the study's organizer has been informed"
"""Message shown to raters. It omits the image's path, which may contain the generator's name."""
MAX_READ_TRIES = 4
Result = TypeVar("Result")
REFRESH_SECONDS = 1.0
"""Time in seconds after which the study's folder is listed again to find answers from other servers."""
MIN_TIMED_ANSWERS = 5
"""Minimum number of timed answers for an estimate of the remaining time."""
WarningPrinter = Callable[[str], None]
"""Function that prints a warning."""


class RefusedAnswer(PlumblineError):
    """Raised for an answer that is not stored; contains the HTTP status."""

    def __init__(self, status: Literal[400, 404, 409, 410], message: str, kept: Revision | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kept = kept
        """The stored answer that the refused answer conflicts with."""


@checked(frozen=True, kw_only=True, slots=True, config=ConfigDict(extra="forbid"))
class SentAnswer:
    """An answer as sent by a rater's page."""

    task_id: TaskId
    repeat: RepeatNumber = 0
    revision: RevisionNumber = 0
    version: VersionNumber
    rater: str
    answer: Any
    note: NoteText = ""
    seconds: Seconds


class StoredAnswer(NamedTuple):
    """An answer that the study contains."""

    revision: Revision
    new: bool
    """False if the answer was already stored."""


class RaterProgress(NamedTuple):
    """A rater's progress and next turns."""

    version: int
    turns: Sequence[RaterTurn]
    done: int
    total: int
    remaining_minutes: float | None
    """Estimated minutes until the rater has answered all tasks; None if too few answers were timed."""


class OpenVersion(NamedTuple):
    """The version that is currently served."""

    version: int
    tasks: Mapping[str, Task]
    """Tasks by id."""
    images: TaskImages
    queue: Queue
    """Queue of the tasks whose images all exist."""


class Study:
    """A study as used by its server; other servers may add answers at the same time."""

    def __init__(self, place: Place, config: RateConfig, report: WarningPrinter) -> None:
        """Open the study's newest version; raise PlumblineError if it cannot be read."""
        self.place = place
        self.answers = AnswerReader(place)
        self.omitted: dict[str, str] = {}
        """Reason why an image of each omitted task is missing, by task id."""
        self._reported: set[str] = set()
        self._config, self._report = config, report
        self._served = self._open(read_study(place))
        self._changing, self._refreshing = Lock(), Lock()
        self._refreshed_at = -math.inf
        self.refresh()

    def _open(self, version: StudyVersion) -> OpenVersion:
        design = read_config(version.design, Design)
        images = TaskImages(_retry_reading(lambda: open_originals(design, self.place.storage)))
        tasks = {task.task_id: task for task in version.tasks}
        return OpenVersion(version.version, tasks, images, open_queue(version.tasks, design, self._config))

    def _set_omitted_tasks(self, omitted: dict[str, str]) -> None:
        """Serve all tasks except those in `omitted`."""
        tasks = [task for task in self._served.tasks.values() if task.task_id not in omitted]
        self.omitted = omitted
        self._served = self._served._replace(queue=self._served.queue.restrict(tasks))

    @property
    def served(self) -> OpenVersion:
        """The version that is currently served."""
        return self._served

    def refresh(self, rater: str = "") -> None:
        """Read this rater's new answers, or all new answers and versions if `REFRESH_SECONDS` have passed."""
        with self._refreshing:
            if time.monotonic() - self._refreshed_at > REFRESH_SECONDS:
                self.answers.refresh()
                newest = list_versions(self.place)[-1:]
                if newest and newest[0] > self._served.version:
                    self._served = self._open(read_version(self.place, newest[0]))
                    self.omitted = {}
                    self._report(f"the study was edited: version {newest[0]} is served from now on")
                self._refreshed_at = time.monotonic()
            elif rater:
                self.answers.refresh(rater)
        for name, problem in list(self.answers.problems.items()):
            self._report_once(name, f"an answer file was ignored: {problem}")

    def _report_once(self, key: str, line: str) -> None:
        if key not in self._reported:
            self._reported.add(key)
            self._report(line)

    def choose_turns(self, rater: str, count: int) -> RaterProgress:
        """Return a rater's next turns, skipping tasks with a missing image.

        If no other task is left, tasks with a missing image are tried again, in case the image has been restored.
        """
        self.refresh(rater)
        answers = [answer for answer in self.answers.list_answers() if answer.task_id in self._served.tasks]
        opened, turns = self._find_complete_turns(answers, rater, count)
        if not turns and self.omitted:
            with self._changing:
                self._set_omitted_tasks({})
            opened, turns = self._find_complete_turns(answers, rater, count)
        own = [answer for answer in answers if answer.rater == rater]
        left = len(opened.queue.list_open_tasks(answers, rater))
        return RaterProgress(opened.version, turns, len(own), len(own) + left, _estimate_minutes(own, left))

    def _find_complete_turns(
        self, answers: Sequence[Answer], rater: str, count: int
    ) -> tuple[OpenVersion, list[RaterTurn]]:
        while True:
            opened = self._served
            turns = opened.queue.choose_turns(answers, rater, count)
            if not any(self._omit_if_incomplete(opened, turn.task) for turn in turns):
                return opened, turns

    def _omit_if_incomplete(self, opened: OpenVersion, task: Task) -> bool:
        problem = opened.images.find_problem(task)
        if problem is None:
            return False
        with self._changing:
            if self._served.version == opened.version and task.task_id not in self.omitted:
                self._set_omitted_tasks({**self.omitted, task.task_id: problem})
                self._report_once(
                    task.task_id, f"task {task.task_id} is left out because an image is missing: {problem}"
                )
        return True

    def order_images(self, task: Task, rater: str, repeat: int) -> tuple[int, ...]:
        """Return the indices of a task's images from left to right, as shown to this rater."""
        return draw_image_order(self._served.queue.sequencing.seed, rater, task, repeat)

    def add(self, sent: SentAnswer) -> StoredAnswer:
        """Store an answer with one create-only write; repeating the request has no effect.

        Raises RefusedAnswer if the answer is not valid or a different one is stored, WriteError if it cannot be
        written.
        """
        self.refresh(sent.rater)
        opened = self._served
        task = self._check_answer(sent, opened)
        answer = Answer(
            version=opened.version,
            task_id=task.task_id,
            template=task.template,
            prompt_id=task.prompt_id,
            image_ids=task.image_ids,
            generators=task.generators,
            shown=self.order_images(task, sent.rater, sent.repeat),
            repeat=sent.repeat,
            gold=task.gold,
            rater=sent.rater,
            answer=sent.answer,
            note=sent.note,
            seconds=sent.seconds,
            at=_format_current_time(),
        )
        key, place = make_key(answer), self.place / make_answer_path(make_key(answer), sent.revision)
        if sent.revision > (following := self.answers.find_next_revision(key)):
            raise RefusedAnswer(400, f"revision: expected at most {following}, got {sent.revision}; reload the page")
        new = place.create(encode_answer(answer))
        try:
            stored = Revision(sent.revision, answer) if new else read_revision(place, sent.revision)
        except BadAnswer as error:
            self.answers.note_revision(key, sent.revision)
            message = f"revision {sent.revision} is already stored but damaged; send revision"
            raise RefusedAnswer(409, f"{message} {self.answers.find_next_revision(key)}") from error
        self.answers.add(stored)
        if not _are_equal(stored.answer, answer):
            message = f"another answer is already stored as revision {sent.revision}; to change it, send revision"
            raise RefusedAnswer(
                409, f"{message} {self.answers.find_next_revision(key)}", self.answers.find_last_revision(key)
            )
        return StoredAnswer(stored, new)

    def add_imported_answer(self, answer: Answer) -> bool:
        """Store an imported answer as the next revision; return False if the last stored revision is equal or newer."""
        key = make_key(answer)
        last = self.answers.find_last_revision(key)
        if last is not None and (last.answer.at >= answer.at or _are_equal(last.answer, answer)):
            return False
        revision = self.answers.find_next_revision(key)
        while not (self.place / make_answer_path(key, revision)).create(encode_answer(answer)):
            revision += 1
        self.answers.add(Revision(revision, answer))
        return True

    def _check_answer(self, sent: SentAnswer, opened: OpenVersion) -> Task:
        """Return the task that was answered.

        Raises RefusedAnswer if the task does not exist or has a missing image, or if the answer is not valid.
        """
        version = opened.version
        task = opened.tasks.get(sent.task_id)
        if task is None and sent.version != version:
            raise RefusedAnswer(
                409,
                f"the task is from version {sent.version} of the study, which now has version {version}; reload the "
                "page",
            )
        if task is None:
            raise RefusedAnswer(
                404, f"version {version} of the study does not contain task {sent.task_id}; reload the page"
            )
        if task.task_id in self.omitted:
            raise RefusedAnswer(410, IMAGE_MISSING_MESSAGE)
        if (problem := find_problem(TEMPLATES[task.template], sent.answer, task.scope)) is not None:
            raise RefusedAnswer(400, problem)
        return task


def open_study(config: RateConfig, report: WarningPrinter) -> Study:
    """Open the configured study. Create it if it does not exist, or add a new version if its tasks have changed.

    Raises ConfigError if there is nothing to ask, SourceError if a file of the study is damaged.
    """
    place = locate_study(config)
    with convert_read_errors(place, "study"):
        (place / MARKER_FILE).create_marker(b'{"plumbline_study": 1}\n')
    versions = list_versions(place)
    own = read_version(place, versions[-1]) if versions else None
    if own is None or any(getattr(config, name) is not None for name in DESIGN_OPTIONS):
        design, designed = _retry_reading(lambda: _make_tasks(config, None if own is None else own.design))
        for note in designed.notes:
            report(note)
        if own is None or not (_has_design(own, design) and own.tasks == designed.tasks):
            version = _write_version(place, design, designed.tasks, 1 if own is None else own.version + 1)
            if own is not None:
                report(f"the study was edited: version {version} is served from now on, and new answers record it")
    return Study(place, config, report)


def _make_tasks(config: RateConfig, own: Mapping[str, Any] | None) -> tuple[Design, DesignedTasks]:
    design = make_design(config, own)
    return design, make_tasks(design, open_originals(design, config.storage), config.storage)


def _retry_reading(read: Callable[[], Result]) -> Result:
    """Return the result of `read`; retry if images are unreadable, because another server may be ingesting them."""
    for _ in range(MAX_READ_TRIES - 1):
        with suppress(UnreadableImages):
            return read()
    return read()


def _has_design(version: StudyVersion, design: Design) -> bool:
    """Return True if a version has this design; options missing from its file have their default values."""
    return read_config(version.design, Design).to_json() == design.to_json()


def _write_version(place: Place, design: Design, tasks: Sequence[Task], version: int) -> int:
    """Write a version with create-only writes, and return its number.

    If another server writes a different version first, the next free number is used.
    """
    data = encode_table("tasks", encode_tasks(tasks))
    while True:
        table, file = place / make_tasks_path(version), place / make_version_path(version)
        if table.create(data) or table.read() == data:
            content = {"version": version, "made": _format_current_time(), "design": design.to_json()}
            if file.create(encode_json(content).encode()) or _has_design(read_version(place, version), design):
                return version
        version += 1


def _format_current_time() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _are_equal(first: Answer, second: Answer) -> bool:
    """Return True if two answers differ only in their times and versions."""
    return replace(first, at=second.at, version=second.version, seconds=second.seconds) == second


def _estimate_minutes(own: Sequence[Answer], left: int) -> float | None:
    times = [answer.seconds for answer in own if answer.seconds is not None]
    return round(statistics.median(times) * left / 60, 1) if len(times) >= MIN_TIMED_ANSWERS else None
