"""Makes the embedded benchmarks and models, measures their accuracy, and writes the README that reports it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import torch
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from transformers import CLIPModel

from plumbline.assets.making.accuracy import (
    GECKO_THRESHOLD,
    count_dropped_questions,
    count_filtered_questions,
    measure_clip,
    measure_judge,
    measure_order,
    measure_pairs,
    measure_sheets,
    measure_vqa,
    sample_held_out_pairs,
    sample_held_out_questions,
    write_sheets,
)
from plumbline.assets.making.edits import EDITS_SUITE, write_edits
from plumbline.assets.making.lessons import PLANTED_COLOUR, QUESTION_METRICS
from plumbline.assets.making.networks import (
    CLIP_FOLDER,
    JUDGE_FOLDER,
    NLI_FOLDER,
    VQA_FOLDER,
    WRITER_FOLDER,
    build_clip,
    build_clip_flant5,
    build_nli,
    build_writer,
    make_image_processor,
    resolve_checkpoint,
    save_model,
    save_vqa,
)
from plumbline.assets.making.pair_training import (
    DECODER_PARTS,
    ContestMaker,
    compute_contest_loss,
    extend_network,
    extend_tokenizer,
    sample_easy_contest,
    sample_hard_contest,
)
from plumbline.assets.making.signs import SIGNS_SUITE, make_sign_tables
from plumbline.assets.making.tables import (
    CLIPS_SUITE,
    Benchmark,
    make_benchmark,
    make_benchmark_tables,
    make_clip_tables,
    write_tables,
)
from plumbline.assets.making.text_training import (
    HYPOTHESIS_VOCABULARY_TEXT,
    compute_nli_loss,
    compute_reply_loss,
    make_lesson_batches,
    make_nli_batch,
    make_writer_tokenizer,
)
from plumbline.assets.making.tokens import make_bert_tokenizer, make_clip_tokenizer, make_t5_tokenizer, write_sentences
from plumbline.assets.making.vqa_training import (
    QUESTION_MIXTURES,
    CellReader,
    ExerciseMaker,
    compute_cell_loss,
    compute_contrastive_loss,
    compute_max_entities,
    freeze_tower,
    make_cell_batch,
    make_pair_batch,
)
from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.models.loading import load
from plumbline.operators.models.networks.clip_flant5 import load_network
from plumbline.operators.models.processing import load_tokenizer
from plumbline.plugins.training.exercises import TRAINED_PARTS, compute_exercise_loss
from plumbline.plugins.training.loop import Report, StageTrainer, TrainingStage, train
from plumbline.plugins.training.trainee import freeze_all_but


def render_readme(measured: Mapping[str, Any], recipe: Mapping[str, Any]) -> str:
    """Return the text of assets/README.md, with the measurements and the settings."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    template = environment.get_template("card.md.j2")
    return template.render(**measured, recipe=recipe, threshold=GECKO_THRESHOLD, planted_colour=PLANTED_COLOUR)


