"""Maps names of releases to their readers, and reads users' own ratings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import repeat

from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.extensions import Extensions
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.releases.release import LIKERT, Release, group_skills, make_column_ratings, released
from plumbline.pipelines.metaeval.releases.sheets import read_sheet


@dataclass(frozen=True, kw_only=True, slots=True)
class RatingColumns:
    """Column names of a table of ratings, or field names of an annotation tool's export."""

    image_id: str = "image_id"
    """Id of the image; can be replaced by prompt_id and generator together."""
    prompt_id: str = "prompt_id"
    """Prompt that the image was generated from."""
    generator: str = "generator"
    """Generator of the image."""
    rater: str = "rater"
    """Name of the rater; may be absent."""
    template: str = "template"
    """Template that the rater answered; may be absent."""
    rating: str = "rating"
    """Rating; empty if the rater was unsure. In Label Studio's JSON-MIN, the name of the Choices tag."""
    skills: str = "skills"
    """Skills of the prompt, as a list, or separated by semicolons in a CSV; may be absent."""
    prompt: str = "prompt"
    """Text with marked words (exports only)."""
    question_id: str = "question_id"
    """Question, if there are several about each image; their answers are averaged (exports only)."""
    image_a: str = "image_a"
    """First (left) of two images; can be replaced by prompt_id and generator_a (exports only)."""
    image_b: str = "image_b"
    """Second (right) of two images; can be replaced by prompt_id and generator_b (exports only)."""
    generator_a: str = "generator_a"
    """Generator of the first image (exports only)."""
    generator_b: str = "generator_b"
    """Generator of the second image (exports only)."""
    values: Mapping[str, float] = field(default_factory=dict)
    """Values of labels, such as {good: 2, poor: 0} (exports only); for choices, 1 prefers the first image, 0 neither,
    -1 the second.
    """

    def map_table_columns(self) -> dict[str, str]:
        """Map our column names to the column names of a table with a row per rating."""
        names = ("image_id", "prompt_id", "generator", "rater", "template", "rating", "skills")
        return {name: getattr(self, name) for name in names}


DEFAULT_COLUMNS = RatingColumns()


def read_long(place: Place, columns: RatingColumns = DEFAULT_COLUMNS) -> Release:
    """Read users' own ratings and skills from a long table with a row per rating.

    The .parquet, .csv, .tsv or .jsonl file has the columns rating, and image_id or both prompt_id and generator;
    optionally rater, template and skills (a list, or a string separated by semicolons). `columns` can define other
    column names. An empty rating means that the rater was unsure. If optional columns are missing, an image has the id
    `<prompt_id>/<generator>`, prompt and generator are null, the rater is `0`, and the template is `likert`.
    """
    names, usual = columns.map_table_columns(), DEFAULT_COLUMNS.map_table_columns()
    sheet = read_sheet(place, names.values())
    remedy = f"name the image by {columns.image_id}, or by {columns.prompt_id} and {columns.generator}"
    sheet.require([columns.rating], "set protocol.columns.rating to the column with the ratings")
    renamed = [name for key, name in names.items() if name != usual[key]]
    sheet.require(renamed, "set protocol.columns to the names of the table's columns")
    if columns.image_id not in sheet.names:
        sheet.require([columns.prompt_id, columns.generator], f"{remedy}, and set protocol.columns to these")
    images, prompts, generators = map(sheet.texts, (columns.image_id, columns.prompt_id, columns.generator))
    for row, (image, prompt, generator) in enumerate(zip(images, prompts, generators, strict=True)):
        if image is None and (prompt is None or generator is None):
            raise SourceError(
                f"{sheet.where(row)}: expected {columns.image_id}, or both {columns.prompt_id} and "
                f"{columns.generator}, found neither; {remedy}"
            )
        images[row] = image or f"{prompt}/{generator}"
    ratings = make_column_ratings(
        sheet,
        map(str, images),
        prompts,
        sheet.numbers(columns.rating).to_pylist(),
        generators=generators,
        raters=sheet.ids(columns.rater) if columns.rater in sheet.names else repeat("0"),
        templates=sheet.ids(columns.template) if columns.template in sheet.names else repeat(LIKERT),
    )
    skills: list[tuple[str | None, str | None]] = []
    if columns.skills in sheet.names:
        for prompt, own in zip(prompts, sheet.lists(columns.skills), strict=True):
            skills += [(prompt, skill) for skill in own] or [(prompt, None)]
    other = [name for name in sheet.names if name not in names.values()]
    notes = [f"column(s) {', '.join(other)} are not read"] if other else []
    return released(ratings=ratings, skills=group_skills(skills), notes=notes)


RELEASES = Extensions[Callable[..., Release]](
    "releases",
    {
        name: f"{__package__}.{module}:read_{name}"
        for module, names in {
            "error_graphs": "error_graphs shapes t2iscorescore",
            "image_ratings": "dsg_tifa160 flickr8k_cf genai_bench seetrue stanfordt23d t2vscore tifa160",
            "readers": "long",
            "pairs": "eqben pick_a_pic winoground",
            "word_ratings": "gecko",
        }.items()
        for name in names.split()
    },
)


def read_release(name: str, place: Place, columns: RatingColumns | None = None) -> Release:
    """Read a release; raise SourceError naming the file and the first invalid row.

    `columns` defines the column names of users' own ratings (`long`, `annotations`).
    """
    read = RELEASES[name]
    return read(place) if columns is None else read(place, columns)
