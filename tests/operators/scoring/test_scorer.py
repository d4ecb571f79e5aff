"""Images and prompts are scored in this process as in a sweep, and each failure costs only its own row."""

import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import plumbline
from plumbline.jobs.scorer import open_scorer
from plumbline.operators.base import schemas
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.scoring.scorer import Scorer
from tests.bench_of import plan_bench, run_plan, write_benchmark
from tests.operators.models.endpoint import KEY_VARIABLE, Server, make_completion, make_error
from tests.operators.tiny import draw_image, encode_image

ROOT = Path(__file__).parent.parent.parent
METRICS_OPTION = "metric=[vqascore,clipscore,gecko,tifa]"


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return open_scorer(METRICS_OPTION, "models=shapes")


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("bench"), generators=("atlas",), count=4)


@pytest.fixture(scope="module")
def images(benchmark: Path) -> list[bytes]:
    table = pq.read_table(benchmark / "images" / "atlas" / "00000.parquet")
    return [row["image"]["bytes"] if isinstance(row["image"], dict) else row["image"] for row in table.to_pylist()]


@pytest.fixture(scope="module")
def prompts(benchmark: Path) -> list[str]:
    """Return the prompts in the order of the images."""
    texts = {row["prompt_id"]: row["text"] for row in pq.read_table(benchmark / "prompts.parquet").to_pylist()}
    table = pq.read_table(benchmark / "images" / "atlas" / "00000.parquet")
    return [texts[prompt_id] for prompt_id in table.column("prompt_id").to_pylist()]


def read_scores(table: pa.Table, metric: str) -> list[float | None]:
    return [row["score"] for row in table.to_pylist() if row["metric"] == metric]


def test_scores_and_elements_equal_those_of_a_sweep(
    scorer: Scorer, benchmark: Path, images: list[bytes], prompts: list[str], tmp_path: Path
) -> None:
    planned = plan_bench(benchmark, tmp_path / "store", METRICS_OPTION)
    run_plan(planned)
    scored = scorer.score_table(images, prompts)
    assert scored.schema == schemas.ELEMENT_SCORES and len(scored) == 16
    for metric, cells in planned.plan.scores.items():
        (cell,) = cells
        swept = planned.store.read(cell.path).to_pylist()
        ours = [row for row in scored.to_pylist() if row["metric"] == metric]
        assert [row["score"] for row in ours] == pytest.approx([row["score"] for row in swept], abs=1e-6)
        for row, expected in zip(ours, swept, strict=True):
            given = [(element["text"], element["given"]) for element in row["elements"] or ()]
            assert given == [(element["text"], element["given"]) for element in expected["elements"] or ()]
            assert (row["elements"] is None) == (metric in ("vqascore", "clipscore"))


def test_concurrent_calls_get_the_same_scores_as_separate_calls(
    scorer: Scorer, images: list[bytes], prompts: list[str]
) -> None:
    calls = [(images[:place], prompts[:place]) for place in (1, 2, 3)]
    alone = [scorer.score_table(*call).column("score").to_pylist() for call in calls]
    with ThreadPoolExecutor(2) as threads:
        together = [
            table.column("score").to_pylist() for table in threads.map(lambda call: scorer.score_table(*call), calls)
        ]
    assert together == [pytest.approx(scores, abs=1e-6) for scores in alone]


def test_an_image_may_be_a_file_bytes_or_decoded(
    scorer: Scorer, images: list[bytes], prompts: list[str], tmp_path: Path
) -> None:
    (tmp_path / "image.png").write_bytes(images[0])
    decoded = Image.open(io.BytesIO(images[0]))
    given = [images[0], decoded, tmp_path / "image.png", str(tmp_path / "image.png")]
    for metric in ("vqascore", "gecko"):
        scores = read_scores(scorer.score_table(given, [prompts[0]] * 4), metric)
        assert scores[0] is not None and scores == pytest.approx([scores[0]] * 4, abs=1e-6)


