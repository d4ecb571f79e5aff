"""Estimates the memory, disk space and time that are needed to generate the missing images."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import format_quantity
from plumbline.operators.models.model import ResolvedModel
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.store.cells import digest
from plumbline.pipelines.store.store import Store
from plumbline.plugins.generation.diffusers_family import DiffusersModel, count_parameters, find_default_size
from plumbline.plugins.generation.pictures import Pictures

BYTES_PER_PIXEL = 1.8
"""Assumed size of an image file: a PNG of a photograph with 1024 x 1024 pixels has 1.8 to 1.9 MB."""
ASSUMED_IMAGE_SIZE = (1024, 1024)
"""Assumed width and height of an image if neither the settings nor the checkpoint contain a size."""
BYTES_PER_WEIGHT = {"float32": 4, "bfloat16": 2}
BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


class GenerationRate(NamedTuple):
    """Number of images that were generated earlier, and the number of seconds that this took."""

    generator: str
    images: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceNeeds:
    """What is needed to generate the missing images."""

    folder: Place
    """Folder of the images."""
    wanted: int
    """Number of images that the folder should contain."""
    missing: int
    """Number of images in the files that have to be written."""
    size: tuple[int, int]
    """Width and height in pixels."""
    size_is_known: bool
    parameters: int | None
    """Number of the pipeline's weights; None for a service, or if the hub cannot be asked."""
    model: ResolvedModel[Any]
    rate: GenerationRate | None
    """Rate of an earlier generation in this folder with the same settings and a network of the same size."""

    @property
    def disk_bytes(self) -> int:
        """Estimated size of the missing images on disk, in bytes."""
        return round(self.missing * self.size[0] * self.size[1] * BYTES_PER_PIXEL)

    @property
    def memory_bytes(self) -> int | None:
        """Size of the weights in memory, in bytes; None if the number of weights is unknown."""
        return None if self.parameters is None else self.parameters * BYTES_PER_WEIGHT[self.model.dtype]

    def describe(self) -> list[str]:
        """Return sentences about what is needed; empty if no image is missing."""
        if not self.missing:
            return []
        width, height = self.size
        each = f"{width}x{height} pixels{'' if self.size_is_known else ' (assumed)'}"
        lines = [
            f"to generate: {self.missing:,} of {format_quantity(self.wanted, 'image')} of {each}, about "
            f"{format_bytes(self.disk_bytes)}{self._describe_free_space()}"
        ]
        if self.model.local and all(part.commit is None for part in self.model.parts.values()):
            lines.append("download: nothing, because the checkpoint is a local folder")
        if self.memory_bytes is not None:
            where = "GPU memory" if self.model.on_gpu else "memory"
            lines.append(
                f"{where}: at least {format_bytes(self.memory_bytes)}, for {self.parameters:,} weights in "
                f"{self.model.dtype} (counted in the headers of the safetensors files); drawing takes more"
            )
        elif self.model.local:
            lines.append("memory: unknown, because the hub did not send the headers of the safetensors files")
        if self.rate is None:
            lines.append("time: unknown until the first images; the progress line then shows the time that is left")
        else:
            minutes = self.missing * self.rate.seconds / self.rate.images / 60
            lines.append(
                f"time: {format_minutes(minutes)}, if an image takes as long as the last "
                f"{format_quantity(self.rate.images, 'image')} of {self.rate.generator} "
                f"({self.rate.seconds:,.1f} s in all)"
            )
        return lines

    def check_space(self) -> None:
        """Raise ConfigError if the disk has no space for the images."""
        free = _count_free_bytes(self.folder)
        if free is not None and self.disk_bytes > free:
            raise ConfigError(
                f"{self.folder}: {format_quantity(self.missing, 'image')} of {self.size[0]}x{self.size[1]} "
                f"pixels need about "
                f"{format_bytes(self.disk_bytes)}, but the disk has {format_bytes(free)} free; free some space, set "
                "another folder with images=FOLDER, or generate fewer images with limit=N"
            )

    def _describe_free_space(self) -> str:
        free = _count_free_bytes(self.folder)
        return "" if free is None else f" ({format_bytes(free)} free)"


def estimate_needs(
    model: ResolvedModel[Any], pictures: Pictures, folder: Place, store: Store, *, wanted: int, missing: int
) -> ResourceNeeds:
    """Estimate what is needed to generate the missing images, without loading the model.

    Args:
        model: The image model.
        pictures: The settings of the images.
        folder: The generator's folder.
        store: The store with the images, and with the rates of earlier generations.
        wanted: The number of images that the folder should contain.
        missing: The number of wanted images that are missing.
    """
    is_pipeline = isinstance(model.config, DiffusersModel)
    parameters = count_parameters(model.parts["checkpoint"]) if is_pipeline and missing else None
    size = pictures.make_settings().size
    if size is None and is_pipeline and missing:
        size = find_default_size(model.parts["checkpoint"])
    return ResourceNeeds(
        folder=folder,
        wanted=wanted,
        missing=missing,
        size=size or ASSUMED_IMAGE_SIZE,
        size_is_known=size is not None,
        parameters=parameters,
        model=model,
        rate=_read_rate(store, _make_rate_path(model, parameters, pictures)),
    )


def save_rate(store: Store, needs: ResourceNeeds, pictures: Pictures, rate: GenerationRate) -> None:
    """Record the rate of a generation, for estimates of later generations with the same settings."""
    store.write_json(_make_rate_path(needs.model, needs.parameters, pictures), rate._asdict())


def _read_rate(store: Store, path: str) -> GenerationRate | None:
    match store.read_json(path):
        case {"generator": str(generator), "images": int(images), "seconds": float(seconds)} if images and seconds:
            return GenerationRate(generator, images, seconds)
    return None


def _make_rate_path(model: ResolvedModel[Any], parameters: int | None, pictures: Pictures) -> str:
    network = model.config.checkpoint if parameters is None else parameters
    return f"rates/{digest([network, model.dtype, model.on_gpu, pictures.make_settings()._asdict()])[:16]}.json"


def _count_free_bytes(folder: Place) -> int | None:
    if not folder.is_local:
        return None
    path = Path(folder.path)
    return shutil.disk_usage(next(each for each in (path, *path.parents) if each.exists())).free


def format_bytes(count: int) -> str:
    """Return a number of bytes with a unit, such as 1.9 GB."""
    return next((f"{count / factor:,.1f} {unit}" for factor, unit in BYTE_UNITS if count >= factor), f"{count} bytes")


def format_minutes(minutes: float) -> str:
    """Return a duration in words, such as "about 2.5 hours"."""
    if minutes < 1:
        return "less than a minute"
    return f"about {format_quantity(round(minutes), 'minute')}" if minutes < 90 else f"about {minutes / 60:,.1f} hours"
