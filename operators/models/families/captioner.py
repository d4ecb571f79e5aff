"""Models that caption every image and ignore the request's text: BLIP, BLIP-2 with OPT, and GIT."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from plumbline.operators.base.batches import call_in_batches, isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.models.calls import Generation, ImageRequest
from plumbline.operators.models.checkpoints.parts import Fields, architecture, read_fields, subfields
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family, Files
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.loaded import LoadedImageModel, in_groups

if TYPE_CHECKING:
    import torch

    from plumbline.operators.models.model import ResolvedModel

BLIP = "BlipForConditionalGeneration"
ARCHITECTURES = (BLIP, "GitForCausalLM")


def _has_opt(fields: Fields) -> bool:
    """Return True for a config.json of a BLIP-2 with an OPT, a language model that reads the image before it writes."""
    opt = subfields(fields, "text_config").get("model_type") == "opt"
    return opt and architecture(fields) == "Blip2ForConditionalGeneration"


class Captioner(LoadedImageModel):
    """The `generate_from_images` call served by a captioner: the reply to every request is a caption.

    It is the likeliest one under the checkpoint's own generation settings; a request's temperature is ignored.
    """

    architecture = "AutoModelForImageTextToText"

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        queries = getattr(self.model.config, "num_query_tokens", None)
        self.start = 1 if queries is None else queries + 1  # index of a caption's first token
        self.end_id = self.tokenizer.sep_token_id if queries is None else self.model.config.text_config.eos_token_id

    @classmethod
    def load_network(cls, model: "ResolvedModel[Any]") -> Any:
        from plumbline.operators.models.networks.blip import load_blip

        is_blip = architecture(read_fields(model.parts["checkpoint"])) == BLIP
        return load_blip(BLIP, model) if is_blip else super().load_network(model)

    def generate_from_images(
        self, features: "Sequence[torch.Tensor]", requests: Sequence[ImageRequest]
    ) -> list[Generation | RowError]:
        """Return the caption for each request, cut at its max_tokens."""

        def caption(group: Sequence[ImageRequest]) -> list[Generation | RowError]:
            limited = partial(self._caption, limit=group[0].request.max_tokens)
            pixels = [features[one.image] for one in group]
            return isolate(lambda batch: call_in_batches(limited, batch, size=self.image_batch), pixels)

        return in_groups(caption, requests, key=lambda one: one.request.max_tokens)

    def _caption(self, pixels: "Sequence[torch.Tensor]", limit: int) -> list[Generation]:
        output = self.model.generate(pixel_values=self.batch(pixels), do_sample=False, max_new_tokens=limit)
        return [self._generation(ids) for ids in output[:, self.start :].tolist()]

    def _generation(self, ids: Sequence[int]) -> Generation:
        """Decode the tokens before the end of a caption."""
        ended = self.end_id in ids
        length = ids.index(self.end_id) if ended else len(ids)
        text = str(self.tokenizer.decode(ids[:length], skip_special_tokens=True)).strip()
        return Generation(text, ended, Usage(calls=1, new_tokens=length))


FAMILY = Family(
    config=LocalModel,
    loads={"generate_from_images": Captioner.load},
    form="a BlipForConditionalGeneration, a GitForCausalLM or a BLIP-2 with an OPT",
    suits=lambda fields: architecture(fields) in ARCHITECTURES or _has_opt(fields),
    files=(
        Files("tokenizer", ("tokenizer.json", "vocab.txt", "vocab.json"), TOKENIZER.remedy),
        IMAGES,
    ),
)
