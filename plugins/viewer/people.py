"""People's choices between the images of a run, next to its judges' choices."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from plumbline.operators.base.sentences import NO_VALUE_MARK, Sentence, ShownTable, format_number, take_first_rows
from plumbline.operators.metaeval.choice_agreement import PeopleChoices
from plumbline.operators.report.choices import make_people_table, write_people_sentence
from plumbline.operators.results.choices import PAIR_COLUMNS, ChoiceResults, Refusal
from plumbline.operators.results.summary import Skills
from plumbline.pipelines.report.choices import read_choice_results, read_people_choices
from plumbline.pipelines.store.store import Store

MAX_SHOWN_PAIRS = 100
"""Maximum number of pairs of images shown for a prompt."""


class PairChoices(NamedTuple):
    """The choices of people and judges between two images."""

    generators: tuple[str, str]
    images: tuple[str, str]
    choices: Sequence[str]
    """Choice of each voter, such as `atlas 0.93`."""


class RunPeople(NamedTuple):
    """People's win rates in a run as in its report, and people's and judges' choices for the pairs that people saw."""

    sentences: Sequence[Sentence]
    tables: Sequence[ShownTable]
    voters: Sequence[str]
    """Names of people's templates, followed by the judges."""
    pairs: pd.DataFrame
    """Pairs of images by prompt_id, with the remaining PAIR_COLUMNS, and the probability that image a is better in a
    column for each voter (the voter's index). It is nan if the voter did not compare the pair.
    """

    def list_choices(self, prompt_id: str) -> list[PairChoices]:
        """Return the choices for each pair of a prompt's images that people compared."""
        if prompt_id not in self.pairs.index:
            return []
        return [
            PairChoices(
                (row["generator_a"], row["generator_b"]),
                (row["image_a"], row["image_b"]),
                [
                    _describe_choice(row["generator_a"], row["generator_b"], row[place])
                    for place in range(len(self.voters))
                ],
            )
            for row in self.pairs.loc[[prompt_id]].to_dict("records")
        ]

    def find_choices(self, prompt_id: str, images: Mapping[str, str | None]) -> list[tuple[str, str]]:
        """Return each voter's choice between two images, given by generator; empty if people did not compare them."""
        for pair in self.list_choices(prompt_id):
            if dict(zip(pair.generators, pair.images, strict=True)) == images:
                return list(zip(self.voters, pair.choices, strict=True))
        return []

    def make_table(self, prompt_id: str) -> ShownTable | None:
        """Return the table of choices between a prompt's images, or None if people compared none of them."""
        shown = take_first_rows(self.list_choices(prompt_id), MAX_SHOWN_PAIRS)
        if not shown.rows:
            return None
        sides = {side for pair in shown.rows for side in zip(pair.generators, pair.images, strict=True)}
        several = len(sides) > len({generator for generator, _ in sides})
        rows = [(_name_pair(pair, with_images=several), *pair.choices) for pair in shown.rows]
        caption = (
            "The better image by people and by the judge, with the mean of their choices: 1.00 if all chose it. A "
            "judge's choice is the mean over both orders."
        )
        more = f" {shown.left_out} more pairs are not shown." if shown.left_out else ""
        return ShownTable("Choices between two images", caption + more, ("pair", *self.voters), rows)


def _name_pair(pair: PairChoices, *, with_images: bool) -> str:
    sides = zip(pair.generators, pair.images, strict=True)
    return " against ".join(f"{name} ({image})" if with_images else name for name, image in sides)


def _describe_choice(generator_a: str, generator_b: str, won: float) -> str:
    if math.isnan(won):
        return NO_VALUE_MARK
    if round(won - 0.5, 9) == 0:
        return "tie"
    return f"{generator_a if won > 0.5 else generator_b} {format_number(max(won, 1 - won), 2)}"


def read_run_people(store: Store, run_id: str) -> RunPeople | None:
    """Return people's choices in a run, next to its judges' choices; None if only people or only judges compared."""
    people = read_people_choices(store, run_id)
    if not people:
        return None
    judges = read_choice_results(store, run_id, Skills(()))
    beside = [(metric, results, template) for metric, results in judges.items() for template in people]
    return RunPeople(
        sentences=[write_people_sentence(metric, template, people[template]) for metric, _, template in beside],
        tables=[
            make_people_table(results.overall, template, people[template])
            for _, results, template in beside
            if isinstance(results, ChoiceResults)
        ],
        voters=[*(f"people ({template})" for template in people), *judges],
        pairs=_join_pairs(people, judges),
    )


def _join_pairs(people: Mapping[str, PeopleChoices], judges: Mapping[str, ChoiceResults | Refusal]) -> pd.DataFrame:
    by_people = [chosen.results.choices.pairs for chosen in people.values()]
    joined = pd.concat([pairs[PAIR_COLUMNS] for pairs in by_people]).drop_duplicates()
    for place, pairs in enumerate([*by_people, *(results.choices.pairs for results in judges.values())]):
        own = pairs[[*PAIR_COLUMNS, "won"]].rename(columns={"won": place})
        joined = joined.merge(own, on=PAIR_COLUMNS, how="left")
    return joined.set_index("prompt_id").sort_index()
