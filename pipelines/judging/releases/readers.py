"""The releases by name, each with the function that reads its files."""

from collections.abc import Callable

from plumbline.operators.extensions import Extensions
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.long import RatingColumns
from plumbline.pipelines.judging.releases.release import Release

RELEASES = Extensions[Callable[..., Release]](
    "releases",
    {
        name: f"{__package__}.{module}:read_{name}"
        for module, names in {
            "error_graphs": ("shapes", "t2iscorescore"),
            "image_ratings": ("dsg_tifa160", "flickr8k_cf", "genai_bench", "seetrue", "t2vscore", "tifa160"),
            "long": ("long",),
            "pairs": ("eqben", "pick_a_pic", "winoground"),
            "word_ratings": ("evalmuse", "gecko", "richhf"),
        }.items()
        for name in names
    },
)


def read_release(name: str, place: Place, columns: RatingColumns | None = None) -> Release:
    """What the release of this name holds; raises SourceError naming the file and the row that does not fit.

    `columns` are what ratings of one's own (`long`) call theirs.
    """
    read = RELEASES[name]
    return read(place) if columns is None else read(place, columns)
