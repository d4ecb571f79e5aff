"""Evaluates a checkpoint: generates and scores a benchmark's images, compares the scores and applies a gate."""

import sys

from rich.console import Console

from plumbline.jobs.command import STOPPED_MESSAGE, Command, run_job
from plumbline.jobs.display.console import make_console, say, show_sentence
from plumbline.jobs.logs import log_to_file
from plumbline.jobs.overrides import SWEEP_KEYS
from plumbline.jobs.sweep import sweep_benchmark
from plumbline.jobs.table import find_job
from plumbline.pipelines.base.exit_codes import COMPLETE, WITHIN_BUDGET, choose_worse_code
from plumbline.pipelines.nightly.gates import open_gate
from plumbline.pipelines.store.store import open_store
from plumbline.plugins.checkpoint_evaluation.evaluate_config import EvaluateConfig
from plumbline.plugins.checkpoint_evaluation.verdicts import compare_with_baseline, find_ending

PICTURE_OPTIONS = ("name", "cfg", "steps", "size", "sampler", "seed", "seeds")
"""Options of `pictures` that the command line also accepts without the prefix `pictures.`."""
COMMAND = Command(
    "evaluate",
    "Evaluate a checkpoint: generate a benchmark's images with it, score them beside those of earlier checkpoints,\n"
    "write the report, and judge the checkpoint by a baseline and a gate. What exists is not computed again.",
    EvaluateConfig,
    {**SWEEP_KEYS, **{name: f"pictures.{name}" for name in PICTURE_OPTIONS}},
    first="image_model.checkpoint",
    stopped=STOPPED_MESSAGE,
)


def main(config: EvaluateConfig) -> int:
    """Evaluate the checkpoint; write a log of the command, and return the exit code.

    Exit codes: 0, 1 or 2 as for a sweep. With a gate, 2 counts as 0, and 7 means that the checkpoint does not pass.
    """
    with log_to_file(config.log, [config.storage.key, config.storage.secret]):
        return _evaluate(make_console(), config)


def _evaluate(console: Console, config: EvaluateConfig) -> int:
    """Run the sweep, compare the checkpoint with the baseline, and apply the gate; return the exit code.

    The baseline and the gate are checked before the first image is generated.
    """
    config.check_baseline()
    if config.gate is not None:
        find_job("gate")
        open_gate(config.storage.locate(config.gate)).check({config.benchmark.name: [*config.metrics]})
    concluded = sweep_benchmark(console, config.make_sweep())
    if concluded is None:
        return COMPLETE
    store, run_id = open_store(config), concluded.run_id
    ending = find_ending(store, run_id, config)
    if config.baseline is not None:
        for sentence in compare_with_baseline(store, run_id, config):
            show_sentence(console, sentence)
    code = ending.code if config.gate is None else _apply_gate(run_id, config, ending.code)
    if ending.code or concluded.ending.code:  # the sweep's own ending counts the images of all checkpoints
        say(console, f"{config.name}: {ending}")
    say(console, f"report: {store.place.url}/runs/{run_id}/report.html")
    return code


def _apply_gate(run_id: str, config: EvaluateConfig, code: int) -> int:
    """Judge the checkpoint as `plumbline gate` does; return the worse of the gate's exit code and `code`.

    `code` is the exit code for the checkpoint's own images. Code 2 (failures within `max_failed`) counts as 0 here,
    because the gate's rules can set a minimum coverage themselves.
    """
    gate = find_job("gate")
    options = gate.COMMAND.schema(
        store=config.store,
        run=run_id,
        rules=config.gate,
        candidate=config.name,
        baseline=config.baseline,
        settings=config.settings,
        storage=config.storage,
    )
    return choose_worse_code(COMPLETE if code == WITHIN_BUDGET else code, gate.main(options))


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
