"""Declaration of a model family; the families themselves are in `operators/models/families`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pkgutil import resolve_name
from typing import Any, Generic, NamedTuple, TypeVar

from plumbline.operators.models.calls import Call, ComparisonTarget, Measure, PixelRule
from plumbline.operators.models.checkpoints.parts import (
    WANTED_FILE_PATTERNS,
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
    """Alternative names of a file that a checkpoint needs: at least one file with such a name must exist."""

    part: str
    names: tuple[str, ...]
    remedy: str
    """Advice to the user if none of the files exists."""


TOKENIZER = Files(
    "tokenizer",
    ("tokenizer.json", "vocab.json", "spiece.model"),
    "set the model's `tokenizer` to a folder or hub id that has a tokenizer.json",
)
IMAGES = Files("checkpoint", ("preprocessor_config.json", "processor_config.json"), "download the checkpoint again")
Config = TypeVar("Config", bound=ModelConfig)
Loads = Mapping[Call, Callable[[ResolvedModel[Config]], Any]]


def defer_import(loader: str) -> Callable[[ResolvedModel[Any]], Any]:
    """Return a loader that, when it is called, imports `module:function` from operators/models and calls the function.

    Until then, torch is not imported.
    """
    return lambda model: resolve_name(f"{__package__}.{loader}")(model)


@dataclass(frozen=True, kw_only=True, slots=True)
class Family(Generic[Config]):
    """Models that are configured, found, checked and loaded in the same way. Only loading a model imports torch."""

    config: type[Any] = LocalModel
    """Class of the family's options."""
    loads: Loads[Config]
    """Loader for each call that the family serves."""
    vllm: Loads[Config] = field(default_factory=dict)
    """Loaders for `engine=vllm`; empty if vLLM does not run the family."""
    extra: str | None = None
    """Name of the extra with the packages that the family needs."""
    oldest_transformers: str | None = None
    """Oldest release of transformers that runs the family; None if every release that the project allows runs it."""
    endpoint_variable: str = ""
    """Environment variable with the address of a service, used if a model's `endpoint` is null."""
    weights_file: str | None = None
    """Name of the single file with the weights; None for any safetensors files."""
    file_patterns: tuple[str, ...] = tuple(WANTED_FILE_PATTERNS)
    """Patterns of the checkpoint's files that are loaded and that identify it; the last pattern is for the weights."""
    find_tensors: Callable[[Part, str | None], Sequence[str]] = check_weights
    """Function that returns the names of a checkpoint's tensors. It raises ModelError unless all weights are present,
    in safetensors files.
    """
    read: Callable[[Part], Fields] = read_fields
    """Function that reads the description of the network: config.json, or the family's substitute for it."""
    form: str = ""
    """Description of the config.json that the family expects; follows the word `expected` in messages."""
    suits: Callable[[Fields], bool] = lambda fields: False
    """Function that returns True if a config.json belongs to the family."""
    files: tuple[Files, ...] = (TOKENIZER,)
    """Files needed in addition to config.json and weights."""
    parts: Callable[[Config, Checkpoint, FileDigest], Mapping[str, Part]] = lambda config, checkpoint, digest: {}
    """Function that finds the model's parts, by name, other than the checkpoint and its tokenizer."""
    check: Callable[[Config, Mapping[str, Part], Fields], None] = lambda config, parts, fields: None
    """Function that raises ModelError for a checkpoint that `suits` accepts, but that would not load or would give
    wrong answers.
    """
    resolve: Callable[[Config], ResolvedModel[Config]] | None = None
    """For models without a checkpoint: function that identifies the model; None if `options_in_key` does."""
    preflight: Callable[[ResolvedModel[Config], Call], None] | None = None
    """For services: function that makes one small call, and raises ModelError if no call can succeed."""
    profile: Callable[[Config, Fields], VqaProfile] | None = None
    """For VQA models: function that returns the profile for a checkpoint's config.json (empty for a service)."""
    measures: tuple[Measure, ...] = ("cosine",)
    """Measures that the family supports in the call `similarity`."""
    compares: tuple[ComparisonTarget, ...] = ("prompt", "caption")
    """Comparisons that the family supports in the call `similarity`."""
    pixels: tuple[PixelRule, ...] = ("processor",)
    """Image preprocessing rules that the family supports in the call `similarity`."""
    ratings: tuple[str, ...] = ()
    """Names of the components of a reward that the family returns in the call `similarity`."""
    reads_videos: bool = False
    """True if the family reads only whole videos."""
    several_images: bool = False
    """True if all models of the family can see several images in one question; ignored if there is a `profile`."""
    float32_on_gpu: bool = False
    """True if `dtype=auto` also means float32 on a GPU."""
    version: int = 1
    """Version of the results; incremented when the results of the family's models change."""
    options_in_key: Callable[[Config, VqaProfile | None], Mapping[str, Any]] = lambda config, profile: {}
    """Function that returns the options that can change a result, for use in cell keys."""

    @property
    def local(self) -> bool:
        """True if this project finds, checks and runs the weights; False for services and for models in a package."""
        return issubclass(self.config, LocalModel)

    @property
    def options(self) -> frozenset[str]:
        return frozenset(option.name for option in fields(self.config))

    @property
    def calls(self) -> frozenset[Call]:
        return frozenset(self.loads) | frozenset(self.vllm)

    def select_loaders(self, config: Config) -> Loads[Config]:
        """Return a loader for each call, for the engine that the model uses."""
        return self.vllm if config.engine == "vllm" else self.loads
