"""plumbline score gives images GenEval's scores, with tiny detectors of true architecture and the embedded CLIP."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from plugins.detected_objects.tests import geneval_reference
from plugins.detected_objects.tests.geneval_reference import Boxes
from plugins.detected_objects.tests.reference_detectors import KINDS
from plugins.detected_objects.tests.test_geneval_rules import METADATA, write_metadata
from plumbline.plugins.detected_objects.geneval_rules import COLORS
from tests.commands import find_newest_run_folder, run_for_output, run_refused
from tests.environment import ROOT
from tests.operators.models.families.library import load_network, load_tokenizer
from tests.operators.tiny import IMAGE_MEAN, IMAGE_STD, detectors, draw_image, encode_image
from tests.operators.tiny.rewards import save_blip2_itm

TAGS = [tag for tag in METADATA if tag != "several"]
"""Tags of the drawn images: those of the release's prompts."""
GENERATORS = ("flux", "sdxl")
N_SAMPLES = 3
CLIP_FOLDER = ROOT / "assets/clip-shapes"
CLIP_SIDE = 48
"""Side in pixels of the images that the embedded CLIP reads."""


def draw_sample(generator: str, tag: str, sample: int) -> Image.Image:
    """Draw a sample; the first sample for each prompt has a palette, from which CLIP's own code resizes differently."""
    seed = 100 * GENERATORS.index(generator) + 10 * TAGS.index(tag) + sample
    image = draw_image(seed, width=64 + 8 * (seed % 3), height=56 + 8 * (seed % 2))
    return image.quantize(16) if sample == 0 else image


def name_colors(image: Image.Image, name: str, boxes: Boxes) -> Sequence[str]:
    """Return each box's colour, as the release does: by CLIP, with three texts for each colour."""
    model = load_network("CLIPModel", CLIP_FOLDER)
    tokenizer, weights = load_tokenizer(CLIP_FOLDER), []
    for color in COLORS:
        texts = [f"a photo of a {color} {name}", f"a photo of a {color}-colored {name}", f"a photo of a {color} object"]
        inputs = tokenizer(texts, padding=True, return_tensors="pt")
        features = model.get_text_features(**inputs).pooler_output
        mean = (features / features.norm(dim=1, keepdim=True)).mean(dim=0)
        weights.append(mean / mean.norm())
    colors = []
    for box in boxes:
        # a box without area, or outside the image, is one pixel of the image
        left, top, right, bottom = np.clip(np.round(box[:4]), 0, [*image.size, *image.size])
        left, top = min(left, image.width - 1), min(top, image.height - 1)
        part = image.crop((left, top, max(right, left + 1), max(bottom, top + 1)))
        scale = CLIP_SIDE / min(part.size)
        resized = part.resize([int(side * scale) for side in part.size], Image.Resampling.BICUBIC)
        left, top = (round((side - CLIP_SIDE) / 2) for side in resized.size)
        values = np.asarray(resized.crop((left, top, left + CLIP_SIDE, top + CLIP_SIDE))) / 255
        pixels = torch.tensor(((values - IMAGE_MEAN) / IMAGE_STD).transpose(2, 0, 1), dtype=torch.float32)
        features = model.get_image_features(pixel_values=pixels[None]).pooler_output[0]
        colors.append(COLORS[int((torch.stack(weights) @ features).argmax())])
    return colors


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draw images in the layout of the release's generation script, one folder per generator."""
    folder = tmp_path_factory.mktemp("images")
    for generator in GENERATORS:
        for number, tag in enumerate(TAGS):
            samples = folder / f"{generator}/{number:05}/samples"
            samples.mkdir(parents=True)
            line = {"tag": tag, **METADATA[tag], "prompt": f"a photo, {tag}"}
            (samples.parent / "metadata.jsonl").write_text(json.dumps(line))
            for sample in range(N_SAMPLES):
                (samples / f"{sample:04}.png").write_bytes(encode_image(draw_sample(generator, tag, sample)))
    return folder


def list_words(folder: Path, images: Path, family: str) -> list[str]:
    """Return the arguments of jobs.score for the images, with a detector in `folder`."""
    return [
        f"images={images}", "metric=[geneval]", "benchmark.question_pack=geneval",
        f"benchmark.questions={write_metadata(folder / 'evaluation_metadata.jsonl')}", f"store={folder}/store",
        "cluster=here", f"+models.detector={{family: {family}, checkpoint: '{folder}/detector'}}",
        "model@models.color_classifier=clip_shapes",
    ]  # fmt: skip


