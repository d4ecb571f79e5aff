"""Configuration of a gate: the run, the rules, and the run or generator to compare with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from plumbline.operators.base.bounds import BoundsChecked
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.generation_settings import SettingsPolicy
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.pipelines.base.storage import Place, StorageConfig, convert_read_errors
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.plugins.gates.rules import Alpha, Gate, Rule

MAX_RULES_FILE_BYTES = 1 << 20
"""Maximum size of a rules file in bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateConfig:
    """The run to judge, and the rules that it must pass."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    run: str = "latest"
    """Id of a run (see plumbline status), or of a suite whose runs must all pass; `latest` is the newest run."""
    rules: str
    """Rules file (plugins/gates/README.md): a path or URL."""
    against: str | None = None
    """The run to compare with, generator by generator: its id, the id of its suite, or `previous` for the newest
    earlier run that can be compared.
    """
    candidate: str | None = None
    """The generator to judge; null judges all generators."""
    baseline: str | None = None
    """The generator of the same run to compare with, instead of another run."""
    settings: SettingsPolicy = "compare"
    """Treatment of images generated with different settings: with `compare`, rules on them remain undecided;
    with `ignore`, their scores are compared anyway.
    """
    junit: str | None = None
    """File for the result as JUnit XML, which CI systems show: a path or URL."""
    summary: str | None = None
    """File for the result as Markdown, for a pull request: a path or URL."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        if self.against is not None and self.baseline is not None:
            raise ConfigError(
                f"baseline={self.baseline} names a generator of the same run, but against={self.against} is set too; "
                "leave one of them out"
            )
        if self.baseline is not None and self.baseline == self.candidate:
            raise ConfigError(f"baseline={self.baseline} is the candidate itself; name another generator")


@dataclass(frozen=True, kw_only=True, slots=True)
class GateFile(BoundsChecked):
    """Content of a rules file."""

    alpha: Alpha = SIGNIFICANCE
    """One-sided level: the maximum probability that the gate passes a run that breaks one of its tested rules."""
    rules: Mapping[str, Any]
    """The rules by name."""


def read_gate(place: Place) -> Gate:
    """Read a rules file; raise ConfigError naming the file or the rule if it is invalid."""
    with convert_read_errors(place, "rules"):
        text = place.read(MAX_RULES_FILE_BYTES).decode("utf-8", "replace")
    try:
        values = OmegaConf.to_container(OmegaConf.create(text))
    except (OmegaConfBaseException, YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{place}: expected YAML of keys and values ({reason}); correct the file") from error
    rules = values.get("rules") if isinstance(values, dict) else values
    if not isinstance(values, dict) or not isinstance(rules, dict) or not rules:
        raise ConfigError(f"{place}: rules: expected rules by name, got {rules!r}; write `rules:` and a rule below it")
    try:
        file = read_config({str(key): value for key, value in values.items()}, GateFile)
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from error
    return Gate(
        str(place), file.alpha, {str(name): _parse_rule(place, name, of_rule) for name, of_rule in file.rules.items()}
    )


def _parse_rule(place: Place, name: str, values: Any) -> Rule:
    if not isinstance(values, dict):
        example = f"{name}: {{metric: NAME, at_least: NUMBER}}"
        raise ConfigError(f"{place}: rule {name}: expected a mapping, got {values!r}; write {example}")
    try:
        return read_config(values, Rule)
    except ConfigError as error:
        raise ConfigError(f"{place}: rule {name}: {error}") from error
