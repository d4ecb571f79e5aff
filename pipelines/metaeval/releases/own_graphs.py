"""Error graphs that users build for prompts of their own (T2IScoreScore, section 3.2)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.releases.image_rows import REMEDY, read_image_rows
from plumbline.pipelines.metaeval.releases.release import Release, released, remember
from plumbline.pipelines.metaeval.releases.sheets import Sheet
from plumbline.pipelines.sources.input_columns import DEFAULT_NAMES

NEEDED = ("graph_id", "prompt", "node", "parents", "errors")
OF_GRAPH = ("prompt", "subset", "prompt_source")
"""Columns that must be equal in all rows of a graph."""
OWN = "own"
"""Subset of graphs without one."""
MAX_WALKS = 10_000
"""Largest number of walks in a graph, because measures iterate over all walks. The 165 released graphs have 2,121."""


class _Node(NamedTuple):
    """A node of a graph."""

    parents: Sequence[str]
    errors: Sequence[str]
    where: str
    """File and the node's first row."""


def read_error_graphs(place: Place) -> Release:
    """Read users' own error graphs; raise SourceError naming the row that does not fit in a graph.

    A table (.csv, .tsv, .jsonl, .json or .parquet) with a row per image:
    - graph_id, and prompt, which is the same in all rows of a graph;
    - image_id, or the image's path under a name that plumbline score knows, which is then its id;
    - node: a name for images with the same errors;
    - parents: nodes with fewer errors, empty for the graph's only root;
    - errors: all errors of the node, as `type: error`, empty for the root; several parents or errors are a list, or
      text with semicolons between them;
    - optionally subset (synth, nat, real), generator and prompt_source.
    """
    sheet, names, image_id = read_image_rows(place, (*NEEDED, *OF_GRAPH, *DEFAULT_NAMES["generator"]))
    sheet.require([*NEEDED, image_id], REMEDY)
    graphs = _read_graphs(sheet)
    for graph_id, nodes in graphs.items():
        _check_graph(f"graph {graph_id!r}", nodes)
    images = _unique(sheet, image_id)
    columns = zip(
        *map(sheet.ids, ("graph_id", "node")), *map(sheet.texts, (names.generator or "", *OF_GRAPH[1:])), strict=True
    )
    rows = [
        {
            **{"graph_id": graph, "subset": subset or OWN, "image_id": image, "node": name},
            **{"level": len(node.errors), "parents": node.parents, "errors": node.errors},
            **{"generator": generator, "prompt_source": source},
        }
        for image, (graph, name, generator, subset, source) in zip(images, columns, strict=True)
        for node in [graphs[graph][name]]
    ]
    require_few_walks(sheet.url, rows)
    return released(graph_nodes=rows)


def _unique(sheet: Sheet, name: str) -> list[str]:
    """Return the images' ids; raise SourceError naming the row of an image that occurs twice."""
    places: dict[str, str] = {}
    images = sheet.ids(name)
    for row, image in enumerate(images):
        remember(places, image, sheet.where(row), f"image {image!r} occurs twice")
    return images


def _read_graphs(sheet: Sheet) -> dict[str, dict[str, _Node]]:
    """Return the nodes by graph and name; raise SourceError if two rows contradict each other."""
    graphs: dict[str, dict[str, _Node]] = {}
    first_values: dict[tuple[str, ...], tuple[Any, str]] = {}
    sheet.ids("prompt")
    cells = zip(*map(sheet.ids, ("graph_id", "node")), *map(sheet.lists, ("parents", "errors")), strict=True)
    graph_columns = {name: sheet.texts(name) for name in OF_GRAPH}
    for row, (graph_id, name, parents, errors) in enumerate(cells):
        where, graph = sheet.where(row), f"graph {graph_id!r}"
        node = _Node(_sort(parents), _sort(errors), where)
        for column, texts in graph_columns.items():
            _require_same(first_values, (graph, column), texts[row], where)
        for column in ("parents", "errors"):
            _require_same(first_values, (graph, f"node {name!r}", column), getattr(node, column), where)
        graphs.setdefault(graph_id, {}).setdefault(name, node)
    return graphs


def _sort(texts: Sequence[str]) -> list[str]:
    return sorted({text.strip() for text in texts})


def _require_same(
    first_values: dict[tuple[str, ...], tuple[Any, str]], key: tuple[str, ...], value: Any, where: str
) -> None:
    first, row = first_values.setdefault(key, (value, where))
    if value != first:
        raise SourceError(
            f"{where}: {', '.join(key)}: expected {first!r}, as in {row}, found {value!r}; write the same in all rows"
        )


def _check_graph(graph: str, nodes: Mapping[str, _Node]) -> None:
    """Raise SourceError unless the nodes are an acyclic graph with a single root, and every edge adds errors."""
    for name, node in nodes.items():
        for parent in node.parents:
            if parent not in nodes:
                raise SourceError(
                    f"{node.where}: {graph}: node {parent!r}, a parent of {name!r}, has no image; add a row with an "
                    "image of it, or correct parents"
                )
    try:
        TopologicalSorter({name: node.parents for name, node in nodes.items()}).prepare()
    except CycleError as error:
        cycle = error.args[1]
        raise SourceError(
            f"{nodes[cycle[0]].where}: {graph} has a cycle, {' -> '.join(cycle)}; take one of these nodes from the "
            "parents of the next"
        ) from error
    root, *others = (name for name, node in nodes.items() if not node.parents)
    if others:
        raise SourceError(
            f"{nodes[others[0]].where}: {graph} has two roots, {others[0]!r} and {root!r} ({nodes[root].where}); name "
            "the parents of all nodes but one"
        )
    _check_errors(graph, nodes, root)


def _check_errors(graph: str, nodes: Mapping[str, _Node], root: str) -> None:
    """Raise SourceError if the root has errors, or if a node does not have more errors than its parents."""
    if nodes[root].errors:
        raise SourceError(
            f"{nodes[root].where}: {graph}: expected no errors of the root {root!r}, found "
            f"{'; '.join(nodes[root].errors)}; name its parents, or leave errors empty"
        )
    for name, node in nodes.items():
        for parent in node.parents:
            if len(node.errors) <= len(nodes[parent].errors):
                raise SourceError(
                    f"{node.where}: {graph}: expected more errors of node {name!r} than of its parent {parent!r}, "
                    f"found {len(node.errors)} and {len(nodes[parent].errors)}; write all errors of every node"
                )


def require_few_walks(url: str, nodes: Iterable[Mapping[str, Any]]) -> None:
    """Raise SourceError if a graph (rows in schema GRAPH_NODES) has more walks than MAX_WALKS.

    A walk has one node of every level, and two roots.
    """
    levels: dict[str, dict[int, set[str]]] = {}
    for node in nodes:
        levels.setdefault(node["graph_id"], {}).setdefault(node["level"], set()).add(node["node"])
    for graph_id, by_level in levels.items():
        walks = math.prod(len(names) ** (2 if level == 0 else 1) for level, names in by_level.items())
        if walks > MAX_WALKS:
            raise SourceError(
                f"{url}: graph {graph_id!r}: expected at most {MAX_WALKS:,} walks, which take one node for each number "
                f"of errors, found {walks:,}; split the graph"
            )
