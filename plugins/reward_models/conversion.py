"""Converts released weights (pickles, or tensors with other names) to folders that model families can load.

Code in a pickle never runs: torch reads tensors and plain values, and refuses everything else. If the network
itself is pickled (MPS), its classes are replaced with inert placeholders, and only its tensors are kept.
"""

import ast
import json
import pickle
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, Blip2Config, CLIPConfig, CLIPModel
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.checkpoints.parts import SMALL_FILE_PATTERNS, find_part
from plumbline.operators.models.families.dual_encoders import OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS
from plumbline.operators.models.networks.blip import VISION_EPSILON, ImageReward
from plumbline.operators.models.networks.clip import (
    PyramidClip,
    convert_open_clip_config,
    convert_open_clip_weights,
    convert_pyramid_clip_weights,
    rename_weight,
)
from plumbline.operators.models.processing import explain_load_errors, load_tokenizer, make_clip_processor
from plumbline.plugins.reward_models.aesthetic_network import AestheticPredictor
from plumbline.plugins.reward_models.fga_blip2_network import FgaBlip2
from plumbline.plugins.reward_models.hpsv3_plus_network import HpsV3Plus
from plumbline.plugins.reward_models.mps_network import HEAD_WIDTH as MPS_HEAD_WIDTH
from plumbline.plugins.reward_models.mps_network import Mps
from plumbline.plugins.reward_models.reward_tokens import (
    PROMPT_PLACEHOLDER,
    REWARD_TOKEN,
    VIDEO_RATINGS,
    EditReward,
    EditRewardQwen3,
    HpsV3,
    VideoReward,
)
from plumbline.plugins.reward_models.token_rewards import EDIT_INSTRUCTION_FILES, INSTRUCTION_FILE

ReleaseName = Literal[
    "open_clip",
    "pyramid_clip",
    "imagereward",
    "hpsv3",
    "videoalign",
    "editreward",
    "mps",
    "laion_aesthetic",
    "fga_blip2",
    "hpsv3_plus",
]
Weights = dict[str, torch.Tensor]

