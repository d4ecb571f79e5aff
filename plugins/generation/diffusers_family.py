"""Image generators that run on diffusers: any text-to-image pipeline with safetensors weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from plumbline.operators.base.bounds import Positive
from plumbline.operators.base.errors import ConfigError, ModelError, install_remedy
from plumbline.operators.models.checkpoints.parts import (
    CONVERT_TO_SAFETENSORS,
    SMALL_FILES,
    Checkpoint,
    Fields,
    FileDigest,
    Part,
    check_weights,
    find_part,
    read_json,
    read_tensor_names,
)
from plumbline.operators.models.family import Family
from plumbline.operators.models.model import LocalModel, ResolvedModel

INDEX = "model_index.json"
"""The file that names a pipeline's class and its components."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiffusersModel(LocalModel):
    """Options of a diffusers pipeline, optionally with a LoRA."""

    image_batch: Positive = 4
    """Number of images generated together; it affects the images only by rounding errors."""
    lora: str | None = None
    """Hub id, folder or file of a LoRA that is merged into the pipeline."""
    lora_scale: float = 1.0
    """Factor for the LoRA's weights when they are merged."""

    def __post_init__(self) -> None:
        LocalModel.__post_init__(self)
        if self.tokenizer is not None:
            raise ConfigError("model tokenizer: a diffusers pipeline has its own tokenizers; leave it out")


def read_index(part: Part) -> Fields:
    """Read a checkpoint's model_index.json.

    Raises ModelError if the file is missing or names Python code of the checkpoint.
    """
    if part.file(INDEX) is None:
        raise ModelError(
            f"{part.source}: no {INDEX}, so it is not a diffusers pipeline; name the folder that contains it, or "
            "convert a single file with diffusers' from_single_file and save_pretrained"
        )
    fields = read_json(part, INDEX)
    own = [
        name for name, (library, _) in _read_components(fields).items() if part.file(f"{name}/{library}.py") is not None
    ]
    if own or not isinstance(fields.get("_class_name"), str):
        raise ModelError(
            f"{part.source}: {INDEX} names Python code from the checkpoint, which is never run; use a pipeline "
            "that only needs classes of diffusers and transformers"
        )
    return fields


def _read_components(fields: Fields) -> dict[str, tuple[str, str]]:
    """Return the library and the class of each of the pipeline's components, by name."""
    return {
        name: (value[0], value[1])
        for name, value in fields.items()
        if isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) for one in value)
    }


def find_tensors(part: Part, only: str | None) -> list[str]:
    """Return the names of all tensors in a folder's components, or of all weight files in a hub repository.

    Raises ModelError for a component that is missing or has no complete safetensors files.
    """
    names = []
    for component in _read_components(read_json(part, INDEX)):
        configured = part.file(f"{component}/config.json") is not None
        if part.commit is None:
            names += _list_tensors(Path(part.source) / component, configured)
        elif configured:
            names += _list_hub_weights(part.source, part.commit, component)
    return names


def _list_tensors(folder: Path, configured: bool) -> list[str]:
    if not folder.is_dir():
        raise ModelError(f"{folder}: missing, although {INDEX} names it; download the checkpoint again")
    if not configured:  # a tokenizer, a scheduler, a processor
        return []
    return check_weights(Part(source=str(folder), commit=None, identity=""))


def _list_hub_weights(repo: str, commit: str, component: str) -> list[str]:
    from plumbline.operators.models.checkpoints import hub

    names = [name for name in hub.list_files(repo, commit) if name.startswith(f"{component}/")]
    weights = [name for name in names if name.endswith(".safetensors")]
    if not weights:
        raise ModelError(
            f"{repo}@{commit}: expected safetensors weights of {component}, found none; {CONVERT_TO_SAFETENSORS}"
        )
    return weights


def _find_lora(config: DiffusersModel, checkpoint: Checkpoint, digest: FileDigest) -> Mapping[str, Part]:
    if config.lora is None:
        return {}
    file = Path(config.lora).expanduser()
    if not file.is_file():
        part = find_part(config.lora, None, digest)
        check_weights(part)
        return {"lora": part}
    if file.suffix != ".safetensors":
        raise ModelError(f"{file}: expected a LoRA as safetensors; {CONVERT_TO_SAFETENSORS}")
    read_tensor_names(file)
    return {"lora": Part(source=str(file.resolve()), commit=None, identity=digest(file))}


def _load_pipeline(model: ResolvedModel[DiffusersModel]) -> Any:
    if find_spec("diffusers") is None:
        raise ModelError(f"family diffusers: needs the package diffusers; {install_remedy('generate')}")
    from plumbline.plugins.generation.diffusion import PipelineDrawing

    return PipelineDrawing.load(model)


FAMILY = Family(
    config=DiffusersModel,
    extra="generate",
    loads={"draw": _load_pipeline},
    read=read_index,
    form="a pipeline of diffusers",
    suits=lambda fields: "_class_name" in fields,
    files=(),
    file_patterns=(INDEX, *(f"*/{pattern}" for pattern in (*SMALL_FILES, "*.safetensors"))),
    find_tensors=find_tensors,
    parts=_find_lora,
    options_in_key=lambda config, profile: {} if config.lora is None else {"lora_scale": config.lora_scale},
)
