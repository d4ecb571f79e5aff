"""The sentinel's baseline contains a generator's scores from a stored run, for exactly the metrics that are served."""

import json
from pathlib import Path

import numpy as np
import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.plugins.reward_server.run_service import find_nodes, find_served_metrics, make_sentinel
from plumbline.plugins.reward_server.sentinel import Sentinel
from plumbline.plugins.reward_server.wires.wire import Served
from tests.bench_of import write_benchmark
from tests.commands import load_job_config, run_for_output
from tests.pipelines.rewards.conftest import ScoredBenchmark, run_benchmark

N_PROMPTS = 21
METRIC_OPTIONS = ["metric=[edge_density,saturation]", "models=shapes"]


@pytest.fixture(scope="module")
def scored_benchmark(tmp_path_factory: pytest.TempPathFactory) -> ScoredBenchmark:
    folder = write_benchmark(tmp_path_factory.mktemp("baseline") / "bench", ("atlas", "flint"), N_PROMPTS)
    return run_benchmark(folder, folder.parent / "store", METRIC_OPTIONS[0])


def make_configured_sentinel(store: Path, *words: str) -> Sentinel | None:
    given = ["reward=edge_density", "sentinel=[saturation]", f"store={store}", *words]
    config = load_job_config("serve", *METRIC_OPTIONS, *given)
    return make_sentinel(config, find_served_metrics(config, find_nodes(config)))


def test_the_baseline_contains_one_generators_scores_from_the_run(scored_benchmark: ScoredBenchmark) -> None:
    watching = make_configured_sentinel(scored_benchmark.store, "baseline=latest", "baseline_generator=flint")
    assert watching is not None and watching.baseline is not None
    rows = scored_benchmark.scores[scored_benchmark.scores.generator == "flint"].pivot(
        index="prompt_id", columns="metric", values="score"
    )
    assert len(watching.baseline) == N_PROMPTS
    assert np.array_equal(watching.baseline, rows[["edge_density", "saturation"]].to_numpy())


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["baseline=yesterday"], "baseline=yesterday: no such run in"),
        (["baseline=latest"], "baseline_generator: expected a generator of run .* \\(atlas, flint\\), got none"),
        (["baseline=latest", "baseline_generator=ember"], "baseline_generator: .* got ember"),
        (
            ["baseline=latest", "baseline_generator=atlas", "metrics.edge_density.statistic=entropy"],
            "baseline: edge_density is not the same metric in run .* and here",
        ),
        (
            ["baseline=latest", "baseline_generator=atlas", "metric=[edge_density,entropy]", "sentinel=[entropy]"],
            "baseline: run .* has no scores for entropy; add these metrics to it with plumbline sweep",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_unusable_baseline_is_refused_in_one_line(
    words: list[str], complaint: str, scored_benchmark: ScoredBenchmark
) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        make_configured_sentinel(scored_benchmark.store, *words)
    assert "\n" not in str(refused.value)


def test_a_combined_reward_uses_units_from_the_run(tmp_path: Path) -> None:
    """Units come from one generator or from all; the reward's digest covers the parts, weights and units."""
    folder = write_benchmark(tmp_path / "bench", ("atlas", "flint"), 4)
    ran = run_benchmark(folder, tmp_path / "store", CLIP_METRICS_OPTION).scores.query("metric == 'clipscore'")
    digests = set()
    for generator in ("atlas", "flint", "null"):
        served = make_served_with_reward(tmp_path / "store", f"baseline_generator={generator}")
        assert served.combination is not None
        scores = ran[ran.generator == generator].score if generator != "null" else ran.score
        assert served.combination.scales["clipscore"] == pytest.approx((scores.mean(), scores.std(ddof=0)))
        assert served.reward == "reward" and list(served.metrics) == ["clipscore", "vqascore", "reward"]
        digests.add(served.metrics["reward"])
    options = [f"store={tmp_path}/store", "format=rewards", write_reward(), f"output={tmp_path}/out"]
    run_for_output("rewards", *options)
    own = json.loads((tmp_path / "out" / "manifest.json").read_text())["scorer"]["reward"]["scales"]
    run_for_output("rewards", *options, "baseline=latest", f"output={tmp_path}/other")
    other = json.loads((tmp_path / "other" / "manifest.json").read_text())["scorer"]["reward"]["scales"]
    assert served.combination.describe()["scales"] == own == other, (
        "the server and the export use exactly the same scales"
    )
    digests.add(make_served_with_reward(tmp_path / "store", weight="3").metrics["reward"])
    assert len(digests) == 4
    with pytest.raises(ConfigError, match=r"expected two images of a prompt with different scores by .* in baseline "):
        make_served_with_reward(tmp_path / "store", "baseline_generator=atlas", unit="noise")


CLIP_METRICS_OPTION = "metric=[clipscore,vqascore]"


def write_reward(weight: str = "2", unit: str = "z_score") -> str:
    return f"reward={{weights: {{clipscore: {weight}, vqascore: 1}}, unit: {unit}}}"


def make_served_with_reward(store: Path, *words: str, **options: str) -> Served:
    config = load_job_config(
        "serve",
        CLIP_METRICS_OPTION,
        "models=shapes",
        write_reward(**options),
        f"store={store}",
        "baseline=latest",
        *words,
    )
    return find_served_metrics(config, find_nodes(config))


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["reward={clipscore: 1, hpsv3: 0.5}"], "reward: expected one of clipscore, saturation, got 'hpsv3'"),
        (["reward={clipscore: 1, saturation: 0.5}"], "reward: saturation does not rank images"),
        (
            ["reward={weights: {clipscore: 1}, unit: noise}"],
            "reward.unit=noise: expected a run that defines the unit, got none",
        ),
        (["reward={clipscore: 2}", "+metrics.reward={kind: clipscore, model: clip}"], "metrics.reward: "),
        (["reward={clipscore: 2}", "sentinel=[clipscore]"], "sentinel: expected one of saturation, got 'clipscore'"),
    ],
    ids=str,
)
def test_an_invalid_combined_reward_is_refused_in_one_line(words: list[str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        load_job_config("serve", "metric=[clipscore,saturation]", "models=shapes", *words)
    assert "\n" not in str(refused.value)


def test_a_baseline_run_needs_scores_on_20_prompts(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ("atlas",), 4)
    run_benchmark(folder, tmp_path / "store", METRIC_OPTIONS[0])
    with pytest.raises(ConfigError, match="has scores on 4 prompts, expected at least 20"):
        make_configured_sentinel(tmp_path / "store", "baseline=latest")
