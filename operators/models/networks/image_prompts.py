"""Prepares conversations about images for a chat model: pixels, and tokens arranged by the model's own processor."""

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from transformers import CONFIG_MAPPING, PROCESSOR_MAPPING, ProcessorMixin
from transformers.models.fuyu import processing_fuyu

from plumbline.operators.base.errors import ModelError, RowError, UnprocessableRowError
from plumbline.operators.models.calls import Message
from plumbline.operators.models.engines.conversation import (
    find_turn_end,
    render_image_conversation,
    starts_with_bos,
    tokenize_choice,
    tokenize_rendered,
)
from plumbline.operators.models.processing import centre_on_square, explain_load_errors, load_image_processor

SECOND_IMAGE_MESSAGE = "the question contains {!r}, which this model reads as a second image; change the prompt's text"
TEXT_INPUTS = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "mm_token_type_ids",
    "text_replacement_offsets",
    "labels",
)
MAX_CACHED_CHOICES = 4096
TYPES_WITH_SAME_LAYOUT = {"smolvlm": "idefics3"}
"""Model types whose own processor needs packages for videos, each with a model type that arranges images in the same
way.
"""
FRAME_TOKEN_LIMITS = 128, 768
"""Minimum and maximum number of tokens of a video frame: VIDEO_MIN_PIXELS and VIDEO_MAX_PIXELS of qwen-vl-utils."""


class Pixels(NamedTuple):
    """Preprocessed pixels of one image, of several images of one question, or of one video, on the CPU."""

    inputs: Mapping[str, torch.Tensor]
    """Inputs for the vision part of the model, such as pixel_values and image_grid_thw."""
    ids: list[int]
    """Tokens with which every prompt about the images begins, up to the last token of the last image."""
    closing: str
    """Text that the processor inserts between the last token of the image and the text that follows it."""
    step: float = 0.0
    """Seconds between consecutive patches of a video in time."""


