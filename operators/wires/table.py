"""The wires that the service answers; of those that share a path, the first that takes a body has it."""

from collections.abc import Sequence

from plumbline.operators.extensions import Extensions
from plumbline.operators.wires.wire import Wire

KINDS = Extensions[type[Wire]](
    "wires",
    {
        "unirl": "plumbline.operators.wires.unirl:UniRlWire",
        "score": "plumbline.operators.wires.score:ScoreWire",
        "flow_factory": "plumbline.operators.wires.flow_factory:FlowFactoryWire",
        "pickled": "plumbline.operators.wires.pickled:PickledWire",
        "edit_r1": "plumbline.operators.wires.pickled:EditR1Wire",
        "openai_chat": "plumbline.operators.wires.openai_chat:OpenAiChatWire",
    },
    Wire,
)
WIRES: Sequence[Wire] = tuple(wire() for wire in KINDS.values())


def wires_of(path: str) -> list[Wire]:
    """Those that share a path."""
    return [wire for wire in WIRES if wire.path == path]
