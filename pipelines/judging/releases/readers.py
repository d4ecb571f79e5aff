"""The releases by name, each with the function that reads its files."""

from collections.abc import Callable

from plumbline.operators.extensions import Extensions
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.long import RatingColumns
from plumbline.pipelines.judging.releases.release import Release

FOLDER = "plumbline.pipelines.judging.releases"
RELEASES = Extensions[Callable[..., Release]](
    "releases",
    {
        "dsg_tifa160": f"{FOLDER}.tifa160:read_dsg_tifa160",
        "eqben": f"{FOLDER}.caption_pairs:read_eqben",
        "evalmuse": f"{FOLDER}.evalmuse:read",
        "flickr8k_cf": f"{FOLDER}.flickr8k_cf:read",
        "gecko": f"{FOLDER}.gecko:read",
        "genai_bench": f"{FOLDER}.t2v_metrics:read_genai_bench",
        "long": f"{FOLDER}.long:read",
        "pick_a_pic": f"{FOLDER}.pick_a_pic:read",
        "richhf": f"{FOLDER}.richhf:read",
        "seetrue": f"{FOLDER}.seetrue:read",
        "shapes": f"{FOLDER}.shapes:read",
        "t2iscorescore": f"{FOLDER}.t2iscorescore:read",
        "t2vscore": f"{FOLDER}.t2v_metrics:read_t2vscore",
        "tifa160": f"{FOLDER}.tifa160:read_tifa160",
        "winoground": f"{FOLDER}.caption_pairs:read_winoground",
    },
)


def read_release(name: str, place: Place, columns: RatingColumns | None = None) -> Release:
    """What the release of this name holds; raises SourceError naming the file and the row that does not fit.

    `columns` are what ratings of one's own (`long`) call theirs.
    """
    read = RELEASES[name]
    return read(place) if columns is None else read(place, columns)
