"""The pages of a store over HTTP: who may see them, what each address shows, and what a browser may do with them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from plumbline.operators.base.errors import ConfigError, PlumblineError, RowError, hide_secrets
from plumbline.operators.base.sentences import first_rows
from plumbline.operators.metrics.metric import direction
from plumbline.operators.metrics.table import falling_metrics
from plumbline.operators.report.changes import Change, clear_first, differing_settings
from plumbline.operators.report.gallery import Card, Picture, make_card
from plumbline.operators.report.marked_words import MarkedQuestion, cut, mark_questions
from plumbline.operators.report.rendering import FILE_POLICY, ServedPages, render_trends
from plumbline.operators.results.summary import OVERALL, part_of
from plumbline.pipelines.base.storage import first_line
from plumbline.pipelines.cells.runs import Run
from plumbline.pipelines.report.comparable_runs import obstacle_between
from plumbline.pipelines.report.trends import make_trends
from plumbline.pipelines.web.json_bodies import read_json_body
from plumbline.pipelines.web.page_guards import page_guards
from plumbline.plugins.viewer.addresses import (
    ROWS,
    SETTING,
    BadAddress,
    Choice,
    Side,
    beside_other,
    check_wanted,
    choice_of,
    first_row,
    offered_settings,
    wanted_rows,
    whole_number,
)
from plumbline.plugins.viewer.browser import BrowsedRun, Browser, NoPicture, NotThere, pick_of
from plumbline.plugins.viewer.notes import LONGEST_NOTE, LONGEST_TAG, BadNote, Notes, image_of, parse_note
from plumbline.plugins.viewer.run_database import MOVES, ORDERS, Score, WantedRows
from plumbline.plugins.viewer.sides import Comparisons

PAGES = ServedPages(Path(__file__).parent / "templates", scripts=("view.js",))
MOVES_SHOWN = 10
"""Of a page: prompts with the images of two sides."""
MOST_RUNS = 200
"""The newest, of which two are chosen to be compared."""
SUITES_SHOWN = 5
"""The newest."""
DIFFERENCES_SHOWN = 4
"""Settings of a run that the list of runs names."""
MOST_OF_PROMPT = 600
"""Rows of one prompt: its images by all metrics."""
MOST_QUESTIONS = 100
"""Of one prompt and metric."""
Elements = Sequence[Mapping[str, Any]]


class Mean(NamedTuple):
    """A generator's mean by a metric; where it and its interval lie between the metric's ends is in percent."""

    mean: float | None
    low: float
    high: float
    n: int
    n_null: int
    left: float
    width: float
    dot: float


class SeenImage(NamedTuple):
    """One image of a prompt with what all metrics say of it."""

    score: Score
    """One of its rows."""
    card: Card
    failed: Sequence[Score]
    """Its rows without a score."""
    elements: Mapping[str, Elements]
    """By metric."""


class SharedQuestion(NamedTuple):
    """A question, and what was answered about each image of its prompt."""

    question_id: str
    text: str
    wanted: str
    answers: Sequence[MarkedQuestion | None]


class RowConvertor(IntegerConvertor):
    """The number of a row in an address; longer numbers than a row can have are no page's."""

    regex = "[0-9]{1,18}"


