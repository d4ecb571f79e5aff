"""Which files a model is made of: found, checked and identified without importing torch or reading a weight."""

import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from operators.errors import ConfigError, ModelError

Family = Literal["clip_flant5", "clip"]
Precision = Literal["float32", "bfloat16"]

MODEL_TYPES: Mapping[Family, str] = {"clip_flant5": "clip_t5", "clip": "clip"}
WANTED_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
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
    """Hub branch, tag or commit; of a local folder, a label that enters the cells' keys."""
    tokenizer: str | None = None
    """Hub id or folder of the tokenizer, where the checkpoint ships none."""
    vision_tower: str | None = None
    """Hub id or folder of the CLIP tower, in place of the checkpoint's own `mm_vision_tower`."""
    vision_tower_revision: str | None = None
    """Hub revision of the vision tower."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 on a GPU and float32 on a CPU."""
    image_batch: int = 64
    """Images encoded together; does not change results."""
    pair_batch: int = 64
    """(image, question) pairs answered together; does not change results."""

    def __post_init__(self) -> None:
        for name in ("image_batch", "pair_batch"):
            if getattr(self, name) < 1:
                raise ConfigError(f"model {name}: expected at least 1, got {getattr(self, name)}")
        if not self.checkpoint:
            raise ConfigError("model checkpoint: expected a hub id or a folder, got an empty string")


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
    """By role: `checkpoint`, `tokenizer` and, for CLIP-FlanT5, `vision_tower`."""
    label: str | None
    """The revision given for a local folder."""
    dtype: Precision
    on_gpu: bool
    """Where it is to run; the precision, not the device, is what can change a result."""
    image_batch: int
    pair_batch: int

    def semantic(self) -> dict[str, Any]:
        """The part of the model that can change a result, for the cells' keys."""
        identities = {role: part.identity for role, part in self.parts.items()}
        return {"family": self.family, "dtype": self.dtype, "label": self.label, "parts": identities}


FileDigest = Callable[[Path], str]


def digest_file(path: Path) -> str:
    """SHA-256 of a file's content, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def resolve_model(config: ModelConfig, *, on_gpu: bool, digest: FileDigest = digest_file) -> ResolvedModel:
    """Pins a model to its exact files, having checked that they are what its family needs.

    Raises ModelError naming the checkpoint, what it lacks and the remedy.
    """
    checkpoint = _resolve_part(config.checkpoint, config.revision, digest)
    fields = _read_config(checkpoint, expected=MODEL_TYPES[config.family])
    parts = {"checkpoint": checkpoint, "tokenizer": checkpoint}
    tensors = _check_weights(checkpoint)
    if config.tokenizer is not None:
        parts["tokenizer"] = _resolve_part(config.tokenizer, None, digest)
    if config.family == "clip_flant5":
        parts["vision_tower"] = _resolve_tower(config, checkpoint, fields, tensors, digest)
    _check_tokenizer(parts["tokenizer"])
    _check_preprocessor(parts.get("vision_tower", checkpoint))
    dtype: Precision = ("bfloat16" if on_gpu else "float32") if config.dtype == "auto" else config.dtype
    return ResolvedModel(
        family=config.family,
        parts=parts,
        label=config.revision if checkpoint.commit is None else None,
        dtype=dtype,
        on_gpu=on_gpu,
        image_batch=config.image_batch,
        pair_batch=config.pair_batch,
    )


def _resolve_tower(
    config: ModelConfig, checkpoint: Part, fields: Mapping[str, Any], tensors: Iterable[str], digest: FileDigest
) -> Part:
    """The CLIP checkpoint a CLIP-FlanT5 names; its weights are needed only where the checkpoint has none."""
    _require_fields(checkpoint, fields)
    named = config.vision_tower or _beside(checkpoint, fields["mm_vision_tower"])
    tower = _resolve_part(named, config.vision_tower_revision, digest)
    _read_config(tower, expected="clip", also="clip_vision_model")
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


def _read_config(part: Part, *, expected: str, also: str | None = None) -> dict[str, Any]:
    path = _file(part, "config.json")
    if path is None:
        raise ModelError(f"{part.source}: no config.json, so it is not a checkpoint; expected a {expected!r} model")
    try:
        fields = json.loads(path.read_text())
    except ValueError as error:
        raise ModelError(f"{part.source}: config.json is not JSON ({error}); download the checkpoint again") from error
    found = fields.get("model_type") if isinstance(fields, dict) else None
    if found not in (expected, also) or found is None:
        raise ModelError(
            f"{part.source}: config.json says model_type {found!r}, expected {expected!r}; "
            "choose the model family that serves this checkpoint"
        )
    return dict(fields)


def _check_tokenizer(part: Part) -> None:
    names = ("tokenizer.json", "spiece.model", "vocab.json")
    if not any(_file(part, name) for name in names):
        raise ModelError(
            f"{part.source}: no tokenizer ({', '.join(names)}); set the model's `tokenizer` to a folder or hub id"
        )


def _check_preprocessor(part: Part) -> None:
    if _file(part, "preprocessor_config.json") is None:
        raise ModelError(f"{part.source}: no preprocessor_config.json; download the CLIP checkpoint again")


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
