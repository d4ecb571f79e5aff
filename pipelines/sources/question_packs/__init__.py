"""The question packs by name, each with the function that reads its released files."""

from dataclasses import dataclass

from plumbline.operators.errors import SourceError
from plumbline.operators.extensions import Extensions
from plumbline.pipelines.base.storage import Place, readable_errors
from plumbline.pipelines.cells.cells import digest
from plumbline.pipelines.sources.question_packs.pack import Convention, PackReader, QuestionPack, gather

PACKS = Extensions[PackReader](
    "question_packs",
    {
        **{name: f"{__name__}.dependent:read_{name}" for name in ("dpg_bench", "dsg_1k", "oneig", "oneig_zh")},
        **{
            name: f"{__name__}.independent:read_{name}"
            for name in ("geneval2", "tifa_v1", "unigenbench", "wise_verified")
        },
    },
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackFile:
    """Where a benchmark's own questions are, and how they are read."""

    pack: str
    """One of PACKS."""
    place: Place
    convention: Convention = "released"
    digest: str = ""
    """Of what was read when the run was planned; empty where nothing has been read yet."""


def read_pack(file: PackFile, suite: str) -> QuestionPack:
    """What the file holds; raises ConfigError where it cannot be had and SourceError where it is not what was planned.

    A row that cannot be read is one of the pack's `problems` and costs nothing else.
    """
    with readable_errors(file.place, "benchmark.questions"):
        pack = gather(PACKS[file.pack](file.place, file.convention), suite)
    if file.digest and pack_digest(pack) != file.digest:
        raise SourceError(
            f"{file.place}: the questions have changed since the run was planned; run again: the plan is made anew"
        )
    return pack


def pack_digest(pack: QuestionPack) -> str:
    """The digest of all in a pack that can change a result."""
    return digest(pack.questions.to_pylist())
