"""Protocols of meta-evaluation: which release to read, how to match its rows with scores, and the tasks to compute."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from plumbline.operators.base.bounds import BoundsChecked, Probability
from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.operators.statistics.confidence_levels import GECKO_SIGNIFICANCE
from plumbline.operators.statistics.options import (
    Convention,
    EqualScoreHandling,
    Level,
    Match,
    RatingStatistic,
    Sampling,
    UnsureHandling,
    ZeroHandling,
)
from plumbline.pipelines.metaeval.releases.readers import RELEASES, RatingColumns
from plumbline.pipelines.metaeval.scores_source import ScoresSource

USER_RATING_READERS = ("long", "annotations")
"""Readers for users' own ratings, with configurable column names."""
Task = Literal["ratings", "preferences", "pairings", "graphs", "orders", "words"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtocolConfig(BoundsChecked):
    """Options for comparing a benchmark's judgements with scores."""

    section: ClassVar[str] = "protocol."
    name: str
    """Name of the protocol and of its results."""
    reader: str | None = None
    """Release whose file format is read (docs/metaeval.md lists them); null means the release with the same name as the
    protocol.
    """
    path: str
    """File or folder of the release, or its URL."""
    columns: RatingColumns | None = None
    """Column names of users' own ratings (readers `long` and `annotations`)."""
    tasks: tuple[Task, ...]
    """Tasks to compute."""
    templates: tuple[str, ...] = ()
    """Templates whose ratings and choices are used (likert, wl, vote, ...); all if empty."""
    without_skills: tuple[str, ...] = ()
    """Skills or tags whose prompts and samples are left out. For example, basic skills in VQAScore's table 3a exclude
    samples that also require advanced skills.
    """
    choices: tuple[int, ...] = ()
    """Ids of the choices in Pick-a-Pic's test_captions.json to use; all if empty."""
    match: Match | None = None
    """Ids that match a score with a judgement; null chooses the ids that match the most images."""
    statistics: tuple[RatingStatistic, ...] = ("pearson", "spearman", "kendall_b", "pairwise_accuracy")
    """Statistics to compute for ratings."""
    rating_range: tuple[float, float] | None = None
    """Lowest and highest possible rating, such as [1, 5]."""
    scales: Mapping[str, tuple[float, float]] | None = None
    """Lowest and highest possible rating of templates whose scale is not `rating_range`, such as {likert: [1, 5]}."""
    out_of_range: Literal["refused", "left_out"] = "refused"
    """Treatment of ratings outside the range: `refused` raises an error, and `left_out` treats them as missing and adds
    a note.
    """
    fewer_is_better: tuple[str, ...] = ()
    """Templates whose ratings count errors. These ratings are reversed on the template's scale: on a scale from 0 to 9,
    2 errors become a rating of 7.
    """
    passing_ratings: Mapping[str, float] | None = None
    """Minimum mean rating of images that people pass, by template, such as {likert: 4}, for `sensitivity` and
    `specificity`; by default three quarters of the way up the template's scale.
    """
    passing_scores: Mapping[str, float] | None = None
    """Minimum score of images that a metric passes (maximum score if lower is better), by metric; by default, about as
    many rated images pass as are passed by people.
    """
    agreement: tuple[Level, ...] = ()
    """Distances to use for Krippendorff's alpha; a choice of the first image counts as 1, and of the second as -1."""
    by_skill: bool = True
    """Add results by skill."""
    by_generator: bool = False
    """Add results by generator, overall and within each skill, and their mean over these groups (LLMScore, table 1 and
    figure 5).
    """
    reliable: bool = False
    """Use only prompts whose raters agree (Gecko, section 4.1)."""
    unsure: UnsureHandling = "left_out"
    """Treatment of pairs of images without a decision by people."""
    equal_scores: EqualScoreHandling = "half"
    """Credit for a metric that scores two images equally although people prefer one of them: half a right pair, or
    none.
    """
    alpha: Probability = GECKO_SIGNIFICANCE
    """Significance level for differences between two generators."""
    zeros: ZeroHandling = "wilcox"
    """Treatment, in the signed-rank test, of prompts for which two generators have equal scores."""
    conventions: tuple[Convention, ...] = ("published",)
    """Conventions of T2IScoreScore to compute."""
    unpublished: tuple[str, ...] = ()
    """Error graphs that the published averages leave out; the convention `published` leaves them out too."""
    falling: tuple[str, ...] = ()
    """Metrics for which lower scores are better; for plumbline runs they are known and need not be listed."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        check_known("protocol.reader", self.release, RELEASES)
        if self.columns is not None and self.release not in USER_RATING_READERS:
            raise ConfigError(
                f"protocol.columns: expected null for {self.release}; only your own ratings "
                f"({', '.join(USER_RATING_READERS)}) can have other column names"
            )
        if self.choices and not (self.release == "pick_a_pic" and self.path.lower().endswith(".json")):
            raise ConfigError(
                f"protocol.choices: expected none for {self.path}, because only Pick-a-Pic's test_captions.json has "
                f"choice ids, got {len(self.choices)}; leave them out"
            )
        if len(set(self.choices)) < len(self.choices):
            twice = next(number for number in self.choices if self.choices.count(number) > 1)
            raise ConfigError(f"protocol.choices: expected each id once, got {twice} more than once")
        if not self.tasks:
            raise ConfigError(f"protocol.tasks: expected one or more of {', '.join(get_args(Task))}, got none")

    @property
    def release(self) -> str:
        """Release whose file format is read."""
        return self.reader or self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class MetaevalConfig(ScoresSource):
    protocol: ProtocolConfig
    output: str | None = None
    """Folder or cloud prefix for the results, as Parquet, Markdown and LaTeX. null means a folder below STORE/metaeval
    that is named after the protocol, the ratings and the scores.
    """
    metrics: tuple[str, ...] = ()
    """Metrics to judge; all if empty."""
    verbose: bool = False
    """Print all tables and conventions; otherwise they are only written to files."""
    sampling: Sampling = field(default_factory=Sampling)
