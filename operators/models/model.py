"""A model's configuration, and the exact files that it resolves to; does not import torch or read weights."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal

from typing_extensions import TypeVar

from plumbline.operators.base.bounds import BoundsChecked, Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.models.checkpoints.parts import SMALL_FILE_PATTERNS, Part
from plumbline.operators.models.vqa_profiles import VqaProfile

Engine = Literal["transformers", "vllm"]
Precision = Literal["float32", "bfloat16"]
ThinkingPermission = Literal["refused", "allowed"]
HUB_REVISION_PATTERN = re.compile(r"refs/.+|[0-9a-f]{40}")
"""Pattern for the hub's names of pull requests and commits, which are never labels of local folders."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig(BoundsChecked):
    """Options common to all models. Families with more options derive their classes from this class or LocalModel."""

    section: ClassVar[str] = "model "
    family: str
    checkpoint: str
    """Hub id, or path of a local folder with the same layout; for a service, the service's name for the model."""
    revision: str | None = None
    """Hub branch, tag or commit. For a local folder or an endpoint, a label that enters the cells' keys: change it when
    the service changes the model.
    """
    image_batch: Positive = 64
    """Number of images encoded together; does not change results."""
    pair_batch: Positive = 64
    """Number of (image, question) pairs answered together, or of texts read together; does not change results."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if not self.checkpoint:
            raise ConfigError("model checkpoint: expected a hub id or a folder, got an empty string")

    @property
    def engine(self) -> Engine:
        """The engine that runs the model; overridden by families that support several engines."""
        return "transformers"

    @property
    def thinking(self) -> ThinkingPermission:
        """`allowed` if the model may think before it replies; overridden by families whose models can think."""
        return "refused"

    @property
    def thinking_tokens(self) -> int:
        return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalModel(ModelConfig):
    """Options of a model whose weights run on our own machines."""

    tokenizer: str | None = None
    """Hub id or folder of the tokenizer, if the checkpoint has none."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 on a GPU and float32 on a CPU."""


Config = TypeVar("Config", bound=ModelConfig, covariant=True, default=ModelConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedModel(Generic[Config]):
    """A model with its exact files and precision, or its endpoint: everything an actor needs to load it."""

    config: Config
    parts: Mapping[str, Part] = field(default_factory=dict)
    """`checkpoint`, `tokenizer` and the parts that the family adds; empty if a service runs the model."""
    weights: str = "*.safetensors"
    """Pattern of the checkpoint's weight files."""
    dtype: Precision = "float32"
    on_gpu: bool = False
    """True if the model runs on a GPU. The device does not change results, but the precision can."""
    profile: VqaProfile | None = None
    """Profile, if the model is a VQA model."""
    version: int = 1
    """Version of the family's results (Family.version)."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options that can change a result; they are part of cell keys."""
    endpoint: str | None = None
    """Address of the service that runs the model; None for the default address."""

    @property
    def local(self) -> bool:
        return bool(self.parts)

    @property
    def label(self) -> str | None:
        """The configured revision of a local folder or of a model at an endpoint; None for a hub model."""
        revision = self.config.revision
        if not self.local or revision is None:
            return revision
        if self.parts["checkpoint"].commit is not None:  # which identifies a hub model
            return None
        # in a folder that replaces a configured hub id, the revision of the hub id says nothing about the folder
        return None if HUB_REVISION_PATTERN.fullmatch(revision) else revision

    def folder(self, part: str) -> Path:
        """Return the local folder with the files of a part, downloading them if necessary."""
        return self.parts[part].folder(self._list_file_patterns(part))

    def _list_file_patterns(self, part: str) -> list[str]:
        weights = {"tokenizer": [], "checkpoint": [self.weights]}.get(part, ["*.safetensors"])
        return [*SMALL_FILE_PATTERNS, *weights]

    def count_downloads(self) -> dict[str, int]:
        """Return the number of bytes that this machine still has to download from each hub repository."""
        lacking: dict[str, dict[str, int]] = {}
        for name, part in self.parts.items():
            if part.commit is not None:
                lacking.setdefault(part.source, {}).update(part.find_missing_files(self._list_file_patterns(name)))
        return {source: sum(files.values()) for source, files in lacking.items() if files}

    def list_key_properties(self) -> dict[str, Any]:
        """Return all properties that can change a result, for use in cell keys."""
        semantic: dict[str, Any] = {"family": self.config.family, "version": self.version, "label": self.label}
        if self.local:
            semantic |= {"dtype": self.dtype, "parts": {name: part.identity for name, part in self.parts.items()}}
        else:
            semantic |= {"model": self.config.checkpoint, "endpoint": (self.endpoint or "").rstrip("/") or None}
        return semantic | (self.profile.list_key_properties() if self.profile is not None else {}) | dict(self.options)
