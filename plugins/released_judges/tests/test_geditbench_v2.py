"""Editors are compared on GEditBench v2 as released, and ranked by the model that the release ranks them by."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import run as run_process
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp

from plugins.released_judges.tests.made_checkouts import GEDIT_BENCH_FILES
from tests.bench_of import write_rows
from tests.commands import find_newest_run_folder, run
from tests.jobs.test_pairwise_sweep import paint, read_images, read_pixel
from tests.operators.metrics.made_releases import write_release
from tests.operators.metrics.test_released_wordings import find_checkout
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Answer, Server, make_completion

TASKS = ("background_change", "cref", "open_set")
SOURCE_BRIGHTNESSES = [90, 90, 150, 30, 200, 100, 60, 170, 90, 25, 190, 120]
"""Brightness of the source of each edit; each editor is the closest to some of them."""
BRIGHTNESS_BY_EDITOR = {"BAGEL": 200, "FLUX2_dev": 100, "Qwen_Image_Edit": 20}
ELO_PER_UNIT = 400 / np.log(10)


def write_benchmark(folder: Path) -> None:
    """Write twelve edits of three tasks as the release does, and a gallery with the edits of each editor."""
    rows = [
        {
            "key": f"{TASKS[number % 3]}_{number // 3:06d}",
            "instruction": f"edit {number}",
            "task": TASKS[number % 3],
            "source_image": {"bytes": paint(brightness, number), "path": f"{number}.png"},
        }
        for number, brightness in enumerate(SOURCE_BRIGHTNESSES)
    ]
    write_rows(folder / "data/train-00000-of-00001.parquet", rows)
    for editor, brightness in BRIGHTNESS_BY_EDITOR.items():
        (folder / "gallery" / editor).mkdir(parents=True)
        for number, row in enumerate(rows):
            (folder / "gallery" / editor / f"{row['key']}.png").write_bytes(paint(brightness, number))
    listed = [
        {
            "key": row["key"],
            "candidates": [{"model": name, "image": f"{name}/{row['key']}.png"} for name in BRIGHTNESS_BY_EDITOR],
        }
        for row in rows
    ]
    (folder / "gallery/metadata.jsonl").write_text("\n".join(map(json.dumps, listed)))


def prefer_close(number: int, body: Mapping[str, Any]) -> Answer:
    """Return a judge's reply that chooses the edit whose brightness is closer to that of the source."""
    source, first, second = (read_pixel(image)[0] for image in read_images({"messages": body["messages"][1:]}))
    distances = abs(first - source), abs(second - source)
    winner = "Tie" if distances[0] == distances[1] else f"Image {'AB'[distances[0] > distances[1]]}"
    return make_completion(json.dumps({"winner": winner}))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Compare three editors by a judge on localhost, and yield the run's folder."""
    folder = tmp_path_factory.mktemp("gedit")
    write_benchmark(folder)
    checkout = write_release(folder / "GEditBench_v2", GEDIT_BENCH_FILES)
    server = Server()
    server.trial, server.script = make_completion("yes"), prefer_close
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY_VARIABLE, KEY)
        ended = run(
            "score", f"images={folder}/gallery", "benchmark=geditbench_v2", f"benchmark.prompts={folder}/data",
            "metric=[pairwise_edit]", f"metrics.pairwise_edit.wording={checkout}",
            "metrics.pairwise_edit.release=pvc_judge", "model@models.vlm=api", "models.vlm.checkpoint=judge",
            f"models.vlm.endpoint={server.url}", f"models.vlm.key_variable={KEY_VARIABLE}", "cluster=here",
            f"store={folder}/store",
        )  # fmt: skip
    server.close()
    assert ended.code == 0, ended.err
    yield find_newest_run_folder(folder / "store")


def write_matches(comparisons: pd.DataFrame, path: Path) -> Path:
    """Write the comparisons as the release writes its results: the lines that its elo_score.py reads."""
    lines = [
        json.dumps(
            {
                "key": f"{row.prompt_id}_pair_{row.first_generator}_vs_{row.second_generator}",
                "results": {"winner": {1.0: "Image A", 0.0: "Image B"}.get(row.p_first, "Tie")},
            }
        )
        for row in comparisons.itertuples()
    ]
    path.write_text("\n".join(lines))
    return path


