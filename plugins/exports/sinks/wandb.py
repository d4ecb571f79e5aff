"""Weights & Biases: a run of the project with the run's own id; where and as whom comes from the WANDB_ variables."""

import wandb

from plumbline.plugins.exports.sinks.run_story import RunStory


def publish(run: RunStory) -> str:
    """Writes the numbers as the run's summary, the facts as its configuration, and the report as an artifact."""
    settings = wandb.Settings(console="off", silent=True)
    told = wandb.init(
        project=run.project, id=run.run_id, name=run.run_id, resume="allow", config=dict(run.facts), settings=settings
    )
    told.summary.update(dict(run.numbers))
    artifact = wandb.Artifact(f"report-{run.run_id}", type="report")
    with artifact.new_file("report.html", encoding="utf-8") as file:
        file.write(run.report)
    told.log_artifact(artifact)
    where = told.url or str(told.dir)
    told.finish()
    return where