class Pages:
    """Makes every page of a store."""

    def __init__(self, browser: Browser, *, may_write: bool) -> None:
        self.browser = browser
        self.comparisons = Comparisons(browser)
        self.notes = Notes(browser.store)
        self._may_write = may_write and self.notes.may_be_written()

    def runs(self, request: Request) -> Response:
        """All runs, newest first; a damaged one with what is wrong with it."""
        everything = self.browser.runs()
        words = request.query_params.get("words", "").lower().split()
        found = [run for run in everything if all(word in _searchable_text(run) for word in words)]
        benchmarks = {str(run.manifest.get("benchmark", "")) for run in everything if run.manifest is not None}
        first = first_row(request)
        listed = found[first : first + ROWS]
        content: dict[str, Any] = {"runs": listed, "everything": len(everything), "words": " ".join(words)}
        content |= {"benchmarks": sorted(benchmarks - {""}), "first": first, "total": len(found)}
        content["suites"] = self.browser.suites(SUITES_SHOWN)
        content["differing"] = {
            run.run_id: first_rows([*differing_settings(before, run.manifest)], DIFFERENCES_SHOWN)
            for run in listed
            if run.manifest is not None and (before := _run_before(run, everything))
        }
        return self._show("runs", request, title="Runs", **content)

    def run(self, request: Request) -> Response:
        """What came out of a run, from its summary alone; its rows are opened meanwhile."""
        run_id = request.path_params["run"]
        manifest = self.browser.manifest(run_id)
        self.browser.open(run_id)
        summary = self.browser.store.read_table(f"runs/{run_id}/summary.parquet").to_pylist()
        skill = request.query_params.get("skill", "")
        of_skill = [row for row in summary if row["skill"] == (skill or OVERALL)]
        skills = sorted({row["skill"] for row in summary} - {OVERALL})
        board = _board(of_skill, manifest.get("metrics", ()), falling := falling_metrics(manifest))
        content = {"manifest": manifest, "skill": skill, "skills": skills, "board": board, "falling": falling}
        return self._show("run", request, title=f"Run {run_id}", part=part_of(manifest), **content)

    def scores(self, request: Request) -> Response:
        """The rows of a run that are looked for."""
        run, first = self._opened(request), first_row(request)
        wanted = beside_other(run, self._wanted(request))
        check_wanted(run, wanted)
        found = run.rows.find(wanted, first, ROWS)
        content = {"wanted": wanted, "scores": found, "first": first, "total": run.rows.count(wanted)}
        content |= {"skills": run.rows.skills(), "unreadable": run.unreadable, "manifest": run.manifest}
        content |= {"settings": offered_settings(run.manifest), "SETTING": SETTING}
        return self._show("scores", request, title="Scores", **content)

    def compare(self, request: Request) -> Response:
        """Two runs, or two generators of one or two runs, side by side."""
        choice = choice_of(request)
        runs = [run for run in self.browser.runs() if run.manifest is not None]
        content: dict[str, Any] = {"choice": choice, "sides": None, "problem": ""}
        if choice.left.run and choice.right.run:
            try:
                content |= self._compared(request, choice)
            except NotThere as error:
                content["problem"] = first_line(error)
        known = {run.run_id: run.manifest or {} for run in runs}
        named = filter(None, (side.run for side in choice))
        offered = sorted({*named, *list(known)[:MOST_RUNS]}, reverse=True)
        suggested = choice._replace(left=choice.left._replace(run=_suggested(choice, known)))
        content |= {"offered": offered, "known": known, "suggested": suggested}
        content["side_settings"] = {
            name: _several(offered_settings(known.get(side.run, {})), side)
            for name, side in suggested._asdict().items()
        }
        page = self._show("compare", request, title="Side by side", rows=MOVES_SHOWN, **content)
        page.status_code = 404 if content["problem"] else 200
        return page

    def _compared(self, request: Request, choice: Choice) -> dict[str, Any]:
        """What moved from one side to the other, and a page of the pictures that moved."""
        sides, first = self.comparisons.open(choice), first_row(request, MOVES_SHOWN)
        wanted = self._wanted(request, MOVES)
        check_wanted(sides.right, wanted)
        changes = self.comparisons.changes(sides)
        metrics = [*dict.fromkeys(change.duel.metric for change in changes.every)]
        if wanted.metric and wanted.metric not in metrics:
            raise NotThere(f"metric={wanted.metric}: the two sides have no scores of it that can be compared")
        moved = {"wanted": wanted, "first": first, "total": 0, "moves": []}
        if metrics:
            moved["wanted"] = wanted = wanted._replace(metric=wanted.metric or _first_moved(changes.clear, metrics))
            moved["total"], moved["moves"] = self.comparisons.moves(sides, wanted, first, MOVES_SHOWN)
        rows = [change for change in changes.every if wanted.generator in ("", change.generator)]
        at_skills = [change for change in rows if change.duel.skill != OVERALL and change.duel.metric == wanted.metric]
        overall = [change for change in rows if change.duel.skill == OVERALL]
        moved |= {"overall": clear_first(overall), "at_skills": clear_first(at_skills), "metrics": metrics}
        generators = [*dict.fromkeys(change.generator for change in changes.every)]
        kinds = {**(sides.left.manifest.get("errors") or {}), **(sides.right.manifest.get("errors") or {})}
        moved |= {"generators": generators, "skills": sides.right.rows.skills(), "kinds": kinds}
        moved |= {"settings": offered_settings(sides.right.manifest), "SETTING": SETTING}
        return moved | {"sides": sides, "changes": changes, "falling": sides.right.falling, "OVERALL": OVERALL}

    def image(self, request: Request) -> Response:
        """The image of a row with all that every metric says of it, between its neighbours in what is looked for."""
        run, row = self._opened(request), request.path_params["row"]
        wanted, score = beside_other(run, self._wanted(request)), _row(run, row)
        at = whole_number(request, "at", 0)
        around = run.rows.find(wanted, max(at - 2, 0), 3 if at > 1 else 2) if at else []
        place = [other.row for other in around].index(row) if row in [other.row for other in around] else None
        try:
            missing = ""
            self.browser.picture(run.run_id, row, large=True)
        except NoPicture as error:
            missing = str(error)
        before, after = (around[:place], around[place + 1 :]) if place is not None else ([], [])
        content = {"score": score, "missing": missing, "at": at, "before": before, "after": after}
        content |= {"sources": self._sources(run, row), "notes": self.notes.of(image_of(score))}
        content |= {"may_write": self._may_write, "longest": {"text": LONGEST_NOTE, "tag": LONGEST_TAG}}
        seen = self._seen(run, run.rows.of_image(score))[0]
        return self._show("image", request, title=f"Image by {score.generator}", image=seen, **content)

    def prompt(self, request: Request) -> Response:
        """All images of a prompt side by side, and every question with what was answered about each."""
        run, prompt_id = self._opened(request), request.query_params.get("id", "")
        scores = run.rows.of_prompt(prompt_id, MOST_OF_PROMPT)
        if not scores:
            raise NotThere(f"run {run.run_id}: has no row of a prompt {prompt_id!r}")
        images = self._seen(run, scores)
        metrics = dict.fromkeys(metric for image in images for metric in image.elements)
        asked = {metric: _shared_questions([image.elements.get(metric, ()) for image in images]) for metric in metrics}
        wanted = request.query_params.get("question")
        chosen = next((one for of in asked.values() for one in of if one.question_id == wanted), None)
        sources = next(filter(None, (self._sources(run, image.score.row) for image in images)), [])
        first_source = next((number for number, source in enumerate(sources) if source.thumbnail), None)
        n_notes = sum(self._noted(image.score) for image in images)
        content = {"prompt_id": prompt_id, "images": images, "n_notes": n_notes, "asked": asked, "sources": sources}
        title = cut(scores[0].text or prompt_id, 200)
        return self._show(
            "prompt", request, title=title, chosen=chosen, wanted=wanted, first_source=first_source, **content
        )

    def all_notes(self, request: Request) -> Response:
        """The notes on all images of the store, the newest first."""
        words, tag = (request.query_params.get(name, "") for name in ("words", "tag"))
        first = first_row(request)
        total, found = self.notes.newest(words, tag, first, ROWS)
        content = {"notes": found, "total": total, "first": first, "words": words, "tag": tag}
        return self._show("notes", request, title="Notes", **content)

    async def keep_note(self, request: Request) -> Response:
        """Keeps a note on the image of a row."""
        if not self._may_write:
            raise HTTPException(403, "notes are only shown here")
        given = parse_note(await read_json_body(request, "a note"))

        def keep() -> Response:
            run = self._opened(request)
            note = self.notes.add(run.run_id, _row(run, request.path_params["row"]), given)
            return JSONResponse({"at": note.at}, 201)

        return await run_in_threadpool(keep)

    def questions(self, request: Request) -> Response:
        """The questions of a run."""
        run, first, words = self._opened(request), first_row(request), request.query_params.get("words", "")
        total, found = run.rows.questions(words, first, ROWS)
        content = {"questions": found, "total": total, "first": first, "words": words}
        return self._show("questions", request, title="Questions", **content)

    def picture(self, request: Request) -> Response:
        """The image of a row, or one of its sources by its number, made anew as WebP."""
        run_id, row = request.path_params["run"], request.path_params["row"]
        try:
            if "source" in request.query_params:
                encoded = self._source(run_id, row, whole_number(request, "source", 0))
            else:
                encoded = self.browser.picture(run_id, row, large="large" in request.query_params)
        except NoPicture as error:
            return PlainTextResponse(hide_secrets(str(error)), 404)
        return Response(encoded, media_type="image/webp", headers={"Cache-Control": "private, max-age=3600"})

    def _source(self, run_id: str, row: int, number: int) -> bytes:
        made = self.browser.sources(run_id, row)[number : number + 1] or [RowError("missing_image", "there is none")]
        if isinstance(made[0], RowError):
            raise NoPicture(made[0].message)
        return made[0]

    def _sources(self, run: BrowsedRun, row: int) -> list[Picture]:
        """What the image of a row was edited from; nothing where the image itself cannot be shown."""
        try:
            made = self.browser.sources(run.run_id, row)
        except NoPicture:
            return []
        at = f"/runs/{quote(run.run_id)}/pictures/{row}?source="
        return [
            Picture(None, source.message) if isinstance(source, RowError) else Picture(f"{at}{number}")
            for number, source in enumerate(made)
        ]

    def report(self, request: Request) -> Response:
        """A run's report as it stands in the store."""
        run_id = request.path_params["run"]
        self.browser.manifest(run_id)
        html = self.browser.store.read_text(f"runs/{run_id}/report.html")
        if html is None:
            raise NotThere(f"run {run_id}: has no report; make it by plumbline report run={run_id}")
        return _file(html)

    def suite(self, request: Request) -> Response:
        """The page of several benchmarks as it is in the store."""
        suite_id = request.path_params["suite"]
        html = self.browser.suite_page(suite_id)
        if html is None:
            raise NotThere(f"suite {suite_id}: no such suite in {self.browser.store.place.url}")
        return _file(html)

    def trends(self, request: Request) -> Response:
        """What the runs of a benchmark say one after the other."""
        try:
            made = make_trends(self.browser.store, benchmark=request.query_params.get("benchmark"))
        except ConfigError as error:
            raise NotThere(str(error)) from error
        return _file(render_trends(made.page))

    def _opened(self, request: Request) -> BrowsedRun:
        return self.browser.open(request.path_params["run"]).result()

    def _wanted(self, request: Request, orders: Mapping[str, str] = ORDERS) -> WantedRows:
        """What an address asks for, and of which images, where these must have notes."""
        wanted = wanted_rows(request, orders)
        return wanted._replace(noted=self.notes.images()) if request.query_params.get("notes") else wanted

    def _seen(self, run: BrowsedRun, scores: Sequence[Score]) -> list[SeenImage]:
        """The images that rows are of, in the order of these."""
        of_image: dict[tuple[str, str | None], list[Score]] = {}
        for score in scores:
            of_image.setdefault((score.generator, score.image_id), []).append(score)
        picks = [pick_of(of_one) for of_one in of_image.values()]
        details = self.browser.details(run, picks)
        return [
            SeenImage(
                score=of_one[0],
                card=make_card(pick, details[pick.key], of_one[0].text, (), run.usual),
                failed=[score for score in of_one if score.score is None],
                elements=details[pick.key].elements,
            )
            for pick, of_one in zip(picks, of_image.values(), strict=True)
        ]

    def _show(self, name: str, request: Request, *, title: str, **content: Any) -> Response:
        def here(**changes: object) -> str:
            """This address with some of its values changed; None takes one away."""
            values = {**request.query_params, **changes}
            return "?" + urlencode({key: value for key, value in values.items() if value not in (None, "")})

        common = {"name": name, "store": self.browser.store.place.url, "run_id": request.path_params.get("run", "")}
        common |= {"here": here, "rows": ROWS, "title": title, "noted": self._noted}
        return HTMLResponse(PAGES.render(f"view_{name}.html.j2", common | content))

    def _noted(self, score: Score) -> int:
        """How many notes the image of a row has."""
        return self.notes.count(image_of(score))

    def refuse(self, request: Request, error: Exception) -> Response:
        """What is wrong in one line: a page, or where a page has sent something, JSON for it."""
        status = 404 if isinstance(error, NotThere) else 400 if isinstance(error, (BadAddress, BadNote)) else 500
        if isinstance(error, HTTPException):
            status, said = error.status_code, f"{request.url.path}: there is no such page"
            error = NotThere(error.detail if request.method == "POST" else said)
        if request.method == "POST":
            return JSONResponse({"error": hide_secrets(first_line(error))}, status)
        page = self._show("problem", request, title="Not to be shown", problem=first_line(error))
        page.status_code = status
        return page


