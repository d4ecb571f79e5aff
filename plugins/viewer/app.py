"""The web application that shows a store."""

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
from plumbline.operators.base.sentences import take_first_rows
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.metrics.table import read_lower_is_better
from plumbline.operators.report.changes import list_differing_settings, sort_clear_first
from plumbline.operators.report.gallery import Card, Thumbnail, make_card
from plumbline.operators.report.marked_words import MarkedQuestion, mark_questions, shorten
from plumbline.operators.report.rendering import FILE_POLICY, ServedPageRenderer, render_trends
from plumbline.operators.results.summary import OVERALL, describe_part
from plumbline.pipelines.base.storage import get_first_line
from plumbline.pipelines.report.comparable_runs import find_obstacle
from plumbline.pipelines.report.trends import make_trends
from plumbline.pipelines.store.runs import Run
from plumbline.pipelines.web.pages import make_page_guards, read_json_body
from plumbline.plugins.viewer.addresses import (
    ROWS_PER_PAGE,
    SETTING_PREFIX,
    BadAddress,
    ChosenSides,
    add_other_metric,
    check_rows,
    compute_first_row,
    find_settings,
    parse_choice,
    parse_number,
    parse_rows,
)
from plumbline.plugins.viewer.browser import BrowsedRun, ImageUnavailable, NotFound, StoreBrowser, make_pick
from plumbline.plugins.viewer.notes import (
    MAX_NOTE_CHARACTERS,
    MAX_TAG_CHARACTERS,
    BadNote,
    Notes,
    hash_image,
    parse_note,
)
from plumbline.plugins.viewer.run_database import CHANGE_ORDERS, SCORE_ORDERS, Score, WantedRows
from plumbline.plugins.viewer.sides import Comparisons

SERVED_PAGES = ServedPageRenderer(Path(__file__).parent / "templates", scripts=("view.js",))
PROMPTS_PER_PAGE = 10
"""Number of prompts on a page of score changes."""
MAX_OFFERED_RUNS = 200
"""Maximum number of runs, newest first, offered for a comparison."""
MAX_SHOWN_SUITES = 5
MAX_SHOWN_DIFFERENCES = 4
"""Maximum number of changed settings shown for each run in the list of runs."""
MAX_ROWS_OF_PROMPT = 600
"""Maximum number of rows shown for one prompt: its images' scores by all metrics."""
MAX_SHOWN_QUESTIONS = 100
"""Maximum number of questions shown for one prompt and metric."""
Elements = Sequence[Mapping[str, Any]]


class ShownMean(NamedTuple):
    """A generator's mean score for a metric; `left`, `width` and `dot` position its bar, in % of the plotted range."""

    mean: float | None
    low: float
    high: float
    n: int
    n_null: int
    left: float
    width: float
    dot: float


class ShownImage(NamedTuple):
    """An image with its scores and answers from all metrics."""

    score: Score
    """One of the rows with the image's scores."""
    card: Card
    failed: Sequence[Score]
    """Rows of the metrics that could not score the image."""
    elements: Mapping[str, Elements]
    """Answers by metric."""


class SharedQuestion(NamedTuple):
    """A question and its answer for each image of a prompt."""

    question_id: str
    text: str
    wanted: str
    answers: Sequence[MarkedQuestion | None]


class RowConvertor(IntegerConvertor):
    """Converter of row numbers in URLs; a URL whose number has too many digits is not found."""

    regex = "[0-9]{1,18}"


