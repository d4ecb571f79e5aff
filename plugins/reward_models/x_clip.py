"""X-CLIP: a CLIP for videos, whose text embeddings depend on the video (Ni et al. 2022)."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from plumbline.operators.base.batches import call_in_batches
from plumbline.operators.models.calls import ComparisonResult, Measure, Pair, PixelRule
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.loaded import LoadedImageModel

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from plumbline.operators.models.model import ResolvedModel
    from plumbline.operators.models.processing import PixelTransform


class _Video(NamedTuple):
    embedding: "torch.Tensor"
    """Embedding of the video; shape (width,)."""
    positions: "torch.Tensor"
    """Features of each patch position, averaged over the frames; shape (positions, width)."""


class XClipSimilarity(LoadedImageModel):
    """A loaded X-CLIP, which serves the `similarity` call."""

    architecture = "XCLIPModel"

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        config = self.model.config
        self.context = int(config.text_config.max_position_embeddings)
        self.frames = int(config.vision_config.num_frames)
        self.scale = math.exp(self.model.logit_scale.item())

    @classmethod
    def load_processor(cls, model: "ResolvedModel[Any]", tokenizer: Any) -> "PixelTransform":
        from plumbline.operators.models.processing import load_pixel_transform

        return load_pixel_transform(model.folder("checkpoint"), pad_to_square=False)

    def preprocess(self, image: "Image.Image", rule: PixelRule = "processor") -> "torch.Tensor":
        """Return an image as a video of identical frames; see `preprocess_video`."""
        return self.preprocess_video([image], 0.0)

    def preprocess_video(self, frames: "Sequence[Image.Image]", seconds: float) -> "torch.Tensor":
        """Return n evenly sampled frames (n, 3, height, width); n is the number that the checkpoint was trained on.

        If the video has fewer frames, some are repeated. `seconds` is not used.
        """
        import torch

        steps = max(self.frames - 1, 1)
        positions = [round(index * (len(frames) - 1) / steps) for index in range(self.frames)]
        shown = {index: self.processor(frames[index]) for index in dict.fromkeys(positions)}
        return self.pixels.pin(torch.stack([shown[index] for index in positions]))

    def encode(self, pixels: "Sequence[torch.Tensor]") -> list[_Video]:
        """Return the embedding of each video, and the features that influence text embeddings."""
        import torch

        with torch.inference_mode():
            seen = self.model.get_video_features(pixel_values=self.batch(pixels))
            positions = self.model.prompts_visual_layernorm(seen.last_hidden_state[:, 1:])
            positions = (
                (positions @ self.model.prompts_visual_projection).unflatten(0, (len(pixels), self.frames)).mean(dim=1)
            )
            return list(map(_Video, seen.pooler_output, positions))

    def compare(
        self, features: Sequence[_Video], pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[ComparisonResult]:
        """Return each pair's cosine similarity, or the model's logit. The text embedding depends on the video."""
        lengths = self.count_tokens([pair.text for pair in pairs])

        def read(batch: Sequence[Pair]) -> list[float]:
            import torch
            from torch.nn.functional import cosine_similarity

            words = self.tokenize([pair.text for pair in batch], context=self.context)
            points, positions = (
                torch.stack(each) for each in zip(*(features[pair.image] for pair in batch), strict=True)
            )
            texts = self.model.get_text_features(words.input_ids, words.attention_mask).pooler_output[:, None]
            texts = (texts + self.model.prompts_generator(texts, positions))[:, 0]
            cosines: list[float] = cosine_similarity(points.float(), texts.float()).tolist()
            return cosines

        cosines = call_in_batches(read, pairs, lengths, size=self.pair_batch)
        scale = self.scale if measure == "logit" else 1.0
        return [
            ComparisonResult(scale * one, length > self.context) for one, length in zip(cosines, lengths, strict=True)
        ]


FAMILY = Family(
    config=LocalModel,
    loads={"similarity": XClipSimilarity.load},
    form="'xclip'",
    suits=lambda fields: fields["model_type"] == "xclip",
    files=(TOKENIZER, IMAGES),
    measures=("cosine", "logit"),
    reads_videos=True,
)
