"""The pack's README: what it is, how it was made, how well its models answer, and how large it is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from operators.pack.writer_accuracy import THRESHOLD
from operators.pack.writer_gold import PLANTED_COLOUR


def pack_card(assets: Path, measured: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """The README's text from what was measured and the settings it was made with."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("card.md.j2").render(
        **measured, recipe=recipe, sizes=_sizes(assets), threshold=THRESHOLD, planted_colour=PLANTED_COLOUR
    )


def _sizes(assets: Path) -> dict[str, int]:
    """Bytes of the checkpoints' files one by one, and of the benchmark as a whole."""
    files = sorted(path for path in assets.rglob("*") if path.is_file())
    sizes = {
        str(path.relative_to(assets)): path.stat().st_size for path in files if path.parent.name.endswith("-shapes")
    }
    return sizes | {"shapes/": sum(path.stat().st_size for path in files if path.is_relative_to(assets / "shapes"))}
