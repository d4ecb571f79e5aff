"""The image_statistics stage: what every image is like, measured of its pixels without a model."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from PIL import Image

from plumbline.operators import rows, schemas
from plumbline.operators.images import PreparedImages
from plumbline.operators.metrics.image_statistic import ImageStatisticConfig
from plumbline.operators.stages.images import AnyPrompt, ImagesStage
from plumbline.operators.stages.stage import StageOptions
from plumbline.operators.statistics.pixels import PixelStatistics, pixel_statistics


class ImageStatisticsStage(ImagesStage):
    """Images to their statistics (schema IMAGE_STATISTICS), decoded once for all metrics of this kind."""

    name = "image_statistics"
    version = 1
    schema = schemas.IMAGE_STATISTICS
    counted = "none"
    needs = ImageStatisticConfig
    encodes = False

    def __init__(self, metrics: Mapping[str, Any], models: Mapping[str, Any], options: StageOptions) -> None:
        self.options = options

    def preprocess(self, image: Image.Image) -> PixelStatistics:
        return pixel_statistics(image)

    def measure(self, images: PreparedImages, asked: Mapping[str, AnyPrompt]) -> Mapping[str, pa.Table]:
        measured = iter(images.pixels)
        records = []
        for row, digest, error, count in zip(images.rows, images.digests, images.errors, images.counts, strict=True):
            statistics = [next(measured)._asdict() for _ in range(count)]
            columns = {"statistics": statistics} if error is None else {"error": rows.error_value(error)}
            records.append(row.row(**columns, image_digest=digest, basis=AnyPrompt().basis(row.prompt_id)))
        return dict.fromkeys(asked, rows.table(records, self.schema))
