"""The web application for a study: pages, tasks, images and answers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from plumbline.operators.base.errors import PlumblineError, RowError
from plumbline.operators.report.rendering import ServedPageRenderer
from plumbline.pipelines.base.storage import get_first_line
from plumbline.pipelines.web.page_input import BadNameError, clean_name, describe_mistake
from plumbline.pipelines.web.pages import make_page_guards, read_json_body
from plumbline.plugins.rating.answers import MAX_REPEATS, BadAnswer
from plumbline.plugins.rating.progress_page import make_progress_variables
from plumbline.plugins.rating.question_templates import TEMPLATES
from plumbline.plugins.rating.study import IMAGE_MISSING_MESSAGE, RefusedAnswer, SentAnswer, Study
from plumbline.plugins.rating.study_files import AnswerKey, Revision
from plumbline.plugins.rating.tasks import Task

SERVED_PAGES = ServedPageRenderer(
    Path(__file__).parent / "templates", styles=("rate.css",), scripts=("rate.js", "rate_progress.js")
)
MAX_TASKS_PER_REQUEST = 20
"""Maximum number of tasks that a page may request at once."""
PAGE_REFRESH_SECONDS = 10
"""Interval in seconds at which the progress page reloads itself."""
_SENT_ANSWER_ADAPTER = TypeAdapter(SentAnswer)


class Pages:
    """Handlers for all requests to a study."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._progress_state: object = None
        self._progress: dict[str, Any] = {}

    def show_start_page(self, request: Request) -> Response:
        """Ask for the rater's name, or continue with the name in the URL."""
        if "rater" not in request.query_params:
            return self._render("start")
        return RedirectResponse("/rate?" + urlencode({"rater": _parse_rater(request)}), 303)

    def show_rating_page(self, request: Request) -> Response:
        """Show a rater the page for answering tasks."""
        return self._render("task", _parse_rater(request))

    def show_progress(self, request: Request) -> Response:
        """Show the study's progress, and which files and tasks are omitted."""
        self.study.refresh()
        queue, answers = self.study.served.queue, self.study.answers.list_answers()
        state = queue, len(answers), max((answer.at for answer in answers), default="")
        if state != self._progress_state:
            self._progress = make_progress_variables(queue, answers)
            self._progress_state = state
        omitted = [
            f"task {task_id}: left out, an image is missing: {why}" for task_id, why in self.study.omitted.items()
        ]
        problems = [*self.study.answers.problems.values(), *omitted]
        return self._render("progress", seconds=PAGE_REFRESH_SECONDS, problems=problems, **self._progress)

    def _render(self, name: str, rater: str = "", problem: str = "", status: int = 200, **content: Any) -> Response:
        common = {"title": "Rate images", "study": self.study.place.name, "rater": rater, "problem": problem}
        return HTMLResponse(SERVED_PAGES.render(f"rate_{name}.html.j2", common | content), status)

    def send_tasks(self, request: Request) -> Response:
        """Send a rater's next tasks."""
        rater, count = _parse_rater(request), _parse_number(request, "count", 3, MAX_TASKS_PER_REQUEST)
        progress = self.study.choose_turns(rater, count)._asdict() | {"left_out": len(self.study.omitted)}
        turns = progress.pop("turns")
        return JSONResponse([self._make_task_json(turn.task, rater, turn.repeat) | progress for turn in turns])

    def send_task(self, request: Request) -> Response:
        """Send a task with the rater's last answer to it."""
        rater, repeat = _parse_rater(request), _parse_number(request, "repeat", 0, MAX_REPEATS)
        self.study.refresh(rater)
        task = self._find_task(request)
        last = self.study.answers.find_last_revision(AnswerKey(rater, task.task_id, repeat))
        stored = {"answer": None, "note": "", "revision": None} if last is None else _make_answer_json(last)
        return JSONResponse(stored | self._make_task_json(task, rater, repeat) | {"version": self.study.served.version})

    def _make_task_json(self, task: Task, rater: str, repeat: int) -> dict[str, Any]:
        """Return a task as JSON without its generators and without revealing that it is a gold question."""
        sources = range(len(self.study.served.images.read_sources(task)))
        shown, template = self.study.order_images(task, rater, repeat), TEMPLATES[task.template]
        return {
            "task_id": task.task_id,
            "repeat": repeat,
            "template": task.template,
            "asks": template.question,
            "grades": [[grade, template.anchors.get(grade, "")] for grade in template.grades],
            "prompt": task.prompt,
            "words": list(task.words),
            "questions": [question._asdict() for question in task.questions],
            "shown": shown,
            "pictures": [f"/pictures/{task.task_id}/{place}" for place in shown],
            "sources": [f"/sources/{task.task_id}/{number}" for number in sources],
        }

    def _find_task(self, request: Request) -> Task:
        task = self.study.served.tasks.get(request.path_params["task"])
        if task is None:
            raise HTTPException(404, "the study's newest version does not contain this task; reload the page")
        return task

    def send_image(self, request: Request) -> Response:
        """Send an image of a task."""
        task, number = self._find_task(request), request.path_params["number"]
        if number >= len(task.places):
            raise HTTPException(
                404, f"expected an image number below {len(task.places)}, got {number}; reload the page"
            )
        return _respond_with_image(self.study.served.images.read_image(task, number))

    def send_source(self, request: Request) -> Response:
        """Send one of the source images that a task's images were edited from."""
        sources, number = self.study.served.images.read_sources(self._find_task(request)), request.path_params["number"]
        if number >= len(sources):
            raise HTTPException(
                404, f"expected a source image number below {len(sources)}, got {number}; reload the page"
            )
        return _respond_with_image(sources[number])

    async def store_answer(self, request: Request) -> Response:
        """Store the answer that a page sends."""
        sent = parse_sent_answer(await read_json_body(request, "an answer"))
        stored = await run_in_threadpool(self.study.add, sent)
        return JSONResponse(_make_answer_json(stored.revision), 201 if stored.new else 200)

    def refuse(self, request: Request, error: Exception) -> Response:
        """Return the response to a failed request, with the error in one line.

        The response to requests for "/" and "/rate" is the start page; for all others it is JSON.
        """
        message, content = get_first_line(error), {}
        if isinstance(error, HTTPException):
            message, status = error.detail, error.status_code
        elif isinstance(error, RefusedAnswer):
            status = error.status
            content = {} if error.kept is None else {"kept": _make_answer_json(error.kept)}
        else:
            status = 400 if isinstance(error, (BadAnswer, BadNameError)) else 500
        if request.url.path in ("/", "/rate"):
            return self._render("start", problem=message, status=status)
        return JSONResponse({"error": message, **content}, status)


