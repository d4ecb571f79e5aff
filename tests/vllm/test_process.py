"""An engine in a process of its own answers like one in the actor's process, and neither outlives nor hides its end."""

import json
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from plumbline.operators.base.errors import EngineError, ModelError
from plumbline.operators.models import loading
from plumbline.operators.models.engines.vllm_calls import VllmGenerate
from plumbline.operators.models.engines.vllm_engine import Prompt
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.resolution import resolve_model
from tests.vllm.test_generate import make_request
from tests.vllm.test_likelihood import TORCHVISION_FOLDER
from tests.vllm.tiny import make_llama, make_qwen2_vl

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 120
pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


def load(folder: Path, **options: Any) -> VllmGenerate:
    config = make_model_config(
        family="causal_lm", checkpoint=str(folder), engine="vllm", engine_process=True, engine_options=options
    )
    model = loading.load(resolve_model(config, on_gpu=False), "generate")
    assert isinstance(model, VllmGenerate)
    return model


def find_core(model: VllmGenerate) -> psutil.Process:
    """Return the process of the engine."""
    return psutil.Process(model.engine._engine.pid)


@pytest.fixture
def model(folder: Path) -> Iterator[VllmGenerate]:
    model = load(folder, max_model_len=512)
    yield model
    model.engine.close()


def test_both_forms_give_the_same_answers_about_images(tmp_path: Path) -> None:
    if not TORCHVISION_FOLDER.is_dir():
        pytest.fail("build/torchvision is missing; run the tests with make vllm")
    path = os.pathsep.join(map(str, [TORCHVISION_FOLDER, Path(__file__).parent / "site", ROOT]))
    process = subprocess.run(
        [sys.executable, "-m", "tests.vllm.two_forms", str(make_qwen2_vl(tmp_path))],
        env=os.environ | {"PYTHONPATH": path}, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS * 2,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    apart, together = json.loads(process.stdout.splitlines()[-1])
    assert apart == together
    assert apart["refused"][0] == "request_refused"


def test_closing_ends_the_process(model: VllmGenerate) -> None:
    core = find_core(model)
    model.engine.close()
    assert not core.is_running()
    with pytest.raises(EngineError, match="closed"):
        model.generate([make_request("A red cube")])


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_a_killed_process_fails_waiting_and_later_requests(model: VllmGenerate, used: bool) -> None:
    """A waiting request is unknown to the process if it is the first, and running there otherwise."""
    from vllm import SamplingParams

    core = find_core(model)
    assert not used or model.generate([make_request("A red cube")])
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    futures = [model.engine.submit(Prompt([3, 4, number]), params) for number in range(2)]
    core.kill()
    for future in futures:
        with pytest.raises(EngineError, match=f"process {core.pid} has ended .* killed"):
            future.result(TIMEOUT_SECONDS)
    with pytest.raises(EngineError, match=f"process {core.pid} has ended .* killed"):
        model.generate([make_request("A red cube")])


def test_a_killed_parent_takes_the_process_with_it(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.vllm.test_process import find_core, load; "
        "model = load(Path(sys.argv[1]), max_model_len=512); print(find_core(model).pid, flush=True); sys.stdin.read()"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], cwd=ROOT, env=environment, **pipes) as parent:
        assert parent.stdout is not None
        core = os.pidfd_open(int(parent.stdout.readline()))
        assert not select.select([core], [], [], 0)[0], "it runs"
        parent.kill()
        assert select.select([core], [], [], TIMEOUT_SECONDS)[0], "it has ended"
    os.close(core)


def test_a_checkpoint_that_cannot_be_loaded_is_one_line_with_the_cause(folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(folder, tmp_path / "other"))
    fields = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(fields | {"hidden_size": 128}))
    with pytest.raises(ModelError, match=r"vLLM cannot load it \(\w+: .*128.*\); check the model's") as caught:
        load(other)
    assert "\n" not in str(caught.value)


def test_a_wrong_option_is_refused_as_in_the_other_form(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"engine_options \(kv_cache_dtype=float3\)"):
        load(folder, kv_cache_dtype="float3")


def test_too_little_memory_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "100000")
    with pytest.raises(
        ModelError, match=r"vLLM cannot load it \(ValueError: Available memory .* is less than requested"
    ):
        load(folder)
