"""A model as a sweep names it, and as what it is resolved to: exact files, known without torch or a weight."""

import math
import re
from collections.abc import Mapping, Set
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from plumbline.operators.errors import ConfigError, suggest
from plumbline.operators.models.checkpoints.parts import SMALL_FILES, Part
from plumbline.operators.models.engine_options import check_options, semantic_options
from plumbline.operators.models.families import FAMILIES
from plumbline.operators.models.family import Call, Engine, Family
from plumbline.operators.models.prices import Prices
from plumbline.operators.models.vqa_kinds import VqaKind

Precision = Literal["float32", "bfloat16"]
Padding = Literal["released", "processor"]
Penalty = Literal["ignored", "released"]
HUB_REVISION = re.compile(r"refs/.+|[0-9a-f]{40}")
"""How the hub names a pull request or a commit, and nobody a folder."""
ImageFormat = Literal["png", "jpeg"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """One model a sweep may use; a hub id or a local folder, the same code."""

    family: str
    """Which of the families serves it."""
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
    repetition_penalty: Penalty = "ignored"
    """Of a vlm's likelihoods: `released` punishes tokens of the prompt, by the repetition_penalty that the checkpoint's
    generation_config.json names, as the released VQAScore of Qwen2.5-VL does, which asks by `generate`."""
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
    image_format: ImageFormat = "png"
    """How images are sent to the endpoint: `png` keeps every pixel; `jpeg`, at quality 95, is a fifth of the size."""
    timeout: float = 300.0
    """Seconds that one attempt of a request to the endpoint may take."""
    requests_per_minute: float | None = None
    """How many requests, those that are tried again included, one worker makes in a minute; null sets no bound."""
    prices: Prices | None = None
    """What the endpoint's tokens cost, for what is told of a sweep; null tells no cost."""
    key_variable: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the endpoint's key; the key itself is never configured."""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ConfigError(
                f"model family: expected one of {', '.join(FAMILIES)}, got {self.family!r}; "
                f"{suggest(self.family, list(FAMILIES))}"
            )
        for name, least in (("image_batch", 1), ("pair_batch", 1), ("concurrency", 1), ("max_retries", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"model {name}: expected at least {least}, got {getattr(self, name)}")
        for name, number in (("timeout", self.timeout), ("requests_per_minute", self.requests_per_minute)):
            if number is not None and not (math.isfinite(number) and number > 0):
                raise ConfigError(f"model {name}: expected more than 0, got {number}")
        if not self.checkpoint:
            raise ConfigError("model checkpoint: expected a hub id or a folder, got an empty string")
        self._check_own_options()
        check_options(self.engine_options)
        check_endpoint(self.endpoint)
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_variable) is None:
            raise ConfigError(
                "model key_variable: expected the name of an environment variable, not what it holds; "
                "put the key into that variable"
            )

    def _check_own_options(self) -> None:
        """Raises ConfigError for an option that is set and that only other families have."""
        for option in fields(self):
            having = [name for name, family in FAMILIES.items() if option.name in family.all_options]
            if having and self.family not in having and getattr(self, option.name) != _default(option):
                raise ConfigError(
                    f"model {option.name}: an option of {' and '.join(having)}; remove it from this {self.family} model"
                )

    @property
    def own_family(self) -> Family:
        """What its family says of itself."""
        return FAMILIES[self.family]

    @property
    def calls(self) -> Set[Call]:
        """The calls it serves on its engine."""
        return self.own_family.loads_on(self.engine).keys()


def _default(option: "Field[Any]") -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()


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
class ResolvedModel:
    """A model pinned to exact files and a precision, or to an endpoint: all an actor needs to load it."""

    config: ModelConfig
    parts: Mapping[str, Part] = field(default_factory=dict)
    """By role: `checkpoint`, `tokenizer` and those that its family adds; none where a service runs it."""
    dtype: Precision = "float32"
    on_gpu: bool = False
    """Where it is to run; the precision, not the device, is what can change a result."""
    kind: VqaKind | None = None
    """Of a VQA model."""
    version: int = 1
    """Of what its family makes of it."""
    endpoint: str | None = None
    """The address of the service that runs it; None is the family's own."""

    @property
    def family(self) -> Family:
        return FAMILIES[self.config.family]

    @property
    def local(self) -> bool:
        """Whether its weights run on this machine."""
        return self.family.local

    @property
    def image_batch(self) -> int:
        """Images encoded together."""
        return self.config.image_batch

    @property
    def label(self) -> str | None:
        """The revision given for a local folder, or for a model at an endpoint; a hub model is known by its commit.

        Where a folder takes the place of a hub id, what is left of that one's revision says nothing of the folder.
        """
        revision = self.config.revision
        if not self.local:
            return revision
        of_hub = revision is not None and HUB_REVISION.fullmatch(revision) is not None
        return None if of_hub or self.parts["checkpoint"].commit is not None else revision

    @property
    def pads(self) -> bool:
        """Whether images are put on a square of the mean colour before the checkpoint's own processing."""
        return self.kind is not None and self.kind.pads and self.config.padding == "released"

    def folder(self, role: str) -> Path:
        """The files of one of its parts on this machine; of a tokenizer none with weights."""
        only = self.family.weights_file if role == "checkpoint" else None
        weights = [] if role == "tokenizer" else [only or "*.safetensors"]
        return self.parts[role].folder([*SMALL_FILES, *weights])

    def semantic(self) -> dict[str, Any]:
        """The part of the model that can change a result, for the cells' keys."""
        semantic: dict[str, Any] = {"family": self.config.family, "label": self.label}
        if not self.local:
            return semantic | self._at_endpoint()
        semantic |= {"dtype": self.dtype, "parts": {role: part.identity for role, part in self.parts.items()}}
        if self.version > 1:
            semantic["version"] = self.version
        if self.kind is not None:
            semantic |= self.kind.semantic()
        if self.kind is not None and self.kind.pads:
            semantic["padding"] = self.config.padding
        if self.config.repetition_penalty != "ignored":
            semantic["repetition_penalty"] = self.config.repetition_penalty
        if self.family.engine_in_keys:
            engine = self.config.engine
            options = semantic_options(self.config.engine_options) if engine == "vllm" else {}
            semantic |= {"engine": engine, "engine_options": options}
        return semantic

    def _at_endpoint(self) -> dict[str, Any]:
        """What enters the keys of a model that a service runs; PNG does not, for it is older than the choice."""
        named = {"model": self.config.checkpoint, "endpoint": (self.endpoint or "").rstrip("/") or None}
        sent = {"image_format": self.config.image_format} if self.config.image_format != "png" else {}
        return named | sent | (self.kind.semantic() if self.kind is not None else {})
