"""Compares two runs, generators or settings: how means changed, and which images' scores changed most."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from plumbline.operators.base.sentences import FirstRows, take_first_rows
from plumbline.operators.images.generation_settings import COMPARE, SETTINGS_COLUMN, read_all_settings
from plumbline.operators.report.changes import Changes, compare_runs, find_altered_metrics
from plumbline.operators.report.gallery import ImageDetail
from plumbline.operators.report.marked_words import MarkedQuestion, mark_question, shorten
from plumbline.operators.results.bridge import UNCHANGED_LINE, Bridge
from plumbline.operators.results.run_scores import PromptTexts
from plumbline.operators.results.summary import Skills
from plumbline.pipelines.report.comparable_runs import find_obstacle, read_bridges
from plumbline.pipelines.sources.sources import collect_skills
from plumbline.pipelines.store.run_scores import read_text_hashes
from plumbline.plugins.viewer.addresses import ChosenSides, ComparisonSide, check_name, check_settings
from plumbline.plugins.viewer.browser import BrowsedRun, NotFound, StoreBrowser, make_pick
from plumbline.plugins.viewer.people import RunPeople
from plumbline.plugins.viewer.run_database import Score, ScoreChange, WantedRows

MAX_CACHED_COMPARISONS = 32
"""Maximum number of cached comparisons."""
MAX_SHOWN_ANSWERS = 12
"""Maximum number of changed answers shown for two images."""
MAX_REASON_CHARACTERS = 700
"""Maximum length of a judge's reason, in characters."""


class OpenSides(NamedTuple):
    """The two open sides of a comparison."""

    choice: ChosenSides
    left: BrowsedRun
    right: BrowsedRun
    manifests: tuple[Mapping[str, Any], Mapping[str, Any]]
    """The runs' manifests, reduced to the selected generator and settings."""
    bridges: Sequence[Bridge]
    """All bridges of the benchmark."""
    between: Mapping[str, Bridge | None]
    """Bridges from left to right for metrics whose versions differ between the sides; None without a bridge."""
    obstacle: str
    """Reason why a difference may not be due to the generators; empty if no reason is known."""

    def find_bridge(self, metric: str) -> Bridge | None:
        """Return the bridge that maps a metric's left scores to the right side's scale; None if there is none."""
        bridge = self.between.get(metric)
        return bridge if bridge is not None and bridge.joins else None

    @property
    def unbridged_metrics(self) -> list[str]:
        """Metrics whose versions differ and that have no bridge."""
        return [metric for metric, bridge in self.between.items() if bridge is None]


class ShownSide(NamedTuple):
    """A prompt's image on one side; if there are several, the image whose score is closest to their mean."""

    run_id: str
    score: Score
    mean: float | None
    images: int
    alt: str
    mapped: float | None = None
    """The mean on the scale of the right side's metric, if it was mapped by a bridge."""


class ChangedAnswer(NamedTuple):
    """A question whose answer or mark differs between the sides."""

    left: MarkedQuestion
    right: MarkedQuestion


class ShownChange(NamedTuple):
    """A prompt whose score changed, with its images on both sides."""

    prompt_id: str
    text: str
    move: float | None
    sides: tuple[ShownSide, ShownSide]
    answers: FirstRows[ChangedAnswer]
    rewritten: bool
    """True if the questions were rewritten, so that the two sides have no question in common."""
    reasons: tuple[str, str] | None
    """The judge's reasons on both sides, if they differ."""
    choices: Sequence[tuple[str, str]]
    """Choices of people and judges between the two images, if people compared them: who chose, and what."""


