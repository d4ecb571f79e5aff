"""Thumbs: whether one person likes an image.

Source: nobody's; a CSV with image, person and liked (yes or no).
"""

from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import Release, column_ratings, released
from plumbline.pipelines.judging.releases.tables import read_sheet


def read(location: Place) -> Release:
    """Yes as a rating of 1, no as 0."""
    sheet = read_sheet(location).require(("image", "person", "liked"), "is this Thumbs' file?")
    likes = [float(answer == "yes") for answer in sheet.ids("liked")]
    return released(ratings=column_ratings(sheet, sheet.ids("image"), sheet.texts("prompt"), likes))
