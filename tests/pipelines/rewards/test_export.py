"""An export is complete or visibly unfinished, continues after an interruption, and names every number's source."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.metrics.questions.gecko import GeckoConfig
from plumbline.operators.rewards.formats import FORMATS
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.rewards.output import ExportedShardRecord
from plumbline.pipelines.rewards.rewards import ExportResult, export_rewards
from plumbline.pipelines.rewards.rewards_config import RewardsConfig
from tests.bench_of import (
    CAPTIONED_OPTIONS,
    list_captioned_images,
    make_score_config,
    plan_bench,
    read_image_rows,
    read_prompt_rows,
    run_config,
    run_plan,
    save_scores,
    write_rows,
)
from tests.pipelines.rewards.conftest import (
    GENERATORS,
    N_PROMPTS,
    Export,
    ScoredBenchmark,
    make_config,
    read_files,
    run_benchmark,
)

EVERY_FORMAT = tuple(name for name in FORMATS if FORMATS[name].edits != "only")


class SimulatedDeath(BaseException):
    """Exception that simulates the death of the process."""


def die_at_write(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Make calls to `Place.create` raise SimulatedDeath after the first `number` calls, as if the process had died."""
    done, before = 0, Place.create

    def create(place: Place, data: bytes) -> bool:
        nonlocal done
        done += 1
        if done > number:
            raise SimulatedDeath
        return before(place, data)

    monkeypatch.setattr(Place, "create", create)


@pytest.mark.parametrize("form", ["pairs", pytest.param("imagereward", marks=pytest.mark.slow)])
def test_an_export_that_is_killed_at_any_write_goes_on_to_the_same_output(
    form: str, export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"reward": "clipscore", "shard_rows": 2, "selection": {"max_examples": 3}}
    export(form, tmp_path / "whole", **options)
    whole = read_files(tmp_path / "whole")
    assert not [path for path in whole if "_export" in path or "unfinished" in path]
    for number in range(100):
        place = tmp_path / f"killed-{number}"
        with monkeypatch.context() as patch:
            die_at_write(patch, number)
            try:
                export(form, place, **options)
                break
            except SimulatedDeath:
                pass
        assert not (place / "manifest.json").exists()
        assert number == 0 or (place / "unfinished.json").exists()
        export(form, place, **options)
        assert read_files(place) == whole
        shutil.rmtree(place)
    assert number > 5


