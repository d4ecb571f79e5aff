"""What a benchmark's tables are called and where they lie, as a configuration says it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal
from urllib.parse import unquote

from plumbline.operators.base import schemas
from plumbline.operators.base.bounds import Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.rows import BESIDE, MASKS, SOURCES
from plumbline.pipelines.base.storage import Roots
from plumbline.pipelines.sources.question_packs import PackConfig

IMAGE_COLUMNS = ("image_id", "prompt_id", "image", "uri")
PROMPT_COLUMNS = ("prompt_id", "text", "skills")
GENERATORS = ("generator", "model", "model_name")
"""Usual names of a column that names each row's generator."""


def generator_of_folder(name: str) -> str:
    """Return the generator of a folder's name, which may name a column, as Spark and DuckDB write partitions."""
    column, mark, value = name.partition("=")
    return unquote(value) if mark and value and column.lower() in GENERATORS else name


def name_generators(folders: Iterable[str]) -> dict[str, str]:
    """Return the generator of each folder; the folders' own names if two would be of one."""
    named = {folder: generator_of_folder(folder) for folder in folders}
    return named if len({*named.values()}) == len(named) else dict(zip(named, named, strict=True))


PromptsFrom = Literal["tables", "list", "beside", "names", "ids"]
"""Ways in which a folder of image files tells their prompts (pipelines/ingest/layouts.py)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnsConfig:
    """What the columns of the images tables are called."""

    image_id: str = "image_id"
    """The image's own name; may be absent."""
    prompt_id: str | None = "prompt_id"
    """The prompt that it was made of; where rows hold their own prompts it may be absent, or null to be ignored."""
    image: str = "image"
    """Encoded bytes, or the {bytes, path} of Hugging Face datasets."""
    uri: str = "uri"
    """A path or an address, where `image` is absent or null."""
    source: str | None = None
    """Of edited images, the encoded bytes of the image that each was edited from, as in `image`; of the images' tables,
    or else of the prompts file. Null where there are none."""
    source_uri: str | None = None
    """The path or address of that image, as in `uri`; in a prompts file also its path from the file's folder."""
    mask: str | None = None
    """Of edited images, the encoded bytes of a black-and-white picture as large as the source, white where the edit
    is: metrics that compare pixels count those outside (docs/edits.md); null where there are none."""
    mask_uri: str | None = None
    """The path or address of that picture, as of the source."""
    source_caption: str | None = None
    """What the source shows, in words, for metrics that compare the change of the image with that of the words; of the
    images' tables, or else of the prompts file."""
    target_caption: str | None = None
    """What the edited image was to show."""
    prompt: str = "prompt"
    """The text of the row's own prompt; read only where benchmark.prompts is null."""
    words: str | None = None
    """Of the prompts file, what is to be written in a prompt's images: a text, or a list of texts (docs/words-in-
    pictures.md)."""
    generator: str | None = None
    """What jobs.score takes each row's generator from; null looks for generator, model or model_name."""
    extra: tuple[str, ...] | Literal["*"] = ()
    """Further columns that scores.parquet gets after its own; "*" takes all but the ids, image and uri."""

    settings: tuple[str, ...] | Mapping[str, str] | None = None
    """The columns with what an image was generated with, such as [guidance_scale, steps, lora], or {name: column, ...};
    null looks for the usual ones (docs/decide.md), [] for none."""

    def __post_init__(self) -> None:
        check_extra([name for name in self.extra if self.extra != "*"])
        if any(getattr(self, name) for name in MASKS) and not self.sources:
            raise ConfigError(
                "benchmark.columns.mask: it says where the source was edited; name the sources by "
                "benchmark.columns.source or benchmark.columns.source_uri"
            )

    def renamed(self, *, prompts: bool) -> tuple[tuple[str, str], ...]:
        """Our names with the files' own, where they differ; `prompt` always, where the rows hold their `prompts`, and
        those of sources, masks and captions, where there are any."""
        prompt = [("prompt", self.prompt)] if prompts else []
        return (*_renamed(self, IMAGE_COLUMNS), *self.beside.items(), *prompt)

    @property
    def sources(self) -> list[str]:
        """The files' own names of the columns with sources, where they have any."""
        return [getattr(self, name) for name in SOURCES if getattr(self, name)]

    @property
    def beside(self) -> dict[str, str]:
        """Our names of those and of the columns with masks and captions with the files' own."""
        return {name: getattr(self, name) for name in BESIDE if getattr(self, name)}


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptColumnsConfig:
    """What the columns of the prompts file are called."""

    prompt_id: str = "prompt_id"
    """The prompt's own name; a CSV or JSON file may also call it id, item_id or index, or have none
    (docs/benchmarks.md)."""
    text: str = "text"
    """The prompt; a CSV or JSON file may also call it prompt, caption or prompt_en (docs/benchmarks.md)."""
    skills: str = "skills"
    """A list of text, or text with semicolons between them; may be absent."""
    where: tuple[str, ...] = ()
    """Only the prompts whose columns have these values, or lists with them, as COLUMN:VALUE; all where empty."""

    def __post_init__(self) -> None:
        for condition in self.where:
            if not condition.partition(":")[0] or ":" not in condition:
                raise ConfigError(f"benchmark.prompt_columns.where: expected COLUMN:VALUE, got {condition!r}")

    def renamed(self) -> tuple[tuple[str, str], ...]:
        """Our names with the file's own, where they differ."""
        return _renamed(self, PROMPT_COLUMNS)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkConfig(PackConfig):
    """The prompts, and the images that each generator made of them."""

    section: ClassVar[str] = "benchmark."
    pack_key: ClassVar[str] = "benchmark.question_pack"
    name: str
    """The benchmark's name, such as genai_bench."""
    prompts: str | None
    """Parquet file or folder, or a .csv, .tsv, .json or .jsonl file, with ids and texts, or a .txt with a text a line,
    whose hashes are the ids; null where the rows hold them."""
    images: str | None
    """Folder with one folder of Parquet files per generator; or one generator's file, or folder of files."""
    generators: tuple[str, ...] | Mapping[str, str] | None = None
    """Which folders of `images` to take, all by default; or {name: file or folder, ...}, with images=null."""
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    """What the images tables call their columns."""
    prompt_columns: PromptColumnsConfig = field(default_factory=PromptColumnsConfig)
    """What the prompts file calls its columns."""
    uri_roots: Roots = ()
    """Folders and cloud prefixes that rows may name images below, besides the images' own."""
    prompts_from: PromptsFrom | None = None
    """How the folder of image files that jobs.score is given tells their prompts (docs/ingest.md); null looks for the
    first way that does, and takes the images' names only where no table lies there and each generator's names
    differ."""
    images_inside: str | None = None
    """Of the folder of image files that jobs.score is given, only those in inner folders of this name are taken, where
    any lies in one."""
    require_every_prompt: bool = True
    """Whether a generator without an image of some prompt counts as a failed row."""
    require_every_image: bool = True
    """Whether an image of a prompt that `prompts` does not have counts as a failed row, and is not left out."""
    limit: Positive | None = None
    """How many prompts are scored, the first in the benchmark's own order, and the images of these alone; limit=N for
    short."""
    limit_seed: int | None = None
    """A seed draws the prompts of `limit` in place of the first ones: of a higher limit the same and others."""
    skills: str | None = None
    """Name of a JSON file in the folder of benchmark.prompts with the prompts of each skill, as GenAI-Bench's
    genai_skills.json: {skill: [prompt_id, ...]}. If it is missing, prompts have the skills of their own file."""
    questions: str | None = None
    """The released file or folder with the benchmark's own questions; where it is benchmark.prompts too, prompts are
    read of it."""

    def __post_init__(self) -> None:
        PackConfig.__post_init__(self)
        for key in ("images", "prompts", "questions"):
            if (value := getattr(self, key)) is not None and not value.strip():
                raise ConfigError(f"benchmark.{key}: expected a path or an address, got {value!r}; write {key}=PATH")
        if not self.name or "/" in self.name:
            raise ConfigError(f"benchmark.name: expected a name without '/', got {self.name!r}")
        if isinstance(self.generators, Mapping) == (self.images is not None):
            raise ConfigError(
                "benchmark: expected either images, or generators as {name: path}, "
                f"got images={self.images!r} and generators={self.generators!r}; set one of them to null"
            )
        if self.prompts is not None and self.columns.prompt_id is None:
            raise ConfigError(
                "benchmark.columns.prompt_id: expected a name, got None; null fits benchmark.prompts=null"
            )
        if self.prompts is not None and self.prompts_from is not None:
            raise ConfigError(
                f"benchmark.prompts_from: expected null beside benchmark.prompts={self.prompts}, "
                f"got {self.prompts_from!r}; set one of them"
            )
        if self.skills is not None and (not self.skills.lower().endswith(".json") or "/" in self.skills):
            raise ConfigError(
                f"benchmark.skills: expected a .json file by its name in benchmark.prompts' folder, got {self.skills!r}"
            )
        self._check_words()
        for name in self.generators or ():
            if not name or "/" in name:
                raise ConfigError(f"benchmark.generators: expected names without '/', got {name!r}")

    def _check_words(self) -> None:
        """Raises ConfigError for a column of words that no file can have, or that a question pack would overrule."""
        beside = "questions" if self.questions is not None else "prompts"
        if self.columns.words is not None and (self.prompts is None or self.questions is not None):
            raise ConfigError(
                f"benchmark.columns.words: it is a column of the prompts file; got {self.columns.words!r} beside "
                f"benchmark.{beside}={getattr(self, beside)}; name a prompts file with it, or set it to null"
            )


def _renamed(config: Any, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, getattr(config, name) or "") for name in names if getattr(config, name) != name)


def check_extra(names: Sequence[str]) -> None:
    """Raises ConfigError for a further column that scores have already."""
    for name in names:
        if name in schemas.SCORES.names:
            raise ConfigError(
                f"benchmark.columns.extra: scores have a column {name!r} of their own; rename it in the images "
                "tables, or name only the other columns"
            )
