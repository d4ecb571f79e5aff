"""Logs steps to MLflow's active run. If there is none, creates a run that a restarted training loop continues."""

import hashlib
import io
import time

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric
from PIL import Image

from plumbline.plugins.training_loop.trackers.tracker import NAME_PREFIX, StepSender, StepUpdate

EVALUATION_TAG = "plumbline.evaluation"


class Sender(StepSender):
    """Tracker for the MLflow server that is set by MLFLOW_TRACKING_URI or by the training loop."""

    active: str | None = None

    def find_run(self) -> None:
        """Store the id of the active run, which MLflow only returns in the training loop's own thread."""
        run = mlflow.active_run()
        self.active = None if run is None else run.info.run_id

    def send(self, update: StepUpdate) -> None:
        """Log the numbers, the verdicts and the worst images."""
        client = MlflowClient()
        run_id = self.active or self._find_own_run(client)
        now = int(time.time() * 1000)
        client.log_batch(run_id, [Metric(name, value, now, update.step) for name, value in update.values.items()])
        folder = f"{NAME_PREFIX}/{update.step:08d}"
        client.log_text(run_id, update.text, f"{folder}/verdicts.txt")
        for image in update.worst:
            picture = Image.open(io.BytesIO(image.encoded))
            client.log_image(run_id, picture, artifact_file=f"{folder}/{image.metric}-{image.number}.png")

    def _find_own_run(self, client: MlflowClient) -> str:
        folder = hashlib.sha256(self.folder.encode()).hexdigest()[:16]  # an address may contain quotation marks
        known = client.get_experiment_by_name("plumbline")
        experiment = client.create_experiment("plumbline") if known is None else known.experiment_id
        earlier = client.search_runs([experiment], f"tags.`{EVALUATION_TAG}` = '{folder}'", max_results=1)
        run = earlier[0] if earlier else client.create_run(experiment, tags={EVALUATION_TAG: folder})
        return str(run.info.run_id)
