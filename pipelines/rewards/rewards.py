"""Exports a run's scores and images to files in a given format, shard by shard."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from plumbline.operators.base.errors import DISTRIBUTION, ConfigError, SourceError
from plumbline.operators.base.sentences import format_names
from plumbline.operators.images.generation_settings import (
    compare_settings,
    describe_changed_settings,
    describe_differences,
    read_all_settings,
)
from plumbline.operators.rewards.combination import Reward, RewardConfig, Unit, compute_scales
from plumbline.operators.rewards.formats import FORMATS
from plumbline.operators.rewards.selection import (
    HELD_OUT,
    SPLIT_RULE,
    TRAIN,
    Candidates,
    Example,
    choose_split,
    select_examples,
    spread_examples,
)
from plumbline.operators.rewards.values import compute_rank_advantages, compute_z_scores, measure_noise
from plumbline.pipelines.base.exit_codes import OVER_BUDGET, compute_exit_code
from plumbline.pipelines.rewards.baseline_scores import read_baseline
from plumbline.pipelines.rewards.copied_images import ImageCopier
from plumbline.pipelines.rewards.exported_shard import (
    REASONS_NOT_COUNTED_AS_FAILED,
    PlannedShard,
    Rewards,
    ShardBuilder,
)
from plumbline.pipelines.rewards.output import RUN_PLACEHOLDER, ExportedShardRecord, ExportOutput
from plumbline.pipelines.rewards.preferences import open_preference
from plumbline.pipelines.rewards.rewards_config import EXPORT_VERSION, RewardsConfig
from plumbline.pipelines.rewards.scored_images import ScoredRun, gather_scores, read_elements
from plumbline.pipelines.store.cells import digest
from plumbline.pipelines.store.runs import find_run, read_manifest
from plumbline.pipelines.store.store import Store, open_existing_store

SINGLE_FILE_CONTAINERS = ("json", "jsonl")
MAX_USES_PER_IMAGE = 4
"""Mean number of examples per image above which a note suggests the option that limits this number."""


class ExportResult(NamedTuple):
    """A complete export."""

    url: str
    splits: Mapping[str, Mapping[str, Any]]
    """Files, number of rows and number of examples, by split."""
    left_out: Mapping[str, int]
    messages: Sequence[str]
    unverified: int
    written: int
    """Number of shards written by this call."""
    exit_code: int
    notes: Sequence[str] = ()
    """Notes to read before training, about different settings and about images in many examples."""


def export_rewards(config: RewardsConfig, report: Callable[[ExportedShardRecord], None]) -> ExportResult:
    """Write the missing shards, and then the manifest; call `report` for each shard.

    Raises ConfigError if the run, its sources or the output cannot be used, or if there is nothing to export, and
    SourceError if too many images cannot be read.
    """
    store = open_existing_store(config)
    metrics = [*config.reward.weights, *config.selection.agree] if config.reward is not None else None
    run = gather_scores(store, config.run, metrics and list(dict.fromkeys(metrics)))
    reward = _make_reward(run, store, config)
    rewards = _compute_rewards(run, reward, config)
    scorer = _describe_scorer(run, reward)
    identity = {  # everything that determines the content of the output
        "version": EXPORT_VERSION,
        "run_id": run.run_id,
        **config.describe_content(),
        "scorer": digest(scorer),
        "scores": run.parts,
        "sources": _describe_sources(run),
    }
    place = config.storage.locate(config.output.replace(RUN_PLACEHOLDER, run.run_id), writable=True)
    output = ExportOutput(place, identity)
    planned = list(_plan_shards(run, store, config, rewards))
    if not planned:
        scored = int(np.count_nonzero(~np.isnan(rewards.values)))
        raise ConfigError(
            f"run {run.run_id}: nothing to export; {scored} of {len(rewards.values)} images have a reward, and its "
            f"noise within a prompt is {rewards.noise:g}; lower selection.margin, leave selection.agree out, or use "
            "another run"
        )
    notes = _collect_notes(run, store, planned, config)
    _check_format(run, store, config.format)
    manifest, written = output.begin(), 0
    if manifest is not None:
        output.remove_temporary_files()
    else:
        form = FORMATS[config.format]
        # Parquet columns of timestamps are in UTC, without a time zone.
        ended = datetime.fromisoformat(run.manifest.get("ended", "1970-01-01T00:00:00")).replace(tzinfo=None)
        with ImageCopier(run, store, edited=run.edited and form.edits != "no") as copier:
            builder = ShardBuilder(run, store, output, form, rewards, copier, digest(scorer), ended)
            written = _write_shards(planned, builder, report, config.max_failed)
        manifest = _describe_export(run, config, rewards, scorer) | _join_shards(output, planned, form.container)
        output.finish(manifest)
    failed = sum(count for kind, count in manifest["left_out"].items() if kind not in REASONS_NOT_COUNTED_AS_FAILED)
    examples = sum(split["examples"] for split in manifest["splits"].values())
    return ExportResult(
        url=output.place.url,
        splits=manifest["splits"],
        left_out=manifest["left_out"],
        messages=manifest["messages"],
        unverified=manifest["images_unverified"],
        written=written,
        exit_code=compute_exit_code(failed, failed + examples, config.max_failed),
        notes=notes,
    )


def _collect_notes(run: ScoredRun, store: Store, planned: Sequence[PlannedShard], config: RewardsConfig) -> list[str]:
    settings = read_all_settings(run.manifest, config.settings)
    pairs = [
        f"{a} and {b} ({difference})"
        for a, b in combinations(settings, 2)
        if (difference := describe_differences(compare_settings(settings[a], settings[b])))
    ]
    hint = "settings=ignore hides this warning"
    notes = [f"images are compared with images of other settings: {format_names(pairs)}; {hint}"] if pairs else []
    if config.baseline is not None:
        before = read_manifest(store, find_run(store, config.baseline, key="baseline"))
        differences = {name: describe_changed_settings(before, run.manifest, name) for name in settings}
        changed = [f"{name}: {difference}" for name, difference in differences.items() if difference]
        notes += [f"the baseline has other settings: {format_names(changed)}; {hint}"] if changed else []
    images = Counter(image for shard in planned for example in shard.examples for image in example.images)
    uses = images.total() / len(images)
    if config.selection.per_prompt is None and uses > MAX_USES_PER_IMAGE:
        examples = sum(len(shard.examples) for shard in planned)
        notes.append(
            f"each image is in {uses:.0f} examples on average, {examples:,} in all; "
            "set selection.per_prompt=N to use at most N pairs per prompt"
        )
    return notes


def _check_format(run: ScoredRun, store: Store, name: str) -> None:
    """Raise ConfigError if the run does not suit the format.

    The format may require edits, or scores of individual questions, or it may be unable to represent edits.
    """
    form = FORMATS[name]
    if form.elements and not any(read_elements(store, scored) for scored in run.shards):
        raise ConfigError(
            f"format={name}: expected a metric that asks several questions about an image, such as gecko or dsg; got "
            f"{', '.join(run.metrics)}"
        )
    if run.edited and form.edits == "no" and form.images != "none":
        others = ", ".join(
            other for other in FORMATS if FORMATS[other].edits != "no" or FORMATS[other].images == "none"
        )
        raise ConfigError(f"format={name}: cannot store the source images of edits; use {others}")
    if form.edits == "only" and not run.edited:
        raise ConfigError(
            f"format={name}: expected a run of edits, found a benchmark without sources (benchmark.columns.source)"
        )


def _write_shards(
    planned: Sequence[PlannedShard],
    builder: ShardBuilder,
    report: Callable[[ExportedShardRecord], None],
    max_failed: float,
) -> int:
    """Write the missing shards and return their number.

    Shards with unreadable images are written last, so that each of these images is tried twice. If more examples fail
    than `max_failed` allows, these shards are not written, SourceError is raised, and the export stays unfinished.
    """
    missing = [shard for shard in planned if builder.output.read_record(shard.name) is None]
    builder.register_shards(missing)
    faulty: list[PlannedShard] = []
    messages: list[str] = []
    failed = 0
    for shard in missing:
        made = builder.build(shard)
        if made.failed:
            faulty.append(shard)
            failed += made.failed
            messages += made.record.messages[:1]
        else:
            report(builder.commit(made))
    examples = sum(len(shard.examples) for shard in planned)
    if compute_exit_code(failed, examples, max_failed) == OVER_BUDGET:
        raise SourceError(
            f"{failed} of {examples} examples could not be made (first error: {messages[0]}), which is more than "
            f"max_failed={max_failed:g} allows; repair the images and run the same command again, or raise max_failed"
        )
    for shard in faulty:
        report(builder.commit(builder.build(shard)))
    return len(missing)


def _make_reward(run: ScoredRun, store: Store, config: RewardsConfig) -> Reward:
    # By default several metrics are summed in units of their noise, and a single metric keeps its unit.
    unit: Unit = "noise" if len(run.metrics) > 1 else "score"
    combination = config.reward or RewardConfig(weights=dict.fromkeys(run.metrics, 1.0), unit=unit)
    combination.check_parts(run.metrics)
    lower_is_better = frozenset(name for name, metric in run.metrics.items() if metric.prefers_lower)
    if config.baseline is not None:
        recipes = run.list_recipes(combination.weights)
        scales = read_baseline(store, config.baseline, config.baseline_generator, recipes).compute_scales(
            combination.unit
        )
    else:
        scores = {name: run.scores[name] for name in combination.weights}
        scales = compute_scales(scores, run.prompts, combination.unit, f"run {run.run_id}")
    return Reward(combination, lower_is_better, scales)


def _compute_rewards(run: ScoredRun, reward: Reward, config: RewardsConfig) -> Rewards:
    absent = [name for name in config.selection.agree if name not in run.metrics]
    if absent:
        raise ConfigError(f"selection.agree: expected metrics of the run ({', '.join(run.metrics)}), got {absent[0]!r}")
    values = np.where(run.prompts == len(run.sources.prompts), np.nan, reward.compute_all(run.scores))
    noise = measure_noise(values, run.prompts)
    return Rewards(
        values=values,
        noise=noise,
        z_scores=compute_z_scores(values, run.prompts, noise, config.std, config.epsilon),
        rank_advantages=compute_rank_advantages(values, run.prompts, noise),
    )


def _plan_shards(run: ScoredRun, store: Store, config: RewardsConfig, rewards: Rewards) -> Iterator[PlannedShard]:
    skills = run.sources.prompts.column("skills")
    candidates = Candidates(
        rewards=rewards.values,
        prompts=run.prompts,
        noise=rewards.noise,
        agreeing=[open_preference(run, store, name) for name in config.selection.agree],
        ids=lambda image: f"{run.get_generator(image)}/{run.get_image_id(image)}",
        generator=run.get_generator,
        skills=lambda prompt: ", ".join(skills[prompt].as_py() or ()),
    )
    texts = run.sources.prompts.column("text")
    splits: dict[str, list[Example]] = {TRAIN: [], HELD_OUT: []}
    split_of_prompt: dict[int, str] = {}
    for example in select_examples(FORMATS[config.format].unit, candidates, config.selection):
        if example.prompt < len(texts):
            if example.prompt not in split_of_prompt:
                split_of_prompt[example.prompt] = choose_split(texts[example.prompt].as_py() or "", config.held_out)
            splits[split_of_prompt[example.prompt]].append(example)
    for split, of_split in splits.items():
        examples = spread_examples(of_split, candidates, config.selection)
        ends: list[int] = []  # ends of shards with at least `shard_rows` examples; a prompt's examples stay together
        for end in range(1, len(examples) + 1):
            is_full = end - (ends[-1] if ends else 0) >= config.shard_rows
            if end == len(examples) or (is_full and examples[end].prompt != examples[end - 1].prompt):
                ends.append(end)
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            yield PlannedShard(f"{split}-{number:05d}-of-{len(ends):05d}", split, start, examples[start:end])


def _describe_sources(run: ScoredRun) -> list[dict[str, Any]]:
    shards = [*run.sources.prompt_shards, *(scored.shard for scored in run.shards)]
    files = {shard.url: {"url": shard.url, "size": shard.size, "etag": shard.etag} for shard in shards}
    return list(files.values())


def _describe_scorer(run: ScoredRun, reward: Reward) -> dict[str, Any]:
    config, models = run.manifest.get("config", {}), run.manifest.get("models", {})
    roles = sorted({role for metric in run.metrics.values() for role in metric.roles.values()})
    return {
        "metrics": {
            name: {"options": config["metrics"][name], "lower_is_better": run.metrics[name].prefers_lower}
            for name in reward.parts
        },
        "reward": reward.describe(),
        "models": {
            role: {
                **{name: config.get("models", {}).get(role, {}).get(name) for name in ("checkpoint", "revision")},
                "resolved": [model for node, model in models.items() if node.partition(":")[2] == role],
            }
            for role in roles
        },
        "versions": run.manifest.get("versions", {}),
    }


def _join_shards(output: ExportOutput, planned: Sequence[PlannedShard], container: str) -> dict[str, Any]:
    """Return the manifest fields about the exported files and the examples left out.

    If the format has one file per split, write these files first.
    """
    records = [record for shard in planned if (record := output.read_record(shard.name)) is not None]
    splits: dict[str, Any] = {}
    for split in dict.fromkeys(record.split for record in records):
        shards = [record for record in records if record.split == split]
        rows = sum(shard.rows for shard in shards)
        if container in SINGLE_FILE_CONTAINERS:
            path = f"{split}.{container}"
            sha256 = output.join(path, [shard.name for shard in shards], as_list=container == "json")
            files = [{"path": path, "rows": rows, "sha256": sha256}]
        else:
            files = [
                {"path": path, "rows": shard.rows, "sha256": shard.sha256} for shard in shards for path in shard.files
            ]
        splits[split] = {"files": files, "rows": rows, "examples": sum(shard.examples for shard in shards)}
    return {
        "splits": splits,
        "left_out": dict(sum((Counter(record.left_out) for record in records), Counter())),
        "messages": [message for record in records for message in record.messages][:5],
        "images_unverified": sum(record.unverified for record in records),
    }


def _describe_export(
    run: ScoredRun, config: RewardsConfig, rewards: Rewards, scorer: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "format": config.format,
        "run_id": run.run_id,
        "benchmark": run.manifest.get("benchmark"),
        "images": len(rewards.values),
        "images_without_reward": int(np.count_nonzero(np.isnan(rewards.values))),
        "scorer": dict(scorer),
        "reward": {
            "orientation": "higher is better; metrics whose lower score is better are negated",
            "noise": rewards.noise,
            "noise_is": "the pooled standard deviation of the reward within a prompt, over all generators",
            "noise_of_metrics": {name: measure_noise(run.scores[name], run.prompts) for name in run.metrics},
            "z_score": f"(reward - mean) / (std + {config.epsilon:g} x noise), of the prompt; std: {config.std}",
            "rank_advantage": "rank in the prompt from -1 (worst) to 1 (best), ties sharing their mean",
        },
        "selection": asdict(config.selection),
        "split": {"held_out": config.held_out, "rule": SPLIT_RULE},
        "sources": _describe_sources(run),
        "plumbline": version(DISTRIBUTION),
    }
