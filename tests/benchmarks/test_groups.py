"""A group of images for one prompt, as in GRPO, costs less than images for different prompts."""

import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import islice

import pytest

from plumbline.jobs.scorer import open_scorer
from tests.benchmarks.size import choose_size, expect
from tests.serving import select_first_pairs

N_ROUNDS = choose_size(3, 1)
GROUP_SIZES = choose_size((8, 16), (2,))


@pytest.fixture
def fresh_prompts() -> Iterator[str]:
    """Yield new prompts, so that caches do not help."""
    return iter([pair.prompt for pair in select_first_pairs(128)])


@pytest.mark.parametrize(("metric", "share"), [("clipscore", 1.1), ("vqascore", 1.1), ("tifa", 0.8), ("gecko", 0.8)])
def test_a_group_shares_the_work_that_depends_on_its_prompt(
    metric: str, share: float, fresh_prompts: Iterator[str]
) -> None:
    scorer = open_scorer(f"metric=[{metric}]", "models=shapes")

    def time_scoring(images: Sequence[bytes], prompts: Sequence[str]) -> float:
        begun = time.perf_counter()
        table = scorer.score_table(images, prompts)
        assert table.column("error").null_count == len(images)
        return time.perf_counter() - begun

    for size in GROUP_SIZES:
        images = [pair.image for pair in select_first_pairs(size)]
        time_scoring(images, list(islice(fresh_prompts, size)))
        group, different = [], []
        for _ in range(N_ROUNDS):
            group.append(time_scoring(images, [next(fresh_prompts)] * size))
            different.append(time_scoring(images, list(islice(fresh_prompts, size))))
        ours, theirs = (statistics.median(spent) * 1000 for spent in (group, different))
        print(f"\n{metric}: {size} images take {ours:.0f} ms with one prompt and {theirs:.0f} ms with {size} prompts")
        expect(ours < share * theirs)