class Pages:
    """Handlers that render the pages of a store."""

    def __init__(self, browser: StoreBrowser, *, may_write: bool) -> None:
        self.browser = browser
        self.comparisons = Comparisons(browser)
        self.notes = Notes(browser.store)
        self._may_write = may_write and self.notes.is_writable()

    def show_runs(self, request: Request) -> Response:
        """List all runs, newest first; for damaged runs, show the problem."""
        all_runs = self.browser.list_runs()
        words = request.query_params.get("words", "").lower().split()
        found = [run for run in all_runs if all(word in _join_searchable_text(run) for word in words)]
        benchmarks = {str(run.manifest.get("benchmark", "")) for run in all_runs if run.manifest is not None}
        first = compute_first_row(request)
        runs = found[first : first + ROWS_PER_PAGE]
        content: dict[str, Any] = {"runs": runs, "everything": len(all_runs), "words": " ".join(words)}
        content |= {"benchmarks": sorted(benchmarks - {""}), "first": first, "total": len(found)}
        content["suites"] = self.browser.list_suites(MAX_SHOWN_SUITES)
        content["differing"] = {
            run.run_id: take_first_rows([*list_differing_settings(before, run.manifest)], MAX_SHOWN_DIFFERENCES)
            for run in runs
            if run.manifest is not None and (before := _find_predecessor(run, all_runs))
        }
        return self._render("runs", request, title="Runs", **content)

    def show_run(self, request: Request) -> Response:
        """Show a run's means from its summary, and start reading its rows in the background."""
        run_id = request.path_params["run"]
        manifest = self.browser.read_manifest(run_id)
        self.browser.open(run_id)
        summary = self.browser.store.read_table(f"runs/{run_id}/summary.parquet").to_pylist()
        skill = request.query_params.get("skill", "")
        rows = [row for row in summary if row["skill"] == (skill or OVERALL)]
        skills = sorted({row["skill"] for row in summary} - {OVERALL})
        lower_is_better = read_lower_is_better(manifest)
        board = _make_leaderboard(rows, manifest.get("metrics", ()), lower_is_better)
        content = {
            "manifest": manifest,
            "skill": skill,
            "skills": skills,
            "board": board,
            "lower_is_better": lower_is_better,
            "people": self.browser.read_people(run_id),
        }
        return self._render("run", request, title=f"Run {run_id}", part=describe_part(manifest), **content)

    def show_scores(self, request: Request) -> Response:
        """List the rows of a run that match the filter."""
        run, first = self._open_run(request), compute_first_row(request)
        wanted = add_other_metric(run, self._parse_rows(request))
        check_rows(run, wanted)
        found = run.rows.find(wanted, first, ROWS_PER_PAGE)
        content = {"wanted": wanted, "scores": found, "first": first, "total": run.rows.count(wanted)}
        content |= {"skills": run.rows.list_skills(), "unreadable": run.unreadable, "manifest": run.manifest}
        content |= {"settings": find_settings(run.manifest), "SETTING": SETTING_PREFIX}
        return self._render("scores", request, title="Scores", **content)

    def show_comparison(self, request: Request) -> Response:
        """Compare two runs, or two generators of one or two runs."""
        choice = parse_choice(request)
        content: dict[str, Any] = {"choice": choice, "sides": None, "problem": ""}
        if choice.left.run and choice.right.run:
            try:
                content |= self._compare_sides(request, choice)
            except NotFound as error:
                content["problem"] = get_first_line(error)
        manifests = {run.run_id: run.manifest for run in self.browser.list_runs() if run.manifest is not None}
        selected = filter(None, (side.run for side in choice))
        offered = sorted({*selected, *list(manifests)[:MAX_OFFERED_RUNS]}, reverse=True)
        suggested = choice._replace(left=choice.left._replace(run=_suggest_left_run(choice, manifests)))
        content |= {"offered": offered, "known": manifests, "suggested": suggested}
        content["side_settings"] = {}
        for name, side in suggested._asdict().items():
            selected_settings = dict(side.settings)
            content["side_settings"][name] = {
                setting: values
                for setting, values in find_settings(manifests.get(side.run, {})).items()
                if values is None or len(values) > 1 or setting in selected_settings
            }
        page = self._render("compare", request, title="Side by side", rows=PROMPTS_PER_PAGE, **content)
        page.status_code = 404 if content["problem"] else 200
        return page

    def _compare_sides(self, request: Request, choice: ChosenSides) -> dict[str, Any]:
        """Return the page's values: the changes from one side to the other, and images whose scores changed."""
        sides, first = self.comparisons.open(choice), compute_first_row(request, PROMPTS_PER_PAGE)
        wanted = self._parse_rows(request, CHANGE_ORDERS)
        check_rows(sides.right, wanted)
        changes = self.comparisons.find_changes(sides)
        metrics = [*dict.fromkeys(change.duel.metric for change in changes.every)]
        if wanted.metric and wanted.metric not in metrics:
            raise NotFound(
                f"metric={wanted.metric}: the two sides have no comparable scores by this metric; choose another metric"
            )
        content = {"wanted": wanted, "first": first, "total": 0, "moves": []}
        if metrics:
            clear_metrics = [change.duel.metric for change in changes.clear]
            content["wanted"] = wanted = wanted._replace(metric=wanted.metric or [*clear_metrics, *metrics][0])
            content["total"], content["moves"] = self.comparisons.find_prompt_changes(
                sides, wanted, first, PROMPTS_PER_PAGE
            )
        rows = [change for change in changes.every if wanted.generator in ("", change.generator)]
        at_skills = [change for change in rows if change.duel.skill != OVERALL and change.duel.metric == wanted.metric]
        overall = [change for change in rows if change.duel.skill == OVERALL]
        content |= {"overall": sort_clear_first(overall), "at_skills": sort_clear_first(at_skills), "metrics": metrics}
        generators = [*dict.fromkeys(change.generator for change in changes.every)]
        kinds = {**(sides.left.manifest.get("errors") or {}), **(sides.right.manifest.get("errors") or {})}
        content |= {"generators": generators, "skills": sides.right.rows.list_skills(), "kinds": kinds}
        content |= {"settings": find_settings(sides.right.manifest), "SETTING": SETTING_PREFIX}
        return content | {
            "sides": sides,
            "changes": changes,
            "lower_is_better": sides.right.lower_is_better,
            "OVERALL": OVERALL,
        }

    def show_image(self, request: Request) -> Response:
        """Show the image of a row with all its scores and answers, and links to the previous and next row."""
        run, row = self._open_run(request), request.path_params["row"]
        wanted, score = add_other_metric(run, self._parse_rows(request)), _read_row(run, row)
        at = parse_number(request, "at", 0)
        nearby = run.rows.find(wanted, max(at - 2, 0), 3 if at > 1 else 2) if at else []
        rows = [other.row for other in nearby]
        try:
            missing = ""
            self.browser.read_image(run.run_id, row, large=True)
        except ImageUnavailable as error:
            missing = str(error)
        before, after = (nearby[: rows.index(row)], nearby[rows.index(row) + 1 :]) if row in rows else ([], [])
        content = {"score": score, "missing": missing, "at": at, "before": before, "after": after}
        content |= {"sources": self._list_sources(run, row), "notes": self.notes.read(hash_image(score))}
        content |= {"may_write": self._may_write, "longest": {"text": MAX_NOTE_CHARACTERS, "tag": MAX_TAG_CHARACTERS}}
        shown = self._make_shown_images(run, run.rows.read_image_scores(score))[0]
        return self._render("image", request, title=f"Image by {score.generator}", image=shown, **content)

    def show_prompt(self, request: Request) -> Response:
        """Show all images of a prompt side by side, and each question with the answers about each image."""
        run, prompt_id = self._open_run(request), request.query_params.get("id", "")
        scores = run.rows.read_prompt_scores(prompt_id, MAX_ROWS_OF_PROMPT)
        if not scores:
            raise NotFound(
                f"run {run.run_id} has no row for prompt {prompt_id!r}; choose a prompt from its list of scores"
            )
        images = self._make_shown_images(run, scores)
        questions = {
            metric: _join_questions([image.elements.get(metric, ()) for image in images])
            for metric in dict.fromkeys(metric for image in images for metric in image.elements)
        }
        wanted = request.query_params.get("question")
        all_questions = (question for listed in questions.values() for question in listed)
        chosen = next((question for question in all_questions if question.question_id == wanted), None)
        sources = next(filter(None, (self._list_sources(run, image.score.row) for image in images)), [])
        first_source = next((number for number, source in enumerate(sources) if source.url), None)
        content: dict[str, Any] = {"prompt_id": prompt_id, "images": images, "asked": questions, "sources": sources}
        content |= {"chosen": chosen, "wanted": wanted, "first_source": first_source}
        people = self.browser.read_people(run.run_id)
        content["pairs"] = None if people is None else people.make_table(prompt_id)
        content["n_notes"] = sum(self._count_notes(image.score) for image in images)
        return self._render("prompt", request, title=shorten(scores[0].text or prompt_id, 200), **content)

    def show_notes(self, request: Request) -> Response:
        """List the notes on all images of the store, newest first."""
        words, tag = (request.query_params.get(name, "") for name in ("words", "tag"))
        first = compute_first_row(request)
        total, found = self.notes.find(words, tag, first, ROWS_PER_PAGE)
        content = {"notes": found, "total": total, "first": first, "words": words, "tag": tag}
        return self._render("notes", request, title="Notes", **content)

    async def add_note(self, request: Request) -> Response:
        """Add a note to the image of a row."""
        if not self._may_write:
            raise HTTPException(
                403, "this viewer does not accept notes; start it with notes=true and a store that can be written to"
            )
        sent = parse_note(await read_json_body(request, "a note"))

        def add() -> Response:
            run = self._open_run(request)
            note = self.notes.add(run.run_id, _read_row(run, request.path_params["row"]), sent)
            return JSONResponse({"at": note.at}, 201)

        return await run_in_threadpool(add)

    def show_questions(self, request: Request) -> Response:
        """List the questions of a run."""
        run, first, words = self._open_run(request), compute_first_row(request), request.query_params.get("words", "")
        total, found = run.rows.find_questions(words, first, ROWS_PER_PAGE)
        content = {"questions": found, "total": total, "first": first, "words": words}
        return self._render("questions", request, title="Questions", **content)

    def send_image(self, request: Request) -> Response:
        """Send the image of a row, or the source image with the given number, re-encoded as WebP."""
        run_id, row = request.path_params["run"], request.path_params["row"]
        try:
            if "source" in request.query_params:
                encoded = self._read_source(run_id, row, parse_number(request, "source", 0))
            else:
                encoded = self.browser.read_image(run_id, row, large="large" in request.query_params)
        except ImageUnavailable as error:
            return PlainTextResponse(hide_secrets(str(error)), 404)
        return Response(encoded, media_type="image/webp", headers={"Cache-Control": "private, max-age=3600"})

    def _read_source(self, run_id: str, row: int, number: int) -> bytes:
        sources = self.browser.read_sources(run_id, row)
        source = (
            sources[number]
            if number < len(sources)
            else RowError("missing_image", f"expected a source from 0 to {len(sources) - 1}, got {number}")
        )
        if isinstance(source, RowError):
            raise ImageUnavailable(source.message)
        return source

    def _list_sources(self, run: BrowsedRun, row: int) -> list[Thumbnail]:
        """Return the source images of an edited image; empty if the image itself cannot be shown."""
        try:
            sources = self.browser.read_sources(run.run_id, row)
        except ImageUnavailable:
            return []
        url = f"/runs/{quote(run.run_id)}/pictures/{row}?source="
        return [
            Thumbnail(None, source.message) if isinstance(source, RowError) else Thumbnail(f"{url}{number}")
            for number, source in enumerate(sources)
        ]

    def send_report(self, request: Request) -> Response:
        """Send the report that the store contains for a run."""
        run_id = request.path_params["run"]
        self.browser.read_manifest(run_id)
        html = self.browser.store.read_text(f"runs/{run_id}/report.html")
        if html is None:
            raise NotFound(f"run {run_id} has no report; create it with plumbline report run={run_id}")
        return _make_report_response(html)

    def send_suite(self, request: Request) -> Response:
        """Send the page that the store contains for a suite of benchmarks."""
        suite_id = request.path_params["suite"]
        html = self.browser.read_suite_page(suite_id)
        if html is None:
            raise NotFound(
                f"suite {suite_id}: not found in {self.browser.store.place.url}; choose one from the list of runs"
            )
        return _make_report_response(html)

    def show_trends(self, request: Request) -> Response:
        """Show a benchmark's runs over time."""
        try:
            trends = make_trends(self.browser.store, benchmark=request.query_params.get("benchmark"))
        except ConfigError as error:
            raise NotFound(str(error)) from error
        return _make_report_response(render_trends(trends.page))

    def _open_run(self, request: Request) -> BrowsedRun:
        return self.browser.open(request.path_params["run"]).result()

    def _parse_rows(self, request: Request, orders: Mapping[str, str] = SCORE_ORDERS) -> WantedRows:
        """Parse the filter in the URL; if it requests images with notes, add these to the filter."""
        wanted = parse_rows(request, orders)
        return wanted._replace(noted=self.notes.list_images()) if request.query_params.get("notes") else wanted

    def _make_shown_images(self, run: BrowsedRun, scores: Sequence[Score]) -> list[ShownImage]:
        """Return the images that the scores belong to, in order of appearance."""
        images: dict[tuple[str, str | None], list[Score]] = {}
        for score in scores:
            images.setdefault((score.generator, score.image_id), []).append(score)
        picks = [make_pick(image_scores) for image_scores in images.values()]
        details = self.browser.read_details(run, picks)
        return [
            ShownImage(
                score=image_scores[0],
                card=make_card(pick, details[pick.key], image_scores[0].text, (), run.usual_scores),
                failed=[score for score in image_scores if score.score is None],
                elements=details[pick.key].elements,
            )
            for pick, image_scores in zip(picks, images.values(), strict=True)
        ]

    def _render(self, name: str, request: Request, *, title: str, **content: Any) -> Response:
        def make_url(**changes: object) -> str:
            """Return this page's URL with some parameters changed; None removes a parameter."""
            values = {**request.query_params, **changes}
            return "?" + urlencode({key: value for key, value in values.items() if value not in (None, "")})

        common = {"name": name, "store": self.browser.store.place.url, "run_id": request.path_params.get("run", "")}
        common |= {"make_url": make_url, "rows": ROWS_PER_PAGE, "title": title, "noted": self._count_notes}
        return HTMLResponse(SERVED_PAGES.render(f"view_{name}.html.j2", common | content))

    def _count_notes(self, score: Score) -> int:
        return self.notes.count(hash_image(score))

    def refuse(self, request: Request, error: Exception) -> Response:
        """Report an error in one line: as JSON for a POST request, otherwise as a page."""
        status = 404 if isinstance(error, NotFound) else 400 if isinstance(error, (BadAddress, BadNote)) else 500
        if isinstance(error, HTTPException):
            status = error.status_code
            error = NotFound(error.detail if request.method == "POST" else f"{request.url.path}: page not found")
        if request.method == "POST":
            return JSONResponse({"error": hide_secrets(get_first_line(error))}, status)
        page = self._render("problem", request, title="Cannot be shown", problem=get_first_line(error))
        page.status_code = status
        return page


