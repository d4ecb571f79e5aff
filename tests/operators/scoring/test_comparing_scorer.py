"""A judge of two images ranks the images of a prompt in a notebook's own process."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from plumbline.jobs.scorer import open_scorer
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.judges.pairwise import PairwiseConfig
from plumbline.operators.models.families import make_model_config
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from tests.bench_of import SHAPES_FOLDER, read_image_rows, read_prompt_rows
from tests.jobs.test_pairwise_sweep import paint, prefer_brighter
from tests.operators import tiny
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Answer, Server, make_error

N_PROMPTS = 12
BLACK = tiny.encode_image(Image.new("RGB", (8, 8)))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Yield a judge that prefers the brighter of two images."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    server = Server()
    server.script = prefer_brighter
    yield server
    server.close()


def open_judging_scorer(server: Server, **options: Any) -> Scorer:
    service = make_model_config(
        family="openai", checkpoint="judge", endpoint=server.url, key_variable=KEY_VARIABLE, max_retries=0
    )
    return Scorer(ScorerConfig(models={"vlm": service}, metrics={"pairwise": PairwiseConfig()}, **options))


def list_errors(scored: pd.DataFrame) -> dict[int, str]:
    """Return `KIND: MESSAGE` for each image with an error, by the image's position."""
    found = zip(scored["image_id"], scored["error"], strict=True)
    return {int(image_id): f"{error['kind']}: {error['message']}" for image_id, error in found if error}


def test_a_score_is_the_share_of_comparisons_won_within_a_prompt(server: Server) -> None:
    images = [paint(50), paint(200), paint(100), paint(10), paint(20)]
    scored = open_judging_scorer(server).score(images, ["dawn", "dawn", "dawn", "dusk", "dusk"])
    assert list(scored["score"]) == [0.0, 1.0, 0.5, 0.0, 1.0]
    assert list(scored["n_questions"]) == [2, 2, 2, 1, 1]
    assert len(server.bodies) == 3 * 2 + 2 * 1, "n images take n (n - 1) comparisons"


def test_identical_images_tie_without_a_call(server: Server) -> None:
    scored = open_judging_scorer(server).score([paint(50), paint(50), paint(200)], "dawn")
    assert list(scored["score"]) == [0.25, 0.25, 1.0] and len(server.bodies) == 4


def test_black_missing_and_broken_images_cost_only_themselves(server: Server) -> None:
    images = [paint(50), BLACK, paint(200), None, b"no image", [paint(1), paint(2)]]
    scored = open_judging_scorer(server).score(images, "dawn")
    assert list(scored["score"].dropna()) == [0.0, 1.0] and len(server.bodies) == 2
    kinds = {image: error.partition(":")[0] for image, error in list_errors(scored).items()}
    assert kinds == {1: "blank_picture", 3: "missing_image", 4: "corrupt_image", 5: "too_many_images"}


def test_an_error_names_the_image_that_cannot_be_compared(server: Server) -> None:
    errors = list_errors(open_judging_scorer(server).score([paint(50), BLACK], "dawn"))
    assert set(errors) == {0, 1}
    assert all(error.startswith("blank_picture: image 1: it is entirely black") for error in errors.values())


def test_an_image_alone_and_an_image_without_a_prompt_have_no_score(server: Server) -> None:
    scorer = open_judging_scorer(server)
    prompts: list[Any] = ["dawn", " ", " ", 7, 7]
    scored = scorer.score([paint(number) for number in range(1, 6)], prompts)
    kinds = [error.partition(":")[0] for error in list_errors(scored).values()]
    assert kinds == ["no_pair", "empty_prompt", "empty_prompt", "unusable_prompt", "unusable_prompt"]
    assert not server.bodies


def test_a_comparison_that_may_succeed_later_leaves_both_images_without_a_score(server: Server) -> None:
    def fail_once(number: int, body: Mapping[str, Any]) -> Answer:
        return make_error(500) if number == 0 else prefer_brighter(number, body)

    server.script = fail_once
    scored = open_judging_scorer(server).score([paint(50), paint(100), paint(200)], "dawn")
    retryable = [error["retryable"] for error in scored["error"] if error]
    assert retryable == [True, True] and scored["score"].notna().sum() == 1


