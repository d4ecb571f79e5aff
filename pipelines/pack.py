"""The embedded pack: its benchmark, its tiny models, how well they answer, and the file that says so."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Literal, get_args

import torch

from operators.errors import ConfigError
from operators.pack.accuracy import (
    benchmark_quality,
    clip_accuracy,
    clip_scores,
    held_out_questions,
    load_similarity,
    load_vqa,
    vqa_accuracy,
    vqa_scores,
)
from operators.pack.batches import BatchMaker
from operators.pack.card import pack_card
from operators.pack.checkpoints import NLI_FOLDER, WRITER_FOLDER, save_clip, save_text_model, save_vqa
from operators.pack.clip_training import PairMaker, train_clip
from operators.pack.lessons import METRICS
from operators.pack.networks import build_clip, build_clip_flant5, build_nli, build_writer, image_processor
from operators.pack.nli_training import make_nli_tokenizer, train_nli
from operators.pack.schedule import Stage
from operators.pack.tables import Benchmark, make_benchmark, write_benchmark
from operators.pack.tokens import clip_tokenizer, t5_tokenizer, world_sentences
from operators.pack.tower_training import train_tower
from operators.pack.vqa_training import caption_stage, question_stage
from operators.pack.writer_accuracy import (
    EVEN,
    THRESHOLD,
    entailed_questions,
    filtered_questions,
    held_out_pairs,
    load_entailment,
    load_writer,
    pair_accuracy,
    sheet_accuracy,
    write_sheets,
)
from operators.pack.writer_training import LessonMaker, make_writer_tokenizer, train_writer

PackStep = Literal["data", "clip", "vqa", "writer", "nli", "accuracy"]
Report = Callable[[str], None]
SUITE_FOLDER = "shapes"
PAIRS_EACH = 10
STEP_COUNTS = (
    "tower_steps",
    "clip_steps",
    "caption_steps",
    "question_steps",
    "writer_steps",
    "nli_steps",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackConfig:
    """How the embedded pack is made."""

    output: str = "assets"
    """Folder the pack is written to."""
    seed: int = 0
    """Seed of the benchmark, of the networks' first weights and of what they are trained on."""
    steps: tuple[str, ...] = ("data", "clip", "vqa", "writer", "nli", "accuracy")
    """Which parts to make: `data`, `clip`, `vqa`, `writer`, `nli`, `accuracy`; the last measures the checkpoints that
    are there."""
    clip_steps: int = 600
    """Optimiser steps of the CLIP's pairs of images and texts."""
    tower_steps: int = 300
    """Optimiser steps of the CLIP's vision tower before that."""
    caption_steps: int = 500
    """Optimiser steps of CLIP-FlanT5's first stage, captions."""
    question_steps: int = 4000
    """Optimiser steps of CLIP-FlanT5's second stage, questions."""
    writer_steps: int = 6000
    """Optimiser steps of the question writer."""
    nli_steps: int = 3000
    """Optimiser steps of the NLI model."""
    questions_each: int = 400
    """Held-out questions of every type that the accuracies are measured on; ten times as many pairs for NLI."""
    threads: int | None = None
    """Torch threads; torch's own choice by default."""

    def __post_init__(self) -> None:
        known = get_args(PackStep)
        for step in self.steps:
            if step not in known:
                near = get_close_matches(step, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"pack steps: expected some of {', '.join(known)}, got {step!r}{hint}")
        for name in (*STEP_COUNTS, "questions_each"):
            if getattr(self, name) < 1:
                raise ConfigError(f"pack {name}: expected at least 1, got {getattr(self, name)}")

    @property
    def tower_stage(self) -> Stage:
        return Stage(steps=self.tower_steps, peak=1e-3, images=128)

    @property
    def clip_stage(self) -> Stage:
        return Stage(steps=self.clip_steps, peak=1e-3, images=96, each=2)

    @property
    def caption_stage(self) -> Stage:
        return Stage(steps=self.caption_steps, peak=1e-3, images=64, each=2)

    @property
    def question_stage(self) -> Stage:
        return Stage(steps=self.question_steps, peak=5e-4, images=32, each=6)

    @property
    def writer_stage(self) -> Stage:
        return Stage(steps=self.writer_steps, peak=1.5e-3, images=0, each=64)

    @property
    def nli_stage(self) -> Stage:
        return Stage(steps=self.nli_steps, peak=7e-4, images=0, each=96)


def make_pack(config: PackConfig, report: Report) -> None:
    """Makes the chosen parts of the pack, in the order data, clip, vqa, writer, nli, accuracy."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    makers: Mapping[str, Callable[[PackConfig, Report], None]] = {
        "data": make_data,
        "clip": make_clip,
        "vqa": make_vqa,
        "writer": make_writer,
        "nli": make_nli,
        "accuracy": make_accuracy,
    }
    for name, make in makers.items():
        if name in config.steps:
            began = monotonic()
            make(config, report)
            report(f"{name}: done in {monotonic() - began:.0f} s")


def make_data(config: PackConfig, report: Report) -> None:
    """The benchmark's tables."""
    benchmark = make_benchmark(config.seed)
    write_benchmark(benchmark, Path(config.output) / SUITE_FOLDER, config.seed)
    for name, mean in benchmark.true_means.items():
        report(f"data: {name} meets its prompt in {mean:.1%} of its images")


