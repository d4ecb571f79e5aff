"""No sentence in a report contradicts the table of pairs: all sentences about random runs are parsed and checked.

A sentence that cannot be parsed fails the test: every new kind of sentence needs a parser here.
"""

import re
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plumbline.operators.base import rows, schemas
from plumbline.operators.report.findings import draw_conclusions, select_overall_boards
from plumbline.operators.results.comparison import (
    Board,
    Duel,
    LeaderboardRow,
    build_boards,
    rank_generators,
)
from plumbline.operators.results.summary import OVERALL
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from tests.operators.tallied import compare_pairs, summarise

SKILLS = ("text", "colour")


class ScoreParameters(NamedTuple):
    """Parameters of random scores that are unbalanced, skewed and partly missing, with several images per prompt."""

    seed: int
    generators: int
    metrics: int
    prompts: int
    images: int
    missing: float
    """Maximum fraction of the prompts for which some generators have no images."""
    spread: float
    """Standard deviation of the generators' mean scores; a score varies around its mean with standard deviation 1."""
    outliers: float
    """Fraction of the scores that are far below the others, so that means and ranks can disagree."""

    def draw_scores(self) -> pa.Table:
        random = np.random.default_rng(self.seed)
        levels = random.normal(0, self.spread, (self.metrics, self.generators))
        lacking = random.uniform(0, self.missing, self.generators) * random.integers(0, 2, self.generators)
        failing = np.where(random.random((self.metrics, self.generators)) < 0.1, 1.0, 0.05)

        def score(metric: int, who: int) -> float | None:
            if random.random() < failing[metric, who]:
                return None
            outlier = random.random() < self.outliers and levels[metric, who] > 0
            return float(levels[metric, who] + random.normal() - 20 * outlier)

        return rows.table(
            [
                {"generator": f"g{who}", "metric": f"m{metric}", "prompt_id": f"p{prompt}", "score": score(metric, who)}
                for who in range(self.generators)
                for prompt in range(self.prompts)
                if random.random() >= lacking[who]
                for _ in range(random.integers(1, self.images + 1))
                for metric in range(self.metrics)
            ],
            schemas.SCORES,
        )

    def assign_skills(self) -> dict[str, list[str]]:
        return {f"p{prompt}": [SKILLS[prompt % 2]] for prompt in range(self.prompts)}


