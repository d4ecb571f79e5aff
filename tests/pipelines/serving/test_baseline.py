"""A run of a store as the sentinel's baseline: its own generator's scores, of the very metrics that are served."""

from pathlib import Path

import numpy as np
import pytest

from plumbline.operators.errors import ConfigError
from plumbline.pipelines.serving.run_service import find_nodes, find_served, sentinel_of
from plumbline.pipelines.serving.sentinel import Sentinel
from tests.bench_of import write_benchmark
from tests.commands import config_of
from tests.pipelines.rewards.conftest import Scored, run_benchmark

COUNT = 21
METRICS = ["metric=[edge_density,saturation]", "models=shapes"]


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Scored:
    folder = write_benchmark(tmp_path_factory.mktemp("baseline") / "bench", ("atlas", "flint"), COUNT)
    return run_benchmark(folder, folder.parent / "store", METRICS[0])


def sentinel(store: Path, *words: str) -> Sentinel | None:
    given = ["reward=edge_density", "sentinel=[saturation]", f"store={store}", *words]
    config = config_of("serve", *METRICS, *given)
    return sentinel_of(config, find_served(config, find_nodes(config)))


def test_the_baseline_is_what_the_generators_images_scored_in_the_run(scored: Scored) -> None:
    watching = sentinel(scored.store, "baseline=latest", "baseline_generator=flint")
    assert watching is not None and watching.baseline is not None
    rows = scored.scores[scored.scores.generator == "flint"].pivot(index="prompt_id", columns="metric", values="score")
    assert len(watching.baseline) == COUNT
    assert np.array_equal(watching.baseline, rows[["edge_density", "saturation"]].to_numpy())


@pytest.mark.parametrize(
    "words, complaint",
    [
        (["baseline=yesterday"], "baseline=yesterday: no such run in"),
        (["baseline=latest"], "baseline_generator: expected one of run .*, of atlas, flint, got none"),
        (["baseline=latest", "baseline_generator=ember"], "baseline_generator: .* got ember"),
        (
            ["baseline=latest", "baseline_generator=atlas", "metrics.edge_density.statistic=entropy"],
            "baseline: edge_density is not the same metric in run .* and in this service",
        ),
        (
            ["baseline=latest", "baseline_generator=atlas", "metric=[edge_density,entropy]", "sentinel=[entropy]"],
            "baseline: run .* has no scores of entropy; score them there: python -m jobs.sweep",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_baseline_that_cannot_be_used_is_refused_in_one_line(
    words: list[str], complaint: str, scored: Scored
) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        sentinel(scored.store, *words)
    assert "\n" not in str(refused.value)


def test_a_run_of_a_few_prompts_is_no_baseline(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", ("atlas",), 4)
    run_benchmark(folder, tmp_path / "store", METRICS[0])
    with pytest.raises(ConfigError, match="has scores on 4 prompts, expected at least 20"):
        sentinel(tmp_path / "store", "baseline=latest")
