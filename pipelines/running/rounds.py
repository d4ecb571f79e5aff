"""How far a computation is in all of its rounds: what turns out to be damaged is computed in one more."""

import logging
from collections.abc import Callable, Mapping

from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.running.errors import one_line
from plumbline.pipelines.running.progress import NodeProgress

LOG = logging.getLogger(__name__)
NOTHING = NodeProgress(0, 0, 0, 0.0)

Report = Callable[[Mapping[str, NodeProgress]], None]
"""Takes, again and again, the progress of every node that has had something to compute."""


class Rounds:
    """Adds up what the rounds of a computation report, each of which counts from nothing."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._before: Mapping[str, NodeProgress] = {}
        self._round: Mapping[str, NodeProgress] = {}
        self._now: Mapping[str, NodeProgress] = {}
        self._failed = False

    def begin(self, plan: Plan) -> None:
        """A round that computes what the plan lacks."""
        self._before, self._round = self._now, expected(plan)
        self.note({})

    def note(self, progress: Mapping[str, NodeProgress]) -> None:
        """Reports how far this round is, with all before it; a report that fails is logged, and ends no computing."""
        of_round = {name: _so_far(whole, progress.get(name, NOTHING)) for name, whole in self._round.items()}
        nodes = dict.fromkeys((*self._before, *of_round))
        self._now = {name: self._before.get(name, NOTHING).plus(of_round.get(name, NOTHING)) for name in nodes}
        try:
            self._report(self._now)
        except Exception as error:
            if not self._failed:
                LOG.warning("the progress cannot be shown: %s", one_line(error), exc_info=error)
            self._failed = True


def expected(plan: Plan) -> dict[str, NodeProgress]:
    """What each node with something to compute has before it."""
    return {
        item.node.name: NOTHING._replace(missing=item.missing, expected_calls=item.model_calls)
        for item in plan.nodes
        if item.missing
    }


def _so_far(whole: NodeProgress, state: NodeProgress) -> NodeProgress:
    """A node's state with what it has before it; the cells of a shard that died after its report are counted once."""
    return whole.plus(state)._replace(cells=min(state.cells, whole.missing))
