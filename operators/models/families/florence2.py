"""Florence-2: captions of an image, and of its regions with their boxes."""

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from plumbline.operators.base.batches import in_batches, isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import Generation, ImageRequest, Region
from plumbline.operators.models.family import IMAGES, Family, Files
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.loaded import LoadedImageModel, Sized

if TYPE_CHECKING:
    from PIL import Image

CAPTION = "What does the image describe?"
DENSE_REGION_CAPTION = "Locate the objects in the image, with their descriptions."
"""What the checkpoints were trained to read in place of the tasks of these names."""
READ_TEXT = "What is the text in the image?"
REGION_TOKENS = 1024
"""Of a reply with text or regions: as many as its authors let it have."""
BINS = 1000
"""Into which width and height are cut."""
_LABELLED = re.compile(r"(?<![^<>])([^<>]+)((?:<loc_\d+>){4,})")
_BOX = re.compile(r"<loc_(\d+)><loc_(\d+)><loc_(\d+)><loc_(\d+)>")


class ReplyTokens(NamedTuple):
    """The tokens of one reply."""

    ids: list[int]
    """Up to the token that ends it."""
    ended: bool


class Florence2(LoadedImageModel):
    """The `generate_from_images`, `regions` and `ocr` calls; whatever it is asked by the first, the reply is a caption.

    Its words are the likeliest ones, in the way that the checkpoint's generation settings have it (beams, no repeated
    words); a request's temperature is not heeded.
    """

    architecture = "Florence2ForConditionalGeneration"

    @property
    def longest(self) -> int:
        """Tokens of a reply that its decoder has positions for."""
        return int(self.model.config.text_config.max_position_embeddings) - 1

    def preprocess(self, image: "Image.Image") -> Sized:
        """The image as the checkpoint's processor has it, (3, height, width)."""
        return Sized(super().preprocess(image), image.width, image.height)

    def encode(self, pixels: Sequence[Sized]) -> list[Sized]:
        """Each image as what the language model reads of it, (tokens, width)."""
        return in_batches(self._encode, pixels, size=self.image_batch)

    def _encode(self, pixels: Sequence[Sized]) -> list[Sized]:
        batch = self.batch([image.tensor for image in pixels])
        features = self.model.get_image_features(pixel_values=batch).pooler_output
        return [image._replace(tensor=feature) for image, feature in zip(pixels, features, strict=True)]

    def generate_from_images(
        self, features: Sequence[Sized], requests: Sequence[ImageRequest]
    ) -> list[Generation | RowError]:
        """The caption for each request, cut at its max_tokens."""
        tasks = [(features[one.image], CAPTION, one.request.max_tokens) for one in requests]
        return isolate(lambda batch: [self._generation(reply) for reply in self._replies(batch)], tasks)

    def regions(self, features: Sequence[Sized]) -> list[list[Region] | RowError]:
        """The regions of each image, in the order in which the model tells them."""

        def tell(images: Sequence[Sized]) -> list[list[Region]]:
            replies = self._replies([(image, DENSE_REGION_CAPTION, REGION_TOKENS) for image in images])
            return [
                read_regions(self.tokenizer.decode(reply.ids, skip_special_tokens=False), image.width, image.height)
                for reply, image in zip(replies, images, strict=True)
            ]

        return isolate(tell, features)

    def ocr(self, features: Sequence[Sized]) -> list[str | RowError]:
        """The text in each image."""

        def read(images: Sequence[Sized]) -> list[str]:
            replies = self._replies([(image, READ_TEXT, REGION_TOKENS) for image in images])
            return [self._generation(reply).text for reply in replies]

        return isolate(read, features)

    def _replies(self, tasks: Sequence[tuple[Sized, str, int]]) -> list[ReplyTokens]:
        """Replies to (image, task, tokens); those of one task and length go together, so that nothing is padded."""
        replies: dict[int, ReplyTokens] = {}
        for task, limit in sorted({(task, limit) for _, task, limit in tasks}):
            places = [place for place, one in enumerate(tasks) if one[1:] == (task, limit)]
            images = [tasks[place][0] for place in places]
            tell = partial(self._tell, task=task, limit=limit)
            written = in_batches(tell, images, size=self.image_batch)
            replies.update(zip(places, written, strict=True))
        return [replies[place] for place in range(len(tasks))]

    def _tell(self, images: Sequence[Sized], task: str, limit: int) -> list[ReplyTokens]:
        import torch
        from transformers.modeling_outputs import BaseModelOutput

        seen = torch.stack([image.tensor for image in images])
        ids = torch.tensor([self._task_ids(task)] * len(images), device=seen.device)
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
        return [self._reply(row) for row in output[:, 1:].tolist()]  # the first token opens the decoder

    def _task_ids(self, task: str) -> list[int]:
        own = self.tokenizer(task, add_special_tokens=False).input_ids
        return [self.tokenizer.bos_token_id, *own, self.tokenizer.eos_token_id]

    def _reply(self, ids: list[int]) -> ReplyTokens:
        end = self.tokenizer.eos_token_id
        return ReplyTokens(ids[: ids.index(end)], True) if end in ids else ReplyTokens(ids, False)

    def _generation(self, reply: ReplyTokens) -> Generation:
        text = str(self.tokenizer.decode(reply.ids, skip_special_tokens=True)).strip()
        return Generation(text, reply.ended, Usage(calls=1, new_tokens=len(reply.ids)))


def read_regions(reply: str, width: int, height: int) -> list[Region]:
    """The regions of a reply: words, then four places for each box of what they say, in thousandths of the image.

    A place is the middle of its bin, in pixels, as the authors' code has it.
    """
    said = re.sub(r"</?s>|<pad>", "", reply)
    return [
        Region(label.strip(), *(_pixel(int(place), side) for place, side in zip(box, (width, height) * 2, strict=True)))
        for label, places in _LABELLED.findall(said)
        for box in _BOX.findall(places)
        if label.strip()
    ]


def _pixel(place: int, side: int) -> int:
    return int((place + 0.5) * side / BINS)


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
