"""ARCHITECTURE.md's lists of what to edit, followed to the letter in a copy of the tree: what they add, works."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoImageProcessor, AutoTokenizer, ChineseCLIPConfig, ChineseCLIPModel

from tests.bench_of import write_benchmark
from tests.operators import tiny
from tests.operators.report.made import make_run

ROOT = Path(__file__).parent.parent
SWEEP_HERE = """
import sys
from plumbline.jobs.command import run_job
from plumbline.jobs.sweep import COMMAND, main
from plumbline.pipelines.sweeps import sweep
from tests.here import compute_here

sweep._compute = compute_here
sys.exit(run_job(COMMAND, main))
"""
"""A sweep that computes its stages in its own process: that Ray runs what was added is no question here."""

RELEASE = '''"""Thumbs: whether one person likes an image.

Source: nobody's; a CSV with image, person and liked (yes or no).
"""

from plumbline.pipelines.judging.releases.release import Release, column_ratings, released
from plumbline.pipelines.judging.releases.tables import read_sheet
from plumbline.pipelines.base.storage import Location


def read(location: Location) -> Release:
    """Yes as a rating of 1, no as 0."""
    sheet = read_sheet(location).require(("image", "person", "liked"), "is this Thumbs' file?")
    likes = [float(answer == "yes") for answer in sheet.ids("liked")]
    return released(ratings=column_ratings(sheet, sheet.ids("image"), sheet.texts("prompt"), likes))
'''
ANSWERS = '''"""Thumbs: a line for every image, its name and up or down."""

from collections.abc import Sequence

from plumbline.pipelines.judging.answers.answer import Answer, Answered
from plumbline.pipelines.judging.releases.tables import read_text
from plumbline.pipelines.base.storage import Location


def read(location: Location, given: Sequence[str]) -> Answered:
    """Up as right."""
    lines = [line.split() for line in read_text(location).splitlines()]
    return Answered([Answer("thumbs", name, None, None, "q", said == "up", (), location.url) for name, said in lines])
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

from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.metric import Evidence
from plumbline.operators.metrics.vqascore import VqaScoreConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class DoubtConfig(VqaScoreConfig):
    """VQAScore, turned round."""

    kind: Literal["doubt"] = "doubt"  # type: ignore[assignment]

    def score(self, evidence: Evidence) -> Scored:
        """1 minus the likelihood of the answer."""
        scored = VqaScoreConfig.score(self, evidence)
        return scored if scored.score is None else scored._replace(score=1 - scored.score)
'''
SKETCHES = '''"""The sketches stage: what a model says that an image shows."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import pyarrow as pa

from plumbline.operators import rows
from plumbline.operators.batches import isolate
from plumbline.operators.errors import RowError
from plumbline.operators.images import PreparedImages
from plumbline.operators.models.calls import Question
from plumbline.operators.stages.images import ImagesStage
from plumbline.operators.stages.stage import Inputs


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


class SketchesStage(ImagesStage):
    """Images to sketches (schema SKETCHES)."""

    name = "sketches"
    version = 1
    schema = rows.SKETCHES
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
        return rows.table(records, rows.SKETCHES)
'''
OPINIONS = '''"""The opinions stage: the probability that an image's description entails its prompt."""

from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa

from plumbline.operators import rows
from plumbline.operators.batches import isolate
from plumbline.operators.errors import RowError, unknown_prompt
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.stages.stage import Inputs, Stage, StageOptions, texts_of


class OpinionsStage(Stage):
    """Sketches (schema SKETCHES) and prompts to opinions (schema OPINIONS)."""

    name = "opinions"
    version = 1
    schema = rows.OPINIONS
    over = "images"
    needs = Metric
    calls: ClassVar = {"nli": "entailment"}
    reads_rows = False

    @classmethod
    def reads(cls, metric: Metric) -> tuple[str, ...]:
        return ("sketches",)

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.model = models["nli"]

    def prepare(self, inputs: Inputs) -> Mapping[str, list[dict[str, Any]]]:
        texts = texts_of(inputs.prompts)
        tables = {name: inputs.upstream[name]["sketches"].read().to_pylist() for name in inputs.metrics}
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
        return rows.table(records, rows.OPINIONS)
'''
FORMAT = '''"""Which generator made the better image."""

from plumbline.operators.rewards.formats.format import Format, Sample


def _rows(sample: Sample) -> list[dict[str, str]]:
    return [{"prompt": sample.prompt, "better": sample.best.generator, "worse": sample.worst.generator}]


