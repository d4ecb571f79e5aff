"""Everything that the page shows, made from a run's tables; a template only lays it out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base import schemas
from plumbline.operators.base.sentences import NOTHING, FirstRows, Sentence, number, plural, shown
from plumbline.operators.diagnosis.diagnosis import Diagnosis, ShownTable, shown_tables
from plumbline.operators.images.generation_settings import COMPARE, all_settings, setting_notes, settings_in_words
from plumbline.operators.judging.decided_pairs import decisions_table, in_words
from plumbline.operators.metrics.metric import direction
from plumbline.operators.metrics.table import falling_metrics, metric_story, read_metrics
from plumbline.operators.report import charts, page_tables
from plumbline.operators.report.agreement import Agreement, ShownAgreement, show_agreement
from plumbline.operators.report.changes import Changes
from plumbline.operators.report.findings import Boards, Decision, decide, mean_ranks, overall_boards
from plumbline.operators.report.gallery import NO_DETAIL, Card, ImageDetail, make_card
from plumbline.operators.report.health import Health, health, reasons
from plumbline.operators.report.metric_figures import MetricFigures
from plumbline.operators.report.picked_images import NOTHING_PICKED, ImageKey, Pick, Picked
from plumbline.operators.report.seeds import seed_sentences, seed_table
from plumbline.operators.report.side_by_side import SideBySide, put_side_by_side
from plumbline.operators.results.comparison import (
    BETTER,
    TIED,
    WORSE,
    Board,
    Duel,
    Standing,
    boards,
    standings,
)
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.results.summary import OVERALL, Skills
from plumbline.operators.results.usual_scores import NOTHING_USUAL, UsualScores


@dataclass(frozen=True, kw_only=True, slots=True)
class GatheredRun:
    """A run as it was read: its manifest, its tables, and its prompts where they can be read."""

    run_id: str
    manifest: Mapping[str, Any]
    scores: RunScores
    summary: pa.Table
    failures: pa.Table
    prompts: Mapping[str, str]
    """Text by prompt_id."""
    skills: Skills
    """Of its prompts; of none where the prompts cannot be read."""
    diagnosis: Diagnosis | None = None
    """What its metrics are found to be like, where that was looked at."""
    agreement: Agreement | None = None
    """How far its metrics agree with people, where that was judged."""
    noise: pa.Table = field(default_factory=schemas.JUDGE_NOISE.empty_table)
    """Schema JUDGE_NOISE; of no rows where every judge is asked once."""
    usual: UsualScores = NOTHING_USUAL
    """The scores of all images of its benchmark so far."""
    decisions: pa.Table | None = None
    """Schema DECISIONS, where the run is an adaptive sweep's."""
    unreadable: str = ""
    """Why the prompts and images cannot be read, where they cannot."""

    def unranked(self) -> frozenset[str]:
        """Its metrics by which no image is better than another."""
        return frozenset(name for name, metric in read_metrics(self.manifest).items() if not metric.ranks)

    def ranking(self) -> list[str]:
        """All its other metrics."""
        unranked = self.unranked()
        return [name for name in self.manifest.get("metrics", ()) if name not in unranked]

    def pictured(self) -> list[str]:
        """The metrics whose images are shown: those that rank, or all if none does."""
        return self.ranking() or list(self.manifest.get("metrics", ()))


class MetricPanel(NamedTuple):
    """What is shown of one metric."""

    name: str
    lower_is_better: bool
    story: str
    interval: charts.Chart
    distribution: charts.Chart
    heat: page_tables.HeatMap | None
    pairs: page_tables.Pairs


