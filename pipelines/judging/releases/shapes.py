"""The embedded pack: pictures of simple shapes by synthetic generators, rated by synthetic raters from 1 to 5.

Source: a folder as assets/making/tables.py writes it, such as assets/shapes: prompts.parquet (prompt_id, text,
skills), truth.parquet (image_id, prompt_id, generator, broken: the requirements that the image breaks), ratings.parquet
(image_id, rater, rating) and, for the words, requirements.parquet (prompt_id, requirement_id, start, end). An image's
error is known: its node is the requirements that it breaks, and the words of its prompt that make one of these are not
aligned; words that make none are not rated. Its subset is the last of its prompt's skills, which is the most special.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import Release, Word, column_ratings, released, remember, words_in
from plumbline.pipelines.judging.releases.sheets import Sheet, exists, read_sheet

PACK = "is this a folder of the shapes benchmark?"
NONE = ""
"""The subset of a prompt without skills, and the node of an image that breaks nothing."""
REQUIREMENTS = "requirements"
TRUTH = "truth"
"""Who says which words are aligned."""


def read(place: Place) -> Release:
    """The ratings with their images' prompts and generators; and a graph for each prompt, of its last skill."""
    prompts = _sheet(place, "prompts", ("prompt_id", "skills"))
    truth = _sheet(place, TRUTH, ("image_id", "prompt_id", "generator", "broken"))
    rated = _sheet(place, "ratings", ("image_id", "rater", "rating"))
    lists = prompts.table.column("skills").to_pylist()
    skills: dict[str, list[str]] = dict(zip(prompts.ids("prompt_id"), [names or [] for names in lists], strict=True))
    broken = truth.table.column("broken").to_pylist()
    nodes = []
    origins: dict[str, tuple[str, str]] = {}
    places: dict[str, str] = {}
    images = zip(truth.ids("image_id"), truth.ids("prompt_id"), truth.ids("generator"), broken, strict=True)
    for row, (image_id, prompt_id, generator, requirements) in enumerate(images):
        remember(places, image_id, truth.where(row), f"image {image_id!r} stands twice")
        origins[image_id] = (prompt_id, generator)
        errors = sorted(requirements or ())
        graph = {"graph_id": prompt_id, "subset": (skills.get(prompt_id) or [NONE])[-1]}
        nodes.append({**graph, "image_id": image_id, "node": "+".join(errors) or NONE, "level": len(errors)})
    image_ids, values = rated.ids("image_id"), rated.numbers("rating").to_pylist()
    for row, image_id in enumerate(image_ids):
        if image_id not in origins:
            raise SourceError(f"{rated.where(row)}: image {image_id!r} is not in truth.parquet; {PACK}")
    of_prompts, generators = zip(*(origins[image_id] for image_id in image_ids), strict=True)
    ratings = column_ratings(rated, image_ids, of_prompts, values, generators=generators, raters=rated.ids("rater"))
    words = _words(place, truth) if exists(place / f"{REQUIREMENTS}.parquet") else ()
    return released(ratings=ratings, graph_nodes=nodes, words=words, skills=skills)


def _words(place: Place, truth: Sheet) -> Iterator[Word]:
    """The words that make a requirement, and whether each image meets it."""
    required = _sheet(place, REQUIREMENTS, ("prompt_id", "requirement_id", "start", "end"))
    prompts = _sheet(place, "prompts", ("prompt_id", "text"))
    texts = dict(zip(prompts.ids("prompt_id"), prompts.ids("text"), strict=True))
    spans: dict[str, list[Mapping[str, Any]]] = {}
    for requirement in required.table.to_pylist():
        if requirement["start"] is not None:
            spans.setdefault(requirement["prompt_id"], []).append(requirement)
    for row, image in enumerate(truth.table.to_pylist()):
        text = texts.get(image["prompt_id"], "")
        for span in spans.get(image["prompt_id"], ()):
            aligned = float(span["requirement_id"] not in (image["broken"] or ()))
            ids = (image["image_id"], image["prompt_id"], image["generator"], TRUTH)
            yield from _of_span(ids, text, span, aligned, truth.where(row))


def _of_span(ids: Sequence[str], text: str, span: Mapping[str, Any], aligned: float, where: str) -> Iterator[Word]:
    image, prompt, generator, rater = ids
    for word, start, end in words_in(text[span["start"] : span["end"]]):
        first = span["start"]
        yield Word(image, prompt, generator, rater, word, first + start, first + end, aligned, where)


def _sheet(folder: Place, name: str, columns: tuple[str, ...]) -> Sheet:
    return read_sheet(folder / f"{name}.parquet", columns).require(columns, PACK)
