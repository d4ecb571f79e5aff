"""Reads error graphs: T2IScoreScore, the embedded benchmark, and graphs that users build for their own prompts."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.releases.release import (
    Release,
    WordRating,
    make_column_ratings,
    record_unique_key,
    released,
    split_words,
)
from plumbline.pipelines.metaeval.releases.scores import stack_scores
from plumbline.pipelines.metaeval.releases.sheets import (
    MAX_COUNT_DIGITS,
    SEE_EXAMPLE_REMEDY,
    Sheet,
    exists,
    find_required_file,
    list_files,
    read_image_rows,
    read_sheet,
)
from plumbline.pipelines.sources.input_columns import DEFAULT_COLUMN_NAMES

METADATA_FILES = ("ts2_metadata.csv", "metadata.csv", "data/metadata.csv")
SCORE_FILES = (
    "ts2_scores_per_image.csv",
    "integrated_image_scores.csv",
    "src/output/integrated_image_scores.csv",
    "output/scores_final_all_3.csv",
    "output/scores_final_all_2 copy.csv",
    "output/scores_final_all_2.csv",
    "output/scores_final_all.csv",
)
"""Files with the scores of all metrics; the first one that exists is read. The last three are older than
scores_final_all_3.csv.
"""
METRIC_FILE_SUFFIX = "_scores.csv"  # ending of the name of a file with one metric's scores
METRIC_FILE_FOLDERS = ("", "output/scores")
UNREAD_FOLDERS = ("", "output", "output/scores_per_image", "src/output")  # a warning names their score files
COLUMN_FILE_SUFFIX = "_score.csv"  # ending of the name of a released file that is a column of the file with all metrics
KEY_COLUMNS = ("id", "image_id", "rank", "score", "status")
METADATA_COLUMNS = ("id", "file_name", "image_source", "rank")
SUBSET_RANGES = {"synth": range(0, 111), "nat": range(111, 136), "real": range(136, 165)}
"""Graphs in each subset (run/compute_metrics.py); the released averages omit graph 164."""
CHECK_T2ISCORESCORE_REMEDY = "check that this is T2IScoreScore's file"


def read_t2iscorescore(place: Place) -> Release:
    """Read T2IScoreScore: 2,840 images in 165 semantic error graphs, and their scores by 19 metrics.

    Images are named after their files; the `id` identifies both prompt and graph.

    Source: michaelsaxon/T2IScoreScore. A folder with
    - metadata.csv (ours: ts2_metadata.csv; upstream in data/): id (the graph), target_prompt, file_name, image_source
      (the generator, or Natural), rank (the node: its number of errors, followed by a letter if several nodes have the
      same number);
    - the scores of all metrics: ts2_scores_per_image.csv, upstream's integrated_image_scores.csv (in src/output/, with
      metric columns that end in `_score`) or the release's output/scores_final_all_3.csv: id, image_id (unreliable),
      one column per metric, and in integrated_image_scores.csv the number of errors as `rank`;
    - any `<metric>_scores.csv` in the format that upstream's 2025 code writes (in output/scores/): id, image_id,
      rank, score. The metric is named <metric>, or <metric>_scores if the file of all metrics also contains <metric>.
    The rows of all score files are in the order of the metadata. Six cells of llmscore_over have a stray quote.
    """
    metadata = read_sheet(find_required_file(place, METADATA_FILES)).require(
        METADATA_COLUMNS, CHECK_T2ISCORESCORE_REMEDY
    )
    nodes, notes = list(_read_nodes(metadata)), list[str]()
    require_few_walks(metadata.url, nodes)
    metrics = _read_metrics(place, metadata, notes)
    ids = {
        "image_id": [node["image_id"] for node in nodes],
        "prompt_id": metadata.ids("id"),
        "generator": metadata.texts("image_source"),
    }
    if not metrics:
        notes.append(f"there are no scores: found no {', '.join(SCORE_FILES)} or METRIC{METRIC_FILE_SUFFIX}")
    return replace(
        released(graph_nodes=nodes, scores=stack_scores(ids, metrics), notes=notes),
        warnings=[
            f"{url} may contain scores and is not read; to judge them, write "
            f"{METRIC_FILE_FOLDERS[-1]}/METRIC{METRIC_FILE_SUFFIX} with the columns id, rank "
            "and score, a row for each row of the metadata"
            for url in _find_unread_tables(place, metrics)
        ],
    )


def _read_nodes(metadata: Sheet) -> Iterator[dict[str, Any]]:
    rows_by_image: dict[str, str] = {}
    numbers = metadata.integers("id", CHECK_T2ISCORESCORE_REMEDY)
    ids = map(metadata.ids, ("id", "file_name", "rank", "image_source"))
    for row, (number, graph, image, rank, source) in enumerate(zip(numbers, *ids, strict=True)):
        where = metadata.where(row)
        record_unique_key(rows_by_image, image, where, f"image {image!r} occurs twice")
        subset = next((name for name, graphs in SUBSET_RANGES.items() if number in graphs), "other")
        digits = rank[: len(rank) - len(rank.lstrip("0123456789"))]
        if not 0 < len(digits) <= MAX_COUNT_DIGITS:
            raise SourceError(f"{where}: expected a rank such as 0, 1 or 2b, found {rank!r}; correct the rank")
        node = {"image_id": image, "node": rank, "level": int(digits), "generator": source}
        yield {"graph_id": graph, "subset": subset, **node}


def _read_metrics(folder: Place, metadata: Sheet, notes: list[str]) -> dict[str, pa.Array]:
    """Return scores by metric, in the metadata's order, from the file with all metrics and from single-metric files."""
    metrics: dict[str, pa.Array] = {}
    found = [name for name in SCORE_FILES if exists(folder / name)]
    for first in found[:1]:
        sheet = _require_same_order(read_sheet(folder / first), metadata, ("id",))
        for name in sheet.names:
            if name not in KEY_COLUMNS:
                metrics[name.removesuffix("_score")] = _read_scores(sheet, name, notes)
        notes += [f"{name} is not read, because {first} is" for name in found[1:]]
    metrics_of_first = set(metrics)
    for file in [
        file
        for name in METRIC_FILE_FOLDERS
        for file in list_files(folder / name if name else folder, METRIC_FILE_SUFFIX)
    ]:
        name = PurePosixPath(file.path).name
        if name in SCORE_FILES:
            continue
        metric = name.removesuffix(METRIC_FILE_SUFFIX)
        if metric in metrics_of_first:
            notes.append(f"{metric} is from {found[0]}; {metric}_scores is from {file.url}")
            metric = f"{metric}_scores"
        if metric in metrics:
            raise SourceError(f"{file.url}: another file also contains scores for {metric}; remove one of the two")
        sheet = _require_same_order(
            read_sheet(file).require(("score",), CHECK_T2ISCORESCORE_REMEDY), metadata, ("id", "rank")
        )
        metrics[metric] = _read_scores(sheet, "score", notes)
    return metrics