class Page(NamedTuple):
    """The whole page."""

    run_id: str
    benchmark: str
    facts: list[str]
    decision: Decision
    warnings: list[str]
    generators: FirstRows[str]
    """By their mean rank over the metrics, best first."""
    ranks: Mapping[str, float | None]
    """Those mean ranks; None where a metric that scored others did not score it."""
    columns: list[page_tables.Column]
    """The leaderboard, a column for each metric."""
    skills: list[str]
    best_at: FirstRows[page_tables.BestAt]
    panels: list[MetricPanel]
    prompts: list[SideBySide]
    """Those on which generators differ most."""
    cards: list[Card]
    health: Health
    usual: UsualScores
    """The scores of all images of the benchmark so far."""
    changes: Changes | None
    agreement: ShownAgreement | None
    """How far the metrics agree with people, where that was judged."""
    contradicted: list[Card]
    """The images on which a metric contradicts people."""
    decided: ShownTable | None
    """What an adaptive sweep decided."""
    diagnosis: list[ShownTable]
    """Empty where the metrics were not diagnosed."""
    standings: list[Standing]
    baseline: str
    """The generator that the others are compared with alone; empty where all are with each other."""
    seeds: ShownTable | None
    """How much of the noise is the seed; None where no prompt has several images."""
    settings: list[tuple[str, str]]
    """By generator that has any, what its images were generated with, in words."""
    ranking: list[str]
    """The metrics that rank images. If there is none, the page compares no generators."""
    has_skills: bool
    """Whether the prompts name skills, at which images may or may not have a score."""

    @property
    def pictures(self) -> Mapping[str, str]:
        """By generator its thumbnail, a data URI, of the prompt on which the generators differ most."""
        sides = self.prompts[0].sides if self.prompts else []
        return {side.generator: side.thumbnail for side in sides if side.thumbnail is not None}

    @property
    def kinds(self) -> list[str]:
        """The reasons for which images are in the gallery."""
        return list(dict.fromkeys(kind for card in self.cards for kind in card.kinds))

    @property
    def pictured(self) -> list[str]:
        """The metrics whose images are in the gallery."""
        return self.ranking or self.metrics

    @property
    def has_sources(self) -> bool:
        """Whether some image was edited from another."""
        return any(card.sources for card in (*self.cards, *self.contradicted)) or any(
            prompt.sources for prompt in self.prompts
        )

    @property
    def marks(self) -> str:
        """What stands behind the means."""
        if self.baseline:
            return f"{BETTER} or {WORSE}: clearly so than {self.baseline}; {TIED}: not told from it"
        return f"sharing a letter: not told apart{'; with other settings: not compared' if self.is_unlike else ''}"

    @property
    def leaderboard_title(self) -> str:
        """Title of the leaderboard as text."""
        return f"means; {self.marks} (signed-rank test, Holm)" if self.ranking else "means"

    @property
    def leaderboard(self) -> dict[str, dict[str, str]]:
        """The leaderboard as text, by generator and column."""
        return {name: self._leaderboard_row(name) for name in self.generators.rows}

    def _leaderboard_row(self, generator: str) -> dict[str, str]:
        rank = self.ranks[generator]
        cells = {"mean rank": NOTHING if rank is None else f"{rank:.1f}"} if self.ranking else {}
        for column in self.columns:
            standing = column.standings.get(generator)
            name = f"{column.name} (lower is better)" if column.lower_is_better else column.name
            cells[name] = NOTHING if standing is None else f"{number(standing.mean)} {standing.group}".strip()
        return cells

    @property
    def is_unlike(self) -> bool:
        """Whether some generators are not compared, as their settings differ."""
        return any(duel.unlike for panel in self.panels for duel in panel.pairs.duels.rows)

    @property
    def metrics(self) -> list[str]:
        return [column.name for column in self.columns]


def _standings(
    run: GatheredRun, figures: Mapping[str, MetricFigures], compared: Sequence[Duel], baseline: str
) -> list[Standing]:
    """The standings of a run; where its prompts' skills are not known, the summary's means at the skills."""
    overall = run.summary.filter(pc.equal(run.summary.column("skill"), OVERALL))
    falling = falling_metrics(run.manifest)
    ranked = standings(run.summary if run.skills else overall, compared, falling, baseline)
    ratings = {
        (metric, OVERALL, generator): rating
        for metric, of_metric in figures.items()
        for generator, rating in of_metric.ratings.items()
    }
    ranked = [row._replace(rating=ratings.get((row.metric, row.skill, row.generator))) for row in ranked]
    unranked = run.unranked()
    ranked = [row._replace(rank=None, group="") if row.metric in unranked else row for row in ranked]
    if not run.skills:
        at_skills = [row for row in run.summary.to_pylist() if row["skill"] != OVERALL]
        ranked += [_from_summary(row, direction(row["metric"], falling)) for row in at_skills]
    return ranked


