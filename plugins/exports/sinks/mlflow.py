"""MLflow: a run of the experiment, known by the tag plumbline.run_id; where it is comes from MLFLOW_TRACKING_URI."""

import mlflow
from mlflow.tracking import MlflowClient

from plumbline.plugins.exports.sinks.run_story import RunStory

TAG = "plumbline.run_id"
MOST_CHARACTERS = 5000
"""Of a tag, as MLflow has it."""


def publish(run: RunStory) -> str:
    """Writes the numbers, the facts as tags and the report; a run that stands there is written again."""
    experiment = mlflow.set_experiment(run.project)
    standing = MlflowClient().search_runs([experiment.experiment_id], f"tags.`{TAG}` = '{run.run_id}'", max_results=1)
    known = {"run_id": standing[0].info.run_id} if standing else {"run_name": run.run_id}
    with mlflow.start_run(**known) as active:
        mlflow.set_tags({TAG: run.run_id, **{name: value[:MOST_CHARACTERS] for name, value in run.facts.items()}})
        mlflow.log_metrics(dict(run.numbers), step=0)
        mlflow.log_text(run.report, "report.html")
    return f"{mlflow.get_tracking_uri()} experiment {run.project}, run {active.info.run_id}"
