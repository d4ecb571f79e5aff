"""One command sweeps several benchmarks; each gets the same run as if it were swept alone, and one page shows all."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.bench_of import read_image_rows, read_prompt_rows, write_rows
from tests.commands import FinishedJob, run, run_refused

SMALL_OPTIONS = ("cluster=here", "limit=2", "shard_rows=4")
METRICS_OPTION = "metric=[clipscore,edge_density]"


class SweptSuite(NamedTuple):
    """The store of a sweep over several benchmarks, and the output of the command that ran the sweep."""

    store: Path
    ended: FinishedJob

    @property
    def runs(self) -> dict[str, str]:
        """Return the id of each benchmark's run in the only suite, keyed by the benchmark's name."""
        (suite,) = (self.store / "suites").iterdir()
        return dict(json.loads((suite / "suite.json").read_text())["runs"])


def test_each_benchmark_has_its_own_budget_and_the_exit_code_is_the_worst(tmp_path: Path) -> None:
    write_rows(tmp_path / "prompts.parquet", read_prompt_rows(4))
    write_rows(tmp_path / "images/atlas/00000.parquet", read_image_rows("atlas", 2))
    words = [
        "sweep=suite",
        "benchmarks=[shapes,own]",
        "metric=edge_density",
        "models=shapes",
        "benchmarks.own.name=few",
    ]
    words += [f"benchmarks.own.prompts={tmp_path}/prompts.parquet", f"benchmarks.own.images={tmp_path}/images"]
    words += ["cluster=here", "benchmarks.shapes.limit=2", f"store={tmp_path}/store"]
    ended = run("sweep", *words)
    reason = "few: 2 of 4 rows (50.00%) have no score, above max_failed=1%"
    assert ended.code == 1 and f"suite of 2 benchmarks, exit code 1: {reason}" in ended.out, ended
    assert "warning shapes and few share 2 prompts" in ended.out
    runs = SweptSuite(tmp_path / "store", ended).runs
    codes = {
        benchmark: json.loads((tmp_path / f"store/runs/{run_id}/manifest.json").read_text())["exit_code"]
        for benchmark, run_id in runs.items()
    }
    assert codes == {"shapes": 0, "few": 1}
    assert run("sweep", *words, "max_failed=0.5").code == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("benchmarks=[shapes,shapes_counting]", "benchmarks.shapes_counting.name=shapes"),
         "benchmarks.shapes.name: several benchmarks are named 'shapes'"),
        (("benchmarks=[shapes]", "metrics_of.shapes=[clip]"),
         "metrics_of.shapes: expected metrics of the sweep, clipscore or edge_density, got 'clip'; did you mean"),
        (("benchmarks=[shapes]", "adaptive=betting"), "adaptive: "),
        (("benchmarks=[shapes]", "protocol=shapes"), "protocol: only applies to a single benchmark; leave it out"),
        (("benchmarks=[shapez]",), "benchmarks=shapez: no such choice; did you mean shapes"),
        ((), "config key 'benchmarks' is required; choose some: benchmarks=[NAME,...] of "),
    ],
)  # fmt: skip
def test_an_impossible_suite_is_refused_in_one_line(words: tuple[str, ...], line: str) -> None:
    assert run_refused("sweep", "sweep=suite", "models=shapes", METRICS_OPTION, *words, code=64).startswith(
        f"error: {line}"
    )
