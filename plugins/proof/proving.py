"""Scores public images with a released checkpoint, and compares the scores with the published ones."""

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.models.model import Precision, ResolvedModel
from plumbline.operators.scoring.scorer import Scorer
from plumbline.plugins.proof.checkpoints import (
    Metric,
    check_memory,
    choose_metric,
    convert_release,
    find_model,
    load_scorer,
    measure_memory,
)
from plumbline.plugins.proof.proof_config import Proof, ProveConfig, PublishedScores
from plumbline.plugins.proof.published_rows import PublicImage, read_images

Verdict = Literal["agrees", "differs", "not compared"]
WARM_UP_PAIRS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Differences between our scores for a set of images, computed in one precision, and the published scores."""

    images: int
    """Number of images with both scores."""
    unscored: int
    """Number of images that we could not score."""
    largest: float | None
    mean: float | None
    expected: float | None
    """Largest difference that counts as agreement; None if no limit is set for this precision."""

    @property
    def verdict(self) -> Verdict:
        if self.unscored:
            return "differs"
        if self.largest is None or self.expected is None:
            return "not compared"
        return "agrees" if self.largest <= self.expected else "differs"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredImage:
    """One public image with its published score and ours."""

    name: str
    sha256: str
    published: float | None
    ours: dict[Precision, float | None] = field(default_factory=dict)
    errors: dict[Precision, str] = field(default_factory=dict)
    """Reason, by precision, why we could not score the image."""

    def find_difference(self, precision: Precision) -> float | None:
        score = self.ours.get(precision)
        return None if score is None or self.published is None else abs(score - self.published)


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedSet:
    """One set of public images with published scores, and the comparison with ours."""

    source: str
    reason: str
    """Reason why a difference is expected."""
    images: tuple[ScoredImage, ...] = ()
    differences: dict[Precision, Difference] = field(default_factory=dict)
    skipped: str | None = None
    """Reason why the set could not be read; None if it was."""

    @property
    def rounding(self) -> float | None:
        """The largest difference between our own scores in bfloat16 and in float32; None if no image has both."""
        both = [(image.ours.get("bfloat16"), image.ours.get("float32")) for image in self.images]
        return max((abs(low - high) for low, high in both if low is not None and high is not None), default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionRun:
    """Speed and memory of a checkpoint in one precision, or the reason why it was not loaded."""

    skipped: str | None = None
    pairs_per_second: float | None = None
    timed_pairs: int = 0
    peak_memory: float | None = None
    """Largest number of gigabytes that torch had allocated on the GPU; None on a CPU."""


@dataclass(kw_only=True, slots=True)
class ProofResult:
    """Result for one checkpoint: comparisons with published scores, or the reason why there are none."""

    name: str
    metric: str
    options: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    """Identity of each part of the model: `HUB_ID@COMMIT`, or the digest of a folder."""
    converted_from: str | None = None
    runs: dict[Precision, PrecisionRun] = field(default_factory=dict)
    sets: list[ComparedSet] = field(default_factory=list)
    skipped: str | None = None
    """Reason why nothing was scored; None if something was."""

    @property
    def verdict(self) -> Verdict:
        verdicts = {difference.verdict for each in self.sets for difference in each.differences.values()}
        return "differs" if "differs" in verdicts else "agrees" if "agrees" in verdicts else "not compared"


def choose_metrics(config: ProveConfig, *, on_gpu: bool) -> dict[str, Metric]:
    """Return the metric of each proof; raise ConfigError if an option of a proof is invalid."""
    return {name: choose_metric(name, proof, on_gpu=on_gpu) for name, proof in config.proofs.items()}


def prove(name: str, proof: Proof, metric: Metric, config: ProveConfig) -> ProofResult:
    """Score a proof's public images in each precision that fits into memory, and compare the scores.

    Skips checkpoints that cannot be found, downloaded, converted or loaded, precisions that do not fit, and sets of
    images that cannot be read. The result contains the reasons.
    """
    result = ProofResult(name=name, metric=proof.metric, options=proof.options)
    read: dict[int, list[PublicImage]] = {}
    try:
        _require_fitting_precision(proof, config, on_gpu=metric.config.on_gpu)
        for place, published in enumerate(proof.published):
            result.sets.append(_read_set(published, config, read, place))
        if not read:
            result.skipped = "none of its public images can be read"
            return result
        if proof.conversion is not None:
            folder, result.converted_from = convert_release(name, proof.conversion, config)
            metric = metric.with_model(replace(metric.model, checkpoint=str(folder), revision=None))
    except PlumblineError as error:
        result.skipped = str(error)
        return result
    for precision in config.precisions:
        result.runs[precision] = _run_precision(result, proof, metric, precision, config, read)
    reasons = [run.skipped for run in result.runs.values()]
    if all(reasons):
        result.skipped = reasons[0]
    return result


def _require_fitting_precision(proof: Proof, config: ProveConfig, *, on_gpu: bool) -> None:
    """Raise ModelError if no precision fits, before anything is downloaded."""
    available = config.memory or measure_memory(on_gpu=on_gpu)
    errors = []
    for precision in config.precisions:
        try:
            check_memory(proof, precision, available)
        except PlumblineError as error:
            errors.append(error)
    if len(errors) == len(config.precisions):
        raise errors[0]


def _read_set(
    published: PublishedScores, config: ProveConfig, read: dict[int, list[PublicImage]], place: int
) -> ComparedSet:
    try:
        read[place] = read_images(published, config.limit)
    except PlumblineError as error:
        return ComparedSet(source=published.source, reason=published.reason, skipped=str(error))
    images = tuple(ScoredImage(name=each.name, sha256=each.digest, published=each.score) for each in read[place])
    return ComparedSet(source=published.source, reason=published.reason, images=images)


def _run_precision(
    result: ProofResult,
    proof: Proof,
    metric: Metric,
    precision: Precision,
    config: ProveConfig,
    read: Mapping[int, Sequence[PublicImage]],
) -> PrecisionRun:
    """Load the checkpoint in one precision, then score and time the images; if that fails, return the reason."""
    import torch

    try:
        check_memory(proof, precision, config.memory or measure_memory(on_gpu=metric.config.on_gpu))
        resolved = find_model(metric, precision, config.max_download)
        result.parts = {part: found.identity for part, found in resolved.parts.items()}
        return _score_sets(result, proof, metric, resolved, config.timed_pairs, read)
    except PlumblineError as error:
        return PrecisionRun(skipped=str(error))
    except torch.OutOfMemoryError:
        return PrecisionRun(skipped=f"ran out of memory in {precision}; use a larger GPU")
    finally:  # frees the model before the next one is loaded
        gc.collect()
        if metric.config.on_gpu:
            torch.cuda.empty_cache()


def _score_sets(
    result: ProofResult,
    proof: Proof,
    metric: Metric,
    resolved: ResolvedModel,
    timed_pairs: int,
    read: Mapping[int, Sequence[PublicImage]],
) -> PrecisionRun:
    """Load the model, score every set of images, and time the scoring."""
    import torch

    on_gpu = metric.config.on_gpu
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    scorer = load_scorer(metric, resolved)
    for place, images in read.items():
        _score_set(result.sets[place], proof.published[place], scorer, images, resolved.dtype)
    speed = _time_pairs(scorer, [image for images in read.values() for image in images], timed_pairs)
    peak = torch.cuda.max_memory_allocated() / 1e9 if on_gpu else None
    return PrecisionRun(pairs_per_second=speed, timed_pairs=timed_pairs, peak_memory=peak)


def _score_set(
    compared: ComparedSet,
    published: PublishedScores,
    scorer: Scorer,
    images: Sequence[PublicImage],
    precision: Precision,
) -> None:
    """Add our scores in one precision, and their differences from the published ones, to a set."""
    table = scorer.score_table([image.content for image in images], [image.prompt for image in images])
    rows = zip(compared.images, table["score"].to_pylist(), table["error"].to_pylist(), strict=True)
    for image, score, error in rows:
        image.ours[precision] = score
        if error is not None:
            image.errors[precision] = error["message"]
    both = [difference for image in compared.images if (difference := image.find_difference(precision)) is not None]
    compared.differences[precision] = Difference(
        images=len(both),
        unscored=sum(image.ours[precision] is None for image in compared.images),
        largest=max(both, default=None),
        mean=fmean(both) if both else None,
        expected=published.expected.get(precision),
    )


def _time_pairs(scorer: Scorer, images: Sequence[PublicImage], pairs: int) -> float | None:
    """Return the pairs scored per second, from encoded images to scores, after a warm-up; None if `pairs` is 0."""
    if not pairs:
        return None
    repeated = [images[place % len(images)] for place in range(pairs)]
    contents, prompts = [image.content for image in repeated], [image.prompt for image in repeated]
    scorer.score_table(contents[:WARM_UP_PAIRS], prompts[:WARM_UP_PAIRS])
    begun = time.perf_counter()
    scorer.score_table(contents, prompts)
    return pairs / (time.perf_counter() - begun)


def find_exit_code(results: Sequence[ProofResult]) -> int:
    """Return 1 if a score differs or nothing was scored, otherwise 0."""
    scored = [result for result in results if result.skipped is None]
    return int(not scored or any(result.verdict == "differs" for result in scored))
