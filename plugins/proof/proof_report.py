"""Writes the report of a proof. It can be sent to others, because it contains no secrets and no local paths."""

import json
import platform
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from plumbline.operators.base.cores import count_cores
from plumbline.operators.base.errors import DISTRIBUTION, hide_secrets, replace_invisible
from plumbline.operators.report.rendering import make_template_environment
from plumbline.plugins.proof.proving import ComparedSet, ProofResult, ScoredImage, find_exit_code

TEMPLATES_FOLDER = Path(__file__).parent / "templates"
PACKAGES = (DISTRIBUTION, "torch", "transformers", "huggingface-hub", "safetensors", "tokenizers", "pillow", "numpy")
"""Packages whose versions are in the report."""
MAX_SHOWN_IMAGES = 10
"""Number of images of a set in its table; the JSON has all."""
PATH_PATTERN = re.compile(r"(?<![\w:/.~@-])/(?:[^\s/'\",;:()]+/)+(?P<name>[^\s/'\",;:()]*)")
"""Pattern of absolute paths; addresses such as https://host/path do not match."""
JSON_FENCE_START = "```json\n"


def describe_machine(*, on_gpu: bool) -> dict[str, Any]:
    """Return the versions of packages and CUDA, and the kind of machine and GPU, without names of hosts or users."""
    import torch

    versions = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    machine = {"system": platform.system(), "architecture": platform.machine(), "cores": count_cores()}
    if not on_gpu:
        return {"versions": versions, **machine, "gpu": None}
    gpu = torch.cuda.get_device_properties(0)
    described = {"name": gpu.name, "memory": gpu.total_memory / 1e9, "capability": f"{gpu.major}.{gpu.minor}"}
    return {"versions": versions, **machine, "gpu": described}


def write_report(path: Path, machine: Mapping[str, Any], results: Sequence[ProofResult]) -> None:
    """Write the report as Markdown, with all its numbers as JSON at the end."""
    contents = {
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "exit_code": find_exit_code(results),
        "machine": dict(machine),
        "checkpoints": [_describe_result(result) for result in results],
    }
    cleaned = _remove_paths_from_values(contents)
    page = (
        make_template_environment(TEMPLATES_FOLDER)
        .get_template("proof.md.j2")
        .render(report=cleaned, results=results, choose_images=choose_images, clean=remove_paths)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.unfinished")
    draft.write_text(f"{page.rstrip()}\n\n{JSON_FENCE_START}{json.dumps(cleaned, indent=1)}\n```\n", encoding="utf-8")
    draft.replace(path)


def _describe_result(result: ProofResult) -> dict[str, Any]:
    sets = [asdict(each) | {"rounding": each.rounding} for each in result.sets]
    return asdict(result) | {"verdict": result.verdict, "sets": sets}


def read_report(path: Path) -> dict[str, Any]:
    """Return the JSON at the end of a report."""
    text = path.read_text(encoding="utf-8")
    contents: dict[str, Any] = json.loads(text.rpartition(JSON_FENCE_START)[2].removesuffix("```\n"))
    return contents


def remove_paths(text: str) -> str:
    """Return the text without credentials, and with only the last part of each absolute path."""
    named = hide_secrets(replace_invisible(text)).replace(str(Path.home()), "~")
    return PATH_PATTERN.sub(lambda path: f".../{path['name']}", named)


def _remove_paths_from_values(value: Any) -> Any:
    if isinstance(value, str):
        return remove_paths(value)
    if isinstance(value, Mapping):
        return {key: _remove_paths_from_values(each) for key, each in value.items()}
    return [_remove_paths_from_values(each) for each in value] if isinstance(value, list | tuple) else value


def choose_images(compared: ComparedSet) -> list[ScoredImage]:
    """Return the images with the largest differences in any precision: at most MAX_SHOWN_IMAGES, in the set's order.

    An image that has no score to compare counts as having no difference.
    """

    def find_largest(place: int) -> float:
        image = compared.images[place]
        return max((image.find_difference(precision) or 0.0 for precision in image.ours), default=0.0)

    places = sorted(range(len(compared.images)), key=lambda place: -find_largest(place))
    return [compared.images[place] for place in sorted(places[:MAX_SHOWN_IMAGES])]
