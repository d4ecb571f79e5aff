"""The network of FGA-BLIP2: a BLIP-2 trained to match an image with a prompt and with each of its words."""

import torch
from transformers import Blip2Config, Blip2ForImageTextRetrieval

LAST_NORM_EPSILON = 1e-5
"""Epsilon of the norm after the vision tower in LAVIS (blip2.py, ln_vision); transformers has that of the tower."""


class FgaBlip2(Blip2ForImageTextRetrieval):  # type: ignore[misc]
    """BLIP-2's network for image-text retrieval, as in LAVIS."""

    def __init__(self, config: Blip2Config) -> None:
        super().__init__(config)
        self.vision_model.post_layernorm.eps = LAST_NORM_EPSILON

    def match(self, states: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return match probabilities of the image with the text (n, queries) and with each token (n, length).

        Args:
            states: States of the vision tower, (n, patches + 1, width).
            ids: Tokens of the texts, (n, length).
            mask: 0 for padding, (n, length).
        """
        queries = self.query_tokens.expand(len(ids), -1, -1)
        count = queries.shape[1]
        seen = self.qformer(
            query_embeds=self.embeddings(input_ids=ids, query_embeds=queries),
            query_length=count,
            attention_mask=torch.cat([mask.new_ones(queries.shape[:2]), mask], dim=1),
            encoder_hidden_states=states,
        ).last_hidden_state
        matches = self.itm_head(seen.to(self.itm_head.weight.dtype)).float().softmax(dim=-1)[..., 1]
        return matches[:, :count], matches[:, count:]
