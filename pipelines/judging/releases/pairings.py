"""Samples of two captions and two images as the four pairings that Winoground's scores compare."""

from collections.abc import Iterable
from itertools import product
from typing import Any, NamedTuple

import pyarrow as pa

from operators import rows
from operators.errors import SourceError


class Sample(NamedTuple):
    """Two captions and two images, of which caption i fits image i."""

    sample_id: str
    tag: str | None
    where: str
    """The file and row it stands in."""


def prompt_ids(sample_id: str) -> list[str]:
    """The ids of a sample's two captions: `<sample>_c0` and `<sample>_c1`, after the `c0_i0` of the released code."""
    return [f"{sample_id}_c{caption}" for caption in (0, 1)]


def image_ids(sample_id: str) -> list[str]:
    """The ids of a sample's two images: `<sample>_i0` and `<sample>_i1`."""
    return [f"{sample_id}_i{image}" for image in (0, 1)]


def pairings_table(samples: Iterable[Sample]) -> pa.Table:
    """Four rows for each sample; raises SourceError naming the row whose sample stands there for the second time."""
    seen: dict[str, Sample] = {}
    for sample in samples:
        first = seen.setdefault(sample.sample_id, sample)
        if first is not sample:
            raise SourceError(
                f"{sample.where}: sample {sample.sample_id!r} stands twice (the first in {first.where}); remove one"
            )
    return rows.table([row for sample in seen.values() for row in _four(sample)], rows.PAIRINGS)


def _four(sample: Sample) -> list[dict[str, Any]]:
    return [
        {
            "sample_id": sample.sample_id,
            "tag": sample.tag,
            "caption": caption,
            "image": image,
            "prompt_id": prompt_ids(sample.sample_id)[caption],
            "image_id": image_ids(sample.sample_id)[image],
        }
        for caption, image in product((0, 1), (0, 1))
    ]
