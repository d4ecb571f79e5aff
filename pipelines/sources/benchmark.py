"""Configuration of a benchmark: the location of its tables, and the names of their columns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal
from urllib.parse import unquote

from plumbline.operators.base import schemas
from plumbline.operators.base.bounds import Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.rows import EDIT_COLUMNS, MASK_COLUMNS, SOURCE_COLUMNS
from plumbline.pipelines.base.storage import Roots
from plumbline.pipelines.sources.question_packs import PackConfig

IMAGE_COLUMNS = ("image_id", "prompt_id", "image", "uri")
PROMPT_COLUMNS = ("prompt_id", "text", "skills")
GENERATOR_COLUMNS = ("generator", "model", "model_name")
"""Usual names for the column with each row's generator."""


def parse_generator(name: str) -> str:
    """Return the generator for a folder with this name.

    This is the name itself, or GENERATOR if the name is COLUMN=GENERATOR, as Spark and DuckDB write it.
    """
    column, mark, value = name.partition("=")
    return unquote(value) if mark and value and column.lower() in GENERATOR_COLUMNS else name


def name_generators(folders: Iterable[str]) -> dict[str, str]:
    """Return the generator of each folder, or the folders' own names if two folders would have the same generator."""
    named = {folder: parse_generator(folder) for folder in folders}
    return named if len({*named.values()}) == len(named) else dict(zip(named, named, strict=True))


