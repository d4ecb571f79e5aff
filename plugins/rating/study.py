"""A study that is open: its newest version, its answers as they come in, and how one more is kept."""

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
from plumbline.pipelines.base.storage import Place, readable_errors
from plumbline.pipelines.cells.checksums import encode_json
from plumbline.pipelines.cells.store import encode_table
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.plugins.rating.answers import (
    Answer,
    BadAnswer,
    Note,
    Repeat,
    RevisionNumber,
    Seconds,
    TaskId,
    Version,
    encode_answer,
)
from plumbline.plugins.rating.designs import (
    Design,
    DesignedTasks,
    UnreadableImages,
    make_design,
    make_tasks,
    open_originals,
    study_place,
)
from plumbline.plugins.rating.open_queue import open_queue
from plumbline.plugins.rating.order import Turn, shown_order
from plumbline.plugins.rating.pictures import Pictures
from plumbline.plugins.rating.question_templates import TEMPLATES, what_is_wrong
from plumbline.plugins.rating.queue import Queue
from plumbline.plugins.rating.rate_config import RateConfig
from plumbline.plugins.rating.study_files import (
    AnswerReader,
    AskedVersion,
    Revision,
    answer_path,
    key_of,
    read_revision,
    read_study,
    read_version,
    study_versions,
    tasks_path,
    version_path,
)
from plumbline.plugins.rating.tasks import Task, task_table

MARK = "study.json"
"""By which a folder is a study's, and its server is known to honour create-only writes."""
DECIDING = ("templates", "run", "images", "generators", "pictures", "questions", "gold", "seed")
"""Keys of the configuration that decide what is asked."""
GONE = "a picture of this task has gone; whoever runs the study is told"
"""What a rater is told, whom the picture's address would tell its generator."""
TRIES = 4
Found = TypeVar("Found")
LOOK_SECONDS = 1.0
"""After which the study's folder is listed again for what other servers kept."""
FEWEST_TIMED = 5
"""Answers from which on it is said how long the rest takes."""
Report = Callable[[str], None]
"""Told what people should know, a line each."""


