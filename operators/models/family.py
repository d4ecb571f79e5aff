"""What a model family declares: its options, the calls it serves, the files it needs, its checks.

Each is one file in `operators/models/families`, under its name, and one line of the table there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pkgutil import resolve_name
from typing import Any, Generic, NamedTuple, TypeVar

from plumbline.operators.models.calls import Call, Compares, Measure, PixelRule
from plumbline.operators.models.checkpoints.parts import (
    WANTED_FILES,
    Checkpoint,
    Fields,
    FileDigest,
    Part,
    check_weights,
    read_fields,
)
from plumbline.operators.models.model import LocalModel, ModelConfig, ResolvedModel
from plumbline.operators.models.vqa_profiles import VqaProfile


class Files(NamedTuple):
    """Names of which one has to be among the files of a part."""

    part: str
    names: tuple[str, ...]
    remedy: str
    """What to do where none is."""


TOKENIZER = Files(
    "tokenizer",
    ("tokenizer.json", "vocab.json", "spiece.model"),
    "set the model's `tokenizer` to a folder or hub id that has a tokenizer.json",
)
IMAGES = Files("checkpoint", ("preprocessor_config.json", "processor_config.json"), "download the checkpoint again")
Config = TypeVar("Config", bound=ModelConfig)
Loads = Mapping[Call, Callable[[ResolvedModel[Config]], Any]]


def lazily(loader: str) -> Callable[[ResolvedModel[Any]], Any]:
    """A loader that is `module:function` below operators/models, imported where a model is loaded: it needs torch."""
    return lambda model: resolve_name(f"{__package__}.{loader}")(model)


@dataclass(frozen=True, kw_only=True, slots=True)
class Family(Generic[Config]):
    """Models that are configured, found, checked and loaded in one way; nothing here imports torch before a load."""

    config: type[Config]
    """Its options: LocalModel, or a class of its own derived from it."""
    loads: Loads[Config]
    """By call, what loads a model that serves it."""
    vllm: Loads[Config] = field(default_factory=dict)
    """The same for `engine=vllm`; empty where vLLM does not run the family."""
    extra: str | None = None
    """The extra that brings the packages of its models."""
    endpoint_variable: str = ""
    """Of a service: the environment variable that has its address where a model's `endpoint` is null."""
    weights_file: str | None = None
    """The one file that has its weights; None where they are any safetensors files."""
    wanted: tuple[str, ...] = tuple(WANTED_FILES)
    """The files of a checkpoint that it is loaded from, and known by, as patterns; those with weights last."""
    find_tensors: Callable[[Part, str | None], Sequence[str]] = check_weights
    """The names of a checkpoint's tensors; raises ModelError where its weights are not whole safetensors files."""
    read: Callable[[Part], Fields] = read_fields
    """Reads what says how its networks are made: a config.json, or what it has in the place of one."""
    form: str = ""
    """What its config.json looks like, in words that follow `expected`."""
    suits: Callable[[Fields], bool] = lambda fields: False
    """Whether a config.json is of that form."""
    files: tuple[Files, ...] = (TOKENIZER,)
    """What is looked for beside config.json and weights."""
    parts: Callable[[Config, Checkpoint, FileDigest], Mapping[str, Part]] = lambda config, checkpoint, digest: {}
    """Finds the parts beside the checkpoint and its tokenizer, by name."""
    check: Callable[[Config, Mapping[str, Part], Fields], None] = lambda config, parts, fields: None
    """Raises ModelError where a checkpoint of the right form would not load, or would give wrong answers."""
    preflight: Callable[[ResolvedModel[Config], Call], None] | None = None
    """Of a service: makes one small call, and raises ModelError where none can succeed."""
    profile: Callable[[Config, Fields], VqaProfile] | None = None
    """Of a family of VQA models: how a checkpoint with such a config.json (empty for a service) is asked, which metrics
    leave open."""
    measures: tuple[Measure, ...] = ("cosine",)
    """Of a family that serves `similarity`, what its numbers can be."""
    compares: tuple[Compares, ...] = ("prompt", "caption")
    """Of such a family, what can be compared."""
    pixels: tuple[PixelRule, ...] = ("processor",)
    """Of such a family, how images can be made its input."""
    ratings: tuple[str, ...] = ()
    """Of such a family, the names of the numbers that its number is made of."""
    films: bool = False
    """Whether it looks at videos as wholes and at nothing else."""
    several: bool = False
    """Whether all its models are shown several images in one question, where no `profile` says so."""
    precise: bool = False
    """Whether `dtype=auto` is float32 on a GPU too."""
    version: int = 1
    """Raised when the results of its models change."""
    options_in_key: Callable[[Config, VqaProfile | None], Mapping[str, Any]] = lambda config, profile: {}
    """The options that can change a result, for the keys of cells."""

    @property
    def local(self) -> bool:
        """Whether its weights are found, checked and put on a GPU here; a model of a service or a package is not."""
        return issubclass(self.config, LocalModel)

    @property
    def options(self) -> frozenset[str]:
        """The names of all its options."""
        return frozenset(option.name for option in fields(self.config))

    @property
    def calls(self) -> frozenset[Call]:
        """The calls it serves, on one engine or another."""
        return frozenset(self.loads) | frozenset(self.vllm)

    def loads_of(self, config: Config) -> Loads[Config]:
        """By call, what loads such a model."""
        return self.vllm if config.engine == "vllm" else self.loads
