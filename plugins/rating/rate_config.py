"""Configuration of a study and its server."""

from dataclasses import dataclass, field
from typing import Literal

from plumbline.operators.base.bounds import BoundsChecked, Positive, Probability, Share
from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.web.listening import check_address
from plumbline.plugins.rating.question_templates import TEMPLATES
from plumbline.plugins.rating.queue import QueueOrder

ToolName = Literal["label_studio", "argilla"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RateConfig(BoundsChecked):
    """Options of a study and its server. Options that determine the tasks can be null to keep a study's values."""

    study: str | None = None
    """The study's folder or URL; a bare name means STORE/studies/NAME. If null, the study is named after the run or the
    folder of images.
    """
    store: str = "store"
    """Folder or cloud prefix of the store."""
    run: str | None = None
    """The run whose images are rated: its id or `latest`. Null keeps the study's run; a new study uses the newest run.
    """
    images: str | None = None
    """Rate these images and prompts instead of a run's, in any form that jobs.score accepts."""
    templates: tuple[str, ...] | None = None
    """The questions that raters answer: likert, genai_bench, gecko_likert, llmscore_overall, llmscore_errors, words,
    questions, side_by_side, vote. Null keeps the study's templates; a new study uses likert.
    """
    generators: tuple[str, ...] | None = None
    """The generators whose images are rated, as [a, b]. Null keeps the study's generators; a new study uses all."""
    pictures: Positive | None = None
    """Number of prompts to draw at random by `seed`; a larger number keeps the prompts drawn before. Null keeps the
    study's number; a new study uses all prompts.
    """
    questions: str | None = None
    """The metric of the run whose yes-no questions are asked. Null keeps the study's metric; a new study uses the first
    metric that has such questions.
    """
    seed: int | None = None
    """Seed for drawing the prompts and each rater's order. Null keeps the study's seed; a new study uses 0."""
    raters: Positive = 3
    """Number of raters who answer each task."""
    repeats: Share = 0.05
    """Fraction of a rater's tasks that repeat a task from at least 20 tasks earlier, to show how consistent the rater
    is.
    """
    gold: str | None = None
    """A table (CSV, Parquet) of tasks with a known answer: template, answer, and prompt_id and generator, or image_id.
    They are mixed into every rater's tasks and do not count as ratings. Null keeps the study's table.
    """
    queue: QueueOrder = "seeded"
    """`seeded` asks the tasks in random order; `labels` starts with those that decide pairs of generators soonest, as
    listed by jobs.labels.
    """
    stop: bool = False
    """End the study when every pair of generators is decided; needs queue=labels."""
    metrics: tuple[str, ...] = ()
    """The metric of the run whose scores narrow the intervals (prediction-powered), such as [vqascore]. The default
    with queue=labels is the run's first metric; queue=seeded uses none by default.
    """
    alpha: Probability = SIGNIFICANCE
    """Probability that any interval is wrong, shared evenly by all pairs and valid no matter how often you check."""
    chance: Probability = 0.8
    """Probability that the requested answers show a difference, assuming that it is as large as measured."""
    export_to: ToolName | None = None
    """Write the tasks as files for Label Studio or Argilla instead of serving them."""
    import_from: str | None = None
    """Import the answers from an export file of Label Studio or Argilla instead of serving the study."""
    host: str = "127.0.0.1"
    """Address to listen on; an address that other machines can reach needs a token."""
    hosts: tuple[str, ...] = ()
    """Host names to accept besides this machine's own and `host`, such as [rate.example.org] behind a reverse proxy;
    ["*"] accepts any."""
    port: int = 8009
    """Port to listen on; 0 chooses a free port."""
    token_variable: str = "PLUMBLINE_TOKEN"
    """The environment variable that contains the token, which the browser asks for as a password."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        check_address(self.port, self.hosts)
        for name in self.templates or ():
            check_known("templates", name, TEMPLATES)
        if self.templates == ():
            raise ConfigError(f"templates: expected at least one of {', '.join(TEMPLATES)}, got none; name one")
        if len(self.metrics) > 1:
            raise ConfigError(
                f"metrics: expected one, such as metrics=[vqascore], got {', '.join(self.metrics)}; choose one"
            )
        if self.stop and self.queue != "labels":
            raise ConfigError(
                "stop: needs queue=labels, which decides when to stop; set queue=labels, or leave stop out"
            )
        if self.export_to is not None and self.import_from is not None:
            raise ConfigError(
                f"export_to: expected export_to or import_from, got both; export to {self.export_to} first"
            )
        if self.run is not None and self.images is not None:
            raise ConfigError(f"run: expected a run or images, got {self.run!r} and images={self.images}; name one")
