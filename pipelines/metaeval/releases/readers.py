"""Readers of releases by name, and the reader of users' own ratings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.extensions import Extensions
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.releases.release import LIKERT, Release, column_ratings, released, skills_of
from plumbline.pipelines.metaeval.releases.sheets import Sheet, read_sheet


@dataclass(frozen=True, kw_only=True, slots=True)
class RatingColumns:
    """Names of the columns of a table of ratings, or of the fields of an annotation tool's export."""

    image_id: str = "image_id"
    """Id of the image; prompt_id and generator together can replace it."""
    prompt_id: str = "prompt_id"
    """Prompt that the image was made from."""
    generator: str = "generator"
    """Generator of the image."""
    rater: str = "rater"
    """Name of the rater; may be absent."""
    template: str = "template"
    """Template that was answered; may be absent."""
    rating: str = "rating"
    """Rating; empty if the rater was unsure. In Label Studio's JSON-MIN, the name of Choices."""
    skills: str = "skills"
    """Skills of the prompt, as a list, or in a CSV separated by semicolons; may be absent."""
    prompt: str = "prompt"
    """Text whose words are marked (exports only)."""
    question_id: str = "question_id"
    """Question, if there are several about an image, whose answers are averaged (exports only)."""
    image_a: str = "image_a"
    """First (left) of two images; prompt_id and generator_a can replace it (exports only)."""
    image_b: str = "image_b"
    """Second (right) of two images; prompt_id and generator_b can replace it (exports only)."""
    generator_a: str = "generator_a"
    """Generator of the first image (exports only)."""
    generator_b: str = "generator_b"
    """Generator of the second image (exports only)."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Values of labels, as {good: 2, poor: 0} (exports only); 1 prefers the first image, 0 neither, -1 the second."""

    def table_columns(self) -> dict[str, str]:
        """Return the columns of a table with a row per rating, by our names."""
        names = ("image_id", "prompt_id", "generator", "rater", "template", "rating", "skills")
        return {name: getattr(self, name) for name in names}


USUAL = RatingColumns()


def read_long(place: Place, columns: RatingColumns = USUAL) -> Release:
    """Read users' own ratings and skills from a long table with a row per rating.

    The .parquet, .csv, .tsv or .jsonl file has the columns rating, and image_id or both prompt_id and generator;
    optionally rater, template and skills (a list, or text with semicolons). `columns` can name other columns. An empty
    rating means that the rater was unsure. Without these columns, an image has the id `<prompt_id>/<generator>`, prompt
    and generator are null, the rater is `0`, and the template `likert`.
    """
    names = columns.table_columns()
    sheet = read_sheet(place, names.values())
    _require(sheet, columns)
    prompts, generators = sheet.texts(columns.prompt_id), sheet.texts(columns.generator)
    ratings = column_ratings(
        sheet,
        list(_images(sheet, columns)),
        prompts,
        sheet.numbers(columns.rating).to_pylist(),
        generators=generators,
        raters=_or_all(sheet, columns.rater, "0"),
        templates=_or_all(sheet, columns.template, LIKERT),
    )
    other = [name for name in sheet.names if name not in names.values()]
    notes = [f"column(s) {', '.join(other)} are not read"] if other else []
    return released(ratings=ratings, skills=skills_of(_skills(sheet, columns)), notes=notes)


def _require(sheet: Sheet, columns: RatingColumns) -> None:
    """Raise SourceError if the columns of ratings or ids are missing, or any column that the protocol renames."""
    usual = USUAL.table_columns()
    renamed = [name for key, name in columns.table_columns().items() if name != usual[key]]
    sheet.require([columns.rating], "set protocol.columns.rating to the column with the ratings")
    sheet.require(renamed, "set protocol.columns to the names of the table's columns")
    if columns.image_id not in sheet.names:
        sheet.require(
            [columns.prompt_id, columns.generator], f"{_id_remedy(columns)}, and set protocol.columns to these"
        )


def _id_remedy(columns: RatingColumns) -> str:
    return f"name the image by {columns.image_id}, or by {columns.prompt_id} and {columns.generator}"


def _images(sheet: Sheet, columns: RatingColumns) -> Iterator[str]:
    ids = (sheet.texts(name) for name in (columns.image_id, columns.prompt_id, columns.generator))
    for row, (image_id, prompt_id, generator) in enumerate(zip(*ids, strict=True)):
        if image_id is None and (prompt_id is None or generator is None):
            raise SourceError(
                f"{sheet.where(row)}: no {columns.image_id}, and not both a {columns.prompt_id} and a "
                f"{columns.generator}; {_id_remedy(columns)}"
            )
        yield image_id or f"{prompt_id}/{generator}"


def _or_all(sheet: Sheet, name: str, default: str) -> Sequence[str]:
    return sheet.ids(name) if name in sheet.names else [default] * len(sheet)


def _skills(sheet: Sheet, columns: RatingColumns) -> Iterator[tuple[str | None, str | None]]:
    if columns.skills not in sheet.names:
        return
    for prompt_id, names in zip(sheet.texts(columns.prompt_id), sheet.lists(columns.skills), strict=True):
        yield from ((prompt_id, name) for name in names)
        if not names:
            yield prompt_id, None


RELEASES = Extensions[Callable[..., Release]](
    "releases",
    {
        name: f"{__package__}.{module}:read_{name}"
        for module, names in {
            "error_graphs": ("shapes", "t2iscorescore"),
            "image_ratings": (
                "dsg_tifa160",
                "flickr8k_cf",
                "genai_bench",
                "seetrue",
                "stanfordt23d",
                "t2vscore",
                "tifa160",
            ),
            "own_graphs": ("error_graphs",),
            "readers": ("long",),
            "pairs": ("eqben", "pick_a_pic", "winoground"),
            "word_ratings": ("gecko",),
        }.items()
        for name in names
    },
)


def read_release(name: str, place: Place, columns: RatingColumns | None = None) -> Release:
    """Read a release; raise SourceError naming the file and the row that does not fit.

    `columns` has the names of the columns of users' own ratings (`long`, `annotations`).
    """
    read = RELEASES[name]
    return read(place) if columns is None else read(place, columns)