PromptsFrom = Literal["tables", "list", "beside", "names", "ids"]
"""Layouts of a folder of image files; each stores the prompts in a different way (pipelines/ingest/layouts.py)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnsConfig:
    """Names of columns in the image tables."""

    image_id: str = "image_id"
    """The image's id; the column is optional."""
    prompt_id: str | None = "prompt_id"
    """The id of the image's prompt. If the rows contain their own prompts, the column is optional, and null ignores it.
    """
    image: str = "image"
    """Encoded image bytes, or {bytes, path} as in Hugging Face datasets."""
    uri: str = "uri"
    """A path or an address of an image, used if `image` is absent or null."""
    source: str | None = None
    """Column with the source of an edited image: encoded bytes, as in `image`. It can be in the image tables or in the
    prompts file; null for images that are not edits.
    """
    source_uri: str | None = None
    """The path or address of the source, as in `uri`; in a prompts file, the path may also be relative to the file's
    folder.
    """
    mask: str | None = None
    """Column with the mask of an edited image: encoded bytes of a black-and-white image of the same size as the source,
    white in the edited area. Metrics that compare pixels use only the pixels outside this area
    (plugins/edits/README.md); null for edits without masks.
    """
    mask_uri: str | None = None
    """The path or address of the mask, in the same form as for the source."""
    source_caption: str | None = None
    """A description of the source, for metrics that compare the change in the image with the change in the caption. The
    column can be in the image tables or in the prompts file.
    """
    target_caption: str | None = None
    """A description of the edited image as it should be."""
    prompt: str = "prompt"
    """The text of the row's own prompt; used only if benchmark.prompts is null."""
    words: str | None = None
    """Column of the prompts file with the text that should be written in a prompt's images: a string or a list of
    strings (plugins/words_in_images/README.md).
    """
    generator: str | None = None
    """Column with each row's generator for jobs.score; null tries generator, model and model_name."""
    extra: tuple[str, ...] | Literal["*"] = ()
    """Further columns to copy into scores.parquet; "*" copies all except the ids, image and uri."""
    settings: tuple[str, ...] | Mapping[str, str] | None = None
    """The columns with generation settings, such as [guidance_scale, steps, lora], or {name: column, ...}; null tries
    the usual column names (docs/decide.md), [] uses none.
    """

    def __post_init__(self) -> None:
        check_extra_columns([name for name in self.extra if self.extra != "*"])
        if any(getattr(self, name) for name in MASK_COLUMNS) and not self.sources:
            raise ConfigError(
                "benchmark.columns.mask: a mask belongs to a source image; set benchmark.columns.source "
                "or benchmark.columns.source_uri"
            )

    def list_renamed_columns(self, *, prompts: bool) -> tuple[tuple[str, str], ...]:
        """Return pairs of our name and the file's name for each column that has a different name in the file.

        The configured columns for sources, masks and captions are always included. `prompts` is True if the rows
        contain their own prompts; then `prompt` is included, too.
        """
        prompt = [("prompt", self.prompt)] if prompts else []
        return (*_list_renamed_columns(self, IMAGE_COLUMNS), *self.edit_columns.items(), *prompt)

    @property
    def sources(self) -> list[str]:
        return [getattr(self, name) for name in SOURCE_COLUMNS if getattr(self, name)]

    @property
    def edit_columns(self) -> dict[str, str]:
        """The file's names for the columns with sources, masks and captions, by our names."""
        return {name: getattr(self, name) for name in EDIT_COLUMNS if getattr(self, name)}


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptColumnsConfig:
    """Names of columns in the prompts file."""

    prompt_id: str = "prompt_id"
    """The prompt's id. In a CSV or JSON file the column may also be called id, item_id or index, or be absent
    (docs/benchmarks.md).
    """
    text: str = "text"
    """The prompt. In a CSV or JSON file the column may also be called prompt, caption or prompt_en
    (docs/benchmarks.md).
    """
    skills: str = "skills"
    """A list of strings, or one string separated by semicolons; the column is optional."""
    where: tuple[str, ...] = ()
    """Conditions of the form COLUMN:VALUE; only prompts that meet all of them are used. A list meets a condition if it
    contains the value.
    """

    def __post_init__(self) -> None:
        for condition in self.where:
            if not condition.partition(":")[0] or ":" not in condition:
                raise ConfigError(f"benchmark.prompt_columns.where: expected COLUMN:VALUE, got {condition!r}")

    def list_renamed_columns(self) -> tuple[tuple[str, str], ...]:
        """Return each column that has a different name in the file, as (our name, the file's name)."""
        return _list_renamed_columns(self, PROMPT_COLUMNS)


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkConfig(PackConfig):
    """The prompts, and the images that each generator made from them."""

    section: ClassVar[str] = "benchmark."
    pack_key: ClassVar[str] = "benchmark.question_pack"
    name: str
    """The benchmark's name, such as genai_bench."""
    prompts: str | None
    """Parquet file or folder, or a .csv, .tsv, .json or .jsonl file, with ids and texts; or a .txt with one prompt per
    line, whose hashes become the ids. null if the image tables contain their own prompts.
    """
    images: str | None
    """Folder with a subfolder of Parquet files for each generator; or the file, or folder of files, of a single
    generator.
    """
    generators: tuple[str, ...] | Mapping[str, str] | None = None
    """Subfolders of `images` to use, by default all; or {name: file or folder, ...}, with images=null."""
    columns: ColumnsConfig = field(default_factory=ColumnsConfig)
    """Names of columns in the image tables."""
    prompt_columns: PromptColumnsConfig = field(default_factory=PromptColumnsConfig)
    """Names of columns in the prompts file."""
    uri_roots: Roots = ()
    """Additional folders and cloud prefixes that rows may reference images from, besides the folders of the images.
    """
    prompts_from: PromptsFrom | None = None
    """Layout of the folder of image files that is passed to jobs.score (docs/ingest.md); null uses the first layout
    that fits. Image names are used as prompts only if the folder has no tables and the names of each generator differ.
    """
    images_inside: str | None = None
    """Name of the subfolders to score: if the folder of image files that is passed to jobs.score contains subfolders
    with this name, all other images are skipped.
    """
    require_every_prompt: bool = True
    """True to count each missing image of a prompt as a failed row."""
    require_every_image: bool = True
    """True to count an image whose prompt is not in `prompts` as a failed row; false to ignore such images."""
    limit: Positive | None = None
    """Number of prompts to score, the first in the benchmark's own order, together with their images. Short form:
    limit=N.
    """
    limit_seed: int | None = None
    """Seed for choosing the prompts of `limit` at random; null takes the first prompts. A higher limit chooses the same
    prompts and more.
    """
    skills: str | None = None
    """Name of a JSON file, in the folder of benchmark.prompts, that lists the prompts of each skill, like GenAI-Bench's
    genai_skills.json: {skill: [prompt_id, ...]}. If the file is missing, skills are read from the prompts file.
    """
    questions: str | None = None
    """The released file or folder with the benchmark's own questions; if it is the same as benchmark.prompts, the
    prompts are read from it too.
    """

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
                "benchmark.columns.prompt_id: expected a name, got None; null is only allowed with "
                "benchmark.prompts=null"
            )
        if self.prompts is not None and self.prompts_from is not None:
            raise ConfigError(
                f"benchmark.prompts_from: expected null together with benchmark.prompts={self.prompts}, "
                f"got {self.prompts_from!r}; set one of them"
            )
        if self.skills is not None and (not self.skills.lower().endswith(".json") or "/" in self.skills):
            raise ConfigError(
                f"benchmark.skills: expected the name of a .json file in the folder of benchmark.prompts, got "
                f"{self.skills!r}; move the file there and set only its name"
            )
        if self.columns.words is not None and (self.prompts is None or self.questions is not None):
            # a question pack would replace the questions about words
            other = "questions" if self.questions is not None else "prompts"
            raise ConfigError(
                f"benchmark.columns.words: requires a prompts file with the column {self.columns.words!r} and "
                f"benchmark.questions=null, got benchmark.{other}={getattr(self, other)}; change benchmark.{other}, or "
                "set benchmark.columns.words=null"
            )
        for name in self.generators or ():
            if not name or "/" in name:
                raise ConfigError(f"benchmark.generators: expected names without '/', got {name!r}")


def _list_renamed_columns(config: Any, names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, getattr(config, name) or "") for name in names if getattr(config, name) != name)


def check_extra_columns(names: Sequence[str]) -> None:
    """Raise ConfigError if an extra column has the same name as a column of the scores."""
    for name in names:
        if name in schemas.SCORES.names:
            raise ConfigError(
                f"benchmark.columns.extra: the scores already have a column {name!r}; rename yours in the images "
                "tables, or list only the other columns"
            )
