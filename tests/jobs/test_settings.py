"""Sweeps, reports, nightly runs and trends show generation settings.

Results with different settings are never compared as if their settings were equal.
"""

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from PIL import Image, PngImagePlugin

from plumbline.pipelines.store.store import Store
from tests.bench_of import write_benchmark
from tests.commands import FinishedJob, find_newest_run_folder, run, run_for_output, run_refused
from tests.files import make_tar
from tests.operators.report.made import make_plain_prompts, make_run

CFG_SETTINGS = {"cfg": {"4": 24}}
OTHER_SETTINGS = {"cfg": {"7.5": 24}, "seed": {"1": 24}}
EARLIER_RUN, LATER_RUN = "20260101-000000-000000", "20260102-030405-000006"


def write_settings(bench: Path, generator: str, columns: dict[str, list[Any]]) -> None:
    """Add these columns to the generator's table, shuffle its rows, and split it into two files of different sizes."""
    (path,) = (bench / "images" / generator).glob("*.parquet")
    table = pq.read_table(path)
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    order = list(range(len(table)))
    random.Random(7).shuffle(order)
    table = table.take(order)
    path.unlink()
    pq.write_table(table.slice(0, 3), path.with_name("a.parquet"))
    pq.write_table(table.slice(3), path.with_name("b.parquet"))


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], str]:
    """Sweep two generators whose tables record their settings under different column names.

    Return the store, the sweep's command-line arguments, and its output.
    """
    folder = tmp_path_factory.mktemp("swept")
    bench = write_benchmark(folder / "bench", ["atlas", "flint"], count=8)
    write_settings(bench, "atlas", {"guidance_scale": [4.0] * 8, "seed": list(range(8)), "width": [64] * 8,
                                   "height": [48] * 8})  # fmt: skip
    write_settings(bench, "flint", {"cfg": ["7.50"] * 6 + [None, "4"], "scheduler": ["DDIM"] * 8})
    words = [f"benchmark.prompts={bench}/prompts.parquet", f"benchmark.images={bench}/images", "sweep=own_images"]
    words += [f"store={folder}/store", "models=shapes", "metric=[clipscore]", "cluster=here"]
    return folder / "store", words, run_for_output("sweep", *words)


def test_a_sweep_reads_settings_and_names_their_columns(swept: tuple[Path, list[str], str]) -> None:
    store, _, said = swept
    assert "settings: cfg (guidance_scale, cfg), size (width x height), seed, sampler (scheduler)" in said
    table = pq.read_table(find_newest_run_folder(store) / "scores.parquet")
    rows = {(row["generator"], row["settings"]["seed"]): row["settings"] for row in table.to_pylist()}
    assert rows["atlas", "3"] == {"cfg": "4", "steps": None, "size": "64x48", "seed": "3", "sampler": None}
    manifest = json.loads((find_newest_run_folder(store) / "manifest.json").read_text())
    assert manifest["settings"] == {
        "atlas": {"cfg": {"4": 8}, "size": {"64x48": 8}, "seed": {str(seed): 1 for seed in range(8)}},
        "flint": {"cfg": {"7.5": 6, "4": 1}, "sampler": {"DDIM": 8}},
    }
    assert "Not compared, as their settings differ: atlas and flint (cfg 4 against 7.5 (86%) and 4 (14%))." in said
    assert "The images of flint were made with several settings: cfg 7.5 (86%) and 4 (14%)." in said


def test_generation_settings_do_not_change_keys_and_can_be_left_out_or_ignored(
    swept: tuple[Path, list[str], str],
) -> None:
    store, words, _ = swept
    left_out = run_for_output("sweep", *words, "benchmark.columns.settings=[]")
    assert (
        "0 cells to compute" in left_out
        and "settings"
        not in pq.read_schema(next((find_newest_run_folder(store) / "scores.parquet").glob("*.parquet"))).names
    )
    assert "their settings differ" not in left_out
    ignored = run_for_output("sweep", *words, "settings=ignore")
    assert "0 cells to compute" in ignored and "their settings differ" not in ignored
    named = run_for_output("sweep", *words, "benchmark.columns.settings={guidance: guidance_scale}")
    assert "settings: guidance (guidance_scale)" in named and "No settings are known for flint." in named
    said = run_refused("sweep", *words, "benchmark.columns.settings=[cgf]")
    assert "benchmark.columns.settings: no images table has a column 'cgf'; found" in said
    assert "'settings': expected 'compare' or 'ignore', got 'ignored'" in run_refused(
        "sweep", *words, "settings=ignored"
    )


