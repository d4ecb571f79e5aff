"""Builds the content of a run's report from its tables; a template only arranges this content."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base import schemas
from plumbline.operators.base.sentences import (
    NO_VALUE_MARK,
    FirstRows,
    Sentence,
    ShownTable,
    format_number,
    format_quantity,
    take_first_rows,
)
from plumbline.operators.images.generation_settings import (
    COMPARE,
    describe_settings,
    make_setting_notes,
    read_all_settings,
)
from plumbline.operators.metaeval.decided_pairs import describe_subsample, make_decisions_table
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.metrics.table import find_newcomer_description, read_lower_is_better
from plumbline.operators.report import charts, page_tables
from plumbline.operators.report.agreement import Agreement, AgreementSection, make_agreement_section
from plumbline.operators.report.changes import Changes
from plumbline.operators.report.findings import (
    Boards,
    Conclusions,
    compute_mean_ranks,
    describe_seed_noise,
    draw_conclusions,
    select_overall_boards,
)
from plumbline.operators.report.gallery import EMPTY_IMAGE_DETAIL, Card, ImageDetail, make_card
from plumbline.operators.report.metric_figures import MetricFigures
from plumbline.operators.report.picked_images import NOTHING_PICKED, ImageKey, Pick, PickedImages
from plumbline.operators.report.run_health import RunHealth, build_health, describe_failures
from plumbline.operators.report.side_by_side import SideBySide, make_side_by_side
from plumbline.operators.results.choices import ChoiceResults, Refusal
from plumbline.operators.results.comparison import (
    BETTER,
    TIED,
    WORSE,
    Board,
    Duel,
    LeaderboardRow,
    build_boards,
    describe_tests,
    rank_generators,
)
from plumbline.operators.results.metric_recipes import list_unranked_metrics
from plumbline.operators.results.percentile_ranks import NO_USUAL_SCORES, UsualScores
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.results.summary import OVERALL, Skills


class ReportSection(NamedTuple):
    """A section of a run's report that only some runs have; plugins can add such sections, too."""

    anchor: str
    link: str
    title: str
    caption: str
    tables: Sequence[ShownTable]
    sentences: Sequence[Sentence] = ()
    """Findings, which the terminal also shows, with the first table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GatheredRun:
    """A run's manifest and tables, and its prompts if they can be read."""

    run_id: str
    manifest: Mapping[str, Any]
    scores: RunScores
    summary: pa.Table
    failures: pa.Table
    prompts: Mapping[str, str]
    """Prompt texts by prompt_id."""
    skills: Skills
    """Skills of the prompts; empty if the prompts cannot be read."""
    agreement: Agreement | None = None
    noise: pa.Table = field(default_factory=schemas.JUDGE_NOISE.empty_table)
    """Noise of the judges (schema JUDGE_NOISE); empty if every judge is asked only once."""
    usual: UsualScores = NO_USUAL_SCORES
    decisions: pa.Table | None = None
    sections: Sequence[ReportSection] = ()
    choices: Mapping[str, ChoiceResults | Refusal] = field(default_factory=dict)
    """Results of the pairwise judges' choices between images, by metric."""
    unreadable: str = ""
    """Reason why the prompts and images cannot be read; empty if they can."""

    def find_unranked_metrics(self) -> frozenset[str]:
        """Return the names of the metrics whose scores only describe images, so that none is better than another."""
        return list_unranked_metrics(self.manifest)

    def list_ranking_metrics(self) -> list[str]:
        unranked = self.find_unranked_metrics()
        return [name for name in self.manifest.get("metrics", ()) if name not in unranked]

    def list_gallery_metrics(self) -> list[str]:
        """Return the metrics whose images are shown: metrics that rank images, or all metrics if none ranks images."""
        return self.list_ranking_metrics() or list(self.manifest.get("metrics", ()))


class MetricPanel(NamedTuple):
    """The report's section on one metric: charts of means and scores, means by skill, and pairs of generators."""

    name: str
    lower_is_better: bool
    story: str
    interval: charts.Chart
    distribution: charts.Chart
    heat: page_tables.HeatMap | None
    pairs: page_tables.PairComparisons


