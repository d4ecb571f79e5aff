"""Which prompts and pictures of a benchmark stand in a training set, and a run's leaderboards without them."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from plumbline.operators.base.bounds import BoundsChecked, SomeShare
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import Sentence, names, plural
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.generation_settings import COMPARE, Choice, Known, all_settings
from plumbline.operators.images.rows import SOURCES
from plumbline.operators.metrics.metric import direction
from plumbline.operators.metrics.table import falling_metrics, read_metrics
from plumbline.operators.results.comparison import PromptMeans, compare_generators, read_prompt_means
from plumbline.operators.results.run_scores import RunScores, find_sorted
from plumbline.operators.results.summary import Skills
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.storage import Roots, StorageConfig
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.cells.cells import Shard
from plumbline.pipelines.cells.run_scores import read_run_scores
from plumbline.pipelines.cells.runs import find_run, name_by_time, read_manifest
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.report.finished_run import find_originals
from plumbline.pipelines.running.tasks import Tasks, open_tasks
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.file_memory import FileMemory
from plumbline.pipelines.sources.prompts import open_prompts
from plumbline.pipelines.sources.shards import ShardSize
from plumbline.pipelines.sources.sources import open_sources
from plumbline.pipelines.sources.uris import Uris, benchmark_uris
from plumbline.plugins.benchmark_builder.benchmark_pictures import Reading, read_pictures
from plumbline.plugins.benchmark_builder.leaks import (
    KINDS,
    PICTURES,
    TEXTS,
    Found,
    Kind,
    LeakFinder,
    Matches,
    Share,
    Sought,
    kinds_of_prompts,
    leaks_table,
    merge,
    picture_shares,
    shares,
)
from plumbline.plugins.benchmark_builder.picture_leaks import LEAST_CORRELATION, PictureFinder
from plumbline.plugins.benchmark_builder.training_captions import CAPTIONS
from plumbline.plugins.benchmark_builder.training_files import TrainingFile, TrainingReader
from plumbline.plugins.benchmark_builder.training_images import image_reader

IMAGE = "image"
BYTES_OF_CAPTION, BYTES_OF_IMAGE = 100, 100_000
"""About what a row takes, to tell whether this process reads them alone."""
MOST_REJECTIONS = 8
"""Of a file, those that are told."""
Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaksConfig(BoundsChecked):
    """Which prompts and pictures are looked for, and where."""

    captions: str | None = None
    """Those of a training set: a .parquet, .csv, .tsv, .jsonl, .ndjson or .txt file (a caption a line), a WebDataset
    tar, a folder of these, or a pattern with *."""
    images: str | None = None
    """Those of a training set, for the benchmark's pictures: a .parquet file, a WebDataset tar, a folder of these, or a
    pattern with *."""
    column: str | None = None
    """What tables and the .json of tars call the captions; null takes caption, text, prompt, TEXT or captions."""
    image_column: str | None = None
    """What tables call the images, bytes or {bytes, path}, or their addresses as text; null takes image, jpg, png,
    webp, img or uri."""
    uri_roots: Roots = ()
    """Folders and cloud prefixes that rows may name training images below, besides the folder of the rows' table."""
    store: str = "store"
    """Folder or cloud prefix of the store; leaks/ID/ below it gets the result."""
    run: str = "latest"
    """The run whose prompts and pictures are looked for, and whose leaderboards are made without the leaked prompts."""
    benchmark: BenchmarkConfig | None = None
    """A benchmark whose prompts and pictures are looked for in place of the run's; no run is read then."""
    near: SomeShare = 0.8
    """The share of all their runs of three words that a prompt and a caption have in common to be near-duplicates."""
    near_images: SomeShare = LEAST_CORRELATION
    """How far the colours of a picture and a training image are correlated, at 16x16 pixels, to be near-duplicates."""
    kinds: tuple[Kind, ...] = KINDS
    """Which count as leaks. Of captions: the same words (`exact`), those in another order (`reordered`),
    `near`-duplicates, and long prompts that are `contained` in a caption. Of images: near-duplicates of a benchmark's
    `source` pictures, and of a generated `image`."""
    settings: Choice = COMPARE
    """`ignore` tells generators apart whose settings of generation differ, too (docs/decide.md)."""
    limits: ImageLimits = field(default_factory=ImageLimits)
    """What a training image may cost before it is refused."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Where more rows than `cluster.driver_rows` are read: a file in each task."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if self.captions is None and self.images is None:
            raise ConfigError("captions, images: expected one of them, or both, got neither")
        for key, of in (("captions", TEXTS), ("images", PICTURES)):
            if getattr(self, key) is not None and not self.wanted(of):
                raise ConfigError(f"kinds: expected some of {', '.join(of)} beside {key}, got {', '.join(self.kinds)}")

    def wanted(self, of: Sequence[Kind]) -> list[Kind]:
        """Those of the kinds that are looked for, and for which there is a training set."""
        given = self.captions if of is TEXTS else self.images
        return [] if given is None else [kind for kind in of if kind in self.kinds]


class Board(NamedTuple):
    """A metric's generators with and without the leaked prompts."""

    metric: str
    means: Sequence[tuple[str, float, float]]
    """Of each generator, the best first: its name, its mean over all prompts, and that without the leaked ones."""
    sentences: Sequence[Sentence]
    """Whether the order or a clear comparison changes."""


