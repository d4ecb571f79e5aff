"""The released files of answers by name: each is a file `<name>.py` here, with a function `read`."""

from collections.abc import Sequence
from importlib import import_module

from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.answers.answer import Answered

FORMATS = ("dsg", "t2iscorescore", "tifa")


def read_answers(name: str, location: Place, given: Sequence[str]) -> Answered:
    """The answers of the models asked for, of all where none are; raises SourceError naming the file and the row."""
    answered = import_module(f"{__name__}.{name}").read(location, given)
    assert isinstance(answered, Answered)
    return answered
