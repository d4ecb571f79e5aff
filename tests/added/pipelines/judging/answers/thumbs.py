"""Thumbs: a line for every image, its name and up or down."""

from collections.abc import Sequence

from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.answers.answer import Answer, Answered
from plumbline.pipelines.judging.releases.tables import read_text


def read(location: Place, given: Sequence[str]) -> Answered:
    """Up as right."""
    lines = [line.split() for line in read_text(location).splitlines()]
    return Answered([Answer("thumbs", name, None, None, "q", said == "up", (), location.url) for name, said in lines])
