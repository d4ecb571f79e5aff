"""An export of rewards: a run's scores and images to the files of one format, shard by shard, each written once."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from plumbline.operators.base.errors import DISTRIBUTION, ConfigError, SourceError
from plumbline.operators.base.sentences import names
from plumbline.operators.images.generation_settings import all_settings, differ, differ_from_run
from plumbline.operators.rewards.combination import Reward, equal_parts, scales_of
from plumbline.operators.rewards.formats import FORMATS
from plumbline.operators.rewards.selection import HELD_OUT, RULE, TRAIN, Candidates, Example, select, split_of, spread
from plumbline.operators.rewards.values import Codes, rank_advantages, within_prompt_noise, z_scores
from plumbline.pipelines.base.exit_codes import OVER_BUDGET, exit_code
from plumbline.pipelines.cells.cells import digest
from plumbline.pipelines.cells.runs import find_run, read_manifest
from plumbline.pipelines.cells.store import Store, open_existing_store
from plumbline.pipelines.rewards.baseline_scores import read_baseline
from plumbline.pipelines.rewards.copied_images import Copier
from plumbline.pipelines.rewards.exported_shard import NO_FAILURE, PlannedShard, Rewards, ShardMaker
from plumbline.pipelines.rewards.output import OF_RUN, ExportedShardRecord, Output
from plumbline.pipelines.rewards.rewards_config import VERSION, RewardsConfig
from plumbline.pipelines.rewards.scored_images import ScoredRun, elements_of, gather_scores

JOINED = ("json", "jsonl")
MANY_EXAMPLES = 4
"""Examples that an image is in on average, above which a note names the option that limits them."""


class Exported(NamedTuple):
    """An export that stands whole."""

    url: str
    splits: Mapping[str, Mapping[str, Any]]
    """Of each its files, rows and examples."""
    left_out: Mapping[str, int]
    messages: Sequence[str]
    unverified: int
    written: int
    """Shards that this call wrote."""
    exit_code: int
    notes: Sequence[str] = ()
    """Notes to read before training: different settings, images that are in many examples."""


def export_rewards(config: RewardsConfig, report: Callable[[ExportedShardRecord], None]) -> Exported:
    """Writes the shards that do not stand yet, and the manifest last.

    Raises ConfigError where the run, its sources or the output cannot be used, or nothing is left to export.
    """
    store = open_existing_store(config)
    run = gather_scores(store, config.run, _wanted(config))
    reward = _reward(run, store, config)
    rewards = _rewards(run, reward, config)
    scorer = _scorer(run, reward)
    place = config.storage.locate(config.output.replace(OF_RUN, run.run_id), writable=True)
    output = Output(place, _identity(run, config, scorer))
    planned = list(_plan(run, config, rewards))
    if not planned:
        raise ConfigError(_nothing(run, rewards))
    notes = [*_unlike(run, store, config), *_repeated(planned, config)]
    _require_elements(run, store, config)
    _require_place_of_sources(run, config)
    if (manifest := output.begin()) is not None:
        output.tidy()
        return _ended(output, manifest, 0, config)._replace(notes=notes)
    form, ended = FORMATS[config.format], _run_ended(run)
    with Copier(run, store, edited=run.edited and form.edits != "no") as copier:
        maker = ShardMaker(run, store, output, form, rewards, copier, digest(scorer), ended)
        written = _write_shards(planned, maker, report, config.max_failed)
    manifest = _manifest(run, config, rewards, scorer, _join(output, planned, config))
    output.finish(manifest)
    return _ended(output, manifest, written, config)._replace(notes=notes)


def _unlike(run: ScoredRun, store: Store, config: RewardsConfig) -> list[str]:
    """Which generators' settings differ, and from those that the units are of."""
    settings = all_settings(run.manifest, config.settings)
    pairs = [
        f"{a} and {b} ({said})" for a, b in combinations(settings, 2) if (said := differ(settings[a], settings[b]))
    ]
    notes = [f"images are set against others of different settings: {names(pairs)}"] if pairs else []
    if config.baseline is not None:
        before = read_manifest(store, find_run(store, config.baseline, key="baseline"))
        found = {name: differ_from_run(before, run.manifest, name) for name in settings}
        changed = [f"{name}: {said}" for name, said in found.items() if said]
        notes += [f"the baseline is of other settings: {names(changed)}"] if changed else []
    return notes


