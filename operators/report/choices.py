"""Makes the section of a report about a judge's choices between two images: win rates, strengths, and checks."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from plumbline.operators.base.sentences import (
    NO_VALUE_MARK,
    Sentence,
    ShownTable,
    format_count,
    format_interval,
    format_number,
    format_p_value,
    format_percent,
    format_quantity,
    format_signed,
    take_first_rows,
)
from plumbline.operators.metaeval.choice_agreement import PeopleChoices
from plumbline.operators.report.leaders import describe_leaders
from plumbline.operators.report.page import ReportSection
from plumbline.operators.report.page_tables import MAX_GENERATORS, MAX_MATRIX_GENERATORS, MAX_PAIRS, MAX_SKILLS
from plumbline.operators.results.choices import ChoiceResults, Choices, Refusal
from plumbline.operators.results.comparison import Board, Duel, LeaderboardRow, list_generator_names
from plumbline.operators.results.summary import OVERALL
from plumbline.operators.statistics.bootstrap import Interval
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.operators.statistics.order_bias import OrderBias

CHOICES_CAPTION = (
    "A judge looked at two images of a prompt, in both orders, and chose the better one. The win rate is the mean over "
    "the generators that a generator was compared with, and a tie counts half. Generators share a letter if they do "
    "not differ clearly (sign-flip test over prompts, Holm). Strengths are Bradley-Terry's on Elo's scale, with mean "
    "0: an advantage of 400 points means winning 10 of 11 comparisons."
)


def make_choices_section(
    found: Mapping[str, ChoiceResults | Refusal], people: Mapping[str, PeopleChoices] = MappingProxyType({})
) -> ReportSection:
    """Return the section about the choices made by each metric, next to people's choices by template.

    For a metric with too few prompts, the section contains only a sentence with the reason and a table of checks.
    """
    tables, sentences = list[ShownTable](), list[Sentence]()
    for metric, results in found.items():
        if isinstance(results, Refusal):
            sentences.append(Sentence(f"{metric} compares no generators:", f"{results.reason}."))
            tables.append(_make_checks_table(results.choices))
        else:
            sentences += write_choice_sentences(results)
            first, *others = make_choice_tables(results)
            tables.append(first)
            for template, chosen in people.items():
                sentences.append(write_people_sentence(metric, template, chosen))
                tables.append(make_people_table(results.overall, template, chosen))
            tables += others
    return ReportSection("choices", "Choices", "Choices between two images", CHOICES_CAPTION, tables, sentences)


def write_choice_sentences(results: ChoiceResults) -> list[Sentence]:
    """Return sentences about a judge's choices: who leads, whether the order matters, and which pairs are left out."""
    sentences = describe_leaders([results.overall])
    board = results.overall
    if len(board.duels) < board.n_possible_pairs:
        compared = f"only {len(board.duels):,} of {board.n_possible_pairs:,} pairs of generators were compared."
        sentences.append(Sentence("There are no letters:", compared))
    if results.no_strength:
        lead, _, rest = results.no_strength.partition(":")
        sentences.append(Sentence(f"{lead}:", rest.strip()) if rest else Sentence("", results.no_strength))
    if results.order_bias is not None:
        sentences.append(write_order_sentence(results.order_bias))
    choices = results.choices
    left_out = choices.n_failed + (choices.n_in_one_order if choices.both_orders else 0)
    if left_out:
        one_order = f"{choices.n_in_one_order} answered in one order only, " if choices.both_orders else ""
        pairs = format_quantity(len(choices.pairs), "pair")
        rest = f"{left_out} of {pairs}: {one_order}{choices.n_failed} without an answer."
        sentences.append(Sentence("Left out:", rest))
    return sentences


def write_people_sentence(metric: str, template: str, chosen: PeopleChoices) -> Sentence:
    """Return a sentence that says how often a judge and people choose the same image."""
    agreement = chosen.agreements[metric]
    lead = f"People ({template}) and {metric}:"
    if isinstance(agreement, str):
        return Sentence(lead, f"{agreement}.")
    interval = _format_percent_interval(agreement.interval)
    certainty = f"95% interval {interval}, {_format_p_text(agreement.p_value)} against a coin toss"
    pairs = format_quantity(agreement.n_pairs, "pair")
    prompts = format_quantity(agreement.n_prompts, "prompt")
    rest = (
        f"both choose the same image in {format_percent(agreement.share)} of {pairs} that people decide, on {prompts} "
        f"({certainty}). Left out: {agreement.n_undecided:,} undecided by people, {agreement.n_unmatched:,} that the "
        "judge did not answer in both orders."
    )
    return Sentence(lead, rest)


