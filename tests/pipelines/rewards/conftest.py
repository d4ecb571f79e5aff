"""The run that all export tests share: three generators, twelve prompts, a lower-is-better metric and a bad image."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest

from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.rewards.rewards import ExportResult, export_rewards
from plumbline.pipelines.rewards.rewards_config import RewardsConfig
from plumbline.pipelines.sweeps.results import FinishedSweep
from tests.bench_of import read_image_rows, read_prompt_rows, run_bench, write_rows

GENERATORS = ("atlas", "drift", "garnet")
N_PROMPTS = 12
Export = Callable[..., ExportResult]


class ScoredBenchmark(NamedTuple):
    folder: Path
    """Folder of the benchmark."""
    store: Path
    finished: FinishedSweep
    scores: pd.DataFrame

    def score(self, metric: str, uid: str) -> float:
        """Return the metric's unmodified score for the image `uid` (generator/image_id)."""
        generator, image_id = uid.split("/")
        rows = self.scores
        chosen = rows[(rows.metric == metric) & (rows.generator == generator) & (rows.image_id == image_id)]
        return float(chosen.score.iloc[0])


def run_benchmark(folder: Path, store: Path, *overrides: str) -> ScoredBenchmark:
    finished = run_bench(folder, store, *overrides)
    return ScoredBenchmark(folder, store, finished, finished.results.read_scores().to_pandas())


@pytest.fixture(scope="session")
def scored(tmp_path_factory: pytest.TempPathFactory) -> ScoredBenchmark:
    folder = tmp_path_factory.mktemp("rewards") / "bench"
    write_rows(folder / "prompts.parquet", read_prompt_rows(N_PROMPTS))
    for generator in GENERATORS:
        rows = read_image_rows(generator, N_PROMPTS)
        if generator == "drift":
            rows[5]["image"] = b"no image"
        write_rows(folder / "images" / generator / "00000.parquet", rows)
    options = ("metric=[clipscore,gecko]", "metrics.gecko.likelihood=nll", "max_failed=0.2")
    return run_benchmark(folder, folder.parent / "store", *options)


def make_config(scored: ScoredBenchmark, output: str | Path, form: str, **options: Any) -> RewardsConfig:
    """Return a configuration that exports the run in the format `form`, with all pairs except ties.

    The options override fields of the configuration, such as the selection's margin.
    """
    values = {"store": str(scored.store), "output": str(output), "format": form, "held_out": 0.25, "shard_rows": 5}
    selection = {"margin": 0.0, **options.pop("selection", {})}
    return read_config({**values, **options, "selection": selection}, RewardsConfig)


@pytest.fixture
def export(scored: ScoredBenchmark, tmp_path: Path) -> Iterator[Export]:
    """Yield a function that exports the run in a given format, by default to the test's own folder."""

    def run(form: str, output: str | Path = tmp_path / "out", **options: Any) -> ExportResult:
        return export_rewards(make_config(scored, output, form, **options), lambda record: None)

    yield run


def read_files(output: Path) -> dict[str, bytes]:
    """Return the content of all files in a folder, keyed by relative path."""
    return {str(path.relative_to(output)): path.read_bytes() for path in sorted(output.rglob("*")) if path.is_file()}
