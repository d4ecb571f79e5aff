"""Readers of error graphs: T2IScoreScore and the embedded world."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.releases.own_graphs import require_few_walks
from plumbline.pipelines.metaeval.releases.release import Release, Word, column_ratings, released, remember, words_in
from plumbline.pipelines.metaeval.releases.scores import wide_scores
from plumbline.pipelines.metaeval.releases.sheets import (
    MAX_DIGITS,
    Sheet,
    exists,
    files_in,
    one_that_exists,
    read_sheet,
)

METADATA = ("ts2_metadata.csv", "metadata.csv", "data/metadata.csv")
SCORES = (
    "ts2_scores_per_image.csv",
    "integrated_image_scores.csv",
    "src/output/integrated_image_scores.csv",
    "output/scores_final_all_3.csv",
    "output/scores_final_all_2 copy.csv",
    "output/scores_final_all_2.csv",
    "output/scores_final_all.csv",
)
"""Files with all metrics; the first that exists is read. The last three are older than scores_final_all_3.csv."""
OF_ONE = "_scores.csv"
"""Ending of the name of a file with one metric's scores."""
FOLDERS = ("", "output/scores")
UNREAD_FOLDERS = ("", "output", "output/scores_per_image", "src/output")
"""Folders that are searched for score files that are not read, which a warning names."""
OF_A_PART = "_score.csv"
"""Ending of the name of a released file that is a column of the file with all metrics."""
KEYS = ("id", "image_id", "rank", "score", "status")
COLUMNS = ("id", "file_name", "image_source", "rank")
SUBSETS = {"synth": range(0, 111), "nat": range(111, 136), "real": range(136, 165)}
"""Graphs of each subset (run/compute_metrics.py); the released averages lack graph 164."""
UPSTREAM = "is this T2IScoreScore's file?"


def read_t2iscorescore(place: Place) -> Release:
    """Read T2IScoreScore: 2,840 images in 165 semantic error graphs, and their scores by 19 metrics.

    Images have the names of their files; prompt and graph are the `id`.

    Source: michaelsaxon/T2IScoreScore. A folder with
    - metadata.csv (ours: ts2_metadata.csv; upstream in data/): id (the graph), target_prompt, file_name, image_source
      (the generator, or Natural), rank (the node: its number of errors, and a letter if several nodes have the number);
    - the scores of all metrics: ts2_scores_per_image.csv, upstream's integrated_image_scores.csv (in src/output/, its
      metrics ending in `_score`) or the release's output/scores_final_all_3.csv: id, image_id (unreliable), one
      column per metric, and in integrated_image_scores.csv the number of errors as `rank`;
    - any `<metric>_scores.csv` as upstream's code of 2025 writes them (in output/scores/): id, image_id, rank, score.
      Its metric is <metric>, or <metric>_scores if the file of all metrics has <metric> too.
    The rows of all score files have the order of the metadata. Six cells of llmscore_over have a stray quote.
    """
    metadata = read_sheet(one_that_exists(place, METADATA)).require(COLUMNS, UPSTREAM)
    nodes, notes = list(_nodes(metadata)), list[str]()
    require_few_walks(metadata.url, nodes)
    metrics = _metrics(place, metadata, notes)
    unknown = _unknown_scores(place, metrics)
    ids = {
        "image_id": [node["image_id"] for node in nodes],
        "prompt_id": metadata.ids("id"),
        "generator": metadata.texts("image_source"),
    }
    if not metrics:
        notes.append(f"no {', '.join(SCORES)} or METRIC{OF_ONE}: no scores")
    return replace(
        released(graph_nodes=nodes, scores=wide_scores(ids, metrics), notes=notes),
        warnings=[
            f"{url} may hold scores and is not read; to judge them, write {FOLDERS[-1]}/METRIC{OF_ONE} with the "
            "columns id, rank and score, a row for each row of the metadata"
            for url in unknown
        ],
    )


