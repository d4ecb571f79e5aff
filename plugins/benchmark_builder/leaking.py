"""Searches a training set for a benchmark's prompts and images, and makes leaderboards without the leaked prompts."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from plumbline.operators.base.bounds import BoundsChecked, NonZeroShare
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import Sentence, format_names, format_quantity
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.generation_settings import COMPARE, SettingCounts, SettingsPolicy, read_all_settings
from plumbline.operators.images.rows import SOURCE_COLUMNS
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.metrics.table import read_lower_is_better, read_metrics
from plumbline.operators.results.comparison import PromptMeans, compare_generators, read_prompt_means
from plumbline.operators.results.run_scores import RunScores, find_in_sorted
from plumbline.operators.results.summary import Skills
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.storage import Roots, StorageConfig
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.report.finished_run import find_originals
from plumbline.pipelines.running.tasks import TaskRunner, open_tasks
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.prompts import open_prompts
from plumbline.pipelines.sources.shards import ShardSize
from plumbline.pipelines.sources.sources import open_sources
from plumbline.pipelines.sources.uris import UriReader, open_benchmark_uris
from plumbline.pipelines.store.cells import Shard
from plumbline.pipelines.store.run_scores import read_run_scores
from plumbline.pipelines.store.runs import find_run, name_by_time, read_manifest
from plumbline.pipelines.store.store import Store
from plumbline.plugins.benchmark_builder.benchmark_images import ImageOptions, read_benchmark_images
from plumbline.plugins.benchmark_builder.image_leaks import MIN_COLOUR_CORRELATION, ImageFinder
from plumbline.plugins.benchmark_builder.leaks import (
    IMAGE_MATCH_KINDS,
    MATCH_KINDS,
    TEXT_MATCH_KINDS,
    LeakCount,
    LeakFinder,
    LeakMatches,
    LeakTarget,
    MatchKind,
    SearchResult,
    count_image_leaks,
    count_leaks,
    find_surest_kinds,
    make_leaks_table,
    merge_matches,
)
from plumbline.plugins.benchmark_builder.training_captions import CAPTION_READER
from plumbline.plugins.benchmark_builder.training_files import TrainingFile, TrainingReader
from plumbline.plugins.benchmark_builder.training_images import make_image_reader

IMAGE_SCAN = "image"
ASSUMED_BYTES_PER_CAPTION = 100
"""Typical size in bytes of a row with a caption, used to estimate whether one process can read all rows."""
ASSUMED_BYTES_PER_IMAGE = 100_000
"""Typical size in bytes of a row with an image, used to estimate whether one process can read all rows."""
MAX_REJECTIONS_PER_FILE = 8
"""Maximum number of rejections reported per file."""
Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaksConfig(BoundsChecked):
    """The training set to search, and the prompts and images to search for."""

    captions: str | None = None
    """Captions of a training set: a .parquet, .csv, .tsv, .jsonl, .ndjson or .txt file (one caption per line), a
    WebDataset tar, a folder of these, or a pattern with *.
    """
    images: str | None = None
    """Images of a training set, to compare with the benchmark's images: a .parquet file, a WebDataset tar, a folder
    of these, or a pattern with *."""
    column: str | None = None
    """Column of the captions in tables and in the .json of tars; null looks for caption, text, prompt, TEXT or
    captions.
    """
    image_column: str | None = None
    """Column of the images in tables (bytes, {bytes, path}, or addresses); null looks for image, jpg, png, webp, img or
    uri.
    """
    uri_roots: Roots = ()
    """Folders and cloud prefixes that may contain a table's images, in addition to the folder of the table."""
    store: str = "store"
    """Folder or cloud prefix of the store; results are written to leaks/ID/ in it."""
    run: str = "latest"
    """Run whose prompts and images to search for; its leaderboards are also computed without the leaked prompts."""
    benchmark: BenchmarkConfig | None = None
    """Benchmark whose prompts and images to search for, instead of those of a run."""
    near: NonZeroShare = 0.8
    """Minimum Jaccard similarity of three-word sequences at which a caption is a near-duplicate of a prompt."""
    near_images: NonZeroShare = MIN_COLOUR_CORRELATION
    """Minimum correlation of the colours, at 16x16 pixels, at which a training image is a near-duplicate."""
    kinds: tuple[MatchKind, ...] = MATCH_KINDS
    """Kinds of leaks to look for. For captions: the same words (`exact`), the same words in another order
    (`reordered`), `near`-duplicates, and long prompts that are `contained` in a caption. For images: near-duplicates of
    a benchmark's `source` images, and of generated images (`image`).
    """
    settings: SettingsPolicy = COMPARE
    """`ignore` also compares generators that used different generation settings (docs/decide.md)."""
    limits: ImageLimits = field(default_factory=ImageLimits)
    """Size limits for training images."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Cluster that reads training sets of more than `cluster.driver_rows` rows, with one task per file."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.captions is None and self.images is None:
            raise ConfigError(
                "captions, images: expected at least one of them, got neither; set captions=PATH or images=PATH"
            )
        for key, kinds in (("captions", TEXT_MATCH_KINDS), ("images", IMAGE_MATCH_KINDS)):
            if getattr(self, key) is not None and not self.select_kinds(kinds):
                raise ConfigError(
                    f"kinds: expected at least one of {', '.join(kinds)} for {key}, got {', '.join(self.kinds)}"
                )

    def select_kinds(self, kinds: Sequence[MatchKind]) -> list[MatchKind]:
        """Return the given kinds that are enabled; the result is empty if no training set is configured for them."""
        path = self.captions if kinds is TEXT_MATCH_KINDS else self.images
        return [] if path is None else [kind for kind in kinds if kind in self.kinds]


class LeaderboardWithoutLeaks(NamedTuple):
    """A metric's leaderboard with and without the leaked prompts."""

    metric: str
    means: Sequence[tuple[str, float, float]]
    """Generators, best first, with their mean over all prompts and their mean over the prompts that are not leaked."""
    sentences: Sequence[Sentence]
    """Sentences about changes in the ranking and in clear comparisons."""


