"""Dual encoders: CLIP (including PickScore), CLIP in OpenCLIP's layout, PyramidCLIP, SigLIP and ALIGN."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from PIL import Image

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.calls import PixelRule
from plumbline.operators.models.checkpoints.parts import (
    CONVERT_AGAIN_REMEDY,
    Fields,
    Part,
    find_architecture,
    read_fields,
    read_json,
    read_subfields,
)
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family, Files
from plumbline.operators.models.model import LocalModel, ResolvedModel
from plumbline.operators.models.networks.similarity import COSINE_PROFILE, CosineVqa, Towers, clean_text

if TYPE_CHECKING:
    import torch


def _make_dual_encoder_family(towers: type[Towers], **options: Any) -> Family[LocalModel]:
    """Return a family of dual encoders, which compare embeddings; as VQA models, they compare the choices' embeddings.

    `options` override the usual settings of such a family.
    """
    defaults: dict[str, Any] = {
        "loads": {
            "similarity": towers.load,
            "embedding": towers.load,
            "likelihood": lambda model: CosineVqa(towers.load(model)),
        },
        "files": (TOKENIZER, IMAGES),
        "profile": lambda config, fields: COSINE_PROFILE,
        "measures": ("cosine", "logit"),
        "compares": ("prompt", "caption", "source", "change"),
    }
    return Family(**defaults | options)


class ClipSimilarity(Towers):
    architecture = "CLIPModel"

    def __init__(self, *parts: Any, **batches: int) -> None:
        from plumbline.operators.models.processing import PaddedTransform, ReleasedTransform

        super().__init__(*parts, **batches)
        self.released = ReleasedTransform(self.processor.processor)
        self.padding = PaddedTransform(self.processor.processor)

    @classmethod
    def load_processor(cls, model: ResolvedModel[Any], tokenizer: Any) -> Any:
        from plumbline.operators.models.processing import load_pixel_transform

        return load_pixel_transform(model.folder("checkpoint"), pad_to_square=False)

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> "torch.Tensor":
        """Return the image (3, height, width), preprocessed as the rule says."""
        rules = {"processor": self.processor, "released": self.released, "padded": self.padding}
        return self.pixels.pin(rules[rule](image))


CLIP_FAMILY = _make_dual_encoder_family(
    ClipSimilarity, form="'clip'", suits=lambda fields: fields["model_type"] == "clip", pixels=get_args(PixelRule)
)
"""CLIP, including PickScore, which is a CLIP trained on human preferences."""


OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
KNOWN_FIELDS = {
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
"""Configuration fields of networks with the original CLIP's architecture. Of these, `patch_dropout` only affects
training.
"""
SUPPORTED_PREPROCESSING = {"interpolation": "bicubic", "resize_mode": "shortest", "mode": "RGB"}


class OpenClipSimilarity(ClipSimilarity):
    @classmethod
    def load_network(cls, model: ResolvedModel[Any]) -> Any:
        from safetensors.torch import load_file

        from plumbline.operators.models.networks.clip import convert_open_clip_config, convert_open_clip_weights
        from plumbline.operators.models.processing import explain_load_errors, load_pretrained

        folder, fields = model.folder("checkpoint"), _read_open_clip(model.parts["checkpoint"])
        with explain_load_errors(folder, OPEN_CLIP_CONFIG):
            config = convert_open_clip_config(fields)
        with explain_load_errors(folder, OPEN_CLIP_WEIGHTS):
            weights = convert_open_clip_weights(load_file(folder / OPEN_CLIP_WEIGHTS))
        return load_pretrained(cls.architecture, model, config=config, state_dict=weights)

    @classmethod
    def load_processor(cls, model: ResolvedModel[Any], tokenizer: Any) -> Any:
        from plumbline.operators.models.processing import PixelTransform, make_clip_processor

        fields = _read_open_clip(model.parts["checkpoint"])
        prepared, side = read_subfields(fields, "preprocess_cfg"), fields["model_cfg"]["vision_cfg"]["image_size"]
        processor = make_clip_processor(side, prepared.get("mean"), prepared.get("std"))
        return PixelTransform(processor, pad_to_square=False)

    def clean(self, text: str) -> str:
        return clean_text(text)

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> "torch.Tensor":
        """Return the image (3, height, width), resized in its original colour mode and then cropped.

        With the rule `padded`, the image is padded instead of cropped.
        """
        return self.pixels.pin(self.padding(image) if rule == "padded" else self.released(image))


def _read_open_clip(part: Part) -> dict[str, Any]:
    if part.find_file(OPEN_CLIP_CONFIG) is None:
        return read_fields(part)  # which shows the checkpoint's real family
    return {"model_type": "open_clip", **read_json(part, OPEN_CLIP_CONFIG)}


def _check_open_clip(config: LocalModel, parts: Mapping[str, Part], fields: Fields) -> None:
    """Raise ModelError for a network that differs from the original CLIP, or that needs other preprocessing."""
    source, model = parts["checkpoint"].source, read_subfields(fields, "model_cfg")
    for name, known in KNOWN_FIELDS.items():
        stated = model if name == "model_cfg" else read_subfields(model, name)
        other = sorted(stated.keys() - known)
        if not stated or other:
            setting = f"the setting {other[0]}" if other else "no settings"
            raise ModelError(
                f"{source}: `{name}` in {OPEN_CLIP_CONFIG} has {setting}; only networks like the original CLIP (with "
                f"settings {', '.join(sorted(known))}) are supported; use a checkpoint in transformers' layout "
                "if there is one"
            )
    prepared = read_subfields(fields, "preprocess_cfg")
    for name, value in SUPPORTED_PREPROCESSING.items():
        if prepared.get(name, value) != value:
            raise ModelError(
                f"{source}: `{name}` in {OPEN_CLIP_CONFIG} is {prepared[name]!r}; use a checkpoint "
                f"in which it is {value!r}"
            )


OPEN_CLIP_FAMILY = _make_dual_encoder_family(
    OpenClipSimilarity,
    weights_file=OPEN_CLIP_WEIGHTS,
    read=_read_open_clip,
    form=OPEN_CLIP_CONFIG,
    suits=lambda fields: fields["model_type"] == "open_clip",
    files=(TOKENIZER,),
    check=_check_open_clip,
    pixels=get_args(PixelRule),
)
"""CLIP in OpenCLIP's layout: open_clip_config.json and open_clip_model.safetensors (Ilharco et al. 2021).