def _repeated(planned: Sequence[PlannedShard], config: RewardsConfig) -> list[str]:
    """Return a note if the images are in many examples each and nothing limits the examples of a prompt."""
    images = Counter(image for shard in planned for example in shard.examples for image in example.images)
    times = images.total() / len(images)
    if config.selection.per_prompt is not None or times <= MANY_EXAMPLES:
        return []
    return [
        f"each image is in {times:.0f} examples on average, {sum(len(shard.examples) for shard in planned):,} in all; "
        "selection.per_prompt=N takes at most N pairs of a prompt"
    ]


def _require_elements(run: ScoredRun, store: Store, config: RewardsConfig) -> None:
    """Raises ConfigError where the format wants the scores of single questions, and no metric asks any."""
    if FORMATS[config.format].elements and not any(elements_of(store, scored) for scored in run.shards):
        raise ConfigError(
            f"format={config.format}: expected a metric that asks several questions about an image, such as gecko or "
            f"dsg; got {', '.join(run.metrics)}"
        )


def _require_place_of_sources(run: ScoredRun, config: RewardsConfig) -> None:
    """Raises ConfigError where edits would lose their sources, and where the format is for edits and the run is not."""
    form = FORMATS[config.format]
    if run.edited and form.edits == "no" and form.images != "none":
        others = ", ".join(name for name in FORMATS if FORMATS[name].edits != "no" or FORMATS[name].images == "none")
        raise ConfigError(f"format={config.format}: it has no place for the sources of the run's edits; use {others}")
    if form.edits == "only" and not run.edited:
        raise ConfigError(
            f"format={config.format}: is for edits, and the run's benchmark names no sources (benchmark.columns.source)"
        )


def _write_shards(
    planned: Sequence[PlannedShard], maker: ShardMaker, report: Callable[[ExportedShardRecord], None], max_failed: float
) -> int:
    """Writes the shards that do not stand; the number of them.

    Those with images that cannot be read come last, so that they are tried twice, and not at all where they are over
    the budget: then the export stays unfinished, and SourceError says why.
    """
    missing = [shard for shard in planned if maker.output.record(shard.name) is None]
    maker.expect(missing)
    faulty: list[PlannedShard] = []
    messages: list[str] = []
    failed = 0
    for shard in missing:
        made = maker.make(shard)
        if made.failed:
            faulty.append(shard)
            failed += made.failed
            messages += made.record.messages[:1]
        else:
            report(maker.commit(made))
    examples = sum(len(shard.examples) for shard in planned)
    if exit_code(failed, examples, max_failed) == OVER_BUDGET:
        raise SourceError(
            f"{failed} of {examples} examples cannot be made ({messages[0]}), over max_failed={max_failed:g}; mend "
            "them and run the same command again, or raise max_failed"
        )
    for shard in faulty:
        report(maker.commit(maker.make(shard)))
    return len(missing)


def _wanted(config: RewardsConfig) -> list[str] | None:
    """The metrics to read; None for all of the run's."""
    if config.reward is None:
        return None
    return list(dict.fromkeys([*config.reward.weights, *config.selection.agree]))


def _reward(run: ScoredRun, store: Store, config: RewardsConfig) -> Reward:
    """The function from scores to the reward, with the units that the baseline gives."""
    combination = config.reward or equal_parts([*run.metrics])
    combination.check_parts(run.metrics)
    falling = frozenset(name for name, metric in run.metrics.items() if metric.prefers_lower)
    if config.baseline is not None:
        recipes = run.recipes(combination.weights)
        scales = read_baseline(store, config.baseline, config.baseline_generator, recipes).scales(combination.unit)
    else:
        scores = {name: run.scores[name] for name in combination.weights}
        scales = scales_of(scores, _prompts(run), combination.unit, f"run {run.run_id}")
    return Reward(combination, falling, scales)


