"""FlanT5's encoder and decoder, with masks made once for all layers, and a question's choices decoded side by side.

Transformers makes the additive mask of position biases and padding in each layer, 1.7 GB at 64 images of an XL, and
repeats the encoder's output for each choice.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig
from transformers import T5ForConditionalGeneration as T5
from transformers.activations import NewGELUActivation
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.t5.modeling_t5 import T5LayerNorm

from plumbline.operators.models.calls import MAX_ANSWER_TOKENS
from plumbline.operators.models.networks.attention import ALIGNED
from plumbline.operators.models.networks.encoder_decoder import EncodedQuestions, EncoderDecoder

BUCKET = 64
"""A compiled encoder's input is padded to a multiple of this length, so that few lengths are compiled."""


class T5Answers(EncoderDecoder):
    """An EncoderDecoder whose language model is a T5."""

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.t5: T5 = self.model.language_model
        fuse(self.t5)
        self.pad_id = int(self.t5.config.pad_token_id)
        self.before = torch.empty(0, dtype=torch.long, device=self.device)
        suppressed = list(range(self.entries, self.rows)) or None
        self.t5.generation_config = greedy_settings(self.t5.config, self.tokenizer, suppress_tokens=suppressed)
        self.aligned = ALIGNED if self.device.type == "cuda" else 1

    def compile(self) -> None:
        """Compile the encoder's blocks; one compilation serves all of them, and every number of questions."""
        self.aligned = BUCKET
        for block in self.t5.encoder.block:
            block.compile()

    @property
    def entries(self) -> int:
        """Number of rows of the embedding that tokens may have."""
        return self.rows

    @property
    def rows(self) -> int:
        return int(self.t5.shared.num_embeddings)

    def read(self, images: torch.Tensor, questions: Sequence[str], ids: torch.Tensor) -> EncodedQuestions:
        """Encode image tokens (n, tokens, d_model) between the tokens `before` every image and their questions."""
        return encode_beside(self.t5, images, self.before, ids, aligned=self.aligned)

    def predict(self, encoded: EncodedQuestions, choices: Sequence[Sequence[list[int]]]) -> torch.Tensor:
        return choice_logits(self.t5, encoded, choices)[..., : self.entries]

    def write(self, encoded: EncodedQuestions) -> torch.Tensor:
        tokens: torch.Tensor = self.t5.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=encoded.states), attention_mask=encoded.mask
        )
        return tokens


def greedy_settings(config: Any, tokenizer: Any, **options: Any) -> GenerationConfig:
    """Return settings for plain greedy answers of a T5, without the penalties in the checkpoint's config."""
    return GenerationConfig(
        max_new_tokens=MAX_ANSWER_TOKENS,
        do_sample=False,
        decoder_start_token_id=int(config.decoder_start_token_id),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=config.pad_token_id,
        **options,
    )


def encode_beside(
    t5: T5, features: torch.Tensor, before: torch.Tensor, after: torch.Tensor, *, aligned: int = 1
) -> EncodedQuestions:
    """Encode image tokens (n, tokens, d_model) between the token ids `before` (b) and right-padded `after` (n, a)."""
    head = t5.shared(before).expand(len(features), -1, -1)
    inputs = torch.cat([head, features.to(head.dtype), t5.shared(after)], dim=1)
    mask = torch.ones(inputs.shape[:2], dtype=torch.long, device=inputs.device)
    mask[:, inputs.shape[1] - after.shape[1] :] = (after != t5.config.pad_token_id).long()
    return encode(t5, inputs, mask, aligned=aligned)


def encode(t5: T5, inputs: torch.Tensor, mask: torch.Tensor, *, aligned: int = 1) -> EncodedQuestions:
    """Encode inputs (n, tokens, d_model), padded on the right to a multiple of `aligned` tokens."""
    if t5.training:  # its dropout is transformers' own
        return EncodedQuestions(t5.encoder(inputs_embeds=inputs, attention_mask=mask).last_hidden_state, mask)
    beyond = -inputs.shape[1] % aligned
    inputs, mask = pad(inputs, (0, 0, 0, beyond)), pad(mask, (0, beyond))
    length = inputs.shape[1]
    bias = _bias_table(t5.encoder, length, inputs.device)
    if not mask.all():  # else all rows share one
        bias = _add_mask(bias, mask[:, None, None, :].bool())
    for batched in (inputs, bias):  # what is compiled takes any number of questions
        torch._dynamo.maybe_mark_dynamic(batched, 0)
    states = inputs
    for block in t5.encoder.block:
        states = block(states, None, bias)[0]
    return EncodedQuestions(t5.encoder.final_layer_norm(states), mask)


