"""Gates of nightly runs: files with requirements, which plugins read and apply to a run."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console

from plumbline.operators.base.errors import ConfigError, describe_missing_plugin
from plumbline.operators.base.extensions import Extensions
from plumbline.operators.images.generation_settings import SettingsPolicy
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.store.store import Store


class GateVerdict(NamedTuple):
    passed: bool
    record: Mapping[str, Any]
    """The result as plain values, for nightly.json and the webhook. It includes `passed` and a one-line `summary`."""
    show: Callable[[Console], None]


class NightGate(ABC):
    """Rules, read from a file, that decide whether a nightly run succeeds; without rules, regressions decide."""

    @abstractmethod
    def __init__(self, place: Place) -> None:
        """Read the file; raise ConfigError if it is invalid."""

    @abstractmethod
    def check(self, metrics: Mapping[str, Sequence[str]]) -> None:
        """Raise ConfigError if the rules cannot be applied to the runs; `metrics` are the metrics of each benchmark."""

    @abstractmethod
    def judge(
        self,
        store: Store,
        run_id: str,
        *,
        against: str | None,
        why_not_compared: str,
        settings: SettingsPolicy,
        sources: Sources | None,
    ) -> GateVerdict | None:
        """Judge a finished run; return None if no rule applies to its benchmark.

        Args:
            store: The store that contains the run.
            run_id: The run's id.
            against: Id of the earlier run to compare with.
            why_not_compared: Reason why there is nothing to compare with; empty if `against` is set.
            settings: How to treat generation settings that differ between the two runs.
            sources: The run's sources, if they have already been read.
        """


NIGHT_GATES = Extensions[type[NightGate]]("night_gates", {}, NightGate)
RULES_GATE_NAME = "rules"
"""Name of the gate that reads the file given as `nightly.gate`."""


def open_gate(place: Place) -> NightGate:
    """Read a gate's file; raise ConfigError if it is invalid, or if the plugin that reads it is missing."""
    if RULES_GATE_NAME not in NIGHT_GATES:
        raise ConfigError(describe_missing_plugin("nightly.gate: rules are a part", "gates"))
    return NIGHT_GATES[RULES_GATE_NAME](place)