def test_a_row_group_is_read_once_even_if_many_shards_need_it(
    export: Export, scored: ScoredBenchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, int]] = []
    read_row_groups = pq.ParquetFile.read_row_groups

    def count_reads(file: pq.ParquetFile, row_groups: list[int], **options: object) -> object:
        if "image" in options["columns"]:  # type: ignore[operator]
            read.append((file.metadata.serialized_size, *row_groups))
        return read_row_groups(file, row_groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", count_reads)
    ended = export("pairs", reward="clipscore", shard_rows=1)
    assert ended.written > 2 * len(GENERATORS) and ended.unverified == 0
    assert len(read) == len(GENERATORS) * N_PROMPTS // 4, "row groups of four"


def test_a_file_of_all_pairs_stores_images_about_once_and_notes_the_number_of_pairs(tmp_path: Path) -> None:
    draws = np.random.default_rng(7)
    generators = [f"generator{number}" for number in range(10)]
    write_rows(tmp_path / "bench/prompts.parquet", read_prompt_rows(3))
    size = 0
    for generator in generators:
        rows = read_image_rows("atlas", 3)
        for row in rows:
            row["image_id"] = f"{generator}-{row['image_id']}"
            Image.fromarray(draws.integers(0, 256, (96, 96, 3), np.uint8)).save(buffer := io.BytesIO(), "PNG")
            row["image"] = buffer.getvalue()
            size += len(row["image"])
        write_rows(tmp_path / "bench/images" / generator / "00000.parquet", rows)
    planned = plan_bench(tmp_path / "bench", tmp_path / "store", "metric=[clipscore]")
    save_scores(planned, lambda generator, image: draws.random())
    run_plan(plan_bench(tmp_path / "bench", tmp_path / "store", "metric=[clipscore]"))
    values = {"store": str(tmp_path / "store"), "output": str(tmp_path / "out"), "format": "pairs", "held_out": 0}
    for limit, name in ((None, "out"), (2, "limited")):
        options = {**values, "output": str(tmp_path / name), "selection": {"margin": 0.0, "per_prompt": limit}}
        ended = export_rewards(read_config(options, RewardsConfig), lambda record: None)
        assert any("selection.per_prompt" in note for note in ended.notes) == (limit is None)
    pairs = [pq.read_table(file).num_rows for file in (tmp_path / "out/data").iterdir()]
    written = sum(file.stat().st_size for file in (tmp_path / "out/data").iterdir())
    assert sum(pairs) == 3 * 45 and written < 2.1 * size, "both columns have an image that wins and loses"


def test_a_complete_export_is_not_written_again(scored: ScoredBenchmark, tmp_path: Path) -> None:
    reported: list[ExportedShardRecord] = []
    asked = make_config(scored, tmp_path / "out", "pairs", reward="clipscore")
    first = export_rewards(asked, reported.append)
    assert first.written == len(reported) > 2
    before = {path: (tmp_path / "out" / path).stat().st_mtime_ns for path in read_files(tmp_path / "out")}
    again = export_rewards(asked, reported.append)
    assert again.written == 0 and len(reported) == first.written
    assert again._replace(written=first.written) == first
    assert before == {path: (tmp_path / "out" / path).stat().st_mtime_ns for path in read_files(tmp_path / "out")}


@pytest.mark.parametrize(
    "other, named",
    [({"reward": "gecko"}, "reward"), ({"held_out": 0.5}, "held_out"), ({"form": "hpdv3"}, "format")],
)
def test_an_output_contains_a_single_export(other: dict[str, object], named: str, export: Export) -> None:
    export("pairs", reward="clipscore")
    with pytest.raises(ConfigError, match=rf"contains another export \(with another {named}\); choose another output"):
        export(**{"form": "pairs", "reward": "clipscore", **other})


def test_a_folder_with_other_files_is_refused(export: Export, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="expected an empty folder"):
        export("pairs")
    assert list(read_files(tmp_path / "out")) == ["notes.txt"]


@pytest.mark.parametrize("form", EVERY_FORMAT)
def test_no_prompt_is_in_both_splits_in_any_format(
    form: str, export: Export, tmp_path: Path, scored: ScoredBenchmark
) -> None:
    ended = export(form)
    assert set(ended.splits) == {"train", "test"} and not ended.left_out and ended.exit_code == 0
    texts = [prompt["text"] for prompt in read_prompt_rows(N_PROMPTS)]
    sides = {split: _find_prompts(tmp_path / "out", split, texts) for split in ("train", "test")}
    assert not sides["train"] & sides["test"] and sides["train"] | sides["test"] <= set(texts)
    whole = pd.concat([scored.scores]).dropna(subset="score").groupby("prompt_id").generator.nunique()
    assert len(sides["train"] | sides["test"]) == len(whole)
    assert len({frozenset(_find_prompts(tmp_path / "out", split, texts)) for split in sides}) == 2


def _find_prompts(folder: Path, split: str, texts: list[str]) -> set[str]:
    found: set[str] = set()
    for path in [*folder.glob(f"data/{split}-*"), *folder.glob(f"{split}.json*")]:
        if path.suffix == ".parquet":
            content = (
                pq.read_table(path)
                .to_pandas()
                .drop(columns=["jpg_0", "jpg_1"], errors="ignore")
                .to_string(max_colwidth=None)
            )
        else:
            content = path.read_bytes().decode(errors="replace")
        found |= {text for text in texts if text in content}
    return {text for text in found if not any(text != other and text in other for other in found)}


@pytest.mark.parametrize("form", [name for name in EVERY_FORMAT if FORMATS[name].images != "none"])
def test_an_image_without_a_score_is_in_no_example(form: str, export: Export, tmp_path: Path) -> None:
    export(form)
    assert not any(
        content == b"no image" or b"no image" in content for content in read_files(tmp_path / "out").values()
    )


def test_the_manifest_records_the_origin_of_everything(export: Export, tmp_path: Path, scored: ScoredBenchmark) -> None:
    export(
        "pairs",
        reward={"weights": {"clipscore": 2.0, "gecko": 1.0}, "unit": "noise"},
        selection={"margin": 0.5, "margin_unit": "noise"},
    )
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["run_id"] == scored.finished.run_id
    metrics = manifest["scorer"]["metrics"]
    assert {name: metric["lower_is_better"] for name, metric in metrics.items()} == {"clipscore": False, "gecko": True}
    assert metrics["gecko"]["options"]["likelihood"] == "nll"
    combined = manifest["scorer"]["reward"]
    assert combined["weights"] == {"clipscore": 2.0, "gecko": 1.0} and combined["unit"] == "noise"
    assert combined["scales"]["gecko"]["spread"] == pytest.approx(manifest["reward"]["noise_of_metrics"]["gecko"])
    assert set(manifest["scorer"]["models"]) == {"clip", "llm", "vqa", "nli"}
    assert manifest["scorer"]["models"]["vqa"]["resolved"][0]["parts"]["checkpoint"]
    assert manifest["reward"]["noise"] > 0
    assert manifest["selection"]["margin_unit"] == "noise" and manifest["split"]["held_out"] == 0.25
    assert len(manifest["sources"]) == 1 + len(GENERATORS) and all(source["etag"] for source in manifest["sources"])
    assert manifest["images"] == 3 * N_PROMPTS and manifest["images_without_reward"] == 1
    assert manifest["images_unverified"] == 0, "the digest of every image equals that of the scored image"
    for split in manifest["splits"].values():
        for file in split["files"]:
            assert pq.read_metadata(tmp_path / "out" / file["path"]).num_rows == file["rows"]


def test_pairs_on_which_the_chosen_metrics_disagree_are_left_out(
    export: Export, tmp_path: Path, scored: ScoredBenchmark
) -> None:
    every = export("pairs", tmp_path / "every", reward="clipscore")
    agreed = export("pairs", tmp_path / "agreed", reward="clipscore", selection={"agree": ("gecko",)})
    assert 0 < _count_examples(agreed) < _count_examples(every)
    for path in (tmp_path / "agreed" / "data").glob("*.parquet"):
        for row in pd.read_parquet(path).itertuples():
            worse = row.image_1_uid if row.label_0 else row.image_0_uid
            assert scored.score("gecko", row.best_image_uid) < scored.score("gecko", worse)


def _count_examples(ended: ExportResult) -> int:
    return sum(split["examples"] for split in ended.splits.values())


def test_the_direction_of_a_metric_is_known() -> None:
    assert GeckoConfig(writer="llm", model="vqa", likelihood="nll").prefers_lower
    assert not GeckoConfig(writer="llm", model="vqa").prefers_lower


@pytest.fixture
def scored_files(scored: ScoredBenchmark, tmp_path: Path) -> ScoredBenchmark:
    """Make a run over image files whose paths are in the rows' `uri` column."""
    folder = tmp_path / "bench"
    write_rows(folder / "prompts.parquet", read_prompt_rows(4))
    for generator in GENERATORS[::2]:
        rows = []
        for number, row in enumerate(read_image_rows(generator, 4)):
            file = folder / "images" / generator / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(row["image"])
            rows.append({"image_id": row["image_id"], "prompt_id": row["prompt_id"], "uri": str(file)})
        write_rows(folder / "images" / generator / "00000.parquet", rows)
    return run_benchmark(folder, tmp_path / "store", "metric=[clipscore]")


def replace_image(scored_files: ScoredBenchmark) -> None:
    (scored_files.folder / "images" / "atlas" / "1.png").write_bytes(read_image_rows("cobalt", 2)[1]["image"])


def delete_image(scored_files: ScoredBenchmark) -> None:
    (scored_files.folder / "images" / "atlas" / "1.png").unlink()


@pytest.mark.parametrize("harm, kind", [(replace_image, "not the image that was scored"), (delete_image, "nothing at")])
def test_an_image_that_has_changed_since_it_was_scored_is_left_out(
    harm: Callable[[ScoredBenchmark], None], kind: str, scored_files: ScoredBenchmark, tmp_path: Path
) -> None:
    """An export that leaves out too many examples fails; the same command completes it once the image is restored."""
    kept = (scored_files.folder / "images" / "atlas" / "1.png").read_bytes()
    harm(scored_files)
    asked = make_config(scored_files, tmp_path / "out", "pairs", held_out=0.0, shard_rows=1)
    with pytest.raises(SourceError, match=rf"1 of 4 examples could not be made \(first error: missing_image: .*{kind}"):
        export_rewards(asked, lambda record: None)
    assert not (tmp_path / "out" / "manifest.json").exists()
    (scored_files.folder / "images" / "atlas" / "1.png").write_bytes(kept)
    ended = export_rewards(asked, lambda record: None)
    assert (ended.written, ended.exit_code, ended.splits["train"]["examples"]) == (1, 0, 4)
    table = pd.concat(pd.read_parquet(path) for path in (tmp_path / "out" / "data").glob("*"))
    assert {*table.image_0_url, *table.image_1_url} == {str(path) for path in scored_files.folder.rglob("*.png")}


def test_images_in_rows_with_their_own_prompts_form_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns have custom names, and the rows have neither image ids nor prompt ids."""
    for generator in GENERATORS[::2]:
        write_rows(tmp_path / "images" / generator / "00000.parquet", list_captioned_images(generator, 6))
    asked = make_score_config(tmp_path / "images", tmp_path / "store", "metric=[clipscore]", *CAPTIONED_OPTIONS)
    finished = run_config(asked)
    values = {"store": str(tmp_path / "store"), "output": str(tmp_path / "out"), "format": "pairs", "held_out": 0.0}
    values["selection"] = {"margin": 0.0}
    ended = export_rewards(read_config(values, RewardsConfig), lambda record: None)
    assert (ended.exit_code, ended.left_out, ended.unverified) == (0, {}, 0)
    scores = finished.results.read_scores().to_pandas().set_index(["generator", "image_id"]).score
    contents = {row["picture"] for generator in GENERATORS[::2] for row in list_captioned_images(generator, 6)}
    pairs = pd.concat(pd.read_parquet(path) for path in (tmp_path / "out" / "data").glob("*"))
    assert set(pairs.caption) == {row["caption"] for row in list_captioned_images("atlas", 6)}
    for row in pairs.itertuples():
        first, second = (scores[tuple(uid.split("/"))] for uid in (row.image_0_uid, row.image_1_uid))
        assert row.label_0 == float(first > second) and {row.jpg_0, row.jpg_1} <= contents


def test_rows_of_several_images_have_rewards_but_are_in_no_pair(tmp_path: Path) -> None:
    folder = tmp_path / "bench"
    write_rows(folder / "prompts.parquet", read_prompt_rows(4))
    for generator in GENERATORS[::2]:
        frames = [{**row, "image": [row["image"], row["image"]]} for row in read_image_rows(generator, 4)]
        write_rows(folder / "images" / generator / "00000.parquet", frames)
    run = run_benchmark(folder, tmp_path / "store", "metric=[clipscore]")
    pairs = export_rewards(make_config(run, tmp_path / "pairs", "pairs", held_out=0.0), lambda record: None)
    assert (pairs.exit_code, pairs.left_out, _count_examples(pairs)) == (0, {"several_images": 4}, 0)
    rewards = export_rewards(make_config(run, tmp_path / "rewards", "rewards", held_out=0.0), lambda record: None)
    assert (rewards.left_out, _count_examples(rewards)) == ({}, 8)


def test_an_example_without_its_image_is_counted_within_the_error_budget(
    scored_files: ScoredBenchmark, tmp_path: Path
) -> None:
    delete_image(scored_files)
    ended = export_rewards(
        make_config(scored_files, tmp_path / "out", "pairs", held_out=0.0, max_failed=0.25), lambda record: None
    )
    assert (ended.exit_code, ended.left_out, ended.splits["train"]["examples"]) == (2, {"missing_image": 1}, 3)


def test_images_whose_cells_are_pruned_are_counted_as_unverified(scored_files: ScoredBenchmark, tmp_path: Path) -> None:
    shutil.rmtree(scored_files.store / "similarities")
    ended = export_rewards(make_config(scored_files, tmp_path / "out", "pairs", held_out=0.0), lambda record: None)
    assert (ended.unverified, ended.exit_code) == (8, 0)


@pytest.mark.parametrize(
    "options, complaint",
    [
        ({"reward": "tifa"}, r"reward: expected metrics of the run \(clipscore, gecko\), got 'tifa'"),
        (
            {"selection": {"agree": ("tifa",)}},
            "selection.agree: expected metrics of the run .*, got 'tifa'",
        ),
        ({"reward": {"gecko": -1.0}}, "reward.weights.gecko: expected a weight above 0 and at most 1e.06, got -1"),
        ({"reward": {}}, "reward: expected at least one metric, got none"),
        (
            {"reward": {"weights": {"gecko": "much"}}},
            "config key 'reward.weights.gecko': expected a number, got 'much'",
        ),
        (
            {"reward": {"gecko": 1.0, "unit": "noise"}},
            "config key 'reward.weights.unit': expected a number, got 'noise'",
        ),
        (
            {"reward": ["gecko"]},
            "reward: expected a metric's name or weights by name, such as {vqascore: 1, hpsv3: 0.5}",
        ),
        (
            {"baseline_generator": "atlas"},
            "baseline_generator: expected baseline as well, got none; set it to a run with images from 'atlas'",
        ),
        ({"baseline": "yesterday"}, "baseline=yesterday: no such run"),
        ({"selection": {"margin": 1e6}}, "nothing to export; 35 of 36 images have a reward"),
        ({"selection": {"margin": -1.0}}, "selection.margin: expected 0 or more, got -1"),
        ({"run": "yesterday"}, "run=yesterday: no such run"),
        ({"form": "dense", "reward": "clipscore"}, "format=dense: expected a metric that asks several questions"),
        ({"form": "pair"}, "format: expected one of pairs, .*, got 'pair'; did you mean pairs"),
    ],
    ids=str,
)
def test_an_impossible_export_is_refused_in_one_line_and_writes_nothing(
    options: dict[str, object], complaint: str, export: Export, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        export(**{"form": "pairs", **options})
    assert "\n" not in str(refused.value) and not (tmp_path / "out").exists()


@pytest.mark.parametrize("form", ["pairs", "ms_swift"])
def test_an_export_to_s3_equals_an_export_to_a_folder(
    form: str, export: Export, scored: ScoredBenchmark, bucket: str, tmp_path: Path
) -> None:
    options = {"reward": "clipscore"}
    export(form, **options)
    for _ in range(2):
        export(form, f"{bucket}/out", **options)
    place = StorageConfig().locate(f"{bucket}/out")
    below = {path: (place / path).read() for path, _ in place.files()}
    assert below == read_files(tmp_path / "out")
