"""The embedded pack: pictures of simple shapes by synthetic generators, rated by synthetic raters from 1 to 5.

Source: a folder as operators/pack/tables.py writes it, such as assets/shapes: prompts.parquet (prompt_id, skills),
truth.parquet (image_id, prompt_id, generator, broken: the requirements that the image breaks) and ratings.parquet
(image_id, rater, rating). An image's error is known: its node is the requirements that it breaks. Its subset is
the last of its prompt's skills, which is the most special.
"""

from collections.abc import Mapping
from typing import NamedTuple

from operators import rows
from operators.errors import SourceError
from pipelines.judging.releases.ratings import LIKERT, Rating, empty_notes, rating_value, ratings_table
from pipelines.judging.releases.release import Release
from pipelines.judging.releases.tables import Sheet, below, read_sheet
from pipelines.storage import Location

PACK = "is this a folder of the shapes benchmark?"
NONE = ""
"""The subset of a prompt without skills, and the node of an image that breaks nothing."""


class _Truth(NamedTuple):
    prompt_id: str
    generator: str
    broken: tuple[str, ...]


def read(location: Location) -> Release:
    """The ratings with their images' prompts and generators; and a graph for each prompt, of its first skill."""
    skills = _skills(location)
    truth = _truth(location)
    ratings = ratings_table(_ratings(location, truth))
    nodes = rows.table([_node(image_id, one, skills) for image_id, one in truth.items()], rows.GRAPH_NODES)
    return Release(ratings=ratings, graph_nodes=nodes, skills=skills, notes=empty_notes(ratings))


def _sheet(folder: Location, name: str, columns: tuple[str, ...]) -> Sheet:
    return read_sheet(below(folder, f"{name}.parquet"), columns).require(columns, PACK)


def _skills(folder: Location) -> dict[str, list[str]]:
    sheet = _sheet(folder, "prompts", ("prompt_id", "skills"))
    return {
        prompt_id: skills or []
        for prompt_id, skills in zip(sheet.ids("prompt_id"), sheet.table.column("skills").to_pylist(), strict=True)
    }


def _truth(folder: Location) -> dict[str, _Truth]:
    sheet = _sheet(folder, "truth", ("image_id", "prompt_id", "generator", "broken"))
    broken = [tuple(sorted(names or ())) for names in sheet.table.column("broken").to_pylist()]
    found = zip(sheet.ids("image_id"), sheet.ids("prompt_id"), sheet.ids("generator"), broken, strict=True)
    truth: dict[str, _Truth] = {}
    for row, (image_id, prompt_id, generator, names) in enumerate(found):
        if image_id in truth:
            raise SourceError(f"{sheet.where(row)}: image {image_id!r} stands twice; remove one")
        truth[image_id] = _Truth(prompt_id, generator, names)
    return truth


def _ratings(folder: Location, truth: Mapping[str, _Truth]) -> list[Rating]:
    sheet = _sheet(folder, "ratings", ("image_id", "rater", "rating"))
    columns = zip(sheet.ids("image_id"), sheet.ids("rater"), sheet.numbers("rating").to_pylist(), strict=True)
    return [_rating(truth, *one, sheet.where(row)) for row, one in enumerate(columns)]


def _rating(truth: Mapping[str, _Truth], image_id: str, rater: str, value: float | None, where: str) -> Rating:
    if image_id not in truth:
        raise SourceError(f"{where}: image {image_id!r} is not in truth.parquet; {PACK}")
    known = truth[image_id]
    return Rating(image_id, known.prompt_id, known.generator, rater, LIKERT, rating_value(value, where), where)


def _node(image_id: str, one: _Truth, skills: Mapping[str, list[str]]) -> Mapping[str, object]:
    subset = (skills.get(one.prompt_id) or [NONE])[-1]
    node = "+".join(one.broken) or NONE
    return {"graph_id": one.prompt_id, "subset": subset, "image_id": image_id, "node": node, "level": len(one.broken)}
