"""Writes steps as TensorBoard files, in the folder `tensorboard` inside the evaluation's folder."""

import io
from functools import cached_property

import numpy as np
import tensorboard as tensorboard  # so that a missing package is found when the tracker is chosen
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from plumbline.plugins.training_loop.trackers.tracker import NAME_PREFIX, VERDICT_TEXT_NAME, StepSender, StepUpdate


class Sender(StepSender):
    """Writer for TensorBoard's files."""

    @cached_property
    def _writer(self) -> SummaryWriter:
        return SummaryWriter(f"{self.folder}/tensorboard")

    def send(self, update: StepUpdate) -> None:
        """Write the numbers, the verdicts and the worst images."""
        for name, value in update.values.items():
            self._writer.add_scalar(name, value, update.step)
        self._writer.add_text(
            VERDICT_TEXT_NAME, update.text.replace("\n", "\n\n"), update.step
        )  # it is shown as Markdown
        for image in update.worst:
            pixels = np.asarray(Image.open(io.BytesIO(image.encoded)))
            name = f"{NAME_PREFIX}/{image.metric}/worst/{image.number}"
            self._writer.add_image(name, pixels, update.step, dataformats="HWC")
        self._writer.flush()
