"""BLIP networks: BLIP-2 and InstructBLIP with FlanT5, BLIP for question answering, and ImageReward.

Each image passes through the vision tower once. BLIP-2's Q-Former does not see the question, so its output is shared
too; InstructBLIP's Q-Former reads the question, and BLIP's text encoder attends to the image.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import torch
from PIL import Image
from torch import nn
from transformers import BlipConfig, GenerationConfig
from transformers.models.blip.modeling_blip import BlipPreTrainedModel, BlipTextModel, BlipVisionModel

from plumbline.operators.base.errors import RowError, UnprocessableRowError
from plumbline.operators.models.calls import MAX_ANSWER_TOKENS
from plumbline.operators.models.checkpoints.parts import QFORMER_TOKENIZER_FOLDER
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.networks.encoder_decoder import (
    EncodedQuestions,
    EncoderDecoder,
    T5AnswerModel,
    check_entries,
)
from plumbline.operators.models.processing import ReleasedTransform, load_pretrained, load_tokenizer

BLIP2_TEMPLATE = "Question: {} Short answer:"
"""LAVIS's question template for zero-shot question answering with BLIP-2."""
DROPPED_SIGNS_PATTERN = re.compile(r'[.!"()*#:;~]')
"""Characters that BLIP's released code removes from every question, also in training."""
VISION_EPSILON = 1e-6
"""Epsilon of the layer norms in the vision tower of every BLIP, as in its released code (models/vit.py)."""
TOO_LONG_MESSAGE = "the question takes {} tokens, but the model reads at most {}; shorten the prompt"


def load_blip(architecture: str, model: ResolvedModel[Any]) -> Any:
    """Load a BLIP network of this architecture, a class name in transformers, with the checkpoint's weights."""
    config = BlipConfig.from_pretrained(model.folder("checkpoint"))
    # checkpoints in transformers' layout contain 1e-5, transformers' own default
    config.vision_config.layer_norm_eps = VISION_EPSILON
    return load_pretrained(architecture, model, config=config)


