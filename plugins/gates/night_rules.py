"""Uses a rules file as the gate of a nightly run."""

from collections.abc import Mapping, Sequence
from functools import partial

from plumbline.operators.images.generation_settings import SettingsPolicy
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.nightly.gates import GateVerdict, NightGate
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.store.runs import read_manifest
from plumbline.pipelines.store.store import Store
from plumbline.plugins.gates.gate_config import read_gate
from plumbline.plugins.gates.gating import judge_run
from plumbline.plugins.gates.jobs.gate import show_gate


class NightRules(NightGate):
    """The rules configured as `nightly.gate`."""

    def __init__(self, place: Place) -> None:
        self.rules = read_gate(place)

    def check(self, metrics: Mapping[str, Sequence[str]]) -> None:
        self.rules.check(metrics)

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
        gate = self.rules.select_benchmark(read_manifest(store, run_id)["benchmark"])
        if not gate.rules:
            return None
        result = judge_run(
            store, gate, run_id, against=against, why_not_compared=why_not_compared, settings=settings, sources=sources
        )
        return GateVerdict(result.passed, result.to_json(), partial(show_gate, result=result))
