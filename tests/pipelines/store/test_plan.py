"""The plan names exactly the cells to compute, and a change only affects the cells that depend on it."""

import os
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from plumbline.assets.making.lessons import GoldWriter
from plumbline.assets.making.prompts import make_prompts
from plumbline.jobs.display.console import make_console
from plumbline.jobs.display.plan_table import show_plan
from plumbline.operators.base.errors import ConfigError, ModelError
from plumbline.operators.metrics.writing import is_asked
from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.writing import make_public_config
from tests.bench_of import (
    SHAPES_FOLDER,
    make_sweep_config,
    plan_bench,
    read_image_rows,
    read_prompt_rows,
    write_benchmark,
    write_rows,
)
from tests.operators import tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_benchmark(tmp_path / "bench")


def make_plan(folder: Path, *overrides: str) -> Plan:
    return plan_bench(folder, folder.parent / "store", *overrides).plan


def list_paths(plan: Plan, stage: str | None = None) -> set[str]:
    return {cell.path for cell in plan.cells if stage in (None, cell.recipe.stage)}


def count_new_cells(before: Plan, after: Plan) -> Counter[str]:
    """Return the number of cells that only the second plan contains, by node."""
    old = {cell.path for cell in before.cells}
    return Counter(cell.recipe.node for cell in after.cells if cell.path not in old)


def test_a_fresh_store_lacks_every_cell_and_the_plan_counts_the_model_calls(folder: Path) -> None:
    plan = make_plan(folder)
    counts = {
        item.node.name: (item.cells, item.missing, item.images, item.model_calls, item.steps) for item in plan.nodes
    }
    assert counts == {
        "questions": (2, 2, 8, 0, 0),
        "answers:vqa": (4, 4, 16, 16, 32),
        "similarities:clip": (4, 4, 16, 16, 32),
        "scores": (8, 8, 16, 0, 0),
    }, "encoding an image is a step, but no call"


@pytest.mark.parametrize("metric", ["gecko", "tifa", "dsg", "vq2"])
def test_the_plan_estimates_the_calls_for_writing_the_packs_questions(tmp_path: Path, metric: str) -> None:
    """The estimated calls, and so the cost shown for a paid service, are accurate to within a quarter."""
    folder = write_benchmark(tmp_path / "bench", ["atlas"], count=256)
    config = make_sweep_config(folder, tmp_path / "store", f"metric=[{metric}]")
    plan = plan_sweep(config, wanted=("questions", "entailment", "scores")).plan
    nodes = {item.node.name: item for item in plan.nodes}
    written = [GoldWriter(prompt).write(metric) for prompt in make_prompts(0, 32)]
    assert nodes["questions:llm"].model_calls == pytest.approx(sum(len(one.lessons) for one in written), rel=0.25)
    asked = sum(is_asked(question.keep) for one in written for question in one.questions)
    answers = nodes["answers:vqa"]
    assert answers.model_calls / answers.images == pytest.approx(asked / 256, rel=0.25)
    if metric == "gecko":
        assert nodes["entailment:nli"].model_calls == pytest.approx(asked, rel=0.25)


def test_a_changed_weight_file_affects_its_cells_and_a_moved_one_none(folder: Path, tmp_path: Path) -> None:
    before = make_plan(folder)
    copy = tmp_path / "models"
    shutil.copytree(SHAPES_FOLDER.parent / "clip-flant5-shapes", copy / "clip-flant5-shapes")
    shutil.copytree(SHAPES_FOLDER.parent / "clip-shapes", copy / "clip-shapes")
    override = f"models.vqa.checkpoint={copy}/clip-flant5-shapes"
    assert count_new_cells(before, make_plan(folder, override)) == {}
    weights = copy / "clip-flant5-shapes/model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert count_new_cells(before, make_plan(folder, override)) == {"answers:vqa": 4, "scores": 4}


