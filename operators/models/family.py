"""What a model family says of itself: the calls it serves, the files it needs, its options, defaults and checks.

Each is one file in `operators/models/families`, under its name, and one line of the table there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from plumbline.operators.models.calls import Measure, PixelRule
from plumbline.operators.models.checkpoints.parts import Checkpoint, Fields, FileDigest, Part, read_fields
from plumbline.operators.models.vqa_kinds import VqaKind

if TYPE_CHECKING:
    from plumbline.operators.models.model import ModelConfig, ResolvedModel

Call = Literal[
    "likelihood",
    "generate",
    "generate_from_images",
    "regions",
    "detect",
    "ocr",
    "entailment",
    "embedding",
    "similarity",
]
Engine = Literal["transformers", "vllm"]


class Files(NamedTuple):
    """Names of which one has to be among the files of a part."""

    role: str
    names: tuple[str, ...]
    remedy: str
    """What to do where none is."""


TOKENIZER = Files(
    "tokenizer",
    ("tokenizer.json", "vocab.json", "spiece.model"),
    "set the model's `tokenizer` to a folder or hub id that has a tokenizer.json",
)
IMAGES = Files("checkpoint", ("preprocessor_config.json", "processor_config.json"), "download the checkpoint again")


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Models that are configured, found, checked and loaded in one way; nothing here imports torch before a load."""

    loads: "Mapping[Call, Callable[[ResolvedModel], Any]]"
    """By call, what loads a model that serves it."""
    vllm: "Mapping[Call, Callable[[ResolvedModel], Any]]" = field(default_factory=dict)
    """The same for `engine=vllm`; empty where vLLM does not run the family."""
    options: frozenset[str] = frozenset({"tokenizer"})
    """Which of ModelConfig's fields it has, of those that not every family has; `engine` follows from `vllm`."""
    local: bool = True
    """Whether its weights run on a machine of ours; one that a service runs is taken at its name, `checkpoint`."""
    endpoint_variable: str = ""
    """Of a service: the environment variable that has its address where a model's `endpoint` is null."""
    weights_file: str | None = None
    """The one file that has its weights; None where they are any safetensors files."""
    read: Callable[[Part], Fields] = read_fields
    """Reads what says how its networks are made: a config.json, or what it has in the place of one."""
    form: str = ""
    """What its config.json looks like, in words that follow `expected`."""
    suits: Callable[[Fields], bool] = lambda fields: False
    """Whether a config.json is of that form."""
    files: tuple[Files, ...] = (TOKENIZER,)
    """What is looked for beside config.json and weights."""
    parts: "Callable[[ModelConfig, Checkpoint, FileDigest], Mapping[str, Part]]" = lambda config, checkpoint, digest: {}
    """Finds the parts beside the checkpoint and its tokenizer, by role."""
    check: "Callable[[ModelConfig, Mapping[str, Part], Fields], None]" = lambda config, parts, fields: None
    """Raises ModelError where a checkpoint of the right form would not load, or would give wrong answers."""
    preflight: "Callable[[ResolvedModel, Call], None] | None" = None
    """Of a service: makes one small call, and raises ModelError where none can succeed."""
    kind: Callable[[Fields], VqaKind] | None = None
    """Of a family of VQA models, the kind that a config.json tells, empty of a service: what metrics leave to it."""
    measures: tuple[Measure, ...] = ("cosine",)
    """Of a family that serves `similarity`, what its numbers can be."""
    pixels: tuple[PixelRule, ...] = ("processor",)
    """Of such a family, how images can be made its input."""
    precise: bool = False
    """Whether `dtype=auto` is float32 on a GPU too."""
    version: Callable[[Fields], int] = lambda fields: 1
    """Raised when the results of a checkpoint with such a config.json change; a 1 is not in the keys of cells."""
    engine_in_keys: bool = True
    """False for the first families, whose cells were computed before there was an engine to name."""

    @property
    def calls(self) -> frozenset[Call]:
        """The calls it serves, on one engine or another."""
        return frozenset(self.loads) | frozenset(self.vllm)

    @property
    def all_options(self) -> frozenset[str]:
        """`options` with those of its engines."""
        return self.options | ({"engine", "engine_options"} if self.vllm else set())

    def loads_on(self, engine: Engine) -> "Mapping[Call, Callable[[ResolvedModel], Any]]":
        """By call, what loads a model on that engine."""
        return self.vllm if engine == "vllm" else self.loads