def _find_unread_tables(folder: Place, metrics: Collection[str]) -> Iterator[str]:
    """Yield tables that are named like score files but are not read, and whose scores are in no other file."""
    known = {PurePosixPath(name).name for name in SCORE_FILES}
    listed = [file for name in UNREAD_FOLDERS for file in list_files(folder / name if name else folder, ".csv")]
    for file in [
        file for file in listed if file.parent.path != folder.path or not file.path.endswith(METRIC_FILE_SUFFIX)
    ]:
        name = PurePosixPath(file.path).name
        metric = name.lower().removesuffix(COLUMN_FILE_SUFFIX).removesuffix(".csv")
        if "score" in name.lower() and name not in known and metric not in metrics:
            yield file.url


def _require_same_order(sheet: Sheet, metadata: Sheet, names: tuple[str, ...]) -> Sheet:
    sheet.require(names, CHECK_T2ISCORESCORE_REMEDY)
    if len(sheet) != len(metadata):
        raise SourceError(
            f"{sheet.url}: expected {len(metadata)} rows, as {metadata.url} has, found {len(sheet)}; the rows are "
            "matched by position, so both files must be complete"
        )
    for name in names:
        for row, (text, expected) in enumerate(zip(sheet.texts(name), metadata.texts(name), strict=True)):
            if text != expected:
                raise SourceError(
                    f"{sheet.where(row)}: expected {name} {expected}, as in {metadata.url}, found {text}; put the rows "
                    "in that file's order"
                )
    return sheet


