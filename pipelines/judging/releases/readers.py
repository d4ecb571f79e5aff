"""The releases by name: each of ours is the function `read` of the file of its name beside this one."""

from collections.abc import Callable

from plumbline.operators.extensions import Extensions, in_folder
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.long import RatingColumns
from plumbline.pipelines.judging.releases.release import Release

NAMES = (
    "dsg_tifa160",
    "eqben",
    "evalmuse",
    "flickr8k_cf",
    "gecko",
    "genai_bench",
    "long",
    "pick_a_pic",
    "richhf",
    "seetrue",
    "shapes",
    "t2iscorescore",
    "t2vscore",
    "tifa160",
    "winoground",
)
RELEASES = Extensions[Callable[..., Release]](
    "releases", in_folder("plumbline.pipelines.judging.releases", NAMES, "read")
)


def read_release(name: str, location: Place, columns: RatingColumns | None = None) -> Release:
    """What the release of this name holds; raises SourceError naming the file and the row that does not fit.

    `columns` are what ratings of one's own (`long`) call theirs.
    """
    read = RELEASES[name]
    return read(location) if columns is None else read(location, columns)
