"""Two runs, two generators or two settings side by side: what moved, and the pictures that moved most."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from plumbline.operators.base.sentences import FirstRows, first_rows
from plumbline.operators.images.generation_settings import COLUMN, COMPARE, all_settings
from plumbline.operators.report.changes import Changes, altered_metrics, compare
from plumbline.operators.report.gallery import ImageDetail
from plumbline.operators.report.marked_words import MarkedQuestion, cut, mark_question
from plumbline.operators.results.bridge import UNCHANGED, Bridge
from plumbline.operators.results.run_scores import PromptTexts
from plumbline.operators.results.summary import Skills
from plumbline.pipelines.cells.run_scores import read_prompt_texts
from plumbline.pipelines.report.bridges import read_bridges
from plumbline.pipelines.report.comparable_runs import obstacle_between
from plumbline.pipelines.sources.sources import skills_of
from plumbline.plugins.viewer.addresses import Choice, Side, check_named, check_settings
from plumbline.plugins.viewer.browser import BrowsedRun, Browser, NotThere, pick_of
from plumbline.plugins.viewer.run_database import Move, Score, WantedRows

COMPARED = 32
"""Comparisons that are kept."""
MOST_ANSWERS = 12
"""Of two images, those that changed."""
MOST_CHARACTERS = 700
"""Of a judge's reasons."""
SAME_SIDES = "choose two runs, or two generators or settings of one run"


class Sides(NamedTuple):
    """What is known of the two."""

    choice: Choice
    left: BrowsedRun
    right: BrowsedRun
    manifests: tuple[Mapping[str, Any], Mapping[str, Any]]
    """As if what is chosen were all of its run."""
    bridges: Sequence[Bridge]
    """Of the store, those of the benchmark."""
    between: Mapping[str, Bridge | None]
    """By metric that is another one on the right, the bridge from the left one, where there is one."""
    obstacle: str
    """Why a difference between them may be none of the generators; empty where nothing is known."""

    def joining(self, metric: str) -> Bridge | None:
        """The bridge by which the left scores are mapped."""
        bridge = self.between.get(metric)
        return bridge if bridge is not None and bridge.joins else None

    @property
    def unbridged(self) -> list[str]:
        """The metrics that are others on the right, and that no bridge leads to."""
        return [metric for metric, bridge in self.between.items() if bridge is None]


