"""The wires that the service supports. If several have the same path, the first that accepts a request reads it."""

from collections.abc import Sequence

from plumbline.operators.base.extensions import Extensions
from plumbline.plugins.reward_server.wires.wire import Wire

KINDS = Extensions[type[Wire]](
    "wires",
    {
        "unirl": "plumbline.plugins.reward_server.wires.unirl:UniRlWire",
        "score": "plumbline.plugins.reward_server.wires.score:ScoreWire",
        "flow_factory": "plumbline.plugins.reward_server.wires.flow_factory:FlowFactoryWire",
        "pickled": "plumbline.plugins.reward_server.wires.pickled:PickledWire",
        "edit_r1": "plumbline.plugins.reward_server.wires.pickled:EditR1Wire",
        "openai_chat": "plumbline.plugins.reward_server.wires.openai_chat:OpenAiChatWire",
    },
    Wire,
)
WIRES: Sequence[Wire] = tuple(wire() for wire in KINDS.values())


def find_wires(path: str) -> list[Wire]:
    return [wire for wire in WIRES if wire.path == path]