def choice_logits(t5: T5, encoded: EncodedQuestions, choices: Sequence[Sequence[list[int]]]) -> torch.Tensor:
    """Return teacher-forced logits (tokens of all choices, rows); choices of a question do not see each other."""
    start, device = t5.config.decoder_start_token_id, encoded.states.device
    ids = _rows([[token for choice in row for token in [start, *choice[:-1]]] for row in choices], 0, device)
    places = _rows([[place for choice in row for place in range(len(choice))] for row in choices], 0, device)
    owners = _rows([[number for number, choice in enumerate(row) for _ in choice] for row in choices], -1, device)
    own = _add_mask(
        _position_bias(t5, places),
        ((owners[:, :, None] == owners[:, None, :]) & (places[:, None, :] <= places[:, :, None]))[:, None],
    )
    image = _add_mask(torch.zeros((), dtype=encoded.states.dtype, device=device), encoded.mask[:, None, None, :].bool())
    image = image.expand(-1, t5.config.num_heads, ids.shape[1], -1)
    states = t5.shared(ids)
    for block in t5.decoder.block:
        states = block(states, None, own, encoded.states, None, image)[0]
    states = t5.decoder.final_layer_norm(states)[owners >= 0]
    if t5.config.scale_decoder_outputs:
        states = states * t5.model_dim**-0.5
    logits: torch.Tensor = t5.lm_head(states)
    return logits


def decode(t5: T5, encoded: EncodedQuestions, labels: torch.Tensor) -> torch.Tensor:
    """Return teacher-forced logits (n, tokens, rows) of the right-padded `labels` (n, tokens)."""
    start = torch.full_like(labels[:, :1], t5.config.decoder_start_token_id)
    output = t5(
        encoder_outputs=BaseModelOutput(last_hidden_state=encoded.states),
        attention_mask=encoded.mask,
        decoder_input_ids=torch.cat([start, labels[:, :-1]], dim=1),
        use_cache=False,
    )
    logits: torch.Tensor = output.logits
    return logits


def fuse(t5: T5) -> None:
    """Compute each GELU (the tanh approximation) and each norm in one kernel; transformers takes seven and five."""
    for module in list(t5.modules()):
        if isinstance(getattr(module, "act", None), NewGELUActivation):
            module.act = nn.GELU(approximate="tanh")
        for name, child in list(module.named_children()):
            if isinstance(child, T5LayerNorm):
                norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, device="meta")
                norm.weight = child.weight
                setattr(module, name, norm)


def _position_bias(t5: T5, places: torch.Tensor) -> torch.Tensor:
    """Return the decoder's bias (n, heads, tokens, tokens) for tokens at `places` (n, tokens) of their choices."""
    length = int(places.max()) + 1
    table = _bias_table(t5.decoder, length, places.device)[0]
    return table[:, places[:, :, None], places[:, None, :]].transpose(0, 1).contiguous()


def _bias_table(stack: Any, length: int, device: torch.device) -> torch.Tensor:
    """Return an encoder's or decoder's bias (1, heads, length, length), with a row's places contiguous in memory.

    In transformers' bias the heads are contiguous. A GPU's attention kernels do not take such a mask: torch then
    computes attention step by step in float32, and all of CLIP-FlanT5-XL takes 2.6 times as long on an H200.
    """
    bias: torch.Tensor = stack.block[0].layer[0].SelfAttention.compute_bias(length, length, device=device)
    return bias.contiguous()


def _add_mask(bias: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    return torch.where(seen, bias, torch.finfo(bias.dtype).min)


def _rows(rows: Sequence[Sequence[int]], padding: int, device: torch.device) -> torch.Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=padding).to(device)
