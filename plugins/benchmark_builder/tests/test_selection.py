"""Near-duplicates are found despite different spelling, different prompts are kept, and rare skills are favoured."""

import random
from collections import Counter

import pytest

from plumbline.operators.results.prompt_properties import list_properties
from plumbline.plugins.benchmark_builder.prompt_sets import (
    ALL_PROMPTS_GROUP,
    compute_evenness,
    draw_balanced_sample,
    find_near_duplicates,
    make_shingles,
    make_statistics_table,
    summarize_skills,
)

LONG_PROMPT = (
    "an old lighthouse on a cliff above a stormy sea with two gulls and a small red boat far below in the surf at dusk"
)


@pytest.mark.parametrize(
    ("first", "second", "repeats"),
    [
        ("A red cat.", "a red  cat", True),
        ("Two cats", "two cats!", True),
        (LONG_PROMPT, f"{LONG_PROMPT}, please", True),
        ("2 cats.", "3 cats.", False),
        ("A red cube on a table", "A blue cube on a table", False),
        ("A penguin dives while a dolphin swims", "A penguin swims while a dolphin dives", False),
        ("★", "★ ★", False),
    ],
)
def test_near_duplicates_may_differ_in_spelling_but_not_in_requirements(first: str, second: str, repeats: bool) -> None:
    assert find_near_duplicates([first, second], 0.8) == [None, 0 if repeats else None]


def test_near_duplicates_are_the_same_as_in_an_exhaustive_comparison() -> None:
    rng = random.Random(0)
    words = [f"w{number}" for number in range(60)]
    texts = [" ".join(rng.choices(words, k=30)) for _ in range(40)]
    texts += [" ".join([*text.split()[:29], "end"]) for text in texts[:20]]  # 27 of 29 runs in common
    expected: list[int | None] = []
    for place, text in enumerate(texts):
        own = make_shingles(text)
        firsts = [
            other
            for other in range(place)
            if expected[other] is None
            and len(own & make_shingles(texts[other])) / len(own | make_shingles(texts[other])) >= 0.8
        ]
        expected.append(min(firsts, default=None))
    assert find_near_duplicates(texts, 0.8) == expected and sum(one is not None for one in expected) == 20


def test_drawing_balances_skills_and_lengths_and_depends_only_on_ids_and_seed() -> None:
    ids = [f"p{number}" for number in range(1000)]
    skills = [["rare" if number % 20 == 0 else "common"] for number in range(1000)]
    lengths = [300 if number % 10 == 1 else 40 for number in range(1000)]
    places = draw_balanced_sample(ids, skills, lengths, 100, [50, 200], seed=0)
    assert len(places) == 100 == len(set(places))
    counts = Counter(skills[place][0] for place in places)
    assert counts["rare"] > 30 and compute_evenness(list(counts.values())) > compute_evenness([50, 950])
    assert sum(lengths[place] == 300 for place in places) > 20
    order = list(reversed(range(1000)))
    again = draw_balanced_sample(
        [ids[i] for i in order], [skills[i] for i in order], [lengths[i] for i in order], 100, [50, 200], seed=0
    )
    assert sorted(ids[order[place]] for place in again) == sorted(ids[place] for place in places)
    assert draw_balanced_sample(ids, skills, lengths, 100, [50, 200], seed=1) != places


def test_all_prompts_with_skills_are_drawn_if_there_are_few() -> None:
    assert draw_balanced_sample(["a", "b", "c"], [["x"], [], ["x"]], [1, 1, 1], 10, [], seed=0) == [0, 2]


def test_statistics_are_listed_by_skill_next_to_published_statistics() -> None:
    own = summarize_skills(
        ["A cat.", "3 dogs run."], [["att/count", "att/count:additive"], ["att/count"]], list_properties({})
    )
    assert (own[ALL_PROMPTS_GROUP].prompts, own["att/count:additive"].prompts, own[ALL_PROMPTS_GROUP].longest) == (
        2,
        1,
        11,
    )
    table = make_statistics_table(own, {"Gecko2K": summarize_skills(["A dog."], [["rel/action"]], list_properties({}))})
    assert [row[0] for row in table.rows] == [ALL_PROMPTS_GROUP, "att/count", "att/count:additive", "rel/action"]
    assert all(len(row) == len(table.names) for row in table.rows)
    assert table.rows[1][1:3] == ["2", "1.000"] and table.rows[3][1:3] == ["", ""]


def test_a_skill_is_covered_if_more_than_two_percent_of_the_prompts_have_it() -> None:
    """Three of 150 prompts are exactly 2%, which is not enough (VQAScore paper, table 8)."""
    counts = {"counting": 4, "negation": 3, "scene": 90}
    order = random.Random(5).sample(range(150), 150)
    skills = [[name for name, count in counts.items() if place < count] for place in order]
    own = summarize_skills([f"text {place}" for place in order], skills, list_properties({}))
    said = "Covered skills, which more than 2% of the prompts have: here: counting, scene; Other: none."
    assert make_statistics_table(
        own, {"Other": summarize_skills(["A dog."], [[]], list_properties({}))}
    ).caption.endswith(said)


def test_statistics_of_an_empty_benchmark_are_dashes() -> None:
    table = make_statistics_table(summarize_skills([], [], list_properties({})), {})
    assert table.rows == [[ALL_PROMPTS_GROUP, "0", "–", "–", "0", "–", "–"]]
