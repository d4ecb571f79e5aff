"""Which prompts of a benchmark stand in a training set, and a run's leaderboards without them."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from plumbline.operators.bounds import Checked, SomeShare
from plumbline.operators.comparison import PromptMeans, duels, prompt_means
from plumbline.operators.errors import ConfigError
from plumbline.operators.metrics.metric import direction
from plumbline.operators.metrics.table import falling_metrics, read_metrics
from plumbline.operators.new_benchmarks.leaks import (
    KINDS,
    Caption,
    Kind,
    LeakFinder,
    Matches,
    SkillShare,
    merge,
    shares,
)
from plumbline.operators.run_scores import RunScores, among
from plumbline.operators.sentences import Sentence, names, plural
from plumbline.operators.settings import COMPARE, Choice, Known, all_settings
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.operators.summary import Skills
from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.cells.run_scores import read_run_scores
from plumbline.pipelines.cells.runs import by_time, find_run, read_manifest
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.new_benchmarks.training_captions import CaptionFile, list_files, read_captions
from plumbline.pipelines.report.finished_run import find_originals
from plumbline.pipelines.running.tasks import open_tasks
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.prompts import open_prompts
from plumbline.pipelines.sources.shards import Cut

BYTES_OF_ROW = 100
"""About what a caption takes, to tell whether this process reads them alone."""
MOST_REJECTIONS = 8
"""Of a file, those that are told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaksConfig(Checked):
    """Which prompts are looked for, and where."""

    captions: str
    """Those of a training set: a .parquet, .csv, .tsv, .jsonl, .ndjson or .txt file (a caption a line), a WebDataset
    tar, a folder of these, or a pattern with *."""
    column: str | None = None
    """What tables and the .json of tars call the captions; null takes caption, text, prompt, TEXT or captions."""
    store: str = "store"
    """Folder or cloud prefix of the store; leaks/ID/ below it gets the result."""
    run: str = "latest"
    """The run whose prompts are looked for, and whose leaderboards are made without the leaked ones."""
    benchmark: BenchmarkConfig | None = None
    """A benchmark whose prompts are looked for in place of the run's; no run is read then."""
    near: SomeShare = 0.8
    """The share of all their runs of three words that a prompt and a caption have in common to be near-duplicates."""
    kinds: tuple[Kind, ...] = KINDS
    """Which count as leaks: the same words (`exact`), those in another order (`reordered`), `near`-duplicates, and long
    prompts that are `contained` in a caption."""
    settings: Choice = COMPARE
    """`ignore` tells generators apart whose settings of generation differ, too (docs/decide.md)."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    """Where more captions than `cluster.driver_rows` are read: a file in each task."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if not self.kinds:
            raise ConfigError(f"kinds: expected some of {', '.join(KINDS)}, got none")


class Board(NamedTuple):
    """A metric's generators with and without the leaked prompts."""

    metric: str
    means: Sequence[tuple[str, float, float]]
    """Of each generator, the best first: its name, its mean over all prompts, and that without the leaked ones."""
    sentences: Sequence[Sentence]
    """Whether the order or a clear comparison changes."""


class FoundLeaks(NamedTuple):
    """What was found."""

    leaks_id: str
    matches: Matches
    leaks: pa.Table
    """Schema LEAKS."""
    shares: Sequence[SkillShare]
    boards: Sequence[Board]
    no_boards: str
    """Why there are none; empty where there are."""
    files: int
    rejections: Sequence[Rejection]
    """The first of each file."""
    n_rejected: int

    @property
    def folder(self) -> str:
        """Where it is in the store."""
        return f"leaks/{self.leaks_id}"


class _OfFile(NamedTuple):
    matches: Matches
    rejections: list[Rejection]
    n_rejected: int


class _Wanted(NamedTuple):
    """What is looked for."""

    prompts: pa.Table
    """Schema PROMPTS."""
    manifest: Mapping[str, Any]
    """Of the run; empty where a benchmark is named."""
    scores: RunScores | None = None


def _wanted(store: Store, config: LeaksConfig) -> _Wanted:
    if config.benchmark is not None:
        if config.benchmark.prompts is None:
            raise ConfigError("benchmark.prompts: expected a file of prompts, got null; name the run of its images")
        return _Wanted(open_prompts(config.benchmark, config.storage, Cut()).table, {})
    run_id = find_run(store, config.run)
    manifest = read_manifest(store, run_id)
    originals, why = find_originals(manifest, store)
    if originals is None:
        raise ConfigError(f"run={config.run}: its prompts cannot be read any more ({why}); name benchmark=NAME")
    return _Wanted(originals.prompts, manifest, read_run_scores(store, run_id))