def _file(html: str) -> Response:
    """A page that may run its own script, and reach nothing: neither another page nor the network."""
    return HTMLResponse(html, headers={"Content-Security-Policy": FILE_POLICY})


def _run_before(run: Run, newest_first: Sequence[Run]) -> Mapping[str, Any] | None:
    """Return the manifest of the newest earlier run of the same benchmark."""
    older = newest_first[newest_first.index(run) + 1 :]
    benchmark = (run.manifest or {}).get("benchmark")
    return next((one.manifest for one in older if one.manifest and one.manifest.get("benchmark") == benchmark), None)


def _searchable_text(run: Run) -> str:
    manifest = run.manifest or {}
    listed = (*manifest.get("generators", ()), *manifest.get("metrics", ()))
    return " ".join((run.run_id, str(manifest.get("note", "")), str(manifest.get("benchmark", "")), *listed)).lower()


def _shared_questions(elements: Sequence[Elements]) -> list[SharedQuestion]:
    """The questions in the order in which they were written; an image whose cell is gone has no answer."""
    by_id = [{element["question_id"]: element for element in of_image} for of_image in elements]
    first = {question_id: element for of_image in reversed(by_id) for question_id, element in of_image.items()}
    return [
        SharedQuestion(
            question_id=question_id,
            text=cut(element["text"]),
            wanted=cut(element["wanted"]),
            answers=[mark_questions([of[question_id]])[0] if question_id in of else None for of in by_id],
        )
        for question_id, element in list(first.items())[:MOST_QUESTIONS]
    ]


