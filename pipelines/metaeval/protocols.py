"""Protocols of meta-evaluation: the release to read, the matching of its rows with scores, and the tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from plumbline.operators.base.bounds import BoundsChecked, Probability
from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.operators.statistics.confidence_levels import GECKO_SIGNIFICANCE
from plumbline.operators.statistics.options import (
    Convention,
    EqualScores,
    Level,
    Match,
    RatingStatistic,
    Sampling,
    Unsure,
    ZeroHandling,
)
from plumbline.pipelines.metaeval.releases.readers import RELEASES, RatingColumns
from plumbline.pipelines.metaeval.scores_source import ScoresSource

OWN = ("long", "annotations")
"""Readers of users' own ratings, whose columns can have other names."""
Task = Literal["ratings", "preferences", "pairings", "graphs", "orders", "words"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtocolConfig(BoundsChecked):
    """Options for comparing a benchmark's judgements with scores."""

    section: ClassVar[str] = "protocol."
    name: str
    """Name of the protocol and of its results."""
    reader: str | None = None
    """Release whose file format is read (docs/metaeval.md lists them); null is the release with the protocol's name."""
    path: str
    """File or folder of the release, or its address."""
    columns: RatingColumns | None = None
    """Names of the columns of users' own ratings (readers `long` and `annotations`)."""
    tasks: tuple[Task, ...]
    """Tasks to compute."""
    templates: tuple[str, ...] = ()
    """Templates whose ratings and choices are used (likert, wl, vote, ...); all if empty."""
    without_skills: tuple[str, ...] = ()
    """Skills or tags whose prompts and samples are left out: in VQAScore's table 3a, basic skills exclude samples that
    also need advanced skills."""
    choices: tuple[int, ...] = ()
    """Ids of the choices of Pick-a-Pic's test_captions.json that are used; all if empty."""
    match: Match | None = None
    """Ids that match a score with a judgement; null uses the ids that match most images."""
    statistics: tuple[RatingStatistic, ...] = ("pearson", "spearman", "kendall_b", "pairwise_accuracy")
    """Statistics for ratings."""
    rating_range: tuple[float, float] | None = None
    """Least and greatest rating, as [1, 5]."""
    scales: Mapping[str, tuple[float, float]] | None = None
    """Least and greatest rating of templates with other scales than `rating_range`, as {likert: [1, 5]}."""
    out_of_range: Literal["refused", "left_out"] = "refused"
    """Treatment of other ratings: `refused` is an error, and `left_out` treats them as missing, with a note."""
    fewer_is_better: tuple[str, ...] = ()
    """Templates whose ratings count errors. Their ratings are reversed on the template's scale: on a scale from 0 to 9,
    2 errors count as a rating of 7."""
    passing_ratings: Mapping[str, float] | None = None
    """Least mean rating of images that people pass, by template, as {likert: 4}, for `sensitivity` and `specificity`;
    by default three quarters of the way up the template's scale."""
    passing_scores: Mapping[str, float] | None = None
    """Least score of images that a metric passes (greatest score if lower is better), by metric; by default, as many
    rated images pass as by people."""
    agreement: tuple[Level, ...] = ()
    """Distances of Krippendorff's alpha; a choice of the first image is 1, and of the second -1."""
    by_skill: bool = True
    """Add results by skill."""
    by_generator: bool = False
    """Add results by generator, within each skill too, and their mean over these groups (LLMScore, table 1 and figure
    5)."""
    reliable: bool = False
    """Use only prompts whose raters agree (Gecko, section 4.1)."""
    unsure: Unsure = "left_out"
    """Treatment of pairs of images that people do not decide."""
    equal_scores: EqualScores = "half"
    """Value of a metric's equal scores on pairs that people decide: half a pair, or nothing."""
    alpha: Probability = GECKO_SIGNIFICANCE
    """Significance level for differences between two generators."""
    zeros: ZeroHandling = "wilcox"
    """Treatment of prompts without a difference in the signed-rank test."""
    conventions: tuple[Convention, ...] = ("published",)
    """Conventions of T2IScoreScore."""
    unpublished: tuple[str, ...] = ()
    """Error graphs that the published averages, and so the convention `published`, leave out."""
    falling: tuple[str, ...] = ()
    """Metrics that prefer lower scores; those of a plumbline run are known and need not be named."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        check_known("protocol.reader", self.release, RELEASES)
        if self.columns is not None and self.release not in OWN:
            raise ConfigError(
                f"protocol.columns: only ratings of one's own ({', '.join(OWN)}) have any, got some for {self.release}"
            )
        if self.choices and not (self.release == "pick_a_pic" and self.path.lower().endswith(".json")):
            raise ConfigError(
                "protocol.choices: these are ids of Pick-a-Pic's test_captions.json, and other files have none; got "
                f"some for {self.path}"
            )
        if len(set(self.choices)) < len(self.choices):
            twice = next(number for number in self.choices if self.choices.count(number) > 1)
            raise ConfigError(f"protocol.choices: expected each id once, got {twice} again")
        if not self.tasks:
            raise ConfigError(f"protocol.tasks: expected some of {', '.join(get_args(Task))}, got none")

    @property
    def release(self) -> str:
        """Release whose file format is read."""
        return self.reader or self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class MetaevalConfig(ScoresSource):
    """Options of a meta-evaluation."""

    protocol: ProtocolConfig
    output: str | None = None
    """Folder or cloud prefix of the results, as Parquet, Markdown and LaTeX. Null is a folder below STORE/metaeval that
    is named after the protocol, the ratings and the scores."""
    metrics: tuple[str, ...] = ()
    """Metrics to judge; all if empty."""
    verbose: bool = False
    """Print all tables and conventions, which are otherwise only in files."""
    sampling: Sampling = field(default_factory=Sampling)