def find_leaks(store: Store, config: LeaksConfig) -> FoundLeaks:
    """Looks for the prompts in all captions and writes what was found; raises ConfigError where there are none."""
    files = list_files(config.storage.locate(config.captions), config.column)
    wanted = _wanted(store, config)
    ids, texts, skills = (wanted.prompts.column(name).to_pylist() for name in ("prompt_id", "text", "skills"))
    finder = LeakFinder([(one, text or "") for one, text in zip(ids, texts, strict=True)], config.near, config.kinds)
    rows = sum(file.size for file in files) // BYTES_OF_ROW
    with open_tasks(config.cluster, store, rows=rows, sources=[files[0].place]) as tasks:
        of_files = list(tasks.map(_find_in_file, files, shared=finder))
    matches = merge(of_file.matches for of_file in of_files)
    kind_of = {ids[place]: KINDS[surest[0].kind] for place, surest in sorted(matches.surest.items())}
    boards = (
        [] if wanted.scores is None else make_boards(wanted.scores, wanted.manifest, list(kind_of), config.settings)
    )
    found = FoundLeaks(
        leaks_id=by_time(store, datetime.now(UTC)),
        matches=matches,
        leaks=finder.table(matches),
        shares=shares(dict(zip(ids, (own or () for own in skills), strict=True)), kind_of),
        boards=boards,
        no_boards=_no_boards(len(ids), len(kind_of), wanted.scores),
        files=len(files),
        rejections=[rejection for of_file in of_files for rejection in of_file.rejections],
        n_rejected=sum(of_file.n_rejected for of_file in of_files),
    )
    _write(store, found, config, wanted.manifest.get("run_id"))
    return found


def _write(store: Store, found: FoundLeaks, config: LeaksConfig, run_id: str | None) -> None:
    """The table of leaks, and then leaks.json, once."""
    whole, *_ = found.shares
    store.write_table(f"{found.folder}/leaks.parquet", found.leaks)
    content = {
        "leaks_id": found.leaks_id,
        "captions": config.captions,
        "run_id": run_id,
        "near": config.near,
        "kinds": list(config.kinds),
        "rows": found.matches.captions,
        "rejected": found.n_rejected,
        "prompts": whole.prompts,
        "leaked": whole.leaked,
        "skills": {one.skill: {"prompts": one.prompts, "leaked": one.leaked} for one in found.shares},
        "boards": {board.metric: [list(row) for row in board.means] for board in found.boards},
    }
    store.create_json(f"{found.folder}/leaks.json", content)


def _no_boards(prompts: int, leaked: int, scores: RunScores | None) -> str:
    if scores is None:
        return "leave out benchmark to see a run's leaderboards without the leaked prompts"
    if not leaked:
        return "no prompt is leaked, so the leaderboards stay as they are"
    return "every prompt is leaked, so nothing is left to rank by" if leaked == prompts else ""


def _find_in_file(finder: LeakFinder, file: CaptionFile) -> _OfFile:
    rejected: list[Rejection] = []
    count = 0

    def sound() -> Iterator[Caption]:
        nonlocal count
        for caption in read_captions(file):
            if isinstance(caption, Rejection):
                count += 1
                rejected.extend([caption][: MOST_REJECTIONS - len(rejected)])
            else:
                yield caption

    matches = finder.find(sound())
    return _OfFile(matches, rejected, count)


def make_boards(
    scores: RunScores, manifest: Mapping[str, Any], leaked: Sequence[str], choice: Choice = COMPARE
) -> list[Board]:
    """Of each metric that ranks, the generators over all prompts and without the leaked ones; none where that is all or
    nothing.
    """
    kept = among(scores.prompts, np.sort(hash_ids(leaked))) < 0 if leaked else np.ones(len(scores.prompts), np.bool_)
    if kept.all() or not kept.any():
        return []
    metrics = read_metrics(manifest)
    falling, settings = falling_metrics(manifest), all_settings(manifest, choice)
    boards = []
    for metric in scores.metrics:
        if metric in metrics and not metrics[metric].ranks:
            continue
        whole = prompt_means(scores, metric)
        rest = PromptMeans(whole.prompts[kept])
        for generator in whole.generators:
            rest.add(generator, whole.of(generator)[kept])
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
            for duel in duels(metric, side, Skills(()), falling, settings=settings)
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
    return float(np.nanmean(means.of(generator)))
