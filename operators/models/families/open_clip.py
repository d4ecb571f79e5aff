"""CLIP in OpenCLIP's layout: open_clip_config.json beside open_clip_model.safetensors (Ilharco et al. 2021).

So are LAION's and many later CLIPs released, and so are NegCLIP and HPSv2 once they are converted. Texts and images are
made ready as OpenCLIP does it, which is as CLIP's first release did.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.calls import PixelRule
from plumbline.operators.models.checkpoints.parts import Fields, Part, read_fields, read_json, subfields
from plumbline.operators.models.families.clip import ClipSimilarity
from plumbline.operators.models.family import TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.cosine_vqa import COSINE, dual_encoder
from plumbline.operators.models.networks.dual_encoder import COMPARES
from plumbline.operators.models.networks.texts import clean

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel
    from plumbline.operators.models.processing import PixelTransform

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
KNOWN = {
    "model_cfg": {"embed_dim", "quick_gelu", "vision_cfg", "text_cfg", "custom_text"},
    "vision_cfg": {"image_size", "layers", "width", "head_width", "mlp_ratio", "patch_size", "patch_dropout"},
    "text_cfg": {
        "context_length",
        "vocab_size",
        "width",
        "heads",
        "layers",
        "mlp_ratio",
        "hf_tokenizer_name",
        "tokenizer_kwargs",
    },
}
"""What may be said of a network that has CLIP's first form; `patch_dropout` is for training."""
PREPARED = {"interpolation": "bicubic", "resize_mode": "shortest", "mode": "RGB"}
"""The one way in which images are made ready here."""


class OpenClipSimilarity(ClipSimilarity):
    """The `similarity` call served by a CLIP in OpenCLIP's layout."""

    @classmethod
    def load_network(cls, model: "ResolvedModel[Any]") -> Any:
        from safetensors.torch import load_file

        from plumbline.operators.models.networks.open_clip import clip_config, clip_weights
        from plumbline.operators.models.processing import load_pretrained, readable_load

        folder, fields = model.folder("checkpoint"), _read(model.parts["checkpoint"])
        with readable_load(folder, CONFIG):
            config = clip_config(fields)
        with readable_load(folder, WEIGHTS):
            weights = clip_weights(load_file(folder / WEIGHTS))
        return load_pretrained(cls.architecture, model, config=config, state_dict=weights)

    @classmethod
    def load_processor(cls, model: "ResolvedModel[Any]", tokenizer: Any) -> "PixelTransform":
        from plumbline.operators.models.processing import PixelTransform, clip_processor

        fields = _read(model.parts["checkpoint"])
        prepared, side = subfields(fields, "preprocess_cfg"), fields["model_cfg"]["vision_cfg"]["image_size"]
        processor = clip_processor(side, prepared.get("mean"), prepared.get("std"))
        return PixelTransform(processor, pad_to_square=False)

    def cleaned(self, text: str) -> str:
        return clean(text)

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> "torch.Tensor":
        """The image resized in its own mode, centre-cropped and normalised, or padded, (3, height, width)."""
        return self.pixels.held(self.padding(image) if rule == "padded" else self.released(image))


def _read(part: Part) -> dict[str, Any]:
    """Its own config; where there is none, the config.json that tells which family the checkpoint is of."""
    return {"model_type": "open_clip", **read_json(part, CONFIG)} if part.file(CONFIG) else read_fields(part)


def _check(config: LocalModel, parts: Mapping[str, Part], fields: Fields) -> None:
    """Raises ModelError for a network that is not of CLIP's first form, or for images made ready in another way."""
    source, made = parts["checkpoint"].source, subfields(fields, "model_cfg")
    for name, known in KNOWN.items():
        stated = made if name == "model_cfg" else subfields(made, name)
        other = sorted(stated.keys() - known)
        if not stated or other:
            raise ModelError(
                f"{source}: `{name}` of {CONFIG} has {', '.join(other) or 'nothing'}; only a CLIP of the first form "
                f"({', '.join(sorted(known))}) is served; use its release in transformers' layout, if there is one"
            )
    prepared = subfields(fields, "preprocess_cfg")
    for name, value in PREPARED.items():
        if prepared.get(name, value) != value:
            raise ModelError(f"{source}: `{name}` of {CONFIG} is {prepared[name]!r}; only {value!r} is supported")


FAMILY = Family(
    config=LocalModel,
    loads=dual_encoder(OpenClipSimilarity),
    weights_file=WEIGHTS,
    read=_read,
    form=CONFIG,
    suits=lambda fields: fields["model_type"] == "open_clip",
    files=(TOKENIZER,),
    check=_check,
    profile=lambda config, fields: COSINE,
    measures=("cosine", "logit"),
    compares=COMPARES,
    pixels=get_args(PixelRule),
)
