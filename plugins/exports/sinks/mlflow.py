"""Publishes to MLflow (server: MLFLOW_TRACKING_URI), as a run with the tag plumbline.run_id."""

import mlflow
from mlflow.tracking import MlflowClient

from plumbline.plugins.exports.sinks.run_contents import RunContents

RUN_ID_TAG = "plumbline.run_id"
MAX_TAG_CHARACTERS = 5000


def publish(run: RunContents) -> str:
    """Log the run's numbers as metrics, its benchmark and models as tags, and its report; return the run's address.

    The address contains the server, the experiment and the run id. If the run was published before, its MLflow run is
    updated.
    """
    experiment = mlflow.set_experiment(run.project)
    previous = MlflowClient().search_runs(
        [experiment.experiment_id], f"tags.`{RUN_ID_TAG}` = '{run.run_id}'", max_results=1
    )
    identity = {"run_id": previous[0].info.run_id} if previous else {"run_name": run.run_id}
    with mlflow.start_run(**identity) as active:
        mlflow.set_tags(
            {RUN_ID_TAG: run.run_id, **{name: value[:MAX_TAG_CHARACTERS] for name, value in run.facts.items()}}
        )
        mlflow.log_metrics(dict(run.numbers), step=0)
        mlflow.log_text(run.report, "report.html")
    return f"{mlflow.get_tracking_uri()} experiment {run.project}, run {active.info.run_id}"
