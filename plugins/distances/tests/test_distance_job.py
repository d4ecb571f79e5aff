"""plumbline distance measures how far generators' images are from reference images, and states its limits."""

import html
import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from scipy.ndimage import gaussian_filter
from transformers import CLIPImageProcessor, CLIPModel

from plugins.distances.tests import references, tiny_inception
from plugins.distances.tests.test_intervals import compute_released_cmmd
from tests.bench_of import read_image_rows, read_prompt_rows, write_rows
from tests.commands import find_newest_run_folder, run, run_for_output, run_refused
from tests.environment import ROOT

CLIP_FOLDER = ROOT / "assets/clip-shapes"
OPTIONS = ("cluster=here", "model@models.clip=clip_shapes")


def draw_image(seed: int, blur: float) -> Image.Image:
    """Draw clouds of colour; a larger blur makes larger clouds."""
    random = np.random.default_rng(seed)
    width, height = 40 + 10 * (seed % 3), 40 + 6 * (seed % 4)
    values = gaussian_filter(random.random((height, width, 3)), (blur, blur, 0))
    scaled = (values - values.min()) / np.ptp(values)
    return Image.fromarray((255 * scaled).astype(np.uint8))


def save_images(folder: Path, count: int, blur: float, first: int) -> list[Image.Image]:
    folder.mkdir(parents=True)
    drawn = [draw_image(first + number, blur) for number in range(count)]
    for number, image in enumerate(drawn):
        image.save(folder / f"{first + number:04d}.png")
    return drawn


def read_result(store: Path) -> tuple[pd.DataFrame, Mapping[str, Any]]:
    """Return the newest table of distances, by distance and generator, and the content of distances.json."""
    folder = sorted((store / "distances").iterdir())[-1]
    table = pd.read_parquet(folder / "distances.parquet").set_index(["distance", "generator"])
    return table, json.loads((folder / "distances.json").read_text())


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Image.Image]]]:
    """Save reference images, and images of two generators, one of which draws larger clouds."""
    folder = tmp_path_factory.mktemp("drawn")
    return folder, {
        "reference": save_images(folder / "reference", 60, 1, 0),
        "near": save_images(folder / "images/near", 60, 1, 1000),
        "far": save_images(folder / "images/far", 60, 4, 2000),
    }


def compute_released_embeddings(drawn: list[Image.Image]) -> np.ndarray:
    """Embed images as CMMD's release does: the middle square, resized by Pillow's bicubic filter, as unit vectors."""
    model, side = CLIPModel.from_pretrained(CLIP_FOLDER).eval(), None
    processor = CLIPImageProcessor.from_pretrained(CLIP_FOLDER)
    side = processor.crop_size["height"]
    pixels = []
    for image in drawn:
        width, height = image.size
        least = min(image.size)
        left, top = (width - least) // 2, (height - least) // 2
        square = image.crop((left, top, left + least, top + least)).resize((side, side), Image.Resampling.BICUBIC)
        values = (np.asarray(square) / 255 - processor.image_mean) / processor.image_std
        pixels.append(torch.tensor(values.transpose(2, 0, 1), dtype=torch.float32))
    with torch.inference_mode():
        embedded = model.get_image_features(pixel_values=torch.stack(pixels)).pooler_output
    return (embedded / embedded.norm(dim=1, keepdim=True)).numpy()


def test_cmmd_of_folders_without_prompts_equals_the_released_value_and_separates_the_generators(
    drawn: tuple[Path, dict[str, list[Image.Image]]], tmp_path: Path
) -> None:
    folder, sets = drawn
    words = (f"images={folder}/images", f"reference={folder}/reference", f"store={tmp_path}/store", *OPTIONS)
    said = run("distance", *words)
    assert said.code == 0, said
    table, content = read_result(tmp_path / "store")
    embedded = {name: compute_released_embeddings(pictures) for name, pictures in sets.items()}
    for name in ("near", "far"):
        expected = compute_released_cmmd(embedded[name], embedded["reference"])
        assert table.loc[("cmmd", name), "value"] == pytest.approx(expected, rel=1e-3, abs=1e-4)
        row = table.loc[("cmmd", name)]
        assert row["low"] <= max(row["estimate"], 0) <= row["high"] and row["estimate"] < row["value"]
    assert table.loc[("cmmd", "near"), "low"] == 0 < table.loc[("cmmd", "far"), "low"]
    (comparison,) = content["comparisons"]
    assert (comparison["closer"], comparison["farther"]) == ("near", "far") and comparison["p_value"] < 1e-3
    assert "1 of 1 pair of generators are told apart by cmmd" in said.out
    assert "warning the smallest set has 60 images; below 10,000, the released numbers are too large" in said.words
    again = run_for_output("distance", *words, "generators=[far]")
    assert "loading the models" not in again, "the features are in the store"
    only, _ = read_result(tmp_path / "store")
    assert list(only.index) == [("cmmd", "far")]
    assert only.loc[("cmmd", "far"), "value"] == table.loc[("cmmd", "far"), "value"]


