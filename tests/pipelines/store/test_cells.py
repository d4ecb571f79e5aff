"""Keys change with everything that can change a result, and with nothing else."""

from dataclasses import replace
from typing import Any

import pytest

from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.store.cells import (
    Cell,
    Outcome,
    PlannedCell,
    Recipe,
    Shard,
    Work,
    dump_bundle,
    load_bundle,
    make_recipe,
    to_canonical_json,
)

SHARD = Shard(
    group="atlas",
    name="00000",
    place=Place("/x/00000.parquet", StorageConfig()),
    size=10,
    etag="e",
    row_groups=(0, 1),
    rows=8,
)
RECIPE = make_recipe("answers", 1, {"model": "m", "dtype": "float32"})


def make_cell(shard: Shard = SHARD, recipe: Recipe = RECIPE) -> PlannedCell:
    return PlannedCell(recipe, shard, to_canonical_json(shard.describe_source()))


@pytest.mark.parametrize(
    "change",
    [
        {"place": Place("/y.parquet", StorageConfig())},
        {"size": 11},
        {"etag": "f"},
        {"row_groups": (0,)},
        {"objects": "d"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_source_changes_the_key(change: dict[str, Any]) -> None:
    assert make_cell(replace(SHARD, **change)).key != make_cell().key


@pytest.mark.parametrize(
    "other",
    [
        make_recipe("answers", 2, {"model": "m", "dtype": "float32"}),
        make_recipe("answers", 1, {"model": "n", "dtype": "float32"}),
        make_recipe("similarities", 1, {"model": "m", "dtype": "float32"}),
        make_recipe("answers", 1, {"model": "m", "dtype": "float32"}, make_recipe("questions", 1, {})),
    ],
    ids=["version", "config", "stage", "upstream"],
)
def test_a_changed_recipe_changes_the_key_and_the_folder(other: Recipe) -> None:
    assert make_cell(recipe=other).key != make_cell().key
    assert make_cell(recipe=other).path.split("/")[:2] != make_cell().path.split("/")[:2]


def test_the_order_of_fields_in_a_config_does_not_matter() -> None:
    assert make_recipe("answers", 1, {"dtype": "float32", "model": "m"}) == RECIPE


def test_a_cells_path_contains_its_stage_recipe_generator_and_shard() -> None:
    stage, recipe, generator, name = make_cell().path.split("/")
    assert (stage, generator, name) == ("answers", "atlas", f"00000-{make_cell().key[:8]}.parquet")
    assert len(recipe) == 8


def test_work_survives_a_round_trip_through_json_without_its_secrets() -> None:
    outcomes = {make_cell().path: Outcome(state="failed", message='a "quoted" reason', broken=("questions/x.parquet",))}
    told = Cell(
        node="answers:vqa", stage="answers", metric="vqascore", key=make_cell().key, path=make_cell().path,
        inputs={"questions": ("questions/x.parquet",)}, earlier=("y.parquet",), renew=True,
    )  # fmt: skip
    storage = StorageConfig(key="k", secret="hush-hush")
    work = Work(shard=replace(SHARD, place=Place("/x", storage)), cells=(told,), outcomes=outcomes)
    assert load_bundle(dump_bundle([work]), storage) == (work,)
    assert "hush-hush" not in dump_bundle([work]) + repr(work)
