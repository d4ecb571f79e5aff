"""Ways to disturb a worker through its data.

An image can end or block the process that decodes it, or make the process report its id; and a store can run out of
space.
"""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

DEADLY = b"this image ends the process that decodes it"
HANGING = b"decoding this image never ends"
HANGING_CALL = "the model never answers about this image"
"""The image_id of images for which the model never replies."""
BAIT = b"the process that decodes this image writes its id to the file named here and waits to be killed: "
ROOM = "room"
"""A file in a local store that contains a number n.

The next write after n cells are committed fails once, as on a full disk.
"""

NOTES = "PLUMBLINE_TEST_NOTES"
"""Environment variable that names a folder with notes to a cluster's workers."""
MEMORY = "memory"
"""Name of the note that makes a model's next batch run out of device memory, once."""


class Bait(NamedTuple):
    """Position of an image that carries BAIT, and the file to which the process id is written."""

    generator: str
    row: int
    note: Path


def install() -> None:
    """Install the faults; this runs in every Ray worker before anything else."""
    from plumbline.operators.base import batches

    batches.isolate = run_out_of_memory(batches.isolate)  # must run before stages and models import the name

    import plumbline.operators.images.decoding as module
    from plumbline.operators.stages.similarities import SimilaritiesStage
    from plumbline.pipelines.base.filesystems import disk

    disk.write_new = fill_disk(disk.write_new)
    SimilaritiesStage.measure = hang(SimilaritiesStage.measure)
    decode = module.decode_bytes

    def deadly_decode(encoded: bytes, *arguments: Any) -> Any:
        _hurt(encoded)
        return decode(encoded, *arguments)

    module.decode_bytes = deadly_decode


def run_out_of_memory(isolate: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap isolate so that a single call runs out of memory if there is a MEMORY note."""

    def crowded_isolate(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        def crowded_call(batch: Any) -> Any:
            if _take_note(MEMORY):
                import torch

                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return call(batch)

        return isolate(crowded_call, *arguments, **options)

    return crowded_isolate


def _take_note(note: str) -> bool:
    """Return True if the note existed and was taken by this process, rather than by another at the same time."""
    folder = os.environ.get(NOTES)
    if folder is None:
        return False
    try:
        (Path(folder) / note).unlink()
    except FileNotFoundError:
        return False
    return True


def hang(measure: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap measure so that it never returns for images named HANGING_CALL."""

    def hanging_measure(stage: Any, images: Any, *arguments: Any) -> Any:
        if images.pixels and any(row.image_id == HANGING_CALL for row in images.rows):
            threading.Event().wait()
        return measure(stage, images, *arguments)

    return hanging_measure


def _hurt(image: bytes) -> None:
    if DEADLY in image:
        os._exit(1)
    if HANGING in image:
        threading.Event().wait()
    if BAIT in image:
        _wait_to_be_killed(Path(image.split(BAIT)[1].decode()))


def _wait_to_be_killed(note: Path) -> None:
    """Write the process id and wait to be killed; return at once if another process has already done so."""
    if not note.exists():
        draft = note.with_name(f"{note.name}.draft")
        draft.write_text(str(os.getpid()))
        draft.rename(note)
        threading.Event().wait()


def _take_room(room: Path) -> bool:
    """Return True if enough cells are committed and this process, rather than another, removed the file."""
    try:
        if len(list(room.parent.glob("*/*/*/[!.]*.parquet"))) < int(room.read_text()):
            return False
        room.unlink()
    except FileNotFoundError:
        return False
    return True


def fill_disk(write: Callable[[Path, bytes], None]) -> Callable[[Path, bytes], None]:
    """Wrap write so that it fails halfway through the cell that a ROOM file selects."""

    def scarce_write(path: Path, data: bytes) -> None:
        if _take_room(path.parents[3] / ROOM):
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data)

    return scarce_write
