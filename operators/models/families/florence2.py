"""Florence-2: captions of an image, and of its regions with their boxes; text in images."""

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from plumbline.operators.base.batches import call_in_batches, isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import Generation, ImageRequest, Region
from plumbline.operators.models.family import IMAGES, Family, Files
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.loaded import LoadedImageModel, Sized, in_groups

if TYPE_CHECKING:
    from PIL import Image

CAPTION = "What does the image describe?"
DENSE_REGION_CAPTION = "Locate the objects in the image, with their descriptions."
"""Texts that the checkpoints were trained to read for the tasks of these names."""
READ_TEXT = "What is the text in the image?"
MAX_REGION_TOKENS = 1024
"""Maximum length of a reply with text or regions, as in its authors' code."""
BINS = 1000
"""Number of bins into which width and height are divided."""
_LABELLED = re.compile(r"(?<![^<>])([^<>]+)((?:<loc_\d+>){4,})")
_BOX = re.compile(r"<loc_(\d+)><loc_(\d+)><loc_(\d+)><loc_(\d+)>")


class Florence2(LoadedImageModel):
    """The `generate_from_images`, `regions` and `ocr` calls; the first returns a caption for every request.

    Replies are the likeliest ones under the checkpoint's own generation settings (beams, no repeated words); a
    request's temperature is ignored.
    """

    architecture = "Florence2ForConditionalGeneration"

    @property
    def longest(self) -> int:
        """Maximum length of a reply: the positions of the decoder."""
        return int(self.model.config.text_config.max_position_embeddings) - 1

    def preprocess(self, image: "Image.Image") -> Sized:
        """Prepare the image with the checkpoint's processor, (3, height, width)."""
        return Sized(super().preprocess(image), image.width, image.height)

    def encode(self, pixels: Sequence[Sized]) -> list[Sized]:
        """Return for each image the features that the language model reads, (tokens, width)."""
        return call_in_batches(self._encode, pixels, size=self.image_batch)

    def _encode(self, pixels: Sequence[Sized]) -> list[Sized]:
        batch = self.batch([image.tensor for image in pixels])
        features = self.model.get_image_features(pixel_values=batch).pooler_output
        return [image._replace(tensor=feature) for image, feature in zip(pixels, features, strict=True)]

    def generate_from_images(
        self, features: Sequence[Sized], requests: Sequence[ImageRequest]
    ) -> list[Generation | RowError]:
        """Return the caption for each request, cut at its max_tokens."""
        tasks = [(features[one.image], CAPTION, one.request.max_tokens) for one in requests]
        return isolate(lambda batch: [self._generation(reply) for reply in self._replies(batch)], tasks)

    def regions(self, features: Sequence[Sized]) -> list[list[Region] | RowError]:
        def describe(images: Sequence[Sized]) -> list[list[Region]]:
            replies = self._replies([(image, DENSE_REGION_CAPTION, MAX_REGION_TOKENS) for image in images])
            return [
                read_regions(self.tokenizer.decode(reply, skip_special_tokens=False), image.width, image.height)
                for reply, image in zip(replies, images, strict=True)
            ]

        return isolate(describe, features)

    def ocr(self, features: Sequence[Sized]) -> list[str | RowError]:
        def read(images: Sequence[Sized]) -> list[str]:
            replies = self._replies([(image, READ_TEXT, MAX_REGION_TOKENS) for image in images])
            return [self._generation(reply).text for reply in replies]

        return isolate(read, features)

    def _replies(self, tasks: Sequence[tuple[Sized, str, int]]) -> list[list[int]]:
        """Return the tokens of the replies to (image, task, maximum length), including the end token.

        Equal tasks and lengths share a batch, so that nothing is padded.
        """

        def reply(group: Sequence[tuple[Sized, str, int]]) -> list[list[int]]:
            generate = partial(self._generate, task=group[0][1], limit=group[0][2])
            return call_in_batches(generate, [image for image, _, _ in group], size=self.image_batch)

        return in_groups(reply, tasks, key=lambda one: one[1:])

    def _generate(self, images: Sequence[Sized], task: str, limit: int) -> list[list[int]]:
        import torch
        from transformers.modeling_outputs import BaseModelOutput

        seen = torch.stack([image.tensor for image in images])
        end = self.tokenizer.eos_token_id
        question = [self.tokenizer.bos_token_id, *self.tokenizer(task, add_special_tokens=False).input_ids, end]
        ids = torch.tensor([question] * len(images), device=seen.device)
        inputs = torch.cat([seen, self.model.get_input_embeddings()(ids)], dim=1)
        mask = torch.ones(inputs.shape[:2], dtype=torch.long, device=seen.device)
        encoder = self.model.get_encoder()
        read = encoder(inputs_embeds=inputs, attention_mask=mask).last_hidden_state
        output = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=read),
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=min(limit, self.longest),
        )
        rows = output[:, 1:].tolist()  # the first token opens the decoder
        return [row[: row.index(end) + 1] if end in row else row for row in rows]

    def _generation(self, ids: Sequence[int]) -> Generation:
        complete = ids[-1:] == [self.tokenizer.eos_token_id]
        text = str(self.tokenizer.decode(ids, skip_special_tokens=True)).strip()
        return Generation(text, complete, Usage(calls=1, new_tokens=len(ids) - complete))


def read_regions(reply: str, width: int, height: int) -> list[Region]:
    """Parse the regions of a reply: a label, then four coordinates for each of its boxes, in thousandths of the image.

    A coordinate is the middle of its bin, in pixels, as in the authors' code.
    """
    text = re.sub(r"</?s>|<pad>", "", reply)
    return [
        Region(
            label.strip(),
            *(int((int(bin) + 0.5) * side / BINS) for bin, side in zip(box, (width, height) * 2, strict=True)),
        )
        for label, places in _LABELLED.findall(text)
        for box in _BOX.findall(places)
        if label.strip()
    ]


FAMILY = Family(
    config=LocalModel,
    loads=dict.fromkeys(("generate_from_images", "regions", "ocr"), Florence2.load),
    form="a Florence2ForConditionalGeneration of transformers' own layout (the florence-community repositories)",
    suits=lambda fields: fields["model_type"] == "florence2" and "auto_map" not in fields,
    files=(
        Files("tokenizer", ("tokenizer.json", "vocab.json"), "download the checkpoint again"),
        IMAGES,
    ),
)
