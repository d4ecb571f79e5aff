"""A study over HTTP: its pages, the tasks of each rater, their pictures, and the answers that come in."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlencode

from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from plumbline.operators.base.errors import PlumblineError, RowError
from plumbline.operators.report.rendering import ServedPages
from plumbline.pipelines.base.storage import first_line
from plumbline.pipelines.web.json_bodies import read_json_body
from plumbline.pipelines.web.mistakes import describe_mistake
from plumbline.pipelines.web.page_guards import page_guards
from plumbline.pipelines.web.person_names import BadName, clean_name
from plumbline.plugins.rating.answers import MOST_REPEATS, BadAnswer
from plumbline.plugins.rating.progress_page import progress_page
from plumbline.plugins.rating.question_templates import TEMPLATES
from plumbline.plugins.rating.study import GONE, Given, RefusedAnswer, Study
from plumbline.plugins.rating.study_files import AnswerKey, Revision
from plumbline.plugins.rating.tasks import Task

PAGES = ServedPages(Path(__file__).parent / "templates", styles=("rate.css",), scripts=("rate.js", "rate_progress.js"))
MOST_AT_ONCE = 20
"""Tasks that a page may ask for."""
REFRESH_SECONDS = 10
"""After which the page of a study's progress asks for itself again."""
_GIVEN = TypeAdapter(Given)


class Pages:
    """Answers every address of a study."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._progress_of: object = None
        self._progress: dict[str, Any] = {}

    def start(self, request: Request) -> Response:
        """Asks for the rater's name, or goes on with the one that the address has."""
        if "rater" not in request.query_params:
            return self._page("start")
        return RedirectResponse("/rate?" + urlencode({"rater": _rater(request)}), 303)

    def rate(self, request: Request) -> Response:
        """The page that a rater works on."""
        return self._page("task", _rater(request))

    def progress(self, request: Request) -> Response:
        """How far the study is, and what is left out of it."""
        self.study.look()
        queue, answers = self.study.opened.queue, self.study.answers.all()
        state = queue, len(answers), max((answer.at for answer in answers), default="")
        if state != self._progress_of:
            self._progress = progress_page(queue, answers)
            self._progress_of = state
        left_out = [f"task {task_id}: left out, a picture has gone: {why}" for task_id, why in self.study.gone.items()]
        problems = [*self.study.answers.problems.values(), *left_out]
        return self._page("progress", seconds=REFRESH_SECONDS, problems=problems, **self._progress)

    def _page(self, name: str, rater: str = "", problem: str = "", status: int = 200, **content: Any) -> Response:
        common = {"title": "Rate images", "study": self.study.place.name, "rater": rater, "problem": problem}
        return HTMLResponse(PAGES.render(f"rate_{name}.html.j2", common | content), status)

    def tasks(self, request: Request) -> Response:
        """What a rater is asked next."""
        rater, count = _rater(request), _whole(request, "count", 3, MOST_AT_ONCE)
        left = self.study.left_for(rater, count)
        progress = left._asdict() | {"left_out": len(self.study.gone)}
        progress.pop("turns")
        return JSONResponse([self._shown(turn.task, rater, turn.repeat) | progress for turn in left.turns])

    def task(self, request: Request) -> Response:
        """A task with the last answer of a rater."""
        rater, repeat = _rater(request), _whole(request, "repeat", 0, MOST_REPEATS)
        self.study.look(rater)
        task = self._task(request)
        last = self.study.answers.last(AnswerKey(rater, task.task_id, repeat))
        kept = {"answer": None, "note": "", "revision": None} if last is None else _kept(last)
        return JSONResponse(kept | self._shown(task, rater, repeat) | {"version": self.study.opened.version})

    def _shown(self, task: Task, rater: str, repeat: int) -> dict[str, Any]:
        """A task as its page needs it; nothing tells which generator made a picture, or whether the answer is known."""
        sources = range(len(self.study.opened.pictures.sources(task)))
        shown, template = self.study.shown(task, rater, repeat), TEMPLATES[task.template]
        return {
            "task_id": task.task_id,
            "repeat": repeat,
            "template": task.template,
            "asks": template.asks,
            "grades": [[grade, template.anchors.get(grade, "")] for grade in template.grades],
            "prompt": task.prompt,
            "words": list(task.words),
            "questions": [question._asdict() for question in task.questions],
            "shown": shown,
            "pictures": [f"/pictures/{task.task_id}/{place}" for place in shown],
            "sources": [f"/sources/{task.task_id}/{number}" for number in sources],
        }

    def _task(self, request: Request) -> Task:
        task = self.study.opened.tasks.get(request.path_params["task"])
        return task if task is not None else _missing("there is no such task in the study's newest version")

    def picture(self, request: Request) -> Response:
        """A picture of a task."""
        task, number = self._task(request), request.path_params["number"]
        if number >= len(task.places):
            _missing("the task has no such picture")
        return _picture(self.study.opened.pictures.image(task, number))

    def source(self, request: Request) -> Response:
        """One of the pictures that those of a task were edited from."""
        sources, number = self.study.opened.pictures.sources(self._task(request)), request.path_params["number"]
        if number >= len(sources):
            _missing("the task has no such source")
        return _picture(sources[number])

    async def answer(self, request: Request) -> Response:
        """Keeps an answer."""
        given = parse_answer(await read_json_body(request, "an answer"))
        kept = await run_in_threadpool(self.study.keep, given)
        return JSONResponse(_kept(kept.revision), 201 if kept.new else 200)

    def refuse(self, request: Request, error: Exception) -> Response:
        """A request that asks for what is not there, or is not of its form."""
        assert isinstance(error, HTTPException)
        return self._refusal(request, error.detail, error.status_code)

    def refuse_answer(self, request: Request, error: Exception) -> Response:
        """An answer that is not kept, with the one that is."""
        assert isinstance(error, RefusedAnswer)
        kept = {} if error.kept is None else {"kept": _kept(error.kept)}
        return self._refusal(request, first_line(error), error.status, **kept)

    def refuse_form(self, request: Request, error: Exception) -> Response:
        """A name or an answer that is none."""
        return self._refusal(request, first_line(error), 400)

    def fail(self, request: Request, error: Exception) -> Response:
        """What the server cannot do."""
        return self._refusal(request, first_line(error), 500)

    def _refusal(self, request: Request, message: str, status: int, **content: Any) -> Response:
        """What is wrong, in one line: where a person asked for a page, on the page that asks for a name."""
        if request.url.path in ("/", "/rate"):
            return self._page("start", problem=message, status=status)
        return JSONResponse({"error": message, **content}, status)