class Blip2Likelihood(T5AnswerModel):
    """BLIP-2 with a T5, which serves the `likelihood` call; the T5 reads 32 image tokens before the question."""

    architecture = "Blip2ForConditionalGeneration"

    @torch.inference_mode()
    def encode(self, pixels: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return image tokens, each (queries, d_model)."""
        return list(self.model.get_image_features(self.batch(pixels)).pooler_output)

    def format_question(self, question: str) -> str:
        return BLIP2_TEMPLATE.format(question)


class InstructBlipLikelihood(T5AnswerModel):
    """InstructBLIP with a T5, which serves the `likelihood` call. Its Q-Former also reads the question.

    The released code truncates questions to their last 128 tokens. Here, a question that exceeds the Q-Former's
    positions is refused.
    """

    architecture = "InstructBlipForConditionalGeneration"
    qformer_tokenizer: Any

    @classmethod
    def load(cls, model: ResolvedModel[Any], network: Any = None) -> Self:
        loaded, folder = super().load(model, network), model.folder("checkpoint") / QFORMER_TOKENIZER_FOLDER
        loaded.qformer_tokenizer = load_tokenizer(folder)
        check_entries(folder, loaded.qformer_tokenizer, loaded.model.config.qformer_config.vocab_size)
        return loaded

    @classmethod
    def load_processor(cls, model: ResolvedModel[Any], tokenizer: Any) -> ReleasedTransform:
        return ReleasedTransform(super().load_processor(model, tokenizer))

    def preprocess(self, image: Image.Image) -> torch.Tensor:
        """Return the image, resized by its shorter side and cropped at the centre, as in the released VQAScore."""
        return self.pixels.pin(self.processor.crop(image))

    @torch.inference_mode()
    def encode(self, pixels: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the vision tower's states, each (patches + 1, width)."""
        return list(self.model.vision_model(self.batch(pixels)).last_hidden_state)

    def read(self, images: torch.Tensor, questions: Sequence[str], ids: torch.Tensor) -> EncodedQuestions:
        text = self.qformer_tokenizer(list(questions), padding=True, padding_side="right", return_tensors="pt")
        text = text.to(self.device)
        _check_length(text.input_ids.shape[1], self.model.config.qformer_config.max_position_embeddings)
        queries = self.model.query_tokens.expand(len(images), -1, -1).to(images.dtype)
        seen = torch.ones(queries.shape[:2], dtype=torch.long, device=self.device)
        states = self.model.qformer(
            input_ids=text.input_ids,
            attention_mask=torch.cat([seen, text.attention_mask], dim=1),
            query_embeds=queries,
            encoder_hidden_states=images,
            encoder_attention_mask=torch.ones(images.shape[:2], dtype=torch.long, device=self.device),
        ).last_hidden_state[:, : queries.shape[1]]
        return super().read(self.model.language_projection(states), questions, ids)


class BlipVqaLikelihood(EncoderDecoder):
    """BLIP for question answering, which serves the `likelihood` call. Its decoder scores the answers.

    As in the released code, a question starts with the token [ENC] and an answer with [DEC]; transformers' processor
    keeps [CLS] at the start of a question. The released ranking also smooths labels, which does not give a likelihood
    and is omitted here. It truncates questions to 35 tokens; here, a question longer than the text encoder's positions
    is refused.
    """

    architecture = "BlipForQuestionAnswering"

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        text = self.model.config.text_config
        self.pad_id = self.tokenizer.pad_token_id
        self.start_id = int(text.bos_token_id)
        self.question_id = self.start_id + 1
        self.context = int(text.max_position_embeddings)
        self.greedy = GenerationConfig(
            max_new_tokens=MAX_ANSWER_TOKENS,
            do_sample=False,
            bos_token_id=self.start_id,
            eos_token_id=int(text.sep_token_id),
            pad_token_id=self.pad_id,
        )

    @classmethod
    def load_network(cls, model: ResolvedModel[Any]) -> Any:
        return load_blip(cls.architecture, model)

    @property
    def rows(self) -> int:
        return int(self.model.config.text_config.vocab_size)

    @torch.inference_mode()
    def encode(self, pixels: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Return the vision tower's states, each (patches + 1, width)."""
        return list(self.model.vision_model(self.batch(pixels)).last_hidden_state)

    def format_question(self, question: str) -> str:
        """Return the question without the characters that the released code drops; the tokenizer lower-cases it."""
        return DROPPED_SIGNS_PATTERN.sub("", question).rstrip(" ")

    def tokenize_questions(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.question_id, *ids[1:]] for ids in super().tokenize_questions(texts)]

    def tokenize_choice(self, choice: str) -> list[int]:
        """Return the tokens of an answer and the end token [SEP], without [DEC] at the start."""
        return super().tokenize_choice(choice)[1:]

    def read(self, images: torch.Tensor, questions: Sequence[str], ids: torch.Tensor) -> EncodedQuestions:
        _check_length(ids.shape[1], self.context)
        mask = (ids != self.pad_id).long()
        states = self.model.text_encoder(
            input_ids=ids,
            attention_mask=mask,
            encoder_hidden_states=images,
            encoder_attention_mask=torch.ones(images.shape[:2], dtype=torch.long, device=self.device),
        ).last_hidden_state
        return EncodedQuestions(states, mask)

    def predict(self, encoded: EncodedQuestions, choices: Sequence[Sequence[list[int]]]) -> torch.Tensor:
        owners = torch.tensor([row for row, own in enumerate(choices) for _ in own], device=self.device)
        flat = [choice for own in choices for choice in own]
        inputs = self.pad_right([[self.start_id, *choice[:-1]] for choice in flat])
        by_choice: dict[int, torch.Tensor] = {}
        for rows, states in _group_by_length(EncodedQuestions(encoded.states[owners], encoded.mask[owners])):
            output = self.model.text_decoder(input_ids=inputs[rows], encoder_hidden_states=states, use_cache=False)
            by_choice.update(zip(rows.tolist(), output.logits, strict=True))
        return torch.cat([by_choice[row][: len(choice)] for row, choice in enumerate(flat)])

    def write(self, encoded: EncodedQuestions) -> torch.Tensor:
        written: dict[int, list[int]] = {}
        for rows, states in _group_by_length(encoded):
            start = torch.full((len(rows), 1), self.start_id, device=self.device)
            tokens = self.model.text_decoder.generate(
                input_ids=start, encoder_hidden_states=states, generation_config=self.greedy
            )
            written.update(zip(rows.tolist(), tokens[:, 1:].tolist(), strict=True))
        return self.pad_right([written[row] for row in range(len(written))])


def _group_by_length(encoded: EncodedQuestions) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield, for each length in tokens, the rows (m,) of that length and their states without padding.

    BLIP's decoder in transformers 5.19 would attend to the padding, because cross-attention gets its mask under the
    wrong name.
    """
    lengths = encoded.mask.sum(1)
    for length in sorted(set(lengths.tolist())):
        rows = (lengths == length).nonzero()[:, 0]
        yield rows, encoded.states[rows, :length]


def _check_length(tokens: int, context: int) -> None:
    if tokens > context:
        raise UnprocessableRowError(RowError("prompt_too_long", TOO_LONG_MESSAGE.format(tokens, context)))


REWARD_LAYER_WIDTHS = (1024, 128, 64, 16, 1)
"""Widths of the head's layers, which have no activations in between."""
N_DROPOUTS = 3
"""Number of layers followed by dropout in training; each dropout counts as a layer in the names of the weights."""
REWARD_MEAN, REWARD_DEVIATION = 0.16717362830052426, 1.0333394966054072
"""Mean and standard deviation of rewards in training, from which upstream computes standard scores."""


class RewardHead(nn.Module):
    """Layers that map the text encoder's first token to a reward; the weights keep upstream's names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number, (before, after) in enumerate(
            zip((width, *REWARD_LAYER_WIDTHS[:-1]), REWARD_LAYER_WIDTHS, strict=True)
        ):
            layers += [nn.Linear(before, after)] + [nn.Identity()] * (number < N_DROPOUTS)
        self.layers = nn.Sequential(*layers)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return rewards (n,) as standard scores, for states (n, width)."""
        rewards: torch.Tensor = self.layers(states.float())[:, 0]
        return (rewards - REWARD_MEAN) / REWARD_DEVIATION


class ImageReward(BlipPreTrainedModel):  # type: ignore[misc]
    """BLIP's text encoder with a regression head on the first token (Xu et al. 2023), built from transformers' BLIP."""

    config: BlipConfig
    _keep_in_fp32_modules_strict: ClassVar = {"reward_head"}

    def __init__(self, config: BlipConfig) -> None:
        super().__init__(config)
        self.vision_model = BlipVisionModel(config.vision_config)
        self.text_encoder = BlipTextModel(config.text_config, add_pooling_layer=False)
        self.reward_head = RewardHead(config.text_config.hidden_size)
        self.post_init()