def test_a_single_image_or_prompt_needs_no_list(scorer: Scorer, images: list[bytes]) -> None:
    text = "a red circle left of a blue square"
    listed = scorer.score_table(images[:3], [text] * 3, ["clipscore"])
    assert scorer.score_table(images[:3], text, "clipscore").equals(listed)
    for alone in (images[0], np.asarray(Image.open(io.BytesIO(images[0])))):
        scored = scorer.score_table(alone, text, "clipscore")
        assert scored.drop_columns("score").equals(listed.slice(0, 1).drop_columns("score"))
        assert scored["score"].to_pylist() == pytest.approx(listed["score"].to_pylist()[:1], abs=1e-6)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "CMYK", "YCbCr", "P", "1", "LA", "I;16"])
def test_a_decoded_image_of_any_mode_is_scored_like_its_file(scorer: Scorer, mode: str, tmp_path: Path) -> None:
    suffix = "jpg" if mode in ("CMYK", "YCbCr") else "png"
    image = Image.fromarray(np.full((40, 60), 40_000, np.uint16)) if mode == "I;16" else draw_image(3).convert(mode)
    image.save(tmp_path / f"image.{suffix}")
    opened = Image.open(tmp_path / f"image.{suffix}")
    read = opened.copy() if mode != "YCbCr" else opened.convert("YCbCr")
    assert read.mode == mode or mode == "I;16"
    scores = read_scores(scorer.score_table([tmp_path / f"image.{suffix}", opened, read], "a red circle"), "clipscore")
    assert scores[0] is not None and scores == pytest.approx([scores[0]] * 3, abs=0.01 if mode == "YCbCr" else 1e-6)


def test_uint8_arrays_are_images_and_four_dimensions_are_several_images(scorer: Scorer) -> None:
    pictures = [draw_image(number).resize((96, 96)) for number in range(3)]
    arrays = np.stack([np.asarray(image) for image in pictures])
    expected = scorer.score_table(pictures, "a red circle")
    for given in (arrays, list(arrays), [*arrays[:2], np.asarray(pictures[2].convert("RGBA"))]):
        assert scorer.score_table(given, "a red circle").equals(expected)
    frames = scorer.score_table([list(arrays)], "a red circle", "clipscore")
    mean = np.mean([score or 0.0 for score in read_scores(expected, "clipscore")])
    assert read_scores(frames, "clipscore") == pytest.approx([mean], abs=1e-6)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (torch.zeros(3, 96, 96), "got a value of type torch.Tensor; convert it"),
        (np.zeros((96, 96, 3), np.float32), r"got an array of type float32 and shape \(96, 96, 3\); convert it"),
        (np.zeros((3, 96, 96), np.uint8), r"got an array of type uint8 and shape \(3, 96, 96\); convert it"),
        (7, "got a value of type builtins.int; convert it"),
    ],
)
@pytest.mark.parametrize("frame", [False, True])
def test_a_value_that_is_not_an_image_is_refused_with_its_position_and_type(
    scorer: Scorer, images: list[bytes], wrong: Any, found: str, frame: bool
) -> None:
    given = [images[0], [images[0], wrong] if frame else wrong]
    where = r"images\[1\]\[1\]" if frame else r"images\[1\]"
    with pytest.raises(ConfigError, match=rf"^{where}: expected a path, .* {found}"):
        scorer.score_table(given, ["a red circle"] * 2)


HALF_SURROGATE_TEXT = json.loads(r'"a \ud83d circle"')
"""A text with half an emoji, as json.loads reads a text that was cut in the middle of the emoji."""
UNUSABLE_PROMPTS = {
    HALF_SURROGATE_TEXT: r"a lone surrogate (U+D83D) at position 2",
    7: "expected the prompt as text, found int",
    b"a red circle": "expected the prompt as text, found bytes",
    ("a red circle",): "expected the prompt as text, found tuple",
    "a red circle " * 2_000: "the prompt has 26000 characters, but at most 20000 are allowed",
    None: "the prompt has no text",
    math.nan: "the prompt has no text",
    pd.NA: "the prompt has no text",
    pd.NaT: "the prompt has no text",
    " ": "the prompt has no text",
}


