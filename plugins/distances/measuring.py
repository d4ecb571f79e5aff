"""Measures the distances of generators' images from the reference images, with intervals where they are valid."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import combinations
from math import erfc, sqrt
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import format_quantity
from plumbline.operators.statistics.ordering import holm
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.running.events import Watch
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.store.runs import find_run, name_by_time, read_manifest
from plumbline.pipelines.store.store import open_existing_store
from plumbline.pipelines.sweeps.computing import CellTables, compute_and_repair, inspect_cells, register_sweep
from plumbline.pipelines.sweeps.planning import PlannedSweep, plan_sweep
from plumbline.plugins.distances.distance_config import DistanceConfig, DistanceName
from plumbline.plugins.distances.features import ClusterSums, FeatureBatch, PromptEffects
from plumbline.plugins.distances.features_stage import FEATURES_STAGE, read_features
from plumbline.plugins.distances.frechet import (
    SplitMoments,
    compute_frechet_distance,
    differentiate_frechet_distance,
    extrapolate_distance,
    sum_moments,
)
from plumbline.plugins.distances.image_sets import open_generated_images, open_reference_images
from plumbline.plugins.distances.mmd import estimate_mmd
from plumbline.plugins.distances.results import (
    Comparison,
    DistanceResults,
    DistanceRow,
    FailedImages,
    UsedModel,
    write_results,
)

MIN_PROMPTS = 20
"""Minimum number of prompts in each set for an interval."""
MIN_IMAGES_PER_FEATURE = 3
"""Minimum number of images per feature for an interval of FID: the halves then have more images than features."""
Z_95 = 1.959964
"""Quantile of the normal distribution for intervals at 95%."""


class PlannedDistances(NamedTuple):
    """The sweeps that compute the features of the generators' images and of the reference images."""

    config: DistanceConfig
    generated: PlannedSweep
    reference: PlannedSweep
    run_id: str | None
    """Run whose images are compared; None for other images."""


class Estimate(NamedTuple):
    """Distance estimated for infinitely many images, with its sampling error."""

    distance: float
    error: float
    """Standard error."""
    effects: PromptEffects

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% confidence interval, cut off at 0, because no distance is negative."""
        return max(self.distance - Z_95 * self.error, 0.0), max(self.distance + Z_95 * self.error, 0.0)


class MeasuredDistance(NamedTuple):
    """The distance of one generator's images from the reference images."""

    distance: DistanceName
    generator: str
    images: int
    reference_images: int
    value: float
    """The number that the release prints; it is too large for a finite number of images."""
    estimate: Estimate | None
    reason: str = ""
    """Sentence with the reason if there is no estimate; otherwise empty."""


@dataclass(frozen=True)
class StoredFeatures:
    """The features of a set of images, which are read from the store whenever they are iterated over."""

    cells: CellTables
    paths: Sequence[str]
    below: int = 2**64
    """Only prompts whose hash is below this number are read."""
    images: int = field(init=False)
    width: int = field(init=False)
    prompts: int = field(init=False)

    def __post_init__(self) -> None:
        """Count the images, their features and their prompts."""
        images, width, prompts = 0, 0, [np.zeros(0, np.uint64)]
        for batch in self:
            images, width = images + len(batch.features), batch.features.shape[1]
            prompts.append(np.unique(batch.prompts))
        for name, value in (("images", images), ("width", width), ("prompts", len(np.unique(np.concatenate(prompts))))):
            object.__setattr__(self, name, value)

    def __iter__(self) -> Iterator[FeatureBatch]:
        for path in self.paths:
            table = self.cells.read(path, ["image_id", "prompt_id", "features"])
            table = table.filter(pc.is_valid(table.column("features")))
            lists = table.column("features").to_pylist()
            ids = pc.coalesce(table.column("prompt_id"), table.column("image_id")).to_pylist()
            prompts = np.repeat(hash_ids(ids), [len(images) for images in lists]) if ids else np.zeros(0, np.uint64)
            if not len(prompts):
                continue
            features = read_features(lists)
            if self.below < 2**64:
                chosen = prompts < np.uint64(self.below)
                prompts, features = prompts[chosen], features[chosen]
            if len(prompts):
                yield FeatureBatch(prompts, features)

    def load(self) -> FeatureBatch:
        """Return all features at once."""
        batches = list(self)
        return FeatureBatch(
            np.concatenate([batch.prompts for batch in batches]), np.concatenate([batch.features for batch in batches])
        )

    def select_part(self, images: int) -> "StoredFeatures":
        """Return about this many images, of random prompts. Parts of two sets share as many prompts as possible."""
        if self.images <= images:
            return self
        return StoredFeatures(self.cells, self.paths, int(2**64 * images / self.images))


