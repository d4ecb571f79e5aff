"""PaliGemma: a prefix language model, whose image tokens see the question, so that no question continues from them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from plumbline.operators.models.image_prompts import Pixels
from plumbline.operators.models.image_reader import ImageReader
from plumbline.operators.models.prefixes import Prefix, Tail, starting

FIRST_POSITION = 1


@dataclass(kw_only=True, slots=True)
class Seen(Prefix):
    """An image that is read with every question anew: nothing of it is kept but its features."""

    features: torch.Tensor
    """(tokens, width): what is read in the place of its tokens."""


class PrefixLmReader(ImageReader):
    """A network in whose prompt every token sees every other; choices and replies see what is before them."""

    two_way = True

    def _encode_batch(self, pixels: Sequence[Pixels]) -> list[Prefix]:
        """Features of images of one shape."""
        features = self.model.get_image_features(**self._inputs(pixels)).pooler_output
        return [
            Seen(
                ids=image.ids,
                keys=[],
                values=[],
                next_position=FIRST_POSITION,
                closing=image.closing,
                unread=image.ids,
                features=own,
            )
            for image, own in zip(pixels, features, strict=True)
        ]

    def _embed(self, ids: torch.Tensor, packs: Sequence[Sequence[Tail]] = ()) -> torch.Tensor:
        """Tokens (n, tokens) as what is read (n, tokens, width), every image's features in their places."""
        features = [tail.prefix.features for pack in packs for tail in pack if isinstance(tail.prefix, Seen)]
        if not features:
            return super()._embed(ids)
        shown = ids == self.image_id
        embedded = super()._embed(ids.masked_fill(shown, 0))
        return embedded.masked_scatter(shown[..., None], torch.cat(features).to(embedded.dtype))

    def _distances(self, places: torch.Tensor, width: int, packs: Sequence[Sequence[Tail]] = ()) -> torch.Tensor:
        """As of any network, but that no window parts the tokens of a prompt."""
        distances = super()._distances(places, width)
        for row, pack in zip(distances, packs, strict=False):
            for start, tail in starting(pack):
                row[start : start + len(tail.prompt)] = 0
        return distances
