"""The model family `package`: a function that rates images in its own environment, run by a model's pool of workers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from plumbline.operators.base.errors import ConfigError, RowError
from plumbline.operators.metrics.function import UserCode, read_function_options
from plumbline.operators.models.calls import ComparisonResult, Measure, Pair, PixelRule
from plumbline.operators.models.checkpoints.parts import Part
from plumbline.operators.models.family import Family
from plumbline.operators.models.model import ModelConfig, ResolvedModel
from plumbline.operators.stages.function_values import UserFunction
from plumbline.plugins.environments.environments import EnvironmentConfig, resolve_environment
from plumbline.plugins.environments.function import make_environment_function


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageModel(ModelConfig):
    """A function of an image and its prompt, with the environment that it runs in."""

    checkpoint: str
    """The function: FILE.py:NAME, or PACKAGE.MODULE:NAME of one of the environment's packages."""
    environment: EnvironmentConfig | None = None
    """Environment of the function, with the same options as that of a function metric (plugins/environments/README.md).
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class ResolvedPackage(ResolvedModel[PackageModel]):
    """A function with the exact packages of its environment."""

    code: UserCode


class PackageScorer:
    """Model that serves `similarity` with a function in an environment of its own.

    Images are passed on at full size, because each scorer has its own preprocessing.
    """

    side_by_side = False

    def __init__(self, model: ResolvedModel[Any]) -> None:
        assert isinstance(model, ResolvedPackage)
        self.function, self.batch = UserFunction(model.code), model.config.pair_batch

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> Image.Image:
        return image

    def encode(self, pixels: Sequence[Image.Image]) -> Sequence[Image.Image]:
        return pixels

    def compare(
        self, features: Sequence[Image.Image], pairs: Sequence[Pair], measure: Measure = "reward"
    ) -> list[ComparisonResult | RowError]:
        """Return the function's value for each pair, or the reason why it has none."""
        values = self.function.compute([(features[pair.image], pair.text) for pair in pairs], self.batch)
        return [value if isinstance(value, RowError) else ComparisonResult(value, truncated=False) for value in values]


def resolve_package(config: PackageModel) -> ResolvedPackage:
    """Resolve the packages and load the function once; raise ConfigError if it cannot be used as a model."""
    if config.environment is None:
        raise ConfigError(
            f"model {config.checkpoint}: expected the packages of the function, as in environment={{packages: "
            '["image-reward==1.5"]}, got none; set models.ROLE.environment'
        )
    try:
        function = make_environment_function(config.checkpoint, resolve_environment(config.environment))
        code: UserCode = read_function_options(function)["code"]
    except ConfigError as error:
        raise ConfigError(f"model {config.checkpoint}: {error}") from error
    if code.better != "higher":
        raise ConfigError(
            f'model {config.checkpoint}: expected a function that declares better="higher", because a reward is '
            f"better if it is higher, got {code.better!r}; use it as a metric: metric={config.checkpoint}"
        )
    return ResolvedPackage(
        config=config,
        parts={"checkpoint": Part(source=config.checkpoint, commit=None, identity=code.digest)},
        options={"function": function.name, "packages": code.packages, "score_range": code.score_range},
        code=code,
    )


FAMILY = Family(config=PackageModel, loads={"similarity": PackageScorer}, resolve=resolve_package, measures=("reward",))