class Looked(NamedTuple):
    """A training set's captions or images that were looked through."""

    what: str
    """`caption` or `image`."""
    files: int
    found: Found
    rejections: Sequence[Rejection]
    """The first of each file."""
    n_rejected: int


class FoundLeaks(NamedTuple):
    """What was found."""

    leaks_id: str
    leaks: pa.Table
    """Schema LEAKS."""
    looked: Sequence[Looked]
    unread: Sequence[Rejection]
    """The benchmark's pictures that cannot be compared."""
    shares: Sequence[Share]
    """Of the prompts, by skill."""
    picture_shares: Sequence[Share]
    """Of the pictures, by generator; none where none were looked for."""
    boards: Sequence[Board]
    no_boards: str
    """Why there are none; empty where there are."""

    @property
    def folder(self) -> str:
        """Where it is in the store."""
        return f"leaks/{self.leaks_id}"


class _Wanted(NamedTuple):
    """What is looked for."""

    prompts: pa.Table
    """Schema PROMPTS."""
    prompt_shards: Sequence[Shard]
    image_shards: Sequence[Shard]
    limits: ImageLimits
    uris: Uris
    manifest: Mapping[str, Any]
    """Of the run; empty where a benchmark is named."""
    scores: RunScores | None = None


def _wanted(store: Store, config: LeaksConfig) -> _Wanted:
    if config.benchmark is not None:
        return _of_benchmark(store, config, config.benchmark)
    run_id = find_run(store, config.run)
    manifest = read_manifest(store, run_id)
    originals, why = find_originals(manifest, store)
    if originals is None:
        raise ConfigError(f"run={config.run}: its prompts cannot be read any more ({why}); name benchmark=NAME")
    prompts, shards, prompt_shards, limits, uris = originals
    return _Wanted(prompts, prompt_shards, [*shards.values()], limits, uris, manifest, read_run_scores(store, run_id))


def _of_benchmark(store: Store, config: LeaksConfig, benchmark: BenchmarkConfig) -> _Wanted:
    """A benchmark's prompts and pictures; its images are opened only where these are looked for or hold the sources."""
    uris, kinds = benchmark_uris(benchmark, config.storage, config.limits), config.wanted(PICTURES)
    prompts = open_prompts(benchmark, config.storage, ShardSize()) if benchmark.prompts is not None else None
    beside = prompts.edit_columns if prompts is not None else set()
    if "image" in kinds or (kinds and not beside & {*SOURCES}):
        sources = open_sources(benchmark, config.storage, shard_size=ShardSize(), memory=FileMemory(store, benchmark))
        shards = sources.prompt_shards, sources.image_shards
        return _Wanted(sources.prompts, *shards, config.limits, uris, {})
    if prompts is None:
        raise ConfigError("benchmark.prompts: expected a file of prompts, got null; name the run of its images")
    return _Wanted(prompts.table, prompts.shards, [], config.limits, uris, {})


