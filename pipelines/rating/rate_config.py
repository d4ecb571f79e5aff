"""What a study asks and how it is served, as a configuration says it."""

from dataclasses import dataclass, field
from typing import Literal

from plumbline.operators.bounds import Checked, Positive, Probability, Share
from plumbline.operators.errors import ConfigError, check_known
from plumbline.operators.rating.queue import Order
from plumbline.operators.rating.templates import TEMPLATES
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.serving.listening import check_address

ToolName = Literal["label_studio", "argilla"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RateConfig(Checked):
    """Which study to serve; what is left out of its design stays as the study has it."""

    study: str | None = None
    """The study's folder, local or s3://; a name alone is a folder of STORE/studies. Null is called as the run, or as
    the folder of images."""
    store: str = "store"
    """Folder or s3:// prefix of the store."""
    run: str | None = None
    """Whose images are rated: a run's id or `latest`; null is the study's own, for a new study the newest."""
    images: str | None = None
    """Images with their prompts in place of a run's, as jobs.score takes them."""
    templates: tuple[str, ...] | None = None
    """What is asked: likert, words, questions, side_by_side, vote; null is as the study has it, for a new one
    likert."""
    generators: tuple[str, ...] | None = None
    """Whose images, as [a, b]; null is as the study has it, for a new one all."""
    pictures: Positive | None = None
    """Of how many prompts, drawn by `seed`; more keep those drawn before. Null is as the study has it, for a new one
    all."""
    questions: str | None = None
    """The metric of the run whose yes-no questions are asked; null is as the study has it, for a new one the first that
    has any."""
    seed: int | None = None
    """Of which prompts are drawn, and of each rater's order; null is as the study has it, for a new one 0."""
    raters: Positive = 3
    """Answers wanted to each task, each by another rater."""
    repeats: Share = 0.05
    """Share of what a rater is asked that the rater has answered before, at least 20 tasks ago, which shows how far a
    rater agrees with himself or herself."""
    gold: str | None = None
    """A table (CSV, Parquet) of tasks whose right answer is known: template, prompt_id and generator, or image_id,
    answer. Each rater gets them among the others, and they are no ratings. Null is as the study has it."""
    queue: Order = "seeded"
    """What is asked first: `seeded` asks in random order; `labels` first asks what tells generators apart soonest, as
    jobs.labels does."""
    stop: bool = False
    """Whether the study ends where every pair of generators is told apart; with queue=labels."""
    metrics: tuple[str, ...] = ()
    """The one of the run whose scores stand beside what people say, as [vqascore]; where it is left out the first for
    queue=labels, else none."""
    alpha: Probability = 0.05
    """The probability of error of all intervals together, which share it evenly, however often one looks."""
    chance: Probability = 0.8
    """With which the answers that are asked for show a difference, if it is what it seems."""
    export_to: ToolName | None = None
    """Writes the tasks for raters in Label Studio or Argilla in place of serving them."""
    import_from: str | None = None
    """Takes in the answers of an export of that tool, its file, in place of serving."""
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
        Checked.__post_init__(self)
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