def _prompts(run: ScoredRun) -> Codes:
    """The row of each image's prompt in the sources; one more than the last for an image of none."""
    return np.where(run.prompts < 0, len(run.sources.prompts), run.prompts).astype(np.int32)


def _rewards(run: ScoredRun, reward: Reward, config: RewardsConfig) -> Rewards:
    """Every image's reward and how it stands among those of its prompt; raises ConfigError where noise is missing."""
    absent = [name for name in config.selection.agree if name not in run.metrics]
    if absent:
        raise ConfigError(f"selection.agree: the run has no {absent[0]!r}; it has {', '.join(run.metrics)}")
    unknown = len(run.sources.prompts)
    prompts = _prompts(run)
    values = np.where(prompts == unknown, np.nan, reward.of_all(run.scores))
    noise = within_prompt_noise(values, prompts)
    return Rewards(
        prompts=prompts,
        values=values,
        noise=noise,
        z_scores=z_scores(values, prompts, noise, config.std, config.epsilon),
        rank_advantages=rank_advantages(values, prompts, noise),
    )


def _plan(run: ScoredRun, config: RewardsConfig, rewards: Rewards) -> Iterator[PlannedShard]:
    """The shards of each split: examples in the order of the prompts, no prompt in two."""
    skills = run.sources.prompts.column("skills")
    candidates = Candidates(
        rewards=rewards.values,
        prompts=rewards.prompts,
        noise=rewards.noise,
        agreeing=[run.oriented(name) for name in config.selection.agree],
        ids=lambda image: f"{run.generator(image)}/{run.image_id(image)}",
        generator=run.generator,
        skills=lambda prompt: ", ".join(skills[prompt].as_py() or ()),
    )
    texts = run.sources.prompts.column("text")
    splits: dict[str, list[Example]] = {TRAIN: [], HELD_OUT: []}
    sides: dict[int, str] = {}
    for example in select(FORMATS[config.format].unit, candidates, config.selection):
        if example.prompt < len(texts):
            if example.prompt not in sides:
                sides[example.prompt] = split_of(texts[example.prompt].as_py() or "", config.held_out)
            splits[sides[example.prompt]].append(example)
    for split, examples in splits.items():
        yield from _cut(split, spread(examples, candidates, config.selection), config.shard_rows)


def _cut(split: str, examples: Sequence[Example], shard_rows: int) -> Iterator[PlannedShard]:
    """Shards of about this many examples; those of one prompt stay together."""
    ends: list[int] = []
    first = 0
    for place in range(1, len(examples) + 1):
        last = place == len(examples)
        if last or (place - first >= shard_rows and examples[place].prompt != examples[place - 1].prompt):
            ends.append(place)
            first = place
    for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        yield PlannedShard(f"{split}-{number:05d}-of-{len(ends):05d}", split, start, examples[start:end])


def _nothing(run: ScoredRun, rewards: Rewards) -> str:
    scored = int(np.count_nonzero(~np.isnan(rewards.values)))
    return (
        f"run {run.run_id}: nothing to export; {scored} of {len(rewards.values)} images have a reward, whose noise "
        f"within a prompt is {rewards.noise:g}; lower selection.margin, leave selection.agree out, or take another one"
    )


def _identity(run: ScoredRun, config: RewardsConfig, scorer: Mapping[str, Any]) -> dict[str, Any]:
    """All that decides what stands in the output."""
    return {
        "version": VERSION,
        "run_id": run.run_id,
        **config.semantic(),
        "scorer": digest(scorer),
        "scores": run.parts,
        "sources": _sources(run),
    }


