"""Groups of images for one prompt, as in GRPO: they share work, and ranking takes little more than a judge's calls."""

import io
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
from PIL import Image

from plumbline.jobs.scorer import open_scorer
from plumbline.operators.metrics.judges.pairwise import PairwiseConfig
from plumbline.operators.models.calls import Question
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.resolution import resolve_model
from tests.benchmarks.size import choose_size, expect
from tests.serving import ROOT, Pair, request_scores, run_service, select_first_pairs

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


Rank = Callable[[Sequence[bytes], str], list[float]]
"""Function that returns each image's share of comparisons won, given the images of a prompt and the prompt."""


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use a single thread, like a replica of the service."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def open_bare_judge() -> Rank:
    """Return a function that calls the embedded judge about every two images, in both orders, without Plumbline."""
    config = make_model_config(family="clip_flant5", checkpoint=str(ROOT / "assets/pair-judge-shapes"))
    model: Any = load(resolve_model(config, on_gpu=False), "likelihood")
    metric = PairwiseConfig(answers="likelihood")

    def rank(images: Sequence[bytes], prompt: str) -> list[float]:
        pictures = [Image.open(io.BytesIO(image)).convert("RGB") for image in images]
        orders = list(permutations(range(len(images)), 2))
        features = model.encode([model.preprocess_several([pictures[first], pictures[second]])
                                 for first, second in orders])  # fmt: skip
        asked = [Question(place, metric.question(prompt), metric.letters) for place in range(len(orders))]
        won: list[list[float]] = [[] for _ in images]
        for (first, second), logprobs in zip(orders, model.likelihood(features, asked), strict=True):
            p_first = metric.combine_logprobs(logprobs).p_first
            won[first].append(p_first)
            won[second].append(1 - p_first)
        return [statistics.fmean(shares) for shares in won]

    return rank


def open_ranking_scorer() -> Rank:
    scorer = open_scorer("metric=[pairwise]", "models=shapes")
    return lambda images, prompt: scorer.score_table(images, [prompt] * len(images)).column("score").to_pylist()


def compare_speed(ours: tuple[str, Rank], theirs: tuple[str, Rank], fresh_prompts: Iterator[str]) -> list[float]:
    """Rank groups in turn by both functions, and print their times; return the ratio of the times for each size.

    The shares must be equal.
    """
    ratios = []
    for size in GROUP_SIZES:
        images = [pair.image for pair in select_first_pairs(size)]
        spent: dict[str, list[float]] = {name: [] for name, _ in (ours, theirs)}
        for number in range(N_ROUNDS + 1):
            prompt, shares = next(fresh_prompts), []
            for name, rank in (ours, theirs):
                begun = time.perf_counter()
                shares.append(rank(images, prompt))
                if number:  # the first round is a warm-up
                    spent[name].append(time.perf_counter() - begun)
            assert shares[0] == pytest.approx(shares[1], abs=1e-3)
        seconds = {name: statistics.median(times) for name, times in spent.items()}
        ratios.append(seconds[ours[0]] / seconds[theirs[0]])
        shown = " and ".join(f"{name} {1000 * median:.0f} ms" for name, median in seconds.items())
        calls = size * (size - 1)
        print(f"\npairwise: {size} images take {calls} calls of the judge, {shown}: {ratios[-1]:.2f} times as long")
    return ratios


def test_ranking_a_group_takes_little_longer_than_the_bare_judge(
    fresh_prompts: Iterator[str], one_thread: None
) -> None:
    ours, bare = ("the scorer", open_ranking_scorer()), ("the bare judge", open_bare_judge())
    expect(max(compare_speed(ours, bare, fresh_prompts)) < 1.4)


@pytest.mark.slow  # a service takes as long to start in any size
def test_the_service_ranks_a_group_about_as_fast_as_the_scorer(
    fresh_prompts: Iterator[str], one_thread: None, tmp_path: Path
) -> None:
    with run_service(tmp_path / "log", "metric=[pairwise]", "threads=1") as service, requests.Session() as session:

        def rank(images: Sequence[bytes], prompt: str) -> list[float]:
            found = request_scores(session, service.url, [Pair(image, prompt) for image in images])
            return [scores["pairwise"] or 0.0 for scores in found]

        ours = ("the service", rank)
        expect(max(compare_speed(ours, ("the scorer", open_ranking_scorer()), fresh_prompts)) < 1.5)