def write_order_sentence(bias: OrderBias) -> Sentence:
    """Return a sentence that says whether a judge favours the image that is shown first or second."""
    p_text = _format_p_text(bias.p_value)
    if bias.decided and bias.first_wins in (0, bias.decided):
        place = "first" if bias.first_wins else "second"
        rest = f"in all of {bias.decided:,} answers ({p_text}). Its choices say nothing about the images."
        return Sentence(f"The judge always answers the {place} image:", rest)
    interval = _format_percent_interval(bias.interval)
    share = f"the first image wins {format_percent(bias.share)} of the time (95% interval {interval}, {p_text})"
    agreement = f"Both orders agree on {format_percent(bias.agreement)} of {format_quantity(bias.n_pairs, 'pair')}."
    if bias.p_value >= SIGNIFICANCE:
        return Sentence("The judge does not clearly favour the first or second image:", f"{share}. {agreement}")
    place = "first" if bias.share > 0.5 else "second"
    rest = f"{share}. This favours no generator, because each pair is shown in both orders. {agreement}"
    return Sentence(f"The judge favours the {place} image:", rest)


def _format_p_text(p_value: float) -> str:
    shown = format_p_value(p_value)
    return f"p {shown}" if shown.startswith("<") else f"p = {shown}"


def _format_percent_interval(interval: Interval) -> str:
    return f"{format_percent(interval.low)} to {format_percent(interval.high)}"


def make_choice_tables(results: ChoiceResults) -> list[ShownTable]:
    """Return the tables of a judge's choices: generators, pairs of generators, skills, and checks of the judge."""
    at_skills = [board for skill, board in results.boards.items() if skill != OVERALL]
    return [
        _make_generators_table(results),
        _make_matrix_table(results.overall),
        _make_pairs_table(results.overall),
        *([_make_skills_table(results.overall, at_skills)] if at_skills else []),
        _make_checks_table(results.choices, results),
    ]


def _make_generators_table(results: ChoiceResults) -> ShownTable:
    rows, board = [], results.overall
    for row in board.rows[:MAX_GENERATORS]:
        strength = results.strengths.get(row.generator)
        points = (
            (NO_VALUE_MARK, NO_VALUE_MARK)
            if strength is None
            else (_format_points(strength.value), _format_points_interval(strength.interval))
        )
        rate = (format_number(row.mean), format_interval(row.low, row.high))
        rows.append((row.generator, *rate, row.group or NO_VALUE_MARK, *points, format_count(row.n)))
    names = ("generator", "win rate", "95% interval", "letters", "strength", "95% interval", "prompts")
    return ShownTable(f"Win rates by {board.metric}", "", names, rows)


def make_people_table(judge: Board, template: str, chosen: PeopleChoices) -> ShownTable:
    """Return the win rates of the generators by a judge, next to those by people."""
    results = chosen.results
    by_judge = {row.generator: row for row in judge.rows}
    by_people = {} if isinstance(results, Refusal) else {row.generator: row for row in results.overall.rows}
    rows = []
    for name in [*dict.fromkeys([*by_judge, *by_people])][:MAX_GENERATORS]:
        people = by_people.get(name)
        letters, prompts = ("", 0) if people is None else (people.group, people.n)
        rates = (*_format_rate(by_judge.get(name)), *_format_rate(people))
        rows.append((name, *rates, letters or NO_VALUE_MARK, format_count(prompts)))
    caption = "Letters and prompts are people's. Each win rate is over all pairs that the judge, or people, compared."
    if isinstance(results, Refusal):
        caption = f"People's win rates are missing: {results.reason}."
    names = (f"win rate by {judge.metric}", "95% interval", "win rate by people", "95% interval", "letters", "prompts")
    return ShownTable(f"Win rates by {judge.metric} and by people ({template})", caption, ("generator", *names), rows)


def _format_rate(row: LeaderboardRow | None) -> tuple[str, str]:
    if row is None:
        return NO_VALUE_MARK, NO_VALUE_MARK
    return format_number(row.mean), format_interval(row.low, row.high)


