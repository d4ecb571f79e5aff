"""In random runs, a prompt that fails for every generator is listed once, and the table shows all other failures."""

import numpy as np
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.report.charts import MAX_LABEL_CHARACTERS, shorten_labels
from tests.operators.report.test_page import gather_scores, make_page

METRICS = ("m", "k")


@pytest.mark.parametrize("seed", range(6))
def test_prompts_that_fail_everywhere_are_one_sentence_and_the_table_has_the_other_rows(seed: int) -> None:
    draw = np.random.default_rng(seed)
    generators = [f"g{number}" for number in range(draw.integers(2, 6))]
    prompts = [f"p{number}" for number in draw.permutation(12)]
    by_any, by_m = {*prompts[: draw.integers(0, 7)]}, {*prompts[8 : 8 + draw.integers(0, 3)]}
    records = [
        {"image_id": f"{generator}{prompt}{number}", "prompt_id": prompt, "generator": generator, "metric": metric,
         "score": None if prompt in by_any or (metric == "m" and prompt in by_m) or draw.random() < 0.2 else 0.5}
        for generator in generators for prompt in prompts for metric in METRICS for number in range(draw.integers(1, 3))
    ]  # fmt: skip
    missing = {
        (metric, prompt): [
            row["score"] is None for row in records if (row["metric"], row["prompt_id"]) == (metric, prompt)
        ]
        for metric in METRICS for prompt in prompts
    }  # fmt: skip
    by_chance = {metric: {prompt for prompt in prompts if all(missing[metric, prompt])} for metric in METRICS}
    everywhere = by_chance["m"] & by_chance["k"]
    draw.shuffle(records)
    page = make_page(gather_scores(rows.table(records, schemas.SCORES), {}, metrics=[*METRICS]))
    said = [str(sentence) for sentence in page.health.unscored]
    counted = {"any metric": everywhere} | {metric: by_chance[metric] - everywhere for metric in METRICS}
    expected = [f"{len(found)} prompt" for found in counted.values() if found]
    assert [sentence.split(" ha")[0].rstrip("s") for sentence in said] == expected
    for by, found in counted.items():
        for sentence in (one for one in said if f" by {by}, whatever" in one):
            n_rows = sum(
                len(missing[metric, prompt]) for metric in METRICS if by in (metric, "any metric") for prompt in found
            )
            named, _, total = sentence.partition(": ")[2].removesuffix(").").rpartition(" (")
            assert int(total.split()[0]) == n_rows
            ids = {*named.replace(" and", ",").split(", ")}
            assert (
                ids == found if len(found) <= 5 else len(ids & found) == 4 and named.endswith(f"{len(found) - 4} more")
            )
    rest = {
        (metric, generator): sum(
            row["score"] is None and row["prompt_id"] not in by_chance[metric]
            for row in records if (row["metric"], row["generator"]) == (metric, generator)
        )
        for metric in METRICS for generator in generators
    }  # fmt: skip
    assert {(gap.metric, gap.generator): gap.n_null for gap in page.health.uneven.rows} == {
        place: count for place, count in rest.items() if count
    }


def test_every_failed_row_of_a_single_generator_is_in_the_table() -> None:
    records = [{"prompt_id": str(prompt), "generator": "a", "metric": "m", "score": 0.5 if prompt else None}
               for prompt in range(4)]  # fmt: skip
    health = make_page(gather_scores(rows.table(records, schemas.SCORES), {}, metrics=["m"])).health
    assert health.unscored == [] and [gap.n_null for gap in health.uneven.rows] == [1]


@pytest.mark.parametrize("seed", range(4))
def test_labels_of_charts_are_short_and_distinct(seed: int) -> None:
    draw = np.random.default_rng(seed)
    shared = "".join(draw.choice([*"abc-_"], 40))
    ends = {"".join(draw.choice([*"ab01"], draw.integers(1, 12))) for _ in range(30)}
    for names in ([*ends], [shared + end for end in ends], [end + shared for end in ends],
                  [shared + end + shared for end in ends], ["\x1b[31ma", "\x07[31ma"]):  # fmt: skip
        labels = shorten_labels(names)
        assert [*labels] == names and len({*labels.values()}) == len(names)
        assert max(map(len, labels.values())) <= MAX_LABEL_CHARACTERS + 1
        assert all(labels[name] == name for name in names if len(name) <= MAX_LABEL_CHARACTERS and name.isprintable())