NESTED_KEYS = ("state_dict", "model")
"""Keys that may contain the weights in a training checkpoint."""
HEAD_WIDTH = 64
"""Width of an attention head in BERT and in every ViT of BLIP."""
PIXELS_PER_IMAGE = 256 * 28 * 28
"""Number of pixels of every image after resizing in HPSv3, HPSv3++ and EditReward on Qwen2.5-VL."""
IMAGE_FACTOR = 28
"""After HPSv3++'s first resizing, the sides of an image are multiples of this number."""
POOLING_PREFIX = "cap_encoder.pool_attn."
"""Prefix of the names of HPSv3++'s weights that only matter if a capability is inferred from several images."""
BLIP_NAME_PATTERNS = (
    (r"^blip\.", ""),
    (r"^mlp\.", "reward_head."),
    (r"^visual_encoder\.cls_token$", "vision_model.embeddings.class_embedding"),
    (r"^visual_encoder\.pos_embed$", "vision_model.embeddings.position_embedding"),
    (r"^visual_encoder\.patch_embed\.proj\.", "vision_model.embeddings.patch_embedding."),
    (r"^visual_encoder\.norm\.", "vision_model.post_layernorm."),
    (r"^visual_encoder\.blocks\.(\d+)\.attn\.proj\.", r"vision_model.encoder.layers.\1.self_attn.projection."),
    (r"^visual_encoder\.blocks\.(\d+)\.attn\.qkv\.", r"vision_model.encoder.layers.\1.self_attn.qkv."),
    (r"^visual_encoder\.blocks\.(\d+)\.norm(\d)\.", r"vision_model.encoder.layers.\1.layer_norm\2."),
    (r"^visual_encoder\.blocks\.(\d+)\.mlp\.", r"vision_model.encoder.layers.\1.mlp."),
)
"""Patterns and replacements that convert BLIP's original weight names to those of transformers."""
UNUSED_BLIP_WEIGHTS = ("vision_proj.", "text_proj.", "text_encoder.embeddings.position_ids")
"""Prefixes of the names of BLIP weights that a reward does not use."""
QWEN_NAME_PATTERNS = (
    (r"^visual\.", "model.visual."),
    (r"^model\.(?!visual\.|language_model\.)", "model.language_model."),
)
"""Patterns and replacements that convert Qwen2-VL's weight names from before transformers 4.52 to today's."""
LAVIS_NAME_PATTERNS = (
    *BLIP_NAME_PATTERNS,
    (r"^visual_encoder\.blocks\.(\d+)\.attn\.", r"vision_model.encoder.layers.\1.self_attn."),
    (r"^ln_vision\.", "vision_model.post_layernorm."),
    (r"^Qformer\.bert\.embeddings\.LayerNorm\.", "qformer.layernorm."),
    (r"^Qformer\.bert\.embeddings\.", "embeddings."),
    (r"^Qformer\.bert\.", "qformer."),
    (r"^(qformer\..*attention)\.self\.", r"\1.attention."),
    (r"^vision_proj\.", "vision_projection."),
    (r"^text_proj\.", "text_projection."),
)
"""Patterns and replacements that convert the weight names of LAVIS's BLIP-2 (Qformer.py, eva_vit.py, blip2_qformer.py)
to those of transformers.
"""
UNUSED_LAVIS_PATTERN = re.compile(r"position_ids$|^temp$|^Qformer\.cls\.|^mask_proj\.")
"""Pattern for the names of weights that FGA-BLIP2's scores do not use: those of other tasks, and of training alone."""
MPS_NAME_PATTERNS = ((r"^model\.", ""), (r"\.fn\.", "."), (r"\.rotary_emb\.", "."))
"""Patterns and replacements that convert MPS's weight names to those of our network."""
UNUSED_MPS_PATTERN = re.compile(r"(^|\.)position_ids$|^cross_model\..*\bnorm\.bias$")
"""Pattern for the names of MPS's constants: numbers of positions, and zeros that are added to normalised states."""
VISION_PREFIXES = ("vision_model.", "visual_projection.")
"""Prefixes of the names of CLIP's weights that embed images."""
AESTHETIC_LAYER_PATTERN = re.compile(r"(?:layers\.(\d+)\.)?(weight|bias)")
"""Pattern for the names of weights in LAION's aesthetic predictors; the layer of the first version has no number."""
AESTHETIC_LAYERS: Mapping[tuple[int, ...], bool] = {(0,): False, (0, 2, 4, 6, 7): False, (0, 3, 6, 9, 11): True}
"""True for predictors with a ReLU between their layers, by the layers' numbers in the release.

The first is LAION-AI/aesthetic-predictor 6d122ad; the others are the two forms of
christophschuhmann/improved-aesthetic-predictor 6934dd8, whose numbers also count dropouts and activations.
"""
EDITREWARD_INSTRUCTIONS = ("INSTRUCTION_EDIT_FOLLOWING", "INSTRUCTION_EDIT_QUALITY")
"""Constants in EditReward's prompts.py that contain the instructions, one for each head.

Both instructions end with the text in COLLATOR_FILE, a file in the same folder (TIGER-AI-Lab/EditReward edb027e,
inference_edit.py).
"""
COLLATOR_FILE = "data_collator_qwen_edit.py"
RELEASED_SETTINGS_FILE = "model_config.json"
"""File with VideoAlign's settings, in the parent of the weights' folder."""
VIDEOALIGN_SETTINGS: Mapping[str, Any] = {
    "fps": 2,
    "num_frames": None,
    "eval_dim": ["VQ", "MQ", "TA"],
    "sample_type": "uniform",
    "prompt_template_type": "detailed_special",
}
"""VideoAlign's published settings for reading videos and prompting the model (KwaiVGI/VideoAlign 219ab9d, train.sh).
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertConfig:
    """Options of `plumbline convert`."""

    release: ReleaseName
    """`open_clip` for any CLIP that was trained with OpenCLIP, such as HPSv2 and NegCLIP; otherwise the name of the
    release.
    """
    weights: str
    """Released weights file: .pt, .pth, .bin or .safetensors."""
    base: str
    """Folder or hub id of a checkpoint with the same configuration and tokenizer. Only laion_aesthetic also takes its
    weights.
    """
    output: str
    """Folder for the converted checkpoint. It must not exist yet."""
    instruction: str | None = None
    """Published source file that contains the model's instruction: data_collator_qwen.py for hpsv3 and hpsv3_plus,
    prompt_template.py for videoalign, and prompts.py (in its original folder) for editreward. The file is parsed but
    not run.
    """


class ConvertedCheckpoint(NamedTuple):
    """A converted checkpoint that has not been written yet."""

    network: nn.Module
    """Network on the meta device. It defines the expected names and shapes."""
    weights: Weights
    """Weights by their names in the network."""
    stored: Weights
    """Weights by their names in the file, as the model family expects them."""
    file: str = "model.safetensors"


def convert(config: ConvertConfig) -> list[Path]:
    """Convert the weights, write the output folder and return its files.

    Raises ModelError if the output exists, or if the weights cannot be read or do not match `release` and `base`.
    """
    output, source = Path(config.output).expanduser(), Path(config.weights).expanduser()
    if output.exists():
        raise ModelError(f"{output} already exists; choose another output, or remove it")
    if not source.is_file():
        raise ModelError(f"{source}: expected the published weights, found no file; download them first")
    tensors = read_tensors(source, pickled_network=config.release in PICKLED_NETWORKS)
    base = find_part(config.base, None, lambda file: "").folder(SMALL_FILE_PATTERNS)
    draft = output.with_name(f"{output.name}.unfinished")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        made = CONVERT_FUNCTIONS[config.release](config, tensors, base, draft)
        check_weights_fit(source, made)
        save_file({name: tensor.contiguous() for name, tensor in made.stored.items()}, draft / made.file)
        draft.rename(output)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return sorted(output.iterdir())


def read_tensors(file: Path, *, pickled_network: bool = False) -> Weights:
    """Return the weights in a file, keyed by name; other plain values in a pickle are left out.

    Args:
        file: A .safetensors file, or a pickle.
        pickled_network: True if a pickle may contain a whole network as an object; only its tensors are returned.

    Raises ModelError if the file is damaged, or if a pickle contains other objects or no tensors.
    """
    if file.suffix == ".safetensors":
        with explain_load_errors(file.parent, file.name):
            return dict(load_file(file))
    try:
        placeholders = _make_placeholders(file) if pickled_network else []
        with torch.serialization.safe_globals(placeholders):
            contents = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = " ".join(str(error).split("\n")[0].split())[:200]
        raise ModelError(
            f"{file}: expected a pickle of tensors, found other objects ({reason}); none of its code was executed; "
            "convert it to .safetensors on an isolated machine"
        ) from error
    except Exception as error:
        raise ModelError(
            f"{file}: expected a weights file, found other data ({type(error).__name__}); download it again"
        ) from error
    return _select_tensors(file, _collect_tensors(contents) if isinstance(contents, _UnpickledObject) else contents)


class _UnpickledObject:
    """Stand-in for a class or function that a pickle names. It keeps the attributes of an object and runs nothing."""

    attributes: Mapping[str, Any]

    def __new__(cls, *arguments: Any) -> Self:
        placeholder = super().__new__(cls)
        placeholder.attributes = {}
        return placeholder

    def __init__(self, *arguments: Any) -> None:
        """Ignore the arguments of a function or class that is called in the pickle."""

    def __setstate__(self, attributes: Any) -> None:
        self.attributes = attributes if isinstance(attributes, Mapping) else {}


def _make_placeholders(file: Path) -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """Return a placeholder and its name for each class or function in a pickle that torch would refuse to load.

    The pickle is only searched for names; nothing is imported.
    """
    names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    return [(type("Placeholder", (_UnpickledObject,), {}), name) for name in names]


def _collect_tensors(network: _UnpickledObject) -> Weights:
    """Return the tensors of a pickled network by name, as its `state_dict` would."""
    found: Weights = {}
    modules, visited = [("", network)], set[int]()
    while modules:
        prefix, module = modules.pop()
        if id(module) in visited:  # a damaged file may contain a module that contains itself
            continue
        visited.add(id(module))
        passing = module.attributes.get("_non_persistent_buffers_set") or ()
        for kind in ("_parameters", "_buffers", "_modules"):
            for name, entry in (module.attributes.get(kind) or {}).items():
                if isinstance(entry, torch.Tensor) and name not in passing:
                    found[f"{prefix}{name}"] = entry.detach()
                elif isinstance(entry, _UnpickledObject):
                    modules.append((f"{prefix}{name}.", entry))
    return found


def _select_tensors(file: Path, contents: Any) -> Weights:
    """Return the weights in a training checkpoint, without the name prefix that distributed training adds."""
    nested = next(
        (contents[name] for name in NESTED_KEYS if isinstance(contents, Mapping) and name in contents), contents
    )
    if not isinstance(nested, Mapping):
        raise ModelError(
            f"{file}: expected a mapping from names to weights, found a {type(nested).__name__}; check that this is "
            "the checkpoint's weights file"
        )
    weights = {str(name): tensor for name, tensor in nested.items() if isinstance(tensor, torch.Tensor)}
    if not weights:
        raise ModelError(
            f"{file}: expected tensors by name, at the top level or under {' or '.join(NESTED_KEYS)}, found none; "
            "check that this is the checkpoint's weights file"
        )
    return _remove_prefix(weights, "module.")


def _remove_prefix(weights: Weights, prefix: str) -> Weights:
    """Return the weights without a prefix such as `module.` in their names, unless some name lacks the prefix."""
    if all(name.startswith(prefix) for name in weights):
        return {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    return weights


def check_weights_fit(source: Path, made: ConvertedCheckpoint) -> None:
    """Raise ModelError for the first weight that is missing, unexpected or has a different shape."""
    expected = {name: tuple(tensor.shape) for name, tensor in made.network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in made.weights.items()}
    for problem, names in (("lacks", expected.keys() - found.keys()), ("also has", found.keys() - expected.keys())):
        if names:
            raise ModelError(
                f"{source}: {problem} {min(names)}; check that these are the published weights, and that "
                "`base` is the model that they were trained from"
            )
    for name, shape in expected.items():
        if found[name] != shape:
            raise ModelError(
                f"{source}: {name} has the shape {found[name]}, but {shape} in `base`; set `base` to the model that "
                "the weights were trained from"
            )


def _read_base_config(base: Path) -> Any:
    with explain_load_errors(base, "config.json"):
        return AutoConfig.from_pretrained(base, trust_remote_code=False)


def _read_clip_config(config: ConvertConfig, base: Path) -> CLIPConfig:
    """Return the base model's configuration; raise ModelError unless it is a CLIP model with an image processor."""
    fields = _read_base_config(base)
    if not isinstance(fields, CLIPConfig) or not (base / "preprocessor_config.json").is_file():
        raise ModelError(
            f"{config.base}: expected a CLIP model in transformers' layout; set `base` to the model that the release "
            "was trained from"
        )
    return fields


