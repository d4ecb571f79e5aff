"""Makes the embedded benchmarks and models from fixed seeds.

Run `make train`, or `python -m assets.making steps=[writer,accuracy]` for some of the parts.
"""

import sys

from omegaconf import OmegaConf

from plumbline.assets.making.world import WorldConfig, make_world
from plumbline.jobs.display.console import make_console, say
from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.plans.sweep_config import read_config


def main(overrides: list[str]) -> int:
    """Make the chosen parts and report each step; return 0, or 64 if a key or value is invalid."""
    console = make_console()
    try:
        values = OmegaConf.to_container(OmegaConf.from_dotlist(overrides))
        config = read_config(values, WorldConfig)  # type: ignore[arg-type]
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 64
    make_world(config, lambda line: say(console, line))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
