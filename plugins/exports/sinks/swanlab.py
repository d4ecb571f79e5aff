"""SwanLab: a run of the project with the run's own id; where and as whom comes from the SWANLAB_ variables."""

import swanlab

from plumbline.plugins.exports.sinks.run_story import RunStory


def publish(run: RunStory) -> str:
    """Writes the facts as the run's configuration, the numbers, and the report as a page; nothing of this machine."""
    unseen = swanlab.Settings.Probe(
        hardware=False, runtime=False, requirements=False, git=False, swanlab=False, monitor=False
    )
    unheard = swanlab.Settings.Terminal(proxy_type="none")
    told = swanlab.init(
        project=run.project, id=run.run_id, name=run.run_id, resume="allow", reinit=True, config=dict(run.facts),
        settings=swanlab.Settings(interactive=False, probe=unseen, terminal=unheard),
    )  # fmt: skip
    try:
        swanlab.log({**run.numbers, "report": swanlab.Html(run.report)}, step=0)
        return str(told.url if told.mode == "online" else told.dir)
    finally:
        swanlab.finish()
