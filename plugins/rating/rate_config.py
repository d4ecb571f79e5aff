"""What a study asks and how it is served, as a configuration says it."""

from dataclasses import dataclass, field
from typing import Literal

from plumbline.operators.base.bounds import BoundsChecked, Positive, Probability, Share
from plumbline.operators.base.errors import ConfigError, check_known
from plumbline.operators.statistics.levels import SIGNIFICANCE
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.web.listening import check_address
from plumbline.plugins.rating.question_templates import TEMPLATES
from plumbline.plugins.rating.queue import Order

ToolName = Literal["label_studio", "argilla"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RateConfig(BoundsChecked):
    """Which study to serve; what is left out of its design stays as the study has it."""

    study: str | None = None
    """The study's folder, or its address; a name alone means STORE/studies/NAME. Null names it after the run or the
    folder of images."""
    store: str = "store"
    """Folder or cloud prefix of the store."""
    run: str | None = None
    """The run whose images are rated: its id or `latest`. Null keeps the study's; a new study takes the newest."""
    images: str | None = None
    """Rates these images with their prompts instead of a run's; anything that jobs.score takes."""
    templates: tuple[str, ...] | None = None
    """The questions that raters answer: likert, genai_bench, gecko_likert, llmscore_overall, llmscore_errors, words,
    questions, side_by_side, vote. Null keeps the study's; a new study asks likert."""
    generators: tuple[str, ...] | None = None
    """The generators whose images are rated, as [a, b]. Null keeps the study's; a new study takes all."""
    pictures: Positive | None = None
    """How many prompts to draw, by `seed`; a larger number keeps the prompts drawn before. Null keeps the study's; a
    new study takes all."""
    questions: str | None = None
    """The run's metric whose yes-no questions are asked. Null keeps the study's; a new study takes the first metric
    that has any."""
    seed: int | None = None
    """Draws the prompts and each rater's order. Null keeps the study's; a new study takes 0."""
    raters: Positive = 3
    """How many raters answer each task."""
    repeats: Share = 0.05
    """Share of a rater's tasks that the same rater answered before, at least 20 tasks earlier; shows how consistent
    each rater is."""
    gold: str | None = None
    """A table (CSV, Parquet) of tasks whose right answer is known, with template, answer, and prompt_id and generator,
    or image_id. Every rater gets them among the others; they do not count as ratings. Null keeps the study's."""
    queue: Order = "seeded"
    """`seeded` asks in random order; `labels` first asks the tasks that tell generators apart soonest, as jobs.labels
    lists them."""
    stop: bool = False
    """With queue=labels: ends the study once every pair of generators is told apart."""
    metrics: tuple[str, ...] = ()
    """The run's metric whose scores sharpen what people say, as [vqascore]. If left out, queue=labels takes the first
    one and queue=seeded none."""
    alpha: Probability = SIGNIFICANCE
    """The probability of error of all intervals together, which share it evenly, however often one looks."""
    chance: Probability = 0.8
    """The probability that the answers asked for show a difference, if it is as large as it seems so far."""
    export_to: ToolName | None = None
    """Writes the tasks as files for Label Studio or Argilla instead of serving them."""
    import_from: str | None = None
    """Takes in the answers from that tool's export file instead of serving."""
    host: str = "127.0.0.1"
    """Where it listens; a host that others reach needs a token."""
    hosts: tuple[str, ...] = ()
    """Names by which it is asked beside this machine's own and `host`, as [rate.example.org] behind a reverse proxy;
    ["*"] is any."""
    port: int = 8009
    """The port that it listens on; 0 is any that is free."""
    token_variable: str = "PLUMBLINE_TOKEN"
    """The environment variable that holds the token, which a browser asks for as a password."""
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        check_address(self.port, self.hosts)
        for name in self.templates or ():
            check_known("templates", name, TEMPLATES)
        if self.templates == ():
            raise ConfigError(f"templates: expected some of {', '.join(TEMPLATES)}, got none")
        if len(self.metrics) > 1:
            raise ConfigError(
                f"metrics: expected one, got {', '.join(self.metrics)}; name it, as in metrics=[vqascore]"
            )
        if self.stop and self.queue != "labels":
            raise ConfigError("stop: only queue=labels knows when to; set it too, or leave stop out")
        if self.export_to is not None and self.import_from is not None:
            raise ConfigError(f"export_to: expected it or import_from, got both; export to {self.export_to} first")
        if self.run is not None and self.images is not None:
            raise ConfigError(f"run: expected a run or images, got {self.run!r} beside images={self.images}; name one")
