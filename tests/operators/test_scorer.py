"""Images and prompts are scored in this process as a sweep scores them; what cannot be scored costs only itself."""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from jobs.scorer import open_scorer
from operators import rows
from operators.errors import ConfigError
from operators.scorer import Scorer
from pipelines.sweep import plan_sweep, run_sweep
from tests.bench_of import sweep_config, write_benchmark

METRICS = "metric=[vqascore,clipscore,gecko,tifa]"


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return open_scorer(METRICS, "models=shapes")


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("bench"), generators=("atlas",), count=4)


@pytest.fixture(scope="module")
def images(benchmark: Path) -> list[bytes]:
    table = pq.read_table(benchmark / "images" / "atlas" / "00000.parquet")
    return [row["image"]["bytes"] if isinstance(row["image"], dict) else row["image"] for row in table.to_pylist()]


@pytest.fixture(scope="module")
def prompts(benchmark: Path) -> list[str]:
    """In the order of the images."""
    texts = {row["prompt_id"]: row["text"] for row in pq.read_table(benchmark / "prompts.parquet").to_pylist()}
    table = pq.read_table(benchmark / "images" / "atlas" / "00000.parquet")
    return [texts[prompt_id] for prompt_id in table.column("prompt_id").to_pylist()]


def scores_of(table: pa.Table, metric: str) -> list[float | None]:
    return [row["score"] for row in table.to_pylist() if row["metric"] == metric]


@pytest.mark.usefixtures("here")
def test_scores_and_elements_are_those_of_a_sweep(
    scorer: Scorer, benchmark: Path, images: list[bytes], prompts: list[str], tmp_path: Path
) -> None:
    planned = plan_sweep(sweep_config(benchmark, tmp_path / "store", METRICS))
    run_sweep(planned, lambda progress: None)
    scored = scorer.score(images, prompts)
    assert scored.schema == rows.ELEMENT_SCORES and len(scored) == 16
    for metric, cells in planned.plan.scores.items():
        (cell,) = cells
        swept = planned.store.read(cell.path).to_pylist()
        ours = [row for row in scored.to_pylist() if row["metric"] == metric]
        assert [row["score"] for row in ours] == pytest.approx([row["score"] for row in swept], abs=1e-6)
        for row, expected in zip(ours, swept, strict=True):
            given = [(element["text"], element["given"]) for element in row["elements"] or ()]
            assert given == [(element["text"], element["given"]) for element in expected["elements"] or ()]
            assert (row["elements"] is None) == (metric in ("vqascore", "clipscore"))


def test_threads_that_call_at_once_get_the_scores_of_each_alone(
    scorer: Scorer, images: list[bytes], prompts: list[str]
) -> None:
    calls = [(images[:place], prompts[:place]) for place in (1, 2, 3)]
    alone = [scorer.score(*call).column("score").to_pylist() for call in calls]
    with ThreadPoolExecutor(2) as threads:
        together = [table.column("score").to_pylist() for table in threads.map(lambda call: scorer.score(*call), calls)]
    assert together == [pytest.approx(scores, abs=1e-6) for scores in alone]


def test_an_image_may_be_a_file_bytes_or_decoded(
    scorer: Scorer, images: list[bytes], prompts: list[str], tmp_path: Path
) -> None:
    (tmp_path / "image.png").write_bytes(images[0])
    decoded = Image.open(io.BytesIO(images[0]))
    given = [images[0], decoded, tmp_path / "image.png", str(tmp_path / "image.png")]
    for metric in ("vqascore", "gecko"):
        scores = scores_of(scorer.score(given, [prompts[0]] * 4), metric)
        assert scores[0] is not None and scores == pytest.approx([scores[0]] * 4, abs=1e-6)


def test_some_of_the_metrics_may_be_asked_for(scorer: Scorer, images: list[bytes], prompts: list[str]) -> None:
    some = scorer.score(images, prompts, ["gecko", "clipscore"])
    everything = scorer.score(images, prompts).to_pylist()
    assert some.to_pylist() == [row for row in everything if row["metric"] in ("clipscore", "gecko")]


def test_what_cannot_be_scored_costs_only_itself(scorer: Scorer, images: list[bytes], prompts: list[str]) -> None:
    given = [b"no image", images[1], "nowhere.png", images[2]]
    scored = scorer.score(given, [prompts[0], prompts[1], prompts[2], " "]).to_pylist()
    kinds = [row["error"] and row["error"]["kind"] for row in scored if row["metric"] == "vqascore"]
    assert kinds == ["corrupt_image", None, "missing_image", "empty_prompt"]
    assert [row["score"] is None for row in scored if row["metric"] == "gecko"] == [True, False, True, True]


def test_frames_are_scored_by_the_mean_of_the_frames(scorer: Scorer, images: list[bytes], prompts: list[str]) -> None:
    """vqascore_genai_bench.txt, sec. 6."""
    alone = scorer.score(images[:3], [prompts[0]] * 3)
    together = scorer.score([images[:3], images[0]], [prompts[0]] * 2)
    for metric in ("vqascore", "clipscore", "gecko", "tifa"):
        scores = scores_of(alone, metric)
        assert len({*scores}) > 1 or metric == "tifa", "frames that differ"
        mean = sum(score or 0.0 for score in scores) / 3
        assert scores_of(together, metric) == pytest.approx([mean, scores[0]], abs=1e-6)
    elements = [row["elements"] for row in alone.to_pylist() if row["metric"] == "gecko"]
    (mean_elements, _) = [row["elements"] for row in together.to_pylist() if row["metric"] == "gecko"]
    expected = [sum(frame[place]["score"] for frame in elements) / 3 for place in range(len(mean_elements))]
    assert [element["score"] for element in mean_elements] == pytest.approx(expected, abs=1e-6)


def test_one_bad_frame_is_named_and_fails_the_row(scorer: Scorer, images: list[bytes], prompts: list[str]) -> None:
    (row, *_) = scorer.score([[images[0], b"no image"]], [prompts[0]]).to_pylist()
    assert row["score"] is None and row["error"]["kind"] == "corrupt_image"
    assert row["error"]["message"].startswith("image 2 of 2: ")


def test_no_images_give_no_rows_and_a_prompt_too_few_is_refused(scorer: Scorer, images: list[bytes]) -> None:
    assert scorer.score([], []).num_rows == 0
    with pytest.raises(ConfigError, match="one prompt beside every image, got 2 and 1"):
        scorer.score(images[:2], ["a red circle"])
    with pytest.raises(ConfigError, match="expected lists of images and of prompts, got one"):
        scorer.score(images[0], "a red circle")
    with pytest.raises(ConfigError, match="metrics: the scorer has none called 'vqascor'; did you mean vqascore"):
        scorer.score(images[:1], ["a red circle"], ["vqascor"])


def test_a_word_that_is_not_understood_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="vqascor"):
        open_scorer("metric=[vqascor]", "models=shapes")