class ShownSide(NamedTuple):
    """A prompt's image on one side: of several, the one whose score is nearest to their mean."""

    run_id: str
    score: Score
    mean: float | None
    images: int
    alt: str
    mapped: float | None = None
    """The mean on the scale of the other side's metric, where a bridge maps it."""


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
        self._kept = lru_cache(COMPARED)(self._changes)
        self._kept_edited = lru_cache(COMPARED)(self._edited)

    def open(self, choice: Choice) -> Sides:
        """The two sides; raises NotThere with what is missing."""
        if choice.left == choice.right:
            raise NotThere(SAME_SIDES)
        opening = [self._browser.open(side.run) for side in choice]
        left, right = (run.result() for run in opening)
        if bool(choice.left.generator) != bool(choice.right.generator):
            raise NotThere("choose a generator on both sides, or on neither")
        for run, side in zip((left, right), choice, strict=True):
            check_named("generator", side.generator, run.manifest.get("generators"), run.run_id)
            check_settings(run, side.settings)
        manifests = (_as_chosen(left, choice.left, choice), _as_chosen(right, choice.right, choice))
        bridges = read_bridges(self._browser.store, right.manifest.get("benchmark"))
        between = {metric: altered.bridge for metric, altered in altered_metrics(*manifests, bridges).items()}
        return Sides(choice, left, right, manifests, bridges, between, obstacle_between(*manifests, bridges))

    def changes(self, sides: Sides) -> Changes:
        """What moved from one side to the other, paired by prompt; kept until a run is read anew or a bridge comes."""
        opened = sides.left.rows.number, sides.right.rows.number
        return self._kept(sides.choice, opened, tuple(bridge.bridge_id for bridge in sides.bridges))

    def _changes(self, choice: Choice, opened: tuple[int, int], bridges: tuple[str, ...]) -> Changes:
        """Compare the two sides; the last two arguments are only part of the cache's key."""
        sides = self.open(choice)
        left, right = (WantedRows(generator=side.generator, settings=side.settings) for side in choice)
        return compare(
            sides.left.rows.compared(left, choice.right.generator).with_texts(self._texts(choice.left)),
            sides.right.rows.compared(right, choice.right.generator).with_texts(self._texts(choice.right)),
            Skills(()) if sides.right.originals is None else skills_of(sides.right.originals.prompts),
            sides.manifests,
            bridges=sides.bridges,
        )._replace(run_id=choice.left.run)

    def _texts(self, side: Side) -> PromptTexts | None:
        return read_prompt_texts(self._browser.store, side.run)

    def _edited(self, choice: Choice, opened: tuple[int, int]) -> list[str]:
        """Return the prompts whose texts differ between the two runs; `opened` is only part of the cache's key."""
        left, right = (self._texts(side) for side in choice)
        if left is None or right is None:
            return []
        prompts = np.intersect1d(left.prompts, right.prompts, assume_unique=True)
        edited = prompts[left.edited(right, prompts)]
        return self.open(choice).left.rows.prompt_ids(edited) if len(edited) else []

    def moves(self, sides: Sides, wanted: WantedRows, first: int, most: int) -> tuple[int, list[ShownMove]]:
        """How many prompts are as wanted, and some of them with an image of either side."""
        left, right = (
            wanted._replace(generator=side.generator or wanted.generator, settings=(*wanted.settings, *side.settings))
            for side in sides.choice
        )
        bridge = sides.joining(wanted.metric)
        line = UNCHANGED if bridge is None else bridge.line
        both = (left._replace(skill="", words=""), right)
        edited = self._kept_edited(sides.choice, (sides.left.rows.number, sides.right.rows.number))
        total, moves = sides.left.rows.moves(sides.right.rows, both, line, edited, first, most)
        lefts = self._shown(sides.left, left, [(one.left_generator, one.prompt_id) for one in moves])
        rights = self._shown(sides.right, right, [(one.right_generator, one.prompt_id) for one in moves])
        shown_moves = [_move(*one, wanted.metric) for one in zip(moves, lefts, rights, strict=True)]
        return total, [_mapped(move, of.left) if bridge else move for move, of in zip(shown_moves, moves, strict=True)]

    def _shown(
        self, run: BrowsedRun, wanted: WantedRows, places: Sequence[tuple[str, str]]
    ) -> list[tuple[ShownSide, ImageDetail]]:
        """An image of each generator and prompt, with what the metric says of it."""
        rows = WantedRows(metric=wanted.metric, settings=wanted.settings)
        scores = run.rows.of_prompts(rows, [generator for generator, _ in places], [prompt for _, prompt in places])
        sides = []
        for place in places:
            own = [score for score in scores if (score.generator, score.prompt_id) == place]
            sides.append(_typical(run.run_id, own))
        picks = [pick_of([side.score]) for side in sides]
        details = self._browser.details(run, picks)
        return [(side, details[pick.key]) for side, pick in zip(sides, picks, strict=True)]


def _as_chosen(run: BrowsedRun, side: Side, choice: Choice) -> Mapping[str, Any]:
    """A run's manifest as if what is chosen were all of it; of two generators, by the right one's name.

    Settings that are chosen are what is compared, and so none that must not differ.
    """
    chosen = {name for each in choice for name, _ in each.settings}
    if not chosen and choice.pair is None:
        return run.manifest
    known = all_settings(run.manifest, COMPARE)
    if chosen:
        counted = run.rows.settings(WantedRows(generator=side.generator, settings=side.settings))
        known = {
            generator: {name: values for name, values in of_generator.items() if name not in chosen}
            for generator, of_generator in counted.items()
        }
    if choice.pair is None:
        return {**run.manifest, COLUMN: known}
    name = choice.right.generator
    return {**run.manifest, "generators": [name], COLUMN: {name: known.get(side.generator, {})}}


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
        {element["question_id"]: mark_question(element) for element in detail.elements.get(metric, ())}
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
        answers=first_rows(changed, MOST_ANSWERS),
        rewritten=all(answers) and not both,
        reasons=(reasons[0], reasons[1]) if reasons[0] != reasons[1] else None,
    )


def _mapped(move: ShownMove, mean: float | None) -> ShownMove:
    """With the left mean on the scale of the right side's metric."""
    left, right = move.sides
    return move._replace(sides=(left._replace(mapped=mean), right))
