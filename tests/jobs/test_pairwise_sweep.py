"""A judge compares the images of several generators, from the command line to the tables of the run."""

import base64
import io
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image

from plumbline.operators.base import schemas
from plumbline.operators.metrics.judges.pairwise import PairwiseConfig
from plumbline.operators.models.calls import Question
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.resolution import resolve_model
from plumbline.pipelines.sweeps.planning import plan_sweep
from tests.bench_of import (
    UNJUDGED_OPTIONS,
    list_arguments,
    read_image_rows,
    read_prompt_rows,
    run_plan,
    write_benchmark,
    write_rows,
)
from tests.commands import find_newest_run_folder, load_job_config, run, run_for_output, run_refused
from tests.operators import tiny
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Answer, Server, make_completion, make_error

ROOT = Path(__file__).parent.parent.parent
N_PROMPTS = 4
BRIGHTNESS_BY_GENERATOR = {"dim": 50, "grey": 100, "light": 200}
"""Brightness of each generator's images; the judge prefers brighter ones."""


def paint(brightness: int, number: int = 0) -> bytes:
    return tiny.encode_image(Image.new("RGB", (8, 8), (brightness, brightness, number)))


def write_images(folder: Path, generator: str, images: Sequence[bytes | None]) -> None:
    """Write a generator's images for the first prompts, in order, as a Parquet file; None marks a missing image."""
    rows = [
        {"image_id": f"{generator}-{number}", "prompt_id": prompt["prompt_id"], "image": image}
        for number, (prompt, image) in enumerate(zip(read_prompt_rows(len(images)), images, strict=True))
    ]
    write_rows(folder / "images" / generator / "00000.parquet", rows)


def read_images(body: Mapping[str, Any]) -> list[Image.Image]:
    parts = [part for part in body["messages"][0]["content"] if part["type"] == "image_url"]
    encoded = (base64.b64decode(part["image_url"]["url"].partition(",")[2]) for part in parts)
    return [Image.open(io.BytesIO(each)) for each in encoded]


def read_pixel(image: Image.Image) -> bytes:
    """Return the three bytes of the first pixel: red, green and blue."""
    return image.tobytes()[:3]


def prefer_brighter(number: int, body: Mapping[str, Any]) -> Answer:
    """Return a judge's reply that chooses the brighter of two images, or neither if they are equally bright."""
    first, second = (read_pixel(image)[0] for image in read_images(body))
    letter = "C" if first == second else "A" if first > second else "B"
    return make_completion(json.dumps({"choice": letter, "rationale": f"{first} and {second}"}))