def _is_unusable(prompt: Any) -> bool:
    return any(prompt is bad for bad in UNUSABLE_PROMPTS)


def test_an_unusable_prompt_gives_an_error_row_with_the_reason(scorer: Scorer, images: list[bytes]) -> None:
    given: list[Any] = [*UNUSABLE_PROMPTS, *["a red circle", "a blue square"] * 4]
    np.random.default_rng(5).shuffle(given)
    shown = [images[place % len(images)] for place in range(len(given))]
    good = [place for place, prompt in enumerate(given) if not _is_unusable(prompt)]
    alone = scorer.score_table([shown[place] for place in good], [given[place] for place in good])
    table = scorer.score_table(shown, given)
    for metric in scorer.metrics:
        found = [row for row in table.to_pylist() if row["metric"] == metric]
        assert [row["image_id"] for row in found] == [str(place) for place in range(len(given))]
        assert [found[place]["score"] for place in good] == pytest.approx(read_scores(alone, metric), abs=1e-6)
        for prompt, row in zip(given, found, strict=True):
            if _is_unusable(prompt):
                assert row["score"] is None and UNUSABLE_PROMPTS[prompt] in row["error"]["message"]


@pytest.mark.parametrize("prompt", [*UNUSABLE_PROMPTS, "a red circle"])
def test_a_data_frame_of_scores_has_a_row_for_every_prompt_and_its_own_value(scorer: Scorer, prompt: Any) -> None:
    scored = scorer.score([draw_image(1), draw_image(2)], [prompt, "a red circle"], "clipscore")
    found, other = scored["score"]
    assert scored["prompt"].iloc[0] is prompt and scored["prompt"].iloc[1] == "a red circle"
    assert math.isfinite(other) and math.isnan(found) == _is_unusable(prompt)
    assert (scored["error"].iloc[0] is None) == (prompt == "a red circle") if isinstance(prompt, str) else True


@pytest.mark.parametrize("metric", [7, None, math.nan, pd.NA, b"clipscore", ["clipscore"], HALF_SURROGATE_TEXT])
def test_a_metric_that_is_no_name_of_the_scorer_is_refused(scorer: Scorer, metric: Any) -> None:
    with pytest.raises(ConfigError, match="the scorer has no metric"):
        scorer.score([draw_image(1)], ["a red circle"], [metric])
    with pytest.raises(ConfigError, match="the scorer has no metric"):
        plumbline.trl_reward(scorer, metric)