def test_a_night_and_its_rewards_report_changed_settings(swept: tuple[Path, list[str], str], tmp_path: Path) -> None:
    """The nightly run is on a copy of the benchmark: atlas has a new guidance scale and two images per prompt."""
    folder = shutil.copytree(swept[0].parent, tmp_path / "copy")
    words = [word.replace(str(swept[0].parent), str(folder)) for word in swept[1]]
    earlier = min(run.name for run in (folder / "store/runs").iterdir())
    for path in (folder / "bench/images/atlas").glob("*.parquet"):
        table = pq.read_table(path)
        cfg = pa.array([9.0] * len(table))
        table = table.set_column(table.schema.get_field_index("guidance_scale"), "guidance_scale", cfg)
        again = table.set_column(0, "image_id", pc.binary_join_element_wise(table.column("image_id"), "again", "-"))
        shifted = again.set_column(2, "image", pa.chunked_array([again.column("image").to_pylist()[::-1]]))
        pq.write_table(pa.concat_tables([table, shifted]), path)
    said = " ".join(run_for_output("nightly", *words, f"nightly.compare={earlier}").split())
    assert (
        f"atlas was generated with other settings: cfg 9 here, 4 in {earlier}. Its changes do not count as clear."
        in said
    )
    assert f"no regression (not counted, as their settings differ: atlas) since {earlier}" in said
    assert re.search(
        r"The seed causes \d+% of the variance of a mean by clipscore\. By clipscore, twice as many images per", said
    )
    rewards = ["rewards", f"store={folder}/store", "format=pairs", "reward=clipscore", "selection.margin=0"]
    noted = run_for_output(*rewards, f"output={tmp_path}/pairs")
    different = "compared with images of other settings: atlas and flint (cfg 9 against 7.5 (86%) and 4 (14%));"
    assert f"{different} settings=ignore hides this warning" in " ".join(noted.split())
    assert "other settings" not in run_for_output(*rewards, f"output={tmp_path}/pairs", "settings=ignore")


def make_two_runs(folder: Path, *, before: Any, after: Any) -> Store:
    """Make two runs, between which atlas becomes clearly worse and borealis does not change."""
    prompts, generators = make_plain_prompts(24), ["atlas", "borealis"]

    def score_after(generator: str, metric: str, prompt: int) -> float:
        return 0.2 + prompt / 100 if generator == "atlas" else 0.5

    def score_before(generator: str, metric: str, prompt: int) -> float:
        return 0.6 + prompt / 100 if generator == "atlas" else 0.5

    given = {"prompts": prompts, "generators": generators, "metrics": ["gecko"]}
    make_run(folder, run_id=EARLIER_RUN, score=score_before, settings=before, **given)
    return make_run(folder, run_id=LATER_RUN, score=score_after, settings=after, **given).store


def run_report(folder: Path, *words: str) -> FinishedJob:
    return run("report", f"store={folder}/store", f"run={LATER_RUN}", f"compare={EARLIER_RUN}", "images=0", *words)


def test_a_changed_setting_is_reported_and_no_change_counts_as_clear(tmp_path: Path) -> None:
    make_two_runs(
        tmp_path,
        before={"atlas": CFG_SETTINGS, "borealis": CFG_SETTINGS},
        after={"atlas": OTHER_SETTINGS, "borealis": CFG_SETTINGS},
    )
    said = run_report(tmp_path).words
    assert (
        f"atlas was generated with other settings: cfg 7.5 here, 4 in {EARLIER_RUN}. Its changes do not count as clear."
        in said
    )
    assert "atlas is worse" not in said and "Nothing changed in the scores that both runs have." in said
    page = (tmp_path / f"store/runs/{LATER_RUN}/report.html").read_text()
    assert "not comparable" in page and "cfg 7.5 against 4" in page
    ignored = run_report(tmp_path, "settings=ignore").words
    assert "atlas is worse by gecko (−0.400)." in ignored and "other settings" not in ignored


@pytest.mark.parametrize("unknown", [{}, {"atlas": {"steps": {"20": 24}}}, {"atlas": {"seed": {"2": 24}}}])
def test_an_unknown_setting_and_another_seed_are_not_changes_of_settings(tmp_path: Path, unknown: Any) -> None:
    make_two_runs(tmp_path, before=unknown, after={"atlas": OTHER_SETTINGS, "borealis": OTHER_SETTINGS})
    assert "atlas is worse by gecko (−0.400)." in run_report(tmp_path).words


def test_generators_with_different_settings_share_no_letter_and_are_not_ranked(tmp_path: Path) -> None:
    settings = {"atlas": CFG_SETTINGS, "borealis": OTHER_SETTINGS}
    made = make_run(tmp_path, prompts=make_plain_prompts(24), metrics=["gecko"], settings=settings)
    said = run("report", f"store={tmp_path}/store", "images=0").words
    assert "with different settings are not compared, whatever their letters" in made.html
    assert "Not compared, as their settings differ: atlas and borealis (cfg 4 against 7.5)." in said
    assert "atlas is the best" not in said and "No settings are known for cobalt." in said
    assert "2 of 2 comparisons of two generators by one metric are clear" in said
    assert "borealis against" in made.html.replace("<bdi>", "").replace("</bdi>", "")
    assert "not comparable: cfg 4 against 7.5" in made.html and "cfg 7.5, seed 1" in made.html
    baseline = run("report", f"store={tmp_path}/store", "images=0", "baseline=atlas").words
    assert "not compared (other settings): borealis" in baseline and "Clearly better than" not in baseline
    ignored = run("report", f"store={tmp_path}/store", "images=0", "settings=ignore").words
    assert "atlas is the best generator." in ignored


