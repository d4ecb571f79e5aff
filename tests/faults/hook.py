"""Faults that a test triggers in a worker through images and files.

An image can end or block the process that decodes it, or make the process report its id. A file can make a model run
out of device memory, or a store run out of space.
"""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

DEADLY_MARK = b"this image ends the process that decodes it"
HANGING_MARK = b"decoding this image never ends"
HANGING_IMAGE_ID = "the model never answers about this image"
"""Image id for which the model call never returns."""
BAIT_MARK = b"the process that decodes this image writes its id to the file named here and waits to be killed: "
DISK_FULL_FILE = "room"
"""Name of a file in a local store; its content is a number n.

The next write after n cells are committed fails once, as on a full disk.
"""

NOTES_VARIABLE = "PLUMBLINE_TEST_NOTES"
"""Environment variable with the path of a folder of notes (files) that the workers of a cluster react to."""
MEMORY_NOTE = "memory"
"""Name of the note that makes a model's next batch run out of device memory, once."""


class Bait(NamedTuple):
    """An image that contains BAIT_MARK, and the file to which the process that decodes the image writes its id."""

    generator: str
    row: int
    note: Path


def install() -> None:
    """Install the faults; this runs in every Ray worker before anything else."""
    from plumbline.operators.base import batches

    batches.isolate = add_memory_fault(batches.isolate)  # must run before stages and models import the name

    import plumbline.operators.images.decoding as module
    from plumbline.operators.stages.similarities import SimilaritiesStage
    from plumbline.pipelines.base.filesystems import disk

    disk.write_new_file = add_disk_full_fault(disk.write_new_file)
    SimilaritiesStage.measure = add_hanging_call(SimilaritiesStage.measure)
    decode = module.decode_bytes

    def decode_with_faults(encoded: bytes, *arguments: Any) -> Any:
        _apply_fault(encoded)
        return decode(encoded, *arguments)

    module.decode_bytes = decode_with_faults


def add_memory_fault(isolate: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `isolate` so that a single call runs out of device memory if a MEMORY_NOTE exists."""

    def isolate_with_fault(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        def call_with_fault(batch: Any) -> Any:
            if _take_note(MEMORY_NOTE):
                import torch

                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return call(batch)

        return isolate(call_with_fault, *arguments, **options)

    return isolate_with_fault


def _take_note(note: str) -> bool:
    """Remove the note; return True if this process removed it."""
    folder = os.environ.get(NOTES_VARIABLE)
    if folder is None:
        return False
    try:
        (Path(folder) / note).unlink()
    except FileNotFoundError:
        return False
    return True


def add_hanging_call(measure: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `measure` so that it never returns for an image whose id is HANGING_IMAGE_ID."""

    def measure_with_fault(stage: Any, images: Any, *arguments: Any) -> Any:
        if images.pixels and any(row.image_id == HANGING_IMAGE_ID for row in images.rows):
            threading.Event().wait()
        return measure(stage, images, *arguments)

    return measure_with_fault


def _apply_fault(image: bytes) -> None:
    if DEADLY_MARK in image:
        os._exit(1)
    if HANGING_MARK in image:
        threading.Event().wait()
    if BAIT_MARK in image:
        _wait_to_be_killed(Path(image.split(BAIT_MARK)[1].decode()))


def _wait_to_be_killed(note: Path) -> None:
    """Write the process id and wait to be killed; return at once if another process has already done so."""
    if not note.exists():
        draft = note.with_name(f"{note.name}.draft")
        draft.write_text(str(os.getpid()))
        draft.rename(note)
        threading.Event().wait()


def _take_disk_full_file(room: Path) -> bool:
    """Remove the DISK_FULL_FILE if enough cells are committed; return True if this process removed it."""
    try:
        if len(list(room.parent.glob("*/*/*/[!.]*.parquet"))) < int(room.read_text()):
            return False
        room.unlink()
    except FileNotFoundError:
        return False
    return True


def add_disk_full_fault(write: Callable[[Path, bytes], None]) -> Callable[[Path, bytes], None]:
    """Wrap `write` so that it fails halfway through the cell that a DISK_FULL_FILE selects."""

    def write_with_fault(path: Path, data: bytes) -> None:
        if _take_disk_full_file(path.parents[3] / DISK_FULL_FILE):
            path.write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, data)

    return write_with_fault