def _board(
    summary: Sequence[Mapping[str, Any]], metrics: Sequence[str], falling: frozenset[str]
) -> list[tuple[str, Mapping[str, Mean]]]:
    """Every generator with its means, those of the better means by the first metric first."""
    by_metric: dict[str, list[Mapping[str, Any]]] = {metric: [] for metric in metrics}
    for row in summary:
        by_metric.setdefault(row["metric"], []).append(row)
    board: dict[str, dict[str, Mean]] = {}
    for metric, of_metric in by_metric.items():
        scored = [row for row in of_metric if row["n"]]
        start = min((_ends(row)[0] for row in scored), default=0.0)
        span = max((_ends(row)[1] for row in scored), default=1.0) - start or 1.0
        for row in sorted(of_metric, key=lambda row: direction(metric, falling) * (row["mean"] or 0.0), reverse=True):
            low, high = _ends(row) if row["n"] else (start, start)
            places = (low, high - low + start, row["mean"] if row["n"] else start)
            left, width, dot = (round(100 * (place - start) / span, 2) for place in places)
            mean = row["mean"] if row["n"] else None
            board.setdefault(row["generator"], {})[metric] = Mean(
                mean, low, high, row["n"], row["n_null"], left, width, dot
            )
    return list(board.items())


def _ends(row: Mapping[str, Any]) -> tuple[float, float]:
    """Of a mean's interval; the mean itself where it has none."""
    low, high = row["low"], row["high"]
    return (row["mean"], row["mean"]) if low is None or high is None else (low, high)


