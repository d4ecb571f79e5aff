"""Qwen-VL reward models that read rewards at special tokens in the instruction: HPSv3, VideoAlign and EditReward."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import interpolate
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen2_5_VLConfig, Qwen2VLConfig, Qwen3VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel, Qwen2_5_VLPreTrainedModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel, Qwen2VLPreTrainedModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel, Qwen3VLPreTrainedModel

from plumbline.operators.base.batches import call_in_batches
from plumbline.operators.base.errors import ModelError, RowError, UnprocessableRowError
from plumbline.operators.models.calls import ComparisonResult, Measure, Pair, PixelRule
from plumbline.operators.models.checkpoints.parts import CONVERT_AGAIN_REMEDY
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.loaded import LoadedImageModel
from plumbline.operators.models.processing import load_chat_tokenizer
from plumbline.plugins.reward_models.token_rewards import EDIT_INSTRUCTION_FILES, INSTRUCTION_FILE

PROMPT_PLACEHOLDER = "{text_prompt}"
"""Placeholder for the prompt in an instruction file."""
REWARD_TOKEN = "<|Reward|>"
"""Reward token of HPSv3 and EditReward."""
HIDDEN_WIDTHS = (1024, 16)
"""Widths of the hidden layers in the heads of HPSv3 and EditReward."""
MEAN_INDEX = 0
"""Index of a reward's mean in the output of a head. The next value is the standard deviation."""


class Pixels(NamedTuple):
    """An image or video as processed by Qwen2-VL's processor."""

    patches: torch.Tensor
    """Pixels as bytes (frames, 3, height, width), before they are divided into patches."""
    grid: torch.Tensor
    """Number of patches in time, height and width; shape (3,)."""


ImageEmbeddings = tuple[torch.Tensor, ...]
"""Embeddings (tokens, width) of the images or videos in a conversation. They replace the embeddings of their tokens."""


def make_reward_head(width: int) -> nn.Sequential:
    """Return a head that maps a hidden state of this width to a reward's mean and standard deviation."""
    first, second = HIDDEN_WIDTHS
    return nn.Sequential(
        nn.Linear(width, first),
        nn.ReLU(),
        nn.Identity(),  # in place of dropout, so that the weights have the released names
        nn.Linear(first, second),
        nn.ReLU(),
        nn.Linear(second, 2),
    )


