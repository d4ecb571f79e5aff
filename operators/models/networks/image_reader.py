"""Runs a chat model that sees images: reads each image's prefix once, and continues every question from that prefix.

Questions continue from the keys and values of the image's prefix. The exception is PaliGemma, a prefix language model,
whose image tokens see the question.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

from plumbline.operators.models.networks import prefixes
from plumbline.operators.models.networks.attention import SIZE_ALIGNMENT, share_keys, speed_up_tower
from plumbline.operators.models.networks.image_prompts import Pixels
from plumbline.operators.models.networks.loaded import call_by_group
from plumbline.operators.models.networks.prefixes import Prefix, Tail, copy_memory, iterate_starts
from plumbline.operators.models.pixels import PixelInput


class ReaderState(NamedTuple):
    """Cache and latest states of a model that has read some tokens of a batch of conversations."""

    states: torch.Tensor
    """States (n, tokens, width) of the tokens read by the last call."""
    cache: DynamicCache
    real: torch.Tensor
    """Mask (n, all tokens): True for cached tokens that are not padding."""
    indices: torch.Tensor
    """Number of tokens before each cached token in the same conversation, (n, all tokens)."""


LINEAR_ATTENTION_TYPE = "linear_attention"
"""Name used in a config.json for layers that have a state, which every token changes, instead of keys and values."""
FIRST_POSITION = 1
"""Position of a prompt's first token in PaliGemma."""


