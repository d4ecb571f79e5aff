"""Finds, converts and loads the checkpoint that a proof needs, within limits on memory and downloads."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from plumbline.jobs import scorer
from plumbline.jobs.table import find_job
from plumbline.operators.base.cores import count_cores
from plumbline.operators.base.errors import ConfigError, ModelError
from plumbline.operators.models.model import LocalModel, Precision, ResolvedModel
from plumbline.operators.models.resolution import resolve_model
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.plugins.proof.downloads import check_free_space, fetch_file
from plumbline.plugins.proof.proof_config import Conversion, Proof, ProveConfig

MAX_DECODERS = 16
MAX_REASON_CHARACTERS = 200
MEMORY_FACTORS: dict[Precision, int] = {"bfloat16": 1, "float32": 2}
"""Memory of each precision, as a multiple of `Proof.memory`."""


class Metric(NamedTuple):
    """A proof's metric and its only model, whose files have not been located yet."""

    config: ScorerConfig
    role: str
    """Role of the model in the metric."""

    @property
    def model(self) -> LocalModel:
        model = self.config.models[self.role]
        assert isinstance(model, LocalModel)
        return model

    def with_model(self, model: LocalModel) -> "Metric":
        models: Any = {**self.config.models, self.role: model}
        return self._replace(config=replace(self.config, models=models))


def choose_metric(name: str, proof: Proof, *, on_gpu: bool) -> Metric:
    """Return the metric of a proof; raise ConfigError if an option is invalid or the metric needs several models."""
    words = ["models=released", *proof.options]
    decoders = min(MAX_DECODERS, count_cores())
    values = scorer.compose_values(scorer.COMMAND, words, proof.metric, {"on_gpu": on_gpu, "decoders": decoders})
    config = read_config(values, ScorerConfig)
    roles = {role for metric in config.metrics.values() for role in metric.roles.values()}
    if len(config.metrics) != 1 or len(roles) != 1 or not isinstance(config.models[next(iter(roles))], LocalModel):
        raise ConfigError(
            f"proofs.{name}: expected one metric with one model that runs here, found the models "
            f"{sorted(roles)}; choose another metric"
        )
    return Metric(config, roles.pop())


def check_memory(proof: Proof, precision: Precision, available: float) -> None:
    """Raise ModelError if the checkpoint needs more than the available gigabytes in this precision."""
    needed = proof.memory * MEMORY_FACTORS[precision]
    if needed > available:
        raise ModelError(
            f"does not fit in {precision}: needs about {needed:g} GB, and {available:.1f} GB are free; use a larger "
            "GPU, or set memory= if the estimate is wrong"
        )


def find_model(metric: Metric, precision: Precision, max_download: float) -> ResolvedModel:
    """Return the exact files of the metric's model, without downloading the weights.

    Raises ModelError if the hub or the folder does not have them, if more than `max_download` gigabytes would be
    downloaded, or if the disk has no room for them.
    """
    with _explain_download_errors(metric.model.checkpoint):
        resolved = resolve_model(replace(metric.model, dtype=precision), on_gpu=metric.config.on_gpu)
    size = sum(resolved.count_downloads().values())
    if size > max_download * 1e9:
        raise ModelError(
            f"the download is {size / 1e9:.1f} GB, more than max_download={max_download:g}; raise max_download"
        )
    if size:
        from huggingface_hub import constants

        check_free_space(Path(constants.HF_HUB_CACHE), size)
    return resolved


def load_scorer(metric: Metric, resolved: ResolvedModel) -> Scorer:
    """Download the model's missing files, and return a scorer that has loaded the model from the resolved commit.

    Raises ModelError if a file cannot be downloaded or the model does not load.
    """
    commit = resolved.parts["checkpoint"].commit
    model = replace(metric.model, dtype=resolved.dtype)
    with _explain_download_errors(model.checkpoint):
        return Scorer(metric.with_model(model if commit is None else replace(model, revision=commit)).config)


@contextmanager
def _explain_download_errors(checkpoint: str) -> Iterator[None]:
    """Convert connection and disk errors to ModelError."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # httpx's; from release 2 on, httpx2's

    try:
        yield
    except (HTTPError, OSError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON_CHARACTERS]
        raise ModelError(
            f"{checkpoint}: cannot be downloaded or read ({reason}); check the connection and the disk, and run the "
            "same command again"
        ) from error


def convert_release(name: str, conversion: Conversion, config: ProveConfig) -> tuple[Path, str]:
    """Convert the release with `plumbline convert` unless an earlier run did; return the folder and the source.

    The source is the address of the weights with the commit instead of a branch. Raises SourceError if the weights
    cannot be downloaded, and ModelError if they cannot be converted.
    """
    weights = fetch_file(conversion.weights, int(config.max_download * 1e9))
    source = conversion.weights
    if weights.commit is not None:
        before, _, after = source.partition("@")
        source = f"{before}@{weights.commit}/{after.partition('/')[2]}"
    folder = Path(config.folder).expanduser() / f"{name}-{(weights.commit or 'local')[:12]}"
    if not folder.exists():
        check_free_space(folder, weights.path.stat().st_size)
        convert = find_job("convert")
        options = {"release": conversion.release, "base": conversion.base, "instruction": None}
        with _explain_download_errors(conversion.base):
            convert.main(convert.COMMAND.schema(weights=str(weights.path), output=str(folder), **options))
    return folder, source


def measure_memory(*, on_gpu: bool) -> float:
    """Return the GPU's free memory, or else this machine's total memory, in gigabytes."""
    if on_gpu:
        import torch

        return float(torch.cuda.mem_get_info()[0] / 1e9)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