FORMAT = Format(unit="pair", container="jsonl", images="none", rows=_rows)
'''
TABLE = '''"""Sheets: a CSV that is only added to."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv

from plumbline.pipelines.exports.standing import count_parts


class Sheet:
    def __init__(self, path):
        self.path, self.url = path, str(path)

    def standing(self, benchmark):
        return count_parts(csv.read_csv(self.path).to_batches()) if self.path.exists() else []

    def write(self, rows, *, fresh):
        assert fresh
        csv.write_csv(rows, self.path)

    def remove_unnamed(self, benchmark, stale):
        raise NotImplementedError


def open_table(place, schema):
    return Sheet(Path(f"{place.location.path}.{place.table}.csv"))
'''
SCHEMAS = """
SKETCHES = pa.schema([*_IMAGE_COLUMNS, ("description", pa.string()), ("error", ERROR), *_STANDS_ON])
OPINIONS = pa.schema([*_IMAGE_COLUMNS, ("p_entail", pa.float32()), ("error", ERROR), *_STANDS_ON])

SCORES = """
SKETCHED = '''"""Sketched: whether what a model says that an image shows entails the prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.metric import Evidence, Metric


@dataclass(frozen=True, kw_only=True, slots=True)
class SketchedConfig(Metric):
    """Which models describe and judge."""

    kind: Literal["sketched"] = "sketched"
    model: str = "vqa"
    nli: str = "nli"

    @property
    def chain(self) -> tuple[str, ...]:
        return "sketches", "opinions", "scores"

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
    shutil.copytree(ROOT / "plumbline", tmp_path / "tree" / "plumbline", symlinks=True)
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
    package = f"from plumbline.operators.{room.name}"
    edit(room / "table.py", f"{package}.{above} ", f"{package}.{name} import {added}\n{package}.{above} ")
    return added


def add_metric(tree: Path, name: str, module: str) -> None:
    """A file of its own, its line in the table, and its options for a sweep."""
    config = add_class(tree / "operators/metrics", f"{name.title()}Config", name, module, above="dsg")
    edit(tree / "operators/metrics/table.py", "= (\n    VqaScoreConfig,", f"= (\n    {config},\n    VqaScoreConfig,")
    (tree / f"conf/metric/{name}.yaml").write_text(f"# @package metrics.{name}\nkind: {name}\n")


