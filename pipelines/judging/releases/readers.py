"""The releases by name: each is a file `<name>.py` beside this one, with a function `read`."""

from importlib import import_module

from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.long import RatingColumns
from plumbline.pipelines.judging.releases.release import Release

RELEASES = (
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


def read_release(name: str, location: Place, columns: RatingColumns | None = None) -> Release:
    """What the release of this name holds; raises SourceError naming the file and the row that does not fit.

    `columns` are what ratings of one's own (`long`) call theirs.
    """
    reader = import_module(f"plumbline.pipelines.judging.releases.{name}")
    release = reader.read(location) if columns is None else reader.read(location, columns)
    assert isinstance(release, Release)
    return release
