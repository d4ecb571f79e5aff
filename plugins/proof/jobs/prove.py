"""Downloads released checkpoints, and compares our scores for public images with published scores."""

import sys
from pathlib import Path

from rich.console import Console

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table
from plumbline.operators.base.errors import ConfigError
from plumbline.plugins.proof.proof_config import Device, ProveConfig
from plumbline.plugins.proof.proof_report import describe_machine, write_report
from plumbline.plugins.proof.proving import ProofResult, choose_metrics, find_exit_code, prove

COMMAND = Command(
    "prove",
    "Download released checkpoints, score public images whose scores others have published, and write both\n"
    "side by side with the largest difference, the difference that is expected, and pairs per second. The\n"
    "report has no secrets and no paths, so that it can be sent to us (plugins/proof/README.md).",
    ProveConfig,
    first="proof",
)


def main(config: ProveConfig) -> int:
    """Run each proof, updating the report after each; return 0 if all scores agree, otherwise 1.

    Checkpoints that do not fit or cannot be downloaded are skipped, and do not change the exit code unless nothing was
    scored.
    """
    console, on_gpu = make_console(), uses_gpu(config.device)
    metrics = choose_metrics(config, on_gpu=on_gpu)
    machine, output = describe_machine(on_gpu=on_gpu), Path(config.output).expanduser()
    results: list[ProofResult] = []
    for name, proof in config.proofs.items():
        say(console, f"{name}: {', '.join(published.source for published in proof.published)}")
        results.append(prove(name, proof, metrics[name], config))
        write_report(output, machine, results)
    show_results(console, results)
    say(console, f"report: {config.output}")
    return find_exit_code(results)


def uses_gpu(device: Device) -> bool:
    """Return True if the checkpoints run on a GPU; raise ConfigError if `device` is auto and the machine has none."""
    if device == "cpu":
        return False
    import torch

    if not torch.cuda.is_available():
        raise ConfigError("device=auto: expected a CUDA GPU, found none; run on a machine with one, or try device=cpu")
    return True


def show_results(console: Console, results: list[ProofResult]) -> None:
    """Print a row for each set of images and precision, and a line for each skipped checkpoint, precision or set."""
    rows = [
        (
            result.name,
            precision,
            f"{len(compared.images)}",
            _format_optional_number(found.largest, "{:.5f}"),
            _format_optional_number(found.expected, "{:g}"),
            _format_optional_number(compared.rounding, "{:.5f}"),
            found.verdict,
            _format_optional_number(result.runs[precision].pairs_per_second, "{:.1f}"),
        )
        for result in results
        for compared in result.sets
        for precision, found in compared.differences.items()
    ]
    names = ("checkpoint", "precision", "images", "largest difference", "expected", "by rounding", "verdict", "pairs/s")
    if rows:
        show_table(console, "ours against published", names, rows, numbers=slice(2, 6))
    for result in results:
        if result.skipped is not None:
            say(console, f"{result.name}: skipped: {result.skipped}")
            continue
        for precision, run in result.runs.items():
            if run.skipped is not None:
                say(console, f"{result.name}: {precision} left out: {run.skipped}")
        for compared in result.sets:
            if compared.skipped is not None:
                say(console, f"{result.name}: not read: {compared.source}: {compared.skipped}")


def _format_optional_number(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