def _nodes(metadata: Sheet) -> Iterator[dict[str, Any]]:
    places: dict[str, str] = {}
    numbers = metadata.whole("id", UPSTREAM)
    ids = map(metadata.ids, ("id", "file_name", "rank", "image_source"))
    for row, (number, graph, image, rank, source) in enumerate(zip(numbers, *ids, strict=True)):
        where = metadata.where(row)
        remember(places, image, where, f"image {image!r} occurs twice")
        subset = next((name for name, graphs in SUBSETS.items() if number in graphs), "other")
        node = {"image_id": image, "node": rank, "level": _level(rank, where), "generator": source}
        yield {"graph_id": graph, "subset": subset, **node}


def _level(rank: str, where: str) -> int:
    digits = rank[: len(rank) - len(rank.lstrip("0123456789"))]
    if not 0 < len(digits) <= MAX_DIGITS:
        raise SourceError(f"{where}: expected a rank such as 0, 1 or 2b, found {rank!r}; correct it")
    return int(digits)


def _metrics(folder: Place, metadata: Sheet, notes: list[str]) -> dict[str, pa.Array]:
    """Read the scores by metric, in the metadata's order: from the file with all metrics, and from those with one."""
    metrics: dict[str, pa.Array] = {}
    found = [name for name in SCORES if exists(folder / name)]
    for first in found[:1]:
        sheet = _check_order(read_sheet(folder / first), metadata, ("id",))
        for name in sheet.names:
            if name not in KEYS:
                metrics[name.removesuffix("_score")] = _numbers(sheet, name, notes)
        notes += [f"{name} is not read, because {first} is" for name in found[1:]]
    metrics_of_first = set(metrics)
    for file in [file for name in FOLDERS for file in files_in(folder / name if name else folder, OF_ONE)]:
        name = PurePosixPath(file.path).name
        if name in SCORES:
            continue
        metric = name.removesuffix(OF_ONE)
        if metric in metrics_of_first:
            notes.append(f"{metric} is of {found[0]}; {metric}_scores is of {file.url}")
            metric = f"{metric}_scores"
        if metric in metrics:
            raise SourceError(f"{file.url}: {metric} is scored in another file too; remove one of the two")
        sheet = _check_order(read_sheet(file).require(("score",), UPSTREAM), metadata, ("id", "rank"))
        metrics[metric] = _numbers(sheet, "score", notes)
    return metrics


def _unknown_scores(folder: Place, metrics: Collection[str]) -> Iterator[str]:
    """Yield unread tables whose names suggest scores, and that are not a column of the file with all metrics."""
    known = {PurePosixPath(name).name for name in SCORES}
    listed = [file for name in UNREAD_FOLDERS for file in files_in(folder / name if name else folder, ".csv")]
    for file in [file for file in listed if file.parent.path != folder.path or not file.path.endswith(OF_ONE)]:
        name = PurePosixPath(file.path).name
        metric = name.lower().removesuffix(OF_A_PART).removesuffix(".csv")
        if "score" in name.lower() and name not in known and metric not in metrics:
            yield file.url


def _check_order(sheet: Sheet, metadata: Sheet, names: tuple[str, ...]) -> Sheet:
    """Return the table; raise SourceError if these columns differ from the metadata's."""
    sheet.require(names, UPSTREAM)
    if len(sheet) != len(metadata):
        raise SourceError(
            f"{sheet.url}: expected {len(metadata)} rows, as {metadata.url} has, found {len(sheet)}; the rows are "
            "joined by their order, so both files must be whole"
        )
    for name in names:
        for row, (text, expected) in enumerate(zip(sheet.texts(name), metadata.texts(name), strict=True)):
            if text != expected:
                raise SourceError(
                    f"{sheet.where(row)}: expected {name} {expected}, as in {metadata.url}, found {text}; put the rows "
                    "in that file's order"
                )
    return sheet


def _numbers(sheet: Sheet, name: str, notes: list[str]) -> pa.Array:
    """Read a column of scores without stray quotes; NaN becomes null."""
    texts = pa.array(sheet.texts(name), pa.string())
    bare = pc.utf8_trim(texts, '"')
    if stray := pc.sum(pc.not_equal(texts, bare)).as_py():
        notes.append(f"{stray} cells of {name} carried a stray quote, which was removed")
    numbers = Sheet(url=sheet.url, names=[name], table=pa.table({name: bare})).numbers(name)
    return pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)