class ImageReader:
    """Reader of prompts about images, for chat models built like LLaVA, Qwen-VL, GLM-V, InternVL, Idefics or Gemma."""

    two_way = False
    """True if the tokens of a prompt also see later tokens of the prompt."""

    def __init__(self, model: Any, pixels: PixelInput, *, image_id: int) -> None:
        """Prepare the model; `image_id` is the token whose embeddings are replaced with the image's."""
        speed_up_tower(model)
        self.pixels = pixels
        self.model = model
        self.image_id = image_id
        self.device = model.device
        self.decoder = model.get_decoder()
        self.sharing = share_keys(self.decoder)
        config = self.decoder.config
        window = getattr(config, "sliding_window", None)
        kinds = getattr(config, "layer_types", None) or ["full_attention" if window is None else "sliding_attention"]
        self.windows = {kind: window if kind == "sliding_attention" else None for kind in sorted(set(kinds))}
        """Number of preceding tokens that each kind of language model layer attends to; None for all of them."""
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        arguments = inspect.signature(model.model.forward).parameters
        self.image_marks = [name for name in ("token_type_ids", "mm_token_type_ids") if name in arguments]
        """Arguments of the network that mark the tokens of images."""

    @property
    def recurrent(self) -> bool:
        """True if some layers have a state instead of keys and values.

        Padding, or other questions in the same sequence, would change this state.
        """
        return LINEAR_ATTENTION_TYPE in self.windows

    @property
    def vocabulary(self) -> int:
        return int(self.model.lm_head.weight.shape[0])

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, vocabulary) of the next token for states (n, width)."""
        logits: torch.Tensor = self.model.lm_head(states)
        return logits

    @torch.inference_mode()
    def encode(self, pixels: Sequence[Pixels]) -> list[Prefix]:
        """Return each image's prefix after the model has read it; images with the same shapes are read together."""
        return call_by_group(self._encode_batch, pixels, key=_make_shape_key)

    def _encode_batch(self, pixels: Sequence[Pixels]) -> list[Prefix]:
        ids = torch.tensor([image.ids for image in pixels], device=self.device)
        is_image = (ids == self.image_id).int()
        inputs = self.make_vision_inputs(pixels)
        # positions are (n, tokens), or (3, n, tokens) if an image's are time, row and column
        if "video_grid_thw" in inputs:
            positions: torch.Tensor = torch.stack([self._compute_video_positions(video) for video in pixels], dim=1)
        elif hasattr(self.model.model, "get_rope_index"):
            positions = self.model.model.get_rope_index(
                ids, mm_token_type_ids=is_image, image_grid_thw=inputs["image_grid_thw"]
            )[0]
        else:
            positions = torch.arange(ids.shape[1], device=self.device).expand_as(ids)
        cache = DynamicCache(config=self.decoder.config) if self.recurrent else DynamicCache()
        self.model.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            **dict.fromkeys(self.image_marks, is_image),
            **inputs,
        )
        following = (positions.reshape(-1, *ids.shape).amax((0, 2)) + 1).tolist()
        return [
            Prefix(
                ids=image.ids,
                layers=[copy_memory(layer, index, len(image.ids)) for layer in cache.layers],
                next_position=following[index],
                closing=image.closing,
            )
            for index, image in enumerate(pixels)
        ]

    def make_vision_inputs(self, pixels: Sequence[Pixels]) -> dict[str, torch.Tensor]:
        """Return the inputs of the model's vision part for images of the same shape, keyed by name."""
        return {name: self.pixels([image.inputs[name] for image in pixels]) for name in pixels[0].inputs}

    def _compute_video_positions(self, video: Pixels) -> torch.Tensor:
        """Return the time, row and column (3, tokens) of each token in a prefix that ends with a video.

        They are computed as in Qwen's own code, in which the next token comes after the largest of these numbers.
        Transformers 5.3 to 5.19 put it after the last row or column, which is too small if the video is long.
        """
        times, height, width = video.inputs["video_grid_thw"][0].tolist()
        vision = self.model.config.vision_config
        merged = vision.spatial_merge_size
        rate = getattr(vision, "tokens_per_second", None)
        steps = torch.arange(times) if rate is None else (torch.arange(times) * (video.step * rate)).long()
        shown = torch.cartesian_prod(steps, torch.arange(height // merged), torch.arange(width // merged))
        before = len(video.ids) - len(shown)
        text = torch.arange(before).expand(3, -1)
        return torch.cat([text, shown.T + before], dim=1).to(self.device)

    def read(self, packs: Sequence[Sequence[Tail]]) -> ReaderState:
        """Return the state after reading the questions of each pack, which follow a copy of their image's prefix."""
        shared = [pack[0].prefix for pack in packs]
        before = prefixes.copy_prefixes(shared, self.device)
        rows = [[token for tail in pack for token in tail.ids] for pack in packs]
        width = max(len(row) for row in rows)
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=self.device)
        own = torch.stack([prefixes.find_visible_tokens(pack, width, two_way=self.two_way) for pack in packs])
        seen = torch.cat([before.real[:, None, :].expand(-1, width, -1), own.to(self.device)], dim=2)
        offsets = torch.stack([prefixes.find_position_offsets(pack, width) for pack in packs]).to(self.device)
        tokens = torch.tensor([[prefix.tokens] for prefix in shared], device=self.device)
        indices = torch.cat([before.indices, tokens + offsets], dim=1)
        masks = self._make_masks(seen, indices, packs)
        states = self._run_layers(
            self._make_text_inputs(ids, packs), masks, offsets + self._find_start_positions(shared), before.cache
        )
        lengths = torch.tensor([[len(row)] for row in rows], device=self.device)
        real = torch.cat([before.real, torch.arange(width, device=self.device) < lengths], dim=1)
        return ReaderState(states, before.cache, real, indices)

    def split_prefixes(self, tails: Sequence[Tail]) -> list[Tail]:
        """Return tails that can be continued together, one generated token at a time.

        The tails are unchanged unless some layers have a state, which padding after shorter prompts would change. In
        that case, each prompt except its last token is read into a separate prefix.
        """
        lengths = {len(tail.prompt) for tail in tails}
        if not self.recurrent or len(lengths) == 1:
            return list(tails)

        def read_all_but_last_token(group: Sequence[Tail]) -> list[Tail]:
            """Return the tails with only the last token of each prompt; the tails' prefixes contain the other tokens.

            All prompts must have the same length.
            """
            n_read = len(group[0].prompt) - 1
            if n_read == 0:
                return list(group)
            layers = self.read([[tail._replace(prompt=tail.prompt[:-1])] for tail in group]).cache.layers
            split_tails = []
            for row, tail in enumerate(group):
                prefix = Prefix(
                    ids=[*tail.prefix.ids, *tail.prompt[:-1]],
                    layers=[copy_memory(layer, row, tail.prefix.tokens + n_read) for layer in layers],
                    next_position=tail.prefix.next_position + n_read,
                    closing=tail.prefix.closing,
                )
                split_tails.append(Tail(prefix, tail.prompt[-1:], tail.choices))
            return split_tails

        return call_by_group(read_all_but_last_token, tails, key=lambda tail: len(tail.prompt))

    def read_next(
        self, before: ReaderState, ids: torch.Tensor, tails: Sequence[Tail], offsets: torch.Tensor
    ) -> ReaderState:
        """Return the state after reading one more token `ids` (n, 1) per row.

        The token is at `offsets` (n, 1) from the end of the row's prefix.
        """
        shared = [tail.prefix for tail in tails]
        tokens = torch.tensor([[prefix.tokens] for prefix in shared], device=self.device)
        real = torch.cat([before.real, torch.ones_like(before.real[:, :1])], dim=1)
        indices = torch.cat([before.indices, tokens + offsets], dim=1)
        masks = self._make_masks(real[:, None], indices)
        states = self._run_layers(
            self._make_text_inputs(ids), masks, offsets + self._find_start_positions(shared), before.cache
        )
        return ReaderState(states, before.cache, real, indices)

    def _make_text_inputs(self, ids: torch.Tensor, packs: Sequence[Sequence[Tail]] = ()) -> dict[str, torch.Tensor]:
        """Return the language half's inputs for tokens (n, tokens); `packs`, if given, must consist of these tokens."""
        return {"input_ids": ids}

    def _compute_distances(
        self, indices: torch.Tensor, width: int, packs: Sequence[Sequence[Tail]] = ()
    ) -> torch.Tensor:
        return indices[:, -width:, None] - indices[:, None, :]

    def _make_masks(
        self, seen: torch.Tensor, indices: torch.Tensor, packs: Sequence[Sequence[Tail]] = ()
    ) -> dict[str, torch.Tensor | None]:
        """Return an attention mask for each kind of layer, or None for layers that do not attend.

        A mask (n, 1, rows, all tokens) is added to the scores: 0 for visible tokens, and the dtype's lowest number for
        all others. It has one row per token, and all rows are repeated for each head that shares a key.

        Args:
            seen: (n, tokens, all tokens), True for tokens that are visible in a layer without a window.
            indices: (n, all tokens), the index of each token in its own conversation.
            packs: The questions that are being read, if the tokens include prompts.
        """
        masks: dict[str, torch.Tensor | None] = {}
        for kind, window in self.windows.items():
            if kind == LINEAR_ATTENTION_TYPE:
                masks[kind] = None
                continue
            visible = (
                seen if window is None else seen & (self._compute_distances(indices, seen.shape[1], packs) < window)
            )
            mask = torch.zeros(visible.shape, dtype=self.model.dtype, device=self.device)
            mask.masked_fill_(~visible, torch.finfo(self.model.dtype).min)
            # rows are aligned for fast kernels, and repeat for each head that shares keys
            padded = pad(mask, (0, -visible.shape[2] % SIZE_ALIGNMENT)).repeat(1, self.sharing, 1)
            masks[kind] = padded[:, None, :, : visible.shape[2]]
        return masks

    def _run_layers(
        self,
        inputs: Mapping[str, torch.Tensor],
        masks: Mapping[str, torch.Tensor | None],
        positions: torch.Tensor,
        cache: DynamicCache,
    ) -> torch.Tensor:
        """Return the states (n, tokens, width) of tokens that follow the cached ones, at `positions` (n, tokens)."""
        states: torch.Tensor = self.decoder(
            **inputs,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return states

    def _find_start_positions(self, shared: Sequence[Prefix]) -> torch.Tensor:
        return torch.tensor([[prefix.next_position] for prefix in shared], device=self.device)


def _make_shape_key(pixels: Pixels) -> tuple[Any, ...]:
    """Return a key that is equal for images that can share a batch: number of tokens, grid, and tensor shapes."""
    grid = pixels.inputs.get("image_grid_thw", pixels.inputs.get("video_grid_thw"))
    shapes = sorted((name, tuple(tensor.shape)) for name, tensor in pixels.inputs.items())
    return (len(pixels.ids), str(grid.tolist()) if grid is not None else "", tuple(shapes))


class CappedReader(ImageReader):
    """Reader for networks that limit their logits to a range set in config.json, such as Gemma 4 and PaliGemma 2.

    For PaliGemma 2, transformers applied the limit before 4.52, and applies it again from 5.23 on.
    """

    def compute_logits(self, states: torch.Tensor) -> torch.Tensor:
        logits, bound = super().compute_logits(states), getattr(self.decoder.config, "final_logit_softcapping", None)
        return logits if bound is None else (logits / bound).tanh() * bound


@dataclass(kw_only=True, slots=True)
class ImageFeatures(Prefix):
    """An image that the model reads again with every question, so that only its features are kept."""

    features: torch.Tensor
    """Embeddings (tokens, width) that replace the embeddings of the image tokens."""


class PrefixLmReader(CappedReader):
    """Reader for networks in which all tokens of a prompt see each other. Later tokens only see earlier ones."""

    two_way = True

    def _encode_batch(self, pixels: Sequence[Pixels]) -> list[Prefix]:
        features = self.model.get_image_features(**self.make_vision_inputs(pixels)).pooler_output
        return [
            ImageFeatures(
                ids=image.ids,
                layers=[],
                next_position=FIRST_POSITION,
                closing=image.closing,
                unread=image.ids,
                features=own,
            )
            for image, own in zip(pixels, features, strict=True)
        ]

    def _make_text_inputs(self, ids: torch.Tensor, packs: Sequence[Sequence[Tail]] = ()) -> dict[str, torch.Tensor]:
        """Return the tokens' embeddings, in which each image's features replace the embeddings of the image tokens."""
        features = [tail.prefix.features for pack in packs for tail in pack if isinstance(tail.prefix, ImageFeatures)]
        if not features:
            return super()._make_text_inputs(ids)
        shown = ids == self.image_id
        embedded = self.model.get_input_embeddings()(ids.masked_fill(shown, 0))
        return {"inputs_embeds": embedded.masked_scatter(shown[..., None], torch.cat(features).to(embedded.dtype))}

    def _compute_distances(
        self, indices: torch.Tensor, width: int, packs: Sequence[Sequence[Tail]] = ()
    ) -> torch.Tensor:
        """Return the distances, set to 0 within a prompt so that no window hides one of its tokens from another."""
        distances = super()._compute_distances(indices, width)
        for row, pack in zip(distances, packs, strict=False):
            for start, tail in iterate_starts(pack):
                row[start : start + len(tail.prompt)] = 0
        return distances
