"""From weights as others release them, a pickle or names of their own, to folders that families load.

Nothing of a pickle is run: torch takes tensors and plain values out of it, and refuses all else.
"""

import ast
import json
import pickle
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, CLIPConfig, CLIPModel

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.checkpoints.parts import INSTRUCTION, INSTRUCTIONS, SMALL_FILES, find_part
from plumbline.operators.models.families.open_clip import CONFIG, WEIGHTS
from plumbline.operators.models.networks.blip import VISION_EPSILON
from plumbline.operators.models.networks.editreward import EditReward
from plumbline.operators.models.networks.hpsv3 import HpsV3
from plumbline.operators.models.networks.image_reward import ImageReward
from plumbline.operators.models.networks.open_clip import clip_config, clip_weights, renamed
from plumbline.operators.models.networks.pyramid_clip import LEFFS, PyramidClip
from plumbline.operators.models.networks.reward_tokens import PROMPT, REWARD_TOKEN
from plumbline.operators.models.networks.videoalign import RATED, VideoReward
from plumbline.operators.models.processing import clip_processor, load_tokenizer, readable_load

Release = Literal["open_clip", "pyramid_clip", "imagereward", "hpsv3", "videoalign", "editreward"]
Weights = dict[str, torch.Tensor]

NESTED = ("state_dict", "model")
"""Under which of its names a training checkpoint keeps the weights."""
HEAD_WIDTH = 64
"""Of the attention in BERT and in every ViT of BLIP's."""
PIXELS = 256 * 28 * 28
"""HPSv3 and EditReward see every image at so many pixels."""
BLIP_NAMES = (
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
"""From BLIP's first names to those of transformers."""
PYRAMID_NAMES = (
    (r"\.resblocks1\.", ".resblocks."),
    (r"\.mlp\.ac1\.bn\.", ".mlp.bn1."),
    (r"\.mlp\.depConv\.depconv\.", ".mlp.depconv."),
    (r"\.mlp\.depConv\.bn\.", ".mlp.bn2."),
    (r"\.mlp\.ac2\.bn\.", ".mlp.bn3."),
)
"""From PyramidCLIP's names to OpenCLIP's, but for those of the layers that only it has."""
QWEN_NAMES = (
    (r"^visual\.", "model.visual."),
    (r"^model\.(?!visual\.|language_model\.)", "model.language_model."),
)
"""From the names of Qwen2-VL before transformers 4.52 to those since."""


EDITREWARD = ("INSTRUCTION_EDIT_FOLLOWING", "INSTRUCTION_EDIT_QUALITY")
"""The instructions of EditReward's heads in its prompts.py, and below what ends both in the file beside it
(TIGER-AI-Lab/EditReward edb027e, inference_edit.py)."""
COLLATOR = "data_collator_qwen_edit.py"
RELEASED_SETTINGS = "model_config.json"
"""Of VideoAlign, in the folder above the one of its weights."""
VIDEOALIGN: Mapping[str, Any] = {
    "fps": 2,
    "num_frames": None,
    "eval_dim": ["VQ", "MQ", "TA"],
    "sample_type": "uniform",
    "prompt_template_type": "detailed_special",
}
"""How VideoAlign's release looks at a video and asks about it (KwaiVGI/VideoAlign 219ab9d, train.sh)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertConfig:
    """What is made a checkpoint."""

    release: Release
    """`open_clip`: any CLIP that OpenCLIP trained, such as HPSv2 and NegCLIP; or one of the others."""
    weights: str
    """The released file: .pt, .pth, .bin or .safetensors."""
    base: str
    """Folder or hub id of the checkpoint whose configuration and tokenizer it shares; its weights are not needed."""
    output: str
    """The folder to make; it must not be there."""
    instruction: str | None = None
    """The file of the release's source that says what the model was trained to read: of hpsv3 data_collator_qwen.py, of
    videoalign prompt_template.py, of editreward prompts.py where it lies; it is not run."""


class Made(NamedTuple):
    """A checkpoint about to be written."""

    network: nn.Module
    """Without memory: it says what the weights are to be."""
    weights: Weights
    """Under the names of the network."""
    stored: Weights
    """As they are written, under the names that the family reads."""
    file: str = "model.safetensors"


def convert(config: ConvertConfig) -> list[Path]:
    """Makes the folder, and gives its files; raises ModelError for weights that are not the release's."""
    output, source = Path(config.output).expanduser(), Path(config.weights).expanduser()
    if output.exists():
        raise ModelError(f"{output}: it is there already; name another output, or remove it")
    if not source.is_file():
        raise ModelError(f"{source}: no such file; download the release first")
    tensors = read_tensors(source)
    making = output.with_name(f"{output.name}.unfinished")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    try:
        made = RELEASES[config.release](config, tensors, _base_folder(config.base), making)
        check_weights_fit(source, made)
        save_file({name: tensor.contiguous() for name, tensor in made.stored.items()}, making / made.file)
        making.rename(output)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return sorted(output.iterdir())


def read_tensors(file: Path) -> Weights:
    """The weights of a released file, by name; raises ModelError for a pickle that holds more than tensors."""
    if file.suffix == ".safetensors":
        with readable_load(file.parent, file.name):
            return dict(load_file(file))
    try:
        contents = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = " ".join(str(error).split("\n")[0].split())[:200]
        raise ModelError(
            f"{file}: a pickle that holds more than tensors ({reason}); nothing of it was run: convert it where you "
            "trust it, to a .safetensors"
        ) from error
    except Exception as error:
        raise ModelError(f"{file}: not a file of weights ({type(error).__name__}); download it again") from error
    return _named_tensors(file, contents)


def _named_tensors(file: Path, contents: Any) -> Weights:
    """The weights that a training checkpoint keeps, without what distributed training puts before their names."""
    nested = next((contents[name] for name in NESTED if isinstance(contents, Mapping) and name in contents), contents)
    if not isinstance(nested, Mapping):
        raise ModelError(f"{file}: expected weights by name, found a {type(nested).__name__}")
    weights = {str(name): tensor for name, tensor in nested.items() if isinstance(tensor, torch.Tensor)}
    if not weights:
        raise ModelError(f"{file}: no weights; expected tensors by name, at the top or under {' or '.join(NESTED)}")
    if all(name.startswith("module.") for name in weights):
        return {name.removeprefix("module."): tensor for name, tensor in weights.items()}
    return weights


def check_weights_fit(source: Path, made: Made) -> None:
    """Raises ModelError for the first weight that is lacking, too many, or of another shape."""
    expected = {name: tuple(tensor.shape) for name, tensor in made.network.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in made.weights.items()}
    for problem, names in (("lacks", expected.keys() - found.keys()), ("has also", found.keys() - expected.keys())):
        if names:
            raise ModelError(
                f"{source}: {problem} {min(names)}; is this the release, and `base` the model it is made of?"
            )
    for name, shape in expected.items():
        if found[name] != shape:
            raise ModelError(
                f"{source}: {name} is {found[name]}, where `base` has {shape}; name the base it is made of"
            )


def _base_folder(base: str) -> Path:
    """The small files of the base on this machine."""
    return find_part(base, None, lambda file: "").folder(SMALL_FILES)


def _base_config(base: Path) -> Any:
    with readable_load(base, "config.json"):
        return AutoConfig.from_pretrained(base, trust_remote_code=False)


def _open_clip(config: ConvertConfig, tensors: Weights, base: Path, making: Path) -> Made:
    """A CLIP of OpenCLIP's making stays as it is but for its file, beside the base's configuration."""
    fields = _open_clip_config(config, base)
    shutil.copy(base / CONFIG, making)
    load_tokenizer(base).save_pretrained(making)
    with torch.device("meta"):
        return Made(CLIPModel(fields), clip_weights(tensors), tensors, WEIGHTS)


def _open_clip_config(config: ConvertConfig, base: Path) -> CLIPConfig:
    """The configuration of a base in OpenCLIP's layout."""
    if not (base / CONFIG).is_file():
        raise ModelError(f"{config.base}: no {CONFIG}; name a base in OpenCLIP's layout")
    with readable_load(base, CONFIG):
        return clip_config(json.loads((base / CONFIG).read_text()))


def _pyramid_clip(config: ConvertConfig, tensors: Weights, base: Path, making: Path) -> Made:
    """A CLIP's configuration in OpenCLIP's layout, and weights under transformers' names; regions are for training."""
    fields = _open_clip_config(config, base)
    kept = {_in_one_stack(name): tensor for name, tensor in tensors.items() if name != "visual.proj_pre"}
    weights = clip_weights(_renamed(kept, PYRAMID_NAMES))
    fields.architectures = [PyramidClip.__name__]
    fields.save_pretrained(making)
    load_tokenizer(base).save_pretrained(making)
    clip_processor(fields.vision_config.image_size).save_pretrained(making)
    with torch.device("meta"):
        return Made(PyramidClip(fields), weights, weights)


def _in_one_stack(name: str) -> str:
    """The name of a layer of the second stack, where the first one goes on."""
    return re.sub(r"\.resblocks2\.(\d+)\.", lambda layer: f".resblocks.{int(layer[1]) + LEFFS}.", name)


def _image_reward(config: ConvertConfig, tensors: Weights, base: Path, making: Path) -> Made:
    """A BLIP's configuration at the size of the release's images, and its weights under transformers' names."""
    weights = {name: tensor for name, tensor in _renamed(tensors, BLIP_NAMES).items() if not _is_unused(name)}
    fields = _base_config(base)
    vision = fields.vision_config
    positions = weights.get("vision_model.embeddings.position_embedding", torch.empty(1, 1, 0)).shape[1]
    vision.image_size = round((positions - 1) ** 0.5) * vision.patch_size
    vision.layer_norm_eps = VISION_EPSILON
    for half in (vision, fields.text_config):  # no shape tells how many heads there are
        if half.hidden_size % HEAD_WIDTH == 0:
            half.num_attention_heads = half.hidden_size // HEAD_WIDTH
    fields.architectures = [ImageReward.__name__]
    fields.save_pretrained(making)
    load_tokenizer(base).save_pretrained(making)
    clip_processor(vision.image_size).save_pretrained(making)
    with torch.device("meta"):
        return Made(ImageReward(fields), weights, weights)


def _is_unused(name: str) -> bool:
    """Whether a weight is BLIP's own and no part of a reward."""
    return name.startswith(("vision_proj.", "text_proj.")) or name == "text_encoder.embeddings.position_ids"


def _hpsv3(config: ConvertConfig, tensors: Weights, base: Path, making: Path) -> Made:
    """A Qwen2-VL with a token more, its images at one size, and the instruction that it was trained to read."""
    parts = ("INSTRUCTION", "prompt_with_special_token")
    texts = _read_texts(config.instruction, "data_collator_qwen.py")
    (making / INSTRUCTION).write_text(_instruction(config.instruction, texts, parts, (REWARD_TOKEN,)))
    return _rewarded(HpsV3, tensors, base, making)


def _editreward(config: ConvertConfig, tensors: Weights, base: Path, making: Path) -> Made:
    """A Qwen2.5-VL with a token more, its images at one size, and the instruction of each of its heads."""
    texts = dict(_read_texts(config.instruction, "prompts.py"))
    texts |= _read_texts(str(Path(config.instruction or "").with_name(COLLATOR)), COLLATOR)
    for file, name in zip(INSTRUCTIONS, EDITREWARD, strict=True):
        parts = (name, "prompt_with_special_token")
        (making / file).write_text(_instruction(config.instruction, texts, parts, (REWARD_TOKEN,)))
    return _rewarded(EditReward, tensors, base, making)


def _rewarded(network: Callable[[Any], nn.Module], tensors: Weights, base: Path, making: Path) -> Made:
    """A Qwen-VL that rates at one token, all images at one size."""
    weights = {name: tensor for name, tensor in _renamed(tensors, QWEN_NAMES).items() if name != "lm_head.weight"}
    fields = _token_reward(base, making, (REWARD_TOKEN,))
    images = json.loads((base / "preprocessor_config.json").read_text())
    size = {"shortest_edge": PIXELS, "longest_edge": PIXELS}
    images |= {"min_pixels": PIXELS, "max_pixels": PIXELS} | ({"size": size} if "size" in images else {})
    (making / "preprocessor_config.json").write_text(json.dumps(images, indent=1))
    with torch.device("meta"):
        made = network(fields)
    fields.architectures = [type(made).__name__]
    fields.save_pretrained(making)
    return Made(made, weights, weights)


def _videoalign(config: ConvertConfig, tensors: Weights, base: Path, making: Path) -> Made:
    """A Qwen2-VL with three tokens more and its adapter merged, and how its release looks at videos and scores them."""
    source = Path(config.weights).expanduser().absolute().parent.parent / RELEASED_SETTINGS
    settings = _read_settings(source)
    template = ("DETAILED_PROMPT_WITH_SPECIAL_TOKEN",)
    texts = _read_texts(config.instruction, "prompt_template.py")
    (making / INSTRUCTION).write_text(_instruction(config.instruction, texts, template, tuple(RATED.values())))
    merged = {name: tensor for name, tensor in _merged(tensors, settings.scaling).items() if name != "lm_head.weight"}
    weights = _renamed(merged, QWEN_NAMES)
    fields = _token_reward(base, making, tuple(RATED.values()))
    shutil.copy(base / "preprocessor_config.json", making)
    fields.reward_heads = len(weights.get("rm_head.weight", ()))
    if fields.reward_heads not in (1, len(RATED)):
        raise ModelError(
            f"{config.weights}: expected rm_head.weight of 1 row or {len(RATED)}, found {fields.reward_heads}"
        )
    fields.reward_means, fields.reward_stds = settings.means, settings.stds
    fields.max_frame_pixels = settings.max_frame_pixels
    fields.architectures = [VideoReward.__name__]
    fields.save_pretrained(making)
    with torch.device("meta"):
        return Made(VideoReward(fields), weights, weights)


class VideoAlignSettings(NamedTuple):
    """What the release's model_config.json says."""

    scaling: Callable[[int], float]
    """By the adapter's rank, what it is multiplied with."""
    max_frame_pixels: int
    means: list[float]
    stds: list[float]


def _read_settings(file: Path) -> VideoAlignSettings:
    """Raises ModelError for a model that looks at videos, or is asked, in another way than the release."""
    if not file.is_file():
        raise ModelError(f"{file}: no such file; keep the weights where the release has them, in a folder below it")
    with readable_load(file.parent, file.name):
        settings = json.loads(file.read_text())
        data, adapter = settings["data_config"], settings["peft_lora_config"]
        scores = settings.get("inference_config") or {}
        alpha, root = float(adapter["lora_alpha"]), bool(adapter.get("use_rslora"))
        found = {"fps": data["fps"], "num_frames": data.get("num_frames"), "eval_dim": data["eval_dim"]}
        found |= {name: data[name] for name in ("sample_type", "prompt_template_type")}
        means, stds = (
            [float(scores.get(f"{dim}_{name}", empty)) for dim in VIDEOALIGN["eval_dim"]]
            for name, empty in (("mean", 0), ("std", 1))
        )
        most = int(data["max_frame_pixels"])
    other = [f"{name}={value!r}" for name, value in found.items() if value != VIDEOALIGN[name]]
    if other:
        raise ModelError(f"{file}: {', '.join(other)}, where the release has {VIDEOALIGN}; only the release is served")
    return VideoAlignSettings(lambda rank: alpha / (rank**0.5 if root else rank), most, means, stds)


def _merged(tensors: Weights, scaling: Callable[[int], float]) -> Weights:
    """The weights of a network of peft's with its adapter in them, in float32, as a bfloat16 would round it away."""
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


def _token_reward(base: Path, making: Path, tokens: Sequence[str]) -> Any:
    """The configuration of a Qwen2-VL whose tokenizer has `tokens` more; writes the tokenizer and its template."""
    fields, tokenizer = _base_config(base), load_tokenizer(base)
    tokenizer.add_special_tokens({"additional_special_tokens": [*tokens]}, replace_extra_special_tokens=False)
    fields.text_config.vocab_size = len(tokenizer)
    for file in base.glob("*chat_template*"):
        shutil.copy(file, making)
    tokenizer.save_pretrained(making)
    return fields


def _read_texts(file: str | None, released: str) -> dict[str, Any]:
    """The constants of the release's source by their names; it is parsed and not run."""
    if file is None or not Path(file).is_file():
        raise ModelError(f"instruction: expected the release's file {released}; set instruction=PATH")
    try:
        statements = ast.parse(Path(file).read_text()).body
    except (SyntaxError, ValueError) as error:
        raise ModelError(f"{file}: not Python source ({error}); expected the release's {released}") from error
    return {
        target.id: statement.value.value
        for statement in statements
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _instruction(file: str | None, texts: Mapping[str, Any], names: Sequence[str], tokens: Sequence[str]) -> str:
    """The texts of these names, one after the other; raises ModelError where they are not an instruction's."""
    instruction = "".join(str(texts.get(name, "")) for name in names)
    if any(instruction.count(mark) != 1 for mark in (PROMPT, *tokens)):
        raise ModelError(f"{file}: expected {' and '.join(names)} with {', '.join((PROMPT, *tokens))}, each once")
    return instruction


def _renamed(tensors: Mapping[str, torch.Tensor], patterns: Sequence[tuple[str, str]]) -> Weights:
    return {renamed(name, patterns): tensor for name, tensor in tensors.items()}


RELEASES: Mapping[Release, Callable[[ConvertConfig, Weights, Path, Path], Made]] = {
    "open_clip": _open_clip,
    "pyramid_clip": _pyramid_clip,
    "imagereward": _image_reward,
    "hpsv3": _hpsv3,
    "videoalign": _videoalign,
    "editreward": _editreward,
}