def _convert_open_clip(config: ConvertConfig, tensors: Weights, base: Path, draft: Path) -> ConvertedCheckpoint:
    """Convert an OpenCLIP model: its weights stay unchanged, and its configuration and tokenizer come from the base."""
    tensors = _remove_prefix(tensors, "model.")  # added by packages that wrap OpenCLIP, such as imscore
    fields = _read_open_clip_config(config, base)
    shutil.copy(base / OPEN_CLIP_CONFIG, draft)
    load_tokenizer(base).save_pretrained(draft)
    with torch.device("meta"):
        return ConvertedCheckpoint(CLIPModel(fields), convert_open_clip_weights(tensors), tensors, OPEN_CLIP_WEIGHTS)


def _read_open_clip_config(config: ConvertConfig, base: Path) -> CLIPConfig:
    if not (base / OPEN_CLIP_CONFIG).is_file():
        raise ModelError(f"{config.base} has no {OPEN_CLIP_CONFIG}; choose a base in OpenCLIP's layout")
    with explain_load_errors(base, OPEN_CLIP_CONFIG):
        return convert_open_clip_config(json.loads((base / OPEN_CLIP_CONFIG).read_text()))


def _convert_pyramid_clip(config: ConvertConfig, tensors: Weights, base: Path, draft: Path) -> ConvertedCheckpoint:
    """Convert a PyramidCLIP checkpoint: rename its settings and weights to those of transformers' CLIP."""
    fields, weights = _read_open_clip_config(config, base), convert_pyramid_clip_weights(tensors)
    fields.architectures = [PyramidClip.__name__]
    fields.save_pretrained(draft)
    load_tokenizer(base).save_pretrained(draft)
    make_clip_processor(fields.vision_config.image_size).save_pretrained(draft)
    with torch.device("meta"):
        return ConvertedCheckpoint(PyramidClip(fields), weights, weights)