def make_clip(config: PackConfig, report: Report) -> None:
    """The tiny CLIP: its vision tower first, then pairs of images and texts."""
    torch.manual_seed(config.seed)
    tokenizer = clip_tokenizer(world_sentences(config.seed))
    processor = image_processor()
    model = build_clip(tokenizer)
    rng = Random(f"clip/{config.seed}")
    train_tower(model.vision_model, config.tower_stage, processor, rng, report)
    maker = PairMaker(tokenizer=tokenizer, processor=processor, rng=rng)
    train_clip(model, config.clip_stage, maker, report)
    save_clip(model, tokenizer, processor, Path(config.output))


def make_vqa(config: PackConfig, report: Report) -> None:
    """The tiny CLIP-FlanT5 on the saved CLIP's tower: captions first, then questions."""
    torch.manual_seed(config.seed)
    tokenizer = t5_tokenizer(world_sentences(config.seed))
    model = build_clip_flant5(tokenizer)
    clip = load_similarity(Path(config.output)).model
    model.vision_tower.load_state_dict(clip.vision_model.state_dict())
    maker = BatchMaker(tokenizer, image_processor(), Random(f"vqa/{config.seed}"))
    caption_stage(model, config.caption_stage, maker, report)
    question_stage(model, config.question_stage, maker, report)
    save_vqa(model, tokenizer, Path(config.output))


def make_writer(config: PackConfig, report: Report) -> None:
    """The tiny language model that writes the questions of Gecko, TIFA, DSG and VQ2."""
    torch.manual_seed(config.seed)
    tokenizer = make_writer_tokenizer(config.seed)
    model = build_writer(tokenizer)
    stage = config.writer_stage
    train_writer(model, stage, LessonMaker(tokenizer, Random(f"writer/{config.seed}"), stage.each), report)
    save_text_model(model, tokenizer, Path(config.output) / WRITER_FOLDER)


def make_nli(config: PackConfig, report: Report) -> None:
    """The tiny NLI model that finds hallucinated questions."""
    torch.manual_seed(config.seed)
    tokenizer = make_nli_tokenizer(config.seed)
    model = build_nli(tokenizer)
    train_nli(model, config.nli_stage, tokenizer, Random(f"nli/{config.seed}"), report)
    save_text_model(model, tokenizer, Path(config.output) / NLI_FOLDER)


def make_accuracy(config: PackConfig, report: Report) -> None:
    """Measures the saved checkpoints through the production code; writes accuracy.json and README.md."""
    assets = Path(config.output)
    benchmark = make_benchmark(config.seed)
    measured = {**_image_models(config, benchmark), **_text_models(config, benchmark)}
    (assets / "accuracy.json").write_text(json.dumps(measured, indent=2) + "\n")
    (assets / "README.md").write_text(pack_card(assets, measured, _recipe(config)))
    for kind in ("vqa", "clip", "writer"):
        for name, share in measured[kind].items():
            report(f"accuracy: {kind} {name} {share['accuracy']:.1%} of {share['n']}")


def _image_models(config: PackConfig, benchmark: Benchmark) -> dict[str, Any]:
    """How well the VQA model and the CLIP answer, and how their metrics tell the generators apart."""
    assets = Path(config.output)
    vqa, clip = load_vqa(assets), load_similarity(assets)
    return {
        "vqa": vqa_accuracy(vqa, held_out_questions(config.seed, config.questions_each)),
        "clip": clip_accuracy(clip, config.seed, config.questions_each),
        "true_mean_by_generator": {name: round(mean, 4) for name, mean in benchmark.true_means.items()},
        "vqascore": benchmark_quality(
            benchmark, {name: vqa_scores(vqa, made) for name, made in benchmark.depictions.items()}
        ),
        "clipscore": benchmark_quality(
            benchmark, {name: clip_scores(clip, made) for name, made in benchmark.depictions.items()}
        ),
    }


def _text_models(config: PackConfig, benchmark: Benchmark) -> dict[str, Any]:
    """How well the writer asks about the benchmark's prompts, and what becomes of what it imagines."""
    writer, nli = load_writer(Path(config.output)), load_entailment(Path(config.output))
    sheets = {metric: write_sheets(writer, metric, benchmark.prompts) for metric in METRICS}
    return {
        "writer": {metric: sheet_accuracy(written) for metric, written in sheets.items()},
        "hallucinations": {
            f"Gecko, NLI at {THRESHOLD}": entailed_questions(nli, sheets["gecko"], THRESHOLD),
            f"Gecko, NLI at {EVEN}": entailed_questions(nli, sheets["gecko"], EVEN),
            "TIFA, filter": filtered_questions(sheets["tifa"]),
        },
        "nli": pair_accuracy(nli, held_out_pairs(config.seed, PAIRS_EACH * config.questions_each)),
    }


def _recipe(config: PackConfig) -> dict[str, Any]:
    chosen = asdict(config)
    return {name: chosen[name] for name in ("seed", *STEP_COUNTS)}