class TokenReward(LoadedImageModel):
    """Base class of models that serve the `similarity` call by reading rewards at special tokens of the instruction.

    Each image is encoded once. The instruction is processed for every pair of image and prompt.
    """

    input_kind: ClassVar[Literal["image", "video"]] = "image"
    reward_tokens: ClassVar[tuple[str, ...]] = (REWARD_TOKEN,)
    """Tokens whose hidden states contain the rewards, in the order of each instruction."""
    instruction_files: ClassVar[tuple[str, ...]] = (INSTRUCTION_FILE,)
    instructions: Sequence[str]
    """Texts of the instruction files. Each text is used in a separate conversation, with {text_prompt} replaced by the
    prompt.
    """

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.reward_ids = torch.tensor(self.tokenizer.convert_tokens_to_ids(list(self.reward_tokens)))
        self.image_token_id = int(getattr(self.model.config, f"{self.input_kind}_token_id"))

    @classmethod
    def load(cls, model: ResolvedModel[Any], network: Any = None) -> Self:
        loaded = super().load(model, network)
        folder = model.folder("checkpoint")
        loaded.instructions = [(folder / file).read_text() for file in cls.instruction_files]
        return loaded

    @classmethod
    def load_tokenizer(cls, model: ResolvedModel[Any]) -> Any:
        tokenizer = load_chat_tokenizer(model)
        for token in cls.reward_tokens:
            if token not in tokenizer.get_vocab():
                raise ModelError(f"{model.folder('tokenizer')}: the tokenizer has no {token}; {CONVERT_AGAIN_REMEDY}")
        return tokenizer

    @abstractmethod
    def compute_rewards(self, states: torch.Tensor) -> list[ComparisonResult]:
        """Compute the reward of each pair from the hidden states (pairs, reward tokens, width) at its reward tokens.

        If there are several instructions, their reward tokens are concatenated in order.
        """

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> tuple[Pixels, ...]:
        """Return the image as patches after resizing it with the checkpoint's processor."""
        return self.preprocess_several([image])

    def preprocess_several(self, images: Sequence[Image.Image]) -> tuple[Pixels, ...]:
        """Return each image of a sequence as patches; the images are resized separately."""
        made = [self.processor(images=image, return_tensors="pt") for image in images]
        return tuple(Pixels(self.pixels.pin(each["pixel_values"]), each["image_grid_thw"][0]) for each in made)

    def encode(self, pixels: Sequence[tuple[Pixels, ...]]) -> list[ImageEmbeddings]:
        """Return the embeddings of each item's images or video, on the device."""
        with torch.inference_mode():
            patches = self.pixels([each.patches for shown in pixels for each in shown])
            grids = torch.stack([each.grid for shown in pixels for each in shown]).to(patches.device)
            read = getattr(self.model.model, f"get_{self.input_kind}_features")
            states = iter(read(patches, grids).pooler_output)
            return [tuple(next(states) for _ in shown) for shown in pixels]

    def compare(
        self, features: Sequence[ImageEmbeddings], pairs: Sequence[Pair], measure: Measure = "reward"
    ) -> list[ComparisonResult]:
        """Return the reward of each pair of images and prompt. Prompts are never truncated."""
        asked = [
            (features[pair.image], read.replace(PROMPT_PLACEHOLDER, pair.text))
            for pair in pairs
            for read in self.instructions
        ]
        read = [(self._tokenize_conversation(text, embeddings), embeddings) for embeddings, text in asked]
        states = call_in_batches(self._compute_states, read, [len(ids) for ids, _ in read], size=self.pair_batch)
        if not states:
            return []
        with torch.inference_mode():
            return self.compute_rewards(torch.cat(states).view(len(pairs), -1, states[0].shape[-1]))

    def _tokenize_conversation(self, text: str, embeddings: ImageEmbeddings) -> torch.Tensor:
        """Return a conversation's token ids (tokens,), with the image token repeated once per image embedding.

        Raises UnprocessableRowError if the prompt contains an image token or a reward token.
        """
        content = [*({"type": self.input_kind} for _ in embeddings), {"type": "text", "text": text}]
        turns = [{"role": "user", "content": content}]
        conversation = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        ids = torch.tensor(self.tokenizer(conversation, add_special_tokens=False).input_ids)
        marks = [(self.image_token_id, len(embeddings), f"the {self.input_kind}'s")]
        marks += [(mark, 1, "the reward's") for mark in self.reward_ids.tolist()]
        for mark, count, name in marks:
            if int((ids == mark).sum()) != count:
                raise UnprocessableRowError(
                    RowError("request_refused", f"the prompt contains {name} token; change the prompt's text")
                )
        repeats = torch.ones_like(ids)
        repeats[ids == self.image_token_id] = torch.tensor([len(states) for states in embeddings])
        return ids.repeat_interleave(repeats)

    def _compute_states(self, read: Sequence[tuple[torch.Tensor, ImageEmbeddings]]) -> list[torch.Tensor]:
        """Return the hidden states (reward tokens, width) at the reward tokens of each conversation.

        Conversations are padded on the right. The models were trained without Qwen2-VL's three-dimensional positions:
        they do not pass a grid to the language model, so image tokens are numbered consecutively, like words.
        """
        device, model = self.model.device, self.model.model
        mask = pad_sequence([torch.ones_like(ids) for ids, _ in read], batch_first=True).to(device)
        ids = pad_sequence([ids for ids, _ in read], batch_first=True).to(device)
        places = (ids == self.image_token_id) & mask.bool()
        embedded = model.get_input_embeddings()(ids)
        embedded[places] = torch.cat([states for _, embeddings in read for states in embeddings]).to(embedded.dtype)
        positions = torch.arange(ids.shape[1], device=device).expand_as(ids)
        states = model.language_model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=positions, use_cache=False
        ).last_hidden_state
        at_rewards = states[torch.isin(ids, self.reward_ids.to(device)) & mask.bool()]
        return list(at_rewards.view(len(read), len(self.reward_tokens), -1))


class _EncodedImage(NamedTuple):
    """An image as seen by the vision tower."""

    states: torch.Tensor
    """Embeddings of its tokens, followed by the states that are added in the first layers of the language model;
    shape (tokens, width * (1 + layers)).
    """
    grid: torch.Tensor
    """Number of patches in time, height and width; shape (3,), on the CPU."""


