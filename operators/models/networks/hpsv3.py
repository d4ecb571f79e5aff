"""The network of HPSv3, Qwen2-VL with a regression at one token of its own, and what it says of image and prompt."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from PIL import Image
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen2VLConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel, Qwen2VLPreTrainedModel

from plumbline.operators.batches import in_batches
from plumbline.operators.errors import HopelessRow, ModelError, RowError
from plumbline.operators.models.calls import Compared, Measure, Pair, PixelRule
from plumbline.operators.models.checkpoints.parts import AGAIN, INSTRUCTION
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.loaded import LoadedImageModel
from plumbline.operators.models.processing import load_chat_tokenizer

HIDDEN = (1024, 16)
"""Widths of the head's layers before the last."""
MEAN = 0
"""The head gives the mean of a reward and its deviation."""
REWARD_TOKEN = "<|Reward|>"
PROMPT = "{text_prompt}"
"""Where the prompt stands in what the model was trained to read."""


class HpsV3(Qwen2VLPreTrainedModel):  # type: ignore[misc]
    """Ma et al. 2025: the weights are named as transformers names Qwen2-VL's, the head as in the release."""

    config: Qwen2VLConfig
    _keep_in_fp32_modules_strict: ClassVar = {"rm_head"}

    def __init__(self, config: Qwen2VLConfig) -> None:
        super().__init__(config)
        self.model = Qwen2VLModel(config)
        first, second = HIDDEN
        self.rm_head = nn.Sequential(
            nn.Linear(config.text_config.hidden_size, first),
            nn.ReLU(),
            nn.Identity(),  # the dropout of its training counts in the names of the weights
            nn.Linear(first, second),
            nn.ReLU(),
            nn.Linear(second, 2),
        )
        self.post_init()


class Pixels(NamedTuple):
    """One image as Qwen2-VL's processor leaves it."""

    patches: torch.Tensor
    """As bytes, before they are cut: (1, 3, height, width)."""
    grid: torch.Tensor
    """Its patches in time, height and width, (3,)."""


class HpsV3Similarity(LoadedImageModel):
    """The `similarity` call served by HPSv3; its images are encoded once, its instruction is read for every pair."""

    architecture = f"{__name__}:HpsV3"
    instruction: str
    """What the model was trained to read, {text_prompt} being the prompt."""

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.reward_id = int(self.tokenizer.convert_tokens_to_ids(REWARD_TOKEN))
        self.image_id = int(self.model.config.image_token_id)

    @classmethod
    def load(cls, model: ResolvedModel[Any], network: Any = None) -> Self:
        loaded = super().load(model, network)
        loaded.instruction = (model.folder("checkpoint") / INSTRUCTION).read_text()
        return loaded

    @classmethod
    def load_tokenizer(cls, model: ResolvedModel[Any]) -> Any:
        tokenizer = load_chat_tokenizer(model)
        if REWARD_TOKEN not in tokenizer.get_vocab():
            raise ModelError(f"{model.folder('tokenizer')}: the tokenizer has no {REWARD_TOKEN}; {AGAIN}")
        return tokenizer

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> Pixels:
        """The image as its patches, of a number of pixels that the checkpoint's processor says."""
        inputs = self.processor(images=image, return_tensors="pt")
        return Pixels(self.pixels.held(inputs["pixel_values"]), inputs["image_grid_thw"][0])

    def encode(self, pixels: Sequence[Pixels]) -> list[torch.Tensor]:
        """What the language half reads in the place of each image: states (tokens, width), where the model is."""
        with torch.inference_mode():
            patches = self.pixels([each.patches for each in pixels])
            grids = torch.stack([each.grid for each in pixels]).to(patches.device)
            return list(self.model.model.get_image_features(patches, grids).pooler_output)

    def compare(
        self, features: Sequence[torch.Tensor], pairs: Sequence[Pair], measure: Measure = "reward"
    ) -> list[Compared]:
        """The mean of each pair's reward; nothing is cut."""
        read = [(self._ids(pair.text, features[pair.image]), features[pair.image]) for pair in pairs]
        rewards = in_batches(self._rewards, read, [len(ids) for ids, _ in read], size=self.pair_batch)
        return [Compared(reward, truncated=False) for reward in rewards]

    def _ids(self, text: str, image: torch.Tensor) -> torch.Tensor:
        """The conversation about one image, as tokens; raises HopelessRow where the prompt would be read as marks."""
        content = [{"type": "image"}, {"type": "text", "text": self.instruction.replace(PROMPT, text)}]
        turns = [{"role": "user", "content": content}]
        conversation = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        ids = torch.tensor(self.tokenizer(conversation, add_special_tokens=False).input_ids)
        for mark, name in ((self.image_id, "the image's"), (self.reward_id, "the reward's")):
            if int((ids == mark).sum()) != 1:
                raise HopelessRow(
                    RowError("request_refused", f"the prompt has {name} mark in it; change the prompt's text")
                )
        before, after = ids.tensor_split([int((ids == self.image_id).nonzero())])
        return torch.cat([before, after[:1].expand(len(image)), after[1:]])

    def _rewards(self, read: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
        """The reward of each conversation; they are padded on the right.

        The release was trained without Qwen2-VL's positions in time, row and column: it hands its language half no
        image grid, so an image's tokens are numbered one after the other, as words are.
        """
        device, model = self.model.device, self.model.model
        mask = pad_sequence([torch.ones_like(ids) for ids, _ in read], batch_first=True).to(device)
        ids = pad_sequence([ids for ids, _ in read], batch_first=True).to(device)
        places = (ids == self.image_id) & mask.bool()
        embedded = model.get_input_embeddings()(ids)
        embedded[places] = torch.cat([states for _, states in read]).to(embedded.dtype)
        positions = torch.arange(ids.shape[1], device=device).expand_as(ids)
        states = model.language_model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=positions, use_cache=False
        ).last_hidden_state
        at_reward = states[(ids == self.reward_id) & mask.bool()]
        rewards: list[float] = self.model.rm_head(at_reward.float())[:, MEAN].tolist()
        return rewards