def _read_scores(sheet: Sheet, name: str, notes: list[str]) -> pa.Array:
    """Read a column of scores, ignoring stray quotes; NaN becomes null."""
    texts = pa.array(sheet.texts(name), pa.string())
    bare = pc.utf8_trim(texts, '"')
    if stray := pc.sum(pc.not_equal(texts, bare)).as_py():
        notes.append(f"{stray} cells of {name} contained a stray quote, which was removed")
    numbers = Sheet(url=sheet.url, names=[name], table=pa.table({name: bare})).numbers(name)
    return pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)


CHECK_SHAPES_FOLDER_REMEDY = "check that this is a folder of the shapes benchmark"
EMPTY_NAME = ""  # subset of a prompt without skills, and node of an image without errors
REQUIREMENTS_TABLE = "requirements"
TRUTH_TABLE = "truth"  # the table with the errors of images, and the rater of the words


def read_shapes(place: Place) -> Release:
    """Read the embedded benchmark of simple shapes, drawn by synthetic generators and rated 1 to 5 by synthetic raters.

    Every prompt has a graph, whose subset is the prompt's last (most specific) skill.

    Source: a folder in the format that assets/making/tables.py writes, such as assets/shapes: prompts.parquet
    (prompt_id, text, skills), truth.parquet (image_id, prompt_id, generator, broken: the requirements that the image
    violates), ratings.parquet (image_id, rater, rating) and, for the words, requirements.parquet (prompt_id,
    requirement_id, start, end). An image's errors are known: its node is the set of requirements that it violates. The
    words of these requirements are not aligned; words that belong to no requirement are not rated.
    """
    prompts = _read_table(place, "prompts", ("prompt_id", "skills"))
    truth = _read_table(place, TRUTH_TABLE, ("image_id", "prompt_id", "generator", "broken"))
    rated = _read_table(place, "ratings", ("image_id", "rater", "rating"))
    skills = dict(zip(prompts.ids("prompt_id"), prompts.lists("skills"), strict=True))
    nodes = []
    origins: dict[str, tuple[str, str]] = {}
    rows_by_image: dict[str, str] = {}
    images = zip(*map(truth.ids, ("image_id", "prompt_id", "generator")), truth.lists("broken"), strict=True)
    for row, (image_id, prompt_id, generator, requirements) in enumerate(images):
        record_unique_key(rows_by_image, image_id, truth.where(row), f"image {image_id!r} occurs twice")
        origins[image_id] = (prompt_id, generator)
        errors = sorted(requirements)
        graph = {"graph_id": prompt_id, "subset": (skills.get(prompt_id) or [EMPTY_NAME])[-1]}
        node = {"node": "+".join(errors) or EMPTY_NAME, "level": len(errors)}
        nodes.append({**graph, **node, "image_id": image_id, "generator": generator})
    image_ids, values = rated.ids("image_id"), rated.numbers("rating").to_pylist()
    for row, image_id in enumerate(image_ids):
        if image_id not in origins:
            raise SourceError(
                f"{rated.where(row)}: image {image_id!r} is not in truth.parquet; {CHECK_SHAPES_FOLDER_REMEDY}"
            )
    prompt_ids, generators = zip(*(origins[image_id] for image_id in image_ids), strict=True)
    ratings = make_column_ratings(
        rated, image_ids, prompt_ids, values, generators=generators, raters=rated.ids("rater")
    )
    words = _read_words(place, truth) if exists(place / f"{REQUIREMENTS_TABLE}.parquet") else ()
    require_few_walks(place.url, nodes)
    return released(ratings=ratings, graph_nodes=nodes, words=words, skills=skills)


