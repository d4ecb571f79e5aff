"""Generates images with a diffusers pipeline: maps settings to its arguments, and gives each image its own noise."""

import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import diffusers
import torch
from PIL import Image
from transformers.utils.logging import disable_progress_bar

from plumbline.operators.base.errors import ModelError, RowError, suggest
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.processing import explain_load_errors, find_device
from plumbline.plugins.generation.drawing import DrawingRequest, DrawingSettings, DrawnImage

FILTERED_IMAGE_ERROR = RowError(
    "reply_refused",
    "the checkpoint's own safety checker blanked out the image; check the prompt, or use another checkpoint",
)


class PipelineDrawing:
    """Image generator that implements `draw` with a pipeline; the noise of an image does not depend on its batch."""

    side_by_side = False

    def __init__(self, pipeline: Any, checkpoint: str, revision: str | None) -> None:
        self.pipeline, self.checkpoint, self.revision = pipeline, checkpoint, revision
        self.own_sampler = pipeline.scheduler
        parameters = inspect.signature(pipeline.__call__).parameters
        self.defaults = {name: parameter.default for name, parameter in parameters.items()}

    @classmethod
    def load(cls, model: ResolvedModel[Any]) -> Self:
        """Load the pipeline onto its device and merge its LoRA; raise ModelError if a file is damaged."""
        folder, device, part = model.folder("checkpoint"), find_device(model), model.parts["checkpoint"]
        with explain_load_errors(folder, "pipeline"), _suppress_output():
            pipeline = _load_text_to_image(folder, getattr(torch, model.dtype))
        if model.config.lora is not None:
            _merge_lora(pipeline, model)
        pipeline.set_progress_bar_config(disable=True)
        revision = part.commit or part.identity
        return cls(pipeline.to(device), _describe_checkpoint(model.config), revision)

    def draw(self, requests: Sequence[DrawingRequest], settings: DrawingSettings) -> list[DrawnImage | RowError]:
        """Return each image as PNG, or an error if the checkpoint's safety checker blanked it.

        Raises ModelError for a setting that the pipeline does not support.
        """
        arguments, cfg = self._make_arguments(settings), self._guidance_name
        self.pipeline.scheduler = self._make_sampler(settings.sampler)
        with torch.inference_mode():
            made = self.pipeline(
                prompt=[request.prompt for request in requests],
                generator=[torch.Generator("cpu").manual_seed(request.seed) for request in requests],
                output_type="pil",
                **{name: value for name, value in arguments.items() if value is not None},
            )
        flags = getattr(made, "nsfw_content_detected", None) or [False] * len(requests)
        used = {**self.defaults, **{name: value for name, value in arguments.items() if value is not None}}
        drawn = DrawnImage(
            b"", used.get(cfg), used.get("num_inference_steps"), None, type(self.pipeline.scheduler).__name__
        )
        return [
            FILTERED_IMAGE_ERROR if flagged else drawn._replace(encoded=_encode_png(image), seed=request.seed)
            for image, request, flagged in zip(made.images, requests, flags, strict=True)
        ]

    @property
    def _guidance_name(self) -> str:
        """Name of the guidance argument; in distilled pipelines, `guidance_scale` means something else."""
        true = self.defaults.get("true_cfg_scale")
        return "true_cfg_scale" if true is not None and true > 1 else "guidance_scale"

    def _make_arguments(self, settings: DrawingSettings) -> dict[str, Any]:
        width, height = settings.size or (None, None)
        negative = settings.negative_prompt or (" " if self._guidance_name == "true_cfg_scale" else None)
        wanted = {
            self._guidance_name: settings.cfg,
            "num_inference_steps": settings.steps,
            "width": width,
            "height": height,
            "negative_prompt": negative,
        }
        for name, value in wanted.items():
            if value is not None and name not in self.defaults:
                raise ModelError(
                    f"{self.checkpoint}: {type(self.pipeline).__name__} does not support {name}; leave out the setting"
                )
        return wanted

    def _make_sampler(self, name: str | None) -> Any:
        """Return the checkpoint's own scheduler, or a scheduler of the named class with the same configuration."""
        if name in (None, type(self.own_sampler).__name__):
            return self.own_sampler
        known = sorted(kind.__name__ for kind in self.own_sampler.compatibles)
        if name not in known:
            own = type(self.own_sampler).__name__
            raise ModelError(
                f"pictures.sampler: {self.checkpoint} has {own}, which {name} cannot replace; "
                f"{suggest(str(name), known)}"
            )
        return getattr(diffusers, str(name)).from_config(self.own_sampler.config)


@contextmanager
def _suppress_output() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("diffusers", "transformers")]
    levels = [logger.level for logger in loggers]
    disable_progress_bar()
    diffusers.utils.logging.disable_progress_bar()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _load_text_to_image(folder: Path, dtype: torch.dtype) -> Any:
    """Load a checkpoint's text-to-image pipeline, even if the checkpoint names another pipeline of the same model."""
    options = {"dtype": dtype, "use_safetensors": True, "local_files_only": True, "trust_remote_code": False}
    try:
        return diffusers.AutoPipelineForText2Image.from_pretrained(folder, **options)
    except ValueError as error:  # the pipeline has no text-to-image counterpart
        if "AutoPipeline can't find" not in str(error):
            raise
    return diffusers.DiffusionPipeline.from_pretrained(folder, **options)


def _merge_lora(pipeline: Any, model: ResolvedModel[Any]) -> None:
    place = model.folder("lora")
    files = [place] if place.is_file() else sorted(place.glob("*.safetensors"))
    if len(files) != 1:
        raise ModelError(f"{place}: expected one LoRA file (.safetensors), found {len(files)}; name the file")
    with explain_load_errors(files[0], "LoRA"):
        pipeline.load_lora_weights(files[0].parent, weight_name=files[0].name, local_files_only=True)
        pipeline.fuse_lora(lora_scale=model.config.lora_scale)
        pipeline.unload_lora_weights()


def _describe_checkpoint(config: Any) -> str:
    return (
        str(config.checkpoint)
        if config.lora is None
        else f"{config.checkpoint} + {config.lora} x {config.lora_scale:g}"
    )


def _encode_png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=1)
    return stream.getvalue()
