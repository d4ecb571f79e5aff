"""Rewards that a Qwen-VL gives at tokens of its own, which stand in its instruction: HPSv3, VideoAlign, EditReward."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from PIL import Image
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from plumbline.operators.base.batches import in_batches
from plumbline.operators.base.errors import HopelessRow, ModelError, RowError
from plumbline.operators.models.calls import Compared, Measure, Pair, PixelRule
from plumbline.operators.models.checkpoints.parts import AGAIN, INSTRUCTION
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.loaded import LoadedImageModel
from plumbline.operators.models.processing import load_chat_tokenizer

PROMPT = "{text_prompt}"
"""Where the prompt stands in what the model was trained to read."""
REWARD_TOKEN = "<|Reward|>"
"""Of HPSv3 and EditReward."""
HIDDEN = (1024, 16)
"""Widths of their heads' layers before the last."""
MEAN = 0
"""Such a head gives the mean of a reward and its deviation."""


class Pixels(NamedTuple):
    """One image or video as Qwen2-VL's processor leaves it."""

    patches: torch.Tensor
    """As bytes, before they are cut: (frames, 3, height, width)."""
    grid: torch.Tensor
    """Its patches in time, height and width, (3,)."""


Seen = tuple[torch.Tensor, ...]
"""What the language half reads in the place of each image or video of a question: states (tokens, width)."""


def reward_head(width: int) -> nn.Sequential:
    """From a state of this width to a reward's mean and deviation."""
    first, second = HIDDEN
    return nn.Sequential(
        nn.Linear(width, first),
        nn.ReLU(),
        nn.Identity(),  # the dropout of its training counts in the names of the weights
        nn.Linear(first, second),
        nn.ReLU(),
        nn.Linear(second, 2),
    )


class TokenReward(LoadedImageModel):
    """The `similarity` call of such a network; what it sees is encoded once, its instruction is read for every pair."""

    sees: ClassVar[Literal["image", "video"]] = "image"
    reward_tokens: ClassVar[tuple[str, ...]] = (REWARD_TOKEN,)
    """In the order in which they stand in each instruction."""
    instruction_files: ClassVar[tuple[str, ...]] = (INSTRUCTION,)
    instructions: Sequence[str]
    """What the model was trained to read, {text_prompt} being the prompt: of each file, in a conversation of its own.
    """

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.reward_ids = torch.tensor(self.tokenizer.convert_tokens_to_ids(list(self.reward_tokens)))
        self.seen_id = int(getattr(self.model.config, f"{self.sees}_token_id"))

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
                raise ModelError(f"{model.folder('tokenizer')}: the tokenizer has no {token}; {AGAIN}")
        return tokenizer

    @abstractmethod
    def rewards(self, states: torch.Tensor) -> list[Compared]:
        """What the heads make of the states (pairs, reward tokens, width) of each pair's reward tokens, those of one
        instruction after those of the other.
        """

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> tuple[Pixels, ...]:
        """The image as its patches, of a number of pixels that the checkpoint's processor says."""
        return self.preprocess_several([image])

    def preprocess_several(self, images: Sequence[Image.Image]) -> tuple[Pixels, ...]:
        """Images that stand one after another, each by itself."""
        made = [self.processor(images=image, return_tensors="pt") for image in images]
        return tuple(Pixels(self.pixels.held(each["pixel_values"]), each["image_grid_thw"][0]) for each in made)

    def encode(self, pixels: Sequence[tuple[Pixels, ...]]) -> list[Seen]:
        """What the language half reads of what each question shows, on the device."""
        with torch.inference_mode():
            patches = self.pixels([each.patches for shown in pixels for each in shown])
            grids = torch.stack([each.grid for shown in pixels for each in shown]).to(patches.device)
            read = getattr(self.model.model, f"get_{self.sees}_features")
            states = iter(read(patches, grids).pooler_output)
            return [tuple(next(states) for _ in shown) for shown in pixels]

    def compare(self, features: Sequence[Seen], pairs: Sequence[Pair], measure: Measure = "reward") -> list[Compared]:
        """Each pair's reward; nothing is cut."""
        asked = [
            (features[pair.image], read.replace(PROMPT, pair.text)) for pair in pairs for read in self.instructions
        ]
        read = [(self._ids(text, seen), seen) for seen, text in asked]
        states = in_batches(self._states, read, [len(ids) for ids, _ in read], size=self.pair_batch)
        if not states:
            return []
        with torch.inference_mode():
            return self.rewards(torch.cat(states).view(len(pairs), -1, states[0].shape[-1]))

    def _ids(self, text: str, seen: Seen) -> torch.Tensor:
        """The conversation as tokens; raises HopelessRow where the prompt would be read as marks."""
        content = [*({"type": self.sees} for _ in seen), {"type": "text", "text": text}]
        turns = [{"role": "user", "content": content}]
        conversation = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        ids = torch.tensor(self.tokenizer(conversation, add_special_tokens=False).input_ids)
        marks = [(self.seen_id, len(seen), f"the {self.sees}'s")]
        marks += [(mark, 1, "the reward's") for mark in self.reward_ids.tolist()]
        for mark, count, name in marks:
            if int((ids == mark).sum()) != count:
                raise HopelessRow(
                    RowError("request_refused", f"the prompt has {name} mark in it; change the prompt's text")
                )
        repeats = torch.ones_like(ids)
        repeats[ids == self.seen_id] = torch.tensor([len(states) for states in seen])
        return ids.repeat_interleave(repeats)

    def _states(self, read: Sequence[tuple[torch.Tensor, Seen]]) -> list[torch.Tensor]:
        """Of each conversation the states (reward tokens, width) at its reward tokens; they are padded on the right.

        The releases were trained without Qwen2-VL's positions in time, row and column: they hand their language half no
        grid, so the tokens of what is seen are numbered one after the other, as words are.
        """
        device, model = self.model.device, self.model.model
        mask = pad_sequence([torch.ones_like(ids) for ids, _ in read], batch_first=True).to(device)
        ids = pad_sequence([ids for ids, _ in read], batch_first=True).to(device)
        places = (ids == self.seen_id) & mask.bool()
        embedded = model.get_input_embeddings()(ids)
        embedded[places] = torch.cat([states for _, seen in read for states in seen]).to(embedded.dtype)
        positions = torch.arange(ids.shape[1], device=device).expand_as(ids)
        states = model.language_model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=positions, use_cache=False
        ).last_hidden_state
        at_rewards = states[torch.isin(ids, self.reward_ids.to(device)) & mask.bool()]
        return list(at_rewards.view(len(read), len(self.reward_tokens), -1))