def _sources(run: ScoredRun) -> list[dict[str, Any]]:
    """The files that prompts and images are read of, as they stand now."""
    shards = [*run.sources.prompt_shards, *(scored.shard for scored in run.shards)]
    files = {shard.url: {"url": shard.url, "size": shard.size, "etag": shard.etag} for shard in shards}
    return list(files.values())


def _scorer(run: ScoredRun, reward: Reward) -> dict[str, Any]:
    """The metrics with their options and how they are combined, and the models that they asked, as the run has them."""
    of_run, models = run.manifest.get("config", {}), run.manifest.get("models", {})
    roles = sorted({role for metric in run.metrics.values() for role in metric.roles.values()})
    return {
        "metrics": {
            name: {"options": of_run["metrics"][name], "lower_is_better": run.metrics[name].prefers_lower}
            for name in reward.parts
        },
        "reward": reward.described(),
        "models": {
            role: {
                **{name: of_run.get("models", {}).get(role, {}).get(name) for name in ("checkpoint", "revision")},
                "resolved": [model for node, model in models.items() if node.partition(":")[2] == role],
            }
            for role in roles
        },
        "versions": run.manifest.get("versions", {}),
    }


def _run_ended(run: ScoredRun) -> datetime:
    """In UTC, without saying so, as tables of timestamps want it."""
    return datetime.fromisoformat(run.manifest.get("ended", "1970-01-01T00:00:00")).replace(tzinfo=None)


def _join(output: Output, planned: Sequence[PlannedShard], config: RewardsConfig) -> dict[str, Any]:
    """What stands in the output, by split; formats of one file get it here."""
    container = FORMATS[config.format].container
    records = [record for shard in planned if (record := output.record(shard.name)) is not None]
    splits: dict[str, Any] = {}
    for split in dict.fromkeys(record.split for record in records):
        own = [record for record in records if record.split == split]
        files = [{"path": path, "rows": one.rows, "sha256": one.sha256} for one in own for path in one.files]
        if container in JOINED:
            path = f"{split}.{container}"
            sha256 = output.join(path, [one.name for one in own], as_list=container == "json")
            files = [{"path": path, "rows": sum(one.rows for one in own), "sha256": sha256}]
        splits[split] = {
            "files": files,
            "rows": sum(one.rows for one in own),
            "examples": sum(one.examples for one in own),
        }
    return {
        "splits": splits,
        "left_out": dict(sum((Counter(record.left_out) for record in records), Counter())),
        "messages": [message for record in records for message in record.messages][:5],
        "images_unverified": sum(record.unverified for record in records),
    }


def _manifest(
    run: ScoredRun, config: RewardsConfig, rewards: Rewards, scorer: Mapping[str, Any], standing: Mapping[str, Any]
) -> dict[str, Any]:
    """Where every number of the export comes from."""
    return {
        **standing,
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
            "noise_of_metrics": {name: within_prompt_noise(run.scores[name], rewards.prompts) for name in run.metrics},
            "z_score": f"(reward - mean) / (std + {config.epsilon:g} x noise), of the prompt; std: {config.std}",
            "rank_advantage": "rank in the prompt from -1 (worst) to 1 (best), ties sharing their mean",
        },
        "selection": asdict(config.selection),
        "split": {"held_out": config.held_out, "rule": RULE},
        "sources": _sources(run),
        "plumbline": version(DISTRIBUTION),
    }


def _ended(output: Output, manifest: Mapping[str, Any], written: int, config: RewardsConfig) -> Exported:
    failed = sum(count for kind, count in manifest["left_out"].items() if kind not in NO_FAILURE)
    examples = sum(split["examples"] for split in manifest["splits"].values())
    return Exported(
        url=output.place.url,
        splits=manifest["splits"],
        left_out=manifest["left_out"],
        messages=manifest["messages"],
        unverified=manifest["images_unverified"],
        written=written,
        exit_code=exit_code(failed, failed + examples, config.max_failed),
    )