CASES = st.builds(
    ScoreParameters,
    seed=st.integers(0, 2**32 - 1),
    generators=st.sampled_from([5, 4, 3, 2, 6]),
    metrics=st.sampled_from([3, 2, 1]),
    prompts=st.sampled_from([40, 20, 8, 1]),
    images=st.sampled_from([1, 3]),
    missing=st.sampled_from([0.0, 0.5, 0.98]),
    spread=st.sampled_from([1.0, 0.3, 2.0, 0.0]),
    outliers=st.sampled_from([0.1, 0.0]),
)
HYPOTHESIS_SETTINGS = settings(
    max_examples=20, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


class PairComparisons:
    """Comparisons of all pairs of generators, which define the meaning of "best", "leads" and "tied"."""

    def __init__(self, rows: list[LeaderboardRow], duels: list[Duel]) -> None:
        self.rows, self.duels = rows, duels
        self.won = {(one.metric, one.skill, one.better, one.worse) for one in duels if one.better is not None}
        self.metrics = list(dict.fromkeys(one.metric for one in rows))

    def list_scored(self, metric: str) -> set[str]:
        return {one.generator for one in self.rows if (one.metric, one.skill) == (metric, OVERALL) and one.n}

    def beats(self, one: str, other: str, metric: str, skill: str = OVERALL) -> bool:
        return (metric, skill, one, other) in self.won

    def are_tied(self, one: str, other: str, metric: str) -> bool:
        both = {one, other} <= self.list_scored(metric) and one != other
        return both and not self.beats(one, other, metric) and not self.beats(other, one, metric)

    def is_best(self, name: str, metric: str) -> bool:
        others = self.list_scored(metric) - {name}
        return (
            name in self.list_scored(metric)
            and bool(others)
            and all(self.beats(name, other, metric) for other in others)
        )

    def list_unbeaten_generators(self, metric: str) -> set[str]:
        scored = self.list_scored(metric)
        return {name for name in scored if not any(self.beats(one, name, metric) for one in scored)}

    def leads(self, name: str, metric: str) -> bool:
        wins = Counter(str(one[2]) for one in self.won if one[:2] == (metric, OVERALL))
        unbeaten = self.list_unbeaten_generators(metric)
        return name in unbeaten and wins[name] == max(wins[one] for one in unbeaten) > 0

    def leads_alone(self, name: str, metric: str) -> bool:
        return [one for one in self.list_unbeaten_generators(metric) if self.leads(one, metric)] == [name]

    def count_metrics(self, holds: Callable[[str], bool]) -> int:
        return sum(holds(metric) for metric in self.metrics)

    def is_behind(self, worse: str, better: str, skill: str) -> bool:
        """Return True if most metrics that compare the two on a skill prefer `better`, and none prefers `worse`."""
        mine = [
            one for one in self.duels if one.skill == skill and {one.generator_a, one.generator_b} == {worse, better}
        ]
        ahead = sum(one.better == better for one in mine)
        return ahead > len(mine) / 2 and not any(one.better == worse for one in mine)

    def list_duels(self, one: str, other: str) -> list[Duel]:
        """Return the comparisons of two generators on single skills, without the overall comparisons."""
        return [
            duel
            for duel in self.duels
            if duel.skill != OVERALL and {duel.generator_a, duel.generator_b} == {one, other}
        ]

    def can_tell(self, duel: Duel) -> bool:
        """Return True if a generator that won on every prompt of this comparison would be significantly better."""
        family = sum((one.metric, one.skill) == (duel.metric, duel.skill) for one in self.duels)
        return family * 2 ** (1 - duel.n) < SIGNIFICANCE

    def list_skills(self) -> list[str]:
        return list(dict.fromkeys(one.skill for one in self.duels if one.skill != OVERALL))


def parse_names(text: str) -> list[str]:
    """Return the names in a list such as `a, b and 3 more`, without the number of further names."""
    return [name for name in re.split(r", | and ", text) if not name.endswith(" more")]


def parse_counts(text: str, pairs: PairComparisons) -> dict[str, int]:
    """Parse `a by 2 and b by 1, of 3 metrics`, or only names if there is one metric; return the counts by name."""
    if len(pairs.metrics) == 1:
        return dict.fromkeys(parse_names(text), 1)
    counted = text.removesuffix(f", of {len(pairs.metrics)} metrics")
    assert counted != text
    return {name: int(count) for name, count in (one.split(" by ") for one in parse_names(counted))}


def check_rivals(name: str, rest: str, pairs: PairComparisons) -> None:
    tied, better = re.search(r"No clear difference from it: ([^.]*)", rest), re.search(r"Clearly better: ([^.]*)", rest)
    for other, count in parse_counts(tied[1], pairs).items() if tied else ():
        assert count == pairs.count_metrics(lambda metric, other=other: pairs.are_tied(name, other, metric))  # type: ignore[misc]
    for other, count in parse_counts(better[1], pairs).items() if better else ():
        assert count == pairs.count_metrics(lambda metric, other=other: pairs.beats(other, name, metric))  # type: ignore[misc]
    unscored = pairs.count_metrics(lambda metric: name not in pairs.list_scored(metric))
    assert ("did not score it" in rest) == (unscored > 0)


def check_headline(sentence: str, pairs: PairComparisons) -> bool:
    best = lambda name: pairs.count_metrics(lambda metric: pairs.is_best(name, metric))  # noqa: E731
    leads = lambda name: pairs.count_metrics(lambda metric: pairs.leads(name, metric))  # noqa: E731
    scored = set[str]().union(*(pairs.list_scored(metric) for metric in pairs.metrics))
    overall = [one for one in pairs.duels if one.skill == OVERALL]
    if sentence.startswith("Nothing could be scored."):
        assert not scored
    elif found := re.fullmatch(r"One generator was scored: (\w+)\. .*", sentence):
        assert scored == {found[1]}
    elif sentence.startswith("No two generators can be compared."):
        assert not overall
    elif sentence.startswith("No generator is clearly better than another by "):
        assert not any(one.better for one in overall) and any(map(pairs.can_tell, overall))
    elif sentence.startswith("Too few prompts to compare generators by "):
        assert overall and not any(map(pairs.can_tell, overall))
    elif found := re.fullmatch(r"The metrics disagree on the best generator: (.*)\.", sentence):
        counts = parse_counts(found[1], pairs)
        assert len(counts) > 1 and all(best(name) == count for name, count in counts.items())
    elif found := re.fullmatch(r"(\w+) is the best generator(?: — by (?:both|all \d) metrics)?\.", sentence):
        assert best(found[1]) == len(pairs.metrics)
    elif found := re.fullmatch(r"(\w+) is the best generator by (\d) of \d metrics\.(.*)", sentence):
        assert best(found[1]) == int(found[2]) < len(pairs.metrics)
        check_rivals(found[1], found[3], pairs)
    elif found := re.fullmatch(
        r"(\w+) (leads|shares the lead|leads or shares the lead) by (\w+)(?: of \d)?(?: metrics| \d metrics)?\. "
        r"It is not clearly the best\.(.*)",
        sentence,
    ):
        assert leads(found[1]) == (int(found[3]) if found[3].isdigit() else len(pairs.metrics))
        alone = pairs.count_metrics(lambda metric: pairs.leads_alone(found[1], metric))
        assert found[2] == {0: "shares the lead", leads(found[1]): "leads"}.get(alone, "leads or shares the lead")
        check_rivals(found[1], found[4], pairs)
    elif found := re.fullmatch(r"No clear winner: of (\d+) metrics, (.*)\.", sentence):
        assert int(found[1]) == len(pairs.metrics) and not any(best(name) for name in scored)
        for name, how, count in re.findall(
            r"(\w+) (leads or shares the lead|leads|shares the lead) on (\d+)", found[2]
        ):
            alone = pairs.count_metrics(lambda metric, name=name: pairs.leads_alone(name, metric))  # type: ignore[misc]
            assert leads(name) == int(count)
            assert how == {0: "shares the lead", leads(name): "leads"}.get(alone, "leads or shares the lead")
    elif sentence.startswith("No clear winner: each generator that beats another is itself beaten"):
        assert not any(map(leads, scored))
    else:
        return False
    return True


def check_board(sentence: str, pairs: PairComparisons) -> bool:
    """Assert that a sentence about the leaders by some metrics is true; return False if its form is unknown."""
    plain = re.sub(r" \([^)]*\)", "", sentence)
    by = r"(\w+(?:, \w+)*(?: and \w+)?)"
    if found := re.fullmatch(rf"{by} scored nothing\.", plain):
        assert not any(map(pairs.list_scored, parse_names(found[1])))
    elif found := re.match(rf"(?:Only )?(\w+) (?:has .*|was scored) by {by}\.", plain):
        assert all(pairs.list_scored(metric) == {found[1]} for metric in parse_names(found[2]))
    elif found := re.match(rf"{by} compares? no two generators:", plain):
        assert not any(one.metric in parse_names(found[1]) for one in pairs.duels)
    elif found := re.match(rf"No generator leads by {by}: no two differ clearly\.", plain):
        assert not any(one[0] in parse_names(found[1]) and one[1] == OVERALL for one in pairs.won)
        assert any(pairs.can_tell(one) for one in pairs.duels if one.metric in parse_names(found[1]))
    elif found := re.match(rf"Too few prompts to say who leads by {by}: even if all of (\d+) prompts? agreed", plain):
        mine = [one for one in pairs.duels if one.skill == OVERALL and one.metric in parse_names(found[1])]
        assert mine and not any(map(pairs.can_tell, mine))
        of_metric = [[one.n for one in mine if one.metric == metric] for metric in {one.metric for one in mine}]
        easiest = min(map(len, of_metric))
        assert int(found[2]) == max(max(counts) for counts in of_metric if len(counts) == easiest)
    elif found := re.match(rf"No generator leads by {by}: each generator that beats another is itself beaten", plain):
        assert not any(
            pairs.leads(name, metric) for metric in parse_names(found[1]) for name in pairs.list_scored(metric)
        )
    elif found := re.match(rf"(\w+) is best by {by}\.", plain):
        assert all(pairs.is_best(found[1], metric) for metric in parse_names(found[2]))
        check_followers(found[1], parse_names(found[2]), plain, pairs)
    elif found := re.match(rf"(.+) share the lead by {by} and cannot be told apart\.", plain):
        close = re.search(r"\. No clear difference from ([^.]+)\.", plain)
        for metric in parse_names(found[2]):
            first = parse_names(found[1])
            assert all(pairs.leads(name, metric) for name in first)
            others = [*first, *parse_names(close[1] if close else found[1])]
            assert all(pairs.are_tied(a, b, metric) for a in first for b in others if a != b)
    elif found := re.match(rf"(\w+) leads by {by}; no clear difference from (.*?)\.", plain):
        assert pairs.leads_alone(found[1], found[2])
        assert all(pairs.are_tied(found[1], name, found[2]) for name in parse_names(found[3]))
    elif found := re.fullmatch(rf"(\w+) leads by {by}\. No clear difference from it: (.*)\.", plain):
        check_ties(found[1], parse_names(found[2]), found[3], pairs)
    else:
        return False
    if noted := re.search(r"Higher mean, but clearly worse than another prompt by prompt: (.*?)\.", plain):
        metric = str(re.search(r" by (\w+)", plain)[1])  # type: ignore[index]
        assert not pairs.list_unbeaten_generators(metric) & set(parse_names(noted[1]))
    return True


def check_followers(best: str, metrics: list[str], sentence: str, pairs: PairComparisons) -> None:
    """Check that the generators that a sentence places behind `best` are tied, and that only `best` beats them."""
    tied = re.search(r"\. ([^.]+) are tied behind it\.", sentence)
    followed = re.search(r"\. (\w+) follows", sentence)
    behind = parse_names(tied[1]) if tied else [followed[1]] if followed else []
    for metric in metrics:
        assert all(pairs.are_tied(a, b, metric) for a in behind for b in behind if a != b)
        others = pairs.list_scored(metric) - {best}
        assert not any(pairs.beats(other, name, metric) for name in behind for other in others)


def check_ties(leader: str, metrics: list[str], sentence: str, pairs: PairComparisons) -> None:
    """Check a list such as `a by both; b by m`: each generator must tie with the leader on exactly its metrics.

    Unless the list is abbreviated (`; and `), it must name every generator that ties.
    """
    assert all(pairs.leads_alone(leader, metric) for metric in metrics)
    parts = dict(part.split(" by ") for part in sentence.split("; ") if " by " in part)
    for name, by in parts.items():
        named = set(metrics) if by in ("both", "all of these") else set(parse_names(by))
        assert named == {metric for metric in metrics if pairs.are_tied(leader, name, metric)}
    if "; and " not in sentence:
        every = {
            name for metric in metrics for name in pairs.list_scored(metric) if pairs.are_tied(leader, name, metric)
        }
        assert every == set(parts)


def check_skills(sentence: str, pairs: PairComparisons) -> bool:
    most = " by most metrics" if len(pairs.metrics) > 1 else "(?: by most metrics)?"
    if found := re.fullmatch(rf"No clear difference from (\w+) at any skill(?:{most})?: (.*)\.", sentence):
        assert not any(
            pairs.is_behind(*pair, skill)
            for name in parse_names(found[2])
            for pair in ((name, found[1]), (found[1], name))
            for skill in pairs.list_skills()
        )  # fmt: skip
        assert all(
            any(
                pairs.can_tell(one) for one in pairs.duels if one.skill != OVERALL
                and (one.metric, one.skill) in {(two.metric, two.skill) for two in pairs.list_duels(name, found[1])}
            )
            for name in parse_names(found[2])
        )  # fmt: skip
    elif found := re.fullmatch(r"Too few prompts at every skill to compare with (\w+): (.*)\.", sentence):
        assert all(pairs.list_duels(name, found[1]) for name in parse_names(found[2]))
        assert not any(
            pairs.can_tell(one) for name in parse_names(found[2]) for one in pairs.list_duels(name, found[1])
        )
    elif found := re.fullmatch(r"Not compared with (\w+) at any skill: (.*)\.", sentence):
        compared = {frozenset((one.generator_a, one.generator_b)) for one in pairs.duels if one.skill != OVERALL}
        assert not any(frozenset((name, found[1])) in compared for name in parse_names(found[2]))
    elif found := re.fullmatch(
        r"(\w+) is clearly (behind|better than) (\w+)(?: by most metrics)? at (.*?)(?:, most of all.*)?\.", sentence
    ):
        named = pairs.list_skills() if found[4] in ("both skills",) else parse_names(found[4])
        pair = (found[1], found[3]) if found[2] == "behind" else (found[3], found[1])
        assert {skill for skill in pairs.list_skills() if pairs.is_behind(*pair, skill)} == set(named)
    else:
        return False
    return True


def check_agreement(sentence: str, pairs: PairComparisons) -> bool:
    better: dict[frozenset[str], list[str]] = {}
    for _, skill, one, other in sorted(pairs.won, key=str):
        if skill == OVERALL:
            better.setdefault(frozenset((str(one), str(other))), []).append(str(one))
    common = [its for its in better.values() if len(its) > 1]
    if sentence == "No difference is clear by more than one metric.":
        assert not common
    elif found := re.match(r"The metrics agree on (\d+) pairs? of generators:", sentence):
        assert len(common) == int(found[1]) > 0 and all(len(set(its)) == 1 for its in common)
    elif found := re.fullmatch(
        r"The metrics disagree on (\w+) and (\w+): \1 is clearly better by (.*), \2 is clearly better by (.*)\.",
        sentence,
    ):
        assert all(pairs.beats(found[1], found[2], metric) for metric in parse_names(found[3]))
        assert all(pairs.beats(found[2], found[1], metric) for metric in parse_names(found[4]))
    elif found := re.match(r"(\w+) is clearly better than (\w+) by (\w+), but not by the mean", sentence):
        assert pairs.beats(found[1], found[2], found[3])
    elif not re.match(r"(The metrics|Signed ranks and means) disagree on \d+ more pairs? of generators\.", sentence):
        return False
    return True


def check_certainty(sentence: str, pairs: PairComparisons) -> bool:
    overall = [one for one in pairs.duels if one.skill == OVERALL]
    found = re.match(r"How sure: (\d+) of (\d+) comparisons? .* on (?:(\d+) to )?(\d+) prompts? ", sentence)
    if found is None:
        return sentence == "" and not overall
    assert (int(found[1]), int(found[2])) == (sum(one.better is not None for one in overall), len(overall))
    assert int(found[4]) == max(one.n for one in overall) and int(found[3] or found[4]) == min(one.n for one in overall)
    return True


def check_letters(board: Board) -> None:
    """Check that two generators share a letter unless they differ; unscored generators must have no letter."""
    letters = {one.generator: set(re.findall(r"[a-zA-Z]\d*", one.group)) for one in board.rows}
    apart = {frozenset((one.better, one.worse)) for one in board.duels if one.better is not None}
    for a, b in combinations([one.generator for one in board.list_scored_rows()], 2):
        assert bool(letters[a] & letters[b]) == (frozenset((a, b)) not in apart)
    for one in board.rows:
        assert (one.rank is None) == (one.group == "") == (one.n == 0)


@HYPOTHESIS_SETTINGS
@given(CASES)
def test_no_sentence_and_no_letter_contradicts_the_table_of_pairs(case: ScoreParameters) -> None:
    scores, skills = case.draw_scores(), case.assign_skills()
    compared = compare_pairs(scores, skills)
    ranked = rank_generators(summarise(scores, skills), compared)
    pairs, found = PairComparisons(ranked, compared), build_boards(ranked, compared)
    decision = draw_conclusions(found, select_overall_boards(found))
    for sentences, read in (
        ([decision.headline], check_headline),
        (decision.by_metric, check_board),
        (decision.by_skill, check_skills),
        (decision.agreement, check_agreement),
        ([decision.certainty], check_certainty),
    ):
        for sentence in sentences:
            assert read(str(sentence), pairs), f"no reader for: {sentence}"
    for board in found.values():
        check_letters(board)
    for duel in compared:
        better = duel.generator_a if duel.effect > 0 else duel.generator_b
        assert duel.better == (better if duel.p_holm < SIGNIFICANCE else None)


def check_baseline(sentence: str, board: Board) -> bool:
    """Check that a sentence lists exactly the generators that are better than, worse than or tied with the baseline."""
    plain = re.sub(r" \([^)]*\)", "", sentence)
    if plain.startswith(
        (f"{board.metric} compares nothing with", f"Compared with {board.baseline} by {board.metric}: nothing")
    ):
        return not board.duels
    if plain.startswith(f"Compared with {board.baseline} by {board.metric}: even if all"):
        return bool(board.duels) and not board.can_tell
    parts = dict(re.findall(r"(clearly better|clearly worse|no clear difference): ([^;.]*)", plain))
    others = {its.generator_a if its.generator_b == board.baseline else its.generator_b: its for its in board.duels}
    outcomes = {name: "tied" if its.better is None else its.better for name, its in others.items()}
    groups = {
        "clearly better": lambda name: outcomes[name] == name,
        "clearly worse": lambda name: outcomes[name] == board.baseline,
    }
    assert all(
        {*parse_names(parts[verdict])} == {*filter(groups[verdict], others)} for verdict in groups if verdict in parts
    )
    assert {verdict for verdict in groups if any(map(groups[verdict], others))} == {*parts} - {"no clear difference"}
    return {*parse_names(parts.get("no clear difference", ""))} - {""} == {
        name for name in others if outcomes[name] == "tied"
    }


@settings(HYPOTHESIS_SETTINGS, max_examples=25)
@given(CASES)
def test_no_sentence_about_a_baseline_compares_two_other_generators(case: ScoreParameters) -> None:
    scores, skills = case.draw_scores(), case.assign_skills()
    compared = compare_pairs(scores, skills, baseline="g1")
    found = build_boards(rank_generators(summarise(scores, skills), compared, baseline="g1"), compared, "g1")
    overall = select_overall_boards(found)
    decision = draw_conclusions(found, overall)
    for sentence, board in zip(decision.by_metric, overall.values(), strict=True):
        assert check_baseline(str(sentence), board), sentence
    assert all("g1" in (duel.generator_a, duel.generator_b) for duel in compared)
    assert decision.headline.lead and check_certainty(str(decision.certainty), PairComparisons([], compared))
    for sentence in [*decision.by_skill, decision.headline]:
        assert "lead" not in str(sentence) and "best" not in str(sentence)
