"""Thumbs, an example release: which images people like, and a model's guesses."""

from collections.abc import Sequence

from plumbline.extending import Answer, Answered, Place, Release, make_column_ratings, read_sheet, read_text, released


def read(place: Place) -> Release:
    """Read ratings from a CSV with the columns image, person and liked; yes counts as 1 and no as 0."""
    sheet = read_sheet(place).require(("image", "person", "liked"), "check that this is a file of Thumbs")
    likes = [float(answer == "yes") for answer in sheet.ids("liked")]
    return released(ratings=make_column_ratings(sheet, sheet.ids("image"), sheet.texts("prompt"), likes))


def read_answers(place: Place, given: Sequence[str]) -> Answered:
    """Read a model's guesses from a text file; each line contains an image's name followed by "up" or "down"."""
    lines = [line.split() for line in read_text(place).splitlines()]
    return Answered([Answer("thumbs", name, None, None, "q", said == "up", (), str(place)) for name, said in lines])