def _make_report_response(html: str) -> Response:
    """Send a page that may run its own script but may not open other pages or use the network."""
    return HTMLResponse(html, headers={"Content-Security-Policy": FILE_POLICY})


def _find_predecessor(run: Run, newest_first: Sequence[Run]) -> Mapping[str, Any] | None:
    """Return the manifest of the newest earlier run of the same benchmark; None if there is no earlier run."""
    older = (other.manifest for other in newest_first[newest_first.index(run) + 1 :] if other.manifest)
    benchmark = (run.manifest or {}).get("benchmark")
    return next((manifest for manifest in older if manifest.get("benchmark") == benchmark), None)


def _join_searchable_text(run: Run) -> str:
    manifest = run.manifest or {}
    names = (*manifest.get("generators", ()), *manifest.get("metrics", ()))
    return " ".join((run.run_id, str(manifest.get("note", "")), str(manifest.get("benchmark", "")), *names)).lower()


def _join_questions(elements: Sequence[Elements]) -> list[SharedQuestion]:
    """Return the questions about several images, up to MAX_SHOWN_QUESTIONS, each with its answer for every image.

    The answer is None for an image whose cell no longer exists.
    """
    by_id = [{element["question_id"]: element for element in image} for image in elements]
    first = {question_id: element for image in reversed(by_id) for question_id, element in image.items()}
    return [
        SharedQuestion(
            question_id=question_id,
            text=shorten(element["text"]),
            wanted=shorten(element["wanted"]),
            answers=[mark_questions([image[question_id]])[0] if question_id in image else None for image in by_id],
        )
        for question_id, element in list(first.items())[:MAX_SHOWN_QUESTIONS]
    ]


