"""Reads the images of a study's tasks, re-encodes them within size limits, and caches them."""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from threading import BoundedSemaphore
from typing import Any

from plumbline.operators.base.errors import RowError
from plumbline.operators.report.gallery import encode_source_thumbnails, encode_thumbnail
from plumbline.operators.report.picked_images import ImageKey
from plumbline.pipelines.report.finished_run import OriginalSources
from plumbline.pipelines.report.image_details import LocatedImage, Made, MakeImage, read_edit_sources, render_image
from plumbline.plugins.rating.tasks import Task

MAX_IMAGE_SIDE, MAX_IMAGE_BYTES = 1024, 400_000
MAX_CACHED_IMAGES = 200
"""Maximum number of cached images, and of cached lists of source images. Together they take at most 160 MB."""
MAX_CONCURRENT_DECODES = 4
"""Maximum number of images decoded at the same time."""


class _ImageMissing(Exception):
    """Raised for an image that cannot be read now. It is an exception because `lru_cache` does not cache exceptions."""

    def __init__(self, error: RowError) -> None:
        super().__init__(error.message)
        self.error = error


class TaskImages:
    """Reader for the images of tasks."""

    def __init__(self, originals: OriginalSources) -> None:
        self._originals = originals
        self._decoding = BoundedSemaphore(MAX_CONCURRENT_DECODES)
        thumbnail = partial(encode_thumbnail, side=MAX_IMAGE_SIDE, max_bytes=MAX_IMAGE_BYTES)
        sources = partial(encode_source_thumbnails, side=MAX_IMAGE_SIDE, max_bytes=MAX_IMAGE_BYTES)
        self._image = lru_cache(MAX_CACHED_IMAGES)(partial(self._make_image_or_raise, thumbnail))
        self._sources = lru_cache(MAX_CACHED_IMAGES)(partial(self._make_image_or_raise, sources, edited=True))

    def read_image(self, task: Task, number: int) -> bytes | RowError:
        """Return an image of a task as WebP, or an error."""
        try:
            return self._image(*_locate_image(task, number))
        except _ImageMissing as missing:
            return missing.error

    def read_sources(self, task: Task) -> Sequence[bytes | RowError]:
        """Return the source images of a task's first image, each as WebP or an error.

        The result is empty if nothing was edited, or if the image is missing.
        """
        try:
            return self._sources(*_locate_image(task, 0))
        except _ImageMissing:
            return []

    def find_problem(self, task: Task) -> str | None:
        """Return the reason why an image or source image of the task cannot be shown, or None."""
        shown = [*(self.read_image(task, number) for number in range(len(task.places))), *self.read_sources(task)]
        return next((image.message for image in shown if isinstance(image, RowError)), None)

    def _make_image_or_raise(
        self, make: MakeImage[Made], key: ImageKey, prompt_id: str, shard: str, row: int, *, edited: bool = False
    ) -> Made:
        with self._decoding:
            edits: Mapping[str, Mapping[str, Any]] = read_edit_sources([prompt_id], self._originals) if edited else {}
            image = LocatedImage(key, prompt_id, shard, row)
            result = render_image(image, self._originals, make, edits.get(prompt_id, {}))
        if isinstance(result, RowError):
            raise _ImageMissing(result)
        return result


def _locate_image(task: Task, number: int) -> tuple[ImageKey, str, str, int]:
    key = ImageKey(task.generators[number], task.image_ids[number])
    return key, task.prompt_id, *task.places[number]
