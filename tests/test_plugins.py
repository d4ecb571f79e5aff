"""An installed package can extend ours, as docs/plugins.md promises for the example package."""

import base64
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
import requests
import torch
from PIL import Image
from transformers import AutoTokenizer, ChineseCLIPConfig, ChineseCLIPModel
from transformers.models.auto.image_processing_auto import AutoImageProcessor

from tests.bench_of import read_image_rows, write_benchmark
from tests.operators import tiny
from tests.serving import TOKEN, RunningService, run_service

ROOT = Path(__file__).parent.parent
EXAMPLE_FOLDER = ROOT / "docs/example_plugin"
LIST_COMMANDS_SCRIPT = """
import json, sys
from plumbline.jobs.command import run_job
from plumbline.jobs.table import JOBS
for name, *words in json.loads(sys.argv[1]):
    job = JOBS[name]
    if code := run_job(job.COMMAND, job.main, words):
        sys.exit(code)
"""
"""Script that runs the commands in its argument, a JSON list of lists of words, until one fails."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the example package with pip into a folder, and return the folder."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE_FOLDER, folder / "source")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", folder / "site"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, folder / "source"], check=True)
    return folder / "site"


def run_python(site: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    return subprocess.run([sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True)


def save_chinese_clip(folder: Path) -> Path:
    torch.manual_seed(0)
    text = {**tiny.TEXT_FIELDS, "initializer_range": 0.4}
    network = ChineseCLIPModel(ChineseCLIPConfig(text_config=text, vision_config=tiny.VISION_FIELDS, projection_dim=16))
    network.save_pretrained(folder)
    tiny.save_tokenizer(folder, template="<s> $A </s>")
    tiny.save_preprocessor(folder)
    return folder


def compute_cosine(folder: Path, image: bytes, text: str) -> float:
    """Return the cosine similarity of an image and a text, computed by transformers."""
    model, processor = ChineseCLIPModel.from_pretrained(folder).eval(), AutoImageProcessor.from_pretrained(folder)
    pixels = processor(images=Image.open(io.BytesIO(image)).convert("RGB"), return_tensors="pt")["pixel_values"]
    ids = AutoTokenizer.from_pretrained(folder)([text], return_tensors="pt").input_ids
    with torch.no_grad():
        output = model(input_ids=ids, pixel_values=pixels)
    return float(output.image_embeds[0] @ output.text_embeds[0])


class PackageOutput(NamedTuple):
    """The folder that the commands for the example package wrote to, and the text that they printed."""

    folder: Path
    text: str

    @property
    def run(self) -> Path:
        return self.folder / "store/runs" / (self.folder / "store/runs/latest").read_text().strip()

    def scores(self, metric: str) -> dict[tuple[str, str], float]:
        rows = pq.read_table(self.run / "scores.parquet").to_pylist()
        return {(row["generator"], row["image_id"]): row["score"] for row in rows if row["metric"] == metric}


@pytest.fixture(scope="module")
def printed(site: Path, tmp_path_factory: pytest.TempPathFactory) -> PackageOutput:
    """Run a sweep, exports and other jobs with the example package's metrics, questions, model family and formats."""
    folder = tmp_path_factory.mktemp("run")
    bench = write_benchmark(folder / "bench", count=4)
    prompts = pq.read_table(bench / "prompts.parquet").to_pylist()
    lines = [{"id": row["prompt_id"], "says": row["text"], "asks": "is there a circle?"} for row in prompts]
    (folder / "riddles.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "likes.csv").write_text("image,person,liked\na,p,yes\nb,p,no\nc,p,yes\nd,p,no\n")
    (folder / "scores.csv").write_text("image_id,clip\na,0.9\nb,0.1\nc,0.4\nd,0.5\n")
    (folder / "guesses.txt").write_text("i1 up\n")
    store, clip = f"store={folder}/store", save_chinese_clip(folder / "chinese_clip")
    commands = [
        ["sweep", "sweep=own_images", "benchmark=riddles", f"benchmark.questions={folder}/riddles.jsonl",
         f"benchmark.images={bench}/images", "models=shapes", "metric=[vqascore,doubt,riddles,clipscore,sketched]",
         "models.clip.family=chinese_clip", f"models.clip.checkpoint={clip}", "cluster=here", store],
        ["rewards", "format=better", f"output={folder}/better", store, "held_out=0", "selection.margin=0"],
        ["export", "format=sheet", f"output={folder}/sheet", store],
        ["publish", "sink=notes", store],
        ["metaeval", "protocol=thumbs", f"protocol.path={folder}/likes.csv", f"scores={folder}/scores.csv",
         f"output={folder}/judged"],
        ["worst", "by=doubt", store],
        ["accumulate", f"answers={folder}/guesses.txt", "format=thumbs", f"output={folder}/guessed.parquet"],
    ]  # fmt: skip
    done = run_python(site, "-c", LIST_COMMANDS_SCRIPT, json.dumps(commands))
    assert done.returncode == 0, done.stdout + done.stderr
    return PackageOutput(folder, done.stdout)


@pytest.mark.parametrize(
    ("job", "choices"),
    [("metaeval", {"thumbs"}), pytest.param("sweep", {"doubt", "riddles"}, marks=pytest.mark.slow)],
)
def test_help_offers_the_choices_of_an_installed_package(job: str, choices: set[str], site: Path) -> None:
    assert choices <= set(run_python(site, "-m", f"jobs.{job}", "--help-all").stdout.split())


def test_a_packages_metric_is_scored_and_ranked_and_reported(printed: PackageOutput) -> None:
    likelihoods, doubts = printed.scores("vqascore"), printed.scores("doubt")
    assert len(doubts) == 8 and all(doubts[key] == pytest.approx(1 - likelihoods[key]) for key in doubts)
    assert "doubt" in printed.text
    assert "counts how unlikely it finds that" in (printed.run / "report.html").read_text()


def test_a_package_adds_stages_that_build_on_each_other(printed: PackageOutput) -> None:
    """The chain consists of the stages image, sketch, opinion and score, in this order."""
    scores = printed.scores("sketched")
    tables = {stage: _read_cells(printed.folder / "store" / stage) for stage in ("sketches", "opinions")}
    assert len(scores) == 8 and all(row["description"] for row in tables["sketches"])
    assert sorted(row["p_entail"] for row in tables["opinions"]) == sorted(scores.values())


def _read_cells(stage: Path) -> list[dict[str, Any]]:
    return [row for file in stage.rglob("*.parquet") for row in pq.read_table(file).to_pylist()]


def test_a_package_adds_questions_and_a_benchmark(printed: PackageOutput) -> None:
    answered = printed.scores("riddles")
    assert len(answered) == 8 and set(answered.values()) <= {0.0, 1.0}


def test_a_package_adds_a_job(printed: PackageOutput, site: Path) -> None:
    doubts = printed.scores("doubt")
    (generator, image_id), lowest = min(doubts.items(), key=lambda item: item[1])
    assert f"{generator} {image_id}: {lowest:.3f}" in printed.text
    assert (
        "  worst            An example job: shows the image with the lowest score"
        in run_python(site, "-m", "plumbline.jobs").stdout
    )


def test_a_package_adds_a_model_family(printed: PackageOutput) -> None:
    """The scores are the cosines that transformers' own model computes."""
    prompts = {
        row["prompt_id"]: row["text"] for row in pq.read_table(printed.folder / "bench/prompts.parquet").to_pylist()
    }
    scores = printed.scores("clipscore")
    for row in pq.read_table(printed.folder / "bench/images/atlas").to_pylist():
        expected = compute_cosine(printed.folder / "chinese_clip", row["image"], prompts[row["prompt_id"]])
        assert scores["atlas", row["image_id"]] == pytest.approx(expected, abs=1e-5)


def test_a_package_adds_formats_and_a_sink(printed: PackageOutput) -> None:
    rows = [json.loads(line) for line in (printed.folder / "better/train.jsonl").read_text().splitlines()]
    assert rows and {row["better"] for row in rows} <= {"atlas", "flint"}
    assert len((printed.folder / "sheet.scores.csv").read_text().splitlines()) == 1 + 5 * 8
    assert f"numbers of {printed.run.name}" in printed.text


def test_a_package_adds_a_protocol_and_released_answers(printed: PackageOutput) -> None:
    judged = pq.read_table(printed.folder / "judged/judgements.parquet").to_pylist()
    found = [(row["metric"], row["statistic"], row["value"], row["n"]) for row in judged]
    assert found == [("clip", "auroc", 0.75, 4), ("people", "unsure", 0.0, 4)]
    guessed = pq.read_table(printed.folder / "guessed.parquet").select(["image_id", "metric", "score"]).to_pylist()
    assert guessed == [{"image_id": "i1", "metric": "thumbs", "score": 1.0}]


@pytest.fixture(scope="module")
def service(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    log = tmp_path_factory.mktemp("service") / "log"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{site}{os.pathsep}{ROOT}")
        with run_service(log, "metric=[vqascore,doubt]", "reward=doubt") as running:
            yield running


@pytest.mark.slow
def test_the_reward_service_serves_a_packages_metric_and_its_wire_format(service: RunningService) -> None:
    encoded = read_image_rows("atlas", 1)[0]["image"]
    asked: dict[str, Any] = {"images": [base64.b64encode(encoded).decode()], "prompts": ["three red circles"]}
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    url = f"http://127.0.0.1:{service.port}"
    scores = requests.post(f"{url}/score", json=asked, headers=bearer, timeout=60).json()
    hexadecimal = {"prompt": "three red circles", "hex": encoded.hex()}
    rewarded = requests.post(f"{url}/hexadecimal", json=hexadecimal, headers=bearer, timeout=60).json()
    assert "doubt" in json.dumps(scores)
    assert rewarded["reward"] == pytest.approx(-1 + _find_score(scores, "vqascore"), abs=1e-5)


def _find_score(value: Any, metric: str) -> float:
    """Return a metric's score from a JSON reply, at any depth."""
    found = value.get(metric) if isinstance(value, dict) else None
    if found is not None:
        return float(found[0] if isinstance(found, list) else found["score"] if isinstance(found, dict) else found)
    parts = value.values() if isinstance(value, dict) else value
    return next(
        _find_score(part, metric) for part in parts if isinstance(part, dict | list) and metric in json.dumps(part)
    )


BROKEN_PACKAGE = """
import sys
print("a package that prints")
from dataclasses import dataclass, field
from typing import Literal
from pathlib import Path
from plumbline.extending import VqaScoreConfig
class Unshown(type):
    def __repr__(self):
        raise RuntimeError
class Ghost(metaclass=Unshown):
    pass
@dataclass(frozen=True, kw_only=True, slots=True)
class OddConfig(VqaScoreConfig):
    kind: Literal["odd"] = "odd"
    weights: object = field(default_factory=lambda: {"first": [object()]})
CONF = Path(__file__).parent / "conf"
def __getattr__(name):
    raise {"Ends": SystemExit(0), "Long": RuntimeError("no " * 10**6)}[name]
"""


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ghost", "nowhere:Ghost", "No module named 'nowhere'"),
        ("path", "pathlib:Path", "expected a Metric"),
        ("dsg", "pathlib:Path", "both declare plumbline.metrics 'dsg'"),
        ("ghost", "broken:Ghost", "expected a Metric, got a value of type Unshown"),
        ("ends", "broken:Ends", "SystemExit: 0"),
        ("long", "broken:Long", "RuntimeError: no no "),
        ("twin", "plumbline.extending:VqaScoreConfig", "expected the kind 'twin', found 'vqascore'"),
        ("odd", "broken:OddConfig", "option 'weights': expected a default of plain values"),
        ("../../up", "broken:Up", "'../../up': expected up to 100"),
        ("\x1b[31mred", "broken:Red", "\\x1b[31mred': expected up to 100"),
    ],
)
def test_a_package_that_cannot_be_used_is_refused_by_name_in_one_line(
    name: str, value: str, said: str, tmp_path: Path
) -> None:
    """The command hides anything that the package itself prints."""
    line = read_refusal(tmp_path, "metrics", name, value)
    assert said in line and line.startswith("error: ") and line.count("\n") == 1 and len(line) < 600


def test_a_package_without_its_folder_of_choices_is_refused_by_name_in_one_line(tmp_path: Path) -> None:
    line = read_refusal(tmp_path, "conf", "forgotten", "broken:CONF")
    assert line.startswith("error: conf 'forgotten' of plumbline-broken 2.0") and line.count("\n") == 1
    assert f"{tmp_path / 'conf'}: no such folder; add it to the package's data" in line


def read_refusal(tmp_path: Path, group: str, name: str, value: str) -> str:
    """Return the line that a command prints about a package with this entry point."""
    installed = tmp_path / "plumbline_broken-2.0.dist-info"  # as pip leaves it
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.4\nName: plumbline-broken\nVersion: 2.0\n")
    (installed / "entry_points.txt").write_text(f"[plumbline.{group}]\n{name} = {value}\n")
    (tmp_path / "broken.py").write_text(BROKEN_PACKAGE)
    done = run_python(tmp_path, "-m", "jobs.status", f"store={tmp_path}")
    line = done.stderr.removeprefix("a package that prints\n")
    assert done.returncode in (1, 64) and done.stdout == "" and "plumbline-broken 2.0" in line
    return line