SUITE_FOLDER = "shapes"
PAIRS_PER_QUESTION = 10
LEARNING_RATE_FACTORS = {"relative_attention_bias": 10.0}
TRAINING_STAGES: Mapping[str, TrainingStage] = {
    "tower": TrainingStage(steps=300, peak=1e-3, size=128),
    "clip": TrainingStage(steps=600, peak=1e-3, size=96, each=2),
    "caption": TrainingStage(steps=500, peak=1e-3, size=64, each=2, quick=LEARNING_RATE_FACTORS),
    "place": TrainingStage(steps=1200, peak=7e-4, size=24, each=4, quick=LEARNING_RATE_FACTORS),
    "relation": TrainingStage(steps=1200, peak=5e-4, size=24, each=4, quick=LEARNING_RATE_FACTORS),
    "question": TrainingStage(steps=6000, peak=6e-4, size=24, each=5, quick=LEARNING_RATE_FACTORS),
    "judge_decoder": TrainingStage(steps=400, peak=1e-3, size=48),
    "judge": TrainingStage(steps=1100, peak=3e-4, size=48),
    "judge_hard": TrainingStage(steps=400, peak=3e-4, size=48),
    "writer": TrainingStage(steps=6000, peak=1.5e-3, size=64),
    "nli": TrainingStage(steps=3000, peak=7e-4, size=96),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldConfig:
    """Options for making the embedded benchmarks and models."""

    output: str = "assets"
    """Folder to write the benchmarks and models to."""
    seed: int = 0
    """Seed of the benchmark, of the networks' initial weights and of their training data."""
    steps: tuple[str, ...] = ("data", "video", "signs", "edits", "clip", "vqa", "judge", "writer", "nli", "accuracy")
    """Parts to make: `data`, `video`, `signs`, `edits`, `clip`, `vqa`, `judge`, `writer`, `nli`, `accuracy`.

    `accuracy` measures the checkpoints that exist.
    """
    shorten: int = 1
    """Divisor of the number of optimiser steps of every training, for trying out a change."""
    questions_each: int = 400
    """Number of held-out questions per type for measuring accuracy; NLI uses ten times as many pairs."""

    def __post_init__(self) -> None:
        for step in self.steps:
            if step not in MAKE_FUNCTIONS:
                raise ConfigError(
                    f"steps: expected one or more of {', '.join(MAKE_FUNCTIONS)}, got {step!r}; "
                    f"{suggest(step, list(MAKE_FUNCTIONS))}"
                )
        for name in ("shorten", "questions_each"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: expected at least 1, got {getattr(self, name)}")

    def get_stage(self, name: str) -> TrainingStage:
        """Return a stage of TRAINING_STAGES, with its steps divided by `shorten`."""
        stage = TRAINING_STAGES[name]
        return replace(stage, steps=max(1, stage.steps // self.shorten))

    @property
    def recipe(self) -> dict[str, int]:
        return {"seed": self.seed} | {f"{name}_steps": self.get_stage(name).steps for name in TRAINING_STAGES}


def make_world(config: WorldConfig, report: Report) -> None:
    """Make the chosen parts, in the order of MAKE_FUNCTIONS."""
    for name, make in MAKE_FUNCTIONS.items():
        if name in config.steps:
            began = monotonic()
            torch.manual_seed(config.seed)
            make(config, report)
            report(f"{name}: done in {monotonic() - began:.0f} s")


def make_data(config: WorldConfig, report: Report) -> None:
    """Make the embedded benchmark's tables; report the fraction of correct images for each generator."""
    benchmark = make_benchmark(config.seed)
    write_tables(make_benchmark_tables(benchmark), Path(config.output) / SUITE_FOLDER)
    for name, mean in benchmark.true_means.items():
        report(f"data: {mean:.1%} of the images by {name} meet all requirements")


def make_video(config: WorldConfig, report: Report) -> None:
    """Make the embedded benchmark of video clips."""
    write_tables(make_clip_tables(config.seed), Path(config.output) / CLIPS_SUITE)


def make_signs(config: WorldConfig, report: Report) -> None:
    """Make the embedded benchmark of signs with text."""
    write_tables(make_sign_tables(config.seed), Path(config.output) / SIGNS_SUITE)


def make_edit_world(config: WorldConfig, report: Report) -> None:
    """Make the embedded benchmark of edited images."""
    write_edits(config.seed, Path(config.output) / EDITS_SUITE)


def make_clip(config: WorldConfig, report: Report) -> None:
    """Train the tiny CLIP: first its vision tower, then on pairs of images and texts."""
    tokenizer = make_clip_tokenizer(write_sentences(config.seed))
    model = build_clip(tokenizer)
    rng = Random(f"clip/{config.seed}")
    tower, clip = config.get_stage("tower"), config.get_stage("clip")
    reading = StageTrainer(CellReader(model.vision_model), tower)
    train("tower", reading, compute_cell_loss, lambda step: make_cell_batch(rng, tower.size), report)
    freeze_tower(model)
    pairs = partial(make_pair_batch, tokenizer, rng, clip.size, clip.each)
    train(
        "clip",
        StageTrainer(model, clip),
        compute_contrastive_loss,
        lambda step: pairs(compute_max_entities(clip, step)),
        report,
    )
    folder = Path(config.output) / CLIP_FOLDER
    save_model(model, tokenizer, folder)
    make_image_processor().save_pretrained(folder)


def make_vqa(config: WorldConfig, report: Report) -> None:
    """Train the tiny CLIP-FlanT5 with the frozen tower of the saved CLIP: first on captions, then on questions."""
    tokenizer = make_t5_tokenizer(write_sentences(config.seed))
    model = build_clip_flant5(tokenizer)
    clip = CLIPModel.from_pretrained(Path(config.output) / CLIP_FOLDER, dtype=torch.float32)
    model.vision_tower.load_state_dict(clip.vision_model.state_dict())
    freeze_all_but(model, TRAINED_PARTS)
    maker = ExerciseMaker(tokenizer, Random(f"vqa/{config.seed}"))
    batches = {"caption": maker.make_captions} | {
        name: partial(maker.make_questions, asked) for name, asked in QUESTION_MIXTURES.items()
    }
    for name, batch_of in batches.items():
        stage = config.get_stage(name)
        train(f"{name}s", StageTrainer(model, stage), compute_exercise_loss, partial(batch_of, stage), report)
    save_vqa(model, tokenizer, Path(config.output) / VQA_FOLDER)


def make_judge(config: WorldConfig, report: Report) -> None:
    """Train the tiny pairwise judge, starting from the saved CLIP-FlanT5."""
    assets = Path(config.output)
    tokenizer = load_tokenizer(assets / VQA_FOLDER)
    model = load_network(assets / VQA_FOLDER, tower=assets / CLIP_FOLDER).float()
    extend_tokenizer(tokenizer)
    extend_network(model, tokenizer)
    easy = ContestMaker(tokenizer, Random(f"judge/{config.seed}"), sample_easy_contest)
    hard = ContestMaker(tokenizer, Random(f"judge_hard/{config.seed}"), sample_hard_contest)
    for name, parts, maker in (
        ("judge_decoder", DECODER_PARTS, easy),
        ("judge", TRAINED_PARTS, easy),
        ("judge_hard", TRAINED_PARTS, hard),
    ):
        freeze_all_but(model, parts)
        stage = config.get_stage(name)
        train(name, StageTrainer(model, stage), compute_contest_loss, partial(maker.make_batch, stage), report)
    save_vqa(model, tokenizer, assets / JUDGE_FOLDER)


def make_writer(config: WorldConfig, report: Report) -> None:
    """Train the tiny language model that writes the questions of Gecko, TIFA, DSG and VQ2."""
    tokenizer = make_writer_tokenizer(config.seed)
    model, stage = build_writer(tokenizer), config.get_stage("writer")
    batches = make_lesson_batches(tokenizer, Random(f"writer/{config.seed}"), stage.size)
    train("writer", StageTrainer(model, stage), compute_reply_loss, lambda step: next(batches), report)
    save_model(model, tokenizer, Path(config.output) / WRITER_FOLDER)


def make_nli(config: WorldConfig, report: Report) -> None:
    """Train the tiny NLI model that catches hallucinated questions."""
    tokenizer = make_bert_tokenizer([*write_sentences(config.seed), HYPOTHESIS_VOCABULARY_TEXT])
    model, stage = build_nli(tokenizer), config.get_stage("nli")
    rng = Random(f"nli/{config.seed}")
    train(
        "nli",
        StageTrainer(model, stage),
        compute_nli_loss,
        lambda step: make_nli_batch(tokenizer, rng, stage.size),
        report,
    )
    save_model(model, tokenizer, Path(config.output) / NLI_FOLDER)


def measure_accuracy(config: WorldConfig, report: Report) -> None:
    """Measure the accuracy of the saved checkpoints with the production code; write accuracy.json and README.md."""
    assets = Path(config.output)
    benchmark = make_benchmark(config.seed)
    vqa = load(resolve_checkpoint(assets, VQA_FOLDER), "likelihood")
    judge = load(resolve_checkpoint(assets, JUDGE_FOLDER), "likelihood")
    clip = load(resolve_checkpoint(assets, CLIP_FOLDER), "similarity")
    measured = {
        "vqa": measure_vqa(vqa, sample_held_out_questions(config.seed, config.questions_each)),
        "order": measure_order(vqa, config.seed, config.questions_each),
        "judge": measure_judge(judge, config.seed, config.questions_each),
        "clip": measure_clip(clip, config.seed, config.questions_each),
        "true_mean_by_generator": {name: round(mean, 4) for name, mean in benchmark.true_means.items()},
        **_measure_text_models(config, benchmark),
    }
    (assets / "accuracy.json").write_text(json.dumps(measured, indent=2) + "\n")
    (assets / "README.md").write_text(render_readme(measured, config.recipe))
    for kind in ("vqa", "clip", "writer"):
        for name, share in measured[kind].items():
            report(f"accuracy: {kind} {name} {share['accuracy']:.1%} of {share['n']}")


def _measure_text_models(config: WorldConfig, benchmark: Benchmark) -> dict[str, Any]:
    writer = load(resolve_checkpoint(Path(config.output), WRITER_FOLDER), "generate")
    nli = load(resolve_checkpoint(Path(config.output), NLI_FOLDER), "entailment")
    sheets = {metric: write_sheets(writer, metric, benchmark.prompts) for metric in QUESTION_METRICS}
    return {
        "writer": {metric: measure_sheets(written) for metric, written in sheets.items()},
        "hallucinations": {
            f"Gecko, NLI at {GECKO_THRESHOLD}": count_dropped_questions(nli, sheets["gecko"]),
            "TIFA, filter": count_filtered_questions(sheets["tifa"]),
        },
        "nli": measure_pairs(nli, sample_held_out_pairs(config.seed, PAIRS_PER_QUESTION * config.questions_each)),
    }


MAKE_FUNCTIONS: Mapping[str, Callable[[WorldConfig, Report], None]] = {
    "data": make_data,
    "video": make_video,
    "signs": make_signs,
    "edits": make_edit_world,
    "clip": make_clip,
    "vqa": make_vqa,
    "judge": make_judge,
    "writer": make_writer,
    "nli": make_nli,
    "accuracy": measure_accuracy,
}
