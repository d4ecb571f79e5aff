"""CLIP-FlanT5: a CLIP vision tower and a two-layer MLP that feed FlanT5, in the layout of the released checkpoints.

See section 3 and appendix D of the VQAScore paper. The weights published as zhiqiulin/clip-flant5-{xl,xxl} are for
research use.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import CLIPConfig, CLIPVisionConfig, CLIPVisionModel, T5Config
from transformers import T5ForConditionalGeneration as T5
from transformers.modeling_outputs import BaseModelOutput

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.encoder_decoder import (
    EncodedQuestions,
    T5AnswerModel,
    encode_image_and_text,
    fuse_kernels,
    join_encodings,
)
from plumbline.operators.models.processing import PixelTransform, find_device, load_pixel_transform
from plumbline.operators.models.vqa_profiles import VICUNA_SYSTEM

USER_MARK = "USER: "
TEXT_BEFORE_IMAGE = f"{VICUNA_SYSTEM} {USER_MARK}"
TEXT_AFTER_IMAGE = "\n{question} ASSISTANT: "
NUMBERED_IMAGE_TEMPLATE = "image {}: "
"""Text between the opening of a conversation and one of several images, so that the decoder can tell them apart."""
MAX_JOINT_IMAGES = 2
"""Number of images in a question about several images."""
TOWER_PREFIX = "vision_tower.vision_tower.vision_model."
PROJECTOR_PREFIX = "mm_projector."
PENULTIMATE_LAYER = -2
"""Index, from the end, of the tower's hidden states that CLIP-FlanT5 uses."""
EMBEDDING_ALIASES = ("embed_tokens.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


class ClipFlanT5(nn.Module):
    """The network of CLIP-FlanT5: images become tokens in the input of FlanT5's encoder; its decoder answers."""

    def __init__(self, language: T5Config, vision: CLIPVisionConfig, *, select_layer: int = PENULTIMATE_LAYER) -> None:
        super().__init__()
        self.vision_tower = CLIPVisionModel(vision)
        self.mm_projector = make_projector(vision.hidden_size, language.d_model)
        self.language_model = T5(language)
        if not language.scale_decoder_outputs:  # FlanT5 has its own output matrix; transformers 5 always shares it
            head = self.language_model.lm_head
            head.weight = nn.Parameter(head.weight.detach().clone())
        fuse_kernels(self.language_model)
        self.select_layer = select_layer
        self.feature_layer = vision.num_hidden_layers + 1 + select_layer

    def encode_images(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return image tokens (n, patches, d_model), without the class token, for pixels (n, 3, height, width)."""
        hidden = self.vision_tower(pixel_values=pixels, output_hidden_states=True).hidden_states
        projected: torch.Tensor = self.mm_projector(hidden[self.feature_layer][:, 1:])
        return projected

    def encode_questions(self, features: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> EncodedQuestions:
        return encode_image_and_text(self.language_model, features, before, after)

    def decode(self, encoded: EncodedQuestions, labels: torch.Tensor) -> torch.Tensor:
        """Return teacher-forced logits (n, tokens, vocabulary) of the right-padded `labels` (n, tokens)."""
        start = torch.full_like(labels[:, :1], self.language_model.config.decoder_start_token_id)
        output = self.language_model(
            encoder_outputs=BaseModelOutput(last_hidden_state=encoded.states),
            attention_mask=encoded.mask,
            decoder_input_ids=torch.cat([start, labels[:, :-1]], dim=1),
            use_cache=False,
        )
        logits: torch.Tensor = output.logits
        return logits

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def pad_id(self) -> int:
        return int(self.language_model.config.pad_token_id)

    def drop_unused_layers(self) -> None:
        """Remove the tower's layers above the selected layer, because their output is not used."""
        self.vision_tower.encoder.layers = self.vision_tower.encoder.layers[: self.feature_layer]


def make_projector(hidden: int, width: int) -> nn.Sequential:
    """Return an untrained two-layer MLP that connects a tower and a language model of these widths."""
    return nn.Sequential(nn.Linear(hidden, width), nn.GELU(), nn.Linear(width, width))


class ClipFlanT5Likelihood(T5AnswerModel):
    """A CLIP-FlanT5 checkpoint, which serves the `likelihood` call.

    The embedding may have more rows than the tokenizer has entries; as in the released code, the extra rows are
    excluded from the softmax.
    """

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.set_system(VICUNA_SYSTEM)

    def set_system(self, system: str | None) -> None:
        """Start every conversation with this system message; None means no system message."""
        opening = f"{system} {USER_MARK}" if system else USER_MARK
        numbered = [opening + NUMBERED_IMAGE_TEMPLATE.format(number + 1) for number in range(MAX_JOINT_IMAGES)]
        self.before, *self.openings = (
            torch.tensor(self.tokenizer(text).input_ids, device=self.device) for text in [opening, *numbered]
        )

    @classmethod
    def load(cls, model: ResolvedModel[Any], network: Any = None) -> Self:
        loaded = super().load(model, network)
        if model.profile is not None:
            loaded.set_system(model.profile.system)
        if model.config.compiled:
            loaded.compile()
        return loaded

    @classmethod
    def load_network(cls, model: ResolvedModel[Any]) -> ClipFlanT5:
        device = find_device(model)  # raises an error about a missing GPU before gigabytes are read
        network = load_network(model.folder("checkpoint"), tower=model.folder("vision_tower"))
        network.drop_unused_layers()
        return network.to(device=device, dtype=getattr(torch, model.dtype)).eval()

    @classmethod
    def load_processor(cls, model: ResolvedModel[Any], tokenizer: Any) -> PixelTransform:
        return load_pixel_transform(model.folder("vision_tower"), pad_to_square=model.config.padding == "released")

    @property
    def entries(self) -> int:
        return len(self.tokenizer)

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        """Return the image as bytes (3, height, width), padded to a square (if configured) and resized."""
        return self.pixels.pin(self.processor(image))

    def preprocess_several(self, images: Sequence[Image.Image]) -> torch.Tensor:
        """Return the images of one question as bytes (images, 3, height, width)."""
        return torch.stack([self.preprocess(image) for image in images])

    @torch.inference_mode()
    def encode(self, pixels: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return each image's tokens (patches, d_model), kept on the device, given its pixels (3, height, width).

        Several images of one question, (images, 3, height, width), become tokens (images, patches, d_model).
        """
        images = [each if each.dim() == 4 else each[None] for each in pixels]
        encoded = self.model.encode_images(self.pixels(images)).split([len(each) for each in images])
        return [tokens if each.dim() == 4 else tokens[0] for each, tokens in zip(pixels, encoded, strict=True)]

    def read(self, images: torch.Tensor, questions: Sequence[str], ids: torch.Tensor) -> EncodedQuestions:
        """Return the encoder's output, given the features of one or several (n, images, ...) images per question.

        Each of several images is encoded with the whole question, and the decoder attends to all of them
        (Fusion-in-Decoder, Izacard and Grave 2021).
        """
        if images.dim() == 3:
            return super().read(images, questions, ids)
        shown = zip(images.unbind(1), self.openings, strict=True)
        parts = [encode_image_and_text(self.t5, one, opening, ids, alignment=self.alignment) for one, opening in shown]
        return join_encodings(parts)

    def format_question(self, question: str) -> str:
        return TEXT_AFTER_IMAGE.format(question=question)


def load_network(checkpoint: Path, *, tower: Path) -> ClipFlanT5:
    """Return a checkpoint's network in its own precision.

    If the checkpoint does not contain the tower, its weights are read from `tower`.
    """
    fields = json.loads((checkpoint / "config.json").read_text())
    return _build_network(checkpoint, tower, {}, select_layer=fields["mm_vision_select_layer"])


def assemble_network(language: Path, tower: Path) -> ClipFlanT5:
    """Return a FlanT5 and a CLIP tower joined by an untrained projector; raise ModelError if the weights do not fit."""
    width = json.loads((language / "config.json").read_text())["d_model"]
    projector = make_projector(read_vision_config(tower).hidden_size, width)
    weights = {f"{PROJECTOR_PREFIX}{name}": tensor for name, tensor in projector.state_dict().items()}
    return _build_network(language, tower, weights, select_layer=PENULTIMATE_LAYER)


def _build_network(
    checkpoint: Path, tower: Path, more_weights: Mapping[str, torch.Tensor], *, select_layer: int
) -> ClipFlanT5:
    """Return the network that a checkpoint's config.json describes, with its weights and `more_weights`."""
    fields = json.loads((checkpoint / "config.json").read_text())
    with torch.device("meta"):
        model = ClipFlanT5(T5Config.from_dict(fields), read_vision_config(tower), select_layer=select_layer)
    stored = _read_weights(checkpoint)
    # the embedding is stored once: as `shared` or, if a converter chose another of its names, under that name
    embeddings = [stored.pop(name) for name in EMBEDDING_ALIASES if name in stored]
    if embeddings:
        stored.setdefault("shared.weight", embeddings[0])
    weights = {_convert_weight_name(name): tensor for name, tensor in {**stored, **more_weights}.items()}
    if not any(name.startswith("vision_tower.") for name in weights):
        wanted = model.vision_tower.state_dict()
        for name, tensor in _read_weights(tower).items():  # of a whole CLIP or only its tower
            if (tower_name := name.removeprefix("vision_model.")) in wanted:
                weights[f"vision_tower.{tower_name}"] = tensor
    misfit = f"{checkpoint}: the weights do not fit its config.json"
    try:
        missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    except RuntimeError as error:
        raise ModelError(f"{misfit}: {' '.join(str(error).splitlines()[1].split())}; download it again") from error
    missing = [name for name in missing if name.rsplit(".", 2)[-2] != "embed_tokens"]
    if missing or unexpected:
        found = f"{missing[0]} is missing" if missing else f"unexpected tensor {unexpected[0]}"
        raise ModelError(f"{misfit}: {found}; download it again")
    # share the embedding again: assigning weights to a meta model leaves its other names without storage
    model.language_model.encoder.set_input_embeddings(model.language_model.shared)
    model.language_model.decoder.set_input_embeddings(model.language_model.shared)
    for module in model.vision_tower.modules():
        if hasattr(module, "position_ids"):
            module.position_ids = torch.arange(module.position_embedding.num_embeddings).expand((1, -1))
    return model


def _convert_weight_name(name: str) -> str:
    if name.startswith(TOWER_PREFIX):
        return "vision_tower." + name.removeprefix(TOWER_PREFIX)
    return name if name.startswith(PROJECTOR_PREFIX) else "language_model." + name


def read_vision_config(tower: Path) -> CLIPVisionConfig:
    """Return the vision part of a CLIP model's config; the folder may contain the whole model or only its tower."""
    fields = json.loads((tower / "config.json").read_text())
    if fields.get("model_type") == "clip_vision_model":
        return CLIPVisionConfig.from_dict(fields)
    return CLIPConfig.from_dict(fields).vision_config


def save_clip_flant5(model: ClipFlanT5, folder: Path, *, tower_name: str) -> None:
    """Save the network in the released layout: T5's names, `mm_projector.*` and `vision_tower.vision_tower.*`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.language_model.config.to_dict() | {
        "model_type": "clip_t5",
        "architectures": ["CLIPT5ForConditionalGeneration"],
        "tie_word_embeddings": model.language_model.config.scale_decoder_outputs,
        "mm_vision_tower": tower_name,
        "mm_hidden_size": model.vision_tower.config.hidden_size,
        "mm_projector_type": "mlp2x_gelu",
        "mm_vision_select_layer": model.select_layer,
        "mm_vision_select_feature": "patch",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(name_released_weights(model), folder / "model.safetensors", metadata={"format": "pt"})


def name_released_weights(model: ClipFlanT5) -> dict[str, torch.Tensor]:
    named = {
        "": model.language_model.state_dict(),
        PROJECTOR_PREFIX: model.mm_projector.state_dict(),
        TOWER_PREFIX: model.vision_tower.state_dict(),
    }
    weights = {prefix + name: tensor for prefix, tensors in named.items() for name, tensor in tensors.items()}
    return {name: tensor.contiguous() for name, tensor in weights.items() if name not in EMBEDDING_ALIASES}


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return all tensors in a folder by name, except position ids, which older versions of transformers saved."""
    files = [load_file(file) for file in sorted(folder.glob("*.safetensors"))]
    return {name: tensor for file in files for name, tensor in file.items() if not name.endswith("position_ids")}
