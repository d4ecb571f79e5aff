"""`make bench-gpu` works: with tiny shapes it runs on any CPU, and needs only torch and transformers."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from plumbline.operators.base.batches import BatchSize
from plumbline.operators.models.networks.vlm import ChatVlm
from tests.benchmarks.gpu import apart, flops
from tests.benchmarks.gpu.measures import Workload, make_workload, score, score_file, score_pair
from tests.benchmarks.gpu.rows import N_QUESTIONS, MeasuredModel, WorkAmounts, format_table
from tests.benchmarks.gpu.shapes import FAMILY_BY_MODEL, TINY_SHAPES
from tests.benchmarks.gpu.stage import ImageShards, measure_sweep
from tests.benchmarks.size import ROOT
from tests.s3 import S3Server

ABSENT_PACKAGES = (
    "ray vllm pyarrow pandas hydra omegaconf pydantic av ftfy scipy evalica sentencepiece s3fs llguidance torchvision "
    "mistral_common nltk"
)
"""Packages that GPU machines often lack: all of ours except torch, transformers and their dependencies."""
N_IMAGES = 3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use a single thread, because several threads on tiny matrices only wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=list(FAMILY_BY_MODEL))
def load(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workload]:
    yield make_workload(request.param, TINY_SHAPES[request.param], tmp_path, images=N_IMAGES, on_gpu=False)


@pytest.mark.parametrize("absent", ["", ABSENT_PACKAGES], ids=["all", "torch_alone"])
def test_one_command_measures_with_the_packages_of_a_gpu_machine(absent: str, tmp_path: Path) -> None:
    blocked = "import sys\n" + "\n".join(f"sys.modules[{name!r}] = None" for name in absent.split())
    (tmp_path / "sitecustomize.py").write_text(blocked)  # also in the processes of the models
    few = ["--images", "2", "--peer-pairs", "2", "--repeats", "1", "--shards", "2"]
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "--shapes", "tiny", *few, "--json", str(tmp_path / "json")]
    environment = os.environ | {
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    named = ["--models", "clip-flant5-xl", "qwen3-vl-8b"]
    ended = subprocess.run([*command, *named], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads((tmp_path / "json").read_text())
    assert [row["model"] for row in rows] == named[1:]
    for row in rows:
        measured = ("peer", "ready_peer", "one", "ten", "matmul", "flops", "times_peer_ten", "share_of_matmul")
        assert min(row[name] for name in measured) > 0
        assert row["difference"] < 1e-4, "our batched score equals that of one pair at a time"
        assert row["model"] in ended.stdout
        if absent:
            assert row["stage"] is row["busy"] is None and "no sweep from S3" in row["notes"][0]
        else:
            assert row["stage"] > 0 and 0 < row["busy"] <= 1 and row["decoders"] == 1 and not row["notes"]


def test_our_scores_equal_those_of_one_pair_at_a_time(load: Workload) -> None:
    ours = score(load.model, load.pixels, load.questions, BatchSize(2))
    pairs = [(image, text) for image in range(N_IMAGES) for text in (0, N_QUESTIONS - 1)]
    theirs = [score_pair(load.model, load.pixels[image], load.questions[image][text]) for image, text in pairs]
    assert theirs == pytest.approx([ours[image][text] for image, text in pairs], abs=1e-4)
    assert len({round(number, 3) for number in theirs}) > 2, "pairs differ, otherwise agreement would prove nothing"
    released = [score_file(load.model, load.encoded[image], load.questions[image][text]) for image, text in pairs]
    assert released == pytest.approx(theirs, abs=1e-4)


def test_a_sweep_with_a_failed_row_does_not_count_as_a_measurement(tmp_path: Path, s3_server: S3Server) -> None:
    load = make_workload("clip-flant5-xl", TINY_SHAPES["clip-flant5-xl"], tmp_path, images=N_IMAGES, on_gpu=False)
    shards = ImageShards(load.encoded, ["a dog", " ", "a cat"], 1, bucket="bench-failing")
    with pytest.raises(RuntimeError, match="prompt"):
        measure_sweep(load.resolved, load.model, shards, s3_server)


@pytest.mark.parametrize("name", list(FAMILY_BY_MODEL))
def test_both_ways_of_scoring_run_in_a_gpus_precision(name: str, tmp_path: Path) -> None:
    load = make_workload(name, TINY_SHAPES[name], tmp_path, images=2, on_gpu=False, dtype="bfloat16")
    assert {weight.dtype for weight in load.network.parameters()} == {torch.bfloat16}
    ours = score(load.model, load.pixels, load.questions, BatchSize(2))
    theirs = [score_pair(load.model, load.pixels[0], question) for question in load.questions[0]]
    assert theirs == pytest.approx(ours[0], abs=0.25), "bfloat16 has eight bits of precision, and the layers are random"


def test_operations_equal_torchs_count_if_every_token_sees_every_other(
    load: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        flops, "before", lambda tokens: tokens**2
    )  # plain attention computes scores and masks them afterwards
    question = load.questions[0][0]
    if isinstance(load.model, ChatVlm):  # one pass predicts the first token of its answer
        first = load.model.prompts.tokenize_choice(question.text, "Yes")[:1]
        monkeypatch.setattr(load.model.prompts, "choice", lambda text, choice: first)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        score_pair(load.model, load.pixels[0], question)
    assert flops.count_pair_flops(load.model, load.pixels[0], question) == counter.get_total_flops()


class KeptRows(list[MeasuredModel]):
    """Receiver that keeps the measured rows in a list, in place of a pipe."""

    send = list.append


def test_a_model_that_fails_or_dies_becomes_a_row_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def kill_itself(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    results = KeptRows()
    apart.measure_and_send(results, "llava-1.5-7b", "tiny", WorkAmounts(images=0), None)
    (failed,) = results
    assert failed.error is not None and "expected at least 1, got 0" in failed.error
    monkeypatch.setattr(
        apart, "PROCESS_CONTEXT", multiprocessing.get_context("fork")
    )  # so that the child inherits the patch
    monkeypatch.setattr(apart, "measure_and_send", kill_itself)
    killed = apart.measure_in_process("qwen2.5-vl-7b", "tiny", WorkAmounts(), None, 60)
    assert killed.error is not None and "-9" in killed.error
    late = apart.measure_in_process("qwen2.5-vl-7b", "tiny", WorkAmounts(), None, 0)
    assert late.error is not None and "--minutes" in late.error
    sound = MeasuredModel(model="clip-flant5-xl", shapes="tiny", one=2.0, ten=10.0, peer=0.5, flops=3, matmul=10.0)
    told = format_table([sound, failed, killed])
    assert "4.0       20.0      2.00" in told and "60.0%" in told
    assert "qwen2.5-vl-7b: not measured: its process ended with -9" in told


def test_a_sweep_that_runs_as_a_command_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.benchmarks.gpu.by_command", "clip-flant5-xl", str(tmp_path), "--images=64"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["images_a_second"] == pytest.approx(64 / told["seconds"], rel=0.01)