def _make_leaderboard(
    summary: Sequence[Mapping[str, Any]], metrics: Sequence[str], lower_is_better: frozenset[str]
) -> list[tuple[str, Mapping[str, ShownMean]]]:
    """Return each generator's means by metric, ordered from best to worst by the first metric."""
    by_metric: dict[str, list[Mapping[str, Any]]] = {metric: [] for metric in metrics}
    for row in summary:
        by_metric.setdefault(row["metric"], []).append(row)
    board: dict[str, dict[str, ShownMean]] = {}
    for metric, rows in by_metric.items():
        scored = [row for row in rows if row["n"]]
        start = min((_find_interval(row)[0] for row in scored), default=0.0)
        span = max((_find_interval(row)[1] for row in scored), default=1.0) - start or 1.0
        order = get_direction(metric, lower_is_better)
        for row in sorted(rows, key=lambda row: order * (row["mean"] or 0.0), reverse=True):
            low, high = _find_interval(row) if row["n"] else (start, start)
            mean = row["mean"] if row["n"] else None
            lengths = (low - start, high - low, 0.0 if mean is None else mean - start)
            left, width, dot = (round(100 * length / span, 2) for length in lengths)
            means = board.setdefault(row["generator"], {})
            means[metric] = ShownMean(mean, low, high, row["n"], row["n_null"], left, width, dot)
    return list(board.items())