class Page(NamedTuple):
    """Everything that a run's report page shows; the template only arranges it."""

    run_id: str
    benchmark: str
    facts: list[str]
    decision: Conclusions
    warnings: list[str]
    generators: FirstRows[str]
    """Generators by their mean rank over the metrics, best first."""
    ranks: Mapping[str, float | None]
    """Mean rank of each generator; None for a generator that some metric did not score."""
    columns: list[page_tables.MeansColumn]
    skills: list[str]
    best_at: FirstRows[page_tables.SkillLeaders]
    panels: list[MetricPanel]
    prompts: list[SideBySide]
    """Prompts with the largest differences between generators."""
    cards: list[Card]
    health: RunHealth
    usual: UsualScores
    changes: Changes | None
    agreement: AgreementSection | None
    contradicted: list[Card]
    decided: ShownTable | None
    sections: Sequence[ReportSection]
    leaderboard_rows: list[LeaderboardRow]
    """Rows of the leaderboards of all metrics, both overall and by skill."""
    baseline: str
    """If set, other generators are compared with this generator only."""
    seeds: ShownTable | None
    """Fraction of the noise that is due to the seed; None if no prompt has several images."""
    settings: list[tuple[str, str]]
    """Generators, each with the settings that its images were generated with, as text."""
    ranking: list[str]
    """Metrics that rank images. If there are none, the page does not compare generators."""
    has_skills: bool

    @property
    def sample_thumbnails(self) -> Mapping[str, str]:
        """Thumbnails (data URIs) by generator, for the first prompt that is shown side by side."""
        sides = self.prompts[0].sides if self.prompts else []
        return {side.generator: side.image.url for side in sides if side.image.url is not None}

    @property
    def kinds(self) -> list[str]:
        """Distinct kinds of reasons (Reason.kind) for which images are in the gallery."""
        return list(dict.fromkeys(kind for card in self.cards for kind in card.kinds))

    @property
    def gallery_metrics(self) -> list[str]:
        return self.ranking or self.metrics

    @property
    def has_sources(self) -> bool:
        """True if any image was edited from another image."""
        cards = (*self.cards, *self.contradicted)
        return any(card.sources for card in cards) or any(prompt.sources for prompt in self.prompts)

    @property
    def marks_explanation(self) -> str:
        """Text below the leaderboard that explains the letters or marks after the means."""
        if self.baseline:
            return f"clearly {BETTER} or {WORSE} than {self.baseline}, or {TIED}: no clear difference"
        others = "; with other settings: not compared" if self.has_different_settings else ""
        return f"sharing a letter: no clear difference{others}"

    @property
    def leaderboard_title(self) -> str:
        return f"means; {self.marks_explanation} ({self.tests}, Holm)" if self.ranking else "means"

    @property
    def tests(self) -> str:
        """Name of the test that decides which generators differ.

        If some metrics use a second test, the text also names that test and those metrics.
        """
        return describe_tests(duel for panel in self.panels for duel in panel.pairs.duels.rows)

    @property
    def leaderboard(self) -> dict[str, dict[str, str]]:
        """Cells of the leaderboard as text, by generator and column."""
        cells: dict[str, dict[str, str]] = {}
        for generator in self.generators.rows:
            rank = self.ranks[generator]
            cells[generator] = {"mean rank": NO_VALUE_MARK if rank is None else f"{rank:.1f}"} if self.ranking else {}
            for column in self.columns:
                row = column.by_generator.get(generator)
                name = f"{column.name} (lower is better)" if column.lower_is_better else column.name
                cells[generator][name] = (
                    NO_VALUE_MARK if row is None else f"{format_number(row.mean)} {row.group}".strip()
                )
        return cells

    @property
    def has_different_settings(self) -> bool:
        """True if the settings of some generators differ, so that these generators are not compared with each other."""
        return any(duel.unlike for panel in self.panels for duel in panel.pairs.duels.rows)

    @property
    def metrics(self) -> list[str]:
        return [column.name for column in self.columns]


