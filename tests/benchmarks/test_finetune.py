"""Finetuning on the embedded benchmark's raters with the shipped settings improves agreement on held-out prompts."""

from pathlib import Path

import torch

from plumbline.jobs.command import get_command, load_values
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.releases.scores import read_scores
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.plugins.training.jobs.train import COMMAND
from plumbline.plugins.training.planning import plan_training
from plumbline.plugins.training.rated_images import measure_held_out_agreement
from plumbline.plugins.training.training_config import FinetuneConfig
from plumbline.plugins.training.worker import HELD_OUT_FILE, WorkerRank, run_worker
from tests.benchmarks.size import choose_size, expect

SHORT_TRAINING = ("pace.steps=1", "pace.batch=4", "held_out=0.02", "sampling.resamples=2", "sampling.permutations=2")
TINY_OPTIONS: tuple[str, ...] = choose_size((), SHORT_TRAINING)
RAISED_STATISTICS = ("pearson", "spearman", "pairwise_accuracy_grouped")


def test_finetuning_raises_agreement_on_held_out_prompts(tmp_path: Path) -> None:
    """The test trains in one process instead of the two workers of `plumbline train training=finetune`."""
    config = read_config(
        load_values(get_command("train"), ["training=finetune", f"output={tmp_path}", *TINY_OPTIONS]), COMMAND.schema
    )
    assert isinstance(config, FinetuneConfig)
    planned = plan_training(config)
    assert planned.release is not None
    run_worker(planned.task, WorkerRank(0, 1, torch.device("cpu")), print)
    scores = read_scores(StorageConfig().locate(f"{tmp_path}/{HELD_OUT_FILE}"))
    findings = measure_held_out_agreement(config, planned.release, scores, HELD_OUT_FILE)
    agreement = {
        (judged.metric, judged.statistic): judged.value for judged in findings.judgements if judged.group == "overall"
    }
    for statistic in RAISED_STATISTICS:
        before, after = agreement["before", statistic], agreement["after", statistic]
        print(f"{statistic}: {before:.3f} before, {after:.3f} after")
        expect(after > before)
    for compared in findings.comparisons:
        print(f"{compared.statistic}: p = {compared.p_value:.3f} for no difference between before and after")