class Comparisons:
    """Comparisons of sides, with a cache of their results."""

    def __init__(self, browser: StoreBrowser) -> None:
        self._browser = browser
        self._cached_changes = lru_cache(MAX_CACHED_COMPARISONS)(self._compute_changes)
        self._cached_edited = lru_cache(MAX_CACHED_COMPARISONS)(self._find_edited_prompts)

    def open(self, choice: ChosenSides) -> OpenSides:
        """Open both sides of a comparison.

        Raises NotFound if a side does not exist, if both sides are equal, or if only one side has a generator.
        """
        if choice.left == choice.right:
            raise NotFound("both sides are the same; choose two runs, or two generators or settings of one run")
        opening = [self._browser.open(side.run) for side in choice]
        left, right = (run.result() for run in opening)
        if bool(choice.left.generator) != bool(choice.right.generator):
            raise NotFound("only one side names a generator; choose a generator on both sides, or on neither")
        for run, side in zip((left, right), choice, strict=True):
            check_name("generator", side.generator, run.manifest.get("generators"), run.run_id)
            check_settings(run, side.settings)
        manifests = (_reduce_manifest(left, choice.left, choice), _reduce_manifest(right, choice.right, choice))
        bridges = read_bridges(self._browser.store, right.manifest.get("benchmark"))
        between = {metric: altered.bridge for metric, altered in find_altered_metrics(*manifests, bridges).items()}
        return OpenSides(choice, left, right, manifests, bridges, between, find_obstacle(*manifests, bridges))

    def find_changes(self, sides: OpenSides) -> Changes:
        """Return the changes from left to right, paired by prompt; cached until the rows or the bridges change."""
        opened = sides.left.rows.number, sides.right.rows.number
        return self._cached_changes(sides.choice, opened, tuple(bridge.bridge_id for bridge in sides.bridges))

    def _compute_changes(self, choice: ChosenSides, opened: tuple[int, int], bridges: tuple[str, ...]) -> Changes:
        """Compare the two sides; the last two arguments serve only as part of the cache key."""
        sides = self.open(choice)
        left, right = (WantedRows(generator=side.generator, settings=side.settings) for side in choice)
        return compare_runs(
            sides.left.rows.select_scores(left, choice.right.generator).with_texts(self._read_texts(choice.left)),
            sides.right.rows.select_scores(right, choice.right.generator).with_texts(self._read_texts(choice.right)),
            Skills(()) if sides.right.originals is None else collect_skills(sides.right.originals.prompts),
            sides.manifests,
            bridges=sides.bridges,
        )._replace(run_id=choice.left.run)

    def _read_texts(self, side: ComparisonSide) -> PromptTexts | None:
        return read_text_hashes(self._browser.store, side.run)

    def _find_edited_prompts(self, choice: ChosenSides, opened: tuple[int, int]) -> list[str]:
        """Return the prompts whose texts differ between the two runs; `opened` serves only as part of the cache key."""
        left, right = (self._read_texts(side) for side in choice)
        if left is None or right is None:
            return []
        prompts = np.intersect1d(left.prompts, right.prompts, assume_unique=True)
        edited = prompts[left.find_edited_prompts(right, prompts)]
        return self.open(choice).left.rows.find_prompt_ids(edited) if len(edited) else []

    def find_prompt_changes(
        self, sides: OpenSides, wanted: WantedRows, first: int, limit: int
    ) -> tuple[int, list[ShownChange]]:
        """Return the number of prompts that match the filter, and a page of them with an image from each side."""
        left, right = (
            wanted._replace(generator=side.generator or wanted.generator, settings=(*wanted.settings, *side.settings))
            for side in sides.choice
        )
        bridge = sides.find_bridge(wanted.metric)
        line = UNCHANGED_LINE if bridge is None else bridge.line
        filters = (left._replace(skill="", words=""), right)
        edited = self._cached_edited(sides.choice, (sides.left.rows.number, sides.right.rows.number))
        total, moves = sides.left.rows.find_prompt_changes(sides.right.rows, filters, line, edited, first, limit)
        lefts = self._pick_images(sides.left, left, [(move.left_generator, move.prompt_id) for move in moves])
        rights = self._pick_images(sides.right, right, [(move.right_generator, move.prompt_id) for move in moves])
        run = sides.left.run_id
        people = self._browser.read_people(run) if run == sides.right.run_id else None
        rows = zip(moves, lefts, rights, strict=True)
        return total, [_make_shown_change(*row, wanted.metric, people, has_bridge=bridge is not None) for row in rows]

    def _pick_images(
        self, run: BrowsedRun, wanted: WantedRows, pairs: Sequence[tuple[str, str]]
    ) -> list[tuple[ShownSide, ImageDetail]]:
        """Return the image closest to the mean score for each generator and prompt, with its details.

        If no image has a score, the first image is returned.
        """
        rows = WantedRows(metric=wanted.metric, settings=wanted.settings)
        scores = run.rows.find_scores(rows, [generator for generator, _ in pairs], [prompt for _, prompt in pairs])
        sides = [
            _choose_typical_score(run.run_id, [score for score in scores if (score.generator, score.prompt_id) == pair])
            for pair in pairs
        ]
        picks = [make_pick([side.score]) for side in sides]
        details = self._browser.read_details(run, picks)
        return [(side, details[pick.key]) for side, pick in zip(sides, picks, strict=True)]


