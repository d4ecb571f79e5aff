"""Edits are ingested with their sources from folders, tars, tables and rows with several editors, on disk and on S3."""

import io
import random
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from plumbline.pipelines.base.storage import StorageConfig
from tests.bench_of import SMALL_OPTIONS
from tests.commands import find_newest_run_folder, run_for_output, run_refused
from tests.files import make_tar, write_files

METRICS_OPTION = "metric=[source_l1,saturation]"
PROMPTS = "make it red\nremove the dog\nadd a hat\n"


def draw_grey(value: int) -> bytes:
    """Draw a uniformly grey image; the l1 distance between two such images is the difference of their grey levels."""
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (value, value, value)).save(file, "PNG")
    return file.getvalue()


def score(images: object, store: Path, *more: str, code: int = 0) -> str:
    words = [METRICS_OPTION, "models=shapes", f"images={images}", f"store={store}", *SMALL_OPTIONS, *more]
    return run_for_output("score", *words, code=code)


def read_distances(store: Path) -> dict[str, int | None]:
    """Return each image's source_l1 in grey levels, or None if it failed; check that no saturation is missing."""
    scores = pd.read_parquet(find_newest_run_folder(store) / "scores.parquet")
    assert scores[scores["metric"] == "saturation"]["score"].notna().all()
    found = scores[scores["metric"] == "source_l1"]
    greys = [None if pd.isna(one) else round(one * 255) for one in found["score"]]
    return dict(zip(found["generator"] + " " + found["image_id"], greys, strict=True))


def read_errors(store: Path) -> list[str]:
    return sorted(pd.read_parquet(find_newest_run_folder(store) / "errors.parquet")["message"])


def test_a_folder_of_sources_is_matched_to_the_editors_folders_by_name(tmp_path: Path) -> None:
    folder = write_files(
        tmp_path / "edits",
        {
            "prompts.txt": PROMPTS,
            "source/0.jpg": draw_grey(10),
            "source/1.png": draw_grey(20),
            "source/2.png": b"no picture",
            "kind/0.png": draw_grey(15),
            "kind/1_1.png": draw_grey(22),
            "bold/2.png": draw_grey(90),
            "bold/1.png": draw_grey(70),
        },
    )
    said = score(folder, tmp_path / "store", code=1)
    assert "sources: 3, from source/, by name" in said and said.index("sources: 3") < said.index("cells to compute")
    assert read_distances(tmp_path / "store") == {
        "kind kind/0.png": 5, "kind kind/1_1.png": 2, "bold bold/1.png": 50, "bold bold/2.png": None
    }  # fmt: skip
    assert read_errors(tmp_path / "store")[0].startswith("the source of the edit: expected an image")
    (folder / "source/0.jpg").write_bytes(draw_grey(12))
    score(folder, tmp_path / "store", code=1)
    assert read_distances(tmp_path / "store")["kind kind/0.png"] == 3


def test_a_report_of_metrics_without_ranking_shows_images_and_distributions_but_no_leader(tmp_path: Path) -> None:
    rng = random.Random(6)
    sources = {f"source/{number}.png": draw_grey(rng.randrange(256)) for number in range(7)}
    edits = {f"kind/{number}.png": draw_grey(rng.randrange(256)) for number in range(7)}
    edits |= {f"bold/{number}.png": draw_grey(rng.randrange(256)) for number in rng.sample(range(7), 4)}
    texts = "\n".join(f"make it {number}" for number in range(7))
    folder = write_files(tmp_path / "edits", {"prompts.txt": texts, **sources, **edits})
    given = [f"images={folder}", "metric=[source_l1,source_ssim]", f"store={tmp_path}/store", *SMALL_OPTIONS]
    said = run_for_output("score", *given, "benchmark.require_every_prompt=false")
    assert "mean rank" not in said and "signed-rank" not in said and "Nothing is ranked" in said
    html = (find_newest_run_folder(tmp_path / "store") / "report.html").read_text()
    body = html[html.index("<main>") : html.index('id="words"')]
    gallery = body[body.index('id="gallery"') :]
    assert gallery.count('<li class="card entry"') == len(edits), "the gallery shows each image once"
    assert set(re.findall(r'class="tag (\w+)"', gallery)) == {"highest", "lowest"}
    side_by_side = body[body.index('id="prompts"') : body.index('id="gallery"')]
    assert side_by_side.count("source_ssim") == side_by_side.count("source_l1") >= 4, (
        "prompts that both generators edited"
    )
    assert body[body.index('id="spread"') : body.index('id="prompts"')].count("<svg") == 4
    assert not re.search(r"\b(leads?|leader|best|worst|better than|tied)\b", re.sub(r"<[^>]*>", " ", body))


