"""The answers stage is nearly as fast as a plain loop over the same model and images, measured within one run."""

import io
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.preparing import prepare_images
from plumbline.operators.models.calls import Question
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5Likelihood
from plumbline.operators.models.resolution import resolve_model
from plumbline.operators.stages.answers import AnswersStage, QuestionIndex
from plumbline.operators.stages.questions import write_questions
from plumbline.operators.stages.stage import StageOptions
from plumbline.pipelines.running.events import ProgressTotals
from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import SHAPES_FOLDER, make_sweep_config
from tests.benchmarks.size import HERE_OPTIONS, choose_size, expect
from tests.operators import tiny

SHARD_ROWS = choose_size(256, 4)
GENERATORS = choose_size(("atlas", "borealis", "cobalt", "drift", "ember", "flint"), ("atlas",))
N_COPIES = choose_size(4, 1)
"""Number of copies of each generator, so that startup costs weigh as little as in a real sweep."""
TINY_OPTIONS = choose_size((), (*HERE_OPTIONS, "benchmark.require_every_prompt=false"))
BATCH_SIZE = 64
N_THREADS = 2
QUESTION_TEMPLATES = ('Does this figure show "{}"? Please answer yes or no.', "Is it {}?", "{}?", "Do you see {}?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a benchmark of the embedded images, with N_COPIES copies of each generator; return its folder.

    Each copy is a single shard of 256 images.
    """
    root = tmp_path_factory.mktemp("bench")
    pq.write_table(pq.read_table(SHAPES_FOLDER / "prompts.parquet"), root / "prompts.parquet")
    for generator in GENERATORS:
        for copy in range(N_COPIES):
            file = root / "images" / f"{generator}-{copy}" / "0.parquet"
            file.parent.mkdir(parents=True)
            pq.write_table(read_shard(generator), file)
    return root


@pytest.fixture(scope="module")
def model() -> Iterator[ClipFlanT5Likelihood]:
    before = torch.get_num_threads()
    torch.set_num_threads(N_THREADS)
    config = make_model_config(
        family="clip_flant5",
        checkpoint=str(SHAPES_FOLDER.parent / "clip-flant5-shapes"),
        image_batch=BATCH_SIZE,
        pair_batch=BATCH_SIZE,
    )
    yield load(resolve_model(config, on_gpu=False), "likelihood")
    torch.set_num_threads(before)


def read_shard(generator: str) -> pa.Table:
    files = sorted((SHAPES_FOLDER / "images" / generator).glob("*.parquet"))
    return pa.concat_tables(map(pq.read_table, files)).slice(0, SHARD_ROWS)


def read_texts() -> dict[str, str]:
    prompts = pq.read_table(SHAPES_FOLDER / "prompts.parquet")
    return dict(zip(prompts["prompt_id"].to_pylist(), prompts["text"].to_pylist(), strict=True))


def run_bare_loop(model: ClipFlanT5Likelihood, files: Sequence[Path]) -> int:
    """Score one file after another, as a carefully written script would; return the number of answers.

    All images of a file are read and decoded first, and then encoded and scored in batches.
    """
    metric, prompts, answered = tiny.make_vqascore(), read_texts(), 0
    for file in files:
        records = pq.read_table(file, columns=["prompt_id", "image"]).to_pylist()
        pixels = [model.preprocess(Image.open(io.BytesIO(row["image"])).convert("RGB")) for row in records]
        for first in range(0, len(records), BATCH_SIZE):
            features = model.encode(pixels[first : first + BATCH_SIZE])
            questions = [
                Question(n, metric.question(prompts[row["prompt_id"]]), (metric.answer,))
                for n, row in enumerate(records[first : first + BATCH_SIZE])
            ]
            answered += len(model.likelihood(features, questions))
    return answered


def test_the_answer_stage_keeps_up_with_a_bare_loop(
    folder: Path, model: ClipFlanT5Likelihood, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted((folder / "images").glob("*/*.parquet"))
    run_bare_loop(model, files[:1])
    began = time.monotonic()
    assert run_bare_loop(model, files) == len(files) * SHARD_ROWS
    bare = time.monotonic() - began

    totals = ProgressTotals()
    config = make_sweep_config(
        folder,
        tmp_path / "store",
        "metric=[vqascore]",
        "cluster=local",
        f"shard_rows={SHARD_ROWS}",
        "cluster.pools.answers.min_size=2",
        "cluster.pools.answers.max_size=2",
        "cluster.pools.answers.threads=1",
        *TINY_OPTIONS,
    )
    done = run_sweep(plan_sweep(config), totals.add)
    stage = totals.nodes["answers:vqa"]
    assert done.exit_code == 0 and stage.rows == len(files) * SHARD_ROWS
    ratio = bare / stage.seconds
    with capsys.disabled():
        print(
            f"\nanswer stage: {stage.rows / stage.seconds:.0f} images/s, bare loop {stage.rows / bare:.0f} images/s, "
            f"ratio {ratio:.2f} (0.9 or better wanted)"
        )
    expect(ratio >= 0.9)


class CountingModel(ClipFlanT5Likelihood):
    """A model wrapper that counts the images encoded by the vision tower."""

    encoded = 0

    def encode(self, pixels: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        self.encoded += len(pixels)
        return super().encode(pixels)


def test_an_image_is_encoded_once_for_any_number_of_questions(
    model: ClipFlanT5Likelihood, capsys: pytest.CaptureFixture[str]
) -> None:
    counting = CountingModel(model.model, model.tokenizer, model.processor, pair_batch=BATCH_SIZE)
    stage = AnswersStage({}, {"model": counting}, StageOptions(ImageLimits(), _refuse_uri, image_batch=BATCH_SIZE))
    prompts = pq.read_table(SHAPES_FOLDER / "prompts.parquet")
    metrics = {template: tiny.make_vqascore(template=template) for template in QUESTION_TEMPLATES}
    asked = {name: QuestionIndex(write_questions(prompts, metric, None), metric) for name, metric in metrics.items()}
    images = prepare_images(
        read_shard("atlas"), "atlas", preprocess=stage.preprocess, limits=ImageLimits(), fetch=_refuse_uri
    )
    began = time.monotonic()
    answers = stage.measure(images, asked)
    ours = time.monotonic() - began
    began = time.monotonic()
    peer = _score_one_pair_at_a_time(model, images.pixels, [row.prompt_id or "" for row in images.rows])
    theirs = time.monotonic() - began
    with capsys.disabled():
        print(
            f"\n{counting.encoded} image encodings for {len(images.rows)} images x {len(QUESTION_TEMPLATES)} questions"
            f"; {theirs / ours:.1f} times as fast as scoring one pair at a time and encoding its image again"
        )
    assert counting.encoded == len(images.rows) == SHARD_ROWS
    expect(theirs / ours > 1)
    first = answers[QUESTION_TEMPLATES[0]].column("answers").to_pylist()
    for row, expected in enumerate(peer[:: len(QUESTION_TEMPLATES)]):
        assert first[row][0]["token_logprobs"][0] == pytest.approx(expected, abs=1e-4)


def _score_one_pair_at_a_time(
    model: ClipFlanT5Likelihood, pixels: Sequence[torch.Tensor], prompt_ids: Sequence[str]
) -> list[list[float]]:
    """Answer one question about one image at a time, like the released scripts.

    Return the log-probabilities of the tokens of "Yes", by image and question template.
    """
    prompts = read_texts()
    return [
        model.likelihood(model.encode([image]), [Question(0, template.replace("{}", prompts[prompt_id]), ("Yes",))])[0][
            0
        ]
        for image, prompt_id in zip(pixels, prompt_ids, strict=True)
        for template in QUESTION_TEMPLATES
    ]


def _refuse_uri(uri: str) -> bytes:
    raise AssertionError(f"expected no fetches, but {uri} was fetched")