SHAPES = "is this a folder of the shapes benchmark?"
NONE = ""
"""Subset of a prompt without skills, and node of an image without errors."""
REQUIREMENTS = "requirements"
TRUTH = "truth"
"""Rater of the words."""


def read_shapes(place: Place) -> Release:
    """Read the embedded world: images of simple shapes by synthetic generators, rated by synthetic raters from 1 to 5.

    Every prompt has a graph, in the subset of the prompt's last skill.

    Source: a folder as assets/making/tables.py writes it, such as assets/shapes: prompts.parquet (prompt_id, text,
    skills), truth.parquet (image_id, prompt_id, generator, broken: the requirements that the image breaks),
    ratings.parquet (image_id, rater, rating) and, for the words, requirements.parquet (prompt_id, requirement_id,
    start, end). An image's errors are known: its node is the set of requirements that it breaks. The words of these
    requirements are not aligned; words that belong to no requirement are not rated. The last skill of a prompt is the
    most specific.
    """
    prompts = _sheet(place, "prompts", ("prompt_id", "skills"))
    truth = _sheet(place, TRUTH, ("image_id", "prompt_id", "generator", "broken"))
    rated = _sheet(place, "ratings", ("image_id", "rater", "rating"))
    skills = dict(zip(prompts.ids("prompt_id"), prompts.lists("skills"), strict=True))
    nodes = []
    origins: dict[str, tuple[str, str]] = {}
    places: dict[str, str] = {}
    images = zip(*map(truth.ids, ("image_id", "prompt_id", "generator")), truth.lists("broken"), strict=True)
    for row, (image_id, prompt_id, generator, requirements) in enumerate(images):
        remember(places, image_id, truth.where(row), f"image {image_id!r} occurs twice")
        origins[image_id] = (prompt_id, generator)
        errors = sorted(requirements)
        graph = {"graph_id": prompt_id, "subset": (skills.get(prompt_id) or [NONE])[-1]}
        node = {"node": "+".join(errors) or NONE, "level": len(errors)}
        nodes.append({**graph, **node, "image_id": image_id, "generator": generator})
    image_ids, values = rated.ids("image_id"), rated.numbers("rating").to_pylist()
    for row, image_id in enumerate(image_ids):
        if image_id not in origins:
            raise SourceError(f"{rated.where(row)}: image {image_id!r} is not in truth.parquet; {SHAPES}")
    prompt_ids, generators = zip(*(origins[image_id] for image_id in image_ids), strict=True)
    ratings = column_ratings(rated, image_ids, prompt_ids, values, generators=generators, raters=rated.ids("rater"))
    words = _words(place, truth) if exists(place / f"{REQUIREMENTS}.parquet") else ()
    require_few_walks(place.url, nodes)
    return released(ratings=ratings, graph_nodes=nodes, words=words, skills=skills)


def _words(place: Place, truth: Sheet) -> Iterator[Word]:
    """Yield the words of every requirement, and for each image whether it meets the requirement."""
    required = _sheet(place, REQUIREMENTS, ("prompt_id", "requirement_id", "start", "end"))
    prompts = _sheet(place, "prompts", ("prompt_id", "text"))
    texts = dict(zip(prompts.ids("prompt_id"), prompts.ids("text"), strict=True))
    spans: dict[str, list[tuple[str, int, int]]] = {}
    columns = (required.ids("prompt_id"), required.ids("requirement_id"), *map(required.whole, ("start", "end")))
    for prompt, requirement, first, last in zip(*columns, strict=True):
        if first is not None and last is not None:
            spans.setdefault(prompt, []).append((requirement, first, last))
    images = zip(*map(truth.ids, ("image_id", "prompt_id", "generator")), truth.lists("broken"), strict=True)
    for row, (image, prompt, generator, broken) in enumerate(images):
        for requirement, first, last in spans.get(prompt, ()):
            aligned = float(requirement not in broken)
            for word, start, end in words_in(texts.get(prompt, "")[first:last]):
                span = (first + start, first + end)
                yield Word(image, prompt, generator, TRUTH, word, *span, aligned, truth.where(row))


def _sheet(folder: Place, name: str, columns: tuple[str, ...]) -> Sheet:
    return read_sheet(folder / f"{name}.parquet", columns).require(columns, SHAPES)
