"""Publishes to Weights & Biases, as a run with the same id. The variables WANDB_* give the server and the user."""

import wandb

from plumbline.plugins.exports.sinks.run_contents import RunContents


def publish(run: RunContents) -> str:
    """Log the run's numbers as a summary, its benchmark and models as configuration, and its report as an artifact.

    Returns the address of the run, or its folder if it is only stored on this machine.
    """
    settings = wandb.Settings(console="off", silent=True)
    published = wandb.init(
        project=run.project, id=run.run_id, name=run.run_id, resume="allow", config=dict(run.facts), settings=settings
    )
    published.summary.update(dict(run.numbers))
    artifact = wandb.Artifact(f"report-{run.run_id}", type="report")
    with artifact.new_file("report.html", encoding="utf-8") as file:
        file.write(run.report)
    published.log_artifact(artifact)
    address = published.url or str(published.dir)
    published.finish()
    return address
