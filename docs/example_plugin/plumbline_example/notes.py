"""An example sink: an experiment tracker that only counts."""

from plumbline.plugins.exports.sinks.run_contents import RunContents


def publish(run: RunContents) -> str:
    """Return a sentence with the number of scores in the run."""
    return f"{len(run.numbers)} numbers of {run.run_id}"
