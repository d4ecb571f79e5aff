"""How many rows of a table are from which part, counted a batch at a time."""

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

from plumbline.pipelines.exports.table import StandingPart

PART_COLUMNS = ("generator", "metric", "part", "image_id")


def count_parts(batches: Iterable[pa.RecordBatch]) -> list[StandingPart]:
    """The parts of batches with the columns PART_COLUMNS."""
    rows: Counter[tuple[str, str, str]] = Counter()
    named: Counter[tuple[str, str, str]] = Counter()
    for batch in batches:
        counted = pa.table(batch).group_by(list(PART_COLUMNS[:3]), use_threads=False)
        table = counted.aggregate([("image_id", "count"), ([], "count_all")])
        for *group, with_image, count in zip(*(column.to_pylist() for column in table.columns), strict=True):
            generator, metric, part = group
            rows[generator, metric, part] += count
            named[generator, metric, part] += with_image
    return [StandingPart(*group, count, count - named[group]) for group, count in rows.items()]
