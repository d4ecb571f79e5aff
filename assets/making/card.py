"""The pack's README: what it is, how it was made, and how well its models answer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from plumbline.assets.making.writer_accuracy import THRESHOLD
from plumbline.assets.making.writer_gold import PLANTED_COLOUR


def pack_card(measured: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """The README's text from what was measured and the settings it was made with."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.get_template("card.md.j2")
    return template.render(**measured, recipe=recipe, threshold=THRESHOLD, planted_colour=PLANTED_COLOUR)