def test_an_address_or_a_closed_image_is_refused_with_the_remedy(
    images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    home = tmp_path / os.fsdecode(b"latin-\xe9.png")
    home.write_bytes(images[0])
    with Image.open(home) as closed:
        pass
    given = [closed, [images[0], closed], "https://example.org/a.png", home.as_uri(), f"~/{home.name}", home, "no.png"]
    errors = plumbline.score(given, "a red circle", "edge_density")["error"]
    wanted = [
        "the PIL.Image is closed; score it inside its `with` block, or call its load() there",
        "image 2 of 2: the PIL.Image is closed",
        "only local files are read; download it",
        "only local files are read; download it",
        None,
        None,
        "nothing at 'no.png'; check the address",
    ]
    for error, reason in zip(errors, wanted, strict=True):
        assert error is None if reason is None else reason in error["message"]


@pytest.mark.parametrize("mode", ["RGB", "P", "L"])
@pytest.mark.parametrize("before", [True, False])
def test_a_png_with_a_large_compressed_text_is_scored_by_its_pixels(mode: str, before: bool, tmp_path: Path) -> None:
    """Pillow refuses text chunks above 1 MB, such as a ComfyUI workflow."""
    bare, notes = io.BytesIO(), PngInfo()
    draw_image(2).convert(mode).save(bare, "PNG")
    notes.add_text("workflow", "node " * 400_000, zip=True)
    notes.add_itxt("prompt", "node " * 400_000, zip=True)
    notes.chunks = [(*chunk[:2], not before) for chunk in notes.chunks]
    draw_image(2).convert(mode).save(tmp_path / "noted.png", pnginfo=notes)
    expected, found = plumbline.score([bare.getvalue(), tmp_path / "noted.png"], "a red circle", "edge_density")[
        "score"
    ]
    assert expected == found and expected > 0


ORDERED_COLUMNS: dict[str, Callable[[pd.Series], Any]] = {
    "filtered Series": lambda column: column,
    "Series of pandas strings": lambda column: column.astype("string") if column.name == "prompt" else column,
    "list": list,
    "tuple": tuple,
    "array": lambda column: column.to_numpy(),
    "iterator": iter,
    "generator": lambda column: (value for value in column),
    "Arrow array": lambda column: pa.chunked_array([pa.array(list(column))]),
}


@pytest.mark.parametrize("form", ORDERED_COLUMNS)
@pytest.mark.parametrize("index", ["shuffled", "repeated", "texts"])
def test_images_and_prompts_of_any_containers_are_paired_in_order(form: str, index: str, images: list[bytes]) -> None:
    random = np.random.default_rng(sum(map(ord, form + index)))
    frame = pd.DataFrame({"image": images, "prompt": [f"prompt {place}" for place in range(len(images))]})
    indices = {"shuffled": frame.index, "repeated": [1] * len(frame), "texts": [f"row {row}" for row in frame.index]}
    frame.index = pd.Index(indices[index])
    frame = frame.iloc[random.permutation(len(frame))[: len(frame) - 1]]
    expected = [plumbline.score(image, "", "edge_density")["score"].item() for image in frame.image]
    scored = plumbline.score(ORDERED_COLUMNS[form](frame.image), ORDERED_COLUMNS[form](frame.prompt), "edge_density")
    assert scored["prompt"].tolist() == frame.prompt.tolist()
    assert scored["score"].tolist() == expected and len(set(expected)) > 1


def test_unordered_containers_are_refused_by_name() -> None:
    frame = pd.DataFrame({"prompt": ["a red circle"], "text": ["a blue square"]})
    for prompts in (frame, {"a": 1}, {"a red circle"}, None, b"a red circle", np.array([["a"]])):
        with pytest.raises(ConfigError, match=rf"^prompts: expected a list, .* type {type(prompts).__name__}$"):
            plumbline.score([draw_image(1)], prompts, "edge_density")  # type: ignore[arg-type]


def test_an_image_that_is_missing_or_does_not_decode_affects_only_its_row(scorer: Scorer, images: list[bytes]) -> None:
    cut = encode_image(draw_image(0, width=200, height=200), "JPEG")[:3000]
    closed = Image.open(io.BytesIO(images[0]))
    closed.close()
    given = [images[0], None, Image.open(io.BytesIO(cut)), closed, Image.new("F", (8, 8)), images[0]]
    scored = scorer.score_table(given, ["a red circle", *["a red circle"] * 4, None], "clipscore").to_pylist()
    errors = [row["error"] or {} for row in scored]
    assert [error.get("kind") for error in errors] == [
        None, "missing_image", "corrupt_image", "corrupt_image", "corrupt_image", "empty_prompt",
    ]  # fmt: skip
    assert "Premature end of JPEG file" in errors[2]["message"] and "no fixed range" in errors[4]["message"]
    assert scored[0]["score"] is not None


def test_a_prompt_that_is_far_too_long_affects_only_its_own_rows(scorer: Scorer, images: list[bytes]) -> None:
    """Every metric that reads the prompt reports an error before it asks a model."""
    long = "a red circle " * 2000
    scored = scorer.score_table([images[0]] * 3, ["a red circle", long, "a red circle"]).to_pylist()
    kinds = {(row["metric"], row["image_id"]): row["error"] and row["error"]["kind"] for row in scored}
    assert kinds == {(name, place): "prompt_too_long" if place == "1" else None for name, place in kinds}


def test_the_name_of_a_metric_is_not_read_as_a_list_of_letters(scorer: Scorer, images: list[bytes]) -> None:
    assert scorer.score_table(images[:1], "a red circle", "gecko").column("metric").to_pylist() == ["gecko"]
    with pytest.raises(ConfigError, match="metrics: the scorer has no metric 'clip'; did you mean clipscore"):
        scorer.score_table(images[:1], "a red circle", "clip")


def test_a_subset_of_the_metrics_can_be_scored(scorer: Scorer, images: list[bytes], prompts: list[str]) -> None:
    some = scorer.score_table(images, prompts, ["gecko", "clipscore"])
    everything = scorer.score_table(images, prompts).to_pylist()
    assert some.to_pylist() == [row for row in everything if row["metric"] in ("clipscore", "gecko")]


def test_a_row_that_cannot_be_scored_does_not_affect_the_others(
    scorer: Scorer, images: list[bytes], prompts: list[str]
) -> None:
    given = [b"no image", images[1], "nowhere.png", images[2]]
    scored = scorer.score_table(given, [prompts[0], prompts[1], prompts[2], " "]).to_pylist()
    kinds = [row["error"] and row["error"]["kind"] for row in scored if row["metric"] == "vqascore"]
    assert kinds == ["corrupt_image", None, "missing_image", "empty_prompt"]
    assert [row["score"] is None for row in scored if row["metric"] == "gecko"] == [True, False, True, True]


def test_the_score_of_frames_is_the_mean_of_their_scores(
    scorer: Scorer, images: list[bytes], prompts: list[str]
) -> None:
    """The GenAI-Bench paper averages the scores of frames (vqascore_genai_bench.txt, section 6)."""
    alone = scorer.score_table(images[:3], [prompts[0]] * 3)
    together = scorer.score_table([images[:3], images[0]], [prompts[0]] * 2)
    for metric in ("vqascore", "clipscore", "gecko", "tifa"):
        scores = read_scores(alone, metric)
        assert len({*scores}) > 1 or metric == "tifa", "frames that differ"
        mean = sum(score or 0.0 for score in scores) / 3
        assert read_scores(together, metric) == pytest.approx([mean, scores[0]], abs=1e-6)
    elements = [row["elements"] for row in alone.to_pylist() if row["metric"] == "gecko"]
    (mean_elements, _) = [row["elements"] for row in together.to_pylist() if row["metric"] == "gecko"]
    expected = [sum(frame[place]["score"] for frame in elements) / 3 for place in range(len(mean_elements))]
    assert [element["score"] for element in mean_elements] == pytest.approx(expected, abs=1e-6)


def test_one_bad_frame_is_named_and_fails_the_row(scorer: Scorer, images: list[bytes], prompts: list[str]) -> None:
    for missing, kind in ((b"no image", "corrupt_image"), (None, "missing_image")):
        (row, *_) = scorer.score_table([[images[0], missing]], [prompts[0]]).to_pylist()
        assert row["score"] is None and row["error"]["kind"] == kind
        assert row["error"]["message"].startswith("image 2 of 2: ")


def test_no_images_give_no_rows_and_a_missing_prompt_is_refused(scorer: Scorer, images: list[bytes]) -> None:
    assert scorer.score_table([], []).num_rows == 0
    with pytest.raises(ConfigError, match="per image, got 2 images and 1 prompts; a single string is used as the"):
        scorer.score_table(images[:2], ["a red circle"])
    with pytest.raises(ConfigError, match="metrics: the scorer has no metric 'vqascor'; did you mean vqascore"):
        scorer.score_table(images[:1], ["a red circle"], ["vqascor"])


def test_an_unknown_option_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="vqascor"):
        open_scorer("metric=[vqascor]", "models=shapes")
    with pytest.raises(ConfigError, match="vqascor"):
        open_scorer(metric=["vqascor"], models="shapes")


