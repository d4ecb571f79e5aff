"""Protocols of meta-evaluation: which release is read, how its rows meet the scores, and what is computed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from plumbline.operators.base.bounds import BoundsChecked, Probability
from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.operators.statistics.levels import GECKO_SIGNIFICANCE
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
from plumbline.pipelines.judging.releases.readers import RELEASES, RatingColumns
from plumbline.pipelines.judging.scores_source import ScoresSource

OWN = ("long", "annotations")
"""Readers of ratings of one's own, whose columns have other names."""
Task = Literal["ratings", "preferences", "pairings", "graphs", "orders", "words"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProtocolConfig(BoundsChecked):
    """How a benchmark's judgements are compared with scores."""

    section: ClassVar[str] = "protocol."
    name: str
    """Names the results."""
    reader: str | None = None
    """Which release's file format is read: one of pipelines/judging/releases; null is that of the protocol's name."""
    path: str
    """The release's file or folder, or its address."""
    columns: RatingColumns | None = None
    """What ratings of one's own (the readers `long` and `annotations`) call their columns."""
    tasks: tuple[Task, ...]
    """What is computed."""
    templates: tuple[str, ...] = ()
    """Only ratings and choices of these templates (likert, wl, vote, ...); all where empty."""
    without_skills: tuple[str, ...] = ()
    """Prompts and samples with one of these skills or tags do not count: VQAScore's table 3a has basic skills without
    samples that also need advanced ones."""
    choices: tuple[int, ...] = ()
    """Only these choices of Pick-a-Pic's test_captions.json, by their ids; all where empty."""
    match: Match | None = None
    """What tells that a score and a judgement are of the same image; null takes the ids by which most images meet."""
    statistics: tuple[RatingStatistic, ...] = ("pearson", "spearman", "kendall_b", "pairwise_accuracy")
    """For ratings."""
    rating_range: tuple[float, float] | None = None
    """The least and greatest rating, as [1, 5]."""
    scales: Mapping[str, tuple[float, float]] | None = None
    """The least and greatest rating of templates with other scales than `rating_range`, as {likert: [1, 5]}."""
    out_of_range: Literal["refused", "left_out"] = "refused"
    """Treatment of any other rating: an error, or no rating, with a note."""
    fewer_is_better: tuple[str, ...] = ()
    """Templates whose ratings count errors. Their ratings are turned round on the template's scale: of 0 to 9, 2 errors
    count as a rating of 7."""
    passing_ratings: Mapping[str, float] | None = None
    """By template, the mean rating from which on people pass an image, as {likert: 4}, for `sensitivity` and
    `specificity`; three quarters up the template's scale where it is not said."""
    passing_scores: Mapping[str, float] | None = None
    """By metric, the score from which on it passes an image (down to which, where a lower score is better); where it is
    not said, the one by which as many rated images pass as by people."""
    agreement: tuple[Level, ...] = ()
    """Distances of Krippendorff's alpha; of choices, 1 is for the first of two images and -1 for the second."""
    by_skill: bool = True
    """Adds results by skill."""
    by_generator: bool = False
    """Also judges metrics by the ratings of each generator's images, within each skill too, and by the mean over these
    groups (LLMScore, table 1 and figure 5)."""
    reliable: bool = False
    """Whether only the prompts count on which the raters agree (Gecko, section 4.1)."""
    unsure: Unsure = "left_out"
    """Treatment of pairs of images that people do not decide."""
    equal_scores: EqualScores = "half"
    """Value of a metric's equal scores on pairs that people decide: half a pair, or nothing."""
    alpha: Probability = GECKO_SIGNIFICANCE
    """The level at which two generators are called different."""
    zeros: ZeroHandling = "wilcox"
    """What the signed-rank test does with prompts on which two generators do not differ."""
    conventions: tuple[Convention, ...] = ("published",)
    """Of T2IScoreScore."""
    unpublished: tuple[str, ...] = ()
    """Error graphs that are in no published average, and so not in the convention `published`."""
    falling: tuple[str, ...] = ()
    """Metrics by which a lower score is better; those of a run of ours are known from it and need not be named."""

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
        """The release whose file format is read."""
        return self.reader or self.name


@dataclass(frozen=True, kw_only=True, slots=True)
class MetaevalConfig(ScoresSource):
    """One meta-evaluation."""

    protocol: ProtocolConfig
    output: str | None = None
    """Folder or cloud prefix of the results: judgements, comparisons and orders, as Parquet, Markdown and LaTeX. Null
    is a folder below STORE/metaeval that is named after the protocol, the ratings and the scores."""
    metrics: tuple[str, ...] = ()
    """Only these metrics; all where empty."""
    verbose: bool = False
    """Prints all tables and conventions, which are in files otherwise."""
    sampling: Sampling = field(default_factory=Sampling)
