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
METRIC = '''"""Doubt: how unlikely the VQA model finds the opposite of what is asked."""

from dataclasses import dataclass
from typing import Literal

from operators.metrics.answered import Scored
from operators.metrics.metric import Evidence
from operators.metrics.vqascore import VqaScoreConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DoubtConfig(VqaScoreConfig):
    """VQAScore, turned round."""

    kind: Literal["doubt"] = "doubt"  # type: ignore[assignment]

    def score(self, evidence: Evidence) -> Scored:
        """1 minus the likelihood of the answer."""
        scored = VqaScoreConfig.score(self, evidence)
        return scored if scored.score is None else scored._replace(score=1 - scored.score)
'''
DESCRIPTIONS = '''"""The descriptions stage: what a model says that an image shows."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from operators import rows
from operators.batches import isolate
from operators.errors import RowError
from operators.images import PreparedImages
from operators.models.calls import Question
from operators.stages.images import ImagesStage
from operators.stages.stage import Inputs


@runtime_checkable
class DescribingMetric(Protocol):
    """A metric that has images described."""

    def describing(self) -> str:
        """What the model is asked."""


class Asked(NamedTuple):
    """What is asked about every image."""

    text: str

    def basis(self, prompt_id: str | None) -> str:
        return rows.basis_of(self.text)


class DescriptionsStage(ImagesStage):
    """Images to descriptions (schema DESCRIPTIONS)."""

    name = "descriptions"
    version = 1
    schema = rows.DESCRIPTIONS
    needs = DescribingMetric
    calls: ClassVar = {"model": "likelihood"}

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"describing": metric.describing()}

    def asked(self, inputs: Inputs) -> Mapping[str, Asked]:
        return {name: Asked(self.metrics[name].describing()) for name in inputs.metrics}

    def measure(self, images: PreparedImages, asked: Mapping[str, Asked]) -> Mapping[str, pa.Table]:
        features = self.model.encode(images.pixels)
        return {name: self._table(images, features, one) for name, one in asked.items()}

    def _table(self, images: PreparedImages, features: Any, asked: Asked) -> pa.Table:
        questions = [Question(image, asked.text, ()) for image in range(len(images.pixels))]
        replies = iter(isolate(lambda batch: self.model.reply(features, batch), questions))
        records = []
        for row, digest, error in zip(images.rows, images.digests, images.errors, strict=True):
            reply = error or next(replies)
            said = {"error": rows.error_value(reply)} if isinstance(reply, RowError) else {"description": reply}
            records.append(row.row(image_digest=digest, basis=asked.basis(None), **said))
        return rows.table(records, rows.DESCRIPTIONS)
'''
VERDICTS = '''"""The verdicts stage: the probability that an image's description entails its prompt."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa

from operators import rows
from operators.batches import isolate
from operators.errors import RowError, unknown_prompt
from operators.metrics.metric import Metric
from operators.stages.stage import Inputs, Stage, StageOptions, texts_of


class VerdictsStage(Stage):
    """Descriptions (schema DESCRIPTIONS) and prompts to verdicts (schema VERDICTS)."""

    name = "verdicts"
    version = 1
    schema = rows.VERDICTS
    over = "images"
    needs = Metric
    calls: ClassVar = {"nli": "entailment"}
    reads_rows = False

    @classmethod
    def reads(cls, metric: Metric) -> tuple[str, ...]:
        return ("descriptions",)

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.model = models["nli"]

    def prepare(self, inputs: Inputs) -> Mapping[str, list[dict[str, Any]]]:
        texts = texts_of(inputs.prompts)
        tables = {name: inputs.upstream[name]["descriptions"].read().to_pylist() for name in inputs.metrics}
        for row in (row for table in tables.values() for row in table):
            row["text"] = texts.get(row["prompt_id"])
            if row["error"] is None and row["text"] is None:
                row["error"] = rows.error_value(unknown_prompt(row["prompt_id"]))
        return tables

    def compute(self, prepared: Mapping[str, list[dict[str, Any]]]) -> Mapping[str, pa.Table]:
        return {name: self._table(described) for name, described in prepared.items()}

    def _table(self, described: list[dict[str, Any]]) -> pa.Table:
        pairs = [(row["description"], row["text"]) for row in described if row["error"] is None]
        results = iter(isolate(self.model.entailment, pairs))
        records = []
        for row in described:
            record = {name: row[name] for name in ("image_id", "prompt_id", "generator", "error", "basis")}
            if row["error"] is None:
                result = next(results)
                failed = isinstance(result, RowError)
                record |= {"error": rows.error_value(result)} if failed else {"p_entail": result}
            records.append(record)
        return rows.table(records, rows.VERDICTS)
'''
SCHEMAS = """
DESCRIPTIONS = pa.schema([*_IMAGE_COLUMNS, ("description", pa.string()), ("error", ERROR), *_STANDS_ON])
VERDICTS = pa.schema([*_IMAGE_COLUMNS, ("p_entail", pa.float32()), ("error", ERROR), *_STANDS_ON])

SCORES = """
DESCRIBED = '''"""Described: whether what a model says that an image shows entails the prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from operators.metrics.answered import Scored
from operators.metrics.metric import Evidence, Metric


@dataclass(frozen=True, kw_only=True, slots=True)
class DescribedConfig(Metric):
    """Which models describe and judge."""

    kind: Literal["described"] = "described"
    model: str = "vqa"
    nli: str = "nli"

    @property
    def chain(self) -> tuple[str, ...]:
        return "descriptions", "verdicts", "scores"

    @property
    def roles(self) -> dict[str, str]:
        return {"model": self.model, "nli": self.nli}

    def describing(self) -> str:
        return "What does this image show?"

    def scoring(self) -> Mapping[str, Any]:
        return {}

    def score(self, evidence: Evidence) -> Scored:
        return Scored(evidence.row["p_entail"])
'''


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


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, f"{file} has one place for it"
    file.write_text(text.replace(old, new))


