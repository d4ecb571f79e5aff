"""The committed benchmark equals the output of the code that makes it, and its ground truth agrees with its scenes."""

import io
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from plumbline.assets.making.claims import SKILLS
from plumbline.assets.making.prompts import is_held_out, make_content_id, make_prompts
from plumbline.assets.making.scenes import Entity, Scene, draw_scene, to_png
from plumbline.assets.making.tables import (
    GENERATORS,
    PROMPTS_PER_SKILL,
    TIED_FAULTS,
    Benchmark,
    make_benchmark,
    make_benchmark_tables,
)

SHAPES_FOLDER = Path(__file__).parents[2] / "assets" / "shapes"
SEED = 0


@pytest.fixture(scope="module")
def benchmark() -> Benchmark:
    return make_benchmark(SEED)


def read_rows(name: str) -> list[dict[str, object]]:
    committed: list[dict[str, object]] = pq.read_table(SHAPES_FOLDER / name).to_pylist()
    return committed


def test_prompts_are_distinct_and_held_out_and_every_skill_has_the_same_number() -> None:
    prompts = make_prompts(SEED, PROMPTS_PER_SKILL)
    assert len({prompt.prompt_id for prompt in prompts}) == len(prompts) == PROMPTS_PER_SKILL * len(SKILLS)
    assert all(is_held_out(prompt.text) for prompt in prompts)
    assert all(prompt.skill in prompt.skills for prompt in prompts)
    for skill in SKILLS:
        assert sum(prompt.skill == skill for prompt in prompts) == PROMPTS_PER_SKILL


def test_requirements_form_a_graph_with_parents_first() -> None:
    for prompt in make_prompts(SEED, PROMPTS_PER_SKILL):
        seen: set[str] = set()
        for node in prompt.requirements:
            assert set(node.parents) <= seen
            seen.add(node.requirement_id)


def test_committed_tables_equal_the_output_of_the_code(benchmark: Benchmark) -> None:
    tables = make_benchmark_tables(benchmark)
    assert {str(path.relative_to(SHAPES_FOLDER)) for path in SHAPES_FOLDER.rglob("*.parquet")} == tables.keys()
    for name, table in tables.items():
        assert pq.read_table(SHAPES_FOLDER / name).equals(table), name


def test_images_show_the_scenes_behind_the_ground_truth(benchmark: Benchmark) -> None:
    for generator, made in benchmark.depictions.items():
        for depiction in made[::37]:
            name = f"pixels/{SEED}/{generator}/{depiction.prompt.prompt_id}"
            pixels = np.asarray(Image.open(io.BytesIO(depiction.png)))
            assert np.array_equal(pixels, draw_scene(depiction.scene, name))


def test_generators_break_requirements_as_often_as_their_profiles_say(benchmark: Benchmark) -> None:
    """A profile states the fraction of each kind of requirement that the generator's images should break.

    A requirement only counts if the image meets all of its parent requirements.
    """
    for generator in GENERATORS:
        for kind in SKILLS:
            outcomes = [
                node.requirement_id in broken
                for depiction in benchmark.depictions[generator.name]
                for broken in [set(depiction.broken_requirements)]
                for node in depiction.prompt.requirements
                if node.claim.kind == kind and not broken & set(node.parents)
            ]
            share = sum(outcomes) / len(outcomes)
            expected = generator.faults[kind]
            assert abs(share - expected) < 0.06 + 3 * (expected * (1 - expected) / len(outcomes)) ** 0.5


def test_two_generators_tie_and_the_others_differ(benchmark: Benchmark) -> None:
    tied = {generator.name for generator in GENERATORS if generator.faults is TIED_FAULTS}
    assert tied == {"borealis", "cobalt"}
    for first, second in combinations(benchmark.true_means, 2):
        difference = abs(benchmark.true_means[first] - benchmark.true_means[second])
        assert difference < 0.05 if {first, second} == tied else difference > 0.05


def test_ratings_rise_with_the_number_of_requirements_met(benchmark: Benchmark) -> None:
    ratings: dict[object, list[int]] = {}
    for row in read_rows("ratings.parquet"):
        rating = row["rating"]
        assert isinstance(rating, int) and 1 <= rating <= 5
        ratings.setdefault(row["image_id"], []).append(rating)
    assert {len(given) for given in ratings.values()} == {3}
    mean = {
        correct: np.mean([ratings[row["image_id"]] for row in read_rows("truth.parquet") if row["correct"] is correct])
        for correct in (True, False)
    }
    assert mean[True] > mean[False] + 1


def test_drawing_is_deterministic_and_depends_on_the_seed() -> None:
    scene = Scene(entities=(Entity(shape="heart", colour="red", size="large", part="dot", cell=(1, 2)),))
    assert np.array_equal(draw_scene(scene, "a"), draw_scene(scene, "a"))
    assert not np.array_equal(draw_scene(scene, "a"), draw_scene(scene, "b"))
    assert to_png(draw_scene(scene, "a")) == to_png(draw_scene(scene, "a"))


def test_an_entity_is_drawn_in_its_own_cell() -> None:
    empty = draw_scene(Scene(entities=()), 7).astype(int)
    for row in range(3):
        for column in range(3):
            entity = Entity(shape="square", colour="blue", size="large", part=None, cell=(row, column))
            changed = np.abs(draw_scene(Scene(entities=(entity,)), 7).astype(int) - empty).sum(-1) > 0
            outside = changed.copy()
            outside[32 * row : 32 * row + 32, 32 * column : 32 * column + 32] = False
            assert changed.any() and not outside.any()


def test_content_ids_depend_on_the_boundaries_between_parts() -> None:
    assert make_content_id(b"ab", b"c") != make_content_id(b"a", b"bc")
