"""The network of a chat model that sees: it reads an image's prefix once, and everything that continues from it.

Every question continues from the keys and values of its image's prefix. The exception is PaliGemma, a prefix language
model, whose image tokens see the question.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad
from transformers import DynamicCache

from plumbline.operators.models.networks import prefixes
from plumbline.operators.models.networks.attention import ALIGNED, share_keys, speed_up_tower
from plumbline.operators.models.networks.image_prompts import Pixels
from plumbline.operators.models.networks.loaded import in_groups
from plumbline.operators.models.networks.prefixes import Prefix, Tail, layer_memory, tail_starts
from plumbline.operators.models.pixels import PixelInput


class Reading(NamedTuple):
    """State after reading tokens."""

    states: torch.Tensor
    """(n, tokens, width), of the tokens that were read last."""
    cache: DynamicCache
    real: torch.Tensor
    """(n, all tokens): True for cached tokens that are not padding."""
    places: torch.Tensor
    """(n, all tokens): number of tokens before each cached token in its own conversation."""


LINEAR = "linear_attention"
"""Name, in a config.json, of layers that keep a state, which every token changes, instead of keys and values."""


class ImageReader:
    """A checkpoint in the form of LLaVA, Qwen-VL, GLM-V, InternVL, Idefics or Gemma."""

    two_way = False
    """True if the tokens of a prompt see those after them."""

    def __init__(self, model: Any, pixels: PixelInput, *, image_id: int) -> None:
        """`image_id` is the token whose embeddings are replaced by the image's."""
        speed_up_tower(model)
        self.pixels = pixels
        self.model = model
        self.image_id = image_id
        self.device = model.device
        self.decoder = model.get_decoder()
        self.sharing = share_keys(self.decoder)
        self.windows = attention_windows(self.decoder.config)
        self.context: int | None = getattr(self.decoder.config, "max_position_embeddings", None)
        taken = inspect.signature(model.model.forward).parameters
        self.image_marks = [name for name in ("token_type_ids", "mm_token_type_ids") if name in taken]

    @property
    def recurrent(self) -> bool:
        """True if some layers keep a state instead of tokens: padding and other questions would change it."""
        return LINEAR in self.windows

    @property
    def vocabulary(self) -> int:
        """Number of tokens that have a score."""
        return int(self.model.lm_head.weight.shape[0])

    def scores(self, states: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, vocabulary) of the next token, from states (n, width)."""
        logits: torch.Tensor = self.model.lm_head(states)
        return logits

    @torch.inference_mode()
    def encode(self, pixels: Sequence[Pixels]) -> list[Prefix]:
        """Run each image's prefix through the model; images with equal numbers of tokens run together."""
        return in_groups(self._encode_batch, pixels, key=_shape)

    def _encode_batch(self, pixels: Sequence[Pixels]) -> list[Prefix]:
        """Return the prefixes of images of one shape."""
        ids = torch.tensor([image.ids for image in pixels], device=self.device)
        inputs = self.inputs(pixels)
        positions = self._prefix_positions(ids, inputs, pixels)
        marks = {name: self._is_image(ids) for name in self.image_marks}
        cache = DynamicCache(config=self.decoder.config) if self.recurrent else DynamicCache()
        self.model.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            **marks,
            **inputs,
        )
        following = (positions.reshape(-1, *ids.shape).amax((0, 2)) + 1).tolist()
        return [
            Prefix(
                ids=image.ids,
                layers=[layer_memory(layer, index, len(image.ids)) for layer in cache.layers],
                next_position=following[index],
                closing=image.closing,
            )
            for index, image in enumerate(pixels)
        ]

    def inputs(self, pixels: Sequence[Pixels]) -> dict[str, torch.Tensor]:
        """Return the inputs of the vision half for images of one shape."""
        return {name: self.pixels([image.inputs[name] for image in pixels]) for name in pixels[0].inputs}

    def _is_image(self, ids: torch.Tensor) -> torch.Tensor:
        return (ids == self.image_id).int()

    def _prefix_positions(
        self, ids: torch.Tensor, inputs: Mapping[str, torch.Tensor], pixels: Sequence[Pixels]
    ) -> torch.Tensor:
        """Return positions of the prefix, (n, tokens), or (3, n, tokens) if an image's are time, row and column."""
        if "video_grid_thw" in inputs:
            return torch.stack([self._video_positions(video) for video in pixels], dim=1)
        if not hasattr(self.model.model, "get_rope_index"):
            return torch.arange(ids.shape[1], device=self.device).expand_as(ids)
        positions: torch.Tensor = self.model.model.get_rope_index(
            ids, mm_token_type_ids=self._is_image(ids), image_grid_thw=inputs["image_grid_thw"]
        )[0]
        return positions

    def _video_positions(self, video: Pixels) -> torch.Tensor:
        """Return time, row and column (3, tokens) of a prefix that ends in a video, as in Qwen's releases.

        The next token comes after the largest of all. Transformers 5.3 to 5.19 put it after the last row or column,
        which is less than the times of a long video.
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

    def read(self, packs: Sequence[Sequence[Tail]]) -> Reading:
        """Read each pack's tokens after a copy of its image's prefix."""
        shared = [pack[0].prefix for pack in packs]
        before = prefixes.copy_prefixes(shared, self.device)
        rows = [[token for tail in pack for token in tail.ids] for pack in packs]
        width = max(len(row) for row in rows)
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=self.device)
        own = torch.stack([prefixes.visible_tokens(pack, width, two_way=self.two_way) for pack in packs]).to(
            self.device
        )
        seen = torch.cat([before.real[:, None, :].expand(-1, width, -1), own], dim=2)
        offsets = torch.stack([prefixes.position_offsets(pack, width) for pack in packs]).to(self.device)
        tokens = torch.tensor([[prefix.tokens] for prefix in shared], device=self.device)
        places = torch.cat([before.places, tokens + offsets], dim=1)
        masks = self._masks(seen, places, packs)
        states = self._run(self._inputs_of(ids, packs), masks, offsets + self._starts(shared), before.cache)
        lengths = torch.tensor([[len(row)] for row in rows], device=self.device)
        real = torch.cat([before.real, torch.arange(width, device=self.device) < lengths], dim=1)
        return Reading(states, before.cache, real, places)

    def split_prefixes(self, tails: Sequence[Tail]) -> list[Tail]:
        """Return tails that can all be read on from the end of their prompts.

        The tails are unchanged unless layers keep a state, which padding after the shorter prompts would change. Then
        each prompt except its last token is read into a prefix of its own.
        """
        lengths = {len(tail.prompt) for tail in tails}
        if not self.recurrent or len(lengths) == 1:
            return list(tails)
        return in_groups(self._read_into_prefixes, tails, key=lambda tail: len(tail.prompt))

    def _read_into_prefixes(self, tails: Sequence[Tail]) -> list[Tail]:
        """Read tails of one length, and return the last token of each after a prefix of all before it."""
        begun = len(tails[0].prompt) - 1
        if begun == 0:
            return list(tails)
        layers = self.read([[tail._replace(prompt=tail.prompt[:-1])] for tail in tails]).cache.layers
        return [
            Tail(
                Prefix(
                    ids=[*tail.prefix.ids, *tail.prompt[:-1]],
                    layers=[layer_memory(layer, row, tail.prefix.tokens + begun) for layer in layers],
                    next_position=tail.prefix.next_position + begun,
                    closing=tail.prefix.closing,
                ),
                tail.prompt[-1:],
                tail.choices,
            )
            for row, tail in enumerate(tails)
        ]

    def read_on(self, before: Reading, ids: torch.Tensor, tails: Sequence[Tail], offsets: torch.Tensor) -> Reading:
        """Read one more token `ids` (n, 1) of each row, at `offsets` (n, 1) from its prefix's end."""
        shared = [tail.prefix for tail in tails]
        tokens = torch.tensor([[prefix.tokens] for prefix in shared], device=self.device)
        real = torch.cat([before.real, torch.ones_like(before.real[:, :1])], dim=1)
        places = torch.cat([before.places, tokens + offsets], dim=1)
        masks = self._masks(real[:, None], places)
        states = self._run(self._inputs_of(ids), masks, offsets + self._starts(shared), before.cache)
        return Reading(states, before.cache, real, places)

    def _inputs_of(self, ids: torch.Tensor, packs: Sequence[Sequence[Tail]] = ()) -> dict[str, torch.Tensor]:
        """Return the inputs of the language half for tokens (n, tokens); `packs` begin there, if given."""
        return {"input_ids": ids}

    def _distances(self, places: torch.Tensor, width: int, packs: Sequence[Sequence[Tail]] = ()) -> torch.Tensor:
        """Return how far each of the last `width` tokens is from every token in `places`: (n, `width`, places)."""
        return places[:, -width:, None] - places[:, None, :]

    def _masks(
        self, seen: torch.Tensor, places: torch.Tensor, packs: Sequence[Sequence[Tail]] = ()
    ) -> dict[str, torch.Tensor | None]:
        """Return the attention masks by kind of layer; None for layers that do not attend.

        `seen` (n, tokens, cached and new tokens) is True for tokens that attend to each other in a layer without a
        window. `places` (n, cached and new tokens) are counted in each token's own conversation.
        """
        return {
            kind: None
            if kind == LINEAR
            else self._additive_mask(
                seen if window is None else seen & (self._distances(places, seen.shape[1], packs) < window)
            )
            for kind, window in self.windows.items()
        }

    def _run(
        self,
        inputs: Mapping[str, torch.Tensor],
        masks: Mapping[str, torch.Tensor | None],
        positions: torch.Tensor,
        cache: DynamicCache,
    ) -> torch.Tensor:
        """Return states (n, tokens, width) of tokens at `positions` (n, tokens) after the cached ones."""
        states: torch.Tensor = self.decoder(
            **inputs,
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return states

    def _additive_mask(self, seen: torch.Tensor) -> torch.Tensor:
        """Return a mask (n, 1, tokens, cached and new tokens) to add: 0 for seen tokens, otherwise the lowest number.

        Its rows repeat for each head that shares keys.
        """
        beyond = -seen.shape[2] % ALIGNED
        mask = torch.zeros(seen.shape, dtype=self.model.dtype, device=self.device)
        mask.masked_fill_(~seen, torch.finfo(self.model.dtype).min)
        return pad(mask, (0, beyond)).repeat(1, self.sharing, 1)[:, None, :, : seen.shape[2]]

    def _starts(self, shared: Sequence[Prefix]) -> torch.Tensor:
        """Return the position (n, 1) at which each prefix continues."""
        return torch.tensor([[prefix.next_position] for prefix in shared], device=self.device)


def attention_windows(config: Any) -> dict[str, int | None]:
    """Return how many tokens each kind of layer of a language model looks back; None for all."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["full_attention" if window is None else "sliding_attention"]
    return {kind: window if kind == "sliding_attention" else None for kind in sorted(set(kinds))}


def _shape(pixels: Pixels) -> tuple[Any, ...]:
    """Return what must be equal for two images to run together: their tokens, and the rows and columns of these."""
    grid = pixels.inputs.get("image_grid_thw", pixels.inputs.get("video_grid_thw"))
    shapes = sorted((name, tuple(tensor.shape)) for name, tensor in pixels.inputs.items())
    return (len(pixels.ids), str(grid.tolist()) if grid is not None else "", tuple(shapes))


class CappedReader(ImageReader):
    """A network with bounded scores, such as Gemma 4; the bound is in its config.json."""

    def scores(self, states: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, vocabulary) of the next token, from states (n, width)."""
        bound = self.decoder.config.final_logit_softcapping
        return super().scores(states) if bound is None else (super().scores(states) / bound).tanh() * bound


FIRST_POSITION = 1


@dataclass(kw_only=True, slots=True)
class ImageFeatures(Prefix):
    """An image that is read again with every question: only its features are kept."""

    features: torch.Tensor
    """(tokens, width): embeddings that replace those of its tokens."""


class PrefixLmReader(ImageReader):
    """A network whose prompt tokens all see each other; later tokens only see the tokens before them."""

    two_way = True

    def _encode_batch(self, pixels: Sequence[Pixels]) -> list[Prefix]:
        """Return the features of images of one shape."""
        features = self.model.get_image_features(**self.inputs(pixels)).pooler_output
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

    def _inputs_of(self, ids: torch.Tensor, packs: Sequence[Sequence[Tail]] = ()) -> dict[str, torch.Tensor]:
        """Return embeddings that contain every image's features instead of those of its tokens."""
        features = [tail.prefix.features for pack in packs for tail in pack if isinstance(tail.prefix, ImageFeatures)]
        if not features:
            return super()._inputs_of(ids)
        shown = ids == self.image_id
        embedded = self.model.get_input_embeddings()(ids.masked_fill(shown, 0))
        return {"inputs_embeds": embedded.masked_scatter(shown[..., None], torch.cat(features).to(embedded.dtype))}

    def _distances(self, places: torch.Tensor, width: int, packs: Sequence[Sequence[Tail]] = ()) -> torch.Tensor:
        """Return distances with 0 within a prompt, so that no window separates its tokens."""
        distances = super()._distances(places, width)
        for row, pack in zip(distances, packs, strict=False):
            for start, tail in tail_starts(pack):
                row[start : start + len(tail.prompt)] = 0
        return distances