class _ComputedSet(NamedTuple):
    cells: CellTables
    failed: FailedImages


def plan_distances(config: DistanceConfig) -> PlannedDistances:
    """Plan the sweeps that compute the features; raise ConfigError if there are no images or a model is missing."""
    run_id = None
    if config.benchmark is None:
        store = open_existing_store(config)
        run_id = find_run(store, config.run)
        images = read_config(read_manifest(store, run_id).get("config", {}).get("benchmark", {}), BenchmarkConfig)
    else:
        images = open_generated_images(config.make_sweep(config.benchmark))
    generated = plan_sweep(config.make_sweep(images), wanted=(FEATURES_STAGE,))
    reference = open_reference_images(config.make_sweep(images), config.reference)
    return PlannedDistances(
        config, generated, plan_sweep(config.make_sweep(reference), wanted=(FEATURES_STAGE,)), run_id
    )


def measure_distances(planned: PlannedDistances, watch: Watch) -> DistanceResults:
    """Compute missing features, measure all distances, and write them to the store."""
    reference = _compute_features(planned.reference, watch, "the reference")
    generated = _compute_features(planned.generated, watch, "the generators")
    measured: list[MeasuredDistance] = []
    comparisons: list[Comparison] = []
    notes: list[str] = []
    for distance in planned.config.distances:
        references = StoredFeatures(reference.cells, _list_paths(reference.cells, distance, None))
        of_distance = _measure(planned.config, distance, generated.cells, references, notes)
        measured += of_distance
        comparisons += compare_generators(of_distance)
    store, sweep = planned.generated.store, planned.generated.config
    results = DistanceResults(
        distances_id=name_by_time(store, datetime.now(UTC)),
        run_id=planned.run_id,
        benchmark=sweep.benchmark.name,
        images=sweep.benchmark.images,
        reference=planned.config.reference,
        models={
            role: UsedModel(family=model.family, checkpoint=model.checkpoint, revision=model.revision)
            for role, model in sweep.models.items()
        },
        distances=[_make_row(each) for each in measured],
        comparisons=comparisons,
        failed=[reference.failed, generated.failed],
        notes=notes,
    )
    write_results(store, results)
    return results


def _compute_features(planned: PlannedSweep, watch: Watch, name: str) -> _ComputedSet:
    """Compute the missing features of a set, and read all of them once, so that damaged cells are computed again."""
    with register_sweep(planned, watch) as (sweep, both):
        sweep, outcomes, kinds = compute_and_repair(
            sweep, both, lambda now, outcomes: inspect_cells(now, outcomes, _count_errors)
        )
    lost = [outcome for outcome in outcomes.values() if outcome.state == "failed"]
    rows = sum(shard.rows for shard in sweep.plan.images.of_shard) * len(sweep.config.metrics)
    lost_rows = sum(
        cell.shard.rows for cell in sweep.plan.cells if cell.path in outcomes and outcomes[cell.path].state == "failed"
    )
    failed = FailedImages(
        name=name,
        total=rows,
        failed=lost_rows + sum((kinds or {}).values()),
        kinds=dict(kinds or {}),
        problems=tuple({one.message: None for one in lost}),
    )
    return _ComputedSet(CellTables(sweep.plan, sweep.store, outcomes), failed)


def _count_errors(cells: CellTables) -> Counter[str]:
    kinds = Counter[str]()
    for path in cells.list_paths(cells.plan.cells):
        errors = cells.read(path, ["error"]).column("error").drop_null()
        kinds.update(error["kind"] for error in errors.to_pylist())
    return kinds


def _list_paths(cells: CellTables, distance: DistanceName, generator: str | None) -> list[str]:
    """Return the paths of the cells with a distance's features, for one generator, or for all if it is None."""
    shards = [shard for shard in cells.plan.images.of_shard if generator in (None, shard.group)]
    return cells.list_paths(cells.plan.images.select(cells.plan.recipes[distance][FEATURES_STAGE], shards))


def _measure(
    config: DistanceConfig, distance: DistanceName, cells: CellTables, reference: StoredFeatures, notes: list[str]
) -> list[MeasuredDistance]:
    """Return the distances of all generators; append notes about sets that are small or only partly compared."""
    generators = list(dict.fromkeys(shard.group for shard in cells.plan.images.of_shard))
    if reference.images < 2:
        raise ConfigError(
            f"reference={config.reference}: expected at least 2 images with features, found {reference.images}"
        )
    part = reference.select_part(config.cmmd_images) if distance == "cmmd" else reference
    loaded = part.load() if distance == "cmmd" else None
    moments = sum_moments(reference, reference.width) if distance == "fid" else None
    measured = []
    for generator in generators:
        features = StoredFeatures(cells, _list_paths(cells, distance, generator))
        if features.images < 2:
            notes.append(
                f"{distance}: {generator} has {format_quantity(features.images, 'image')} with features; "
                f"expected 2 or more"
            )
            continue
        if loaded is not None:
            own = features.select_part(config.cmmd_images)
            if own.images < features.images or part.images < reference.images:
                notes.append(
                    f"{distance}: a random part was compared, {own.images} of {features.images} images of {generator} "
                    f"and {part.images} of {reference.images} reference images; raise cmmd_images to compare more"
                )
            measured.append(_measure_cmmd(generator, own, loaded, min(own.prompts, part.prompts)))
        else:
            assert moments is not None
            measured.append(_measure_fid(generator, features, reference, moments))
    return measured


