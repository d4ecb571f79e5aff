"""Sweeps whose scores are made up, for claims that no model has a part in."""

from collections.abc import Callable, Mapping
from typing import Any

from plumbline.operators import rows, schemas
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.shards import read_shard
from plumbline.pipelines.sweeps.planning import plan_sweep

Score = Callable[[str, Mapping[str, Any]], float]
"""Of a generator's image, from its ids."""


def write_scores(config: SweepConfig, score: Score = lambda generator, image: 0.5) -> None:
    """Commits every scores cell of a sweep that is missing, so that nothing is left to compute."""
    planned = plan_sweep(config)
    for metric, cells in planned.plan.scores.items():
        for cell in cells:
            generator = cell.shard.group
            images = read_shard(cell.shard, ("image_id", "prompt_id")).to_pylist()
            scores = [
                {**image, "generator": generator, "metric": metric, "score": score(generator, image)}
                for image in images
            ]
            planned.store.save(planned.plan.to_compute(cell), rows.table(scores, schemas.ELEMENT_SCORES))
