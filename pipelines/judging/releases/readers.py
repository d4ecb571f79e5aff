"""The releases by name, each with the function that reads its files, and the reader of ratings of one's own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.extensions import Extensions
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import LIKERT, Release, column_ratings, released, skills_of
from plumbline.pipelines.judging.releases.sheets import Sheet, read_sheet


@dataclass(frozen=True, kw_only=True, slots=True)
class RatingColumns:
    """What a table of ratings calls its columns, or an annotation tool's export the fields of its records."""

    image_id: str = "image_id"
    """The image's own name; or prompt_id and generator, which name it together."""
    prompt_id: str = "prompt_id"
    """The prompt that the image was made of."""
    generator: str = "generator"
    """What made the image."""
    rater: str = "rater"
    """Who rated; may be absent."""
    template: str = "template"
    """Which question was rated; may be absent."""
    rating: str = "rating"
    """The rating; empty where the rater was unsure. In Label Studio's JSON-MIN, the name of Choices."""
    skills: str = "skills"
    """The prompt's skills, a list, or in a CSV separated by semicolons; may be absent."""
    prompt: str = "prompt"
    """Of an annotation tool's export: the text whose words are marked."""
    question_id: str = "question_id"
    """Of an export: which of several questions about an image a record asks, whose answers are averaged."""
    image_a: str = "image_a"
    """Of an export: the first image (left) of two; or generator_a, with prompt_id."""
    image_b: str = "image_b"
    """Of an export: the second image (right) of two; or generator_b, with prompt_id."""
    generator_a: str = "generator_a"
    """Of an export: what made the first image."""
    generator_b: str = "generator_b"
    """Of an export: what made the second image."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Of an export: what labels count as, as {good: 2, poor: 0}; of two images 1 is the first, 0 neither, -1 the
    second."""

    def of_table(self) -> dict[str, str]:
        """The columns of a table with a row per rating, by our names."""
        names = ("image_id", "prompt_id", "generator", "rater", "template", "rating", "skills")
        return {name: getattr(self, name) for name in names}


USUAL = RatingColumns()


def read_long(place: Place, columns: RatingColumns = USUAL) -> Release:
    """The table's ratings and its prompts' skills; an empty rating is a person's being unsure.

    Ratings of one's own, as a long table with a row per rating: a .parquet, .csv, .tsv or .jsonl file with the columns
    rating, and image_id or both prompt_id and generator; and, if they are there, rater, template and skills; or with
    others, as `columns` names them. What is absent: an image is named `<prompt_id>/<generator>`, the prompt and the
    generator are null, the rater is `0`, the template `likert`. `skills` is a list, or text with semicolons between
    them.
    """
    names = columns.of_table()
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
    """Raises SourceError where there are no ratings, nothing names the images, or a column is not there that was named
    otherwise than usual.
    """
    named = [
        name
        for name, usual in zip(columns.of_table().values(), USUAL.of_table().values(), strict=True)
        if name != usual
    ]
    sheet.require([columns.rating], "set protocol.columns.rating to the column that holds the ratings")
    sheet.require(named, "set protocol.columns to what the table calls its columns")
    if columns.image_id not in sheet.names:
        sheet.require([columns.prompt_id, columns.generator], f"{_named(columns)}, and set protocol.columns to these")


def _named(columns: RatingColumns) -> str:
    return f"name the image by {columns.image_id}, or by {columns.prompt_id} and {columns.generator}"


def _images(sheet: Sheet, columns: RatingColumns) -> Iterator[str]:
    ids = (sheet.texts(name) for name in (columns.image_id, columns.prompt_id, columns.generator))
    for row, (image_id, prompt_id, generator) in enumerate(zip(*ids, strict=True)):
        if image_id is None and (prompt_id is None or generator is None):
            raise SourceError(
                f"{sheet.where(row)}: no {columns.image_id}, and not both a {columns.prompt_id} and a "
                f"{columns.generator}; {_named(columns)}"
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
    """What the release of this name holds; raises SourceError naming the file and the row that does not fit.

    `columns` are what ratings of one's own (`long`, `annotations`) call theirs.
    """
    read = RELEASES[name]
    return read(place) if columns is None else read(place, columns)
