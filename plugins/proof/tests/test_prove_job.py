"""Our scores of public images are compared with published ones, and the report can be sent to others.

Everything comes from a local hub folder with tiny checkpoints; nothing is downloaded.
"""

import csv
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import save_file

import plumbline
from plumbline.jobs.command import get_command, load_values
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.plugins.proof.proof_config import ProveConfig
from plumbline.plugins.proof.proof_report import read_report, remove_paths
from plumbline.plugins.proof.proving import choose_metrics
from tests.commands import run_refused
from tests.environment import ROOT
from tests.operators import tiny
from tests.operators.models.hub_server import COMMIT as SERVED_COMMIT
from tests.operators.models.hub_server import serve_hub
from tests.operators.tiny import rewards

COMMIT = "5" * 40
CLIP, DATA, WRAPPED, BASE = "acme/tiny-clip", "acme/images", "acme/wrapped-clip", "acme/open-clip"
PROMPTS = ("a red circle", "a blue square", "a green star")
SOURCE = "acme/scores, scores.csv"


class Hub(NamedTuple):
    """A folder in the layout of the hub's cache, and the scores of its images."""

    folder: Path
    images: tuple[bytes, ...]
    cosines: tuple[float, ...]
    """The tiny CLIP's cosines, computed by `plumbline.score`."""
    wrapped_cosines: tuple[float, ...]

    def prove(self, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run `plumbline prove` offline, with this folder as the hub's cache."""
        settings = {"HF_HUB_CACHE": str(self.folder), "HF_HUB_OFFLINE": "1", "HF_TOKEN": "hf_secret"}
        return prove(folder, settings, *words)


def prove(folder: Path, settings: Mapping[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    """Run `plumbline prove` on the CPU in a folder, with the proofs in its folder `choices` and these hub settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    command = [sys.executable, "-m", "plumbline.jobs", "prove", "device=cpu", "precisions=[float32]"]
    environment = inherited | settings | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        [*command, "--config-dir", "choices", *words], cwd=folder, env=environment, capture_output=True, text=True
    )


def add_repository(hub: Path, kind: str, repo: str) -> Path:
    """Add a repository to the hub's cache; return the path where the snapshot for `main` belongs."""
    entry = hub / f"{kind}--{repo.replace('/', '--')}"
    (entry / "refs").mkdir(parents=True)
    (entry / "refs/main").write_text(COMMIT)
    (entry / "snapshots").mkdir()
    return entry / "snapshots" / COMMIT


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Hub:
    folder = tmp_path_factory.mktemp("hub")
    tiny.save_clip(add_repository(folder, "models", CLIP))
    wrapped = add_repository(folder, "models", WRAPPED)
    wrapped.mkdir()
    weights = {f"model.{name}": tensor.contiguous() for name, tensor in rewards.make_open_clip().state_dict().items()}
    save_file(weights, wrapped / "model.safetensors")
    rewards.save_open_clip(add_repository(folder, "models", BASE), seed=5)
    images = tuple(encode_png(seed) for seed in range(len(PROMPTS)))
    data = add_repository(folder, "datasets", DATA)
    (data / "images").mkdir(parents=True)
    for place, image in enumerate(images):
        (data / f"images/{place}.png").write_bytes(image)
    write_csv(data / "metadata.csv", ("file", "text", "id"), [(f"images/{n}.png", PROMPTS[n], n) for n in range(3)])
    rows = [{"image": {"bytes": image, "path": None}, "caption": text, "id": f"{n}"} for n, (image, text) in enumerate(
        zip(images, PROMPTS, strict=True)
    )]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), data / "data.parquet")
    reference = rewards.save_open_clip(tmp_path_factory.mktemp("reference") / "clip")
    clip = folder / f"models--{CLIP.replace('/', '--')}/snapshots/{COMMIT}"
    return Hub(
        folder,
        images,
        compute_cosines(images, "clipscore", f"models.clip.checkpoint={clip}", "models.clip.revision=null"),
        compute_cosines(images, "hpsv2", f"models.hpsv2.checkpoint={reference}"),
    )


def encode_png(seed: int) -> bytes:
    stream = io.BytesIO()
    tiny.draw_image(seed).save(stream, "PNG")
    return stream.getvalue()


def compute_cosines(images: tuple[bytes, ...], metric: str, *options: str) -> tuple[float, ...]:
    scored = plumbline.score([*images], [*PROMPTS], metric, models="released", options=options)
    return tuple(scored["score"])


def write_csv(file: Path, names: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Path:
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([names, *rows])
    return file


def write_proof(folder: Path, name: str, **proof: Any) -> None:
    """Write an option for the config group `proof` into the folder `choices`, as JSON, which is valid YAML."""
    file = folder / f"choices/proof/{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"# @package proofs.{name}\n{json.dumps(proof)}\n")


def make_clip_proof(scores: Path, **others: Any) -> dict[str, Any]:
    """Return a proof config for the tiny CLIP: its images are on the hub, its published scores in a local file."""
    published = {
        "source": SOURCE,
        "expected": {"float32": 0.001},
        "table": {
            "file": f"hf://datasets/{DATA}@main/metadata.csv",
            "image": "file",
            "images": f"hf://datasets/{DATA}@main",
            "prompt": "text",
        },
        "scores": {"file": str(scores), "score": "score", "same": ["id"]},
    }
    options = [f"models.clip.checkpoint={CLIP}", "models.clip.revision=main"]
    return {"metric": "clipscore", "options": options, "memory": 0.1, "published": [published]} | others


def test_published_scores_agree_and_too_large_or_missing_checkpoints_are_skipped(hub: Hub, tmp_path: Path) -> None:
    scores = write_csv(tmp_path / "scores.csv", ("score", "id"), [(value, n) for n, value in enumerate(hub.cosines)])
    write_proof(tmp_path, "small", **make_clip_proof(scores))
    write_proof(tmp_path, "large", **make_clip_proof(scores, memory=1e6))
    write_proof(tmp_path, "absent", **make_clip_proof(scores, options=["models.clip.checkpoint=acme/absent"]))
    ended = hub.prove(tmp_path, "proof=[small,large,absent]", "timed_pairs=4", "precisions=[bfloat16,float32]")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "large: skipped: does not fit in bfloat16: needs about 1e+06 GB" in ended.stdout
    assert "absent: skipped: model 'acme/absent'" in ended.stdout and ended.stdout.endswith("report: proof/report.md\n")
    text = (tmp_path / "proof/report.md").read_text()
    assert "| small | clipscore | float32 | 3 | 0.00000 | 0.001 | 0.0" in text
    assert "| large | clipscore | | | | | | skipped | |" in text
    for private in (str(tmp_path), str(hub.folder), str(Path.home()), "hf_secret"):
        assert private not in text
    report = read_report(tmp_path / "proof/report.md")
    small, large, absent = report["checkpoints"]
    assert [each["verdict"] for each in (small, large, absent)] == ["agrees", "not compared", "not compared"]
    assert small["parts"]["checkpoint"] == f"{CLIP}@{COMMIT}" and small["runs"]["float32"]["timed_pairs"] == 4
    assert small["runs"]["float32"]["pairs_per_second"] > 0
    (compared,) = small["sets"]
    assert [image["sha256"] for image in compared["images"]] == [
        hashlib.sha256(each).hexdigest() for each in hub.images
    ]
    assert [image["ours"]["float32"] for image in compared["images"]] == pytest.approx(hub.cosines, abs=1e-5)
    assert 0 < compared["rounding"] < 0.02 and compared["differences"]["bfloat16"]["largest"] > 0
    assert {"torch", "transformers", "cuda", "python", "plumbline-t2i"} <= report["machine"]["versions"].keys()
    assert report["exit_code"] == 0 and "acme/absent" in absent["skipped"]


def test_a_wrong_score_and_an_image_without_a_score_are_reported_with_exit_code_1(hub: Hub, tmp_path: Path) -> None:
    wrong = [hub.cosines[0], hub.cosines[1] + 0.25, -1]
    rows = [(value, f"{n}") for n, value in enumerate(wrong)]
    table = {"file": f"hf://datasets/{DATA}@main/data.parquet", "image": "image", "prompt": "caption"}
    joined = {"file": str(write_csv(tmp_path / "scores.csv", ("score", "id"), rows)), "score": "score", "key": "id"}
    published = {"source": SOURCE, "table": table, "scores": joined | {"missing": -1}, "expected": {"float32": 0.001}}
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    listed = {"source": "a broken file", "rows": [{"image": str(broken), "prompt": PROMPTS[0], "score": 0.5}]}
    write_proof(tmp_path, "wrong", **make_clip_proof(tmp_path, published=[published]))
    write_proof(tmp_path, "broken", **make_clip_proof(tmp_path, published=[listed]))
    ended = hub.prove(tmp_path, "proof=[wrong,broken]", "timed_pairs=0")
    print(ended.stdout)  # the page shows it
    assert ended.returncode == 1, ended.stderr
    wrong_result, broken_result = read_report(tmp_path / "proof/report.md")["checkpoints"]
    assert wrong_result["verdict"] == broken_result["verdict"] == "differs"
    found = wrong_result["sets"][0]["differences"]["float32"]
    assert found["images"] == 2 and found["largest"] == pytest.approx(0.25, abs=1e-5)  # the third score is missing
    assert broken_result["sets"][0]["differences"]["float32"]["unscored"] == 1
    assert "**differs**" in (tmp_path / "proof/report.md").read_text()


def test_a_release_under_other_names_is_converted_once_and_compared(hub: Hub, tmp_path: Path) -> None:
    rows = [
        {"image": f"hf://datasets/{DATA}@main/images/{n}.png", "prompt": PROMPTS[n], "score": score}
        for n, score in enumerate(hub.wrapped_cosines)
    ]
    other = rows[0] | {"sha256": "0" * 64}
    absent = {"source": "no such data set", "rows": [rows[0] | {"image": "hf://datasets/acme/none@main/1.png"}]}
    published = [
        {"source": SOURCE, "rows": rows, "expected": {"float32": 0.001}},
        {"source": "another file", "rows": [other]},
        absent,
    ]
    conversion = {"release": "open_clip", "weights": f"hf://{WRAPPED}@main/model.safetensors", "base": BASE}
    write_proof(tmp_path, "wrapped", metric="hpsv2", memory=0.1, conversion=conversion, published=published)
    ended = hub.prove(tmp_path, "proof=wrapped", "timed_pairs=0")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (result,) = read_report(tmp_path / "proof/report.md")["checkpoints"]
    assert result["verdict"] == "agrees" and result["converted_from"] == f"hf://{WRAPPED}@{COMMIT}/model.safetensors"
    assert "expected the SHA-256 0000" in result["sets"][1]["skipped"]
    assert "acme/none@main/1.png: cannot be downloaded" in result["sets"][2]["skipped"]
    folder = tmp_path / f"proof/wrapped-{COMMIT[:12]}"
    before = (folder / "open_clip_model.safetensors").stat().st_mtime_ns
    shutil.rmtree(hub.folder / f"models--{BASE.replace('/', '--')}")  # a second run needs no base
    again = hub.prove(tmp_path, "proof=wrapped", "timed_pairs=0")
    assert again.returncode == 0 and (folder / "open_clip_model.safetensors").stat().st_mtime_ns == before


def test_a_checkpoint_is_downloaded_within_the_limit_and_a_refused_one_is_named(hub: Hub, tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(hub.images[0])
    rows = [{"image": str(image), "prompt": PROMPTS[0], "score": hub.cosines[0]}]
    for name, repo in (("small", CLIP), ("gated", "acme/gated")):
        published = {"source": SOURCE, "rows": rows, "expected": {"float32": 0.001}}
        options = [f"models.clip.checkpoint={repo}", "models.clip.revision=null"]
        write_proof(tmp_path, name, metric="clipscore", options=options, memory=0.1, published=[published])
    with serve_hub({CLIP: hub.folder / f"models--{CLIP.replace('/', '--')}/snapshots/{COMMIT}"}) as server:
        server.refusals["acme/gated"] = 403
        settings = server.environment(tmp_path / "home")
        words = ("proof=[small,gated]", "timed_pairs=0")
        refused = prove(tmp_path, settings, *words, "max_download=0.000001")
        downloaded = [*(tmp_path / "home").rglob("*.safetensors")]  # only its header was read
        ended = prove(tmp_path, settings, *words)
    assert refused.returncode == 1 and not downloaded, refused.stdout + refused.stderr
    assert "small: skipped: the download is 0.0 GB, more than max_download=1e-06" in refused.stdout
    assert "gated: skipped: model 'acme/gated' at revision 'main': the hub answered 403" in refused.stdout
    assert ended.returncode == 0, ended.stdout + ended.stderr
    small, gated = read_report(tmp_path / "proof/report.md")["checkpoints"]
    assert small["verdict"] == "agrees" and small["parts"]["checkpoint"] == f"{CLIP}@{SERVED_COMMIT}"
    assert "answered 403" in gated["skipped"] and "127.0.0.1" not in (tmp_path / "proof/report.md").read_text()


def test_every_shipped_proof_names_one_hub_model_and_a_limit_for_each_published_score() -> None:
    config = read_config(load_values(get_command("prove"), []), ProveConfig)
    metrics = choose_metrics(config, on_gpu=True)
    checkpoints = {
        name: metric.model.checkpoint for name, metric in metrics.items() if not config.proofs[name].conversion
    }
    assert checkpoints == {
        "pickscore": "yuvalkirstain/PickScore_v1",
        "clip_vit_b16": "openai/clip-vit-base-patch16",
        "clip_flant5_xl": "zhiqiulin/clip-flant5-xl",
        "qwen3_vl_8b": "Qwen/Qwen3-VL-8B-Instruct",
    }
    assert {name for name, proof in config.proofs.items() if proof.conversion} == {"imagereward", "hpsv2"}
    for proof in config.proofs.values():
        for published in proof.published:
            table = published.table
            scored = any(row.score is not None for row in published.rows) or (
                table is not None and (table.score or published.scores) is not None
            )
            assert scored == (set(published.expected) == {"float32", "bfloat16"}) == bool(published.reason)


def test_invalid_proofs_are_refused_in_one_line(tmp_path: Path) -> None:
    assert run_refused("prove", "proof=pickscore").startswith("error: device=auto: expected a CUDA GPU, found none")
    assert "no such choice" in run_refused("prove", "proof=pikscore")
    pickled = {"release": "open_clip", "weights": "hf://xswu/HPSv2@main/HPS_v2.1_compressed.pt", "base": "acme/base"}
    write_proof(tmp_path, "pickled", metric="hpsv2", memory=1, published=[], conversion=pickled)
    folder = str(tmp_path / "choices")
    assert "expected a .safetensors file" in run_refused("prove", "--config-dir", folder, "proof=pickled", "device=cpu")
    write_proof(tmp_path, "several", metric="gecko", memory=1, published=[])
    said = run_refused("prove", "--config-dir", folder, "proof=several", "device=cpu")
    assert "proofs.several: expected one metric with one model that runs here, found the models" in said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/ann/hub/models--a/model.safetensors: damaged", ".../model.safetensors: damaged"),
        (
            "see https://user:pw@example.org/a/b?token=1 and refs/pr/1",
            "see https://***@example.org/a/b?*** and refs/pr/1",
        ),
        ("hf://acme/tiny@main/1.png: cannot be downloaded", "hf://acme/tiny@main/1.png: cannot be downloaded"),
    ],
)
def test_a_report_keeps_addresses_but_removes_paths_and_credentials(text: str, expected: str) -> None:
    assert remove_paths(text) == expected