@pytest.mark.parametrize(
    "override, touched",
    [
        ("models.vqa.revision=v2", {"answers:vqa": 4, "scores": 4}),
        ("limits.max_pixels=1000", {"answers:vqa": 4, "similarities:clip": 4, "scores": 8}),
        ("+metrics.product={kind: vqascore, model: vqa, reduction: product}", {"scores": 4}),
        ("metrics.vqascore.reduction=product", {"scores": 4}),
        ("metrics.vqascore.template='Is this {}?'", {"questions": 2, "answers:vqa": 4, "scores": 4}),
        ("metrics.clipscore.variant=torchmetrics", {"scores": 4}),
        ("metrics.clipscore.variant=original", {"similarities:clip": 4, "scores": 4}),
        ("models.vqa.dtype=bfloat16", {"answers:vqa": 4, "scores": 4}),
        ("models.vqa.pair_batch=3", {}),
        ("models.vqa.image_batch=3", {}),
        ("cluster.pools.answers.max_size=3", {}),
        ("cluster.max_attempts=9", {}),
        ("max_failed=0.5", {}),
    ],
)
def test_only_what_can_change_a_result_changes_a_key(folder: Path, override: str, touched: dict[str, int]) -> None:
    assert count_new_cells(make_plan(folder), make_plan(folder, override)) == touched


RELEASED_OPTIONS = ('Does this figure show "{}"? Please answer yes or no.', "Yes", "mean")


def test_keys_and_records_have_vqascores_defaults_for_its_model(folder: Path, tmp_path: Path) -> None:
    store, chat = tmp_path / "store", str(tiny.save_qwen2_vl(tmp_path / "qwen"))
    released = plan_bench(folder, store)
    template, answer, reduction = RELEASED_OPTIONS
    said = [f"metrics.vqascore.template='{template}'", f"metrics.vqascore.answer='{answer}'"]
    spelled = plan_bench(folder, store, *said, f"metrics.vqascore.reduction={reduction}")
    assert list_paths(spelled.plan) == list_paths(released.plan) and spelled.config == released.config, (
        "a default may be spelled out"
    )
    other = plan_bench(folder, store, "models.vqa.family=vlm", f"models.vqa.checkpoint={chat}")
    recorded = make_public_config(other.config)["metrics"]["vqascore"]
    assert recorded["template"] == 'Does this figure show "{}"? Please answer Yes or No.'
    assert recorded["reduction"] == "first"
    assert count_new_cells(released.plan, other.plan) == {"questions": 2, "answers:vqa": 4, "scores": 4}


