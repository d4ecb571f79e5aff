"""The readers of releases by the names that a configuration gives them."""

from collections.abc import Callable, Mapping

from pipelines.judging.releases import (
    eqben,
    flickr8k_cf,
    gecko,
    genai_bench,
    long,
    pick_a_pic,
    seetrue,
    shapes,
    t2iscorescore,
    t2vscore,
    tifa160,
    winoground,
)
from pipelines.judging.releases.release import Release
from pipelines.storage import Location

READERS: Mapping[str, Callable[[Location], Release]] = {
    "tifa160": tifa160.read,
    "genai_bench": genai_bench.read,
    "t2vscore": t2vscore.read,
    "winoground": winoground.read,
    "eqben": eqben.read,
    "seetrue": seetrue.read,
    "pick_a_pic": pick_a_pic.read,
    "flickr8k_cf": flickr8k_cf.read,
    "gecko": gecko.read,
    "t2iscorescore": t2iscorescore.read,
    "shapes": shapes.read,
    "long": long.read,
}
