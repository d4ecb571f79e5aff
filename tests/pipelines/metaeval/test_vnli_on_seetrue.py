"""A single command scores SeeTRUE's Parquet file with VNLI and judges the scores."""

from pathlib import Path

import pandas as pd

from plumbline.jobs.score import main
from tests.commands import load_job_config
from tests.pipelines.metaeval.releases.files import ROOT, format_parquet, write_file

SHAPES_FOLDER = ROOT / "assets/shapes"


def write_seetrue(folder: Path) -> Path:
    """Write a SeeTRUE file that pairs each of eight images with its own and with another prompt; return its path."""
    texts = pd.read_parquet(SHAPES_FOLDER / "prompts.parquet").set_index("prompt_id")["text"]
    truth = pd.read_parquet(SHAPES_FOLDER / "truth.parquet").set_index("image_id")["correct"]
    images = pd.read_parquet(SHAPES_FOLDER / "images/atlas/00000.parquet")
    images = images[truth.loc[images["image_id"]].to_numpy()].iloc[:40:5]
    own = [texts[prompt] for prompt in images["prompt_id"]]
    rows = [
        {"image": {"bytes": image, "path": f"{place}.png"}, "text": text, "label": int(text == own[place]),
         "original_dataset_id": f"t_{place}", "dataset_source": "drawbench", "name": f"{place}.png"}
        for place, image in enumerate(images["image"])
        for text in (own[place], own[place - 1])
    ]  # fmt: skip
    return write_file(folder / "seetrue.parquet", format_parquet(rows))


def test_vnli_is_judged_by_seetrues_labels(tmp_path: Path) -> None:
    file = write_seetrue(tmp_path)
    names = {"image_id": "name", "prompt_id": "text", "prompt": "text"}
    given = [f"benchmark.images={file}", "metric=[vnli]", "models=shapes", "cluster=here", f"store={tmp_path}/store",
             "protocol=seetrue", f"protocol.path={file}",
             *(f"benchmark.columns.{ours}={theirs}" for ours, theirs in names.items())]  # fmt: skip
    assert main(load_job_config("score", *given)) == 0
    (judged,) = (tmp_path / "store/runs").glob("*/metaeval/judgements.parquet")
    found = pd.read_parquet(judged).set_index(["metric", "statistic", "subset"])
    area = found.loc[("vnli", "auroc", "overall")]
    assert area["n"] == 16 and area["value"] > 0.8
    assert ("vnli", "auroc", "drawbench") in found.index