class Qwen3TokenReward(TokenReward):
    """Base class of the models on Qwen3-VL.

    They were trained with Qwen3-VL's own numbering of image tokens, and with the states that its vision tower adds in
    the first layers of the language model.
    """

    def encode(self, pixels: Sequence[tuple[Pixels, ...]]) -> list[Any]:
        """Return the vision tower's states for each item's image, on the device."""
        with torch.inference_mode():
            patches = self.pixels([each.patches for shown in pixels for each in shown])
            grids = torch.stack([each.grid for shown in pixels for each in shown])
            seen = self.model.model.get_image_features(patches, grids.to(patches.device))
            layers = [seen.pooler_output, *seen.deepstack_features]
            images = iter(
                _EncodedImage(torch.cat(states, dim=-1), grid) for *states, grid in zip(*layers, grids, strict=True)
            )
            return [tuple(next(images) for _ in shown) for shown in pixels]

    def _tokenize_conversation(self, text: str, embeddings: Any) -> torch.Tensor:
        return super()._tokenize_conversation(text, tuple(image.states for image in embeddings))

    def _compute_states(self, read: Sequence[tuple[torch.Tensor, Any]]) -> list[torch.Tensor]:
        """Return the hidden states (reward tokens, width) at the reward tokens of each conversation.

        Conversations are padded on the right. Image tokens are numbered by row and column, as in Qwen3-VL itself.
        """
        device, model = self.model.device, self.model.model
        mask = pad_sequence([torch.ones_like(ids) for ids, _ in read], batch_first=True).to(device)
        ids = pad_sequence([ids for ids, _ in read], batch_first=True).to(device)
        places = (ids == self.image_token_id) & mask.bool()
        images = [image for _, shown in read for image in shown]
        embedded = model.get_input_embeddings()(ids)
        seen = torch.cat([image.states for image in images]).to(embedded.dtype)
        embeddings, *added = seen.tensor_split(seen.shape[-1] // embedded.shape[-1], dim=-1)
        embedded[places] = embeddings
        positions, _ = model.get_rope_index(
            ids,
            mm_token_type_ids=places.int(),
            image_grid_thw=torch.stack([image.grid for image in images]).to(device),
            attention_mask=mask,
        )
        states = model.language_model(
            inputs_embeds=embedded,
            attention_mask=mask,
            position_ids=positions,
            visual_pos_masks=places,
            deepstack_visual_embeds=added,
            use_cache=False,
        ).last_hidden_state
        at_rewards = states[torch.isin(ids, self.reward_ids.to(device)) & mask.bool()]
        return list(at_rewards.view(len(read), len(self.reward_tokens), -1))


class HpsV3(Qwen2VLPreTrainedModel):  # type: ignore[misc]
    """The network of HPSv3 (Ma et al. 2025).

    Weights are named as in transformers' Qwen2-VL, except for the head, which keeps its published names.
    """

    config: Qwen2VLConfig
    _keep_in_fp32_modules_strict: ClassVar = {"rm_head"}

    def __init__(self, config: Qwen2VLConfig) -> None:
        super().__init__(config)
        self.model = Qwen2VLModel(config)
        self.rm_head = make_reward_head(config.text_config.hidden_size)
        self.post_init()


class HpsV3Similarity(TokenReward):
    """A loaded HPSv3, which serves the `similarity` call."""

    architecture = f"{__name__}:HpsV3"

    def compute_rewards(self, states: torch.Tensor) -> list[ComparisonResult]:
        """Return the mean of each reward."""
        means: list[float] = self.model.rm_head(states[:, 0].float())[:, MEAN_INDEX].tolist()
        return [ComparisonResult(mean, truncated=False) for mean in means]


VIDEO_RATINGS = {
    "visual_quality": "<|VQ_reward|>",
    "motion_quality": "<|MQ_reward|>",
    "text_alignment": "<|TA_reward|>",
}
"""Token of each rating, by the rating's name and in the order of the published instruction."""
MIN_TOKENS_PER_FRAME = 128
"""Minimum number of tokens per frame: VIDEO_MIN_PIXELS in upstream's vision_process.py, divided by a token's pixels.
"""


class VideoReward(Qwen2VLPreTrainedModel):  # type: ignore[misc]
    """The network of VideoAlign (Liu et al. 2025): a Qwen2-VL that includes the merged adapter.

    Weights have transformers' names. In addition to Qwen2-VL's own fields, config.json contains `reward_heads` (1 or
    3), `reward_means` and `reward_stds`.
    """

    config: Qwen2VLConfig

    def __init__(self, config: Qwen2VLConfig) -> None:
        super().__init__(config)
        self.model = Qwen2VLModel(config)
        self.rm_head = nn.Linear(config.text_config.hidden_size, config.reward_heads, bias=False)
        self.post_init()


class VideoRewardSimilarity(TokenReward):
    """A loaded VideoAlign, which serves the `similarity` call.

    The similarity is the sum of three standardized scores.
    """

    architecture = f"{__name__}:VideoReward"
    input_kind = "video"
    reward_tokens = tuple(VIDEO_RATINGS.values())

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> tuple[Pixels, ...]:
        """Return an image as a video that repeats a single frame."""
        return self.preprocess_video([image], 0.0)

    def preprocess_video(self, frames: Sequence[Image.Image], seconds: float) -> tuple[Pixels, ...]:
        """Return the frames of one video as patches, resized before the processor is called, as upstream does.

        All frames are resized to the same size, which depends on the first frame. If the number of frames is odd, the
        last frame is repeated. `seconds` is not used.
        """
        processor = self.processor
        side = processor.patch_size * processor.merge_size
        height, width = smart_resize(
            frames[0].height,
            frames[0].width,
            factor=side,
            min_pixels=MIN_TOKENS_PER_FRAME * side**2,
            max_pixels=self.model.config.max_frame_pixels,
        )
        shown = [_resize_frame(frame, height, width) for frame in frames]
        shown += shown[-1:] * (-len(shown) % processor.temporal_patch_size)
        pinned = self.pixels.pin(processor(images=shown, do_resize=False, return_tensors="pt")["pixel_values"])
        times = len(shown) // processor.temporal_patch_size
        grid = torch.tensor([times, height // processor.patch_size, width // processor.patch_size])
        return (Pixels(pinned, grid),)

    def compute_rewards(self, states: torch.Tensor) -> list[ComparisonResult]:
        """Return the sum of each video's standardized scores. Each of three heads is read at its own token."""
        heads = self.model.rm_head(states)
        logits = heads[..., 0] if heads.shape[2] == 1 else heads.diagonal(dim1=1, dim2=2)
        means, stds = (torch.tensor(getattr(self.model.config, f"reward_{name}")) for name in ("means", "stds"))
        scores = (logits.double().cpu() - means) / stds
        rated = [dict(zip(VIDEO_RATINGS, row, strict=True)) for row in scores.tolist()]
        return [ComparisonResult(sum(ratings.values()), truncated=False, ratings=ratings) for ratings in rated]


def _resize_frame(frame: Image.Image, height: int, width: int) -> Image.Image:
    """Resize a frame in the same way as torchvision resizes byte tensors.

    The resizing is bicubic with antialiasing, computed in floats, and then rounded.
    """
    pixels = torch.from_numpy(np.asarray(frame).copy()).permute(2, 0, 1)[None].float()
    resized = interpolate(pixels, (height, width), mode="bicubic", antialias=True, align_corners=False)
    return Image.fromarray(resized[0].clamp(0, 255).round().byte().permute(1, 2, 0).numpy())


EDIT_RATINGS = ("instruction_following", "visual_quality")
"""Names of the ratings, in the order of the heads and their instructions."""


def _make_edit_heads(width: int) -> nn.ModuleDict:
    """Return a head for each rating, with its published name."""
    return nn.ModuleDict({f"head_{place}": make_reward_head(width) for place in range(len(EDIT_RATINGS))})


class EditReward(Qwen2_5_VLPreTrainedModel):  # type: ignore[misc]
    """The network of EditReward (Wu et al. 2025). It has two heads; each is read at the token in its own instruction.

    Weights are named as in transformers' Qwen2.5-VL, except for the heads, which keep their published names.
    """

    config: Qwen2_5_VLConfig
    _keep_in_fp32_modules_strict: ClassVar = {"rm_heads"}

    def __init__(self, config: Qwen2_5_VLConfig) -> None:
        super().__init__(config)
        self.model = Qwen2_5_VLModel(config)
        self.rm_heads = _make_edit_heads(config.text_config.hidden_size)
        self.post_init()


class EditRewardQwen3(Qwen3VLPreTrainedModel):  # type: ignore[misc]
    """The network of EditReward on Qwen3-VL, with the same heads. Weights are named as in EditReward."""

    config: Qwen3VLConfig
    _keep_in_fp32_modules_strict: ClassVar = {"rm_heads"}

    def __init__(self, config: Qwen3VLConfig) -> None:
        super().__init__(config)
        self.model = Qwen3VLModel(config)
        self.rm_heads = _make_edit_heads(config.text_config.hidden_size)
        self.post_init()


class EditRewardSimilarity(TokenReward):
    """A loaded EditReward, which serves the `similarity` call.

    A conversation has a source image and the edited image.
    """

    architecture = f"{__name__}:EditReward"
    instruction_files = EDIT_INSTRUCTION_FILES

    def compute_rewards(self, states: torch.Tensor) -> list[ComparisonResult]:
        """Return the average of the two heads' mean ratings, as upstream does."""
        heads = self.model.rm_heads.values()
        means = torch.stack([head(states[:, place].float())[:, MEAN_INDEX] for place, head in enumerate(heads)], dim=1)
        rated = [dict(zip(EDIT_RATINGS, row, strict=True)) for row in means.tolist()]
        pooled = means.mean(dim=1).tolist()
        return [ComparisonResult(mean, truncated=False, ratings=row) for mean, row in zip(pooled, rated, strict=True)]


class EditRewardQwen3Similarity(EditRewardSimilarity, Qwen3TokenReward):
    """A loaded EditReward on Qwen3-VL, which serves the `similarity` call."""

    architecture = f"{__name__}:EditRewardQwen3"
