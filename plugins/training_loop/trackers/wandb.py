"""Logs steps to W&B's active run. If there is none, creates a run that a restarted training loop continues."""

import hashlib
import io

import wandb
from PIL import Image

from plumbline.plugins.training_loop.trackers.tracker import NAME_PREFIX, VERDICT_TEXT_NAME, StepSender, StepUpdate

STEP_NAME = f"{NAME_PREFIX}/step"


class Sender(StepSender):
    """Tracker for the Weights & Biases server and user that are set by the WANDB_* variables."""

    def send(self, update: StepUpdate) -> None:
        """Log the numbers, the verdicts and the worst images, with the training step on the x axis of their charts."""
        run = wandb.run
        if run is None:
            name = hashlib.sha256(self.folder.encode()).hexdigest()[:16]
            settings = wandb.Settings(console="off", silent=True)
            run = wandb.init(project="plumbline", id=name, resume="allow", settings=settings)
        run.define_metric(STEP_NAME)
        run.define_metric(f"{NAME_PREFIX}/*", step_metric=STEP_NAME)
        images: dict[str, list[wandb.Image]] = {}
        for image in update.worst:
            shown = wandb.Image(Image.open(io.BytesIO(image.encoded)), caption=f"{image.score:.3f}: {image.prompt}")
            images.setdefault(f"{NAME_PREFIX}/{image.metric}/worst", []).append(shown)
        run.log({**update.values, VERDICT_TEXT_NAME: update.text, **images, STEP_NAME: update.step})
