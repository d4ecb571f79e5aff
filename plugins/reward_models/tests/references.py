"""Reference scores of the plugin's reward models, computed with transformers' classes and upstream's formulas."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file
from torch.nn.functional import gelu, interpolate

from plugins.reward_models.tests import mps_release, tiny_rewards
from plumbline.operators.models.calls import Call, Measure, Pair
from tests.operators import tiny
from tests.operators.models.alike import IMAGE_BEFORE, IMAGES, Answer
from tests.operators.models.families.library import (
    Reference,
    load_image_processor,
    load_network,
    load_tokenizer,
    normalise,
    preprocess_image,
    select_measure,
)


def score_hpsv3(folder: Path, pair: Pair, measure: Measure) -> Answer:
    """Score an image in the same way as HPSv3's code.

    The reference is built from a Qwen2, Qwen2-VL's vision encoder and three linear layers. Like HPSv3's code, it
    numbers all tokens consecutively instead of by position in the image.
    """
    model = load_network("Qwen2VLForConditionalGeneration", folder).model
    head, words, image = (
        load_file(folder / "model.safetensors"),
        load_tokenizer(folder),
        preprocess_image(folder, pair.image),
    )
    read = tiny_rewards.INSTRUCTION.replace("{text_prompt}", pair.text)
    places = int(image["image_grid_thw"].prod()) // 4
    asked = f"<|im_start|>user\n<|vision_start|>{'<|image_pad|>' * places}<|vision_end|>{read}<|im_end|>\n"
    ids = words(asked + "<|im_start|>assistant\n", return_tensors="pt").input_ids
    embedded = model.get_input_embeddings()(ids)
    embedded[ids == words.convert_tokens_to_ids("<|image_pad|>")] = torch.cat(
        model.get_image_features(**image).pooler_output
    )
    states = build_qwen2(folder)(inputs_embeds=embedded).last_hidden_state[0]
    state = states[ids[0] == words.convert_tokens_to_ids("<|Reward|>")][0]
    for layer in (0, 3):
        state = (head[f"rm_head.{layer}.weight"] @ state + head[f"rm_head.{layer}.bias"]).relu()
    return Answer((), (float((head["rm_head.5.weight"] @ state + head["rm_head.5.bias"])[0]),))


def score_hpsv3_plus(folder: Path, pair: Pair, measure: Measure) -> Answer:
    return Answer((), (score_hpsv3_plus_iteration(folder, pair, 0.0),))


def score_hpsv3_plus_iteration(folder: Path, pair: Pair, iteration: float) -> float:
    """Score an image as in HPSv3++'s release (PlantPotatoOnMoon/HPSv3-PlusPlus 7bdbebc) in a batch of one.

    The network from transformers reads the whole conversation. The other layers are computed here from the
    weights in model.safetensors.
    """
    model, words = load_network("Qwen3VLForConditionalGeneration", folder).model, load_tokenizer(folder)
    weights = load_file(folder / "model.safetensors")
    original, factor = IMAGES[pair.image], tiny_rewards.HPSV3_PLUS_FIELDS["image_factor"]
    pixels = tiny_rewards.HPSV3_PLUS_FIELDS["image_pixels"]
    sides = [max(factor, round(side / factor) * factor) for side in original.size]
    scale = math.sqrt(pixels / (original.width * original.height))
    if sides[0] * sides[1] != pixels:
        turn = math.floor if sides[0] * sides[1] > pixels else math.ceil
        sides = [turn(side * scale / factor) * factor for side in original.size]
    image = load_image_processor(folder)(
        images=original.resize((sides[0], sides[1]), Image.Resampling.BICUBIC), return_tensors="pt"
    )
    places = int(image["image_grid_thw"].prod()) // 4
    read = tiny_rewards.INSTRUCTION.replace("{text_prompt}", pair.text)
    asked = f"<|im_start|>user\n<|vision_start|>{'<|image_pad|>' * places}<|vision_end|>{read}<|im_end|>\n"
    ids = words(asked + "<|im_start|>assistant\n", return_tensors="pt").input_ids
    kinds = (ids == words.convert_tokens_to_ids("<|image_pad|>")).int()
    states = model(input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=kinds, **image)
    pooled = states.last_hidden_state[0][ids[0] == words.convert_tokens_to_ids("<|Reward|>")][0]

    def apply(name: str, state: torch.Tensor) -> torch.Tensor:
        return weights[f"{name}.weight"] @ state + weights[f"{name}.bias"]

    capability = apply("cap_encoder.out_proj", apply("cap_encoder.proj", pooled)).sigmoid()
    condition = torch.cat([capability, torch.tensor([iteration])])
    condition = apply("cond_encoder.2", gelu(apply("cond_encoder.0", condition)))
    gamma, beta = apply("film_gen.2", apply("film_gen.0", condition).relu()).chunk(2)
    state = pooled * (1 + gamma) + beta
    for layer in (0, 3):
        state = apply(f"rm_head.{layer}", state).relu()
    return float(apply("rm_head.5", state)[0])


def score_editreward(folder: Path, pair: Pair, measure: Measure) -> Answer:
    """Return the mean of EditReward's two heads (TIGER-AI-Lab/EditReward edb027e, qwen2_5_vl_trainer.py).

    Each head is read at the token in its own instruction. The source image comes before the edited image. The network
    from transformers does not get the image grid, so it numbers the tokens consecutively.
    """
    model = load_network("Qwen2_5_VLForConditionalGeneration", folder).model

    def read(ids: torch.Tensor, places: torch.Tensor, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        embedded = model.get_input_embeddings()(ids)
        embedded[places] = model.visual(images["pixel_values"], images["image_grid_thw"]).pooler_output
        states: torch.Tensor = model(inputs_embeds=embedded, attention_mask=torch.ones_like(ids)).last_hidden_state
        return states

    return _score_edit(folder, pair, read)


def score_editreward_qwen3(folder: Path, pair: Pair, measure: Measure) -> Answer:
    """Return the mean of EditReward's two heads for one edit (TIGER-AI-Lab/EditReward edb027e, qwen3_vl_trainer.py).

    The network from transformers reads the whole conversation with its images, so it numbers the image tokens by row
    and column.
    """
    model = load_network("Qwen3VLForConditionalGeneration", folder).model

    def read(ids: torch.Tensor, places: torch.Tensor, images: Mapping[str, torch.Tensor]) -> torch.Tensor:
        given = {"attention_mask": torch.ones_like(ids), "mm_token_type_ids": places.int()}
        states: torch.Tensor = model(input_ids=ids, **given, **images).last_hidden_state
        return states

    return _score_edit(folder, pair, read)


def _score_edit(folder: Path, pair: Pair, read: Callable[..., torch.Tensor]) -> Answer:
    """Return the mean reward of an edit, from the hidden states that `read` returns for each instruction."""
    words = load_tokenizer(folder)
    shown = [
        load_image_processor(folder)(images=one, return_tensors="pt") for one in (IMAGE_BEFORE, IMAGES[pair.image])
    ]
    marks = [
        f"<|vision_start|>{'<|image_pad|>' * (int(one['image_grid_thw'].prod()) // 4)}<|vision_end|>" for one in shown
    ]
    images = {name: torch.cat([one[name] for one in shown]) for name in ("pixel_values", "image_grid_thw")}
    weights, means = load_file(folder / "model.safetensors"), []
    for head, instruction in enumerate(tiny_rewards.EDIT_INSTRUCTIONS):
        asked = f"<|im_start|>user\n{''.join(marks)}{instruction.replace('{text_prompt}', pair.text)}<|im_end|>\n"
        ids = words(asked + "<|im_start|>assistant\n", return_tensors="pt").input_ids
        states = read(ids, ids == words.convert_tokens_to_ids("<|image_pad|>"), images)[0]
        state = states[ids[0] == words.convert_tokens_to_ids("<|Reward|>")][0]
        for layer in (0, 3):
            name = f"rm_heads.head_{head}.{layer}"
            state = (weights[f"{name}.weight"] @ state + weights[f"{name}.bias"]).relu()
        name = f"rm_heads.head_{head}.5"
        means.append(float((weights[f"{name}.weight"] @ state + weights[f"{name}.bias"])[0]))
    return Answer((), (sum(means) / 2,))


def score_x_clip(folder: Path, pair: Pair, measure: Measure) -> Answer:
    return Answer((), (score_x_clip_video(folder, [IMAGES[pair.image]], pair.text, measure),))


def score_x_clip_video(folder: Path, frames: Sequence[Image.Image], text: str, measure: Measure = "cosine") -> float:
    """Score a video. `frames` contains as many frames as the network takes, or one frame to repeat."""
    model = load_network("XCLIPModel", folder)
    length = model.config.text_config.max_position_embeddings
    words = load_tokenizer(folder)([text], truncation=True, max_length=length, return_tensors="pt")
    seen = load_image_processor(folder)(images=list(frames), return_tensors="pt")["pixel_values"]
    video = seen.expand(model.config.vision_config.num_frames, -1, -1, -1)[None]
    said = model(input_ids=words.input_ids, attention_mask=words.attention_mask, pixel_values=video)
    return select_measure(said.video_embeds, said.text_embeds[0], said.logits_per_video, measure).numbers[0]


def score_videoalign(folder: Path, pair: Pair, measure: Measure) -> Answer:
    return Answer((), (sum(score_videoalign_video(folder, [IMAGES[pair.image]] * 2, pair.text)),))


def score_videoalign_video(folder: Path, frames: Sequence[Image.Image], text: str) -> list[float]:
    """Return VideoAlign's standardized scores for one video with an even number of frames.

    They are computed as in trainer.py, inference.py and vision_process.py (KwaiVGI/VideoAlign 219ab9d). Tokens are
    numbered as in HPSv3. If there are three heads, each is read at its own token. A single head is read at all three
    tokens.
    """
    model, words = load_network("Qwen2VLForConditionalGeneration", folder).model, load_tokenizer(folder)
    patches, grid = make_video_patches(frames, min_pixels=128 * 64, max_pixels=tiny_rewards.FRAME_PIXELS)
    read = tiny_rewards.VIDEO_INSTRUCTION.replace("{text_prompt}", text)
    asked = f"<|im_start|>user\n<|vision_start|>{'<image>' * (int(grid.prod()) // 4)}<|vision_end|>{read}<|im_end|>\n"
    ids = words(asked + "<|im_start|>assistant\n", return_tensors="pt").input_ids
    embedded = model.get_input_embeddings()(ids)
    embedded[ids == words.convert_tokens_to_ids("<image>")] = model.visual(patches, grid).pooler_output
    states = build_qwen2(folder)(inputs_embeds=embedded).last_hidden_state[0]
    head = load_file(folder / "model.safetensors")["rm_head.weight"]
    scores = []
    for place, name in enumerate(("VQ", "MQ", "TA")):
        state = states[ids[0] == words.convert_tokens_to_ids(f"<|{name}_reward|>")][0]
        logit = float((head @ state)[place if len(head) == 3 else 0])
        scores.append((logit - tiny_rewards.REWARD_MEANS[place]) / tiny_rewards.REWARD_STDS[place])
    return scores


def make_video_patches(
    frames: Sequence[Image.Image], *, min_pixels: int, max_pixels: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the frames as patches of 2 x 4 x 4, and the patch grid.

    The sides follow Qwen-VL's smart_resize: they are multiples of 8 pixels, and the number of pixels is between
    `min_pixels` and `max_pixels`. The pixels are those that torchvision computes for byte tensors.
    """
    width, height = frames[0].size
    sides = [max(8, round(side / 8) * 8) for side in (height, width)]
    if sides[0] * sides[1] > max_pixels:
        sides = [math.floor(side / math.sqrt(height * width / max_pixels) / 8) * 8 for side in (height, width)]
    elif sides[0] * sides[1] < min_pixels:
        sides = [math.ceil(side * math.sqrt(min_pixels / (height * width)) / 8) * 8 for side in (height, width)]
    video = torch.stack([torch.from_numpy(np.array(frame)) for frame in frames]).permute(0, 3, 1, 2).float()
    video = interpolate(video, sides, mode="bicubic", antialias=True).clamp(0, 255).round()
    mean, std = (torch.tensor(given)[:, None, None] for given in (tiny.IMAGE_MEAN, tiny.IMAGE_STD))
    times, rows, columns = len(frames) // 2, sides[0] // 4, sides[1] // 4
    cut = ((video / 255 - mean) / std).view(times, 2, 3, rows // 2, 2, 4, columns // 2, 2, 4)
    patches = cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(times * rows * columns, 96)
    return patches, torch.tensor([[times, rows, columns]])


def score_fga_blip2(folder: Path, pair: Pair, measure: Measure) -> Answer:
    return Answer((), (score_fga_blip2_tokens(folder, pair)[0],))


def score_fga_blip2_tokens(folder: Path, pair: Pair) -> tuple[float, list[float]]:
    """Return the overall score and the score of each token as in `element_score` (DYEvaLab/EvalMuse 0fa141b).

    The text is prepared by LAVIS's `blip_caption`; special tokens have a score, too.
    """
    model = load_network("Blip2ForImageTextRetrieval", folder)
    norm = model.vision_model.post_layernorm
    text = re.sub(r"\s{2,}", " ", re.sub(r"([.!\"()*#:;~])", " ", pair.text.lower())).rstrip("\n").strip(" ")
    words = load_tokenizer(folder)([" ".join(text.split(" ")[:50])], return_tensors="pt")
    pixels = preprocess_image(folder, pair.image)["pixel_values"]
    norm.eps = 1e-5  # ln_vision in LAVIS's blip2.py
    image_embeds = model.vision_model(pixels).last_hidden_state
    embedded = torch.cat(
        [
            model.query_tokens,
            model.embeddings.word_embeddings(words.input_ids)
            + model.embeddings.position_embeddings(torch.arange(words.input_ids.shape[1])),
        ],
        dim=1,
    )
    count = model.query_tokens.shape[1]
    output = model.qformer(embedded, query_length=count, encoder_hidden_states=image_embeds).last_hidden_state
    itm_scores = model.itm_head(output).softmax(dim=2)[0, :, 1]
    return float(itm_scores[:count].mean() * 4 + 1), itm_scores[count:].tolist()


def score_mps(folder: Path, pair: Pair, measure: Measure) -> Answer:
    """Score an image under the overall condition in the same way as MPS's evaluation scripts."""
    return Answer((), (score_mps_condition(folder, pair, mps_release.OVERALL_CONDITION),))


def score_mps_condition(folder: Path, pair: Pair, condition: str, threshold: float = mps_release.THRESHOLD) -> float:
    words = load_tokenizer(folder)
    options = {"max_length": words.model_max_length, "padding": "max_length", "truncation": True}
    ids = [words(text, return_tensors="pt", **options).input_ids for text in (pair.text, condition)]
    pixels = preprocess_image(folder, pair.image)["pixel_values"]
    return load_released_mps(folder).score(pixels, *ids, threshold)


def score_aesthetic(folder: Path, pair: Pair, measure: Measure) -> Answer:
    """Rate an image as in LAION's scripts: CLIP's preprocessing, a unit-length embedding, and linear layers.

    (LAION-AI/aesthetic-predictor 6d122ad, asthetics_predictor.ipynb; christophschuhmann/improved-aesthetic-predictor
    6934dd8, simple_inference.py, whose activations are commented out, and a0cec29, avaclipmlp_inf_wds-relu.py.)
    """
    model, weights = load_network("CLIPVisionModelWithProjection", folder), load_file(folder / "model.safetensors")
    original = IMAGES[pair.image]
    width, height = (tiny.IMAGE_SIDE * side // min(original.size) for side in original.size)
    left, top = (round((side - tiny.IMAGE_SIDE) / 2) for side in (width, height))
    square = original.resize((width, height), Image.Resampling.BICUBIC).crop(
        (left, top, left + tiny.IMAGE_SIDE, top + tiny.IMAGE_SIDE)
    )
    embedding = model(normalise(square)).image_embeds[0].double().numpy()
    state = torch.from_numpy(embedding / np.linalg.norm(embedding)).float()
    for layer in range(len(model.config.head_widths)):
        state = state.clamp(min=0) if layer and model.config.head_relu else state
        state = weights[f"head.{layer}.weight"] @ state + weights[f"head.{layer}.bias"]
    return Answer((), (float(state),))


@cache
def load_released_mps(folder: Path) -> mps_release.ReleasedMps:
    config = transformers.CLIPConfig.from_pretrained(folder)
    return mps_release.load_weights(config, load_file(folder / "model.safetensors"))


@cache
def build_qwen2(folder: Path) -> Any:
    half = load_network("Qwen2VLForConditionalGeneration", folder).model.language_model
    fields = half.config.to_dict()
    rope = {"rope_type": "default", "rope_theta": fields["rope_parameters"]["rope_theta"]}
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    shape = {name: fields[name] for name in (*names, "num_key_value_heads", "hidden_act", "rms_norm_eps")}
    model = transformers.Qwen2Model(transformers.Qwen2Config(**shape, rope_parameters=rope))
    model.load_state_dict(half.state_dict())
    return model.eval()


REFERENCES: Mapping[tuple[str, Call], Reference] = {
    ("hpsv3", "similarity"): score_hpsv3,
    ("editreward", "similarity"): score_editreward,
    ("editreward_qwen3", "similarity"): score_editreward_qwen3,
    ("videoalign", "similarity"): score_videoalign,
    ("videoalign_three_heads", "similarity"): score_videoalign,
    ("x_clip", "similarity"): score_x_clip,
    ("fga_blip2", "similarity"): score_fga_blip2,
    ("hpsv3_plus", "similarity"): score_hpsv3_plus,
    ("mps", "similarity"): score_mps,
    ("laion_aesthetic", "similarity"): score_aesthetic,
    ("laion_aesthetic_v1", "similarity"): score_aesthetic,
}
"""Reference functions by kind of checkpoint and call."""
