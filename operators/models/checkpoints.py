"""Which files a model is made of: found, checked and identified without importing torch or reading a weight."""

import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from operators.errors import ConfigError, ModelError
from operators.models.config_checks import find_problem
from operators.models.engine_options import check_options, semantic_options
from operators.models.thinking import PROBLEM, TEMPLATE_FILES, file_thinks, named_thinking
from operators.models.vqa_kinds import VqaKind, vqa_kind

Family = Literal["clip_flant5", "clip", "causal_lm", "vlm", "nli", "sentences", "openai"]
Call = Literal["likelihood", "generate", "entailment", "embedding", "similarity"]
Engine = Literal["transformers", "vllm"]
Precision = Literal["float32", "bfloat16"]
Padding = Literal["released", "processor"]

SERVES: Mapping[Family, frozenset[Call]] = {
    "clip_flant5": frozenset({"likelihood"}),
    "clip": frozenset({"similarity", "embedding"}),
    "causal_lm": frozenset({"generate"}),
    "vlm": frozenset({"likelihood"}),
    "nli": frozenset({"entailment"}),
    "sentences": frozenset({"embedding"}),
    "openai": frozenset({"generate"}),
}
"""The calls each family serves."""
PRECISE_FAMILIES = ("nli", "sentences")
"""Small models, in float32 unless told otherwise."""
WANTED_FILES = ["*.json", "*.jinja", "*.txt", "*.model", "*.safetensors"]
CONVERT = (
    "convert it on a machine you trust (the Hub's safetensors converter opens a pull request: pass its "
    "refs/pr/N as the revision)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """One model a sweep may use; a hub id or a local folder, the same code."""

    family: Family
    """Which backend serves it."""
    checkpoint: str
    """Hub id, or path of a local folder in the same layout."""
    revision: str | None = None
    """Hub branch, tag or commit; of a local folder or an endpoint, a label that enters the cells' keys."""
    tokenizer: str | None = None
    """Hub id or folder of the tokenizer, where the checkpoint ships none."""
    vision_tower: str | None = None
    """Hub id or folder of the CLIP tower, in place of the checkpoint's own `mm_vision_tower`."""
    vision_tower_revision: str | None = None
    """Hub revision of the vision tower."""
    padding: Padding = "released"
    """Of CLIP-FlanT5 and LLaVA-1.5: `released` shows an image on a square of the mean colour, as the released VQAScore
    does; `processor` as the checkpoint's processor has it, which cuts the middle out. Others have a processor alone."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 on a GPU and float32 on a CPU."""
    image_batch: int = 64
    """Images encoded together; does not change results."""
    pair_batch: int = 64
    """(image, question) pairs answered, or texts read, together; does not change results."""
    engine: Engine = "transformers"
    """What runs a causal_lm or a vlm."""
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the vLLM engine, such as max_model_len or gpu_memory_utilization; another engine has no use for
    them."""
    endpoint: str | None = None
    """Base URL of an OpenAI-compatible service; null takes OPENAI_BASE_URL, or else OpenAI's own."""
    concurrency: int = 8
    """Requests to the endpoint that may be under way at once in one worker."""
    max_retries: int = 6
    """How often a request to the endpoint is tried again, waiting longer each time."""
    key_variable: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the endpoint's key; the key itself is never configured."""

    def __post_init__(self) -> None:
        for name, least in (("image_batch", 1), ("pair_batch", 1), ("concurrency", 1), ("max_retries", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"model {name}: expected at least {least}, got {getattr(self, name)}")
        if not self.checkpoint:
            raise ConfigError("model checkpoint: expected a hub id or a folder, got an empty string")
        self._check_engine()
        self._check_endpoint()

    def _check_engine(self) -> None:
        if self.engine == "vllm" and self.family not in ("causal_lm", "vlm"):
            raise ConfigError(f"model engine: vllm serves causal_lm and vlm; remove it from this {self.family} model")
        check_options(self.engine_options)

    def _check_endpoint(self) -> None:
        if self.endpoint is not None and self.family != "openai":
            raise ConfigError(f"model endpoint: only family openai has one; remove it from this {self.family} model")
        check_endpoint(self.endpoint)
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_variable) is None:
            raise ConfigError(
                "model key_variable: expected the name of an environment variable, not what it holds; "
                "put the key into that variable"
            )


def check_endpoint(endpoint: str | None) -> None:
    """Raises ConfigError for an address that is not one, or that holds a secret, which is not repeated."""
    if endpoint is None:
        return
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError("model endpoint: expected an address such as https://host/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError(
            "model endpoint: expected an address without credentials or query; "
            "put the key into the environment variable that key_variable names"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One repository or folder a model is made of, at one exact state."""

    source: str
    """Hub id or absolute folder."""
    commit: str | None
    """Hub commit; None for a local folder."""
    identity: str
    """What enters the key: the hub commit, or the digest of the folder's files."""

    def folder(self) -> Path:
        """The files on this machine, downloaded where they are not."""
        if self.commit is None:
            return Path(self.source)
        from operators.models import hub

        return hub.download(self.source, self.commit, WANTED_FILES)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedModel:
    """A model pinned to exact files and a precision: all an actor needs to load it."""

    family: Family
    parts: Mapping[str, Part]
    """By role: `checkpoint`, `tokenizer` and, for CLIP-FlanT5, `vision_tower`; none where an endpoint serves it."""
    label: str | None
    """The revision given for a local folder, or for a model at an endpoint."""
    dtype: Precision
    on_gpu: bool
    """Where it is to run; the precision, not the device, is what can change a result."""
    image_batch: int
    pair_batch: int
    engine: Engine = "transformers"
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    remote: "RemoteModel | None" = None
    """Set for the family openai alone."""
    kind: VqaKind | None = None
    """Of a VQA model."""
    pads: bool = False
    """Whether images are put on a square of the mean colour before the checkpoint's own processing."""

    def semantic(self) -> dict[str, Any]:
        """The part of the model that can change a result, for the cells' keys."""
        if self.remote is not None:
            endpoint = (self.remote.endpoint or "").rstrip("/") or None
            remote = {"model": self.remote.name, "endpoint": endpoint}
            return {"family": self.family, "label": self.label, **remote}
        identities = {role: part.identity for role, part in self.parts.items()}
        semantic = {"family": self.family, "dtype": self.dtype, "label": self.label, "parts": identities}
        semantic |= self._seeing()
        if self.family in ("clip_flant5", "clip"):
            return semantic
        return semantic | {"engine": self.engine, "engine_options": semantic_options(self.engine_options)}

    def _seeing(self) -> dict[str, Any]:
        """How a VQA model is asked and shown an image, where that is not as it always was."""
        if self.kind is None:
            return {}
        padding: Padding = "released" if self.pads else "processor"
        return self.kind.semantic() | ({"padding": padding} if self.kind.pads else {})


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteModel:
    """A model behind an OpenAI-compatible endpoint."""

    name: str
    """As the endpoint calls it."""
    endpoint: str | None
    concurrency: int
    max_retries: int
    key_variable: str
    """The environment variable that every worker reads the key from."""


FileDigest = Callable[[Path], str]


def digest_file(path: Path) -> str:
    """SHA-256 of a file's content, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def resolve_model(config: ModelConfig, *, on_gpu: bool, digest: FileDigest = digest_file) -> ResolvedModel:
    """Pins a model to its exact files, having checked that they are what its family needs.

    Raises ModelError naming the checkpoint, what it lacks and the remedy.
    """
    if config.family == "openai":
        return _resolve_remote(config)
    checkpoint = _resolve_part(config.checkpoint, config.revision, digest)
    fields = _read_config(checkpoint, config)
    kind = vqa_kind(config.family, fields)
    parts = {"checkpoint": checkpoint, "tokenizer": checkpoint}
    tensors = _check_weights(checkpoint)
    if config.tokenizer is not None:
        parts["tokenizer"] = _resolve_part(config.tokenizer, None, digest)
    if config.family == "clip_flant5":
        parts["vision_tower"] = _resolve_tower(config, checkpoint, fields, tensors, digest)
    _check_tokenizer(parts["tokenizer"])
    if config.family in ("clip_flant5", "clip", "vlm"):
        _check_preprocessor(parts.get("vision_tower", checkpoint), config.family)
    if config.family == "vlm":
        _check_answers_at_once(parts["tokenizer"], checkpoint)
    if config.family == "sentences":
        _check_pooling(checkpoint)
    return ResolvedModel(
        family=config.family,
        parts=parts,
        label=config.revision if checkpoint.commit is None else None,
        dtype=_precision(config, on_gpu=on_gpu),
        on_gpu=on_gpu,
        image_batch=config.image_batch,
        pair_batch=config.pair_batch,
        engine=config.engine,
        engine_options=dict(config.engine_options) if config.engine == "vllm" else {},
        kind=kind,
        pads=kind is not None and kind.pads and config.padding == "released",
    )


def find_vqa_kind(config: ModelConfig) -> VqaKind:
    """The kind of VQA model that a checkpoint's config.json tells; raises ModelError where it cannot be told."""
    checkpoint = _resolve_part(config.checkpoint, config.revision, _no_digest)
    kind = vqa_kind(config.family, _read_config(checkpoint, config))
    assert kind is not None, f"family {config.family} serves VQA models"
    return kind


def _no_digest(file: Path) -> str:
    """For a look at a checkpoint that need not be identified."""
    return ""


def _resolve_remote(config: ModelConfig) -> ResolvedModel:
    """A model at an endpoint is taken at its name: nothing is asked of the network.

    An endpoint from the environment is pinned here, so that it enters the keys and every worker asks the same one.
    """
    endpoint = config.endpoint or os.environ.get("OPENAI_BASE_URL") or None
    check_endpoint(endpoint)
    return ResolvedModel(
        family=config.family,
        parts={},
        label=config.revision,
        dtype="float32",
        on_gpu=False,
        image_batch=config.image_batch,
        pair_batch=config.pair_batch,
        remote=RemoteModel(
            name=config.checkpoint,
            endpoint=endpoint,
            concurrency=config.concurrency,
            max_retries=config.max_retries,
            key_variable=config.key_variable,
        ),
    )


def _precision(config: ModelConfig, *, on_gpu: bool) -> Precision:
    if config.dtype != "auto":
        return config.dtype
    return "bfloat16" if on_gpu and config.family not in PRECISE_FAMILIES else "float32"


def _resolve_tower(
    config: ModelConfig, checkpoint: Part, fields: Mapping[str, Any], tensors: Iterable[str], digest: FileDigest
) -> Part:
    """The CLIP checkpoint a CLIP-FlanT5 names; its weights are needed only where the checkpoint has none."""
    _require_fields(checkpoint, fields)
    named = config.vision_tower or _beside(checkpoint, fields["mm_vision_tower"])
    tower = _resolve_part(named, config.vision_tower_revision, digest)
    if (found := _read_fields(tower)["model_type"]) not in ("clip", "clip_vision_model"):
        raise ModelError(
            f"{tower.source}: config.json says model_type {found!r}, and the vision tower is a CLIP; "
            "set the model's `vision_tower` to one"
        )
    if not any(name.startswith("vision_tower.") for name in tensors):
        _check_weights(tower)
    return tower


def _require_fields(checkpoint: Part, fields: Mapping[str, Any]) -> None:
    for name in ("d_model", "mm_vision_tower", "mm_vision_select_layer"):
        if name not in fields:
            raise ModelError(f"{checkpoint.source}: config.json lacks `{name}`, so it is not a CLIP-FlanT5 checkpoint")
    supported = {"mm_projector_type": "mlp2x_gelu", "mm_vision_select_feature": "patch"}
    for name, value in supported.items():
        if fields.get(name, value) != value:
            raise ModelError(f"{checkpoint.source}: `{name}` is {fields[name]!r}; only {value!r} is supported")


def _beside(checkpoint: Part, tower: str) -> str:
    """A tower named by a relative path is looked for from the checkpoint's own folder."""
    if checkpoint.commit is None and tower.startswith("."):
        return str((Path(checkpoint.source) / tower).resolve())
    return tower


def _resolve_part(source: str, revision: str | None, digest: FileDigest) -> Part:
    folder = Path(source).expanduser()
    if folder.is_dir():
        return Part(source=str(folder.resolve()), commit=None, identity=_digest_folder(folder, digest))
    if folder.is_absolute() or source.startswith(".") or source.count("/") != 1:
        raise ModelError(f"model {source!r}: no such folder, and it is not a hub id of the form owner/name")
    from operators.models import hub  # takes a second to import, and only hub models need it

    commit = hub.find_commit(source, revision)
    return Part(source=source, commit=commit, identity=f"{source}@{commit}")


def _digest_folder(folder: Path, digest: FileDigest) -> str:
    """One digest over the names and contents of the files that a model is loaded from."""
    whole = hashlib.sha256()
    for file in sorted({file for pattern in WANTED_FILES for file in folder.glob(pattern)}):
        whole.update(f"{file.name}\0{digest(file)}\n".encode())
    return whole.hexdigest()


def _file(part: Part, name: str) -> Path | None:
    """One file of a part, or None where it has none."""
    if part.commit is None:
        path = Path(part.source) / name
        return path if path.is_file() else None
    from operators.models import hub

    return hub.download_file(part.source, part.commit, name)


def _read_config(checkpoint: Part, config: ModelConfig) -> dict[str, Any]:
    """The checkpoint's config.json, which must be of the family."""
    fields = _read_fields(checkpoint)
    problem = find_problem(fields, config.family, own_images=config.engine == "transformers")
    if problem is not None:
        raise ModelError(f"{checkpoint.source}: {problem}")
    return fields


def _read_fields(part: Part) -> dict[str, Any]:
    """The config.json of a part, which says its model_type."""
    path = _file(part, "config.json")
    if path is None:
        raise ModelError(f"{part.source}: no config.json, so it is not a checkpoint; correct its name, or its place")
    try:
        fields = json.loads(path.read_text())
    except ValueError as error:
        raise ModelError(f"{part.source}: config.json is not JSON ({error}); download the checkpoint again") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("model_type"), str):
        raise ModelError(f"{part.source}: config.json names no model_type; download the checkpoint again")
    return fields


POOLING_MODES = {"cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken"}


def _check_pooling(part: Part) -> None:
    """A sentence-transformers folder says how it pools; only the mean is served."""
    path = _file(part, "1_Pooling/config.json")
    if path is None:
        return
    try:
        fields = json.loads(path.read_text())
        modes = {name.removeprefix("pooling_mode_") for name, on in fields.items() if on is True}
    except (ValueError, AttributeError) as error:
        raise ModelError(f"{path}: not a pooling config ({error}); download the checkpoint again") from error
    if fields.get("pooling_mode") != "mean" and modes & POOLING_MODES != {"mean_tokens"}:
        raise ModelError(f"{part.source}: 1_Pooling/config.json is not mean pooling, which alone is served")


def _check_tokenizer(part: Part) -> None:
    """A SentencePiece model is converted at loading, by the class that its tokenizer_config.json names."""
    names = ("tokenizer.json", "vocab.json", "spiece.model")
    stored = next((name for name in names if _file(part, name)), None)
    remedy = "set the model's `tokenizer` to a folder or hub id that has a tokenizer.json"
    if stored is None:
        raise ModelError(f"{part.source}: no tokenizer ({', '.join(names)}); {remedy}")
    if stored == "spiece.model" and _file(part, "tokenizer_config.json") is None:
        raise ModelError(
            f"{part.source}: a spiece.model without the tokenizer_config.json that tells its use; {remedy}"
        )


def _check_answers_at_once(*parts: Part) -> None:
    """Raises ModelError for a chat model that thinks before it answers."""
    files = [_file(part, name) for part in dict.fromkeys(parts) for name in TEMPLATE_FILES]
    if any(named_thinking(part.source) for part in parts) or any(file_thinks(file) for file in files if file):
        raise ModelError(f"{parts[-1].source}: {PROBLEM}")


def _check_preprocessor(part: Part, family: Family) -> None:
    names = ["preprocessor_config.json", *(["processor_config.json"] if family == "vlm" else [])]
    if not any(_file(part, name) for name in names):
        what = "checkpoint" if family == "vlm" else "CLIP checkpoint"
        raise ModelError(f"{part.source}: no {' or '.join(names)}; download the {what} again")


def _check_weights(part: Part) -> list[str]:
    """The names of a part's tensors, from the headers of its safetensors files; nothing of a hub model is fetched."""
    if part.commit is not None:
        return _check_hub_weights(part)
    files = _local_weight_files(Path(part.source))
    if not files:
        pickled = any(Path(part.source).glob("*.bin"))
        found = "only pickled .bin weights, which are never loaded" if pickled else "no weights"
        raise ModelError(f"{part.source}: expected *.safetensors, found {found}; {CONVERT}")
    return [name for file in files for name in read_tensor_names(file)]


def _local_weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files; raises ModelError for one that its index names and it lacks."""
    index = folder / "model.safetensors.index.json"
    try:
        named = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else set()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: not an index of weights ({error!r}); download the checkpoint again") from error
    files = sorted(folder.glob("*.safetensors"))
    lacking = sorted(named - {file.name for file in files})
    if lacking:
        raise ModelError(f"{folder}: lacks {lacking[0]}, which its index names; download the checkpoint again")
    return files


def _check_hub_weights(part: Part) -> list[str]:
    from operators.models import hub

    assert part.commit is not None
    names = hub.find_tensor_names(part.source, part.commit)
    if not names:
        raise ModelError(f"{part.source}@{part.commit}: expected safetensors weights, found none; {CONVERT}")
    return names


def read_tensor_names(file: Path) -> list[str]:
    """The tensors a safetensors file declares; raises ModelError where it is truncated or not one."""
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > size:
                raise ValueError("its header is longer than the file")
            header = json.loads(stream.read(length))
        ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        expected = 8 + length + max(ends, default=0)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error) as error:
        raise ModelError(f"{file}: not a safetensors file ({error!r}); download the checkpoint again") from error
    if size != expected:
        raise ModelError(f"{file}: expected {expected} bytes, found {size}; it is truncated: download it again")
    return [name for name in header if name != "__metadata__"]
