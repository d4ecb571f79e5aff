"""Serves metrics over HTTP, in the request formats that trainers already use."""

import sys

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, warn
from plumbline.plugins.reward_server.known_pair import KnownPair, explain_known_pair
from plumbline.plugins.reward_server.run_service import serve
from plumbline.plugins.reward_server.serve_config import ServeConfig
from plumbline.plugins.reward_server.wires.table import WIRES

COMMAND = Command(
    "serve",
    "Serve metrics over HTTP as rewards for trainers: how well do images fit their prompts? By default, only this\n"
    "machine can connect. Any other host= requires a token (plugins/reward_server/README.md).",
    ServeConfig,
    {"metrics": "metric"},
    extra="serve",
    first="metric",
    stopped="stopped serving",
)


def main(config: ServeConfig) -> int:
    """Serve until a signal stops the process; return 0."""
    console = make_console()
    wires = ", ".join(f"{wire.name} POST {wire.path}" for wire in WIRES)

    def show_address(address: str, known_pair: KnownPair) -> None:
        for line in explain_known_pair(known_pair):
            warn(console, line)
        say(console, "known pair: " + ", ".join(f"{name} {scores}" for name, scores in known_pair.items()))
        say(console, f"serving {', '.join(config.metrics)} at {address} ({wires}; GET /health /metrics /openapi.json)")

    serve(config, show_address)
    return 0


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