class RefusedAnswer(PlumblineError):
    """An answer that is not kept; with its HTTP status."""

    def __init__(self, status: Literal[400, 404, 409, 410], message: str, kept: Revision | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kept = kept
        """What is kept instead."""


@checked(frozen=True, kw_only=True, slots=True, config=ConfigDict(extra="forbid"))
class Given:
    """An answer as a rater's page brings it."""

    task_id: TaskId
    repeat: Repeat = 0
    revision: RevisionNumber = 0
    version: Version
    rater: str
    answer: Any
    note: Note = ""
    seconds: Seconds


class Kept(NamedTuple):
    """An answer that is in the study."""

    revision: Revision
    new: bool
    """Whether it was not there before."""


class Left(NamedTuple):
    """How far a rater is."""

    version: int
    turns: Sequence[Turn]
    done: int
    total: int
    remaining_minutes: float | None
    """None where too few answers were timed."""


class Opened(NamedTuple):
    """The version that is asked."""

    version: int
    tasks: Mapping[str, Task]
    """By id."""
    pictures: Pictures
    queue: Queue
    """Of the tasks whose pictures are there."""


class Study:
    """A study as its server has it: what is asked, and what was answered so far by way of any server."""

    def __init__(self, place: Place, config: RateConfig, report: Report) -> None:
        """Opens the newest version; raises PlumblineError where it cannot be read."""
        self.place = place
        self.answers = AnswerReader(place)
        self.gone: dict[str, str] = {}
        """By task whose pictures cannot all be shown, why."""
        self._told: set[str] = set()
        self._config, self._report = config, report
        self._opened = self._open(read_study(place))
        self._changing, self._looking = Lock(), Lock()
        self._looked = -math.inf
        self.look()

    def _open(self, version: AskedVersion) -> Opened:
        design = read_config(version.design, Design)
        pictures = Pictures(_read_again(lambda: open_originals(design, self.place.storage)))
        tasks = {task.task_id: task for task in version.tasks}
        return Opened(version.version, tasks, pictures, open_queue(version.tasks, design, self._config))

    def _leave_out(self, gone: dict[str, str]) -> None:
        """Asks all tasks but those of pictures that have gone."""
        left = [task for task in self._opened.tasks.values() if task.task_id not in gone]
        self.gone = gone
        self._opened = self._opened._replace(queue=self._opened.queue.only(left))

    @property
    def opened(self) -> Opened:
        """The version that is asked now."""
        return self._opened

    def look(self, rater: str = "") -> None:
        """Takes in what other servers kept: of this rater all, else not more often than each `LOOK_SECONDS`."""
        with self._looking:
            if time.monotonic() - self._looked > LOOK_SECONDS:
                self.answers.look()
                self._take_newest()
                self._looked = time.monotonic()
            elif rater:
                self.answers.look(rater)
        for name, problem in list(self.answers.problems.items()):
            self._tell(name, f"not among the answers: {problem}")

    def _take_newest(self) -> None:
        newest = study_versions(self.place)[-1:]
        if newest and newest[0] > self._opened.version:
            self._opened = self._open(read_version(self.place, newest[0]))
            self.gone = {}
            self._report(f"the study was edited: version {newest[0]} is asked from now on")

    def _tell(self, what: str, line: str) -> None:
        """Tells something once."""
        if what not in self._told:
            self._told.add(what)
            self._report(line)

    def left_for(self, rater: str, count: int) -> Left:
        """What a rater is asked next, tasks with a picture that has gone left out and told.

        Where nothing else is left these are tried again: the pictures may be back.
        """
        self.look(rater)
        answers = [answer for answer in self.answers.all() if answer.task_id in self._opened.tasks]
        opened, turns = self._turns(answers, rater, count)
        if not turns and self.gone:
            with self._changing:
                self._leave_out({})
            opened, turns = self._turns(answers, rater, count)
        own, left = [answer for answer in answers if answer.rater == rater], len(opened.queue.left(answers, rater))
        return Left(opened.version, turns, len(own), len(own) + left, _minutes(own, left))

    def _turns(self, answers: Sequence[Answer], rater: str, count: int) -> tuple[Opened, list[Turn]]:
        """The next turns whose pictures are all there, of the version that asks them."""
        while True:
            opened = self._opened
            turns = opened.queue.next(answers, rater, count)
            if not any(self._is_gone(opened, turn.task) for turn in turns):
                return opened, turns

    def _is_gone(self, opened: Opened, task: Task) -> bool:
        """Whether a picture of a task has gone, which is then left out."""
        problem = opened.pictures.problem(task)
        if problem is None:
            return False
        with self._changing:
            if self._opened.version == opened.version and task.task_id not in self.gone:
                self._leave_out({**self.gone, task.task_id: problem})
                self._tell(task.task_id, f"task {task.task_id} is left out, a picture has gone: {problem}")
        return True

    def shown(self, task: Task, rater: str, repeat: int) -> tuple[int, ...]:
        """The task's pictures from left to right, as this rater sees them."""
        return shown_order(self._opened.queue.sequencing.seed, rater, task, repeat)

    def keep(self, given: Given) -> Kept:
        """Keeps an answer by one create-only write; the same answer once more changes nothing.

        Raises RefusedAnswer where it is not valid or another is kept, WriteError where it cannot be written.
        """
        self.look(given.rater)
        opened = self._opened
        task = self._asked(given, opened)
        answer = Answer(
            version=opened.version,
            task_id=task.task_id,
            template=task.template,
            prompt_id=task.prompt_id,
            image_ids=task.image_ids,
            generators=task.generators,
            shown=self.shown(task, given.rater, given.repeat),
            repeat=given.repeat,
            gold=task.gold,
            rater=given.rater,
            answer=given.answer,
            note=given.note,
            seconds=given.seconds,
            at=_now(),
        )
        key, place = key_of(answer), self.place / answer_path(key_of(answer), given.revision)
        if given.revision > (following := self.answers.next_revision(key)):
            raise RefusedAnswer(400, f"revision: expected at most {following}, got {given.revision}")
        new = place.create(encode_answer(answer))
        try:
            kept = Revision(given.revision, answer) if new else read_revision(place, given.revision)
        except BadAnswer as error:
            self.answers.take(key, given.revision)
            message = f"revision {given.revision} is kept and damaged; send revision"
            raise RefusedAnswer(409, f"{message} {self.answers.next_revision(key)}") from error
        self.answers.add(kept)
        if not _are_same(kept.answer, answer):
            message = f"another answer is kept as revision {given.revision}; to change it, send revision"
            raise RefusedAnswer(409, f"{message} {self.answers.next_revision(key)}", self.answers.last(key))
        return Kept(kept, new)

    def keep_elsewhere(self, answer: Answer) -> bool:
        """Keeps an answer that was given in another tool as the next revision; False where nothing is new in it.

        That is so where the last one says the same or came later.
        """
        key = key_of(answer)
        last = self.answers.last(key)
        if last is not None and (last.answer.at >= answer.at or _are_same(last.answer, answer)):
            return False
        revision = self.answers.next_revision(key)
        while not (self.place / answer_path(key, revision)).create(encode_answer(answer)):
            revision += 1
        self.answers.add(Revision(revision, answer))
        return True

    def _asked(self, given: Given, opened: Opened) -> Task:
        """The task that an answer is to; raises RefusedAnswer."""
        version = opened.version
        task = opened.tasks.get(given.task_id)
        if task is None and given.version != version:
            raise RefusedAnswer(409, f"version {given.version} of the study asked this; now version {version} is asked")
        if task is None:
            raise RefusedAnswer(404, f"task {given.task_id}: version {version} of the study has no such task")
        if task.task_id in self.gone:
            raise RefusedAnswer(410, GONE)
        if (problem := what_is_wrong(TEMPLATES[task.template], given.answer, task.asked)) is not None:
            raise RefusedAnswer(400, problem)
        return task


def open_study(config: RateConfig, report: Report) -> Study:
    """The study that a configuration names: made where there is none, and a new version where its design was edited.

    Raises ConfigError where there is nothing to ask, SourceError where a file of the study is damaged.
    """
    place = study_place(config)
    with readable_errors(place, "study"):
        (place / MARK).create_mark(b'{"plumbline_study": 1}\n')
    versions = study_versions(place)
    own = read_version(place, versions[-1]) if versions else None
    if own is None or any(getattr(config, name) is not None for name in DECIDING):
        design, made = _read_again(lambda: _make(config, None if own is None else own.design))
        for note in made.notes:
            report(note)
        if own is None or not (_is_of(own, design) and own.tasks == made.tasks):
            version = _keep_version(place, design, made.tasks, 1 if own is None else own.version + 1)
            if own is not None:
                report(f"the study was edited: version {version} is asked from now on, and its answers say so")
    return Study(place, config, report)


def _make(config: RateConfig, own: Mapping[str, Any] | None) -> tuple[Design, DesignedTasks]:
    design = make_design(config, own)
    return design, make_tasks(design, open_originals(design, config.storage), config.storage)


def _read_again(read: Callable[[], Found]) -> Found:
    """What is read of images, which another server that takes in the same ones may just be writing anew."""
    for _ in range(TRIES - 1):
        with suppress(UnreadableImages):
            return read()
    return read()


def _is_of(version: AskedVersion, design: Design) -> bool:
    """Whether a version has this design; keys that are younger than its file are as they are by default."""
    return read_config(version.design, Design).as_json() == design.as_json()


def _keep_version(place: Place, design: Design, tasks: Sequence[Task], version: int) -> int:
    """Writes a version, by create-only writes; gives the number that it has, or had where another server wrote it."""
    data = encode_table("tasks", task_table(tasks))
    while True:
        table, file = place / tasks_path(version), place / version_path(version)
        if table.create(data) or table.read() == data:
            made = {"version": version, "made": _now(), "design": design.as_json()}
            if file.create(encode_json(made).encode()) or _is_of(read_version(place, version), design):
                return version
        version += 1


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _are_same(kept: Answer, given: Answer) -> bool:
    """Whether two answers say the same of the same, whenever they came."""
    return replace(kept, at=given.at, version=given.version, seconds=given.seconds) == given


def _minutes(own: Sequence[Answer], left: int) -> float | None:
    """How long the rest takes a rater at the pace so far."""
    timed = [answer.seconds for answer in own if answer.seconds is not None]
    return round(statistics.median(timed) * left / 60, 1) if len(timed) >= FEWEST_TIMED else None
