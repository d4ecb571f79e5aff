"""The wires that the service answers; of those that share a path, the first that takes a body has it."""

from collections.abc import Sequence

from plumbline.operators.wires.flow_factory import FlowFactoryWire
from plumbline.operators.wires.pickled import PickledWire
from plumbline.operators.wires.score import ScoreWire
from plumbline.operators.wires.unirl import UniRlWire
from plumbline.operators.wires.wire import Wire

WIRES: Sequence[Wire] = (UniRlWire(), ScoreWire(), FlowFactoryWire(), PickledWire())


def wires_of(path: str) -> list[Wire]:
    """Those that share a path."""
    return [wire for wire in WIRES if wire.path == path]
