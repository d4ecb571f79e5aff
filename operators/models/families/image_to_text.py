"""Models that generate captions, regions, or the text in an image.

These are BLIP, BLIP-2 with OPT, GIT, Florence-2 and GOT-OCR 2.0. They ignore the text of requests.
"""

import re
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from PIL import Image

from plumbline.operators.base.batches import call_in_batches, isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import Generation, ImageRequest, Region
from plumbline.operators.models.checkpoints.parts import Fields, find_architecture, read_fields, read_subfields
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family, Files
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.loaded import LoadedImageModel, SizedTensor, call_by_group

if TYPE_CHECKING:
    import torch

BLIP_ARCHITECTURE = "BlipForConditionalGeneration"


class Captioner(LoadedImageModel):
    """A captioner, which serves the `generate_from_images` call; it replies to every request with a caption.

    The caption is the likeliest one under the checkpoint's own generation settings; a request's temperature is ignored.
    """

    architecture = "AutoModelForImageTextToText"

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        queries = getattr(self.model.config, "num_query_tokens", None)
        self.start = 1 if queries is None else queries + 1  # index of a caption's first token
        self.end_id = self.tokenizer.sep_token_id if queries is None else self.model.config.text_config.eos_token_id

    @classmethod
    def load_network(cls, model: ResolvedModel[Any]) -> Any:
        from plumbline.operators.models.networks.blip import load_blip

        is_blip = find_architecture(read_fields(model.parts["checkpoint"])) == BLIP_ARCHITECTURE
        return load_blip(BLIP_ARCHITECTURE, model) if is_blip else super().load_network(model)

    def generate_from_images(
        self, features: "Sequence[torch.Tensor]", requests: Sequence[ImageRequest]
    ) -> list[Generation | RowError]:
        """Return the caption for each request, cut at the request's max_tokens."""

        def caption_group(group: Sequence[ImageRequest]) -> list[Generation | RowError]:
            limited = partial(self._generate_captions, limit=group[0].request.max_tokens)
            pixels = [features[one.image] for one in group]
            return isolate(lambda batch: call_in_batches(limited, batch, size=self.image_batch), pixels)

        return call_by_group(caption_group, requests, key=lambda one: one.request.max_tokens)

    def _generate_captions(self, pixels: "Sequence[torch.Tensor]", limit: int) -> list[Generation]:
        output = self.model.generate(pixel_values=self.batch(pixels), do_sample=False, max_new_tokens=limit)
        captions = []
        for ids in output[:, self.start :].tolist():
            ended = self.end_id in ids
            length = ids.index(self.end_id) if ended else len(ids)
            text = str(self.tokenizer.decode(ids[:length], skip_special_tokens=True)).strip()
            captions.append(Generation(text, ended, Usage(calls=1, new_tokens=length)))
        return captions


def _is_captioner(fields: Fields) -> bool:
    if (
        find_architecture(fields) == "Blip2ForConditionalGeneration"
    ):  # OPT reads the image before it writes; T5 does not
        return read_subfields(fields, "text_config").get("model_type") == "opt"
    return find_architecture(fields) in (BLIP_ARCHITECTURE, "GitForCausalLM")


CAPTIONER_FAMILY = Family(
    loads={"generate_from_images": Captioner.load},
    form="a BlipForConditionalGeneration, a GitForCausalLM or a BLIP-2 with an OPT",
    suits=_is_captioner,
    files=(Files("tokenizer", ("tokenizer.json", "vocab.txt", "vocab.json"), TOKENIZER.remedy), IMAGES),
)


CAPTION_INSTRUCTION = "What does the image describe?"
REGIONS_INSTRUCTION = "Locate the objects in the image, with their descriptions."
OCR_INSTRUCTION = "What is the text in the image?"
"""Instructions that Florence-2 learned for its tasks <CAPTION>, <DENSE_REGION_CAPTION> and <OCR>."""
MAX_REGION_TOKENS = 1024
"""Maximum number of tokens of a reply with text or regions, as in the authors' code."""
N_BINS = 1000
"""Number of bins into which the width and height of an image are divided."""
LABELLED_BOXES_PATTERN = re.compile(r"(?<![^<>])([^<>]+)((?:<loc_\d+>){4,})")
BOX_PATTERN = re.compile(r"<loc_(\d+)><loc_(\d+)><loc_(\d+)><loc_(\d+)>")