def _convert_image_reward(config: ConvertConfig, tensors: Weights, base: Path, draft: Path) -> ConvertedCheckpoint:
    """Convert an ImageReward checkpoint: rename its weights, and set its image size and its number of heads."""
    weights = {
        name: tensor
        for name, tensor in _rename_weights(tensors, BLIP_NAME_PATTERNS).items()
        if not name.startswith(UNUSED_BLIP_WEIGHTS)
    }
    fields = _read_base_config(base)
    vision = fields.vision_config
    vision.image_size = _find_image_size(weights, vision.patch_size)
    vision.layer_norm_eps = VISION_EPSILON
    for half in (vision, fields.text_config):  # the number of heads does not follow from the shapes
        if half.hidden_size % HEAD_WIDTH == 0:
            half.num_attention_heads = half.hidden_size // HEAD_WIDTH
    fields.architectures = [ImageReward.__name__]
    fields.save_pretrained(draft)
    load_tokenizer(base).save_pretrained(draft)
    make_clip_processor(vision.image_size).save_pretrained(draft)
    with torch.device("meta"):
        return ConvertedCheckpoint(ImageReward(fields), weights, weights)


def _convert_mps(config: ConvertConfig, tensors: Weights, base: Path, draft: Path) -> ConvertedCheckpoint:
    """Convert an MPS checkpoint: rename its weights, and infer the numbers of cross layers and heads from them."""
    fields = _read_clip_config(config, base)
    weights = {
        name: tensor
        for name, tensor in _rename_weights(tensors, MPS_NAME_PATTERNS).items()
        if not UNUSED_MPS_PATTERN.search(name)
    }
    queries = [tensor for name, tensor in weights.items() if name.endswith(".to_q.weight")]
    fields.cross_layers, fields.cross_heads = len(queries), len(queries[0]) // MPS_HEAD_WIDTH if queries else 0
    fields.architectures = [Mps.__name__]
    fields.save_pretrained(draft)
    shutil.copy(base / "preprocessor_config.json", draft)
    load_tokenizer(base).save_pretrained(draft)
    with torch.device("meta"):
        return ConvertedCheckpoint(Mps(fields), weights, weights)


