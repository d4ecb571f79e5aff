"""Plans the scoring of images that do not exist yet, so that its cost is known before they are generated."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.sources.benchmark import ColumnsConfig
from plumbline.pipelines.sweeps.planning import PlannedSweep, plan_sweep
from plumbline.plugins.generation.generating import PlannedGeneration
from plumbline.plugins.generation.pictures import parse_image_id


def plan_scoring(planned: PlannedGeneration, sweep: SweepConfig) -> PlannedSweep:
    """Plan how a sweep scores all images of a generation, without writing to the store.

    The images of other generators are left out. Raises the same errors as `plan_sweep`, for example for an invalid
    model, before any image is generated.
    """
    ids = list(planned.wanted)
    table = pa.table(
        {
            "image_id": ids,
            "prompt_id": [parse_image_id(image_id).prompt_id for image_id in ids],
            "image": pa.nulls(len(ids), pa.binary()),
        }
    )
    with TemporaryDirectory() as folder:
        file = Path(folder) / planned.config.generator / "00000.parquet"
        file.parent.mkdir()
        pq.write_table(table, file, row_group_size=planned.config.shard_rows)
        benchmark = replace(sweep.benchmark, images=folder, generators=None, columns=ColumnsConfig())
        return plan_sweep(replace(sweep, benchmark=benchmark, dry_run=True, adaptive=None))