def _kept(kept: Revision) -> dict[str, Any]:
    """What a rater is told of an answer that is kept."""
    answer = kept.answer
    named = ("version", "task_id", "repeat", "rater", "answer", "note", "seconds", "at")
    return {name: getattr(answer, name) for name in named} | {"revision": kept.revision}


def _picture(made: bytes | RowError) -> Response:
    if isinstance(made, RowError):
        _missing(GONE, 410)
    return Response(made, media_type="image/webp", headers={"Cache-Control": "private, max-age=3600"})


def _missing(message: str, status: int = 404) -> NoReturn:
    raise HTTPException(status, message)


def _rater(request: Request) -> str:
    return clean_name(request.query_params.get("rater", ""), "rater")


def _whole(request: Request, name: str, default: int, most: int) -> int:
    given = request.query_params.get(name, str(default))
    if not (given.isascii() and given.isdecimal()) or len(given) > 3 or int(given) > most:
        _missing(f"{name}: expected a whole number up to {most}, got {given[:20]!r}", 400)
    return int(given)


def parse_answer(body: bytes) -> Given:
    """The answer that a body has; raises BadAnswer or BadName."""
    try:
        given = _GIVEN.validate_json(body, strict=True)
    except ValidationError as error:
        raise BadAnswer(describe_mistake(error)) from error
    if (name := clean_name(given.rater, "rater")) != given.rater:
        raise BadAnswer(f"rater: expected {name!r}, got {given.rater!r}")
    return given


def make_app(study: Study, token: str | None, names: Sequence[str]) -> Starlette:
    """Every address of a study, for who asks by one of the server's names."""
    pages = Pages(study)
    routes: Mapping[str, Callable[[Request], Response]] = {
        "/": pages.start,
        "/rate": pages.rate,
        "/progress": pages.progress,
        "/tasks": pages.tasks,
        "/tasks/{task}": pages.task,
        "/pictures/{task}/{number:int}": pages.picture,
        "/sources/{task}/{number:int}": pages.source,
        "/favicon.ico": lambda request: Response(status_code=204),
    }
    return Starlette(
        routes=[
            *(Route(path, page, methods=["GET"]) for path, page in routes.items()),
            Route("/answers", pages.answer, methods=["POST"]),
        ],
        middleware=page_guards(names, token, PAGES.policy()),
        exception_handlers={
            HTTPException: pages.refuse,
            RefusedAnswer: pages.refuse_answer,
            BadAnswer: pages.refuse_form,
            BadName: pages.refuse_form,
            PlumblineError: pages.fail,
            OSError: pages.fail,
        },
    )
