"""With tiny checkpoints, every metric in conf/ scores images of shapes; rows without a score have a reason."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from plumbline.operators.scoring.scorer import Scorer
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.sources.question_packs import PackFile, read_pack
from tests.bench_of import read_image_rows, run_bench, write_benchmark
from tests.commands import load_job_config
from tests.environment import ROOT
from tests.operators.tiny.roles import save_tiny_models
from tests.question_packs import write_pack
from tests.serving import select_first_pairs


def list_configured_metrics(file: Path) -> list[str]:
    """Return the names of the metrics that a file in a conf/metric folder configures.

    A file configures the metric with its own name, unless it lists several metrics.
    """
    several = file.read_text().startswith("# @package metrics\n")
    return [str(key) for key in OmegaConf.load(file) if key != "defaults"] if several else [file.stem]


PLUGINS_TESTED_APART = {file.parents[1] for file in (ROOT / "plugins").glob("*/tests/test_every_metric.py")}
"""Plugins that have their own version of this test, because their metrics need other inputs."""
METRIC_FILES = [
    *(ROOT / "conf/metric").glob("*.yaml"),
    *(file for file in (ROOT / "plugins").glob("*/conf/metric/*.yaml") if file.parents[2] not in PLUGINS_TESTED_APART),
]
CHOICE_BY_METRIC = {name: file.stem for file in METRIC_FILES for name in list_configured_metrics(file)}
"""Name of the file in a folder conf/metric that configures each metric, keyed by the metric's name."""
COMPARING_METRICS = {"pairwise"}
"""Metrics that need several generators (test_pairwise_sweep.py)."""
METRIC_NAMES = sorted(CHOICE_BY_METRIC.keys() - COMPARING_METRICS)
REPLY_FORM_OPTIONS = ("metrics.vpeval.replies=json", "metrics.vpeval.max_tokens=512")
"""Options that replace VPEval's own reply format, which the embedded question writer has not learned."""
PACK_BY_METRIC = {"dsg_1k": "dsg_1k", "tifa_v1": "tifa_v1"}
"""Question pack of each metric that asks a benchmark's own questions, keyed by the metric's name."""
VIDEO_INPUT_BY_METRIC = {name: "videos" for name in METRIC_NAMES if name.startswith(("videoalign", "xclip"))}
"""Kind of input of the metrics that accept only videos, by metric; each image becomes a video of identical frames."""
SCORELESS_METRICS = {"vq2_released", "text"}
"""Metrics that give no scores in this test.

The embedded question writer gives unreadable replies at vq2_released's temperature of 1, and its prompts do not ask
for text in the image.
"""
EDIT_INPUT_BY_METRIC = {"editreward": "edits"}
"""Kind of input of the metrics that compare an edit with its source, by metric; here an image is its own source."""
INPUT_BY_METRIC = PACK_BY_METRIC | VIDEO_INPUT_BY_METRIC | EDIT_INPUT_BY_METRIC
Rows = Sequence[Mapping[str, Any]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    return save_tiny_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory, models: Sequence[str]) -> Callable[[str], Rows]:
    """Return a function that returns a metric's rows; a single sweep covers all metrics with the same kind of input.

    Metrics are grouped by input: no question pack, each question pack, videos, and edits.
    """
    bench = write_benchmark(tmp_path_factory.mktemp("bench"), ["atlas"], count=4)

    @cache
    def sweep_group(group: str | None) -> Mapping[str, Rows]:
        folder = tmp_path_factory.mktemp(str(group))
        chosen = dict.fromkeys(CHOICE_BY_METRIC[name] for name in METRIC_NAMES if INPUT_BY_METRIC.get(name) == group)
        given = [f"metric=[{','.join(chosen)}]", *models]
        if group is None:
            given += REPLY_FORM_OPTIONS
        elif group in VIDEO_INPUT_BY_METRIC.values():
            given += ["clips.shown=video", "clips.rate=2"]
        elif group in EDIT_INPUT_BY_METRIC.values():
            given.append("benchmark.columns.source=image")
        else:
            given += [f"benchmark.question_pack={group}", f"benchmark.questions={write_pack(group, folder)}"]
        finished = run_bench(bench, folder / "store", *given)
        rows = defaultdict(list)
        for row in finished.results.read_scores().to_pylist():
            rows[row["metric"]].append(row)
        return rows

    return lambda name: sweep_group(INPUT_BY_METRIC.get(name))[name]


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_a_metric_scores_images_with_a_checkpoint_of_its_family(name: str, scores: Callable[[str], Rows]) -> None:
    rows = scores(name)
    assert len(rows) == 4 and all((row["score"] is None) == (row["error"] is not None) for row in rows)
    assert any(row["score"] is not None for row in rows) != (name in SCORELESS_METRICS), rows[0]["error"]


def test_one_choice_asks_all_questions_of_vqascores_table_13(scores: Callable[[str], Rows]) -> None:
    templates = [name for name, choice in CHOICE_BY_METRIC.items() if choice == "vqascore_templates"]
    given = {name: {row["image_id"]: row["score"] for row in scores(name)} for name in [*templates, "vqascore"]}
    assert len(templates) == 16 and given["template_figure_shows"] == given["vqascore"]
    assert len({tuple(sorted(each.items())) for each in given.values()}) == 16, "each question has its own answers"


@pytest.mark.parametrize("pack", sorted(set(PACK_BY_METRIC.values())))
def test_a_scorer_with_a_pack_returns_the_sweeps_scores(
    pack: str, scores: Callable[[str], Rows], models: Sequence[str], tmp_path: Path
) -> None:
    rows_by_metric = {name: scores(name) for name in METRIC_NAMES if PACK_BY_METRIC.get(name) == pack}
    assert_scorer_equals_sweep(rows_by_metric, pack, write_pack(pack, tmp_path), models)


def assert_scorer_equals_sweep(
    rows_by_metric: Mapping[str, Rows], pack: str, path: Path, models: Sequence[str]
) -> None:
    """Assert that a scorer with the question pack in `path` returns the scores of the sweep in `rows_by_metric`."""
    config = load_job_config("scorer", f"metric=[{','.join(rows_by_metric)}]", "models=shapes", *models)
    file = PackFile(pack=pack, place=StorageConfig().locate(str(path)))
    scorer = Scorer(config, pack=read_pack(file, "suite").questions)
    pairs, ids = select_first_pairs(4), [row["image_id"] for row in read_image_rows("atlas", 4)]
    table = scorer.score_table([pair.image for pair in pairs], [pair.prompt for pair in pairs])
    for name, rows in rows_by_metric.items():
        expected = {row["image_id"]: row["score"] for row in rows}
        ours = [row["score"] for row in table.to_pylist() if row["metric"] == name]
        assert ours == [expected[image_id] for image_id in ids]