class ScanResult(NamedTuple):
    """Result of comparing the captions or the images of a training set with the benchmark."""

    what: str
    """Kind of the compared rows: `caption` or `image`."""
    files: int
    result: SearchResult
    rejections: Sequence[Rejection]
    """The first rejections from each file."""
    n_rejected: int


class FoundLeaks(NamedTuple):
    """Leaks that jobs.leaks found, their counts, and the leaderboards with and without the leaked prompts."""

    leaks_id: str
    leaks: pa.Table
    """Table of leaks, with the schema LEAKS_SCHEMA."""
    scanned: Sequence[ScanResult]
    unread: Sequence[Rejection]
    """Rejections for benchmark images that cannot be compared."""
    shares: Sequence[LeakCount]
    """Counts of leaked prompts: first for all prompts, and then by skill."""
    image_shares: Sequence[LeakCount]
    """Counts of leaked images: first for all images, and then by generator; empty if no images were compared."""
    boards: Sequence[LeaderboardWithoutLeaks]
    no_boards: str
    """Reason why `boards` is empty."""

    @property
    def folder(self) -> str:
        """Path of the result's folder within the store."""
        return f"leaks/{self.leaks_id}"


class _Benchmark(NamedTuple):
    prompts: pa.Table
    """Prompts, with the schema PROMPTS."""
    prompt_shards: Sequence[Shard]
    image_shards: Sequence[Shard]
    limits: ImageLimits
    uris: UriReader
    manifest: Mapping[str, Any]
    """The run's manifest; empty if a benchmark is configured instead of a run."""
    scores: RunScores | None = None


def _open_benchmark(store: Store, config: LeaksConfig) -> _Benchmark:
    if config.benchmark is not None:
        return _open_configured_benchmark(store, config, config.benchmark)
    run_id = find_run(store, config.run)
    manifest = read_manifest(store, run_id)
    originals, reason = find_originals(manifest, store)
    if originals is None:
        raise ConfigError(f"run={config.run}: its prompts can no longer be read ({reason}); set benchmark=NAME instead")
    prompts, shards, prompt_shards, limits, uris = originals
    scores = read_run_scores(store, run_id)
    return _Benchmark(prompts, prompt_shards, [*shards.values()], limits, uris, manifest, scores)


def _open_configured_benchmark(store: Store, config: LeaksConfig, benchmark: BenchmarkConfig) -> _Benchmark:
    """Open a benchmark, with its image tables only if they are needed.

    Image tables are needed to compare generated images, and for source images that the prompts do not contain.
    """
    uris, kinds = open_benchmark_uris(benchmark, config.storage, config.limits), config.select_kinds(IMAGE_MATCH_KINDS)
    prompts = open_prompts(benchmark, config.storage, ShardSize()) if benchmark.prompts is not None else None
    edit_columns = prompts.edit_columns if prompts is not None else set()
    if "image" in kinds or (kinds and not edit_columns & {*SOURCE_COLUMNS}):
        sources = open_sources(
            benchmark, config.storage, shard_size=ShardSize(), cache=ImageFileCache(store, benchmark)
        )
        shards = sources.prompt_shards, sources.image_shards
        return _Benchmark(sources.prompts, *shards, config.limits, uris, {})
    if prompts is None:
        raise ConfigError(
            "benchmark.prompts: expected a file of prompts, got null; set it, or set run=ID instead of benchmark"
        )
    return _Benchmark(prompts.table, prompts.shards, [], config.limits, uris, {})