def _reduce_manifest(run: BrowsedRun, side: ComparisonSide, choice: ChosenSides) -> Mapping[str, Any]:
    """Return a run's manifest as if the run had only the side's generator and settings.

    If two generators are compared, both manifests get the name of the right side's generator. The selected settings are
    left out, because a difference in these is intended.
    """
    selected = {name for either in choice for name, _ in either.settings}
    if not selected and choice.pair is None:
        return run.manifest
    settings = read_all_settings(run.manifest, COMPARE)
    if selected:
        counted = run.rows.count_settings(WantedRows(generator=side.generator, settings=side.settings))
        settings = {
            generator: {name: values for name, values in known.items() if name not in selected}
            for generator, known in counted.items()
        }
    if choice.pair is None:
        return {**run.manifest, SETTINGS_COLUMN: settings}
    name = choice.right.generator
    return {**run.manifest, "generators": [name], SETTINGS_COLUMN: {name: settings.get(side.generator, {})}}


def _choose_typical_score(run_id: str, scores: Sequence[Score]) -> ShownSide:
    scored = [(score, score.score) for score in scores if score.score is not None]
    mean = sum(value for _, value in scored) / len(scored) if scored else None
    nearest = min(scored, key=lambda pair: abs(pair[1] - (mean or 0.0)))[0] if scored else scores[0]
    text = shorten(nearest.text or nearest.prompt_id, 200)
    alt = f"Image by {nearest.generator} in run {run_id} for the prompt: {text}"
    return ShownSide(run_id, nearest, mean, len(scores), alt)


def _make_shown_change(
    move: ScoreChange,
    left: tuple[ShownSide, ImageDetail],
    right: tuple[ShownSide, ImageDetail],
    metric: str,
    people: RunPeople | None,
    *,
    has_bridge: bool,
) -> ShownChange:
    before, after = (
        {element["question_id"]: mark_question(element) for element in detail.elements.get(metric, ())}
        for _, detail in (left, right)
    )
    shared = [ChangedAnswer(question, after[key]) for key, question in before.items() if key in after]
    changed = [pair for pair in shared if (pair.left.state, pair.left.given) != (pair.right.state, pair.right.given)]
    reasons = tuple(shorten(detail.rationales.get(metric), MAX_REASON_CHARACTERS) for _, detail in (left, right))
    images = {side.score.generator: side.score.image_id for side, _ in (left, right)}
    return ShownChange(
        prompt_id=move.prompt_id,
        text=right[0].score.text or left[0].score.text or move.prompt_id,
        move=None if move.left is None or move.right is None else move.right - move.left,
        sides=(left[0]._replace(mapped=move.left) if has_bridge else left[0], right[0]),
        answers=take_first_rows(changed, MAX_SHOWN_ANSWERS),
        rewritten=bool(before and after and not shared),
        reasons=(reasons[0], reasons[1]) if reasons[0] != reasons[1] else None,
        choices=[] if people is None else people.find_choices(move.prompt_id, images),
    )