def test_if_all_settings_differ_nothing_is_compared_and_no_letter_is_shown(tmp_path: Path) -> None:
    made = make_run(
        tmp_path, generators=["atlas", "borealis"], settings={"atlas": CFG_SETTINGS, "borealis": OTHER_SETTINGS}
    )
    said = run("report", f"store={tmp_path}/store", "images=0").words
    board = pd.read_csv(made.folder / "summary.csv")
    assert len(board) == 12 and board["group"].isna().all() and 'class="letters"' not in made.html
    assert "No two generators are compared. Not compared, as their settings differ: atlas and borealis" in said
    assert "gecko and clipscore compare no two generators: their settings differ." in said


def write_images(folder: Path, generator: str, parameters: str) -> None:
    """Write two PNGs like those of AUTOMATIC1111, each with its prompt in a text file next to it."""
    for number in range(2):
        info = PngImagePlugin.PngInfo()
        info.add_text("parameters", parameters)
        path = folder / generator / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".txt").write_text(f"a cup beside {number} stars")
        Image.new("RGB", (64, 48), "teal").save(path, pnginfo=info)


def test_settings_are_read_from_images_in_folders(tmp_path: Path) -> None:
    write_images(tmp_path / "in", "atlas", "a cup\nSteps: 20, Sampler: Euler a, CFG scale: 4, Seed: 1, Size: 512x512")
    write_images(tmp_path / "in", "flint", "")
    words = [f"images={tmp_path}/in", f"store={tmp_path}/store", "metric=[edge_density]", "cluster=here"]
    assert "settings: those in the images' files and rows" in run_for_output("score", *words)
    manifest = json.loads((find_newest_run_folder(tmp_path / "store") / "manifest.json").read_text())
    atlas = {"cfg": {"4": 2}, "steps": {"20": 2}, "size": {"64x48": 2}, "seed": {"1": 2}, "sampler": {"Euler a": 2}}
    assert manifest["settings"] == {"atlas": atlas, "flint": {"size": {"64x48": 2}}}


def test_the_cfg_is_read_from_jpegs_with_prompts_in_any_script(tmp_path: Path) -> None:
    """AUTOMATIC1111 writes big-endian UTF-16; folders with guidance scales 2 and 9 were once compared as equal."""
    for generator, cfg in (("atlas", 2), ("flint", 9)):
        text = f"一只红色的杯子\nSteps: 20, Sampler: Euler a, CFG scale: {cfg}, Seed: 1, Size: 64x48"
        tags = Image.Exif()
        tags.get_ifd(0x8769)[0x9286] = b"UNICODE\0" + text.encode("utf-16-be")
        for number in range(2):
            path = tmp_path / "in" / generator / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".txt").write_text(f"a cup beside {number} stars")
            Image.new("RGB", (64, 48), "teal").save(path, exif=tags)
    run_for_output("score", f"images={tmp_path}/in", f"store={tmp_path}/store", "metric=[edge_density]", "cluster=here")
    settings = json.loads((find_newest_run_folder(tmp_path / "store") / "manifest.json").read_text())["settings"]
    assert {generator: values["cfg"] for generator, values in settings.items()} == {
        "atlas": {"2": 2},
        "flint": {"9": 2},
    }


def test_fields_of_tars_are_settings_and_take_precedence_over_those_in_images(tmp_path: Path) -> None:
    write_images(tmp_path, "atlas", "a cup\nSteps: 20, CFG scale: 4, Seed: 1")
    fields = json.dumps({"prompt": "a cup", "guidance_scale": 7.5})
    (tmp_path / "in").mkdir()
    sample = [("0.png", (tmp_path / "atlas/0.png").read_bytes()), ("0.json", fields.encode())]
    (tmp_path / "in/0.tar").write_bytes(make_tar(sample))
    run_for_output("ingest", f"tars={tmp_path}/in", f"output={tmp_path}/out", "generator=atlas", "cluster.num_cpus=1")
    (row,) = pq.read_table(next((tmp_path / "out/atlas").glob("*.parquet"))).to_pylist()
    assert row["settings"] == {"cfg": "7.5", "steps": "20", "size": "64x48", "seed": "1", "sampler": None}


def test_trends_break_a_line_where_settings_changed(tmp_path: Path) -> None:
    make_two_runs(
        tmp_path,
        before={"atlas": CFG_SETTINGS, "borealis": CFG_SETTINGS},
        after={"atlas": OTHER_SETTINGS, "borealis": CFG_SETTINGS},
    )
    said = run("trends", f"store={tmp_path}/store").words
    assert f"atlas was generated with other settings in run {LATER_RUN}: cfg 7.5 here, 4 in {EARLIER_RUN}." in said
    (path,) = (tmp_path / "store/trends").glob("*/trends.parquet")
    numbers = {(row["run_id"], row["generator"]): row["settings"] for row in pq.read_table(path).to_pylist()}
    assert numbers[LATER_RUN, "atlas"] == 1 and numbers[LATER_RUN, "borealis"] == numbers[EARLIER_RUN, "atlas"] == 0
    assert "other settings" not in run("trends", f"store={tmp_path}/store", "settings=ignore").words
