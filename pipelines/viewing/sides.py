"""Two runs, or two generators of one or two runs, side by side: what moved, and the pictures that moved most."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from plumbline.operators.report.changes import Changes, comparable_metrics, compare
from plumbline.operators.report.gallery import ImageDetail
from plumbline.operators.report.marked_words import MarkedQuestion, asked_question, cut
from plumbline.operators.sentences import FirstRows, shown
from plumbline.operators.settings import COLUMN, known_settings
from plumbline.operators.summary import Skills
from plumbline.pipelines.report.comparable_runs import obstacle_between
from plumbline.pipelines.sources.sources import skills_of
from plumbline.pipelines.viewing.addresses import check_named
from plumbline.pipelines.viewing.browser import BrowsedRun, Browser, NotThere, pick_of
from plumbline.pipelines.viewing.run_database import Move, Score, WantedRows

COMPARED = 32
"""Comparisons that are kept."""
MOST_ANSWERS = 12
"""Of two images, those that changed."""
MOST_CHARACTERS = 700
"""Of a judge's reasons."""
SAME_SIDES = "choose two runs, or two generators of one run"


class Choice(NamedTuple):
    """Which sides are chosen: two runs, and of them all generators of both, or one of each."""

    left: str = ""
    right: str = ""
    left_generator: str = ""
    right_generator: str = ""

    @property
    def pair(self) -> tuple[str, str] | None:
        """The generators that are beside each other; None where each is beside itself."""
        return (self.left_generator, self.right_generator) if self.right_generator else None


class Sides(NamedTuple):
    """What is known of the two."""

    left: BrowsedRun
    right: BrowsedRun
    pair: tuple[str, str] | None
    metrics: Sequence[str]
    """Those that are the same in both."""
    obstacle: str
    """Why a difference between them may be none of the generators; empty where nothing is known."""


class ShownSide(NamedTuple):
    """A prompt's image on one side: of several, the one whose score is nearest to their mean."""

    run_id: str
    score: Score
    mean: float | None
    images: int
    alt: str


class ChangedAnswer(NamedTuple):
    """A question that was answered otherwise, or scored so that another thing is said of it."""

    left: MarkedQuestion
    right: MarkedQuestion


class ShownMove(NamedTuple):
    """A prompt that moved, with its images on both sides."""

    prompt_id: str
    text: str
    move: float | None
    sides: tuple[ShownSide, ShownSide]
    answers: FirstRows[ChangedAnswer]
    rewritten: bool
    """Whether the two were asked different questions."""
    reasons: tuple[str, str] | None
    """A judge's, where they changed."""


class Comparisons:
    """Compares sides of a store, and keeps what it found."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.changes = lru_cache(COMPARED)(self._changes)

    def open(self, choice: Choice) -> Sides:
        """The two sides; raises NotThere with what is missing."""
        if (choice.left, choice.left_generator) == (choice.right, choice.right_generator):
            raise NotThere(SAME_SIDES)
        left, right = (self._browser.open(run_id) for run_id in (choice.left, choice.right))
        sides = left.result(), right.result()
        generators = (choice.left_generator, choice.right_generator)
        if any(generators) and not all(generators):
            raise NotThere("choose a generator on both sides, or on neither")
        for run, generator in zip(sides, generators, strict=True):
            check_named("generator", generator, run.manifest.get("generators"), run.run_id)
        manifests = _manifests(*sides, choice.pair)
        metrics = comparable_metrics(*manifests)
        return Sides(*sides, choice.pair, metrics, obstacle_between(*manifests))

    def _changes(self, choice: Choice) -> Changes:
        """What moved from one side to the other, paired by prompt."""
        sides = self.open(choice)
        name = choice.right_generator
        return compare(
            sides.left.rows.compared(choice.left_generator, name),
            sides.right.rows.compared(choice.right_generator, name),
            Skills(()) if sides.right.originals is None else skills_of(sides.right.originals.prompts),
            _manifests(sides.left, sides.right, choice.pair),
        )._replace(run_id=choice.left)

    def moves(self, sides: Sides, wanted: WantedRows, first: int, most: int) -> tuple[int, list[ShownMove]]:
        """How many prompts are as wanted, and some of them with an image of either side."""
        total, moves = sides.left.rows.moves(sides.right.rows, wanted, sides.pair, first, most)
        left = self._shown(sides.left, wanted.metric, [(one.left_generator, one.prompt_id) for one in moves])
        right = self._shown(sides.right, wanted.metric, [(one.right_generator, one.prompt_id) for one in moves])
        return total, [_move(*one, wanted.metric) for one in zip(moves, left, right, strict=True)]

    def _shown(
        self, run: BrowsedRun, metric: str, places: Sequence[tuple[str, str]]
    ) -> list[tuple[ShownSide, ImageDetail]]:
        """An image of each generator and prompt, with what the metric says of it."""
        scores = run.rows.of_prompts(metric, [generator for generator, _ in places], [prompt for _, prompt in places])
        sides = []
        for place in places:
            own = [score for score in scores if (score.generator, score.prompt_id) == place]
            sides.append(_typical(run.run_id, own))
        picks = [pick_of([side.score], run.falling) for side in sides]
        details = self._browser.details(run, picks)
        return [(side, details[pick.key]) for side, pick in zip(sides, picks, strict=True)]


def _manifests(
    left: BrowsedRun, right: BrowsedRun, pair: tuple[str, str] | None
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Both manifests; of two generators, as if either were all of its run, by the later one's name."""
    if pair is None:
        return left.manifest, right.manifest
    made = [
        {**run.manifest, "generators": [pair[1]], COLUMN: {pair[1]: known_settings(run.manifest, generator)}}
        for run, generator in zip((left, right), pair, strict=True)
    ]
    return made[0], made[1]


def _typical(run_id: str, scores: Sequence[Score]) -> ShownSide:
    scored = [(score, score.score) for score in scores if score.score is not None]
    mean = sum(value for _, value in scored) / len(scored) if scored else None
    nearest = min(scored, key=lambda one: abs(one[1] - (mean or 0.0)))[0] if scored else scores[0]
    text = cut(nearest.text or nearest.prompt_id, 200)
    alt = f"Image by {nearest.generator} in run {run_id} for the prompt: {text}"
    return ShownSide(run_id, nearest, mean, len(scores), alt)


def _move(
    move: Move, left: tuple[ShownSide, ImageDetail], right: tuple[ShownSide, ImageDetail], metric: str
) -> ShownMove:
    answers = [
        {element["question_id"]: asked_question(element) for element in detail.elements.get(metric, ())}
        for _, detail in (left, right)
    ]
    both = [ChangedAnswer(question, answers[1][known]) for known, question in answers[0].items() if known in answers[1]]
    changed = [one for one in both if (one.left.state, one.left.given) != (one.right.state, one.right.given)]
    reasons = tuple(cut(detail.rationales.get(metric), MOST_CHARACTERS) for _, detail in (left, right))
    return ShownMove(
        prompt_id=move.prompt_id,
        text=right[0].score.text or left[0].score.text or move.prompt_id,
        move=None if move.left is None or move.right is None else move.right - move.left,
        sides=(left[0], right[0]),
        answers=shown(changed, MOST_ANSWERS),
        rewritten=all(answers) and not both,
        reasons=(reasons[0], reasons[1]) if reasons[0] != reasons[1] else None,
    )