@pytest.mark.parametrize("family", KINDS)
def test_an_image_is_scored_by_the_releases_rules_with_a_detectors_boxes(
    family: str, images: Path, tmp_path: Path
) -> None:
    kind = KINDS[family]
    detector = kind.save(tmp_path / "detector")
    options = {
        "threshold": kind.threshold, "counting_threshold": kind.threshold + 0.1,
        "max_overlap": 0.7, "position_threshold": 0.05,
    }  # fmt: skip
    words = [f"metrics.geneval.{name}={value}" for name, value in options.items()]
    run_for_output("score", *list_words(tmp_path, images, family), *words)
    folder = find_newest_run_folder(tmp_path / "store")
    scores = pd.read_parquet(folder / "scores.parquet").set_index("image_id")["score"]
    expected: dict[str, dict[str, list[float]]] = {generator: {} for generator in GENERATORS}
    for generator in GENERATORS:
        for number, tag in enumerate(TAGS):
            for sample in range(N_SAMPLES):
                image = draw_sample(generator, tag, sample).convert("RGB")
                found = {name: kind.detect(detector, image, name) for name in ("bench", "cat")}
                correct = geneval_reference.is_correct(
                    {"tag": tag, **METADATA[tag]}, found, partial(name_colors, image), **options
                )
                assert scores[f"{generator}/{number:05}/samples/{sample:04}.png"] == correct
                expected[generator].setdefault(tag, []).append(float(correct))
    assert set(scores) == {0.0, 1.0}, "some of the drawn images are right, and some are wrong"
    means = {generator: [np.mean(of_task) for of_task in tasks.values()] for generator, tasks in expected.items()}
    page = (folder / "report.html").read_text()
    assert "GenEval by task" in page and all(f"{np.mean(of_tasks):.3f}" in page for of_tasks in means.values())


def test_the_reasons_are_stored_with_the_scores(images: Path, tmp_path: Path) -> None:
    detectors.save_owlv2(tmp_path / "detector")
    words = list_words(tmp_path, images, "owlv2")
    run_for_output("score", *words, "metrics.geneval.threshold=0.999")
    (file, *_) = (tmp_path / "store/scores").rglob("*.parquet")
    rows: list[dict[str, Any]] = pd.read_parquet(file).to_dict("records")
    counting = next(row for row in rows if len(row["elements"]) == 2 and "excluded" in row["elements"][1]["text"])
    assert counting["score"] == 0 and counting["rationale"] == "expected cat>=2, found 0"
    assert [(one["given"], one["score"]) for one in counting["elements"]] == [
        ("expected cat>=2, found 0", 0.0), ("met", 1.0),
    ]  # fmt: skip


def test_the_colour_is_that_of_the_object(tmp_path: Path) -> None:
    """All objects in a red image are red, so a red cat is right there and wrong in a blue image."""
    detectors.save_owlv2(tmp_path / "detector")
    for color in ("red", "blue"):
        samples = tmp_path / f"images/{color}/00003/samples"
        samples.mkdir(parents=True)
        line = {"tag": "colors", **METADATA["colors"], "prompt": "a photo, colors"}
        (samples.parent / "metadata.jsonl").write_text(json.dumps(line))
        (samples / "0000.png").write_bytes(encode_image(Image.new("RGB", (64, 64), color)))
    run_for_output("score", *list_words(tmp_path, tmp_path / "images", "owlv2"), "metrics.geneval.threshold=0")
    read = {file.parent.name: pd.read_parquet(file) for file in (tmp_path / "store/scores").rglob("*.parquet")}
    assert {color: tuple(table.loc[0, ["score", "rationale"]]) for color, table in read.items()} == {
        "red": (1.0, ""),
        "blue": (0.0, "expected red cat>=1, found 0 red; and 1 blue"),
    }


def test_a_model_that_cannot_name_colours_is_refused_before_any_work(images: Path, tmp_path: Path) -> None:
    detectors.save_owlv2(tmp_path / "detector")
    matcher = save_blip2_itm(tmp_path / "itm")
    words = list_words(tmp_path, images, "owlv2")
    words[-1] = f"+models.color_classifier={{family: blip_itm, checkpoint: '{matcher}'}}"
    line = run_refused("score", *words)
    assert "metrics.geneval.classifier: geneval needs a" in line and "is a blip_itm" in line


def test_without_the_packs_requirements_the_metric_is_refused(images: Path, tmp_path: Path) -> None:
    line = run_refused("score", f"images={images}", "metric=[geneval]", f"store={tmp_path}/store", "cluster=here")
    assert "it needs questions that come with the benchmark; set benchmark.questions" in line
