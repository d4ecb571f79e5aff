"""Kinds of networks for which the tests have tiny checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from plumbline.operators.models.calls import Measure


class Kind(NamedTuple):
    """A kind of network, and the model family that supports it."""

    family: str
    save: Callable[[Path], Path]
    """Function that saves the checkpoint to a new folder and returns the folder."""
    measure: Measure = "cosine"
    """Measure used by models that compare images with texts."""
