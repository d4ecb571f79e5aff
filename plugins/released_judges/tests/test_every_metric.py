"""Every metric of the plugin scores images with a tiny checkpoint that replies in the format of the metric's judge."""

from pathlib import Path

import pytest

from plugins.released_judges.tests.made_checkouts import (
    GEDIT_BENCH_FILES,
    RATIONAL_REWARDS_FILES,
    UNIFIED_REWARD_FILES,
    WEGENBENCH_FILES,
)
from plugins.released_judges.tests.replying_vlm import save_replying_vlm
from plugins.released_judges.tests.test_ratings import EDIT_NAMES, write_aspects, write_critique
from plumbline.plugins.released_judges import CONF
from tests.bench_of import run_bench, write_benchmark
from tests.operators.metrics.made_releases import write_release

METRIC_NAMES = sorted(file.stem for file in CONF.glob("metric/*.yaml"))
REPLIES = {
    "pairwise_edit": (GEDIT_BENCH_FILES, '{"winner": "Image A"}', 0.5),
    "rational_rewards": (RATIONAL_REWARDS_FILES, write_critique(4, 4, "N/A"), 1.0),
    "rational_rewards_edit": (RATIONAL_REWARDS_FILES, write_critique(4, 3, 2, 1, names=EDIT_NAMES), 0.5),
    "unified_reward": (UNIFIED_REWARD_FILES, write_aspects(2, 3, 4), 3.0),
    "unified_reward_edit": (UNIFIED_REWARD_FILES, '{"reasoning": "So.", "score": [25, 16]}', 6.4),
    "wegenbench_cot": (WEGENBENCH_FILES, "综合评价：不错\n得分：7分", 7.0),
}
"""For each metric, the files of a made-up checkout, a reply to every question, and the resulting score."""
OPTIONS = {"pairwise_edit": ["metrics.pairwise_edit.release=pvc_judge"]}


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_a_metric_scores_images_with_a_checkpoint_that_runs_here(name: str, tmp_path: Path) -> None:
    files, reply, expected = REPLIES[name]
    judge = save_replying_vlm(tmp_path / "judge", reply)
    release = write_release(tmp_path / "release", files)
    words = [f"metric=[{name}]", f"metrics.{name}.wording={release}", *OPTIONS.get(name, [])]
    words += ["benchmark.columns.source=image", f"+models.vlm={{family: vlm, checkpoint: '{judge}'}}"]
    bench = write_benchmark(tmp_path / "bench", ["atlas", "flint"], count=4)
    rows = run_bench(bench, tmp_path / "store", *words).results.read_scores().to_pylist()
    assert len(rows) == 8 and {row["error"] and row["error"]["message"] for row in rows} == {None}
    assert {round(row["score"], 9) for row in rows} == {expected}