def test_editors_can_have_different_sources_and_an_edit_without_a_source_keeps_its_other_scores(tmp_path: Path) -> None:
    folder = write_files(
        tmp_path / "edits",
        {
            "kind/result/make it red.png": draw_grey(15),
            "kind/result/add a hat.png": draw_grey(15),
            "kind/source/make it red.png": draw_grey(10),
            "bold/result/make it red.png": draw_grey(90),
            "bold/result/remove the dog.png": draw_grey(90),
            "bold/source/make it red.png": draw_grey(20),
            "bold/source/remove the dog.png": draw_grey(20),
            "bold/source/remove the dog.jpg": draw_grey(30),
        },
    )
    said = score(folder, tmp_path / "store", "prompts_from=names", code=1)
    assert "images without a source: 1, such as kind/result/add a hat.png" in " ".join(said.split())
    assert "images with several sources of the same name: 1, such as bold/result/remove the dog.png" in " ".join(
        said.split()
    )
    assert read_distances(tmp_path / "store") == {
        "kind kind/result/make it red.png": 5, "kind kind/result/add a hat.png": None,
        "bold bold/result/make it red.png": 70, "bold bold/result/remove the dog.png": None,
    }  # fmt: skip
    assert set(read_errors(tmp_path / "store")) == {"the source of the edit: the row has none; fill it in"}


def test_a_table_can_contain_paths_of_images_and_their_sources(tmp_path: Path) -> None:
    folder = write_files(
        tmp_path / "edits",
        {
            "edits.csv": "file,prompt,model,before\nb.png,add a hat,bold,gone.png\na.png,make it red,kind,s.png\n",
            "a.png": draw_grey(15),
            "b.png": draw_grey(15),
            "s.png": draw_grey(10),
        },
    )
    score(folder / "edits.csv", tmp_path / "store", "benchmark.columns.source=before", code=1)
    assert read_distances(tmp_path / "store") == {"kind a.png": 5, "bold b.png": None}
    assert read_errors(tmp_path / "store")[0].startswith("the source of the edit: nothing at ")


@pytest.mark.parametrize("source", ["source.png", "original_image.jpg"])
def test_sources_are_read_from_the_samples_of_a_tar(tmp_path: Path, source: str) -> None:
    result = {"source.png": "png", "original_image.jpg": "edited_image.jpg"}[source]
    members = [
        ("b.txt", b"add a hat"), (f"b.{result}", draw_grey(40)),
        ("a.txt", b"make it red"), (f"a.{source}", draw_grey(10)), (f"a.{result}", draw_grey(15)),
    ]  # fmt: skip
    write_files(tmp_path, {"kind.tar": make_tar(members)})
    said = score(tmp_path / "kind.tar", tmp_path / "store", code=1)
    assert f"sources: .{source} of each sample" in said
    assert read_distances(tmp_path / "store") == {"kind kind/b": None, "kind kind/a": 5}


def write_editor_rows(path: str, **more: Any) -> None:
    rows = [
        {"prompt": prompt, "model": model, "image": {"bytes": draw_grey(15), "path": None}, "before": before}
        for prompt, model, before in (
            ("add a hat", "bold", [{"bytes": draw_grey(60), "path": "b.png"}]),
            ("make it red", "kind", [{"bytes": draw_grey(10), "path": "a.png"}]),
            ("remove the dog", "kind", [{"bytes": draw_grey(1), "path": None}, {"bytes": draw_grey(2), "path": None}]),
            ("remove the cat", "kind", [{"bytes": b"", "path": "gone.png"}]),
        )
    ]
    pq.write_table(pa.Table.from_pylist(rows), path, **more)


def test_rows_of_several_editors_can_have_one_or_several_sources(tmp_path: Path) -> None:
    write_editor_rows(f"{tmp_path}/train.parquet")
    score(tmp_path / "train.parquet", tmp_path / "store", "benchmark.columns.source=before", code=1)
    assert read_distances(tmp_path / "store") == {
        "bold train/1": 45, "kind train/2": 5, "kind train/3": None, "kind train/4": None
    }  # fmt: skip
    several, none = read_errors(tmp_path / "store")
    assert several.startswith("the source of the edit: 2 images in the row")
    assert none == "the source of the edit: the row has none; fill it in"


def test_a_sweep_reads_the_sources_that_were_ingested_from_s3(tmp_path: Path, bucket: str) -> None:
    for name, content in {
        "source/0.png": draw_grey(10),
        "kind/0.png": draw_grey(15),
        "prompts.txt": b"make it red",
    }.items():
        StorageConfig().locate(f"{bucket}/edits/{name}").write(content)
    said = run_for_output("ingest", f"images={bucket}/edits", f"output={tmp_path}/own")
    assert "sources: 1, from source/, by name" in said
    (row,) = pq.read_table(tmp_path / "own/kind/00000.parquet").to_pylist()
    assert row["source"] == [draw_grey(10)]
    words = [f"benchmark.prompts={tmp_path}/own/prompts.parquet", f"benchmark.images={tmp_path}/own", METRICS_OPTION]
    words += ["sweep=own_images", f"store={tmp_path}/store", *SMALL_OPTIONS]
    assert "sources: 1, from source/, by name" in run_for_output("sweep", *words)
    assert read_distances(tmp_path / "store") == {"kind kind/0.png": 5}


def test_edits_without_sources_are_refused_if_a_metric_needs_sources(tmp_path: Path) -> None:
    folder = write_files(
        tmp_path / "edits", {"kind/make it red.png": draw_grey(15), "kind/add a hat.png": draw_grey(15)}
    )
    line = run_refused(
        "score", f"images={folder}", METRICS_OPTION, "models=shapes", f"store={tmp_path}/store", *SMALL_OPTIONS
    )
    assert "metrics.source_l1" in line and "benchmark.columns.source" in line
