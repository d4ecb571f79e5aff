"""Question packs by name, each with the function that reads its released files."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from plumbline.operators.base.bounds import BoundsChecked
from plumbline.operators.base.errors import ConfigError, SourceError, check_known
from plumbline.operators.base.extensions import Extensions
from plumbline.operators.metrics.metric import Metric, PackedMetric
from plumbline.pipelines.base.storage import Place, StorageConfig, convert_read_errors
from plumbline.pipelines.sources.question_packs.pack import (
    Convention,
    PackReader,
    PackRows,
    QuestionPack,
    gather_questions,
)
from plumbline.pipelines.store.cells import digest

PACKS = Extensions[PackReader](
    "question_packs", {name: f"{__name__}.papers:read_{name}" for name in ("dsg_1k", "tifa_v1")}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackConfig(BoundsChecked):
    """Options that specify a benchmark's own questions."""

    section: ClassVar[str] = "pack."
    pack_key: ClassVar[str] = "pack.question_pack"
    questions: str | None = None
    """The released file or folder with the benchmark's own questions."""
    question_pack: str | None = None
    """Format of the release; docs/questions.md lists the formats."""
    convention: Convention = "released"
    """`released` reads the questions as the release's own code does, bugs included; `fixed` reads them as intended
    (docs/questions.md).
    """

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if (self.questions is None) != (self.question_pack is None):
            raise ConfigError(
                f"{self.section.rstrip('.')}: expected questions and question_pack together, "
                f"got questions={self.questions!r} and question_pack={self.question_pack!r}; set both or neither"
            )
        if self.question_pack is not None:
            check_known(self.pack_key, self.question_pack, PACKS)

    def find_pack_file(self, storage: StorageConfig) -> "PackFile | None":
        """Return the configured question pack, or None if no questions are configured."""
        if self.questions is None or self.question_pack is None:
            return None
        place, key = storage.locate(self.questions), self.format_key("questions")
        return PackFile(pack=self.question_pack, place=place, convention=self.convention, key=key)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackFile:
    """The file or folder of a benchmark's own questions, with the name of its format."""

    by_prompt: ClassVar[bool] = False
    """True if a changed question invalidates only the cells of shards with its prompt, and not all cells."""
    pack: str
    """A key of PACKS."""
    place: Place
    convention: Convention = "released"
    key: str = "benchmark.questions"
    """The option that specifies the file."""
    digest: str = ""
    """Digest of the questions at the time the run was planned; empty if they have not been read yet."""

    def rows(self) -> PackRows:
        return PACKS[self.pack](self.place, self.convention)


def read_pack(file: PackFile, suite: str) -> QuestionPack:
    """Read the questions; an unreadable row becomes one of the pack's `problems` and affects nothing else.

    Raise ConfigError if the file cannot be read, and SourceError if the questions have changed since the run was
    planned.
    """
    with convert_read_errors(file.place, file.key):
        pack = gather_questions(file.rows(), suite)
    if file.digest and digest_pack(pack) != file.digest:
        raise SourceError(
            f"{file.place}: the questions have changed since the run was planned; run again to make a new plan"
        )
    return pack


def check_choices(metrics: Mapping[str, Metric], choices: Collection[int], where: str) -> None:
    """Raise ConfigError if a metric cannot use questions with these numbers of choices."""
    for name, metric in metrics.items():
        refusal = metric.explain_pack_refusal(choices) if isinstance(metric, PackedMetric) else None
        if refusal is not None:
            raise ConfigError(f"metrics.{name}: with the questions of {where}, {refusal}")


def digest_pack(pack: QuestionPack) -> str:
    """Return the digest of everything in a pack that can change a result."""
    return digest(pack.questions.to_pylist())
