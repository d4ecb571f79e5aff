"""Keys change with everything that can change a result, and with nothing else."""

from dataclasses import replace

import pytest

from pipelines.cells import Outcome, Recipe, Shard, Work, make_cell

SHARD = Shard(group="atlas", name="00000", url="/x/00000.parquet", size=10, etag="e", row_groups=(0, 1), rows=8)
RECIPE = Recipe(stage="answers", version=1, config={"model": "m", "dtype": "float32"})


def key(shard: Shard = SHARD, recipe: Recipe = RECIPE) -> str:
    return make_cell(recipe, shard, node="answers:vqa", metric="vqascore").key


@pytest.mark.parametrize(
    "change",
    [{"url": "/y.parquet"}, {"size": 11}, {"etag": "f"}, {"row_groups": (0,)}],
    ids=lambda change: next(iter(change)),
)
def test_another_source_is_another_key(change: dict[str, object]) -> None:
    assert key(replace(SHARD, **change)) != key()


@pytest.mark.parametrize("change", [{"version": 2}, {"config": {"model": "n"}}, {"stage": "similarities"}], ids=str)
def test_another_recipe_is_another_key(change: dict[str, object]) -> None:
    assert key(recipe=replace(RECIPE, **change)) != key()


def test_the_order_in_which_a_config_is_written_does_not_matter() -> None:
    assert key(recipe=replace(RECIPE, config={"dtype": "float32", "model": "m"})) == key()


def test_a_change_upstream_changes_every_key_below_and_not_the_folder() -> None:
    first = make_cell(RECIPE, SHARD, node="n", metric="m")
    other = make_cell(replace(RECIPE, version=2), SHARD, node="n", metric="m")
    scores = Recipe(stage="scores", version=1, config={})
    below = [
        make_cell(scores, SHARD, node="scores", metric="m", upstream=(cell,), source=False) for cell in (first, other)
    ]
    assert below[0].key != below[1].key
    assert below[0].path.split("/")[:2] == below[1].path.split("/")[:2]
    assert below[0].inputs == (first.path,)


def test_a_path_tells_stage_recipe_generator_and_shard() -> None:
    cell = make_cell(RECIPE, SHARD, node="answers:vqa", metric="vqascore")
    stage, recipe, generator, name = cell.path.split("/")
    assert (stage, generator, name) == ("answers", "atlas", f"00000-{cell.key[:8]}.parquet")
    assert len(recipe) == 8


def test_work_survives_the_way_through_a_dataset() -> None:
    cell = make_cell(RECIPE, SHARD, node="answers:vqa", metric="vqascore")
    work = Work(shard=SHARD, cells=(cell,), outcomes={cell.path: Outcome(state="failed", message='a "quoted" reason')})
    assert Work.from_json(work.to_json()) == work