def _row(run: BrowsedRun, row: int) -> Score:
    score = run.rows.at(row)
    if score is None:
        raise NotThere(f"run {run.run_id}: has no row {row}")
    return score


def _suggested(choice: Choice, known: Mapping[str, Mapping[str, Any]]) -> str:
    """The newest run that the chosen right one, or else the newest, can be compared with."""
    right = choice.right.run or next(iter(known), "")
    others = (run_id for run_id, manifest in known.items() if not obstacle_between(manifest, known.get(right, {})))
    return choice.left.run or next((run_id for run_id in others if run_id != right), "")


def _several(settings: Mapping[str, list[str] | None], side: Side) -> dict[str, list[str] | None]:
    """The settings of which there is one to choose, and those that are chosen."""
    chosen = dict(side.settings)
    return {name: values for name, values in settings.items() if values is None or len(values) > 1 or name in chosen}


def _first_moved(clear: Sequence[Change], metrics: Sequence[str]) -> str:
    """The first metric with a clear change; else the first."""
    return next((change.duel.metric for change in clear), metrics[0])


def make_app(browser: Browser, token: str | None, names: Sequence[str], *, notes: bool = True) -> Starlette:
    """Every page of a store, for who asks by one of the server's names; `notes` says whether these may be written."""
    pages = Pages(browser, may_write=notes)

    register_url_convertor("row", RowConvertor())
    routes = {
        "/": pages.runs,
        "/favicon.ico": lambda request: Response(status_code=204),
        "/trends": pages.trends,
        "/compare": pages.compare,
        "/notes": pages.all_notes,
        "/runs/{run}": pages.run,
        "/runs/{run}/report": pages.report,
        "/runs/{run}/report.html": pages.report,  # as the page of a suite names it
        "/suites/{suite}/report.html": pages.suite,
        "/runs/{run}/scores": pages.scores,
        "/runs/{run}/scores/{row:row}": pages.image,
        "/runs/{run}/prompt": pages.prompt,
        "/runs/{run}/questions": pages.questions,
        "/runs/{run}/pictures/{row:row}": pages.picture,
    }
    return Starlette(
        routes=[
            *(Route(path, page, methods=["GET"]) for path, page in routes.items()),
            Route("/runs/{run}/scores/{row:row}/notes", pages.keep_note, methods=["POST"]),
        ],
        middleware=page_guards(names, token, PAGES.policy()),
        exception_handlers=dict.fromkeys((PlumblineError, OSError, HTTPException), pages.refuse),
    )