def _from_summary(row: Mapping[str, Any], towards: int) -> Standing:
    """A standing without rank and tie group, as the prompts are not known."""
    known = {name: row[name] for name in Standing._fields if name in row}
    means = {name: math.nan if row[name] is None else float(row[name]) for name in ("mean", "low", "high")}
    return Standing(**(known | means), rank=None, group="", direction=towards)


def build_page(
    run: GatheredRun,
    figures: Mapping[str, MetricFigures],
    *,
    picks: Picked = NOTHING_PICKED,
    details: Mapping[ImageKey, ImageDetail] = MappingProxyType({}),
    changes: Changes | None = None,
    baseline: str = "",
) -> Page:
    """The page of a run, of its metrics' figures, of the images picked for it, and of what changed since another run.

    With a `baseline` every other generator was compared with it alone.
    """
    compared = [duel for of_metric in figures.values() for duel in of_metric.duels]
    ranked = _standings(run, figures, compared, baseline)
    at_skills = boards(ranked, compared, baseline)
    overall = overall_boards(at_skills, run.manifest.get("metrics", ()))
    unranked = run.unranked()
    ranking = {name: board for name, board in overall.items() if name not in unranked}
    ranks = _ranks(overall, ranking)
    cards = [_card(pick, details, run) for pick in picks.gallery]
    repeats = {metric: of.repeats for metric, of in figures.items() if of.repeats is not None}
    order = {name: place for place, name in enumerate(ranks)}
    prompts = [_side_by_side(sides, details, run, order) for sides in picks.side_by_side]
    unscored = {metric: of_metric.unscored for metric, of_metric in figures.items()}
    state = health(run.manifest, run.scores, run.failures, overall, run.noise, unscored)
    return Page(
        run_id=run.run_id,
        benchmark=str(run.manifest.get("benchmark", "")),
        facts=_page_facts(run, overall),
        decision=_decision(at_skills, overall, ranking, reasons(state.failures), seed_sentences(repeats)),
        warnings=_warnings(run, state),
        generators=shown(list(ranks), page_tables.MOST_GENERATORS),
        ranks=ranks,
        columns=[page_tables.board_column(metric_board) for metric_board in overall.values()],
        skills=sorted({*chain(*(card.skills for card in cards), *(prompt.skills for prompt in prompts))}),
        best_at=page_tables.best_at(at_skills, list(ranking)),
        panels=[_panel(metric_board, at_skills, run, figures) for metric_board in overall.values()],
        prompts=prompts,
        cards=cards,
        health=state,
        usual=run.usual,
        changes=changes,
        agreement=None if run.agreement is None else show_agreement(run.agreement),
        contradicted=[_card(pick, details, run) for pick in picks.contradicted],
        decided=None if run.decisions is None else decisions_table(run.decisions),
        diagnosis=[] if run.diagnosis is None else shown_tables(run.diagnosis),
        standings=ranked,
        baseline=baseline,
        seeds=seed_table(repeats) if repeats else None,
        settings=[(name, settings_in_words(of)) for name, of in all_settings(run.manifest, COMPARE).items()],
        ranking=list(ranking),
        has_skills=len(run.skills.names) > 1 or any(row.skill != OVERALL for row in ranked),
    )


def _ranks(overall: Boards, ranking: Boards) -> dict[str, float | None]:
    """The mean ranks of every generator by the metrics that rank; None where they are not all there."""
    ranks = mean_ranks(ranking)
    others = (standing.generator for board in overall.values() for standing in board.standings)
    return {**ranks, **{name: None for name in others if name not in ranks}}


def _decision(
    at_skills: Mapping[tuple[str, str], Board],
    overall: Boards,
    ranking: Boards,
    failed: str,
    of_seeds: Sequence[Sentence],
) -> Decision:
    """What the run says, by the metrics that rank."""
    decision = decide({place: board for place, board in at_skills.items() if place[0] in ranking}, ranking, failed)
    decision = decision._replace(agreement=[*decision.agreement, *of_seeds])
    if ranking or not overall:
        return decision
    return decision._replace(headline=Sentence("Nothing is ranked:", "no metric of the run ranks images."))