def _read_words(place: Place, truth: Sheet) -> Iterator[WordRating]:
    """Yield the words of every requirement; a word is aligned in the images that meet its requirement."""
    required = _read_table(place, REQUIREMENTS_TABLE, ("prompt_id", "requirement_id", "start", "end"))
    prompts = _read_table(place, "prompts", ("prompt_id", "text"))
    texts = dict(zip(prompts.ids("prompt_id"), prompts.ids("text"), strict=True))
    spans: dict[str, list[tuple[str, int, int]]] = {}
    columns = (required.ids("prompt_id"), required.ids("requirement_id"), *map(required.integers, ("start", "end")))
    for prompt, requirement, first, last in zip(*columns, strict=True):
        if first is not None and last is not None:
            spans.setdefault(prompt, []).append((requirement, first, last))
    images = zip(*map(truth.ids, ("image_id", "prompt_id", "generator")), truth.lists("broken"), strict=True)
    for row, (image, prompt, generator, broken) in enumerate(images):
        for requirement, first, last in spans.get(prompt, ()):
            aligned = float(requirement not in broken)
            for word, start, end in split_words(texts.get(prompt, "")[first:last]):
                span = (first + start, first + end)
                yield WordRating(image, prompt, generator, TRUTH_TABLE, word, *span, aligned, truth.where(row))


def _read_table(folder: Place, name: str, columns: tuple[str, ...]) -> Sheet:
    return read_sheet(folder / f"{name}.parquet", columns).require(columns, CHECK_SHAPES_FOLDER_REMEDY)


REQUIRED_COLUMNS = ("graph_id", "prompt", "node", "parents", "errors")
GRAPH_COLUMNS = ("prompt", "subset", "prompt_source")  # they must be equal in all rows of a graph
DEFAULT_SUBSET = "own"  # subset of graphs without one
MAX_WALKS = 10_000  # in a graph, because measures iterate over all walks; the 165 released graphs have 2,121


class _Node(NamedTuple):
    parents: Sequence[str]
    errors: Sequence[str]
    where: str  # file and the node's first row


def read_error_graphs(place: Place) -> Release:
    """Read users' own error graphs (T2IScoreScore, section 3.2); raise SourceError naming the first invalid row.

    A table (.csv, .tsv, .jsonl, .json or .parquet) with a row per image:
    - graph_id, and prompt, which is the same in all rows of a graph;
    - image_id, or the image's path in a column that plumbline score recognises, which is then its id;
    - node: a name shared by images with the same errors;
    - parents: nodes with fewer errors; empty for the graph's only root;
    - errors: all errors of the node, as `type: error`; empty for the root. Several parents or errors are given as
      a list, or as a string with semicolons between them;
    - optionally subset (synth, nat, real), generator and prompt_source.
    """
    sheet, names, image_column = read_image_rows(
        place, (*REQUIRED_COLUMNS, *GRAPH_COLUMNS, *DEFAULT_COLUMN_NAMES["generator"])
    )
    sheet.require([*REQUIRED_COLUMNS, image_column], SEE_EXAMPLE_REMEDY)
    graphs = _read_graphs(sheet)
    for graph_id, nodes in graphs.items():
        _check_graph(f"graph {graph_id!r}", nodes)
    rows: list[dict[str, Any]] = []
    rows_by_image: dict[str, str] = {}
    ids = map(sheet.ids, (image_column, "graph_id", "node"))
    texts = map(sheet.texts, (names.generator or "", "subset", "prompt_source"))
    for row, (image, graph, name, generator, subset, source) in enumerate(zip(*ids, *texts, strict=True)):
        record_unique_key(rows_by_image, image, sheet.where(row), f"image {image!r} occurs twice")
        parents, errors, _ = graphs[graph][name]
        node = {"node": name, "level": len(errors), "parents": parents, "errors": errors}
        origin = {"generator": generator, "prompt_source": source}
        rows.append({"graph_id": graph, "subset": subset or DEFAULT_SUBSET, "image_id": image, **node, **origin})
    require_few_walks(sheet.url, rows)
    return released(graph_nodes=rows)