def _measure_cmmd(generator: str, features: StoredFeatures, reference: FeatureBatch, prompts: int) -> MeasuredDistance:
    found = estimate_mmd(features.load(), reference)
    measured = MeasuredDistance("cmmd", generator, features.images, len(reference.features), found.value, None)
    if prompts < MIN_PROMPTS:
        return measured._replace(reason=_explain_few_prompts("cmmd", prompts))
    return measured._replace(estimate=Estimate(found.unbiased, found.effects.standard_error, found.effects))


def _measure_fid(
    generator: str, features: StoredFeatures, reference: StoredFeatures, reference_moments: SplitMoments
) -> MeasuredDistance:
    moments = sum_moments(features, features.width)
    value = compute_frechet_distance(moments.whole, reference_moments.whole)
    measured = MeasuredDistance("fid", generator, features.images, reference.images, value, None)
    fewest, needed = min(features.images, reference.images), MIN_IMAGES_PER_FEATURE * features.width
    if fewest < needed:
        reason = f"fid: no interval, because {fewest} images cannot show how {features.width} features vary together"
        return measured._replace(reason=f"{reason}; give {needed} or more of each set, or use cmmd")
    prompts = min(features.prompts, reference.prompts)
    if prompts < MIN_PROMPTS:
        return measured._replace(reason=_explain_few_prompts("fid", prompts))
    influence = differentiate_frechet_distance(moments.whole, reference_moments.whole)
    sums = ClusterSums()
    for batch in features:
        sums.add(batch.prompts, influence.measure_first(batch.features, moments.whole) / features.images)
    for batch in reference:
        sums.add(batch.prompts, influence.measure_second(batch.features, reference_moments.whole) / reference.images)
    effects = sums.sum_by_prompt()
    extrapolated, split_error = extrapolate_distance(moments, reference_moments, value)
    return measured._replace(estimate=Estimate(extrapolated, sqrt(effects.standard_error**2 + split_error**2), effects))


def _explain_few_prompts(distance: DistanceName, prompts: int) -> str:
    return (
        f"{distance}: no interval, because {format_quantity(prompts, 'prompt')} cannot show how much the "
        f"distance varies; give "
        f"{MIN_PROMPTS} or more of each set"
    )


def compare_generators(measured: Sequence[MeasuredDistance]) -> list[Comparison]:
    """Return the difference in distance for each pair of generators, with the closer generator first.

    The errors of the two distances are not independent, because both depend on the same reference images.
    """
    found = []
    for one, other in combinations([each for each in measured if each.estimate is not None], 2):
        first, second = sorted((one, other), key=lambda each: each.estimate.distance if each.estimate else 0.0)
        assert first.estimate is not None and second.estimate is not None
        own = second.estimate.effects.subtract(first.estimate.effects).standard_error
        # what the random halves add to either error, without what both share
        added = [max(each.error**2 - each.effects.standard_error**2, 0) for each in (first.estimate, second.estimate)]
        error = sqrt(own**2 + sum(added))
        difference = second.estimate.distance - first.estimate.distance
        p_value = erfc(difference / error / sqrt(2)) if error else float(difference == 0)
        low, high = difference - Z_95 * error, difference + Z_95 * error
        found.append(
            Comparison(
                distance=one.distance,
                closer=first.generator,
                farther=second.generator,
                difference=difference,
                low=low,
                high=high,
                p_value=p_value,
            )
        )
    corrected = holm([each.p_value for each in found])
    return [replace(each, p_value=p_value) for each, p_value in zip(found, corrected, strict=True)]


def _make_row(measured: MeasuredDistance) -> DistanceRow:
    estimate = measured.estimate
    low, high = (None, None) if estimate is None else estimate.interval
    return DistanceRow(
        distance=measured.distance,
        generator=measured.generator,
        images=measured.images,
        reference_images=measured.reference_images,
        value=measured.value,
        estimate=None if estimate is None else estimate.distance,
        low=low,
        high=high,
        reason=measured.reason,
    )
