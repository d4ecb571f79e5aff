"""A kind of network for which the tests have a tiny checkpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from plumbline.operators.models.calls import Measure


class Kind(NamedTuple):
    """A kind of network, and the family that serves it."""

    family: str
    save: Callable[[Path], Path]
    """Writes the checkpoint into a new folder and returns it."""
    measure: Measure = "cosine"
    """Measure of models that compare."""