def _find_interval(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ends of a mean's interval, or the mean as both ends if it has no interval."""
    low, high = row["low"], row["high"]
    return (row["mean"], row["mean"]) if low is None or high is None else (low, high)


def _read_row(run: BrowsedRun, row: int) -> Score:
    score = run.rows.read_row(row)
    if score is None:
        raise NotFound(f"run {run.run_id} has no row {row}; choose a row from its list of scores")
    return score


def _suggest_left_run(choice: ChosenSides, manifests: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the selected left run, or else the newest run that the right run can be compared with; empty if none."""
    right = choice.right.run or next(iter(manifests), "")
    others = (run_id for run_id in manifests if run_id != right)
    comparable = (name for name in others if not find_obstacle(manifests[name], manifests.get(right, {})))
    return choice.left.run or next(comparable, "")


def make_app(browser: StoreBrowser, token: str | None, names: Sequence[str], *, notes: bool = True) -> Starlette:
    """Create the application.

    `names` are the host names under which it accepts requests; `notes` allows people to write notes.
    """
    pages = Pages(browser, may_write=notes)

    register_url_convertor("row", RowConvertor())
    routes = {
        "/": pages.show_runs,
        "/favicon.ico": lambda request: Response(status_code=204),
        "/trends": pages.show_trends,
        "/compare": pages.show_comparison,
        "/notes": pages.show_notes,
        "/runs/{run}": pages.show_run,
        "/runs/{run}/report": pages.send_report,
        "/runs/{run}/report.html": pages.send_report,  # pages of suites link to it
        "/suites/{suite}/report.html": pages.send_suite,
        "/runs/{run}/scores": pages.show_scores,
        "/runs/{run}/scores/{row:row}": pages.show_image,
        "/runs/{run}/prompt": pages.show_prompt,
        "/runs/{run}/questions": pages.show_questions,
        "/runs/{run}/pictures/{row:row}": pages.send_image,
    }
    return Starlette(
        routes=[
            *(Route(path, page, methods=["GET"]) for path, page in routes.items()),
            Route("/runs/{run}/scores/{row:row}/notes", pages.add_note, methods=["POST"]),
        ],
        middleware=make_page_guards(names, token, SERVED_PAGES.make_policy()),
        exception_handlers=dict.fromkeys((PlumblineError, OSError, HTTPException), pages.refuse),
    )