class Florence2(LoadedImageModel):
    """Florence-2, which serves `regions`, `ocr` and `generate_from_images` (which always returns a caption).

    Replies are the likeliest ones under the checkpoint's own generation settings (beam search, no repeated words); a
    request's temperature is ignored.
    """

    architecture = "Florence2ForConditionalGeneration"

    def preprocess(self, image: Image.Image) -> SizedTensor:
        return SizedTensor(super().preprocess(image), image.width, image.height)

    def encode(self, pixels: Sequence[SizedTensor]) -> list[SizedTensor]:
        """Return, for each image, the features (tokens, width) that the language model reads."""

        def encode_batch(images: Sequence[SizedTensor]) -> list[SizedTensor]:
            batch = self.batch([image.tensor for image in images])
            features = self.model.get_image_features(pixel_values=batch).pooler_output
            return [image._replace(tensor=feature) for image, feature in zip(images, features, strict=True)]

        return call_in_batches(encode_batch, pixels, size=self.image_batch)

    def generate_from_images(
        self, features: Sequence[SizedTensor], requests: Sequence[ImageRequest]
    ) -> list[Generation | RowError]:
        tasks = [(features[one.image], CAPTION_INSTRUCTION, one.request.max_tokens) for one in requests]
        return isolate(lambda batch: [self._decode_reply(reply) for reply in self._generate_replies(batch)], tasks)

    def regions(self, features: Sequence[SizedTensor]) -> list[list[Region] | RowError]:
        def find_regions_of_batch(images: Sequence[SizedTensor]) -> list[list[Region]]:
            replies = self._generate_replies([(image, REGIONS_INSTRUCTION, MAX_REGION_TOKENS) for image in images])
            return [
                parse_regions(self.tokenizer.decode(reply, skip_special_tokens=False), image.width, image.height)
                for reply, image in zip(replies, images, strict=True)
            ]

        return isolate(find_regions_of_batch, features)

    def ocr(self, features: Sequence[SizedTensor]) -> list[str | RowError]:
        def read_batch(images: Sequence[SizedTensor]) -> list[str]:
            replies = self._generate_replies([(image, OCR_INSTRUCTION, MAX_REGION_TOKENS) for image in images])
            return [self._decode_reply(reply).text for reply in replies]

        return isolate(read_batch, features)

    def _generate_replies(self, tasks: Sequence[tuple[SizedTensor, str, int]]) -> list[list[int]]:
        """Return the tokens of the reply to each task (image, instruction, maximum length).

        They include the end token unless the reply reached the maximum length.
        """

        def reply_to_group(group: Sequence[tuple[SizedTensor, str, int]]) -> list[list[int]]:
            generate = partial(self._generate_batch, task=group[0][1], limit=group[0][2])
            return call_in_batches(generate, [image for image, _, _ in group], size=self.image_batch)

        # equal tasks and lengths share a batch, so that nothing is padded
        return call_by_group(reply_to_group, tasks, key=lambda one: one[1:])

    def _generate_batch(self, images: Sequence[SizedTensor], task: str, limit: int) -> list[list[int]]:
        import torch
        from transformers.modeling_outputs import BaseModelOutput

        seen = torch.stack([image.tensor for image in images])
        end = self.tokenizer.eos_token_id
        question = [self.tokenizer.bos_token_id, *self.tokenizer(task, add_special_tokens=False).input_ids, end]
        ids = torch.tensor([question] * len(images), device=seen.device)
        inputs = torch.cat([seen, self.model.get_input_embeddings()(ids)], dim=1)
        mask = torch.ones(inputs.shape[:2], dtype=torch.long, device=seen.device)
        states = self.model.get_encoder()(inputs_embeds=inputs, attention_mask=mask).last_hidden_state
        output = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=min(limit, int(self.model.config.text_config.max_position_embeddings) - 1),
        )
        rows = output[:, 1:].tolist()  # the first token opens the decoder
        return [row[: row.index(end) + 1] if end in row else row for row in rows]

    def _decode_reply(self, ids: Sequence[int]) -> Generation:
        complete = ids[-1:] == [self.tokenizer.eos_token_id]
        text = str(self.tokenizer.decode(ids, skip_special_tokens=True)).strip()
        return Generation(text, complete, Usage(calls=1, new_tokens=len(ids) - complete))