def _convert_laion_aesthetic(config: ConvertConfig, tensors: Weights, base: Path, draft: Path) -> ConvertedCheckpoint:
    """Convert a LAION aesthetic predictor: combine its layers with the vision tower of the base CLIP model."""
    clip = _load_clip(config, _read_clip_config(config, base))
    parts = {name: AESTHETIC_LAYER_PATTERN.fullmatch(name) for name in tensors}
    numbers = tuple(sorted({int(part[1] or 0) for part in parts.values() if part}))
    if not all(parts.values()) or numbers not in AESTHETIC_LAYERS:
        raise ModelError(
            f"{config.weights}: expected the layers of one of LAION's aesthetic predictors, found "
            f"{', '.join(sorted(tensors)[:4])}; check that this is the release"
        )
    head = {f"head.{numbers.index(int(part[1] or 0))}.{part[2]}": tensors[name] for name, part in parts.items() if part}
    fields = clip.config.vision_config
    fields.projection_dim = clip.config.projection_dim
    fields.head_widths = [len(head.get(f"head.{number}.bias", ())) for number in range(len(numbers))]
    fields.head_relu = AESTHETIC_LAYERS[numbers]
    fields.architectures = [AestheticPredictor.__name__]
    fields.save_pretrained(draft)
    make_clip_processor(fields.image_size).save_pretrained(draft)
    tower = {name: tensor for name, tensor in clip.state_dict().items() if name.startswith(VISION_PREFIXES)}
    weights = {**tower, **head}
    with torch.device("meta"):
        return ConvertedCheckpoint(AestheticPredictor(fields), weights, weights)