def test_options_may_be_keyword_arguments_and_models_load_without_false_warnings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The test runs in a subprocess, because transformers warns only once per process."""
    (tmp_path / "image.png").write_bytes(encode_image(draw_image(0)))
    code = (
        "from plumbline.jobs.scorer import open_scorer\n"
        "scorer = open_scorer(metric=['clipscore', 'vqascore'], models='shapes', on_gpu=False)\n"
        "print(scorer.score_table('image.png', 'a red circle ' * 100).to_pandas()[['metric', 'truncated']].to_csv())\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    printed, told = capfd.readouterr()
    assert "0,clipscore,True" in printed and "vqascore" in printed
    assert not any(word in told.lower() for word in ("warn", "error", "expected", "longer")), told


def test_questions_passed_with_images_are_asked_by_the_benchmarks_metric(
    images: list[bytes], prompts: list[str]
) -> None:
    """A list of questions contains (question, answer) pairs, or objects with choices and parents.

    A child counts only if its parent is true. A text that the image should contain is given in the same list, but is
    not a question.
    """
    soft_mean = ("metrics.tifa_v1.aggregate=soft_geometric", "metrics.tifa_v1.answers=likelihood")
    scorer = open_scorer("metric=[tifa_v1,dsg_1k]", *soft_mean, "models=shapes")
    yes_or_no = {"choices": ["yes", "no"], "answer": "yes"}
    parent = {"text": "is there a circle?", **yes_or_no, "question_id": "1"}
    child = {"text": "is it red?", **yes_or_no, "parents": ["1"]}
    pairs = [["Are there any circles in the image?", "Yes"]]
    table = scorer.score_table(images[:3], prompts[:3], questions=[pairs, [parent, "OPEN", child], ["OPEN"]])
    soft, *unfit = read_scores(table, "tifa_v1")
    assert soft is not None and 0 < soft < 1 and unfit == [None, None]
    by_objects = next(row for row in table.to_pylist() if row["metric"] == "dsg_1k" and row["image_id"] == "1")
    first, second = by_objects["elements"]
    assert [first["text"], second["text"]] == ["is there a circle?", "is it red?"]
    assert second["score"] <= first["score"] and by_objects["score"] == (first["score"] + second["score"]) / 2
    reasons = [row["error"]["message"] for row in table.to_pylist() if row["error"] is not None]
    assert len(reasons) == 4 and any("share takes the likeliest of several choices" in reason for reason in reasons)
    assert sum("has no questions about the prompt, only texts" in reason for reason in reasons) == 2
    with pytest.raises(ConfigError, match="got 1 images and 2 entries"):
        scorer.score_table(images[:1], prompts[:1], questions=[pairs, pairs])


def test_questions_that_no_metric_asks_are_refused(scorer: Scorer, images: list[bytes], prompts: list[str]) -> None:
    with pytest.raises(ConfigError, match="vqascore and clipscore would ignore them"):
        scorer.score_table(images[:1], prompts[:1], ["vqascore", "clipscore"], questions=[[["Is it red?", "Yes"]]])


def test_questions_about_a_prompt_are_written_once_for_all_threads(
    server: Server, images: list[bytes], prompts: list[str]
) -> None:
    """Questions are written again after a failure, or after `kept_prompts` newer prompts have displaced them."""
    llm = {"endpoint": server.url, "checkpoint": "m", "key_variable": KEY_VARIABLE, "max_retries": 0}
    words = [f"models.llm.{name}={value}" for name, value in llm.items()]
    scorer = open_scorer("metric=[gecko_baseline]", "models=shapes", "model@models.llm=api", *words, "kept_prompts=3")
    server.script = lambda number, body: make_error(503)
    assert read_scores(scorer.score_table(images[:2], prompts[:2]), "gecko_baseline") == [None, None]
    reply = make_completion("About circle (shape):\nQ: is there a circle?\nChoices: yes, no\nA: yes")._replace(
        delay=0.2
    )
    server.script, before = (lambda number, body: reply), len(server.bodies)
    with ThreadPoolExecutor(3) as threads:
        tables = list(threads.map(lambda _: scorer.score_table(images[:3], prompts[:3]), range(3)))
    assert len(server.bodies) == before + 3
    assert all(None not in read_scores(table, "gecko_baseline") for table in tables)
    scorer.score_table(images[3], prompts[3])
    scorer.score_table(images[1], prompts[1])
    assert len(server.bodies) == before + 4
    scorer.score_table(images[0], prompts[0])
    assert len(server.bodies) == before + 5
