"""Sources of the images and prompts of error graphs, and types of their errors (T2IScoreScore, figure 2)."""

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa

from plumbline.operators.base import schemas
from plumbline.operators.base.sentences import NOTHING, ShownTable, number
from plumbline.operators.metaeval.graphs import split_subsets

COUNTED = {"images": "source", "prompts": "source", "errors": "type"}
"""Heading of the column of names, by the things that are counted."""
CAPTION = {
    "images": "Images by what made them.",
    "prompts": "Graphs by where their prompts come from.",
    "errors": "Errors that edges add to a parent's, by type.",
}
NO_TYPE = "no type"
"""The type of an error that is written without one."""


def count_contents(graph_nodes: pa.Table) -> pd.DataFrame:
    """Return the number and share of images by source, prompts by source and errors by type (schema GRAPH_CONTENTS).

    They are of all graphs, then by subset. An error is counted once for every edge that adds it. Unknown sources and
    types are left out.
    """
    nodes = graph_nodes.to_pandas()
    columns = {
        "images": nodes[["subset", "generator"]],
        "prompts": nodes.groupby("graph_id")[["subset", "prompt_source"]].first(),
        "errors": pd.DataFrame(_added_types(nodes), columns=["subset", "type"]),
    }
    found = [
        (about, subset, str(name), int(n), n / len(rows))
        for about, frame in columns.items()
        for subset, rows in split_subsets(frame.dropna()).items()
        for name, n in rows.iloc[:, 1].value_counts().items()
    ]
    return pd.DataFrame(found, columns=schemas.GRAPH_CONTENTS.names)


def _added_types(nodes: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield the subset and the type of every error that an edge adds."""
    known = nodes[nodes["parents"].notna() & nodes["errors"].notna()].drop_duplicates(["graph_id", "node"])
    errors = {(node.graph_id, node.node): {*node.errors} for node in known.itertuples()}
    for node in known.itertuples():
        for parent in node.parents:
            for error in sorted(errors[node.graph_id, node.node] - errors[node.graph_id, parent]):
                name, is_typed, _ = error.partition(":")
                yield node.subset, name.strip() if is_typed else NO_TYPE


def contents_tables(contents: pd.DataFrame) -> list[ShownTable]:
    """Return a table of each kind: sources or types down, subsets across, as `46.2% (1312)`."""
    tables = []
    for about, rows in contents.groupby("about", sort=False):
        cells = {
            (row.name, row.subset): f"{number(100 * row.share, 1)}% ({row.n})" for row in rows.itertuples(index=False)
        }
        names, subsets = (list(dict.fromkeys(rows[column])) for column in ("name", "subset"))
        lines = [(name, *(cells.get((name, subset), NOTHING) for subset in subsets)) for name in names]
        title = f"{about} of the error graphs"
        tables.append(ShownTable(title, CAPTION[str(about)], (COUNTED[str(about)], *subsets), lines))
    return tables