def build_page(
    run: GatheredRun,
    figures: Mapping[str, MetricFigures],
    *,
    picks: PickedImages = NOTHING_PICKED,
    details: Mapping[ImageKey, ImageDetail] = MappingProxyType({}),
    changes: Changes | None = None,
    baseline: str = "",
) -> Page:
    """Return the content of a run's report, given the figures of each metric (from `measure_metrics`).

    If there is a `baseline`, the other generators were compared only with it.
    """
    compared = [duel for of_metric in figures.values() for duel in of_metric.duels]
    ranked = _rank_run(run, figures, compared, baseline)
    boards = build_boards(ranked, compared, baseline)
    overall = select_overall_boards(boards, run.manifest.get("metrics", ()))
    unranked = run.find_unranked_metrics()
    ranking = {name: board for name, board in overall.items() if name not in unranked}
    ranks = compute_mean_ranks(ranking)
    ranks |= {row.generator: None for board in overall.values() for row in board.rows if row.generator not in ranks}
    repeats = {metric: own.repeats for metric, own in figures.items() if own.repeats is not None}
    cards, contradicted = (_make_cards(own, details, run) for own in (picks.gallery, picks.contradicted))
    prompts = _make_side_by_sides(picks, details, run, {name: number for number, name in enumerate(ranks)})
    unscored = {metric: of_metric.unscored for metric, of_metric in figures.items()}
    health = build_health(run.manifest, run.scores, run.failures, overall, run.noise, unscored)
    rankable = {key: board for key, board in boards.items() if key[0] in ranking}
    decision = draw_conclusions(rankable, ranking, describe_failures(health.failures))
    decision = decision._replace(agreement=[*decision.agreement, *describe_seed_noise(repeats)])
    if overall and not ranking:
        decision = decision._replace(headline=Sentence("Nothing is ranked:", "no metric of the run ranks images."))
    return Page(
        run_id=run.run_id,
        benchmark=str(run.manifest.get("benchmark", "")),
        facts=_list_facts(run, overall),
        decision=decision,
        warnings=_list_warnings(run, health),
        generators=take_first_rows(list(ranks), page_tables.MAX_GENERATORS),
        ranks=ranks,
        columns=[page_tables.make_board_column(board) for board in overall.values()],
        skills=sorted({*chain(*(card.skills for card in cards), *(prompt.skills for prompt in prompts))}),
        best_at=page_tables.make_skill_leaders(boards, list(ranking)),
        panels=[_make_panel(board, boards, run, figures) for board in overall.values()],
        prompts=prompts,
        cards=cards,
        health=health,
        usual=run.usual,
        changes=changes,
        agreement=None if run.agreement is None else make_agreement_section(run.agreement),
        contradicted=contradicted,
        decided=None if run.decisions is None else make_decisions_table(run.decisions),
        sections=[section for section in run.sections if section.tables],
        leaderboard_rows=ranked,
        baseline=baseline,
        seeds=page_tables.make_seed_table(repeats) if repeats else None,
        settings=[(name, describe_settings(known)) for name, known in read_all_settings(run.manifest, COMPARE).items()],
        ranking=list(ranking),
        has_skills=len(run.skills.names) > 1 or any(row.skill != OVERALL for row in ranked),
    )


def _rank_run(
    run: GatheredRun, figures: Mapping[str, MetricFigures], compared: Sequence[Duel], baseline: str
) -> list[LeaderboardRow]:
    """Return the leaderboard rows of all metrics, overall and by skill.

    If the prompts are unknown, rows for single skills have no rank or tie group.
    """
    overall = run.summary.filter(pc.equal(run.summary.column("skill"), OVERALL))
    lower_is_better = read_lower_is_better(run.manifest)
    summary = run.summary if run.skills else overall
    ranked = [
        row._replace(rating=figures[row.metric].ratings.get(row.generator))
        if row.skill == OVERALL and row.metric in figures
        else row
        for row in rank_generators(summary, compared, lower_is_better, baseline, run.find_unranked_metrics())
    ]
    if run.skills:
        return ranked
    for row in run.summary.to_pylist():
        if row["skill"] != OVERALL:
            known = {name: row[name] for name in LeaderboardRow._fields if name in row}
            means = {name: math.nan if row[name] is None else float(row[name]) for name in ("mean", "low", "high")}
            towards = get_direction(row["metric"], lower_is_better)
            ranked.append(LeaderboardRow(**(known | means), rank=None, group="", direction=towards))
    return ranked


