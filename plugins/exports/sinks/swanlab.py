"""Publishes to SwanLab, as a run with the same id. The variables SWANLAB_* give the server and the user."""

import swanlab

from plumbline.plugins.exports.sinks.run_contents import RunContents


def publish(run: RunContents) -> str:
    """Log the run's numbers, its benchmark and models as configuration, and its report as HTML.

    Returns the address of the run, or its folder if it is only stored on this machine. No information about this
    machine is sent.
    """
    probe = swanlab.Settings.Probe(
        hardware=False, runtime=False, requirements=False, git=False, swanlab=False, monitor=False
    )
    terminal = swanlab.Settings.Terminal(proxy_type="none")
    published = swanlab.init(
        project=run.project, id=run.run_id, name=run.run_id, resume="allow", reinit=True, config=dict(run.facts),
        settings=swanlab.Settings(interactive=False, probe=probe, terminal=terminal),
    )  # fmt: skip
    try:
        swanlab.log({**run.numbers, "report": swanlab.Html(run.report)}, step=0)
        return str(published.url if published.mode == "online" else published.dir)
    finally:
        swanlab.finish()