def fit_davidson(matches: Sequence[tuple[int, int, float]], alpha: float) -> NDArray[np.float64]:
    """Return the editors' strengths on Elo's scale, with mean 0, by the formulas of the release's elo_score.py.

    A match is a pair of editors and 1, 0 or 0.5 (a tie). `alpha` is the weight of the squared strengths; as in the
    release, these are relative to the last editor.
    """
    first, second, won = (np.array(column) for column in zip(*matches, strict=True))
    first, second = first.astype(int), second.astype(int)

    def compute_loss(parameters: NDArray[np.float64]) -> float:
        theta = np.append(parameters[:-1], 0.0)
        tie = parameters[-1] + (theta[first] + theta[second]) / 2 + np.log(2)
        logits = np.stack([theta[first], theta[second], tie])
        chosen = np.where(won == 1, logits[0], np.where(won == 0, logits[1], logits[2]))
        return float(np.sum(logsumexp(logits, axis=0) - chosen) + alpha / 2 * theta @ theta)

    found = minimize(
        compute_loss, np.zeros(len(BRIGHTNESS_BY_EDITOR)), method="L-BFGS-B", bounds=[(None, None)] * 2 + [(-12, 8)]
    )
    theta = np.append(found.x[:-1], 0.0)
    return np.asarray(ELO_PER_UNIT * (theta - theta.mean()))


def index_matches(comparisons: pd.DataFrame) -> list[tuple[int, int, float]]:
    number = {name: place for place, name in enumerate(BRIGHTNESS_BY_EDITOR)}
    return [
        (number[row.first_generator], number[row.second_generator], row.p_first) for row in comparisons.itertuples()
    ]


def test_the_gallery_is_read_with_the_releases_keys_instructions_sources_and_tasks(run_folder: Path) -> None:
    summary = pd.read_parquet(run_folder / "summary.parquet")
    assert set(summary["skill"]) == {"overall", *TASKS}
    comparisons = pd.read_parquet(run_folder / "comparisons.parquet")
    assert len(comparisons) == 12 * 3 * 2 and comparisons["p_first"].notna().all()
    assert set(comparisons["prompt_id"]) == {f"{task}_{number:06d}" for task in TASKS for number in range(4)}


def test_the_ranking_is_the_releases(run_folder: Path) -> None:
    """Without ties, the strengths are those of the release's model. With ties, the order is the same."""
    from plumbline.statistics import compare_pairs

    comparisons = pd.read_parquet(run_folder / "comparisons.parquet")
    assert (comparisons["p_first"] == 0.5).any()
    expected = dict(zip(BRIGHTNESS_BY_EDITOR, fit_davidson(index_matches(comparisons), alpha=1.0), strict=True))
    strengths = {name: found.value for name, found in compare_pairs(comparisons).strengths.items()}
    assert sorted(strengths, key=strengths.__getitem__) == sorted(expected, key=expected.__getitem__)
    decided = comparisons[comparisons["p_first"] != 0.5]
    plain = fit_davidson(index_matches(decided), alpha=0.0)
    strengths = {name: found.value for name, found in compare_pairs(decided).strengths.items()}
    assert strengths == pytest.approx(dict(zip(BRIGHTNESS_BY_EDITOR, plain, strict=True)), abs=0.05)


def test_the_releases_own_code_ranks_the_written_comparisons(run_folder: Path, tmp_path: Path) -> None:
    script = Path(find_checkout("GEditBench_v2")) / "src/common_utils/elo_score.py"
    comparisons = pd.read_parquet(run_folder / "comparisons.parquet")
    results = write_matches(comparisons, tmp_path / "eval_vc.jsonl")
    command = [
        sys.executable,
        str(script),
        "--result-files",
        str(results),
        "--bootstrap",
        "10",
        "--alpha",
        "1",
        "--seed",
        "42",
    ]
    said = run_process(command, capture_output=True, text=True, check=True).stdout
    ranked = [line.split("|")[1:3] for line in said.splitlines() if line[:1].isdigit()]
    expected = fit_davidson(index_matches(comparisons), alpha=1.0)
    assert {name.strip(): int(score) for name, score in ranked} == {
        name: round(1000 + value) for name, value in zip(BRIGHTNESS_BY_EDITOR, expected, strict=True)
    }
