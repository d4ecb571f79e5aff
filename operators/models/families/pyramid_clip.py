"""PyramidCLIP: a CLIP with convolutions among its patches, whose texts are embedded as a whole (Gao et al. 2022).

It is released as a pickle, which `python -m jobs.convert` makes a folder of (docs/models.md).
"""

from typing import TYPE_CHECKING

from plumbline.operators.models.calls import PixelRule
from plumbline.operators.models.checkpoints.parts import architecture
from plumbline.operators.models.families.clip import ClipSimilarity
from plumbline.operators.models.family import TOKENIZER, Family, Files
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.texts import clean

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel

ARCHITECTURE = "PyramidClip"
PADDING = 0
"""The token that texts are padded with to the whole context; it is read as any other."""


class PyramidClipSimilarity(ClipSimilarity):
    """The `similarity` call served by PyramidCLIP."""

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> "torch.Tensor":
        """The image as CLIP's release prepares it, (3, height, width), whatever the rule."""
        return self.released(image)


def _load(model: "ResolvedModel") -> PyramidClipSimilarity:
    from plumbline.operators.models.networks.pyramid_clip import PyramidClip
    from plumbline.operators.models.processing import load_pixel_transform, load_pretrained, load_tokenizer

    tokenizer = load_tokenizer(model.folder("tokenizer"))
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(PADDING)
    return PyramidClipSimilarity(
        load_pretrained(PyramidClip, model),
        tokenizer,
        load_pixel_transform(model.folder("checkpoint"), pad_to_square=False),
        pair_batch=model.config.pair_batch,
        padded=True,
        cleaned=clean,
    )


FAMILY = Family(
    config=LocalModel,
    loads={"similarity": _load, "embedding": _load},
    form=f"{ARCHITECTURE}'s, as jobs.convert makes it",
    suits=lambda fields: architecture(fields) == ARCHITECTURE,
    files=(TOKENIZER, Files("checkpoint", ("preprocessor_config.json",), "convert the release again (docs/models.md)")),
    measures=("cosine", "logit"),
)
