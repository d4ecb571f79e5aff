"""Rewards that a Qwen2-VL gives at tokens of its own, which stand in its instruction: HPSv3 and VideoAlign."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch.nn.utils.rnn import pad_sequence

from plumbline.operators.batches import in_batches
from plumbline.operators.errors import HopelessRow, ModelError, RowError
from plumbline.operators.models.calls import Compared, Measure, Pair
from plumbline.operators.models.checkpoints.parts import AGAIN, INSTRUCTION
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.loaded import LoadedImageModel
from plumbline.operators.models.processing import load_chat_tokenizer

PROMPT = "{text_prompt}"
"""Where the prompt stands in what the model was trained to read."""


class Pixels(NamedTuple):
    """One image or video as Qwen2-VL's processor leaves it."""

    patches: torch.Tensor
    """As bytes, before they are cut: (frames, 3, height, width)."""
    grid: torch.Tensor
    """Its patches in time, height and width, (3,)."""


class TokenReward(LoadedImageModel):
    """The `similarity` call of such a network; what it sees is encoded once, its instruction is read for every pair."""

    sees: ClassVar[Literal["image", "video"]] = "image"
    reward_tokens: ClassVar[tuple[str, ...]]
    """In the order in which they stand in the instruction."""
    instruction: str
    """What the model was trained to read, {text_prompt} being the prompt."""

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.reward_ids = torch.tensor(self.tokenizer.convert_tokens_to_ids(list(self.reward_tokens)))
        self.seen_id = int(getattr(self.model.config, f"{self.sees}_token_id"))

    @classmethod
    def load(cls, model: ResolvedModel[Any], network: Any = None) -> Self:
        loaded = super().load(model, network)
        loaded.instruction = (model.folder("checkpoint") / INSTRUCTION).read_text()
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
        """What the head makes of the states (pairs, reward tokens, width) of each pair's reward tokens."""

    def encode(self, pixels: Sequence[Pixels]) -> list[torch.Tensor]:
        """What the language half reads in the place of each image or video: states (tokens, width), on the device."""
        with torch.inference_mode():
            patches = self.pixels([each.patches for each in pixels])
            grids = torch.stack([each.grid for each in pixels]).to(patches.device)
            read = getattr(self.model.model, f"get_{self.sees}_features")
            return list(read(patches, grids).pooler_output)

    def compare(
        self, features: Sequence[torch.Tensor], pairs: Sequence[Pair], measure: Measure = "reward"
    ) -> list[Compared]:
        """Each pair's reward; nothing is cut."""
        read = [(self._ids(pair.text, features[pair.image]), features[pair.image]) for pair in pairs]
        return in_batches(self._compared, read, [len(ids) for ids, _ in read], size=self.pair_batch)

    def _ids(self, text: str, seen: torch.Tensor) -> torch.Tensor:
        """The conversation as tokens; raises HopelessRow where the prompt would be read as marks."""
        content = [{"type": self.sees}, {"type": "text", "text": self.instruction.replace(PROMPT, text)}]
        turns = [{"role": "user", "content": content}]
        conversation = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        ids = torch.tensor(self.tokenizer(conversation, add_special_tokens=False).input_ids)
        marks = [(self.seen_id, f"the {self.sees}'s"), *((mark, "the reward's") for mark in self.reward_ids.tolist())]
        for mark, name in marks:
            if int((ids == mark).sum()) != 1:
                raise HopelessRow(
                    RowError("request_refused", f"the prompt has {name} mark in it; change the prompt's text")
                )
        before, after = ids.tensor_split([int((ids == self.seen_id).nonzero())])
        return torch.cat([before, after[:1].expand(len(seen)), after[1:]])

    def _compared(self, read: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[Compared]:
        """The reward of each conversation; they are padded on the right.

        The releases were trained without Qwen2-VL's positions in time, row and column: they hand their language half no
        grid, so the tokens of what is seen are numbered one after the other, as words are.
        """
        device, model = self.model.device, self.model.model
        mask = pad_sequence([torch.ones_like(ids) for ids, _ in read], batch_first=True).to(device)
        ids = pad_sequence([ids for ids, _ in read], batch_first=True).to(device)
        places = (ids == self.seen_id) & mask.bool()
        embedded = model.get_input_embeddings()(ids)
        embedded[places] = torch.cat([states for _, states in read]).to(embedded.dtype)
        positions = torch.arange(ids.shape[1], device=device).expand_as(ids)
        states = model.language_model(
            inputs_embeds=embedded, attention_mask=mask, position_ids=positions, use_cache=False
        ).last_hidden_state
        at_rewards = states[torch.isin(ids, self.reward_ids.to(device)) & mask.bool()]
        return self.rewards(at_rewards.view(len(read), len(self.reward_tokens), -1))