def add_class(room: Path, added: str, name: str, module: str, *, above: str) -> str:
    """A module of a room, whose class its table imports."""
    (room / f"{name}.py").write_text(module)
    package = f"from operators.{room.name}"
    edit(room / "table.py", f"{package}.{above} ", f"{package}.{name} import {added}\n{package}.{above} ")
    return added


def add_metric(tree: Path, name: str, module: str) -> None:
    """A file of its own, its line in the table, and its options for a sweep."""
    config = add_class(tree / "operators/metrics", f"{name.title()}Config", name, module, above="dsg")
    edit(tree / "operators/metrics/table.py", "= (VqaScoreConfig,", f"= ({config}, VqaScoreConfig,")
    (tree / f"conf/metric/{name}.yaml").write_text(f"# @package metrics.{name}\nkind: {name}\n")


def add_stage(tree: Path, name: str, module: str) -> None:
    """A file of its own and its line in the table; its schema comes with it in rows.py."""
    stage = add_class(tree / "operators/stages", f"{name.title()}Stage", name, module, above="scores")
    edit(tree / "operators/stages/table.py", " ScoresStage)", f" {stage}, ScoresStage)")


def scores_of(tree: Path, store: Path, folder: Path, *metrics: str) -> dict[str, list[float | None]]:
    """The scores by metric of a sweep in the copy."""
    given = ["sweep=own_images", f"benchmark.prompts={folder}/prompts.parquet", f"benchmark.images={folder}/images"]
    given += ["benchmark.name=small", "models=shapes", f"metric=[{','.join(metrics)}]", f"store={store}"]
    python(tree, "-c", SWEEP_HERE, *given)
    scores = run_scores(store)
    return {metric: [row["score"] for row in scores if row["metric"] == metric] for metric in metrics}


def test_a_metric_is_a_file_a_line_and_its_options(tree: Path, tmp_path: Path) -> None:
    add_metric(tree, "doubt", METRIC)
    scores = scores_of(tree, tmp_path / "store", write_benchmark(tmp_path / "bench", count=4), "vqascore", "doubt")
    assert len(scores["doubt"]) == 8
    assert scores["doubt"] == pytest.approx([1 - (score or 0.0) for score in scores["vqascore"]])


def test_stages_over_images_chain_and_each_is_a_file_a_schema_and_a_line(tree: Path, tmp_path: Path) -> None:
    """Image to description to verdict to score."""
    add_stage(tree, "descriptions", DESCRIPTIONS)
    add_stage(tree, "verdicts", VERDICTS)
    edit(tree / "operators/rows.py", "\nSCORES = ", SCHEMAS)
    add_metric(tree, "described", DESCRIBED)
    store = tmp_path / "store"
    scores = scores_of(tree, store, write_benchmark(tmp_path / "bench", count=4), "described", "vqascore")
    assert len(scores["described"]) == 8 and None not in scores["described"]
    said = [row for file in (store / "descriptions").rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert len(said) == 8 and all(row["description"] for row in said)
    judged = [row for file in (store / "verdicts").rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert sorted(row["p_entail"] for row in judged) == sorted(score or 0.0 for score in scores["described"])


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