class _FileMatches(NamedTuple):
    matches: LeakMatches
    rejections: list[Rejection]
    n_rejected: int


class _FileScanner(NamedTuple, Generic[Row]):
    """Reader for the files of a training set, and the function that finds matches in their rows."""

    reader: TrainingReader[Row]
    find: Callable[[Iterable[Row]], LeakMatches]


def find_leaks(store: Store, config: LeaksConfig) -> FoundLeaks:
    """Search a training set for prompts and images, write the leaks to the store, and return them.

    Raises ConfigError if there is nothing to compare.
    """
    benchmark = _open_benchmark(store, config)
    ids, texts, skills = (benchmark.prompts.column(name).to_pylist() for name in ("prompt_id", "text", "skills"))
    prompts = {prompt_id: text or "" for prompt_id, text in zip(ids, texts, strict=True)}
    scanned, unread = _scan_training_set(store, config, benchmark, prompts)
    results = [scan.result for scan in scanned]
    kind_of = find_surest_kinds(results)
    scores, manifest = benchmark.scores, benchmark.manifest
    found = FoundLeaks(
        leaks_id=name_by_time(store, datetime.now(UTC)),
        leaks=make_leaks_table(results),
        scanned=scanned,
        unread=unread,
        shares=count_leaks(dict(zip(ids, (own or () for own in skills), strict=True)), kind_of),
        image_shares=[share for scan in scanned if scan.what == IMAGE_SCAN for share in count_image_leaks(scan.result)],
        boards=[] if scores is None else make_leaderboards(scores, manifest, list(kind_of), config.settings),
        no_boards=_explain_missing_leaderboards(len(ids), len(kind_of), scores),
    )
    _write_result(store, found, config, manifest.get("run_id"))
    return found


def _scan_training_set(
    store: Store, config: LeaksConfig, benchmark: _Benchmark, prompts: Mapping[str, str]
) -> tuple[list[ScanResult], Sequence[Rejection]]:
    """Search all captions for the prompts and all training images for the benchmark's images.

    Also return rejections for benchmark images that cannot be read or compared.
    """
    text_kinds, image_kinds = config.select_kinds(TEXT_MATCH_KINDS), config.select_kinds(IMAGE_MATCH_KINDS)
    images = make_image_reader(config.limits, config.uri_roots)
    captions_files = CAPTION_READER.list_files(config.storage, config.captions, config.column) if text_kinds else []
    images_files = images.list_files(config.storage, config.images, config.image_column) if image_kinds else []
    rows = sum(file.size for file in captions_files) // ASSUMED_BYTES_PER_CAPTION
    rows += sum(file.size for file in images_files) // ASSUMED_BYTES_PER_IMAGE
    rows += sum(shard.rows for shard in benchmark.image_shards) if image_kinds else 0
    with open_tasks(config.cluster, store, rows=rows, sources=[(captions_files + images_files)[0].place]) as tasks:
        scanned: list[ScanResult] = []
        unread: Sequence[Rejection] = ()
        if text_kinds:
            targets = [LeakTarget(*prompt) for prompt in prompts.items()]
            text_finder = LeakFinder(targets, config.near, text_kinds)
            scanned.append(
                _scan_files(tasks, "caption", captions_files, _FileScanner(CAPTION_READER, text_finder.find), targets)
            )
        if image_kinds:
            options = ImageOptions(benchmark.limits, benchmark.uris, image_kinds, prompts)
            pictures, unread = read_benchmark_images(benchmark.prompt_shards, benchmark.image_shards, options, tasks)
            if not pictures:
                kinds = " or ".join(image_kinds)
                raise ConfigError(f"images: the benchmark has no {kinds} that can be compared; leave images out")
            finder = ImageFinder([(picture.kind, picture.fingerprint) for picture in pictures], config.near_images)
            targets = [picture.target for picture in pictures]
            scanned.append(_scan_files(tasks, IMAGE_SCAN, images_files, _FileScanner(images, finder.find), targets))
    return scanned, unread


def _scan_files(
    tasks: TaskRunner, what: str, files: Sequence[TrainingFile], scan: _FileScanner[Row], targets: Sequence[LeakTarget]
) -> ScanResult:
    found = list(tasks.map(_find_in_file, files, shared=scan))
    return ScanResult(
        what,
        len(files),
        SearchResult(targets, merge_matches(file.matches for file in found)),
        [rejection for file in found for rejection in file.rejections],
        sum(file.n_rejected for file in found),
    )