def parse_regions(reply: str, width: int, height: int) -> list[Region]:
    """Return the regions in a reply: each has a label, followed by four coordinates per box.

    Coordinates are in thousandths of the image; they are converted to the pixel at the middle of their bin, as in the
    authors' code.
    """
    regions = []
    for label, boxes in LABELLED_BOXES_PATTERN.findall(re.sub(r"</?s>|<pad>", "", reply)):
        for box in BOX_PATTERN.findall(boxes) if label.strip() else []:
            sides = (width, height) * 2
            corners = [int((int(bin) + 0.5) * side / N_BINS) for bin, side in zip(box, sides, strict=True)]
            regions.append(Region(label.strip(), *corners))
    return regions


FLORENCE2_FAMILY = Family(
    loads=dict.fromkeys(("generate_from_images", "regions", "ocr"), Florence2.load),
    form="a Florence2ForConditionalGeneration of transformers' own layout (the florence-community repositories)",
    suits=lambda fields: fields["model_type"] == "florence2" and "auto_map" not in fields,
    files=(Files("tokenizer", ("tokenizer.json", "vocab.json"), "download the checkpoint again"), IMAGES),
)


MAX_READ_TOKENS = 512
"""Maximum number of tokens of a reply from GOT-OCR: enough for a generated image with text, but not for a page."""
PATCHES_PER_TOKEN_SIDE = 4
"""Number of patches, in each direction, that GOT-OCR's vision tower merges into one token."""
END_OF_REPLY = "<|im_end|>"


class GotOcr2(LoadedImageModel):
    """GOT-OCR 2.0 (Wei et al. 2024), which serves the `ocr` call and returns the likeliest text.

    All images take the same number of tokens.
    """

    architecture = "AutoModelForImageTextToText"

    def __init__(self, *parts: Any, **batches: int) -> None:
        from transformers import GenerationConfig

        super().__init__(*parts, **batches)
        vision = self.model.config.vision_config
        self.image_tokens = (vision.image_size // vision.patch_size // PATCHES_PER_TOKEN_SIDE) ** 2
        ends = {self.tokenizer.convert_tokens_to_ids(END_OF_REPLY), self.tokenizer.eos_token_id}
        self.end_ids = sorted(ends - {None})
        self.model.generation_config = GenerationConfig()  # else its penalties would apply to every call

    @classmethod
    def load_processor(cls, model: ResolvedModel[Any], tokenizer: Any) -> Any:
        from transformers import GotOcr2Processor

        return GotOcr2Processor(super().load_processor(model, tokenizer), tokenizer)

    def preprocess(self, image: Image.Image) -> "dict[str, torch.Tensor]":
        """Return the image (3, height, width) as prepared by the checkpoint's processor, and the prompt's tokens."""
        inputs = self.processor(images=image, num_image_tokens=self.image_tokens, return_tensors="pt")
        return {name: inputs[name][0] for name in ("pixel_values", "input_ids", "attention_mask")}

    def ocr(self, features: "Sequence[dict[str, torch.Tensor]]") -> list[str | RowError]:
        return isolate(lambda batch: call_in_batches(self._read_batch, batch, size=self.image_batch), list(features))

    def _read_batch(self, images: "Sequence[dict[str, torch.Tensor]]") -> list[str]:
        import torch
        from transformers import GenerationConfig

        inputs = {name: torch.stack([image[name] for image in images]).to(self.model.device) for name in images[0]}
        inputs["pixel_values"] = self.batch([image["pixel_values"] for image in images])
        settings = GenerationConfig(
            max_new_tokens=MAX_READ_TOKENS, do_sample=False, eos_token_id=self.end_ids, pad_token_id=self.end_ids[0]
        )
        output = self.model.generate(**inputs, generation_config=settings)
        replies = output[:, inputs["input_ids"].shape[1] :].tolist()
        texts = [list(takewhile(lambda token: token not in self.end_ids, ids)) for ids in replies]
        return [str(self.tokenizer.decode(ids, skip_special_tokens=True)).strip() for ids in texts]


GOT_OCR2_FAMILY = Family(
    loads={"ocr": GotOcr2.load},
    form="a GotOcr2ForConditionalGeneration",
    suits=lambda fields: find_architecture(fields) == "GotOcr2ForConditionalGeneration",
    files=(TOKENIZER, IMAGES),
)