def test_fid_of_few_images_has_no_interval_and_says_why(
    drawn: tuple[Path, dict[str, list[Image.Image]]], tmp_path: Path
) -> None:
    folder, sets = drawn
    checkpoint = tiny_inception.save_inception(tmp_path / "inception")
    few = tmp_path / "few"
    save_images(few / "near", 30, 1, 1000)
    words = (f"reference={folder}/reference", f"models.inception.checkpoint={checkpoint}", "distances=[fid]", *OPTIONS)
    said = run("distance", f"images={few}", *words, f"store={tmp_path}/store")
    table, _ = read_result(tmp_path / "store")
    row = table.loc[("fid", "near")]
    assert said.code == 0 and pd.isna(row["estimate"]) and pd.isna(row["low"])
    assert row["reason"] == (
        "fid: no interval, because 30 images cannot show how 18 features vary together; give 54 or more of each set, "
        "or use cmmd"
    )
    assert row["reason"] in said.words
    run_for_output("distance", f"images={folder}/images", *words, f"store={tmp_path}/store")
    table, _ = read_result(tmp_path / "store")
    weights = load_file(checkpoint / "model.safetensors")
    with torch.inference_mode():
        features = {name: torch.stack([references.compute_features(weights, image) for image in drawn_images]).double()
                    for name, drawn_images in sets.items()}  # fmt: skip
    for name in ("near", "far"):
        both = [features[name].numpy(), features["reference"].numpy()]
        covariances, shift = [np.cov(each, rowvar=False) for each in both], both[0].mean(0) - both[1].mean(0)
        roots = np.sqrt(np.linalg.eigvals(covariances[0] @ covariances[1]).astype(complex)).real.sum()
        expected = shift @ shift + np.trace(covariances[0]) + np.trace(covariances[1]) - 2 * roots
        row = table.loc[("fid", name)]
        assert row["value"] == pytest.approx(expected, rel=1e-3) and row["estimate"] < row["value"]
        assert row["low"] <= max(row["estimate"], 0) <= row["high"] and row["reason"] == ""


def test_tables_and_prompts_are_read_as_in_a_sweep_and_few_prompts_give_no_interval(tmp_path: Path) -> None:
    rows = read_image_rows("atlas", 12)
    write_rows(tmp_path / "photos/00000.parquet", [{**row, "image_id": f"photo {row['image_id']}"} for row in rows])
    write_rows(tmp_path / "images/flint/00000.parquet", read_image_rows("flint", 12))
    write_rows(tmp_path / "prompts.parquet", read_prompt_rows(12))
    words = [f"images={tmp_path}/images", f"reference={tmp_path}/photos", f"store={tmp_path}/store", *OPTIONS]
    for given in ([], [f"prompts={tmp_path}/prompts.parquet"]):
        said = run_for_output("distance", *words, *given)
        assert "cmmd: no interval, because 12 prompts cannot show how much the distance varies; give 20 or more" in said
    table, _ = read_result(tmp_path / "store")
    assert table.loc[("cmmd", "flint"), "images"] == 12 and pd.isna(table.loc[("cmmd", "flint"), "low"])


def test_an_image_that_cannot_be_decoded_is_left_out_and_counted(tmp_path: Path) -> None:
    save_images(tmp_path / "reference", 25, 1, 0)
    save_images(tmp_path / "images/near", 25, 1, 1000)
    (tmp_path / "images/near/broken.png").write_bytes(b"no image")
    words = [f"images={tmp_path}/images", f"reference={tmp_path}/reference", f"store={tmp_path}/store", *OPTIONS]
    said = run("distance", *words)
    assert said.code == 1, "one of 26 images is above max_failed"
    assert "warning the generators: 1 of 26 images have no features: 1 corrupt_image" in said.words
    assert run("distance", *words, "max_failed=0.1").code == 2
    table, _ = read_result(tmp_path / "store")
    assert table.loc[("cmmd", "near"), "images"] == 25


def test_a_large_set_is_compared_in_part_and_the_output_says_so(
    drawn: tuple[Path, dict[str, list[Image.Image]]], tmp_path: Path
) -> None:
    save_images(tmp_path / "many", 160, 1, 5000)
    words = [f"images={drawn[0]}/images", "generators=[near]", f"reference={tmp_path}/many", f"store={tmp_path}/store"]
    said = run_for_output("distance", *words, *OPTIONS, "cmmd_images=100")
    table, _ = read_result(tmp_path / "store")
    used = int(table.loc[("cmmd", "near"), "reference_images"])
    assert 70 < used < 130
    assert f"cmmd: a random part was compared, 60 of 60 images of near and {used} of 160 reference images" in said


@pytest.fixture
def scored(drawn: tuple[Path, dict[str, list[Image.Image]]], tmp_path: Path) -> Path:
    """Score the drawn images with prompts, under a generator's name with a tag; return the folder with the store."""
    for name, first, generator in (("near", 1000, "near"), ("far", 2000, "<b>far")):
        (tmp_path / "images" / generator).mkdir(parents=True)
        for number in range(60):
            copy = tmp_path / "images" / generator / f"{number:03d}.png"
            copy.write_bytes((drawn[0] / "images" / name / f"{first + number:04d}.png").read_bytes())
    (tmp_path / "images/prompts.txt").write_text("\n".join(f"cloud number {number}" for number in range(60)))
    words = (f"images={tmp_path}/images", f"store={tmp_path}/store", "metric=[edge_density]", "cluster=here")
    run_for_output("score", *words)
    return tmp_path