class _OfFile(NamedTuple):
    matches: Matches
    rejections: list[Rejection]
    n_rejected: int


class _Look(NamedTuple, Generic[Row]):
    """How each file of a training set is read, and what finds leaks in its rows."""

    reader: TrainingReader[Row]
    find: Callable[[Iterable[Row]], Matches]


class _LookedThrough(NamedTuple):
    looked: list[Looked]
    unread: Sequence[Rejection]
    """The benchmark's pictures that cannot be compared."""


def find_leaks(store: Store, config: LeaksConfig) -> FoundLeaks:
    """Looks for prompts and pictures in a training set and writes what was found.

    Raises ConfigError where there are none, or no training set.
    """
    wanted = _wanted(store, config)
    ids, texts, skills = (wanted.prompts.column(name).to_pylist() for name in ("prompt_id", "text", "skills"))
    prompts = {prompt_id: text or "" for prompt_id, text in zip(ids, texts, strict=True)}
    looked, unread = _look_through(store, config, wanted, prompts)
    every_found = [each.found for each in looked]
    kind_of = kinds_of_prompts(every_found)
    boards = (
        [] if wanted.scores is None else make_boards(wanted.scores, wanted.manifest, list(kind_of), config.settings)
    )
    found = FoundLeaks(
        leaks_id=name_by_time(store, datetime.now(UTC)),
        leaks=leaks_table(every_found),
        looked=looked,
        unread=unread,
        shares=shares(dict(zip(ids, (own or () for own in skills), strict=True)), kind_of),
        picture_shares=[share for each in looked if each.what == IMAGE for share in picture_shares(each.found)],
        boards=boards,
        no_boards=_no_boards(len(ids), len(kind_of), wanted.scores),
    )
    _write(store, found, config, wanted.manifest.get("run_id"))
    return found


def _look_through(store: Store, config: LeaksConfig, wanted: _Wanted, prompts: Mapping[str, str]) -> _LookedThrough:
    """Looks for the prompts in all captions, and for their pictures in all images."""
    text_kinds, picture_kinds = config.wanted(TEXTS), config.wanted(PICTURES)
    images = image_reader(config.limits, config.uri_roots)
    captions_files = CAPTIONS.files(config.storage, config.captions, config.column) if text_kinds else []
    images_files = images.files(config.storage, config.images, config.image_column) if picture_kinds else []
    rows = sum(file.size for file in captions_files) // BYTES_OF_CAPTION
    rows += sum(file.size for file in images_files) // BYTES_OF_IMAGE
    rows += sum(shard.rows for shard in wanted.image_shards) if picture_kinds else 0
    with open_tasks(config.cluster, store, rows=rows, sources=[(captions_files + images_files)[0].place]) as tasks:
        looked: list[Looked] = []
        unread: Sequence[Rejection] = ()
        if text_kinds:
            sought = [Sought(*prompt) for prompt in prompts.items()]
            finder = LeakFinder(sought, config.near, text_kinds)
            looked.append(_look(tasks, "caption", captions_files, _Look(CAPTIONS, finder.find), sought))
        if picture_kinds:
            reading = Reading(wanted.limits, wanted.uris, picture_kinds, prompts)
            pictures, unread = read_pictures(wanted.prompt_shards, wanted.image_shards, reading, tasks)
            if not pictures:
                kinds = " or ".join(picture_kinds)
                raise ConfigError(f"images: the benchmark has no {kinds} that can be compared; leave images out")
            of_images = PictureFinder([(own.kind, own.fingerprint) for own in pictures], config.near_images)
            sought = [own.sought for own in pictures]
            looked.append(_look(tasks, IMAGE, images_files, _Look(images, of_images.find), sought))
    return _LookedThrough(looked, unread)


def _look(tasks: Tasks, what: str, files: Sequence[TrainingFile], look: _Look[Row], sought: Sequence[Sought]) -> Looked:
    of_files = list(tasks.map(_find_in_file, files, shared=look))
    return Looked(
        what,
        len(files),
        Found(sought, merge(of_file.matches for of_file in of_files)),
        [rejection for of_file in of_files for rejection in of_file.rejections],
        sum(of_file.n_rejected for of_file in of_files),
    )


