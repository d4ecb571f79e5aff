"""Formats whose example is a ranking of a prompt's images."""

from itertools import combinations
from typing import Any

from plumbline.operators.rewards.formats.format import Format, Picture, Sample


def _imagereward_rows(sample: Sample) -> list[dict[str, Any]]:
    return [
        {
            "id": sample.prompt_id,
            "prompt": sample.prompt,
            "generations": [picture.path.removeprefix("images/") for picture in sample.pictures],
            "ranking": list(range(1, len(sample.pictures) + 1)),
        }
    ]


IMAGEREWARD = Format(unit="ranking", container="json", images="files", rows=_imagereward_rows)
"""ImageReward's rankings: the images of a prompt with their ranks, lower being better, and no two alike."""


def _hpsv2_rows(sample: Sample) -> list[dict[str, Any]]:
    """Every two images of a ranking, the better one marked 1; it stands first in every other pair."""
    pairs = combinations(sample.pictures, 2)
    return [_pair(sample, *pair, swapped=bool(place % 2)) for place, pair in enumerate(pairs, sample.number)]


def _pair(sample: Sample, better: Picture, worse: Picture, *, swapped: bool) -> dict[str, Any]:
    first, second = (worse, better) if swapped else (better, worse)
    return {
        "human_preference": [int(first is better), int(second is better)],
        "prompt": sample.prompt,
        "file_path": [_name(first), _name(second)],
    }


def _ranked(sample: Sample) -> list[dict[str, Any]]:
    """A ranking from 1, the best; nobody's own annotations stand behind it."""
    ranks = list(range(1, len(sample.pictures) + 1))
    names = [_name(picture) for picture in sample.pictures]
    return [{"prompt": sample.prompt, "image_path": names, "rank": ranks, "raw_annotations": []}]


def _name(picture: Picture) -> str:
    """Of an image below the folder of images, which trainers are given by itself."""
    return picture.path.removeprefix("images/")


HPSV2 = Format(unit="ranking", container="json", images="files", rows=_hpsv2_rows, beside=_ranked)
"""HPD v2's annotations: pairs to train on (human_preference), and rankings to test by (rank)."""