class JudgedBenchmark:
    """A benchmark of images in a single colour, and a judge on localhost that prefers the brighter of two images."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        write_rows(folder / "prompts.parquet", read_prompt_rows(N_PROMPTS))
        for generator, brightness in BRIGHTNESS_BY_GENERATOR.items():
            write_images(folder, generator, [paint(brightness, number) for number in range(N_PROMPTS)])

    def list_arguments(self, *more: str) -> list[str]:
        service = f"family: openai, checkpoint: judge, endpoint: '{self.server.url}', key_variable: {KEY_VARIABLE}"
        words = ["sweep=own_images", "models=shapes", f"+models.vlm={{{service}, max_retries: 0}}"]
        return list_arguments(self.folder, self.folder / "store", *words, "metric=[pairwise]", "max_failed=1", *more)

    def sweep(self, *more: str, code: int = 0) -> str:
        """Run a sweep, which must end with this exit code; return its output as one line."""
        return " ".join(run_for_output("sweep", *self.list_arguments(*more), code=code).split())

    def count_new_requests(self) -> int:
        """Return the number of requests that the service has received since this method was last called."""
        asked = len(self.server.bodies)
        self.server.bodies.clear()
        return asked

    def read_table(self, name: str) -> pd.DataFrame:
        return pq.read_table(find_newest_run_folder(self.folder / "store") / f"{name}.parquet").to_pandas()

    def read_means(self) -> dict[str, float]:
        scores = self.read_table("scores")
        return {name: round(float(mean), 3) for name, mean in scores.groupby("generator")["score"].mean().items()}


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgedBenchmark]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    server = Server()
    server.script, server.trial = prefer_brighter, make_completion("yes")
    yield JudgedBenchmark(tmp_path, server)
    server.close()


def export_pairs(judged: JudgedBenchmark, output: str, *more: str) -> set[tuple[str, str]]:
    """Export pairs for DPO from the newest run; return a (better, worse) pair of generators for each pair of images."""
    words = (f"store={judged.folder}/store", f"output={judged.folder}/{output}", "format=pairs", "held_out=0", *more)
    assert run("rewards", *words).code == 0
    table = pq.read_table(judged.folder / output / "data").select(["model_0", "model_1", "label_0"]).to_pylist()
    both = [
        (row["model_0"], row["model_1"]) if row["label_0"] == 1 else (row["model_1"], row["model_0"]) for row in table
    ]
    assert all(both.count(pair) == N_PROMPTS for pair in both)
    return set(both)


def test_pairs_for_dpo_can_be_those_that_the_judge_itself_compared(judged: JudgedBenchmark) -> None:
    judged.sweep("metrics.pairwise.pairs=baseline", "metrics.pairwise.baseline=grey")
    compared = {("light", "grey"), ("grey", "dim")}
    assert export_pairs(judged, "by_win_rate", "reward=pairwise") == {*compared, ("light", "dim")}
    assert export_pairs(judged, "by_choice", "reward=pairwise", "selection.agree=[pairwise]") == compared


def test_every_pair_of_images_is_compared_in_both_orders(judged: JudgedBenchmark) -> None:
    said = judged.sweep()
    assert "12 pairs compared in both orders" in said and judged.count_new_requests() == 24
    table = pq.read_table(find_newest_run_folder(judged.folder / "store") / "comparisons.parquet")
    assert table.schema.equals(schemas.COMPARED_PAIRS)
    compared = table.to_pandas()
    assert len(compared) == 24 and set(compared["metric"]) == {"pairwise"}
    orders = compared.groupby(["first_generator", "second_generator"]).size()
    assert orders.to_dict() == {
        (one, two): N_PROMPTS for one in BRIGHTNESS_BY_GENERATOR for two in BRIGHTNESS_BY_GENERATOR if one != two
    }
    for row in compared.itertuples():
        better = BRIGHTNESS_BY_GENERATOR[row.first_generator] > BRIGHTNESS_BY_GENERATOR[row.second_generator]
        assert (row.choice, row.p_first) == (("first", 1.0) if better else ("second", 0.0))
        assert (
            row.reason
            == f"{BRIGHTNESS_BY_GENERATOR[row.first_generator]} and {BRIGHTNESS_BY_GENERATOR[row.second_generator]}"
        )
        assert row.first_image_id.startswith(row.first_generator)
        assert row.first_image_id.rpartition("-")[2] == row.second_image_id.rpartition("-")[2]


def test_a_score_is_the_share_of_comparisons_that_an_image_wins(judged: JudgedBenchmark) -> None:
    judged.sweep()
    assert judged.read_means() == {"dim": 0.0, "grey": 0.5, "light": 1.0}
    assert set(judged.read_table("scores")["n_questions"]) == {2}


def test_a_new_generator_is_compared_and_no_other_pair_is_asked_again(judged: JudgedBenchmark) -> None:
    judged.sweep()
    assert judged.count_new_requests() == 24
    assert (
        "0 cells to compute" in run_for_output("sweep", *judged.list_arguments()) and judged.count_new_requests() == 0
    )
    write_images(judged.folder, "blaze", [paint(250, number) for number in range(N_PROMPTS)])
    judged.sweep()
    assert judged.count_new_requests() == 3 * N_PROMPTS * 2
    assert judged.read_means() == {"blaze": 1.0, "dim": 0.0, "grey": 0.333, "light": 0.667}
    assert len(judged.read_table("comparisons")) == 6 * N_PROMPTS * 2


def test_a_changed_image_is_compared_again_and_no_other(judged: JudgedBenchmark) -> None:
    judged.sweep()
    judged.count_new_requests()
    write_images(judged.folder, "dim", [paint(255), *(paint(50, number) for number in range(1, N_PROMPTS))])
    judged.sweep()
    assert judged.count_new_requests() == 4
    assert judged.read_means() == {"dim": 0.25, "grey": 0.375, "light": 0.875}


def test_a_pair_without_two_images_keeps_its_place_with_the_reason(judged: JudgedBenchmark) -> None:
    good = [paint(50, number) for number in range(N_PROMPTS)]
    write_images(judged.folder, "dim", [None, b"no image", paint(0), good[3]])
    judged.sweep(code=2)
    compared = judged.read_table("comparisons")
    failed = compared[compared["error"].notna()]
    assert len(compared) == 24 and len(failed) == 3 * 2 * 2
    assert failed[["choice", "p_first", "reason"]].isna().all(axis=None)
    assert {error["kind"] for error in failed["error"]} == {"missing_image", "corrupt_image", "blank_picture"}
    assert all(error["message"].startswith("the image of dim: ") for error in failed["error"])
    scores = judged.read_table("scores").set_index("image_id")
    assert scores.loc["dim-0", "error"]["kind"] == "missing_image"
    assert scores.loc[[f"dim-{number}" for number in range(3)], "score"].isna().all()
    assert (scores.loc["grey-0", "score"], scores.loc["grey-0", "n_questions"]) == (0.0, 1)


def test_a_prompt_without_another_image_has_no_pair(judged: JudgedBenchmark) -> None:
    for generator in ("dim", "grey"):
        write_images(
            judged.folder, generator, [paint(BRIGHTNESS_BY_GENERATOR[generator], number) for number in range(2)]
        )
    judged.sweep("benchmark.require_every_prompt=false", code=2)
    scores = judged.read_table("scores").set_index("image_id")
    errors = [scores.loc[f"light-{number}", "error"] for number in (2, 3)]
    assert [error["kind"] for error in errors] == ["no_pair"] * 2
    assert "no generator that light is compared with has an image of prompt" in errors[0]["message"]
    assert len(judged.read_table("comparisons")) == 3 * 2 * 2


def test_identical_files_are_a_tie_and_the_judge_is_not_asked(judged: JudgedBenchmark) -> None:
    write_images(judged.folder, "dim", [paint(100, number) for number in range(N_PROMPTS)])
    judged.sweep()
    assert judged.count_new_requests() == 2 * N_PROMPTS * 2
    compared = judged.read_table("comparisons").query("first_generator == 'dim' and second_generator == 'grey'")
    assert set(compared["choice"]) == {"tie"} and set(compared["p_first"]) == {0.5}
    assert set(compared["reason"]) == {"The two files are identical."}


def test_a_reply_without_a_choice_is_asked_once_more_and_then_fails_the_pair(judged: JudgedBenchmark) -> None:
    def refuse_once_or_always(number: int, body: Mapping[str, Any]) -> Answer:
        darkest = min(read_pixel(image)[0] for image in read_images(body))
        if darkest == BRIGHTNESS_BY_GENERATOR["dim"] or (
            darkest == BRIGHTNESS_BY_GENERATOR["grey"] and len(body["messages"]) == 1
        ):
            return make_completion("I would rather not choose.")
        return prefer_brighter(number, body)

    judged.server.script = refuse_once_or_always
    judged.sweep(code=2)
    assert judged.count_new_requests() == 2 * 24
    compared = judged.read_table("comparisons")
    failed = compared[compared["error"].notna()]
    assert {error["kind"] for error in failed["error"]} == {"unreadable_reply"} and len(failed) == 16
    assert judged.read_means() == pytest.approx({"dim": float("nan"), "grey": 0.0, "light": 1.0}, nan_ok=True)


def test_only_failed_pairs_are_asked_again(judged: JudgedBenchmark) -> None:
    judged.server.script = lambda number, body: (
        make_error(503) if read_pixel(read_images(body)[0])[2] == 1 else prefer_brighter(number, body)
    )
    judged.sweep(code=2)
    judged.count_new_requests()
    assert int(judged.read_table("scores")["score"].isna().sum()) == 3
    judged.server.script = prefer_brighter
    judged.sweep("retry_failed=true")
    assert judged.count_new_requests() == 3 * 2
    assert judged.read_means() == {"dim": 0.0, "grey": 0.5, "light": 1.0}


def test_a_killed_sweep_continues_with_the_pairs_that_are_missing(judged: JudgedBenchmark) -> None:
    reached, released = threading.Event(), threading.Event()

    def wait_at_the_last_shard(number: int, body: Mapping[str, Any]) -> Answer:
        if number >= 16:
            reached.set()
            released.wait(60)
        return prefer_brighter(number, body)

    judged.server.script = wait_at_the_last_shard
    process = subprocess.Popen(
        [sys.executable, "-m", "jobs.sweep", *judged.list_arguments()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert reached.wait(120)
    process.kill()
    process.communicate()
    released.set()
    judged.server.script = prefer_brighter
    judged.count_new_requests()
    judged.sweep()
    assert 8 <= judged.count_new_requests() < 24, "the last answers before the kill may not be saved yet"
    assert len(judged.read_table("comparisons")) == 24


def test_a_dry_run_shows_what_each_selection_of_pairs_costs(judged: JudgedBenchmark) -> None:
    said = judged.sweep("dry_run=true", "+models.vlm.prices={read: 1, written: 4}").replace("│", "")
    said = " ".join(said.split())
    assert "comparisons:vlm: about 0.048 USD for 24 calls of a service" in said and judged.count_new_requests() == 0
    assert "all, or at most for active 3 12 24 0.048 USD" in said and "baseline, baseline=dim 2 8 16 0.032 USD" in said
    assert "neighbours, neighbours=1 2 8 16 0.032 USD" in said


def test_each_generator_is_compared_with_a_baseline(judged: JudgedBenchmark) -> None:
    judged.sweep("metrics.pairwise.pairs=baseline", "metrics.pairwise.baseline=grey")
    assert judged.count_new_requests() == 2 * N_PROMPTS * 2
    assert judged.read_means() == {"dim": 0.0, "grey": 0.5, "light": 1.0}
    compared = judged.read_table("comparisons")
    assert set(compared["first_generator"]) == {"dim", "grey", "light"}
    assert ((compared["first_generator"] == "grey") | (compared["second_generator"] == "grey")).all()
    judged.sweep()  # of all pairs only the rest is asked
    assert judged.count_new_requests() == N_PROMPTS * 2


def test_neighbours_in_the_ranking_of_another_metric_are_compared(judged: JudgedBenchmark) -> None:
    chosen = ("metrics.pairwise.pairs=neighbours", "metrics.pairwise.ranked_by=brightness")
    said = run_refused("sweep", *judged.list_arguments(*chosen))
    assert "metrics.pairwise.ranked_by: no run of small in " in said and "run a sweep with metric=[brightness]" in said
    code = judged.folder / "bright.py"
    code.write_text("def bright(image, prompt):\n    return image.getpixel((0, 0))[0]\n")
    function = f"+metrics.brightness={{kind: function, function: '{code}:bright'}}"
    run_for_output("sweep", *judged.list_arguments(), "metric=[]", function)
    judged.sweep(*chosen)
    assert judged.count_new_requests() == 2 * N_PROMPTS * 2
    both = judged.read_table("comparisons")[["first_generator", "second_generator"]]
    assert {*map(frozenset, both.to_numpy())} == {frozenset(["dim", "grey"]), frozenset(["grey", "light"])}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["benchmark.generators=[dim]"], "compares images from two generators, but the benchmark has one, 'dim'"),
        (["metrics.pairwise.judge=nli"], "pairwise needs a "),
        (["metrics.pairwise.judge=vqa"], "two images in one question, but the model for role 'vqa'"),
        (["metrics.pairwise.pairs=baseline"], "pairwise baseline: pairs=baseline needs the name of a generator"),
        (
            ["metrics.pairwise.pairs=baseline", "metrics.pairwise.baseline=gray"],
            "metrics.pairwise.baseline: expected one of dim, grey, light, got 'gray'; did you mean grey?",
        ),
        (["metrics.pairwise.baseline=grey"], "pairwise baseline: only for pairs=baseline, found pairs=all"),
        (["metrics.pairwise.ablation=blank_images"], "has no stage that ablation=blank_images affects"),
        (["metrics.pairwise.pairs=active"], "metrics.pairwise.pairs: expected a value other than active"),
        (
            ["metrics.pairwise.pairs=active", "adaptive=betting", "metric=[pairwise,entropy]"],
            "metrics.pairwise.pairs: pairs=active leaves out images that entropy would score",
        ),
        (["clips.shown=video"], "clips.shown: metrics.pairwise compares images, not videos"),
    ],
)
def test_a_sweep_that_cannot_compare_is_refused_in_one_sentence(
    judged: JudgedBenchmark, words: Sequence[str], message: str
) -> None:
    assert message in run_refused("sweep", *judged.list_arguments(*words)) and judged.count_new_requests() == 0


def test_generators_without_a_common_prompt_are_refused(judged: JudgedBenchmark) -> None:
    rows = [{"prompt_id": prompt["prompt_id"], "image": paint(9)} for prompt in read_prompt_rows(N_PROMPTS)]
    for number, generator in enumerate(BRIGHTNESS_BY_GENERATOR):
        write_rows(judged.folder / "images" / generator / "00000.parquet", rows[number : number + 1])
    said = run_refused("sweep", *judged.list_arguments("benchmark.require_every_prompt=false"))
    assert "no prompt has images by two of the generators dim, grey, light" in said


@pytest.mark.slow
def test_on_ray_the_same_pairs_are_compared(judged: JudgedBenchmark) -> None:
    judged.sweep("cluster=local")
    assert judged.count_new_requests() == 24 and judged.read_means() == {"dim": 0.0, "grey": 0.5, "light": 1.0}
    assert "0 cells to compute" in run_for_output("sweep", *judged.list_arguments())


def test_a_sweep_with_other_metrics_stops_early_when_win_rates_are_decided(judged: JudgedBenchmark) -> None:
    ended = run("sweep", *judged.list_arguments("adaptive=betting", "adaptive.indifference=0.1"))
    assert ended.code == 0 and "of 3 pairs" in ended.words


def test_an_active_sweep_compares_only_generators_that_do_not_differ_clearly_yet(judged: JudgedBenchmark) -> None:
    count = 96
    write_rows(judged.folder / "prompts.parquet", read_prompt_rows(count))
    for generator, brightness in BRIGHTNESS_BY_GENERATOR.items():
        changing = generator == "light"  # it wins against `grey` on every second prompt
        values = [60 + 80 * (number % 2) if changing else brightness for number in range(count)]
        write_images(judged.folder, generator, [paint(value, number) for number, value in enumerate(values)])
    words = ["adaptive=betting", "metrics.pairwise.pairs=active", "benchmark.generators=[light,grey,dim]"]
    said = judged.sweep(*words)
    assert "of 3 pairs 2 told apart, 0 alike, 1 undecided" in said
    rest = count - 64  # the first round has 64 prompts
    assert judged.count_new_requests() == 2 * (3 * 64 + rest)
    decided = judged.read_table("decisions").set_index(["generator_a", "generator_b"])["verdict"].to_dict()
    assert decided == {("light", "grey"): "undecided", ("light", "dim"): "a", ("grey", "dim"): "a"}
    assert len(judged.read_table("comparisons")) == 2 * (3 * 64 + rest)
    assert judged.read_table("scores").groupby("generator").size().to_dict() == {
        "dim": 64,
        "grey": count,
        "light": count,
    }
    judged.sweep(*words)
    assert judged.count_new_requests() == 0, "the decisions are the same when the sweep is repeated"


def test_images_are_paired_by_prompt_in_whatever_order_and_files_they_are(judged: JudgedBenchmark) -> None:
    ids = [prompt["prompt_id"] for prompt in read_prompt_rows(N_PROMPTS)]
    grey = [{"image_id": f"grey-{n}", "prompt_id": ids[n], "image": paint(100, n)} for n in reversed(range(N_PROMPTS))]
    write_rows(judged.folder / "images/grey/00000.parquet", grey[:3])
    write_rows(judged.folder / "images/grey/00001.parquet", [*grey[3:], {**grey[0], "image": paint(250, 9)}])
    light = [{"prompt_id": ids[n], "image": paint(200, n)} for n in range(N_PROMPTS)]
    write_rows(judged.folder / "images/light/00000.parquet", light)
    judged.sweep(code=2)
    assert judged.count_new_requests() == 24
    table = pq.read_table(find_newest_run_folder(judged.folder / "store") / "comparisons.parquet").to_pandas()
    images_of = {which: table[table[f"{which}_generator"] == "grey"] for which in ("first", "second")}
    for which, rows in images_of.items():
        numbers = rows[f"{which}_image_id"].str.rpartition("-")[2].astype(int)
        assert [ids[number] for number in numbers] == rows["prompt_id"].to_list()
    assert table["first_image_id"].notna().all() and table["p_first"].isin([0.0, 1.0]).all()
    errors = judged.read_table("scores")["error"].dropna()
    assert [error["kind"] for error in errors] == ["no_pair"], "grey's second image of a prompt has no other"


def test_rows_with_their_own_prompts_are_paired_by_their_texts(judged: JudgedBenchmark) -> None:
    for generator, brightness in BRIGHTNESS_BY_GENERATOR.items():
        rows = [
            {"prompt": prompt["text"], "image": paint(brightness, n)}
            for n, prompt in enumerate(read_prompt_rows(N_PROMPTS))
        ]
        write_rows(judged.folder / "rows" / generator / "00000.parquet", rows)
    own = ["sweep=own_rows", f"benchmark.images={judged.folder}/rows", "benchmark.prompts=null"]
    words = [word for word in judged.list_arguments() if not word.startswith(("sweep=", "benchmark."))]
    run_for_output("sweep", *own, *words)
    assert judged.count_new_requests() == 24 and judged.read_means() == {"dim": 0.0, "grey": 0.5, "light": 1.0}


def test_a_shard_that_fails_keeps_its_pairs_with_the_reason(judged: JudgedBenchmark) -> None:
    planned = plan_sweep(load_job_config("sweep", *judged.list_arguments()))
    (judged.folder / "store/comparisons").write_text("a file in place of the folder")
    finished = run_plan(planned)
    compared = pq.read_table(f"{finished.folder}/comparisons.parquet").to_pandas()
    assert len(compared) == 24 and {error["kind"] for error in compared["error"]} == {"shard_failed"}
    assert set(compared["first_image_id"]) == {
        f"{name}-{number}" for name in BRIGHTNESS_BY_GENERATOR for number in range(N_PROMPTS)
    }
    assert finished.results.n_null == 12


@pytest.mark.parametrize("save", [tiny.save_llava, tiny.save_qwen2_vl])
def test_a_local_model_compares_the_letters_in_each_order(save: Callable[[Path], Path], tmp_path: Path) -> None:
    bench, checkpoint = write_benchmark(tmp_path / "bench", count=2), save(tmp_path / "vlm")
    config = json.loads((checkpoint / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 4096
    (checkpoint / "config.json").write_text(json.dumps(config))
    model = f"+models.vlm={{family: vlm, checkpoint: '{checkpoint}'}}"
    said = run_for_output(
        "sweep", *list_arguments(bench, tmp_path / "store", *UNJUDGED_OPTIONS, "metric=[pairwise]", model)
    )
    assert "2 pairs compared in both orders" in said
    files = {row["image_id"]: row["image"] for name in ("atlas", "flint") for row in read_image_rows(name, 2)}
    texts = {prompt["prompt_id"]: prompt["text"] for prompt in read_prompt_rows(2)}
    judge = load(resolve_model(make_model_config(family="vlm", checkpoint=str(checkpoint)), on_gpu=False), "likelihood")
    metric = PairwiseConfig(answers="likelihood")
    compared = pq.read_table(find_newest_run_folder(tmp_path / "store") / "comparisons.parquet").to_pylist()
    assert len(compared) == 4
    for row in compared:
        shown = [Image.open(io.BytesIO(files[row[f"{which}_image_id"]])) for which in ("first", "second")]
        pixels = judge.preprocess_several([image.convert("RGB") for image in shown])
        question = Question(0, metric.question(texts[row["prompt_id"]]), metric.letters)
        (logprobs,) = judge.likelihood(judge.encode([pixels]), [question])
        expected = metric.combine_logprobs(logprobs)
        assert (row["choice"], row["reason"]) == (expected.choice, None)
        assert row["p_first"] == pytest.approx(expected.p_first, abs=1e-4)
    assert len({round(row["p_first"], 4) for row in compared}) > 2, "the orders have answers of their own"