class ImagePromptBuilder:
    """Prompts that start with an image; `preprocess` may run in different threads from the other methods."""

    def __init__(
        self,
        processor: Any,
        pin: Callable[[torch.Tensor], torch.Tensor],
        *,
        multi_image_processor: Any,
        image_id: int,
        system: str | None,
        padding: tuple[int, ...] | None,
        ends: Sequence[int],
        video_id: int | None = None,
        thinks: bool = False,
    ) -> None:
        """Read the chat template; raise ModelError unless it contains the image exactly once.

        Args:
            processor: The checkpoint's own processor.
            pin: Puts inputs for the vision half into memory that the device can read.
            multi_image_processor: The processor for questions about several images. It runs all steps on the CPU,
                because sizes may differ.
            image_id: The token whose embeddings are replaced with the image's features.
            system: The system message before every conversation.
            padding: The colour that pads images to squares; None if they are not padded.
            ends: The tokens that end a reply.
            video_id: The token of a video, which replaces the image's token in the prompt.
            thinks: True if the model may think before it replies.
        """
        self.processor = processor
        self.multi_image_processor = multi_image_processor
        self.pin = pin
        self.tokenizer = copy.deepcopy(processor.tokenizer)  # two threads cannot share a tokenizer
        self.image_id = image_id
        self.video_id = video_id
        self.system = system
        self.thinks = thinks
        self.padding = padding
        self.mark = str(processor.image_token)
        self.image_mark = str(self.tokenizer.convert_ids_to_tokens(image_id))
        self.end = find_turn_end(self.tokenizer, ends, system=system)
        self.opening = self._render_opening(1)
        self.before_video: list[int] = []
        if video_id is not None:  # the tokens before a video equal the tokens before an image
            ids = tokenize_rendered(self.tokenizer, self.opening + self.image_mark)
            self.before_video = ids[: ids.index(self.image_id)]
        self.tokenize_choice = lru_cache(maxsize=MAX_CACHED_CHOICES)(self._tokenize_choice)

    def _render_opening(self, images: int) -> str:
        text = self.render([Message("user", "")], images)
        if text.count(self.mark) != images:
            wanted = "one image token" if images == 1 else f"{images} image tokens"
            raise ModelError(
                f"{self.tokenizer.name_or_path}: expected the chat template to place {wanted} "
                f"({self.mark}), found {text.count(self.mark)}; correct the checkpoint's chat template"
            )
        return text.rpartition(self.mark)[0]

    def preprocess(self, *images: Image.Image) -> Pixels:
        """Return the images of one question, padded if configured, as processed by the checkpoint's own processor."""
        processor, opening = self.processor, self.opening
        if len(images) > 1:
            processor, opening = self.multi_image_processor, self._render_opening(len(images))
        laid_out = processor(
            images=[centre_on_square(image, self.padding) for image in images],
            text=opening + self.mark,
            add_special_tokens=not starts_with_bos(processor.tokenizer, opening),
            return_tensors="pt",
            return_text_replacement_offsets=True,
        )
        ids = laid_out["input_ids"][0].tolist()
        last = len(ids) - 1 - ids[::-1].index(self.image_id)
        closing = laid_out["text_replacement_offsets"][0][-1]["replacement"].rpartition(self.image_mark)[2]
        inputs = {name: self.pin(tensor) for name, tensor in laid_out.items() if name not in TEXT_INPUTS}
        return Pixels(inputs, ids[: last + 1], closing)

    def preprocess_video(self, frames: Sequence[Image.Image], seconds: float) -> Pixels:
        """Return frames of a video, sampled every `seconds` seconds, in the form that Qwen2-VL and Qwen2.5-VL read.

        Each patch spans several frames (Wang et al. 2024, sec. 2.1). The video is placed between the same tokens as an
        image. All frames are resized to the size of the first frame. The last frame is repeated until all patches are
        full.
        """
        assert self.video_id is not None, "the model's profile has `reads_videos`"
        processor = self.processor.image_processor
        depth, merged = processor.temporal_patch_size, processor.merge_size**2
        token = merged * processor.patch_size**2
        alike = [frame if frame.size == frames[0].size else frame.resize(frames[0].size) for frame in frames]
        laid_out = processor(
            images=alike + alike[-1:] * (-len(alike) % depth),
            size={"shortest_edge": FRAME_TOKEN_LIMITS[0] * token, "longest_edge": FRAME_TOKEN_LIMITS[1] * token},
            return_tensors="pt",
        )
        shown, grid = self.pin(laid_out["pixel_values"]), laid_out["image_grid_thw"][:1]
        grid[0, 0] = len(shown) // depth
        ids = [*self.before_video, *[self.video_id] * (int(grid.prod()) // merged)]
        inputs = {"pixel_values_videos": shown, "video_grid_thw": grid}
        return Pixels(inputs, ids, "", step=seconds * depth)

    def tokenize_after_image(self, messages: Sequence[Message], closing: str) -> list[int]:
        """Return the tokens from the last image to the reply.

        Raises UnprocessableRowError if a message contains another image.
        """
        text = self.render(messages).replace(self.mark, self.image_mark + closing)
        ids = tokenize_rendered(self.tokenizer, text)
        if ids.count(self.image_id) != 1:
            raise UnprocessableRowError(RowError("request_refused", SECOND_IMAGE_MESSAGE.format(self.mark)))
        return ids[ids.index(self.image_id) + 1 :]

    def _tokenize_choice(self, question: str, choice: str) -> list[int]:
        return tokenize_choice(self.tokenizer, self.render([Message("user", question)]), choice, end=self.end)

    def render(self, messages: Sequence[Message], images: int = 1) -> str:
        """Return the conversation as the chat template formats it, up to the start of the reply; images come first."""
        system, thinks = self.system, self.thinks
        return render_image_conversation(self.tokenizer, messages, system=system, images=images, thinks=thinks)


class Gemma4Processor(ProcessorMixin):  # type: ignore[misc]
    """Gemma 4's processor, which puts a token on each side of an image; the library's class needs torchvision."""

    unused_input_names = ("num_soft_tokens_per_image",)

    def __init__(self, image_processor: Any, tokenizer: Any, **_: Any) -> None:
        self.image_token = tokenizer.image_token
        super().__init__(image_processor, tokenizer)

    def replace_image_token(self, image_inputs: Mapping[str, Any], image_idx: int, **_: Any) -> str:
        tokens = self.image_token * int(image_inputs["num_soft_tokens_per_image"][image_idx])
        return f"{self.tokenizer.boi_token}{tokens}{self.tokenizer.eoi_token}"


class FuyuProcessor(processing_fuyu.FuyuProcessor):  # type: ignore[misc]
    """Fuyu's processor for texts that already start with the image token; the library's class adds it to every text."""

    def __init__(self, image_processor: Any, tokenizer: Any, **settings: Any) -> None:
        super().__init__(image_processor, tokenizer, **settings)
        enable_tensor_input(image_processor)

    def prepare_inputs_layout(self, images: Any = None, text: Any = None, **options: Any) -> Any:
        return super().prepare_inputs_layout(images, text.removeprefix(self.image_token), **options)

    def _process_images(self, images: Any, **options: Any) -> Any:
        """Return the patches (patches, values) and the texts that replace the image tokens.

        If there is a single patch, transformers returns it as (values,).
        """
        read, replacements = super()._process_images(images, **options)
        read["image_patches"] = read["image_patches"].view(-1, read["image_patches"].shape[-1])
        return read, replacements


def enable_tensor_input(image_processor: Any) -> None:
    """Make Fuyu's image processor cut tensors into patches; in transformers 5.24, it accepts only arrays."""
    library: Any = type(image_processor)

    class TensorImageProcessor(library):  # type: ignore[misc]
        def patchify_image(self, image: torch.Tensor, **sizes: Any) -> torch.Tensor:
            return torch.from_numpy(super().patchify_image(image=image.numpy(), **sizes))

    image_processor.__class__ = TensorImageProcessor  # an attribute would be printed as a setting, in JSON


OWN_PROCESSOR_CLASSES = {"gemma4": Gemma4Processor, "fuyu": FuyuProcessor}


def load_processor(folder: Path, config: Any, tokenizer: Any, class_tokens: Mapping[str, int]) -> Any:
    """Return a checkpoint's processor, for images only, with this tokenizer.

    `class_tokens` maps the type of a vision tower to the number of tokens before an image's patches. Raises ModelError
    if the processor's files are damaged, or lack a setting that the processor of the model type needs.
    """
    model_type = TYPES_WITH_SAME_LAYOUT.get(config.model_type, config.model_type)
    processor_class: Any = OWN_PROCESSOR_CLASSES.get(model_type) or PROCESSOR_MAPPING[CONFIG_MAPPING[model_type]]

    class ImageOnlyProcessor(processor_class):  # type: ignore[misc]
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            if argument is None and argument_name == "video_processor":
                return None
            return super().check_argument_for_proper_class(argument_name, argument)

    given = {"image_processor": load_image_processor(folder), "tokenizer": tokenizer}
    file = folder / "processor_config.json"
    with explain_load_errors(folder, "processor"):
        settings = json.loads(file.read_text()) if file.is_file() else {}
        if config.model_type in ("llava", "llava_next"):  # old checkpoints lack settings that depend on the network
            settings |= {
                "patch_size": config.vision_config.patch_size,
                "num_additional_image_tokens": class_tokens[config.vision_config.model_type],
                "vision_feature_select_strategy": config.vision_feature_select_strategy,
            }
        arguments = [given.get(name) for name in processor_class.get_attributes()]
        return ImageOnlyProcessor.from_args_and_dict(arguments, settings)