def _read_graphs(sheet: Sheet) -> dict[str, dict[str, _Node]]:
    graphs: dict[str, dict[str, _Node]] = {}
    first_values: dict[tuple[str, ...], tuple[Any, str]] = {}
    sheet.ids("prompt")  # raises if a cell is empty
    cells = zip(*map(sheet.ids, ("graph_id", "node")), *map(sheet.lists, ("parents", "errors")), strict=True)
    graph_columns = {name: sheet.texts(name) for name in GRAPH_COLUMNS}
    for row, (graph_id, name, *lists) in enumerate(cells):
        where, graph, node = sheet.where(row), f"graph {graph_id!r}", f"node {name!r}"
        parents, errors = (sorted({text.strip() for text in texts}) for texts in lists)
        values: dict[tuple[str, ...], Any] = {(graph, column): texts[row] for column, texts in graph_columns.items()}
        for key, value in (values | {(graph, node, "parents"): parents, (graph, node, "errors"): errors}).items():
            first, first_row = first_values.setdefault(key, (value, where))
            if value != first:
                raise SourceError(
                    f"{where}: {', '.join(key)}: expected {first!r}, as in {first_row}, found {value!r}; use the "
                    "same value in all rows"
                )
        graphs.setdefault(graph_id, {}).setdefault(name, _Node(parents, errors, where))
    return graphs


def _check_graph(graph: str, nodes: Mapping[str, _Node]) -> None:
    """Raise SourceError unless the nodes form an acyclic graph with a single root, and every edge adds errors."""
    for name, node in nodes.items():
        for parent in node.parents:
            if parent not in nodes:
                raise SourceError(
                    f"{node.where}: {graph}: node {parent!r}, a parent of {name!r}, has no image; add a row with its "
                    f"image, or correct the parents of {name!r}"
                )
    try:
        TopologicalSorter({name: node.parents for name, node in nodes.items()}).prepare()
    except CycleError as error:
        cycle = error.args[1]
        raise SourceError(
            f"{nodes[cycle[0]].where}: {graph} has a cycle, {' -> '.join(cycle)}; remove one of these nodes from "
            "the parents of the next"
        ) from error
    root, *others = (name for name, node in nodes.items() if not node.parents)
    if others:
        raise SourceError(
            f"{nodes[others[0]].where}: {graph} has two roots, {others[0]!r} and {root!r} ({nodes[root].where}); "
            "fill in the parents of all nodes except one"
        )
    if nodes[root].errors:
        raise SourceError(
            f"{nodes[root].where}: {graph}: expected no errors in the root {root!r}, found "
            f"{'; '.join(nodes[root].errors)}; fill in its parents, or leave errors empty"
        )
    for name, node in nodes.items():
        for parent in node.parents:
            if len(node.errors) <= len(nodes[parent].errors):
                raise SourceError(
                    f"{node.where}: {graph}: expected more errors in node {name!r} than in its parent {parent!r}, "
                    f"found {len(node.errors)} and {len(nodes[parent].errors)}; list all errors of each node"
                )


def require_few_walks(url: str, nodes: Iterable[Mapping[str, Any]]) -> None:
    """Raise SourceError if a graph (rows in schema GRAPH_NODES) has more walks than MAX_WALKS.

    A level is the set of nodes with the same number of errors. A walk visits one node at every level, but two (possibly
    the same one twice) at the level without errors.
    """
    levels: dict[str, dict[int, set[str]]] = {}
    for node in nodes:
        levels.setdefault(node["graph_id"], {}).setdefault(node["level"], set()).add(node["node"])
    for graph_id, by_level in levels.items():
        walks = math.prod(len(names) ** (2 if level == 0 else 1) for level, names in by_level.items())
        if walks > MAX_WALKS:
            raise SourceError(
                f"{url}: graph {graph_id!r}: expected at most {MAX_WALKS:,} walks, each with one node for each number "
                f"of errors, found {walks:,}; split the graph"
            )