def _make_cards(picks: Sequence[Pick], details: Mapping[ImageKey, ImageDetail], run: GatheredRun) -> list[Card]:
    cards = []
    for pick in picks:
        detail, skills = details.get(pick.key, EMPTY_IMAGE_DETAIL), run.skills.find(pick.prompt_id)
        cards.append(make_card(pick, detail, run.prompts.get(pick.prompt_id), skills, run.usual))
    return cards


def _make_side_by_sides(
    picks: PickedImages, details: Mapping[ImageKey, ImageDetail], run: GatheredRun, order: Mapping[str, int]
) -> list[SideBySide]:
    lower_is_better, unranked = read_lower_is_better(run.manifest), run.find_unranked_metrics()
    directions = {
        name: 0 if name in unranked else get_direction(name, lower_is_better) for name in run.list_gallery_metrics()
    }
    prompts = []
    for sides in picks.side_by_side:
        sides = sorted(sides, key=lambda pick: order.get(pick.key.generator, len(order)))
        prompt_id = sides[0].prompt_id
        text, skills = run.prompts.get(prompt_id), run.skills.find(prompt_id)
        prompts.append(make_side_by_side(sides, details, text, skills, directions))
    return prompts


def _list_facts(run: GatheredRun, overall: Boards) -> list[str]:
    generators = len({row.generator for board in overall.values() for row in board.rows})
    prompts = len(run.scores.prompts)
    # Rows for prompts without an image, which are not in any file.
    absent = [row for row in run.failures.to_pylist() if row["kind"] == "missing_image" and row["file"] is None]
    images = (len(run.scores) - sum(row["rows"] for row in absent)) // max(len(overall), 1)
    began = str(run.manifest.get("began", ""))[:16].replace("T", " ")
    counts = {"generator": generators, "prompt": prompts, "image": images, "metric": len(overall)}
    note = str(run.manifest.get("note", ""))
    facts = [format_quantity(count, word) for word, count in counts.items()]
    return facts + ([f"{began} UTC"] if began else []) + ([f"note: {note}"] if note else [])


def _list_warnings(run: GatheredRun, health: RunHealth) -> list[str]:
    warnings = []
    if seen := run.manifest.get("seen"):
        warnings.append(describe_subsample(seen, run.manifest["config"]["adaptive"]))
    if limited := run.manifest.get("limited"):
        seed = run.manifest["config"].get("benchmark", {}).get("limit_seed")
        warnings.append(
            f"Only {'the first' if seed is None else 'a random'} {limited['prompts']:,} of {limited['of_prompts']:,} "
            f"prompts (limit) and {limited['images']:,} of {limited['of_images']:,} images were scored. This is a "
            "trial, not a result of the benchmark."
        )
    if health.rows_null:
        share = f"{health.rows_null:,} of {health.rows:,} rows ({health.rows_null / health.rows:.1%})"
        warnings.append(f"{share} have no score and are excluded from all means: {describe_failures(health.failures)}")
    warnings += make_setting_notes(run.manifest, run.scores.generators)
    if run.unreadable:
        warnings.append(f"The prompts and images can no longer be read: {run.unreadable}")
    return warnings


def _make_panel(
    board: Board, boards: Mapping[tuple[str, str], Board], run: GatheredRun, figures: Mapping[str, MetricFigures]
) -> MetricPanel:
    spreads = figures[board.metric].spreads if board.metric in figures else {}
    config = run.manifest.get("config", {}).get("metrics", {}).get(board.metric, {})
    return MetricPanel(
        name=board.metric,
        lower_is_better=board.lower_is_better,
        story=str(config.get("about") or find_newcomer_description(str(config.get("kind", board.metric)))),
        interval=charts.draw_interval_chart(board),
        distribution=charts.draw_distribution_chart(board, spreads, run.scores.spans.get(board.metric, (0.0, 1.0))),
        heat=page_tables.make_heat_map(boards, board.metric),
        pairs=page_tables.make_pair_comparisons(board),
    )