def _make_answer_json(stored: Revision) -> dict[str, Any]:
    fields = ("version", "task_id", "repeat", "rater", "answer", "note", "seconds", "at")
    return {name: getattr(stored.answer, name) for name in fields} | {"revision": stored.revision}


def _respond_with_image(image: bytes | RowError) -> Response:
    if isinstance(image, RowError):
        raise HTTPException(410, IMAGE_MISSING_MESSAGE)
    return Response(image, media_type="image/webp", headers={"Cache-Control": "private, max-age=3600"})


def _parse_rater(request: Request) -> str:
    return clean_name(request.query_params.get("rater", ""), "rater")


def _parse_number(request: Request, name: str, default: int, highest: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdecimal()) or len(text) > 3 or int(text) > highest:
        raise HTTPException(
            400, f"{name}: expected a whole number up to {highest}, got {text[:20]!r}; correct the address"
        )
    return int(text)


def parse_sent_answer(body: bytes) -> SentAnswer:
    """Parse the answer in a request body; raise BadAnswer or BadNameError."""
    try:
        sent = _SENT_ANSWER_ADAPTER.validate_json(body, strict=True)
    except ValidationError as error:
        raise BadAnswer(describe_mistake(error)) from error
    if (name := clean_name(sent.rater, "rater")) != sent.rater:
        raise BadAnswer(f"rater: expected {name!r}, got {sent.rater!r}")
    return sent


def make_app(study: Study, token: str | None, names: Sequence[str]) -> Starlette:
    """Create the web application for a study; `names` are the host names under which it accepts requests."""
    pages = Pages(study)
    routes: Mapping[str, Callable[[Request], Response]] = {
        "/": pages.show_start_page,
        "/rate": pages.show_rating_page,
        "/progress": pages.show_progress,
        "/tasks": pages.send_tasks,
        "/tasks/{task}": pages.send_task,
        "/pictures/{task}/{number:int}": pages.send_image,
        "/sources/{task}/{number:int}": pages.send_source,
        "/favicon.ico": lambda request: Response(status_code=204),
    }
    return Starlette(
        routes=[
            *(Route(path, page, methods=["GET"]) for path, page in routes.items()),
            Route("/answers", pages.store_answer, methods=["POST"]),
        ],
        middleware=make_page_guards(names, token, SERVED_PAGES.make_policy()),
        exception_handlers=dict.fromkeys((HTTPException, BadNameError, PlumblineError, OSError), pages.refuse),
    )