def test_a_released_penalty_is_in_the_keys_and_shown_with_the_question(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = tiny.save_qwen2_vl(tmp_path / "qwen", kind="qwen2_5_vl")
    tiny.write_json(chat / "generation_config.json", {"repetition_penalty": 1.05})
    model = ("metric=[vqascore]", "models.vqa.family=vlm", f"models.vqa.checkpoint={chat}")
    ignored, released = (
        plan_bench(folder, tmp_path / "store", *model, *said)
        for said in ((), ("+models.vqa.repetition_penalty=released",))
    )
    assert count_new_cells(ignored.plan, released.plan) == {"answers:vqa": 4, "scores": 4}
    for planned in (ignored, released):
        show_plan(make_console(), planned)
    told = re.findall("answer=Yes, reduction=first(.*)", capsys.readouterr().out)
    assert told == ["", ", with its checkpoint's repetition penalty"]


def test_answers_are_not_planned_if_every_score_exists(folder: Path) -> None:
    plan, store = make_plan(folder), folder.parent / "store"
    for path in list_paths(plan, "scores"):
        (store / path).parent.mkdir(parents=True, exist_ok=True)
        (store / path).touch()
    assert make_plan(folder).missing == frozenset()
    lost = sorted(path for path in list_paths(plan, "scores") if "atlas" in path)[0]
    (store / lost).unlink()
    missing = make_plan(folder).missing
    assert lost in {cell.path for cell in missing}
    assert Counter(cell.recipe.stage for cell in missing) in (
        Counter(scores=1, answers=1, questions=1),
        Counter(scores=1, similarities=1),
    )


def test_planning_imports_neither_ray_nor_torch() -> None:
    import subprocess
    import sys

    code = (
        "import plumbline.jobs.sweep, plumbline.jobs.status, sys; "
        "print([m for m in ('ray', 'torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "override, problem",
    [
        ("models.vqa.checkpoint=/nowhere", "expected a folder or a hub id"),
        ("models.vqa.checkpoint=${assets:clip-shapes}", "model_type 'clip', expected 'clip_t5'"),
        ("models.clip.checkpoint=${assets:shapes}", "no config.json"),
        ("models.vqa.checkpoint=nobody/nothing", "not a local folder, not in the hub's cache"),
    ],
)
def test_an_invalid_checkpoint_fails_the_plan(folder: Path, override: str, problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        make_plan(folder, override)


def test_a_metric_without_its_model_fails_the_config(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"metrics\.clipscore\.model: no model has the role 'nobody'"):
        make_plan(folder, "metrics.clipscore.model=nobody")
    with pytest.raises(
        ConfigError, match=r"clipscore needs a clip or .*, but the model for role 'vqa' is a clip_flant5"
    ):
        make_plan(folder, "metrics.clipscore.model=vqa")


ABLATION_METRICS_OPTION = "metric=[gecko_baseline,gecko_coverage,gecko_normalised,gecko]"


def test_metrics_that_only_score_differently_share_questions_and_answers(folder: Path) -> None:
    cells = Counter(cell.recipe.stage for cell in make_plan(folder, ABLATION_METRICS_OPTION).cells)
    assert cells == {"questions": 2 * 2, "entailment": 2, "answers": 2 * 4, "scores": 4 * 4}


def test_a_new_generator_needs_no_new_questions(folder: Path) -> None:
    before = make_plan(folder, "metric=[gecko,tifa]")
    write_rows(folder / "images/drift/00000.parquet", read_image_rows("drift", 8))
    assert count_new_cells(before, make_plan(folder, "metric=[gecko,tifa]")) == {"answers:vqa": 4, "scores": 4}


@pytest.mark.parametrize(
    ("override", "touched"),
    [
        ("metrics.gecko.threshold=0.5", {"scores"}),
        ("metrics.gecko.normalise=false", {"scores"}),
        ("metrics.gecko.nli=null", {"scores"}),
        ("metrics.gecko.yes_no=as_written", {"answers:vqa", "scores"}),
        ("metrics.gecko.coverage=false", {"questions:llm", "entailment:nli", "answers:vqa", "scores"}),
        ("models.llm.revision=v2", {"questions:llm", "entailment:nli", "answers:vqa", "scores"}),
        ("models.nli.revision=v2", {"entailment:nli", "scores"}),
        ("models.llm.pair_batch=3", set()),
    ],
)
def test_an_option_of_gecko_only_affects_the_cells_that_depend_on_it(
    folder: Path, override: str, touched: set[str]
) -> None:
    before, after = make_plan(folder, "metric=[gecko]"), make_plan(folder, "metric=[gecko]", override)
    assert set(count_new_cells(before, after)) == touched


def test_only_tifa_uses_the_matcher(folder: Path) -> None:
    before = make_plan(folder, "metric=[gecko,tifa]")
    after = make_plan(folder, "metric=[gecko,tifa]", "models.matcher.revision=v2")
    assert count_new_cells(before, after) == {"answers:vqa": 4, "scores": 4}
    assert {cell.recipe.metric for cell in after.cells if cell.path not in {one.path for one in before.cells}} == {
        "tifa"
    }


# Content of keys


def test_prompts_are_identified_by_ids_and_texts_and_not_by_their_path(folder: Path, tmp_path: Path) -> None:
    before = make_plan(folder)
    os.utime(folder / "prompts.parquet")
    assert count_new_cells(before, make_plan(folder)) == {}
    shutil.copy(folder / "prompts.parquet", tmp_path / "prompts.parquet")
    assert count_new_cells(before, make_plan(folder, f"benchmark.prompts={tmp_path}/prompts.parquet")) == {}
    relabelled = [{**prompt, "skills": ["others"], "source": "web"} for prompt in read_prompt_rows(8)]
    write_rows(folder / "prompts.parquet", list(reversed(relabelled)), row_group=4)
    assert count_new_cells(before, make_plan(folder)) == {"questions": 2}, "two other prompt shards, but no image cells"


def test_the_spelling_of_a_path_does_not_matter(folder: Path) -> None:
    before = make_plan(folder)
    (folder.parent / "link").symlink_to(folder)
    for spelling in (f"{folder}/../bench", f"{folder}/./", f"{folder.parent}/link", f"file://{folder}"):
        images = f"benchmark.images={spelling}/images"
        assert count_new_cells(before, make_plan(folder, images, f"benchmark.prompts={spelling}/prompts.parquet")) == {}


def test_a_link_has_its_own_name_and_the_location_of_its_target(folder: Path, tmp_path: Path) -> None:
    """A generator is named after the link sdxl.parquet, but its shard has the path of the file behind the link.

    In the hub's cache, for example, train.parquet is a link to a blob without an extension.
    """
    for name, place in (
        ("prompts.parquet", folder / "prompts.parquet"),
        ("sdxl.parquet", folder / "images/atlas/00000.parquet"),
    ):
        place.rename(tmp_path / f"blob-{name.split('.')[0]}")
        (tmp_path / name).symlink_to(tmp_path / f"blob-{name.split('.')[0]}")
    sources = plan_bench(
        folder,
        tmp_path / "store",
        f"benchmark.prompts={tmp_path}/prompts.parquet",
        f"benchmark.images={tmp_path}/sdxl.parquet",
    ).sources
    assert sources.generators == ["sdxl"] and len(sources.prompts) == 8
    assert {shard.describe_source()["url"] for shard in sources.image_shards} == {str(tmp_path / "blob-sdxl")}


def test_an_edited_prompt_affects_the_shards_with_its_images(folder: Path) -> None:
    before = make_plan(folder)
    edited = read_prompt_rows(8)
    edited[5]["text"] += " at night"
    write_rows(folder / "prompts.parquet", edited)
    after = make_plan(folder)
    assert count_new_cells(before, after) == {"questions": 1, "answers:vqa": 2, "similarities:clip": 2, "scores": 4}
    old = {cell.path for cell in before.cells}
    shards = {cell.path.split("/")[3][:-17] for cell in after.cells if cell.path not in old}
    assert shards == {"prompts-00001", "00000-00001"}


def test_a_growing_benchmark_does_not_affect_existing_cells(folder: Path) -> None:
    (folder / "prompts").mkdir()
    (folder / "prompts.parquet").rename(folder / "prompts/0.parquet")
    both = f"benchmark.prompts={folder}/prompts"
    before = make_plan(folder, both)
    write_rows(folder / "prompts/1.parquet", read_prompt_rows(12)[8:])
    write_rows(folder / "images/atlas/1.parquet", read_image_rows("atlas", 12)[8:])
    added = {"questions": 1, "answers:vqa": 1, "similarities:clip": 1, "scores": 2}
    assert count_new_cells(before, make_plan(folder, both)) == added


def test_an_address_next_to_an_images_bytes_is_ignored(folder: Path) -> None:
    rows = [{**row, "uri": f"{folder}/images/atlas/{n}.png"} for n, row in enumerate(read_image_rows("atlas", 8))]
    write_rows(folder / "images/atlas/00000.parquet", rows)
    before = make_plan(folder)
    (folder / "images/atlas/0.png").write_bytes(b"anything")
    assert count_new_cells(before, make_plan(folder)) == {}


def test_a_trailing_slash_of_an_endpoint_does_not_matter(folder: Path) -> None:
    api = ("metric=[gecko]", "model@models.llm=api", "models.llm.checkpoint=m", "models.llm.revision=v1")
    plans = [make_plan(folder, *api, f"models.llm.endpoint=http://127.0.0.1:9/v1{slash}") for slash in ("", "/")]
    assert count_new_cells(*plans) == {}
