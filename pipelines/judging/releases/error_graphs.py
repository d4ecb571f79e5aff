"""Images in graphs of their known errors: T2IScoreScore, and the embedded pack."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import Release, Word, column_ratings, released, remember, words_in
from plumbline.pipelines.judging.releases.scores import wide_scores
from plumbline.pipelines.judging.releases.sheets import (
    Sheet,
    exists,
    files_in,
    first_that_exists,
    one_that_exists,
    read_sheet,
)

METADATA = ("ts2_metadata.csv", "metadata.csv", "data/metadata.csv")
SCORES = ("ts2_scores_per_image.csv", "integrated_image_scores.csv", "src/output/integrated_image_scores.csv")
OF_ONE = "_scores.csv"
"""How the file of one metric's scores ends."""
FOLDERS = ("", "output/scores")
KEYS = ("id", "image_id", "rank", "score", "status")
COLUMNS = ("id", "file_name", "image_source", "rank")
SUBSETS = {"synth": range(0, 111), "nat": range(111, 136), "real": range(136, 165)}
"""The graphs of each subset, as upstream's run/compute_metrics.py has them; the released averages lack graph 164."""
MOST_DIGITS = 6
"""Of a graph's number, and of an image's number of errors."""
UPSTREAM = "is this T2IScoreScore's file?"


def read_t2iscorescore(place: Place) -> Release:
    """The graphs' images, named by their files, and all scores found: prompt and graph are the `id`, as text.

    T2IScoreScore: 2,840 images in 165 semantic error graphs, and what 19 metrics score them.

    Source: michaelsaxon/T2IScoreScore. A folder with
    - metadata.csv (ours: ts2_metadata.csv; upstream in data/): id (the graph), target_prompt, file_name, image_source
      (the generator, or Natural), rank (the node: its number of errors, and a letter where several nodes have as many);
    - ts2_scores_per_image.csv, or upstream's integrated_image_scores.csv (in src/output/, its metrics ending in
      `_score`): id, image_id (unreliable), one column per metric, and in upstream's the number of errors as `rank`;
    - any `<metric>_scores.csv` as upstream's code of 2025 writes them (in output/scores/): id, image_id, rank, score.
    The rows of every score file are the metadata's, in the same order. Six cells of llmscore_over carry a stray quote.
    """
    metadata = read_sheet(one_that_exists(place, METADATA)).require(COLUMNS, UPSTREAM)
    nodes, notes = list(_nodes(metadata)), list[str]()
    metrics = _metrics(place, metadata, notes)
    ids = {
        "image_id": [node["image_id"] for node in nodes],
        "prompt_id": metadata.ids("id"),
        "generator": metadata.texts("image_source"),
    }
    if not metrics:
        notes.append(f"no {SCORES[0]} or {SCORES[1]}: no scores")
    return released(graph_nodes=nodes, scores=wide_scores(ids, metrics), notes=notes)


def _nodes(metadata: Sheet) -> Iterator[dict[str, Any]]:
    places: dict[str, str] = {}
    columns = zip(metadata.ids("id"), metadata.ids("file_name"), metadata.ids("rank"), strict=True)
    for row, (graph, image, rank) in enumerate(columns):
        where = metadata.where(row)
        remember(places, image, where, f"image {image!r} stands twice")
        level = _level(rank, where)
        yield {"graph_id": graph, "subset": _subset(graph, where), "image_id": image, "node": rank, "level": level}


def _subset(graph: str, where: str) -> str:
    if not graph.isdecimal() or len(graph) > MOST_DIGITS:
        raise SourceError(f"{where}: expected a whole number as id, found {graph!r}; {UPSTREAM}")
    return next((name for name, ids in SUBSETS.items() if int(graph) in ids), "other")


def _level(rank: str, where: str) -> int:
    digits = rank[: len(rank) - len(rank.lstrip("0123456789"))]
    if not 0 < len(digits) <= MOST_DIGITS:
        raise SourceError(f"{where}: expected a rank such as 0, 1 or 2b, found {rank!r}; correct it")
    return int(digits)


def _metrics(folder: Place, metadata: Sheet, notes: list[str]) -> dict[str, pa.Array]:
    """By metric, the scores in the metadata's order: of the file that has all, and of the files that have one each."""
    metrics: dict[str, pa.Array] = {}
    if file := first_that_exists(folder, SCORES):
        sheet = _in_order(read_sheet(file), metadata, ("id",))
        for name in sheet.names:
            if name not in KEYS:
                metrics[name.removesuffix("_score")] = _numbers(sheet, name, notes)
    for file in [file for name in FOLDERS for file in files_in(folder / name if name else folder, OF_ONE)]:
        name = PurePosixPath(file.path).name
        if name in SCORES:
            continue
        metric = name.removesuffix(OF_ONE)
        if metric in metrics:
            raise SourceError(f"{file.url}: {metric} is scored in another file too; remove one of the two")
        sheet = _in_order(read_sheet(file).require(("score",), UPSTREAM), metadata, ("id", "rank"))
        metrics[metric] = _numbers(sheet, "score", notes)
    return metrics


def _in_order(sheet: Sheet, metadata: Sheet, names: tuple[str, ...]) -> Sheet:
    """The table; raises SourceError where its rows are not the metadata's, by these columns."""
    sheet.require(names, UPSTREAM)
    if len(sheet) != len(metadata):
        raise SourceError(
            f"{sheet.url}: expected {len(metadata)} rows, as {metadata.url} has, found {len(sheet)}; the rows are "
            "joined by their order, so both files must be whole"
        )
    for name in names:
        for row, (text, wanted) in enumerate(zip(sheet.texts(name), metadata.texts(name), strict=True)):
            if text != wanted:
                raise SourceError(
                    f"{sheet.where(row)}: expected {name} {wanted}, as in {metadata.url}, found {text}; put the rows "
                    "in that file's order"
                )
    return sheet


def _numbers(sheet: Sheet, name: str, notes: list[str]) -> pa.Array:
    """A column of scores, without the stray quotes, NaN as null."""
    texts = pa.array(sheet.texts(name), pa.string())
    bare = pc.utf8_trim(texts, '"')
    if stray := pc.sum(pc.not_equal(texts, bare)).as_py():
        notes.append(f"{stray} cells of {name} carried a stray quote, which was removed")
    numbers = Sheet(url=sheet.url, names=[name], table=pa.table({name: bare})).numbers(name)
    return pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)


PACK = "is this a folder of the shapes benchmark?"
NONE = ""
"""The subset of a prompt without skills, and the node of an image that breaks nothing."""
REQUIREMENTS = "requirements"
TRUTH = "truth"
"""Who says which words are aligned."""


def read_shapes(place: Place) -> Release:
    """The ratings with their images' prompts and generators; and a graph for each prompt, of its last skill.

    The embedded pack: pictures of simple shapes by synthetic generators, rated by synthetic raters from 1 to 5.

    Source: a folder as assets/making/tables.py writes it, such as assets/shapes: prompts.parquet (prompt_id, text,
    skills), truth.parquet (image_id, prompt_id, generator, broken: the requirements that the image breaks),
    ratings.parquet (image_id, rater, rating) and, for the words, requirements.parquet (prompt_id, requirement_id,
    start, end). An image's error is known: its node is the requirements that it breaks, and the words of its prompt
    that make one of these are not aligned; words that make none are not rated. Its subset is the last of its prompt's
    skills, which is the most special.
    """
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
