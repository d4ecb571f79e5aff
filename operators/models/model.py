"""A model as a sweep names it, and as what it is resolved to: exact files, known without torch or a weight."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal

from typing_extensions import TypeVar

from plumbline.operators.base.bounds import Checked, Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.models.checkpoints.parts import SMALL_FILES, Part
from plumbline.operators.models.vqa_profiles import VqaProfile

Engine = Literal["transformers", "vllm"]
Precision = Literal["float32", "bfloat16"]
Thoughts = Literal["refused", "allowed"]
HUB_REVISION = re.compile(r"refs/.+|[0-9a-f]{40}")
"""How the hub names a pull request or a commit, and nobody a folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig(Checked):
    """What every model may set; a family with options of its own derives a class from it, or from LocalModel."""

    section: ClassVar[str] = "model "
    family: str
    """The model family that serves it."""
    checkpoint: str
    """Hub id, or path of a local folder in the same layout; at a service, the model's name there."""
    revision: str | None = None
    """Hub branch, tag or commit; of a local folder or an endpoint, a label that enters the cells' keys: change it when
    the service changes the model."""
    image_batch: Positive = 64
    """Images encoded together; does not change results."""
    pair_batch: Positive = 64
    """(image, question) pairs answered, or texts read, together; does not change results."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if not self.checkpoint:
            raise ConfigError("model checkpoint: expected a hub id or a folder, got an empty string")

    @property
    def engine(self) -> Engine:
        """What runs it, where its family leaves no choice."""
        return "transformers"

    @property
    def thinking(self) -> Thoughts:
        """Whether it may think before it replies, where its family leaves no choice."""
        return "refused"

    @property
    def thinking_tokens(self) -> int:
        """The longest thought, where its family leaves no choice."""
        return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalModel(ModelConfig):
    """A model whose weights run on a machine of ours."""

    tokenizer: str | None = None
    """Hub id or folder of the tokenizer, where the checkpoint ships none."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 on a GPU and float32 on a CPU."""


Config = TypeVar("Config", bound=ModelConfig, covariant=True, default=ModelConfig)


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedModel(Generic[Config]):
    """A model pinned to exact files and a precision, or to an endpoint: all an actor needs to load it."""

    config: Config
    parts: Mapping[str, Part] = field(default_factory=dict)
    """`checkpoint`, `tokenizer` and those that its family adds; none where a service runs it."""
    weights: str = "*.safetensors"
    """The files of the checkpoint that have its weights."""
    dtype: Precision = "float32"
    on_gpu: bool = False
    """Where it is to run; the precision, not the device, is what can change a result."""
    profile: VqaProfile | None = None
    """Of a VQA model."""
    version: int = 1
    """Of what its family makes of it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Those of its options that can change a result, as they enter the keys."""
    endpoint: str | None = None
    """The address of the service that runs it; None is the service's own."""

    @property
    def local(self) -> bool:
        """Whether its weights run on this machine."""
        return bool(self.parts)

    @property
    def label(self) -> str | None:
        """The revision given for a local folder, or for a model at an endpoint; a hub model is known by its commit.

        Where a folder takes the place of a hub id, the revision of that hub id says nothing of the folder.
        """
        revision = self.config.revision
        if not self.local:
            return revision
        of_hub = revision is not None and HUB_REVISION.fullmatch(revision) is not None
        return None if of_hub or self.parts["checkpoint"].commit is not None else revision

    def folder(self, part: str) -> Path:
        """The files of one of its parts on this machine; of a tokenizer none with weights."""
        return self.parts[part].folder(self._wanted_files(part))

    def _wanted_files(self, part: str) -> list[str]:
        weights = {"tokenizer": [], "checkpoint": [self.weights]}.get(part, ["*.safetensors"])
        return [*SMALL_FILES, *weights]

    def count_downloads(self) -> dict[str, int]:
        """Return the bytes that this machine's cache lacks, by hub id, as far as the hub lists files."""
        lacking: dict[str, dict[str, int]] = {}
        for name, part in self.parts.items():
            if part.commit is not None:
                lacking.setdefault(part.source, {}).update(part.missing_files(self._wanted_files(name)))
        return {source: sum(files.values()) for source, files in lacking.items() if files}

    def semantic(self) -> dict[str, Any]:
        """The part of the model that can change a result, for the cells' keys."""
        semantic: dict[str, Any] = {"family": self.config.family, "version": self.version, "label": self.label}
        if self.local:
            semantic |= {"dtype": self.dtype, "parts": {name: part.identity for name, part in self.parts.items()}}
        else:
            semantic |= {"model": self.config.checkpoint, "endpoint": (self.endpoint or "").rstrip("/") or None}
        return semantic | (self.profile.semantic() if self.profile is not None else {}) | dict(self.options)