def test_a_group_that_takes_too_many_comparisons_is_refused(server: Server) -> None:
    scorer = open_judging_scorer(server, max_group=3)
    message = r"expected at most 3 images of a prompt for pairwise, found 4, which take 12 comparisons; pass fewer"
    with pytest.raises(ConfigError, match=message):
        scorer.score([paint(number) for number in range(4)], "dawn")
    scored = scorer.score([paint(1), None, None, None, None], ["dawn", None, None, None, None])
    assert len(list_errors(scored)) == 5 and not server.bodies, "images without a prompt are not compared"


def test_more_pairs_than_are_compared_together_give_the_same_shares(server: Server) -> None:
    scored = open_judging_scorer(server).score([paint(10 * number) for number in range(1, 14)], "dawn")
    assert list(scored["score"]) == pytest.approx([number / 12 for number in range(13)])


def test_selections_of_generators_are_refused() -> None:
    service = make_model_config(family="openai", checkpoint="judge", endpoint="http://127.0.0.1:9/v1")
    metric = PairwiseConfig(pairs="baseline", baseline="atlas")
    with pytest.raises(ConfigError, match=r"metrics\.pairwise\.pairs: expected all, found baseline, which selects"):
        ScorerConfig(models={"vlm": service}, metrics={"pairwise": metric})


def test_the_embedded_judge_ranks_correct_images_above_incorrect_ones() -> None:
    scorer = open_scorer(metrics=["pairwise", "vqascore"], models="shapes")
    texts = {row["prompt_id"]: row["text"] for row in read_prompt_rows(N_PROMPTS)}
    images = [row for generator in ("atlas", "drift", "garnet") for row in read_image_rows(generator, N_PROMPTS)]
    prompts = [texts[row["prompt_id"]] for row in images]
    scored = scorer.score([row["image"] for row in images], prompts)
    correct = pq.read_table(SHAPES_FOLDER / "truth.parquet").to_pandas().set_index("image_id")["correct"]
    pairwise = scored[scored["metric"] == "pairwise"].assign(correct=[correct[row["image_id"]] for row in images])
    mixed = pairwise[pairwise.groupby("prompt")["correct"].transform("nunique") == 2]
    shares = mixed.groupby(["prompt", "correct"])["score"].mean().unstack()
    assert len(shares) > 4 and (shares[True] > shares[False]).mean() > 0.8
    assert list(pairwise.groupby("prompt")["score"].mean()) == pytest.approx([0.5] * N_PROMPTS)
    assert scored["metric"].nunique() == 2 and scored["score"].notna().all()


@pytest.mark.parametrize("groups", [["a"], ["a", "a", "b"], [["a"], ["a"]], []])
def test_groups_that_are_not_one_key_per_image_are_refused(server: Server, groups: Any) -> None:
    scorer = open_judging_scorer(server)
    with pytest.raises(ConfigError, match=r"^groups: expected a text or number for each of 2 images, got \d values"):
        scorer.score_table([paint(50), paint(200)], ["dawn", "dusk"], groups=groups)
    assert not server.bodies


def test_bad_images_and_prompts_cost_only_their_own_rows(server: Server) -> None:
    good, half = [paint(50), paint(200)], "dusk \ud83d"
    images = [*good, None, b"no image", BLACK, *good, *good, paint(7)]
    prompts = ["dawn"] * 5 + [half] * 2 + ["dusk " * 10_000] * 2 + ["alone"]
    scored = open_judging_scorer(server).score(images, prompts)
    assert scored["score"].tolist()[:2] == [0, 1] and scored["score"][2:].isna().all()
    kinds = ["missing_image", "corrupt_image", "blank_picture", *["unusable_prompt"] * 2, *["prompt_too_long"] * 2]
    assert [error["kind"] for error in scored["error"][2:]] == [*kinds, "no_pair"]
    assert scored["prompt"].tolist() == prompts
