"""Ways to hurt a worker from the data: images that end or keep the process that decodes them, or tell who it is, and
stores that have no room."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

DEADLY = b"this image ends the process that decodes it"
HANGING = b"decoding this image never ends"
HANGING_CALL = "the model never answers about this image"
"""An image_id."""
BAIT = b"the process that decodes this image writes its id to the file named here and waits to be killed: "
ROOM = "room"
"""A file in a local store with a number: the write that finds so many cells finds the disk full, once."""

NOTES = "PLUMBLINE_TEST_NOTES"
"""An environment variable: a folder of notes to the workers of a cluster."""
MEMORY = "memory"
"""A note that the next batch that a model is given finds its device out of memory, once."""


class Bait(NamedTuple):
    """Where an image lies that carries BAIT, and the file that gets the process id."""

    generator: str
    row: int
    note: Path


def install() -> None:
    """Runs in every Ray worker before anything else."""
    from plumbline.operators.base import batches

    batches.isolate = crowded(batches.isolate)  # before the stages and models take it by name

    import plumbline.operators.images.decoding as module
    from plumbline.operators.stages.similarities import SimilaritiesStage
    from plumbline.pipelines.base.filesystems import disk

    disk.write_new = scarce(disk.write_new)
    SimilaritiesStage.measure = hanging(SimilaritiesStage.measure)
    decode = module.decode_bytes

    def deadly_decode(encoded: bytes, *arguments: Any) -> Any:
        _hurt(encoded)
        return decode(encoded, *arguments)

    module.decode_bytes = deadly_decode


def crowded(isolate: Callable[..., Any]) -> Callable[..., Any]:
    """Isolates as before, but one call, which a MEMORY note is for, is out of memory."""

    def crowded_isolate(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        def crowded_call(batch: Any) -> Any:
            if _is_told(MEMORY):
                import torch

                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return call(batch)

        return isolate(crowded_call, *arguments, **options)

    return crowded_isolate


def _is_told(note: str) -> bool:
    """Whether there is such a note and this process, of several at the same moment, took it."""
    folder = os.environ.get(NOTES)
    if folder is None:
        return False
    try:
        (Path(folder) / note).unlink()
    except FileNotFoundError:
        return False
    return True


def hanging(measure: Callable[..., Any]) -> Callable[..., Any]:
    """Measures as before, but for the images of one name where the model is to see them."""

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
    """Tells the process id and stays; whoever comes second goes on."""
    if not note.exists():
        draft = note.with_name(f"{note.name}.draft")
        draft.write_text(str(os.getpid()))
        draft.rename(note)
        threading.Event().wait()


def _takes_up(room: Path) -> bool:
    """Whether enough cells stand and this writer, of several at the same moment, is the one that took the file away."""
    try:
        if len(list(room.parent.glob("*/*/*/[!.]*.parquet"))) < int(room.read_text()):
            return False
        room.unlink()
    except FileNotFoundError:
        return False
    return True


def scarce(write: Callable[[Path, bytes], None]) -> Callable[[Path, bytes], None]:
    """Writes as before, but for the one write of a cell that a ROOM file tells to fail half way."""

    def scarce_write(path: Path, data: bytes) -> None:
        if _takes_up(path.parents[3] / ROOM):
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data)

    return scarce_write