def _write(store: Store, found: FoundLeaks, config: LeaksConfig, run_id: str | None) -> None:
    """The table of leaks, and then leaks.json, once."""
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
        "rows": sum(each.found.matches.looked for each in found.looked),
        "rejected": sum(each.n_rejected for each in found.looked),
        "unread_pictures": len(found.unread),
        "prompts": whole.total,
        "leaked": whole.leaked,
        "skills": {share.name: {"prompts": share.total, "leaked": share.leaked} for share in found.shares},
        "pictures": {share.name: {"pictures": share.total, "leaked": share.leaked} for share in found.picture_shares},
        "boards": {board.metric: [list(row) for row in board.means] for board in found.boards},
    }
    store.create_json(f"{found.folder}/leaks.json", content)


def _no_boards(prompts: int, leaked: int, scores: RunScores | None) -> str:
    if scores is None:
        return "leave out benchmark to see a run's leaderboards without the leaked prompts"
    if not leaked:
        return "no prompt is leaked, so the leaderboards stay as they are"
    return "every prompt is leaked, so nothing is left to rank by" if leaked == prompts else ""


def _find_in_file(look: _Look[Row], file: TrainingFile) -> _OfFile:
    rejected: list[Rejection] = []
    count = 0

    def sound() -> Iterator[Row]:
        nonlocal count
        for row in look.reader.read(file):
            if isinstance(row, Rejection):
                count += 1
                rejected.extend([row][: MOST_REJECTIONS - len(rejected)])
            else:
                yield row

    matches = look.find(sound())
    return _OfFile(matches, rejected, count)


def make_boards(
    scores: RunScores, manifest: Mapping[str, Any], leaked: Sequence[str], choice: Choice = COMPARE
) -> list[Board]:
    """Of each metric that ranks, the generators over all prompts and without the leaked ones; none where that is all or
    nothing.
    """
    kept = (
        find_sorted(scores.prompts, np.sort(hash_ids(leaked))) < 0 if leaked else np.ones(len(scores.prompts), np.bool_)
    )
    if kept.all() or not kept.any():
        return []
    metrics = read_metrics(manifest)
    falling, settings = falling_metrics(manifest), all_settings(manifest, choice)
    boards = []
    for metric in scores.metrics:
        if metric in metrics and not metrics[metric].ranks:
            continue
        whole = read_prompt_means(scores, metric)
        rest = PromptMeans(whole.prompts[kept])
        for generator in whole.generators:
            rest.add(generator, whole.read(generator)[kept])
        boards.append(_board(metric, whole, rest, falling, settings))
    return boards


def _board(
    metric: str, whole: PromptMeans, rest: PromptMeans, falling: Container[str], settings: Mapping[str, Known]
) -> Board:
    towards = direction(metric, falling)
    both = [name for name in whole.generators if name in rest.generators]
    means = [(name, _mean(whole, name), _mean(rest, name)) for name in both]
    ranked = sorted(means, key=lambda row: -towards * row[1])
    after = [row[0] for row in sorted(means, key=lambda row: -towards * row[2])]
    clear, left = (
        {
            (duel.better, duel.worse)
            for duel in compare_generators(metric, side, Skills(()), falling, settings=settings)
            if duel.better is not None
        }
        for side in (whole, rest)
    )
    order = [row[0] for row in ranked]
    sentences = [
        Sentence(f"{metric}: the order changes", f"to {', '.join(after)}.")
        if after != order
        else Sentence(f"{metric}: the order stays.", "")
    ]
    for lead, pairs in (("no longer clear:", clear - left), ("clear only without the leaked prompts:", left - clear)):
        if pairs:
            told = [f"{better} over {worse}" for better, worse in sorted(pairs)]
            sentences.append(Sentence(f"{metric}, {lead}", f"{names(told)}."))
    if clear == left:
        sentences.append(Sentence("", f"The same {plural(len(clear), 'pair')} of generators are told apart."))
    return Board(metric, ranked, sentences)


def _mean(means: PromptMeans, generator: str) -> float:
    return float(np.nanmean(means.read(generator)))
