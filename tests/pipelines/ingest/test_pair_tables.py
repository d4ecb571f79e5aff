"""Winoground's and EqBen's released files become rows to score, and the same files are used to judge the scores."""

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.commands import run_for_output, run_refused

N_SAMPLES = 9
Scores = Mapping[tuple[int, int, int], float]
"""Scores by (sample, caption, image)."""


def write_winoground_lines(folder: Path) -> str:
    """Write Hugging Face's examples.jsonl, whose image names have no extension; return the file's name."""
    rows = [
        {"id": n, "image_0": f"ex_{n}_img_0", "image_1": f"ex_{n}_img_1", "caption_0": f"{n} c0",
         "caption_1": f"{n} c1", "tag": "Noun", "secondary_tag": "", "num_main_preds": 1, "collapsed_tag": "Object"}
        for n in range(N_SAMPLES)
    ]  # fmt: skip
    (folder / "examples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "examples.jsonl"


def write_winoground_sheet(folder: Path) -> str:
    """Write t2v_metrics' metadata.csv, and return the file's name."""
    names = ["id", "image_0", "image_1", "caption_0", "caption_1", "collapsed_tag"]
    with (folder / "metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(
            (n, f"images/ex_{n}_img_0.png", f"images/ex_{n}_img_1.png", f"{n} c0", f"{n} c1", "Object")
            for n in range(N_SAMPLES)
        )
    return "metadata.csv"


def write_eqben_mini(folder: Path) -> str:
    """Write all_select.json of EqBen's mini subset, a list without ids; return the file's name."""
    rows = [
        {"image0": f"images/ex_{n}_img_0.png", "image1": f"images/ex_{n}_img_1.png", "caption0": f"{n} c0",
         "caption1": f"{n} c1"}
        for n in range(N_SAMPLES)
    ]  # fmt: skip
    (folder / "all_select.json").write_text(json.dumps(rows))
    return "all_select.json"


def write_eqben_labels(folder: Path) -> str:
    """Write EqBen's annotations with labels, one record per pairing in random order; return the file's name."""
    rows = [
        {"image": f"images/ex_{n}_img_{image}.png", "caption": f"{n} c{caption}",
         "private_info": {"dataset": "eqbensd", "sample_cnt": n, "name": f"c{caption}i{image}"}}
        for n in range(N_SAMPLES) for caption in (0, 1) for image in (0, 1)
    ]  # fmt: skip
    order = np.random.default_rng(2).permutation(len(rows))
    (folder / "ann.json").write_text(json.dumps([rows[place] for place in order]))
    return "ann.json"


@pytest.fixture
def scores(tmp_path: Path) -> Scores:
    """Write two images for each of 9 samples, and a metric that scores each image for both captions of its sample.

    The scores are random and may be equal. The metric recognises an image by its size and a caption by its text. Return
    the scores, keyed by sample, caption and image.
    """
    random = np.random.default_rng(8)
    drawn = {(n, c, i): int(random.integers(0, 3)) + (c == i) for n in range(N_SAMPLES) for c in (0, 1) for i in (0, 1)}
    (tmp_path / "images").mkdir()
    for n in range(N_SAMPLES):
        for i in (0, 1):
            Image.new("RGB", (8 + n, 8 + i), (n * 9, i * 90, 7)).save(tmp_path / f"images/ex_{n}_img_{i}.png")
    by_size = {((8 + n, 8 + i), f"{n} c{c}"): float(score) for (n, c, i), score in drawn.items()}
    (tmp_path / "own.py").write_text(f"def fit(image, prompt):\n    return {by_size!r}[image.size, prompt]\n")
    return drawn


def compute_expected(scores: Scores) -> dict[str, float]:
    """Compute Winoground's three scores from their definitions (Thrush et al. 2022, section 4.1)."""
    right: dict[str, list[bool]] = {"text": [], "image": [], "group": []}
    for n in range(N_SAMPLES):
        text = all(scores[n, i, i] > scores[n, 1 - i, i] for i in (0, 1))
        image = all(scores[n, c, c] > scores[n, c, 1 - c] for c in (0, 1))
        for name, value in (("text", text), ("image", image), ("group", text and image)):
            right[name].append(value)
    return {name: float(np.mean(values)) for name, values in right.items()}


@pytest.mark.parametrize(
    ("write", "protocol", "images"),
    [
        (write_winoground_lines, "winoground", "images"),
        (write_winoground_sheet, "winoground", "."),
        (write_eqben_mini, "eqben", "."),
        (write_eqben_labels, "eqben", "."),
    ],
)
def test_a_released_file_of_pairs_is_ingested_scored_and_judged(
    tmp_path: Path, scores: Scores, write: Callable[[Path], str], protocol: str, images: str
) -> None:
    """Tables 1 and 2 of the VQAScore paper score every image with both captions of its sample."""
    table, data = tmp_path / write(tmp_path), f"{tmp_path}/data"
    run_for_output("ingest", f"table={table}", f"images={tmp_path}/{images}", f"output={data}", "cluster.num_cpus=1")
    rows = pd.concat(pd.read_parquet(path) for path in Path(data).glob("*/*.parquet"))
    assert len(rows) == 4 * N_SAMPLES == len(rows[["image_id", "prompt_id"]].drop_duplicates())
    bench = [f"benchmark.prompts={data}/prompts.parquet", f"benchmark.images={data}", "benchmark.name=pairs"]
    own = [f"metric=[{tmp_path}/own.py:fit]", f"store={tmp_path}/store", "cluster=here"]
    judge = [f"protocol={protocol}", f"protocol.path={table}", "sampling.resamples=20"]
    run_for_output("sweep", "sweep=own_images", *bench, *own)
    run_for_output("metaeval", *judge, "run=latest", f"store={tmp_path}/store", f"output={tmp_path}/out")
    found = pd.read_parquet(tmp_path / "out/judgements.parquet").query("metric == 'fit' and subset == 'overall'")
    assert found.set_index("statistic")["value"].to_dict() == pytest.approx(compute_expected(scores))
    assert set(found["n"]) == {N_SAMPLES} and not found["n_unscored"].any()


def test_all_four_pairs_of_a_sample_are_scored_in_one_command(tmp_path: Path, scores: Scores) -> None:
    table = tmp_path / write_winoground_sheet(tmp_path)
    own = [f"metric=[{tmp_path}/own.py:fit]", f"store={tmp_path}/store", "cluster=here"]
    run_for_output("score", f"images={table}", *own, "protocol=winoground", f"protocol.path={table}")
    (judged,) = (tmp_path / "store/runs").glob("*/metaeval/judgements.parquet")
    found = pd.read_parquet(judged).query("subset == 'overall'").set_index("statistic")["value"]
    assert found.to_dict() == pytest.approx(compute_expected(scores))
    (summary,) = (tmp_path / "store/runs").glob("*/summary.parquet")
    means = pd.read_parquet(summary).query("skill == 'overall'").set_index("generator")["mean"]
    assert means["matched"] == pytest.approx(np.mean([value for (_, c, i), value in scores.items() if c == i]))
    assert means["swapped"] == pytest.approx(np.mean([value for (_, c, i), value in scores.items() if c != i]))


def test_a_table_of_pairs_names_its_own_generators(tmp_path: Path, scores: Scores) -> None:
    words = [f"table={tmp_path}/{write_winoground_sheet(tmp_path)}", f"output={tmp_path}/data", "generator=winoground"]
    assert "whose generators are called matched and swapped, got 'winoground'" in run_refused("ingest", *words)


def test_a_sample_without_a_caption_fails_alone(tmp_path: Path, scores: Scores) -> None:
    rows: list[dict[str, Any]] = json.loads((tmp_path / write_eqben_mini(tmp_path)).read_text())
    rows[3]["caption1"] = ""
    (tmp_path / "all_select.json").write_text(json.dumps([*rows, 7]))
    words = [f"table={tmp_path}/all_select.json", f"output={tmp_path}/data", "cluster.num_cpus=1", "max_failed=1"]
    run_for_output("ingest", *words, code=2)
    rejected = pd.read_parquet(tmp_path / "data/rejected.parquet")
    assert rejected["message"].tolist() == [
        "the sample 3 has no caption1; fill it in or remove the row",
        "expected an object, found int; correct or remove it",
    ]
    taken = pd.concat(pd.read_parquet(path) for path in (tmp_path / "data").glob("*/*.parquet"))
    assert len(taken) == 4 * (N_SAMPLES - 1) and not taken["image_id"].str.startswith("3_").any()
