"""Image generators that run on diffusers: any text-to-image pipeline with safetensors weights."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from plumbline.operators.base.bounds import Positive
from plumbline.operators.base.errors import ConfigError, ModelError, format_install_remedy
from plumbline.operators.models.checkpoints.parts import (
    CONVERT_TO_SAFETENSORS_REMEDY,
    SMALL_FILE_PATTERNS,
    Checkpoint,
    Fields,
    FileDigest,
    Part,
    check_weights,
    find_part,
    read_json,
    read_tensor_names,
)
from plumbline.operators.models.checkpoints.parts import count_parameters as count_in_file
from plumbline.operators.models.family import Family
from plumbline.operators.models.model import LocalModel, ResolvedModel

INDEX_FILE = "model_index.json"
"""The file that names a pipeline's class and its components."""
WEIGHT_FILE_PATTERN = re.compile(r"(model|diffusion_pytorch_model)(-\d+-of-\d+)?\.safetensors")
"""Names of the weight files that diffusers loads; other files in a repository are variants, such as fp16."""


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

    Raises ModelError if the file is missing, names no pipeline class, or refers to Python code in the checkpoint.
    """
    if part.find_file(INDEX_FILE) is None:
        raise ModelError(
            f"{part.source}: no {INDEX_FILE}, so it is not a diffusers pipeline; name the folder that contains it, or "
            "convert a single file with diffusers' from_single_file and save_pretrained"
        )
    fields = read_json(part, INDEX_FILE)
    own = [
        name
        for name, (library, _) in _read_components(fields).items()
        if part.find_file(f"{name}/{library}.py") is not None
    ]
    if own or not isinstance(fields.get("_class_name"), str):
        raise ModelError(
            f"{part.source}: {INDEX_FILE} names Python code from the checkpoint, which is never run; use a pipeline "
            "that only needs classes from diffusers and transformers"
        )
    return fields


def _read_components(fields: Fields) -> dict[str, tuple[str, str]]:
    return {
        name: (value[0], value[1])
        for name, value in fields.items()
        if isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) for one in value)
    }


def find_tensors(part: Part, only: str | None) -> list[str]:
    """Return the names of all tensors in a folder's components, or of all weight files in a hub repository.

    `only` is not used. Raises ModelError for a component that is missing or has no complete safetensors files.
    """
    names = []
    for component in _read_components(read_json(part, INDEX_FILE)):
        configured = part.find_file(f"{component}/config.json") is not None
        if part.commit is None:
            names += _list_tensors(Path(part.source) / component, configured)
        elif configured:
            names += _list_hub_weights(part.source, part.commit, component)
    return names


def count_parameters(part: Part) -> int | None:
    """Return the number of parameters that a pipeline loads, from the headers of its safetensors files.

    Returns None if a hub repository has no such files, or if their headers cannot be read.
    """
    components = _read_components(read_json(part, INDEX_FILE))
    if part.commit is None:
        files = [file for component in components for file in sorted((Path(part.source) / component).iterdir())]
        return sum(count_in_file(file) for file in files if WEIGHT_FILE_PATTERN.fullmatch(file.name))
    from plumbline.operators.models.checkpoints import hub

    names = [name for name in hub.list_files(part.source, part.commit) if name.count("/") == 1]
    loaded = [
        name for name in names if name.split("/")[0] in components and WEIGHT_FILE_PATTERN.fullmatch(name.split("/")[1])
    ]
    total = 0
    for name in loaded:
        cached = hub.find_cached_file(part.source, part.commit, name)
        count = hub.fetch_parameter_count(part.source, part.commit, name) if cached is None else count_in_file(cached)
        if count is None:
            return None
        total += count
    return total or None


def find_default_size(part: Part) -> tuple[int, int] | None:
    """Return the default width and height in pixels from the networks' configurations; None if they contain no size.

    For some pipelines, such as FLUX.1, only diffusers' code contains the size.
    """
    network = next(
        (name for name in ("transformer", "unet") if part.find_file(f"{name}/config.json") is not None), None
    )
    sample = None if network is None else read_json(part, f"{network}/config.json").get("sample_size")
    height, width = sample if isinstance(sample, list) and len(sample) == 2 else (sample, sample)
    blocks: Any = [None]  # a pipeline without an autoencoder draws pixels
    if part.find_file("vae/config.json") is not None:
        vae = read_json(part, "vae/config.json")
        blocks = vae.get("block_out_channels") or vae.get("encoder_block_out_channels")
    if not (isinstance(width, int) and isinstance(height, int) and isinstance(blocks, list)):
        return None
    scale = 2 ** (len(blocks) - 1)
    return width * scale, height * scale


def _list_tensors(folder: Path, configured: bool) -> list[str]:
    if not folder.is_dir():
        raise ModelError(f"{folder}: missing, although {INDEX_FILE} names it; download the checkpoint again")
    if not configured:  # a tokenizer, a scheduler, a processor
        return []
    if any(folder.glob("*.bin")) and not any(folder.glob("*.safetensors")):
        raise ModelError(
            f"{folder}: expected *.safetensors, found only pickled .bin weights, which are never loaded; if you "
            "trust them, load the pipeline yourself and save it with pipeline.save_pretrained(FOLDER)"
        )
    return check_weights(Part(source=str(folder), commit=None, identity=""))


def _list_hub_weights(repo: str, commit: str, component: str) -> list[str]:
    from plumbline.operators.models.checkpoints import hub

    names = [name for name in hub.list_files(repo, commit) if name.startswith(f"{component}/")]
    weights = [name for name in names if name.endswith(".safetensors")]
    if not weights:
        raise ModelError(
            f"{repo}@{commit}: expected safetensors weights for {component}, found none; "
            f"{CONVERT_TO_SAFETENSORS_REMEDY}"
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
        raise ModelError(f"{file}: expected a LoRA as safetensors; {CONVERT_TO_SAFETENSORS_REMEDY}")
    read_tensor_names(file)
    return {"lora": Part(source=str(file.resolve()), commit=None, identity=digest(file))}


def _load_pipeline(model: ResolvedModel[DiffusersModel]) -> Any:
    if find_spec("diffusers") is None:
        raise ModelError(f"family diffusers: needs the package diffusers; {format_install_remedy('generate')}")
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
    file_patterns=(INDEX_FILE, *(f"*/{pattern}" for pattern in (*SMALL_FILE_PATTERNS, "*.safetensors"))),
    find_tensors=find_tensors,
    parts=_find_lora,
    options_in_key=lambda config, profile: {} if config.lora is None else {"lora_scale": config.lora_scale},
)