def _card(pick: Pick, details: Mapping[ImageKey, ImageDetail], run: GatheredRun) -> Card:
    detail = details.get(pick.key, NO_DETAIL)
    return make_card(pick, detail, run.prompts.get(pick.prompt_id), run.skills.of(pick.prompt_id), run.usual)


def _side_by_side(
    sides: Sequence[Pick], details: Mapping[ImageKey, ImageDetail], run: GatheredRun, order: Mapping[str, int]
) -> SideBySide:
    """A prompt's images, the generators as in the leaderboard."""
    sides = sorted(sides, key=lambda pick: order.get(pick.key.generator, len(order)))
    prompt, falling, ranking = sides[0].prompt_id, falling_metrics(run.manifest), run.ranking()
    towards = {metric: direction(metric, falling) if metric in ranking else 0 for metric in run.pictured()}
    return put_side_by_side(sides, details, run.prompts.get(prompt), run.skills.of(prompt), towards)


def _page_facts(run: GatheredRun, overall: Boards) -> list[str]:
    """The size of the run in a few words, when it began, and what was noted of it."""
    generators = len({standing.generator for board in overall.values() for standing in board.standings})
    prompts = len(run.scores.prompts)
    images = (len(run.scores) - _absent_rows(run.failures)) // max(len(overall), 1)
    began = str(run.manifest.get("began", ""))[:16].replace("T", " ")
    counts = {"generator": generators, "prompt": prompts, "image": images, "metric": len(overall)}
    note = str(run.manifest.get("note", ""))
    facts = [plural(count, word) for word, count in counts.items()]
    return facts + ([f"{began} UTC"] if began else []) + ([f"note: {note}"] if note else [])


def _absent_rows(failures: pa.Table) -> int:
    """Count the rows of prompts without an image, which are in no file."""
    return sum(row["rows"] for row in failures.to_pylist() if row["kind"] == "missing_image" and row["file"] is None)


def _warnings(run: GatheredRun, state: Health) -> list[str]:
    """What a reader must know before trusting the rest."""
    warnings = []
    if seen := run.manifest.get("seen"):
        warnings.append(in_words(seen, run.manifest["config"]["adaptive"]))
    if limited := run.manifest.get("limited"):
        seed = run.manifest["config"].get("benchmark", {}).get("limit_seed")
        warnings.append(
            f"The scores are of the benchmark's {'first' if seed is None else 'drawn'} {limited['prompts']:,} of "
            f"{limited['of_prompts']:,} prompts (limit), and of {limited['images']:,} of {limited['of_images']:,} "
            "images: they are a trial, and no result of the benchmark."
        )
    if state.rows_null:
        share = f"{state.rows_null:,} of {state.rows:,} rows ({state.rows_null / state.rows:.1%})"
        warnings.append(f"{share} have no score and are outside every mean: {reasons(state.failures)}")
    warnings += setting_notes(run.manifest, run.scores.generators)
    if run.unreadable:
        warnings.append(f"The prompts and images can no longer be read: {run.unreadable}")
    return warnings


def _panel(
    board: Board,
    at_skills: Mapping[tuple[str, str], Board],
    run: GatheredRun,
    figures: Mapping[str, MetricFigures],
) -> MetricPanel:
    spreads = figures[board.metric].spreads if board.metric in figures else {}
    config = run.manifest.get("config", {}).get("metrics", {}).get(board.metric, {})
    return MetricPanel(
        name=board.metric,
        lower_is_better=board.lower_is_better,
        story=str(config.get("about") or metric_story(str(config.get("kind", board.metric)))),
        interval=charts.interval_chart(board),
        distribution=charts.distribution_chart(board, spreads, run.scores.spans.get(board.metric, (0.0, 1.0))),
        heat=page_tables.heat_map(at_skills, board.metric),
        pairs=page_tables.pairs(board),
    )