def add_stage(tree: Path, name: str, module: str) -> None:
    """A file of its own and its line in the table; its schema comes with it in rows.py."""
    stage = add_class(tree / "operators/stages", f"{name.title()}Stage", name, module, above="scores")
    edit(tree / "operators/stages/table.py", "\n        ScoresStage,", f"\n        {stage},\n        ScoresStage,")


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
    """Image to sketch to opinion to score."""
    add_stage(tree, "sketches", SKETCHES)
    add_stage(tree, "opinions", OPINIONS)
    edit(tree / "operators/rows.py", "\nSCORES = ", SCHEMAS)
    add_metric(tree, "sketched", SKETCHED)
    store = tmp_path / "store"
    scores = scores_of(tree, store, write_benchmark(tmp_path / "bench", count=4), "sketched", "vqascore")
    assert len(scores["sketched"]) == 8 and None not in scores["sketched"]
    said = [row for file in (store / "sketches").rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert len(said) == 8 and all(row["description"] for row in said)
    judged = [row for file in (store / "opinions").rglob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert sorted(row["p_entail"] for row in judged) == sorted(score or 0.0 for score in scores["sketched"])


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


def test_released_answers_are_a_file_and_a_name(tree: Path, tmp_path: Path) -> None:
    (tree / "pipelines/judging/answers/thumbs.py").write_text(ANSWERS)
    table = tree / "pipelines/judging/answers/__init__.py"
    table.write_text(table.read_text().replace('"tifa")', '"thumbs", "tifa")'))
    (tmp_path / "thumbs.txt").write_text("i1 up\n")
    given = [f"answers={tmp_path}/thumbs.txt", "format=thumbs", f"output={tmp_path}/scores.parquet"]
    python(tree, "-m", "jobs.accumulate", *given)
    assert pq.read_table(tmp_path / "scores.parquet").select(["image_id", "metric", "score"]).to_pylist() == [
        {"image_id": "i1", "metric": "thumbs", "score": 1.0}
    ]


def test_a_benchmark_is_a_file(tree: Path, tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", count=4)
    (tree / "conf/benchmark/mine.yaml").write_text(BENCHMARK.format(folder=folder))
    given = ["sweep=own_images", "benchmark=mine", "models=shapes", "metric=[clipscore]", f"store={tmp_path}/store"]
    assert "means; sharing a letter" in python(tree, "-c", SWEEP_HERE, *given)
    scores = run_scores(tmp_path / "store")
    assert len(scores) == 8 and all(row["score"] is not None for row in scores)


PACK = '''"""Riddles: a question a line."""

from plumbline.pipelines.sources.question_packs.pack import (
    Convention, PackRow, PackRows, read_lines, read_rows, the_id, the_text
)
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.pipelines.base.storage import Location


def read(place: Location, convention: Convention) -> PackRows:
    """The questions of a JSON Lines file."""

    def row(line):
        asked = WrittenQuestion("1", the_text(line.values, "asks"), ("yes", "no"), "yes")
        yield PackRow(line.where, the_id(line.values, "id"), the_text(line.values, "says"), asked)

    return read_rows(read_lines(place), row)
'''
PACK_BENCHMARK = """# Riddles.
defaults:
  - /any_benchmark@_here_
  - _self_

name: riddles
questions: ???
question_pack: riddles
prompts: ${.questions}
"""
PACK_METRIC = "# @package metrics.riddles\ndefaults:\n  - /any_question_pack@_here_\n"


def test_a_question_pack_is_a_file_a_name_and_two_configs(tree: Path, tmp_path: Path) -> None:
    (tree / "pipelines/sources/question_packs/riddles.py").write_text(PACK)
    edit(tree / "pipelines/sources/question_packs/__init__.py", "PACKS = (", 'PACKS = ("riddles", ')
    (tree / "conf/benchmark/riddles.yaml").write_text(PACK_BENCHMARK)
    (tree / "conf/metric/riddles.yaml").write_text(PACK_METRIC)
    folder = write_benchmark(tmp_path / "bench", count=4)
    known = pq.read_table(folder / "prompts.parquet").to_pylist()
    lines = [{"id": one["prompt_id"], "says": one["text"], "asks": "is there a circle?"} for one in known]
    (tmp_path / "riddles.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ["sweep=own_images", "benchmark=riddles", f"benchmark.questions={tmp_path}/riddles.jsonl"]
    given += [f"benchmark.images={folder}/images", "models=shapes", "metric=[riddles]", f"store={tmp_path}/store"]
    assert "riddles" in python(tree, "-c", SWEEP_HERE, *given)
    assert {row["score"] for row in run_scores(tmp_path / "store")} <= {0.0, 1.0}


def test_a_format_of_training_data_is_a_file_and_a_line(tree: Path, tmp_path: Path) -> None:
    (tree / "operators/rewards/formats/better.py").write_text(FORMAT)
    edit(tree / "operators/rewards/formats/__init__.py", "NAMES = (\n", 'NAMES = (\n    "better",\n')
    scores_of(tree, tmp_path / "store", write_benchmark(tmp_path / "bench", count=4), "clipscore")
    options = [f"store={tmp_path}/store", "held_out=0", "selection.margin=0"]
    python(tree, "-m", "jobs.rewards", "format=better", f"output={tmp_path}/out", *options)
    rows = [json.loads(line) for line in (tmp_path / "out/train.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and {row["better"] for row in rows} <= {"atlas", "flint"}


def test_a_format_of_tables_is_a_file_and_a_line(tree: Path, tmp_path: Path) -> None:
    (tree / "pipelines/exports/formats/sheet.py").write_text(TABLE)
    edit(tree / "pipelines/exports/formats/__init__.py", 'NAMES = ("', 'NAMES = ("sheet", "')
    run = make_run(tmp_path)
    for written in (72, 0):
        said = python(tree, "-m", "jobs.export", "format=sheet", f"output={tmp_path}/out", f"store={run.store.url}")
        assert f"{written} of 72 rows written" in said
    assert len((tmp_path / "out.scores.csv").read_text().splitlines()) == 73


SINK = '''"""Notes: a tracker that only counts."""


def publish(run):
    return f"{len(run.numbers)} numbers of {run.run_id}"
'''


def test_a_sink_is_a_file_and_a_line(tree: Path, tmp_path: Path) -> None:
    (tree / "pipelines/sinks/notes.py").write_text(SINK)
    edit(tree / "pipelines/sinks/__init__.py", 'NAMES = ("', 'NAMES = ("notes", "')
    run = make_run(tmp_path)
    said = python(tree, "-m", "jobs.publish", "sink=notes", f"store={run.store.url}")
    assert f"published: 72 numbers of {run.run_id}" in said


SCORE_ONE = """
import sys
from plumbline.operators.models.checkpoints import ModelConfig, resolve_model
from plumbline.operators.models.loading import load
model = resolve_model(ModelConfig(family="chinese_clip", checkpoint=sys.argv[1]), on_gpu=False)
assert "torch" not in sys.modules, "planning needs no network"
from plumbline.operators.models.calls import Pair
from tests.operators import tiny
similarity = load(model, "similarity")
images = similarity.encode([similarity.preprocess(tiny.picture(0))])
print(similarity.compare(images, [Pair(0, "a red circle")])[0].similarity)
"""


def save_chinese_clip(folder: Path) -> Path:
    """A tiny Chinese CLIP of random weights."""
    torch.manual_seed(0)
    text = {**tiny.TEXT_FIELDS, "initializer_range": 0.4}
    network = ChineseCLIPModel(ChineseCLIPConfig(text_config=text, vision_config=tiny.VISION_FIELDS, projection_dim=16))
    network.save_pretrained(folder)
    tiny.save_tokenizer(folder, template="<s> $A </s>")
    tiny.save_preprocessor(folder)
    return folder


def cosine(folder: Path, text: str) -> float:
    """That of the first picture and a text, as transformers has it."""
    model, processor = ChineseCLIPModel.from_pretrained(folder).eval(), AutoImageProcessor.from_pretrained(folder)
    pixels = processor(images=tiny.picture(0), return_tensors="pt")["pixel_values"]
    ids = AutoTokenizer.from_pretrained(folder)([text], return_tensors="pt").input_ids
    with torch.no_grad():
        output = model(input_ids=ids, pixel_values=pixels)
    return float(output.image_embeds[0] @ output.text_embeds[0])


def test_a_model_family_is_a_file_and_a_line(tree: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "tests/added/chinese_clip.py", tree / "operators/models/families/chinese_clip.py")
    table = tree / "operators/models/families/__init__.py"
    table.write_text(table.read_text().replace("NAMES = (\n", 'NAMES = (\n    "chinese_clip",\n'))
    folder = save_chinese_clip(tmp_path / "chinese_clip")
    assert float(python(tree, "-c", SCORE_ONE, str(folder))) == pytest.approx(cosine(folder, "a red circle"), abs=1e-5)
    bench = write_benchmark(tmp_path / "bench", count=4)
    (tree / "conf/benchmark/mine.yaml").write_text(BENCHMARK.format(folder=bench))
    given = ["sweep=own_images", "benchmark=mine", "models=shapes", "metric=[clipscore]", f"store={tmp_path}/store"]
    given += ["models.clip.family=chinese_clip", f"models.clip.checkpoint={folder}"]
    assert "means; sharing a letter" in python(tree, "-c", SWEEP_HERE, *given)
    assert all(row["score"] is not None for row in run_scores(tmp_path / "store"))


WIRE = '''"""Mine: a prompt and an image in hexadecimal."""

from collections.abc import Sequence
from typing import Any

from plumbline.operators.wires.wire import Answers, Asked, JsonWire, Reply, Served, as_json, numbers


class MineWire(JsonWire):
    """POST /mine {prompt, hex} -> {mine}."""

    name = "mine"
    path = "/mine"
    purpose = "Mine."

    def read(self, document: Any, served: Served) -> list[Asked]:
        return [Asked((bytes.fromhex(document["hex"]),), document["prompt"], served.one())]

    def answer(self, asked: Sequence[Asked], answers: Answers, served: Served) -> Reply:
        return as_json({"mine": numbers(answers, served)[0]})
'''
ASK_MINE = """
from starlette.testclient import TestClient
from plumbline.operators.wires.wire import Answer, Served
from plumbline.pipelines.serving.app import Gate, make_app
from plumbline.pipelines.serving.config import LoadConfig
from plumbline.pipelines.serving.counts import Counts
from plumbline.pipelines.serving.service import Service

async def score(batch, metrics):
    return [{name: Answer(float(len(one.images[0]))) for name in metrics} for one in batch]

gate = Gate(Service(score, Served({"m": "recipe"}, "m"), LoadConfig(), Counts()), None, Counts(), None)
print(TestClient(make_app(gate, ["*"])).post("/mine", json={"prompt": "p", "hex": "ffd8ff"}).json()["mine"])
"""


def test_a_wire_is_a_file_and_a_line(tree: Path) -> None:
    (tree / "operators/wires/mine.py").write_text(WIRE)
    table = tree / "operators/wires/table.py"
    before, line, after = table.read_text().partition("from plumbline.operators.wires.pickled")
    listed = after.replace("= (", "= (MineWire(), ", 1)
    table.write_text(f"{before}from operators.wires.mine import MineWire\n{line}{listed}")
    assert float(python(tree, "-c", ASK_MINE)) == 3.0
