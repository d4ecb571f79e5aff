"""ARCHITECTURE.md's lists of what to edit, followed to the letter in a copy of the tree: what they add, works.

The files are those of tests/added, each at its place; `LINES` are the lines that name them.
"""

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoTokenizer, ChineseCLIPConfig, ChineseCLIPModel

from tests.bench_of import write_benchmark
from tests.environment import ROOT
from tests.operators import tiny

SCHEMAS = """
SKETCHES = pa.schema([*_IMAGE_COLUMNS, ("description", pa.string()), ("error", ERROR), *_STANDS_ON])
OPINIONS = pa.schema([*_IMAGE_COLUMNS, ("p_entail", pa.float32()), ("error", ERROR), *_STANDS_ON])

SCORES = """


def _class(room: str, name: str, added: str, first: str) -> list[tuple[str, str, str]]:
    """The edits that put a class of a file into its room's table, before its first one."""
    imported = "\nfrom collections.abc import Mapping\n"
    module = f"from plumbline.operators.{room}.{name} import {added}\n"
    table = f"operators/{room}/table.py"
    return [(table, imported, imported + module), (table, first, first.replace("(", f"({added},", 1))]


LINES = [
    *_class("metrics", "doubt", "DoubtConfig", "= (\n    VqaScoreConfig,"),
    *_class("metrics", "sketched", "SketchedConfig", "= (DoubtConfig,"),
    *_class("stages", "opinions", "OpinionsStage", "in (\n        QuestionsStage,"),
    *_class("stages", "sketches", "SketchesStage", "in (OpinionsStage,"),
    ("operators/rows.py", "\nSCORES = ", SCHEMAS),
    ("operators/models/families/__init__.py", "NAMES = (", 'NAMES = ("chinese_clip",'),
    ("operators/rewards/formats/__init__.py", "NAMES = (", 'NAMES = ("better",'),
    ("operators/wires/table.py", "= (UniRl", "= (MineWire(), UniRl"),
    ("operators/wires/table.py", "\nfrom plumbline.operators.wires.pickled", "\nfrom plumbline.operators.wires.mine "
     "import MineWire\nfrom plumbline.operators.wires.pickled"),
    ("pipelines/judging/releases/readers.py", "RELEASES = (", 'RELEASES = ("thumbs",'),
    ("pipelines/judging/answers/__init__.py", "FORMATS = (", 'FORMATS = ("thumbs",'),
    ("pipelines/sources/question_packs/__init__.py", "PACKS = (", 'PACKS = ("riddles",'),
    ("pipelines/exports/formats/__init__.py", "NAMES = (", 'NAMES = ("sheet",'),
    ("pipelines/sinks/__init__.py", "NAMES = (", 'NAMES = ("notes",'),
]  # fmt: skip
"""In which file what becomes what."""
JOBS = """
import contextlib, importlib, io, json, sys
from plumbline.jobs.command import run_job
for line in sys.stdin:
    job, *words = json.loads(line)
    module, printed = importlib.import_module(f"plumbline.jobs.{job}"), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = run_job(module.COMMAND, module.main, words)
    print(json.dumps([code, printed.getvalue()]), flush=True)
"""
"""Commands one after the other in one process, as they are typed."""
Run = Callable[..., str]
"""What a job prints in the copy; it ends well."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code and its configuration to which all is added, beside a small benchmark."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("jobs", "pipelines", "operators", "conf"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "plumbline", tree / "plumbline", symlinks=True)
    (tree / "assets").symlink_to(ROOT / "assets")
    shutil.copytree(ROOT / "tests/added", tree, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in LINES:
        text = (tree / name).read_text()
        assert text.count(old) == 1, f"{name} has one place for {new}"
        (tree / name).write_text(text.replace(old, new))
    write_benchmark(tree / "bench", count=4)
    return tree


@pytest.fixture(scope="module")
def run(tree: Path) -> Iterator[Run]:
    command = [sys.executable, "-c", JOBS]
    with subprocess.Popen(command, cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        commands, replies = process.stdin, process.stdout
        assert commands is not None and replies is not None

        def run(*words: str) -> str:
            commands.write(json.dumps(words) + "\n")
            commands.flush()
            code, printed = json.loads(replies.readline())
            assert code == 0, printed
            return str(printed)

        yield run
        commands.close()


Scores = dict[str, list[dict[str, Any]]]
"""The rows of a run by their metric."""


def run_scores(store: Path) -> Scores:
    """Of the store's newest run."""
    run = store / "runs" / (store / "runs/latest").read_text().strip()
    rows = pq.read_table(run / "scores.parquet").to_pylist()
    return {metric: [row for row in rows if row["metric"] == metric] for metric in {row["metric"] for row in rows}}


@pytest.fixture(scope="module")
def scores(tree: Path, run: Run) -> Scores:
    """A sweep over the added benchmark by the added metrics, stages and model family."""
    given = ["sweep=own_images", "benchmark=mine", "models=shapes", "cluster=here"]
    given += ["metric=[vqascore,clipscore,doubt,sketched]"]
    given += ["models.clip.family=chinese_clip", f"models.clip.checkpoint={save_chinese_clip(tree / 'chinese_clip')}"]
    assert "means; sharing a letter" in run("sweep", *given)
    found = run_scores(tree / "store")
    assert {metric: len(rows) for metric, rows in found.items()} == dict.fromkeys(found, 8)
    return found


def values(rows: list[dict[str, Any]]) -> list[float]:
    return [row["score"] for row in rows]