def _format_points(value: float | None) -> str:
    return format_signed(value, 0)


def _format_points_interval(interval: Interval) -> str:
    return format_interval(*interval, show=_format_points)


def _make_matrix_table(board: Board) -> ShownTable:
    generators = list_generator_names(board.list_scored_rows())[:MAX_MATRIX_GENERATORS]
    duels = {(duel.generator_a, duel.generator_b): duel for one in board.duels for duel in (one, one.swap())}

    def format_cell(name: str, other: str) -> str:
        duel = duels.get((name, other))
        return "" if duel is None else f"{format_number(duel.win_rate, 2)}{'' if duel.better is None else ' *'}"

    rows = [(name, *(format_cell(name, other) for other in generators)) for name in generators]
    caption = "How often the row wins against the column. An asterisk: the two differ clearly."
    return ShownTable(f"Row against column by {board.metric}", caption, ("", *generators), rows)


def _make_pairs_table(board: Board) -> ShownTable:
    duels = take_first_rows(sorted(board.duels, key=lambda duel: (duel.p_holm, -abs(duel.effect))), MAX_PAIRS)
    rows = [_format_pair_cells(duel) for duel in duels.rows]
    more = f" {format_quantity(duels.left_out, 'more pair')} are not shown." if duels.left_out else ""
    caption = f"Win rates of the first generator of each pair, clearest first.{more}"
    names = ("pair", "clearly better", "win rate", "95% interval", "p, corrected", "prompts")
    return ShownTable(f"Pairs by {board.metric}", caption, names, rows)


def _format_pair_cells(duel: Duel) -> tuple[str, ...]:
    low, high = (duel.low + 1) / 2, (duel.high + 1) / 2  # of the win rate
    pair = f"{duel.generator_a} against {duel.generator_b}"
    rate = (format_number(duel.win_rate), format_interval(low, high))
    return (pair, duel.better or NO_VALUE_MARK, *rate, format_p_value(duel.p_holm), format_count(duel.n))


def _make_skills_table(overall: Board, at_skills: Sequence[Board]) -> ShownTable:
    shown = take_first_rows(at_skills, MAX_SKILLS)
    by_generator = [{row.generator: row for row in board.rows} for board in shown.rows]
    prompts = [max(row.n for row in board.rows) for board in shown.rows]

    def format_cell(name: str, rows: Any) -> str:
        return f"{format_number(rows[name].mean, 2)} {rows[name].group}".strip()

    names = list_generator_names(overall.list_scored_rows())[:MAX_GENERATORS]
    cells = [(name, *(format_cell(name, rows) for rows in by_generator)) for name in names]
    more = f" {format_quantity(shown.left_out, 'more skill')} are not shown." if shown.left_out else ""
    caption = f"Win rates with letters, which are separate for each skill; number of prompts in parentheses.{more}"
    columns = [f"{board.skill} ({n})" for board, n in zip(shown.rows, prompts, strict=True)]
    return ShownTable(f"Win rates at skills by {overall.metric}", caption, ("generator", *columns), cells)


def _make_checks_table(choices: Choices, results: ChoiceResults | None = None) -> ShownTable:
    both = len(choices.pairs) - choices.n_in_one_order - choices.n_failed
    rows = [
        ("pairs of images", format_count(len(choices.pairs)), ""),
        ("answered in both orders", format_count(both), ""),
        ("answered in one order only", format_count(choices.n_in_one_order), ""),
        ("without an answer", format_count(choices.n_failed), ""),
    ]
    if results is not None and results.order_bias is not None:
        bias = results.order_bias
        comparison = f"{_format_percent_interval(bias.interval)}; p {format_p_value(bias.p_value)}"
        rows.append(("the first image wins", format_percent(bias.share), comparison))
        rows.append(
            ("both orders agree", format_percent(bias.agreement), _format_percent_interval(bias.agreement_interval))
        )
    if results is not None:
        cycles = results.cycles
        by_chance = f"{cycles.by_chance:,.0f} if each choice were a coin toss"
        rows.append(
            ("triples of generators that go in a circle", f"{cycles.circular:,} of {cycles.triples:,}", by_chance)
        )
    return ShownTable(f"Checks of {choices.metric}", "", ("check", "value", "95% interval, or comparison"), rows)
