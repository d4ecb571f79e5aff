"""Configuration of a benchmark: where its tables are, and the names of their columns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal
from urllib.parse import unquote

from plumbline.operators.base import schemas
from plumbline.operators.base.bounds import Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.rows import EDIT_COLUMNS, MASKS, SOURCES
from plumbline.pipelines.base.storage import Roots
from plumbline.pipelines.sources.question_packs import PackConfig

IMAGE_COLUMNS = ("image_id", "prompt_id", "image", "uri")
PROMPT_COLUMNS = ("prompt_id", "text", "skills")
GENERATORS = ("generator", "model", "model_name")
"""Usual names of a column that names each row's generator."""


def generator_of_folder(name: str) -> str:
    """Return the generator in a folder's name; Spark and DuckDB name the folders of partitions COLUMN=GENERATOR."""
    column, mark, value = name.partition("=")
    return unquote(value) if mark and value and column.lower() in GENERATORS else name


def name_generators(folders: Iterable[str]) -> dict[str, str]:
    """Return the generator of each folder; the folders' own names if two folders would have the same generator."""
    named = {folder: generator_of_folder(folder) for folder in folders}
    return named if len({*named.values()}) == len(named) else dict(zip(named, named, strict=True))


PromptsFrom = Literal["tables", "list", "beside", "names", "ids"]
"""Layouts of a folder of image files: where its prompts are (pipelines/ingest/layouts.py)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnsConfig:
    """Names of the columns of the images' tables."""

    image_id: str = "image_id"
    """The image's id; may be absent."""
    prompt_id: str | None = "prompt_id"
    """The id of the image's prompt. If the rows contain their own prompts, it may be absent, or null to be ignored."""
    image: str = "image"
    """Encoded bytes, or the {bytes, path} of Hugging Face datasets."""
    uri: str = "uri"
    """A path or an address, used if `image` is absent or null."""
    source: str | None = None
    """Column of the source of an edited image: encoded bytes, as in `image`. It is in the images' tables, or else in
    the prompts file; null without sources."""
    source_uri: str | None = None
    """The path or address of the source, as in `uri`; in a prompts file also its path relative to the file's folder."""
    mask: str | None = None
    """Column of the mask of an edited image: encoded bytes of a black-and-white image as large as the source, white in
    the area of the edit. Metrics that compare pixels use those outside (plugins/edits/README.md); null without
    masks."""
    mask_uri: str | None = None
    """The path or address of the mask, as of the source."""
    source_caption: str | None = None
    """A description of the source, for metrics that compare the change of the image with the change of the words; a
    column of the images' tables, or else of the prompts file."""
    target_caption: str | None = None
    """A description of the intended edited image."""
    prompt: str = "prompt"
    """The text of the row's own prompt; read only if benchmark.prompts is null."""
    words: str | None = None
    """Column of the prompts file with the texts to be written in a prompt's images: a text, or a list of texts
    (plugins/words_in_images/README.md)."""
    generator: str | None = None
    """Column of each row's generator for jobs.score; null looks for generator, model or model_name."""
    extra: tuple[str, ...] | Literal["*"] = ()
    """Further columns to copy into scores.parquet; "*" copies all except the ids, image and uri."""
    settings: tuple[str, ...] | Mapping[str, str] | None = None
    """The columns with the settings of generation, such as [guidance_scale, steps, lora], or {name: column, ...}; null
    looks for the usual columns (docs/decide.md), [] for none."""

    def __post_init__(self) -> None:
        check_extra([name for name in self.extra if self.extra != "*"])
        if any(getattr(self, name) for name in MASKS) and not self.sources:
            raise ConfigError(
                "benchmark.columns.mask: a mask belongs to a source image; name the sources by "
                "benchmark.columns.source or benchmark.columns.source_uri"
            )

    def renamed(self, *, prompts: bool) -> tuple[tuple[str, str], ...]:
        """Return our name and the file's name of each column with another name in the file.

        The columns of sources, masks and captions are always included, and `prompt` if the rows contain `prompts`.
        """
        prompt = [("prompt", self.prompt)] if prompts else []
        return (*_renamed_columns(self, IMAGE_COLUMNS), *self.edit_columns.items(), *prompt)

    @property
    def sources(self) -> list[str]:
        return [getattr(self, name) for name in SOURCES if getattr(self, name)]

    @property
    def edit_columns(self) -> dict[str, str]:
        """Names in the file of the columns with sources, masks and captions, by our names."""
        return {name: getattr(self, name) for name in EDIT_COLUMNS if getattr(self, name)}


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptColumnsConfig:
    """Names of the columns of the prompts file."""

    prompt_id: str = "prompt_id"
    """The prompt's id; a CSV or JSON file may also call it id, item_id or index, or have none (docs/benchmarks.md)."""
    text: str = "text"
    """The prompt; a CSV or JSON file may also call it prompt, caption or prompt_en (docs/benchmarks.md)."""
    skills: str = "skills"
    """A list of text, or text separated by semicolons; may be absent."""
    where: tuple[str, ...] = ()
    """Conditions COLUMN:VALUE; only prompts that meet all of them are used. A list meets a condition if it contains the
    value."""

    def __post_init__(self) -> None:
        for condition in self.where:
            if not condition.partition(":")[0] or ":" not in condition:
                raise ConfigError(f"benchmark.prompt_columns.where: expected COLUMN:VALUE, got {condition!r}")

    def renamed(self) -> tuple[tuple[str, str], ...]:
        """Return pairs of our name and the file's name of each column whose names differ."""
        return _renamed_columns(self, PROMPT_COLUMNS)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkConfig(PackConfig):
    """The prompts, and the images that each generator made of them."""

    section: ClassVar[str] = "benchmark."
    pack_key: ClassVar[str] = "benchmark.question_pack"
    name: str
    """The benchmark's name, such as genai_bench."""
    prompts: str | None
    """Parquet file or folder, or a .csv, .tsv, .json or .jsonl file, with ids and texts, or a .txt with a text a line,
    whose hashes are the ids; null if the rows of images contain their prompts."""
    images: str | None
    """Folder with a folder of Parquet files for each generator; or the file, or the folder of files, of one generator.
    """
    generators: tuple[str, ...] | Mapping[str, str] | None = None
    """Folders of `images` to use, all by default; or {name: file or folder, ...}, with images=null."""
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    """Names of the columns of the images' tables."""
    prompt_columns: PromptColumnsConfig = field(default_factory=PromptColumnsConfig)
    """Names of the columns of the prompts file."""
    uri_roots: Roots = ()
    """Folders and cloud prefixes below which rows may name images, besides the images' own."""
    prompts_from: PromptsFrom | None = None
    """Layout of the folder of image files that jobs.score is given (docs/ingest.md); null takes the first layout that
    fits. The images' names are taken only from a folder without tables, and if the names of each generator differ."""
    images_inside: str | None = None
    """Name of inner folders: if the folder of image files that jobs.score is given has any of this name, only the
    images in these are scored."""
    require_every_prompt: bool = True
    """True if a missing image of a prompt counts as a failed row."""
    require_every_image: bool = True
    """True if an image of a prompt that `prompts` does not contain counts as a failed row; false leaves such images
    out."""
    limit: Positive | None = None
    """Number of prompts to score, the first in the benchmark's own order, with only their images; limit=N for short."""
    limit_seed: int | None = None
    """Seed to draw the prompts of `limit` in place of the first ones; a higher limit draws the same prompts and more.
    """
    skills: str | None = None
    """Name of a JSON file in the folder of benchmark.prompts with the prompts of each skill, as GenAI-Bench's
    genai_skills.json: {skill: [prompt_id, ...]}. If it is missing, prompts have the skills of their own file."""
    questions: str | None = None
    """The released file or folder with the benchmark's own questions; if it equals benchmark.prompts, the prompts are
    read from it too."""

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
                f"benchmark.prompts_from: expected null together with benchmark.prompts={self.prompts}, "
                f"got {self.prompts_from!r}; set one of them"
            )
        if self.skills is not None and (not self.skills.lower().endswith(".json") or "/" in self.skills):
            raise ConfigError(
                f"benchmark.skills: expected a .json file by its name in benchmark.prompts' folder, got {self.skills!r}"
            )
        if self.columns.words is not None and (self.prompts is None or self.questions is not None):
            # a question pack would replace the questions about words
            other = "questions" if self.questions is not None else "prompts"
            raise ConfigError(
                f"benchmark.columns.words: it is a column of the prompts file; got {self.columns.words!r} with "
                f"benchmark.{other}={getattr(self, other)}; name a prompts file with it, or set it to null"
            )
        for name in self.generators or ():
            if not name or "/" in name:
                raise ConfigError(f"benchmark.generators: expected names without '/', got {name!r}")


def _renamed_columns(config: Any, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, getattr(config, name) or "") for name in names if getattr(config, name) != name)


def check_extra(names: Sequence[str]) -> None:
    """Raise ConfigError for a further column with the name of a column of scores."""
    for name in names:
        if name in schemas.SCORES.names:
            raise ConfigError(
                f"benchmark.columns.extra: scores have a column {name!r} of their own; rename it in the images "
                "tables, or name only the other columns"
            )
