"""ARCHITECTURE.md's lists of what to edit, followed to the letter in a copy of the tree: what they add, works."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoImageProcessor, AutoTokenizer, SiglipConfig, SiglipImageProcessor, SiglipModel

from tests.bench_of import write_benchmark
from tests.operators import tiny

ROOT = Path(__file__).parent.parent
SWEEP_HERE = """
import sys
from jobs.command import run_job
from jobs.sweep import COMMAND, main
from pipelines import sweep
from tests.here import compute_here

sweep._compute = compute_here
sys.exit(run_job(COMMAND, main))
"""
"""A sweep that computes its stages in its own process: that Ray runs what was added is no question here."""

RELEASE = '''"""Thumbs: whether one person likes an image.

Source: nobody's; a CSV with image, person and liked (yes or no).
"""

from pipelines.judging.releases.release import Release, column_ratings, released
from pipelines.judging.releases.tables import read_sheet
from pipelines.storage import Location


def read(location: Location) -> Release:
    """Yes as a rating of 1, no as 0."""
    sheet = read_sheet(location).require(("image", "person", "liked"), "is this Thumbs' file?")
    likes = [float(answer == "yes") for answer in sheet.ids("liked")]
    return released(ratings=column_ratings(sheet, sheet.ids("image"), sheet.texts("prompt"), likes))
'''
PROTOCOL = """# Thumbs: what one person likes.
defaults:
  - /any_protocol@_here_
  - _self_

name: thumbs
path: ???                    # a CSV
tasks: [ratings]
statistics: [auroc]
rating_range: [0, 1]
"""
BENCHMARK = """# Images of mine.
defaults:
  - /any_benchmark@_here_

name: mine
prompts: {folder}/prompts.parquet
images: {folder}/images
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the code and its configuration."""
    for name in ("jobs", "pipelines", "operators", "conf", "tests"):
        shutil.copytree(ROOT / name, tmp_path / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "tree" / "assets").symlink_to(ROOT / "assets")
    return tmp_path / "tree"


def python(tree: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_scores(store: Path) -> list[dict[str, Any]]:
    """The rows of the store's newest run."""
    run = store / "runs" / (store / "runs/latest").read_text().strip()
    return list(pq.read_table(run / "scores.parquet").to_pylist())


def test_a_release_is_a_file_a_name_and_a_protocol(tree: Path, tmp_path: Path) -> None:
    (tree / "pipelines/judging/releases/thumbs.py").write_text(RELEASE)
    table = tree / "pipelines/judging/releases/readers.py"
    table.write_text(table.read_text().replace("RELEASES = (\n", 'RELEASES = (\n    "thumbs",\n'))
    (tree / "conf/protocol/thumbs.yaml").write_text(PROTOCOL)
    (tmp_path / "likes.csv").write_text("image,person,liked\na,p,yes\nb,p,no\nc,p,yes\nd,p,no\n")
    (tmp_path / "scores.csv").write_text("image_id,clip\na,0.9\nb,0.1\nc,0.4\nd,0.5\n")
    given = [f"protocol.path={tmp_path}/likes.csv", f"scores={tmp_path}/scores.csv", f"output={tmp_path}/judged"]
    assert "agreement with likert" in python(tree, "-m", "jobs.metaeval", "protocol=thumbs", *given)
    judged = pq.read_table(tmp_path / "judged/judgements.parquet").to_pylist()
    assert [(row["metric"], row["statistic"], row["value"], row["n"]) for row in judged] == [("clip", "auroc", 0.75, 4)]


def test_a_benchmark_is_a_file(tree: Path, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", count=4)
    (tree / "conf/benchmark/mine.yaml").write_text(BENCHMARK.format(folder=folder))
    given = ["sweep=own_images", "benchmark=mine", "models=shapes", "metric=[clipscore]", f"store={tmp_path}/store"]
    assert "clipscore: overall" in python(tree, "-c", SWEEP_HERE, *given)
    scores = run_scores(tmp_path / "store")
    assert len(scores) == 8 and all(row["score"] is not None for row in scores)


SCORE_ONE = """
import sys
from operators.models.checkpoints import ModelConfig, resolve_model
from operators.models.loading import load
model = resolve_model(ModelConfig(family="siglip", checkpoint=sys.argv[1]), on_gpu=False)
assert "torch" not in sys.modules, "planning needs no network"
from operators.models.calls import Pair
from tests.operators import tiny
similarity = load(model, "similarity")
images = similarity.encode([similarity.preprocess(tiny.picture(0))])
print(similarity.compare(images, [Pair(0, "a red circle")])[0].similarity)
"""


def save_siglip(folder: Path) -> Path:
    """A tiny SigLIP of random weights."""
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    text = {**size, "vocab_size": len(tiny.VOCABULARY), "max_position_embeddings": tiny.CONTEXT}
    vision = {**size, "image_size": 32, "patch_size": 8}
    SiglipModel(SiglipConfig(text_config=text, vision_config=vision)).save_pretrained(folder)
    tiny.save_tokenizer(folder, template="$A </s>")
    SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def cosine(folder: Path, text: str) -> float:
    """That of the first picture and a text, as transformers has it."""
    model, processor = SiglipModel.from_pretrained(folder).eval(), AutoImageProcessor.from_pretrained(folder)
    pixels = processor(images=tiny.picture(0), return_tensors="pt")["pixel_values"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer([text], padding="max_length", max_length=tiny.CONTEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        output = model(input_ids=ids, pixel_values=pixels)
    return float(output.image_embeds[0] @ output.text_embeds[0])


def test_a_model_family_is_a_file_and_a_line(tree: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/added/siglip.py", tree / "operators/models/families/siglip.py")
    table = tree / "operators/models/families/__init__.py"
    table.write_text(table.read_text().replace("NAMES = (\n", 'NAMES = (\n    "siglip",\n'))
    folder = save_siglip(tmp_path / "siglip")
    assert float(python(tree, "-c", SCORE_ONE, str(folder))) == pytest.approx(cosine(folder, "a red circle"), abs=1e-5)
    bench = write_benchmark(tmp_path / "bench", count=4)
    (tree / "conf/benchmark/mine.yaml").write_text(BENCHMARK.format(folder=bench))
    given = ["sweep=own_images", "benchmark=mine", "models=shapes", "metric=[clipscore]", f"store={tmp_path}/store"]
    given += ["models.clip.family=siglip", f"models.clip.checkpoint={folder}"]
    assert "clipscore: overall" in python(tree, "-c", SWEEP_HERE, *given)
    assert all(row["score"] is not None for row in run_scores(tmp_path / "store"))
