"""The released files of answers by name: each of ours is the function `read` of the file of its name here."""

from collections.abc import Callable, Sequence

from plumbline.operators.extensions import Extensions, in_folder
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.answers.answer_table import Answered

FORMATS = Extensions[Callable[[Place, Sequence[str]], Answered]](
    "answers", in_folder(__name__, ("dsg", "t2iscorescore", "tifa"), "read")
)
"""Each reads the answers of the models that are named, or of all; it raises SourceError naming the file and the row."""
