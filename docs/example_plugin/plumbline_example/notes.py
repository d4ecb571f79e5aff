"""An example sink: it only counts a run's scores, and sends nothing."""

from plumbline.plugins.exports.sinks.run_contents import RunContents


def publish(run: RunContents) -> str:
    """Send nothing; return a sentence with the number of scores in the run."""
    return f"{len(run.numbers)} numbers of {run.run_id}"