def read_report_section(store: Path) -> str:
    """Return the text of the section about distances in the newest run's report."""
    page = (find_newest_run_folder(store) / "report.html").read_text()
    section = page.partition('<section id="distances">')[2].partition("</section>")[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", section)).split())


def test_the_report_of_a_run_shows_the_distances_of_its_generators(
    scored: Path, drawn: tuple[Path, dict[str, list[Image.Image]]]
) -> None:
    store = scored / "store"
    words = (f"reference={drawn[0]}/reference", f"store={store}", *OPTIONS)
    said = run("distance", *words)
    assert said.code == 0 and f"report: {find_newest_run_folder(store)}/report.html" in said.words
    assert not (store / "distances").exists()
    table, _ = read_result(find_newest_run_folder(store))
    section = read_report_section(store)
    title = "CMMD from reference, lower is closer"
    assert title in section and f"60 reference images of {drawn[0]}/reference." in section
    far = table.loc[("cmmd", "<b>far")]
    numbers = f"{far['value']:.3f} {far['estimate']:.3f} {far['low']:.3f} to {far['high']:.3f}"
    assert f"<b>far 60 {numbers} b" in section, "the name is shown as text"
    assert "1 of 1 pair of generators are told apart by cmmd." in section
    assert "Warning: the smallest set has 60 images; below 10,000, the released numbers are too large" in section
    checkpoint = tiny_inception.save_inception(scored / "inception")
    run_for_output("distance", *words, "distances=[fid]", f"models.inception.checkpoint={checkpoint}")
    run_for_output("distance", *words)
    section = read_report_section(store)
    assert section.count(title) == 1, "the newest result replaces the one before"
    assert "FID from reference, lower is closer" in section
    assert section.count("Warning: the smallest set") == 1
    assert title in run_for_output("report", f"store={store}")


def test_a_damaged_result_of_a_run_is_named_with_the_remedy(
    scored: Path, drawn: tuple[Path, dict[str, list[Image.Image]]]
) -> None:
    store = scored / "store"
    run_for_output("distance", f"reference={drawn[0]}/reference", f"store={store}", *OPTIONS)
    (path,) = find_newest_run_folder(store).glob("distances/*/distances.json")
    path.write_text(path.read_text().replace('"value"', '"values"'))
    said = run_refused("report", f"store={store}")
    assert f"{path}: expected the results of plumbline distance, found a damaged file; delete its folder" in said


def test_without_images_a_store_with_a_run_is_needed(
    drawn: tuple[Path, dict[str, list[Image.Image]]], tmp_path: Path
) -> None:
    said = run_refused("distance", f"reference={drawn[0]}/reference", f"store={tmp_path}/store", *OPTIONS)
    assert f"{tmp_path}/store" in said


def encode_png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reference={folder}/nowhere"], "reference"),
        (["reference={folder}/empty"], "expected image files or Parquet tables of images, found no files; correct"),
        (["reference={folder}/reference", "distances=[]"], "distances: expected one or more of cmmd, fid, got none"),
        (["reference={folder}/reference", "distances=[kid]"], "expected 'cmmd' or 'fid', got 'kid'"),
        (
            ["reference={folder}/reference", "~models.clip"],
            "models: cmmd needs a model for role 'clip'; set +model@models.clip=NAME",
        ),
        (
            ["reference={folder}/reference", "+models.clip={family: blip_itm, checkpoint: a/b}"],
            "does not describe an image by itself; use a clip, dino or inception model",
        ),
        (
            ["reference={folder}/reference", "distances=[fid]", "models.inception.checkpoint={folder}/reference"],
            "config.json",
        ),
        ([], "reference"),
    ],
)
def test_invalid_input_is_refused_in_one_line(
    words: list[str], message: str, drawn: tuple[Path, dict[str, list[Image.Image]]], tmp_path: Path
) -> None:
    folder, _ = drawn
    (folder / "empty").mkdir(exist_ok=True)
    given = [word.replace("{folder}", str(folder)) for word in words]
    options = [word for word in OPTIONS if not any("models.clip" in each for each in given)]
    said = run_refused("distance", f"images={folder}/images", f"store={tmp_path}/store", *options, *given)
    assert message in said


def test_a_dry_run_computes_nothing(drawn: tuple[Path, dict[str, list[Image.Image]]], tmp_path: Path) -> None:
    folder, _ = drawn
    words = [f"images={folder}/images", f"reference={folder}/reference", f"store={tmp_path}/store", *OPTIONS]
    said = run_for_output("distance", *words, "dry_run=true")
    assert "reference: 60 images" in said and "generators: 120 images" in said
    assert not (tmp_path / "store/distances").exists() and not (tmp_path / "store/cells").exists()