def test_a_benchmark_and_a_metric_are_files_a_line_and_options(scores: Scores) -> None:
    assert values(scores["doubt"]) == pytest.approx([1 - score for score in values(scores["vqascore"])])


def test_stages_over_images_chain_and_each_is_a_file_a_schema_and_a_line(tree: Path, scores: Scores) -> None:
    """Image to sketch to opinion to score."""
    cells = {stage: (tree / "store" / stage).rglob("*.parquet") for stage in ("sketches", "opinions")}
    said, judged = ([row for file in files for row in pq.read_table(file).to_pylist()] for files in cells.values())
    assert len(said) == 8 and all(row["description"] for row in said)
    assert sorted(row["p_entail"] for row in judged) == sorted(values(scores["sketched"]))


def save_chinese_clip(folder: Path) -> Path:
    """A tiny Chinese CLIP of random weights."""
    torch.manual_seed(0)
    text = {**tiny.TEXT_FIELDS, "initializer_range": 0.4}
    network = ChineseCLIPModel(ChineseCLIPConfig(text_config=text, vision_config=tiny.VISION_FIELDS, projection_dim=16))
    network.save_pretrained(folder)
    tiny.save_tokenizer(folder, template="<s> $A </s>")
    tiny.save_preprocessor(folder)
    return folder


def test_a_model_family_is_a_file_and_a_line(tree: Path, scores: Scores) -> None:
    """Its cosines are those of transformers."""
    folder = tree / "chinese_clip"
    model, processor = ChineseCLIPModel.from_pretrained(folder).eval(), AutoImageProcessor.from_pretrained(folder)
    texts = {row["prompt_id"]: row["text"] for row in pq.read_table(tree / "bench/prompts.parquet").to_pylist()}
    rows = pq.read_table(tree / "bench/images/atlas/00000.parquet").to_pylist()
    pictures = [Image.open(io.BytesIO(row["image"])).convert("RGB") for row in rows]
    tokens = AutoTokenizer.from_pretrained(folder)([texts[row["prompt_id"]] for row in rows], padding=True)
    with torch.no_grad():
        images = model.get_image_features(processor(images=pictures, return_tensors="pt")["pixel_values"])
        output = model.get_text_features(**{name: torch.tensor(value) for name, value in tokens.items()})
    vectors = [torch.nn.functional.normalize(getattr(one, "pooler_output", one)) for one in (images, output)]
    expected = dict(zip((row["image_id"] for row in rows), (vectors[0] * vectors[1]).sum(1).tolist(), strict=True))
    found = {row["image_id"]: row["score"] for row in scores["clipscore"] if row["generator"] == "atlas"}
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_format_of_training_data_is_a_file_and_a_line(tree: Path, run: Run, scores: Scores) -> None:
    run("rewards", "format=better", "output=better", "metric=[clipscore]", "held_out=0", "selection.margin=0")
    rows = [json.loads(line) for line in (tree / "better/train.jsonl").read_text().splitlines()]
    assert len(rows) == 4 and {row["better"] for row in rows} <= {"atlas", "flint"}


def test_a_format_of_tables_is_a_file_and_a_line(tree: Path, run: Run, scores: Scores) -> None:
    for written in (32, 0):
        assert f"{written} of 32 rows written" in run("export", "format=sheet", f"output={tree}/out")
    assert len((tree / "out.scores.csv").read_text().splitlines()) == 33


def test_a_sink_is_a_file_and_a_line(run: Run, scores: Scores) -> None:
    assert " numbers of " in run("publish", "sink=notes")


def test_a_release_is_a_file_a_name_and_a_protocol(tree: Path, run: Run) -> None:
    (tree / "likes.csv").write_text("image,person,liked\na,p,yes\nb,p,no\nc,p,yes\nd,p,no\n")
    (tree / "scores.csv").write_text("image_id,clip\na,0.9\nb,0.1\nc,0.4\nd,0.5\n")
    given = ["protocol.path=likes.csv", "scores=scores.csv", "output=judged"]
    assert "agreement with likert" in run("metaeval", "protocol=thumbs", *given)
    judged = pq.read_table(tree / "judged/judgements.parquet").to_pylist()
    assert [(row["metric"], row["statistic"], row["value"], row["n"]) for row in judged] == [("clip", "auroc", 0.75, 4)]


def test_released_answers_are_a_file_and_a_name(tree: Path, run: Run) -> None:
    (tree / "thumbs.txt").write_text("i1 up\n")
    run("accumulate", "answers=thumbs.txt", "format=thumbs", "output=accumulated.parquet")
    (row,) = pq.read_table(tree / "accumulated.parquet").to_pylist()
    assert (row["image_id"], row["metric"], row["score"]) == ("i1", "thumbs", 1.0)


def test_a_question_pack_is_a_file_a_name_and_two_configs(tree: Path, run: Run) -> None:
    known = pq.read_table(tree / "bench/prompts.parquet").to_pylist()
    lines = [{"id": one["prompt_id"], "says": one["text"], "asks": "is there a circle?"} for one in known]
    (tree / "riddles.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = [
        "sweep=own_images",
        "benchmark=riddles",
        "benchmark.questions=riddles.jsonl",
        "benchmark.images=bench/images",
    ]
    assert "riddles" in run("sweep", *given, "models=shapes", "metric=[riddles]", "store=riddled", "cluster=here")
    assert set(values(run_scores(tree / "riddled")["riddles"])) <= {0.0, 1.0}


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
    done = subprocess.run([sys.executable, "-c", ASK_MINE], cwd=tree, capture_output=True, text=True, check=True)
    assert float(done.stdout) == 3.0
