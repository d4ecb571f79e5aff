"""The pictures of a study's tasks: read where the sources have them, made anew within limits, kept a while."""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from threading import BoundedSemaphore
from typing import Any

from plumbline.operators.base.errors import RowError
from plumbline.operators.report.gallery import make_picture, make_sources
from plumbline.operators.report.picked_images import ImageKey
from plumbline.pipelines.report.finished_run import Originals
from plumbline.pipelines.report.image_details import Made, MakePicture, PlacedImage, read_edit_sources, show_row
from plumbline.plugins.rating.tasks import Task

SIDE, MOST_BYTES = 1024, 400_000
KEPT = 200
"""Pictures of tasks that are kept, and as many lists of sources: at most 160 MB."""
DECODED_AT_ONCE = 4


class _Missing(Exception):
    """There is no picture, which may pass, so that it is not kept."""

    def __init__(self, error: RowError) -> None:
        super().__init__(error.message)
        self.error = error


class Pictures:
    """Makes the pictures of tasks."""

    def __init__(self, originals: Originals) -> None:
        self._originals = originals
        self._decoding = BoundedSemaphore(DECODED_AT_ONCE)
        picture = partial(make_picture, side=SIDE, most=MOST_BYTES)
        sources = partial(make_sources, side=SIDE, most=MOST_BYTES)
        self._image = lru_cache(KEPT)(partial(self._made, picture))
        self._sources = lru_cache(KEPT)(partial(self._made, sources, edited=True))

    def image(self, task: Task, number: int) -> bytes | RowError:
        """A picture of a task as WebP, or why there is none."""
        try:
            return self._image(*_place_of(task, number))
        except _Missing as missing:
            return missing.error

    def sources(self, task: Task) -> Sequence[bytes | RowError]:
        """What the pictures of a task were edited from, each as WebP or why there is none; nothing where they are no
        edits."""
        try:
            return self._sources(*_place_of(task, 0))
        except _Missing:
            return []

    def problem(self, task: Task) -> str | None:
        """Why a rater cannot see all of a task; None where everything is there."""
        made = [*(self.image(task, number) for number in range(len(task.places))), *self.sources(task)]
        return next((one.message for one in made if isinstance(one, RowError)), None)

    def _made(
        self, make: MakePicture[Made], key: ImageKey, prompt_id: str, shard: str, row: int, *, edited: bool = False
    ) -> Made:
        with self._decoding:
            edits: Mapping[str, Mapping[str, Any]] = read_edit_sources([prompt_id], self._originals) if edited else {}
            image = PlacedImage(key, prompt_id, shard, row)
            made = show_row(image, self._originals, make, edits.get(prompt_id, {}))
        if isinstance(made, RowError):
            raise _Missing(made)
        return made


def _place_of(task: Task, number: int) -> tuple[ImageKey, str, str, int]:
    key = ImageKey(task.generators[number], task.image_ids[number])
    return key, task.prompt_id, *task.places[number]