LAION's and many later CLIPs are released in this layout; NegCLIP and HPSv2 are converted to it. Texts and images are
preprocessed as in OpenCLIP, which is the same as in CLIP's first release.
"""


PYRAMID_ARCHITECTURE = "PyramidClip"
PYRAMID_PADDING_ID = 0
"""Token that pads texts to the full context; the model reads it like any other token."""


class PyramidClipSimilarity(ClipSimilarity):
    architecture = "plumbline.operators.models.networks.clip:PyramidClip"
    padded = True

    @classmethod
    def load_tokenizer(cls, model: ResolvedModel[Any]) -> Any:
        tokenizer = super().load_tokenizer(model)
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(PYRAMID_PADDING_ID)
        return tokenizer

    def clean(self, text: str) -> str:
        return clean_text(text)

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> "torch.Tensor":
        """Return the image (3, height, width), preprocessed as in OpenAI's CLIP code; `rule` is ignored."""
        return self.pixels.pin(self.released(image))


PYRAMID_CLIP_FAMILY = _make_dual_encoder_family(
    PyramidClipSimilarity,
    loads={"similarity": PyramidClipSimilarity.load, "embedding": PyramidClipSimilarity.load},
    form=f"a {PYRAMID_ARCHITECTURE} folder from jobs.convert",
    suits=lambda fields: find_architecture(fields) == PYRAMID_ARCHITECTURE,
    files=(TOKENIZER, Files("checkpoint", ("preprocessor_config.json",), CONVERT_AGAIN_REMEDY)),
    profile=None,  # so it is not a VQA model
)
"""A CLIP with convolutions over its patches, whose text embedding depends on all tokens (Gao et al. 2022).

The published checkpoint is a pickle; `plumbline convert` turns it into a folder (docs/models.md).
"""


class SiglipSimilarity(Towers):
    architecture = "AutoModel"
    padded = True

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.bias = self.model.logit_bias.item()

    @classmethod
    def load_tokenizer(cls, model: ResolvedModel[Any]) -> Any:
        tokenizer = super().load_tokenizer(model)
        tokenizer.padding_side = "right"
        return tokenizer

    def clean(self, text: str) -> str:
        return text.lower()

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> "Mapping[str, torch.Tensor]":
        """Return the inputs that the checkpoint's processor computes from the image; `rule` is ignored."""
        inputs = self.processor(images=image, return_tensors="pt")
        return {name: tensor[0] for name, tensor in inputs.items()}

    def image_inputs(self, pixels: Sequence[Any]) -> "Mapping[str, torch.Tensor]":
        import torch

        # NaFlex has several inputs; of these, only the pixels are in the network's precision
        batch = {name: torch.stack([each[name] for each in pixels]).to(self.model.device) for name in pixels[0]}
        return batch | {"pixel_values": self.batch([each["pixel_values"] for each in pixels])}


SIGLIP_FAMILY = _make_dual_encoder_family(
    SiglipSimilarity,
    form="'siglip' or 'siglip2'",
    suits=lambda fields: fields["model_type"] in ("siglip", "siglip2"),
    measures=("cosine", "logit", "match"),
)
"""SigLIP and SigLIP 2 (Zhai et al. 2023; 2025).

Texts are lower-cased and padded to one length, as in training: a text's embedding is taken at the last position, which
is usually padding. SigLIP 2's NaFlex variant reads images in their own aspect ratio, as up to 256 patches.
"""


MAX_ALIGN_TOKENS = 64
"""Maximum number of tokens of a text, as set by ALIGN's processor; the network has more positions."""


class Align(Towers):
    architecture = "AlignModel"

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.context = min(MAX_ALIGN_TOKENS, self.context)

    def read_learned_scale(self) -> float:
        return float(1 / self.model.temperature.item())


ALIGN_FAMILY = _make_dual_encoder_family(Align, form="'align'", suits=lambda fields: fields["model_type"] == "align")
"""ALIGN, which embeds images with an EfficientNet and texts with a BERT (Jia et al. 2021)."""