def _write_result(store: Store, found: FoundLeaks, config: LeaksConfig, run_id: str | None) -> None:
    """Write the table of leaks, then leaks.json."""
    whole, *_ = found.shares
    store.write_table(f"{found.folder}/leaks.parquet", found.leaks)
    content = {
        "leaks_id": found.leaks_id,
        "captions": config.captions,
        "images": config.images,
        "run_id": run_id,
        "near": config.near,
        "near_images": config.near_images,
        "kinds": list(config.kinds),
        "rows": sum(scan.result.matches.scanned for scan in found.scanned),
        "rejected": sum(scan.n_rejected for scan in found.scanned),
        "unread_pictures": len(found.unread),
        "prompts": whole.total,
        "leaked": whole.leaked,
        "skills": {share.name: {"prompts": share.total, "leaked": share.leaked} for share in found.shares},
        "pictures": {share.name: {"pictures": share.total, "leaked": share.leaked} for share in found.image_shares},
        "boards": {board.metric: [list(row) for row in board.means] for board in found.boards},
    }
    store.create_json(f"{found.folder}/leaks.json", content)


def _explain_missing_leaderboards(prompts: int, leaked: int, scores: RunScores | None) -> str:
    if scores is None:
        return "leave out the option benchmark to see a run's leaderboards without the leaked prompts"
    if not leaked:
        return "no prompt is leaked, so the leaderboards do not change"
    return "every prompt is leaked, so none is left to rank the generators by" if leaked == prompts else ""


def _find_in_file(scan: _FileScanner[Row], file: TrainingFile) -> _FileMatches:
    rejections: list[Rejection] = []
    count = 0

    def read_valid_rows() -> Iterator[Row]:
        nonlocal count
        for row in scan.reader.read(file):
            if isinstance(row, Rejection):
                count += 1
                rejections.extend([row][: MAX_REJECTIONS_PER_FILE - len(rejections)])
            else:
                yield row

    matches = scan.find(read_valid_rows())
    return _FileMatches(matches, rejections, count)


def make_leaderboards(
    scores: RunScores, manifest: Mapping[str, Any], leaked: Sequence[str], choice: SettingsPolicy = COMPARE
) -> list[LeaderboardWithoutLeaks]:
    """Return a leaderboard for each metric that ranks generators.

    The list is empty if none or all of the scored prompts are leaked.
    """
    kept = (
        find_in_sorted(scores.prompts, np.sort(hash_ids(leaked))) < 0
        if leaked
        else np.ones(len(scores.prompts), np.bool_)
    )
    if kept.all() or not kept.any():
        return []
    metrics = read_metrics(manifest)
    lower_is_better, settings = read_lower_is_better(manifest), read_all_settings(manifest, choice)
    boards = []
    for metric in scores.metrics:
        if metric in metrics and not metrics[metric].ranks:
            continue
        whole = read_prompt_means(scores, metric)
        rest = PromptMeans(whole.prompts[kept])
        for generator in whole.generators:
            rest.add(generator, whole.read(generator)[kept])
        boards.append(_make_leaderboard(metric, whole, rest, lower_is_better, settings))
    return boards


def _make_leaderboard(
    metric: str,
    whole: PromptMeans,
    rest: PromptMeans,
    lower_is_better: Container[str],
    settings: Mapping[str, SettingCounts],
) -> LeaderboardWithoutLeaks:
    sign = get_direction(metric, lower_is_better)
    names_of_both = [name for name in whole.generators if name in rest.generators]
    means = [(name, _compute_mean(whole, name), _compute_mean(rest, name)) for name in names_of_both]
    ranked = sorted(means, key=lambda row: -sign * row[1])
    after = [row[0] for row in sorted(means, key=lambda row: -sign * row[2])]
    clear, clear_without = (
        {
            (duel.better, duel.worse)
            for duel in compare_generators(metric, side, Skills(()), lower_is_better, settings=settings)
            if duel.better is not None
        }
        for side in (whole, rest)
    )
    order = [row[0] for row in ranked]
    sentences = [
        Sentence(f"{metric}: the order changes", f"to {', '.join(after)}.")
        if after != order
        else Sentence(f"{metric}: the order stays the same.", "")
    ]
    lost, gained = clear - clear_without, clear_without - clear
    for lead, pairs in (("no longer clear:", lost), ("clear only without the leaked prompts:", gained)):
        if pairs:
            listed = [f"{better} over {worse}" for better, worse in sorted(pairs)]
            sentences.append(Sentence(f"{metric}, {lead}", f"{format_names(listed)}."))
    if clear == clear_without:
        sentences.append(Sentence("", f"The same {format_quantity(len(clear), 'pair')} of generators differ clearly."))
    return LeaderboardWithoutLeaks(metric, ranked, sentences)


def _compute_mean(means: PromptMeans, generator: str) -> float:
    return float(np.nanmean(means.read(generator)))
