"""Training of the tiny CLIP-FlanT5 by the two-stage recipe of the VQAScore paper, appendix D: captions, then VQA.

As there, the tower stays as it was trained before. FlanT5 is not pretrained here, so both stages train all of it.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from operators.models.clip_flant5 import ClipFlanT5
from operators.pack.batches import Batch, BatchMaker
from operators.pack.schedule import Report, Stage, optimise

CAPTIONS_EVERY = 10
CAPTIONS_EACH = 2


def exercise_loss(model: ClipFlanT5, batch: Batch) -> torch.Tensor:
    """Mean cross-entropy over the answers' tokens, EOS included; every image is encoded once."""
    features = model.encode_images(batch.pixels)[batch.images]
    logits = model.decode(model.encode_questions(features, batch.before, batch.after), batch.labels)
    return cross_entropy(logits.float().flatten(0, 1), batch.labels.flatten(), ignore_index=model.pad_id)


def caption_stage(model: ClipFlanT5, stage: Stage, maker: BatchMaker, report: Report) -> None:
    """Stage 1."""

    def loss_of(step: int) -> torch.Tensor:
        return exercise_loss(model, maker.captions(stage.images, stage.each, most=stage.most(step)))

    optimise(prepare(model), stage, loss_of, report, name="captions")


def question_stage(model: ClipFlanT5, stage: Stage, maker: BatchMaker, report: Report) -> None:
    """Stage 2, with a step of captions between the questions now and then, so that what they taught is kept."""

    def loss_of(step: int) -> torch.Tensor:
        most = stage.most(step)
        if step % CAPTIONS_EVERY == 0:
            return exercise_loss(model, maker.captions(stage.images, CAPTIONS_EACH, most=most))
        return exercise_loss(model, maker.questions(stage.images, stage.each, most=most))

    optimise(prepare(model), stage, loss_of, report, name="questions")


def prepare(model: ClipFlanT5) -> Sequence[nn.Parameter]:
    """Freezes the tower and returns what is to be trained."""
    model.train()
    model.vision_tower.requires_grad_(False)
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