def _load_clip(config: ConvertConfig, fields: CLIPConfig) -> Any:
    """Load the base CLIP with its weights; raise ModelError if a weight is missing."""
    folder = find_part(config.base, None, lambda file: "").folder()
    with explain_load_errors(folder, "weights"):
        clip, report = CLIPModel.from_pretrained(
            folder, config=fields, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    if report["missing_keys"]:
        raise ModelError(f"{config.base}: lacks {min(report['missing_keys'])}; choose a complete checkpoint as `base`")
    return clip


def _convert_fga_blip2(config: ConvertConfig, tensors: Weights, base: Path, draft: Path) -> ConvertedCheckpoint:
    """Convert an FGA-BLIP2 checkpoint: rename LAVIS's weights as in transformers' BLIP-2, and set the image size."""
    fields = _read_base_config(base)
    if not isinstance(fields, Blip2Config):
        raise ModelError(
            f"{config.base}: expected a BLIP-2 model in transformers' layout; set `base` to BLIP-2 finetuned on COCO"
        )
    named = _rename_weights(tensors, LAVIS_NAME_PATTERNS)
    weights = {name: tensor for name, tensor in named.items() if not UNUSED_LAVIS_PATTERN.search(name)}
    for name in [name for name in weights if name.endswith(".self_attn.q_bias")]:
        layer = name.removesuffix("q_bias")
        query, value = weights.pop(name), weights.pop(f"{layer}v_bias", torch.empty(0))
        weights[f"{layer}qkv.bias"] = torch.cat([query, torch.zeros_like(query), value])
    vision = fields.vision_config
    vision.image_size = _find_image_size(weights, vision.patch_size)
    fields.architectures = [FgaBlip2.__name__]
    fields.save_pretrained(draft)
    load_tokenizer(base).save_pretrained(draft)
    BlipImageProcessorPil(size={"height": vision.image_size, "width": vision.image_size}).save_pretrained(draft)
    with torch.device("meta"):
        return ConvertedCheckpoint(FgaBlip2(fields), weights, weights)


def _find_image_size(weights: Weights, patch_size: int) -> int:
    """Derive the side length of BLIP's input images, in pixels, from the position embeddings of its vision tower."""
    positions = weights.get("vision_model.embeddings.position_embedding", torch.empty(1, 1, 0)).shape[1]
    side: int = round((positions - 1) ** 0.5) * patch_size
    return side


def _convert_hpsv3(config: ConvertConfig, tensors: Weights, base: Path, draft: Path) -> ConvertedCheckpoint:
    """Convert an HPSv3 checkpoint: add the reward token to Qwen2-VL, fix the image size, and save the instruction."""
    parts = ("INSTRUCTION", "prompt_with_special_token")
    texts = _read_texts(config.instruction, "data_collator_qwen.py")
    (draft / INSTRUCTION_FILE).write_text(_join_instruction(config.instruction, texts, parts, (REWARD_TOKEN,)))
    return _convert_qwen_reward(HpsV3, tensors, base, draft)


def _convert_hpsv3_plus(config: ConvertConfig, tensors: Weights, base: Path, draft: Path) -> ConvertedCheckpoint:
    """Convert an HPSv3++ checkpoint: add the reward token to Qwen3-VL, and save the instruction and the image size."""
    parts = ("INSTRUCTION", "prompt_with_special_token")
    texts = _read_texts(config.instruction, "data_collator_qwen.py")
    (draft / INSTRUCTION_FILE).write_text(_join_instruction(config.instruction, texts, parts, (REWARD_TOKEN,)))
    weights = {
        name: tensor
        for name, tensor in _rename_weights(tensors, QWEN_NAME_PATTERNS).items()
        if name != "lm_head.weight" and not name.startswith(POOLING_PREFIX)
    }
    fields = _add_tokens(base, draft, (REWARD_TOKEN,))
    fields.condition_width = len(weights.get("cond_encoder.0.bias", ()))
    fields.image_factor, fields.image_pixels = IMAGE_FACTOR, PIXELS_PER_IMAGE
    fields.architectures = [HpsV3Plus.__name__]
    fields.save_pretrained(draft)
    shutil.copy(base / "preprocessor_config.json", draft)
    with torch.device("meta"):
        return ConvertedCheckpoint(HpsV3Plus(fields), weights, weights)


def _convert_editreward(config: ConvertConfig, tensors: Weights, base: Path, draft: Path) -> ConvertedCheckpoint:
    """Convert an EditReward checkpoint: add a reward token to the base model, and save the instructions.

    Images have a fixed size only on Qwen2.5-VL. On Qwen3-VL, the release leaves their size to the base's processor: its
    code sets the fixed size in a conversation, where transformers does not read it.
    """
    networks: Mapping[str, Callable[[Any], nn.Module]] = {"qwen2_5_vl": EditReward, "qwen3_vl": EditRewardQwen3}
    kind = _read_base_config(base).model_type
    if kind not in networks:
        raise ModelError(
            f"{config.base}: expected a Qwen2.5-VL or Qwen3-VL, found the model type {kind}; set `base` to the model "
            "that the weights were trained from"
        )
    texts = dict(_read_texts(config.instruction, "prompts.py"))
    texts |= _read_texts(str(Path(config.instruction or "").with_name(COLLATOR_FILE)), COLLATOR_FILE)
    for file, name in zip(EDIT_INSTRUCTION_FILES, EDITREWARD_INSTRUCTIONS, strict=True):
        parts = (name, "prompt_with_special_token")
        (draft / file).write_text(_join_instruction(config.instruction, texts, parts, (REWARD_TOKEN,)))
    return _convert_qwen_reward(networks[kind], tensors, base, draft, resizes=kind == "qwen2_5_vl")


def _convert_qwen_reward(
    network: Callable[[Any], nn.Module], tensors: Weights, base: Path, draft: Path, *, resizes: bool = True
) -> ConvertedCheckpoint:
    """Convert a reward model on Qwen-VL; `resizes` is True if all images are resized to PIXELS_PER_IMAGE."""
    weights = {
        name: tensor
        for name, tensor in _rename_weights(tensors, QWEN_NAME_PATTERNS).items()
        if name != "lm_head.weight"
    }
    fields = _add_tokens(base, draft, (REWARD_TOKEN,))
    images = json.loads((base / "preprocessor_config.json").read_text())
    if resizes:
        size = {"shortest_edge": PIXELS_PER_IMAGE, "longest_edge": PIXELS_PER_IMAGE}
        images |= {"min_pixels": PIXELS_PER_IMAGE, "max_pixels": PIXELS_PER_IMAGE} | (
            {"size": size} if "size" in images else {}
        )
    (draft / "preprocessor_config.json").write_text(json.dumps(images, indent=1))
    with torch.device("meta"):
        made = network(fields)
    fields.architectures = [type(made).__name__]
    fields.save_pretrained(draft)
    return ConvertedCheckpoint(made, weights, weights)


def _convert_videoalign(config: ConvertConfig, tensors: Weights, base: Path, draft: Path) -> ConvertedCheckpoint:
    """Convert a VideoAlign checkpoint: add reward tokens to Qwen2-VL, merge in the adapter, and save the settings."""
    source = Path(config.weights).expanduser().absolute().parent.parent / RELEASED_SETTINGS_FILE
    settings = _read_settings(source)
    template = ("DETAILED_PROMPT_WITH_SPECIAL_TOKEN",)
    texts = _read_texts(config.instruction, "prompt_template.py")
    (draft / INSTRUCTION_FILE).write_text(
        _join_instruction(config.instruction, texts, template, tuple(VIDEO_RATINGS.values()))
    )
    merged = {
        name: tensor for name, tensor in _merge_adapter(tensors, settings.scaling).items() if name != "lm_head.weight"
    }
    weights = _rename_weights(merged, QWEN_NAME_PATTERNS)
    fields = _add_tokens(base, draft, tuple(VIDEO_RATINGS.values()))
    shutil.copy(base / "preprocessor_config.json", draft)
    fields.reward_heads = len(weights.get("rm_head.weight", ()))
    if fields.reward_heads not in (1, len(VIDEO_RATINGS)):
        raise ModelError(
            f"{config.weights}: expected rm_head.weight with 1 or {len(VIDEO_RATINGS)} rows, found "
            f"{fields.reward_heads}; download the release again"
        )
    fields.reward_means, fields.reward_stds = settings.means, settings.stds
    fields.max_frame_pixels = settings.max_frame_pixels
    fields.architectures = [VideoReward.__name__]
    fields.save_pretrained(draft)
    with torch.device("meta"):
        return ConvertedCheckpoint(VideoReward(fields), weights, weights)


class VideoAlignSettings(NamedTuple):
    """Settings in VideoAlign's published model_config.json."""

    scaling: Callable[[int], float]
    """Function that returns the scaling factor of the adapter's weights, given the adapter's rank."""
    max_frame_pixels: int
    means: list[float]
    stds: list[float]


def _read_settings(file: Path) -> VideoAlignSettings:
    """Return VideoAlign's settings from the downloaded file RELEASED_SETTINGS_FILE.

    Raises ModelError if the file is missing or cannot be read, or if its frame sampling, prompts or scored dimensions
    differ from VIDEOALIGN_SETTINGS.
    """
    if not file.is_file():
        raise ModelError(
            f"{file}: expected VideoAlign's settings, found no file; keep the weights in the published folder, one "
            "level below this file"
        )
    with explain_load_errors(file.parent, file.name):
        settings = json.loads(file.read_text())
        data, adapter = settings["data_config"], settings["peft_lora_config"]
        scores = settings.get("inference_config") or {}
        alpha, root = float(adapter["lora_alpha"]), bool(adapter.get("use_rslora"))
        found = {"fps": data["fps"], "num_frames": data.get("num_frames"), "eval_dim": data["eval_dim"]}
        found |= {name: data[name] for name in ("sample_type", "prompt_template_type")}
        means, stds = (
            [float(scores.get(f"{dim}_{name}", empty)) for dim in VIDEOALIGN_SETTINGS["eval_dim"]]
            for name, empty in (("mean", 0), ("std", 1))
        )
        most = int(data["max_frame_pixels"])
    other = [f"{name}={value!r}" for name, value in found.items() if value != VIDEOALIGN_SETTINGS[name]]
    if other:
        raise ModelError(
            f"{file}: {', '.join(other)}, but only the published settings are supported: {VIDEOALIGN_SETTINGS}"
        )
    return VideoAlignSettings(lambda rank: alpha / (rank**0.5 if root else rank), most, means, stds)


def _merge_adapter(tensors: Weights, scaling: Callable[[int], float]) -> Weights:
    """Return the network's weights with a peft adapter merged in float32; bfloat16 would lose most of the adapter.

    Raises ModelError if the adapter of a layer is missing.
    """
    named = {name.removeprefix("base_model.model."): tensor for name, tensor in tensors.items()}
    merged = {name: tensor for name, tensor in named.items() if ".lora_" not in name and ".base_layer." not in name}
    for name, tensor in named.items():
        if ".base_layer." in name:
            layer = name.partition(".base_layer.")[0]
            weight = tensor.float()
            if name.endswith(".weight"):
                halves = [named.get(f"{layer}.lora_{half}.default.weight") for half in ("A", "B")]
                if halves[0] is None or halves[1] is None:
                    raise ModelError(f"{layer}: its adapter is missing; download the release again")
                weight = weight + scaling(len(halves[0])) * (halves[1].float() @ halves[0].float())
            merged[name.replace(".base_layer.", ".")] = weight
    return merged


def _add_tokens(base: Path, draft: Path, tokens: Sequence[str]) -> Any:
    """Add tokens to a Qwen-VL checkpoint. Write its tokenizer and chat template, and return its configuration."""
    fields, tokenizer = _read_base_config(base), load_tokenizer(base)
    tokenizer.add_special_tokens({"additional_special_tokens": [*tokens]}, replace_extra_special_tokens=False)
    fields.text_config.vocab_size = len(tokenizer)
    for file in base.glob("*chat_template*"):
        shutil.copy(file, draft)
    tokenizer.save_pretrained(draft)
    return fields


def _read_texts(file: str | None, released: str) -> dict[str, Any]:
    """Return the constants in a published source file by name; the file is parsed but not run."""
    if file is None or not Path(file).is_file():
        raise ModelError(f"instruction: expected the published file {released}; set instruction=PATH")
    try:
        statements = ast.parse(Path(file).read_text()).body
    except (SyntaxError, ValueError) as error:
        raise ModelError(
            f"{file}: expected the published {released}, found no Python source ({error}); download it again"
        ) from error
    return {
        target.id: statement.value.value
        for statement in statements
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _join_instruction(file: str | None, texts: Mapping[str, Any], names: Sequence[str], tokens: Sequence[str]) -> str:
    """Join the constants with these names into the instruction.

    Raises ModelError unless the prompt's placeholder and each token occur exactly once in it.
    """
    instruction = "".join(str(texts.get(name, "")) for name in names)
    if any(instruction.count(mark) != 1 for mark in (PROMPT_PLACEHOLDER, *tokens)):
        raise ModelError(
            f"{file}: expected {' and '.join(names)} to contain {', '.join((PROMPT_PLACEHOLDER, *tokens))}, each "
            "exactly once; set instruction to the published file"
        )
    return instruction


def _rename_weights(tensors: Mapping[str, torch.Tensor], patterns: Sequence[tuple[str, str]]) -> Weights:
    return {rename_weight(name, patterns): tensor for name, tensor in tensors.items()}


CONVERT_FUNCTIONS: Mapping[ReleaseName, Callable[[ConvertConfig, Weights, Path, Path], ConvertedCheckpoint]] = {
    "open_clip": _convert_open_clip,
    "pyramid_clip": _convert_pyramid_clip,
    "imagereward": _convert_image_reward,
    "hpsv3": _convert_hpsv3,
    "videoalign": _convert_videoalign,
    "editreward": _convert_editreward,
    "mps": _convert_mps,
    "laion_aesthetic": _convert_laion_aesthetic,
    "fga_blip2": _convert_fga_blip2,
    "hpsv3_plus": _convert_hpsv3_plus,
}
PICKLED_NETWORKS: frozenset[ReleaseName] = frozenset({"mps"})
"""Releases whose pickle contains the network as an object."""
