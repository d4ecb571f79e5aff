"""Everything that the page shows, made from a run's tables; a template only lays it out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from operators.comparison import Board, Duel, Standing, boards, bradley_terry, duels, standings
from operators.metrics.table import metric_story
from operators.report import charts, tables
from operators.report.changes import Changes, compare
from operators.report.findings import Boards, Decision, decide, overall_boards
from operators.report.gallery import NO_DETAIL, Card, ImageDetail, ImageKey, Pick, make_card
from operators.report.health import Health, health, reasons
from operators.report.words import Shown, plural
from operators.summary import OVERALL


@dataclass(frozen=True, kw_only=True, slots=True)
class GatheredRun:
    """A run as it was read: its manifest, its tables, and its prompts where they can be read."""

    run_id: str
    manifest: Mapping[str, Any]
    scores: pa.Table
    """Schema SCORES, further columns after it."""
    summary: pa.Table
    errors: pa.Table
    prompts: Mapping[str, str]
    """Text by prompt_id."""
    skills: Mapping[str, Sequence[str]]
    """Skills by prompt_id; empty where the prompts cannot be read."""
    unreadable: str = ""
    """Why the prompts and images cannot be read, where they cannot."""


class Statistics(NamedTuple):
    """What the comparison says of a run."""

    standings: list[Standing]
    duels: list[Duel]


class MetricPanel(NamedTuple):
    """What is shown of one metric."""

    name: str
    story: str
    interval: charts.Chart
    distribution: charts.Chart
    heat: tables.HeatMap | None
    matrix: tables.Matrix


class Page(NamedTuple):
    """The whole page."""

    run_id: str
    benchmark: str
    facts: list[str]
    decision: Decision
    warnings: list[str]
    metrics: list[str]
    generators: list[str]
    skills: list[str]
    board: Shown[tables.BoardRow]
    best_at: Shown[tables.BestAt]
    panels: list[MetricPanel]
    cards: list[Card]
    health: Health
    changes: Changes | None
    standings: list[Standing]


def take_statistics(run: GatheredRun, *, rated: bool = False) -> Statistics:
    """The standings and duels of a run; where its prompts' skills are not known, the summary's means at the skills.

    `rated` adds Bradley-Terry ratings to the overall standings.
    """
    compared = duels(run.scores, run.skills)
    overall = run.summary.filter(pc.equal(run.summary.column("skill"), OVERALL))
    ranked = standings(run.summary if run.skills else overall, compared)
    if rated:
        ratings = bradley_terry(run.scores)
        ranked = [
            row._replace(rating=ratings[row.metric].get(row.generator, math.nan)) if row.skill == OVERALL else row
            for row in ranked
        ]
    if not run.skills:
        ranked += [_from_summary(row) for row in run.summary.to_pylist() if row["skill"] != OVERALL]
    return Statistics(ranked, compared)


def _from_summary(row: Mapping[str, Any]) -> Standing:
    """A standing without rank and tie group, as the prompts are not known."""
    known = {name: row[name] for name in Standing._fields if name in row}
    means = {name: math.nan if row[name] is None else float(row[name]) for name in ("mean", "low", "high")}
    return Standing(**(known | means), rank=None, group="")


def build_page(
    run: GatheredRun,
    statistics: Statistics,
    *,
    picks: Sequence[Pick],
    details: Mapping[ImageKey, ImageDetail],
    before: GatheredRun | None = None,
) -> Page:
    """The page of a run, of its statistics, of the images picked for the gallery, and of the run it is compared to."""
    at_skills = boards(statistics.standings, statistics.duels)
    overall = overall_boards(at_skills, run.manifest.get("metrics", ()))
    board = tables.board_rows(overall)
    cards = [_card(pick, details, run) for pick in picks]
    state = health(run.manifest, run.scores, run.errors, overall)
    return Page(
        run_id=run.run_id,
        benchmark=str(run.manifest.get("benchmark", "")),
        facts=_page_facts(run, overall),
        decision=decide(at_skills, overall, reasons(state.failures)),
        warnings=_warnings(run, state),
        metrics=list(overall),
        generators=[row.generator for row in board.rows],
        skills=sorted({skill for card in cards for skill in card.skills}),
        board=board,
        best_at=tables.best_at(at_skills, list(overall)),
        panels=[_panel(metric_board, at_skills, run) for metric_board in overall.values()],
        cards=cards,
        health=state,
        changes=None if before is None else _changes(before, run),
        standings=statistics.standings,
    )


def _card(pick: Pick, details: Mapping[ImageKey, ImageDetail], run: GatheredRun) -> Card:
    detail = details.get(pick.key, NO_DETAIL)
    return make_card(pick, detail, run.prompts.get(pick.prompt_id), run.skills.get(pick.prompt_id) or ())


def _page_facts(run: GatheredRun, overall: Boards) -> list[str]:
    """The size of the run in a few words."""
    generators = len({standing.generator for board in overall.values() for standing in board.standings})
    prompts = len(set(run.scores.column("prompt_id").unique().to_pylist()) - {None})
    images = len(run.scores) // max(len(overall), 1)
    began = str(run.manifest.get("began", ""))[:16].replace("T", " ")
    counts = {"generator": generators, "prompt": prompts, "image": images, "metric": len(overall)}
    return [plural(count, word) for word, count in counts.items()] + ([f"{began} UTC"] if began else [])


def _warnings(run: GatheredRun, state: Health) -> list[str]:
    """What a reader must know before trusting the rest."""
    warnings = []
    if state.rows_null:
        share = f"{state.rows_null:,} of {state.rows:,} rows ({state.rows_null / state.rows:.1%})"
        warnings.append(f"{share} have no score and are outside every mean: {reasons(state.failures)}")
    if run.unreadable:
        warnings.append(f"The prompts and images can no longer be read: {run.unreadable}")
    return warnings


def _panel(board: Board, at_skills: Mapping[tuple[str, str], Board], run: GatheredRun) -> MetricPanel:
    config = run.manifest.get("config", {}).get("metrics", {}).get(board.metric, {})
    return MetricPanel(
        name=board.metric,
        story=metric_story(str(config.get("kind", board.metric))),
        interval=charts.interval_chart(board),
        distribution=charts.distribution_chart(run.scores, board),
        heat=tables.heat_map(at_skills, board.metric),
        matrix=tables.matrix(board),
    )


def _changes(before: GatheredRun, run: GatheredRun) -> Changes:
    changes = compare(before.scores, run.scores, run.skills, (before.manifest, run.manifest))
    return changes._replace(run_id=before.run_id)
