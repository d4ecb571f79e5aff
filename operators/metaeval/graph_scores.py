"""Scores of the images of error graphs, one by one and by node (T2IScoreScore, figures 4 and 9)."""

import numpy as np
import pandas as pd
import pyarrow as pa

from plumbline.operators.base import schemas
from plumbline.operators.metaeval.matching import metric_columns


def score_nodes(graph_nodes: pa.Table, scores: pa.Table) -> pd.DataFrame:
    """Return the score of every image of the graphs by each metric, as the metric returns it (schema GRAPH_IMAGES).

    Rows are in the order of the graphs and their levels. An image that a metric did not score has no score.
    """
    nodes = graph_nodes.select(["graph_id", "subset", "node", "level", "image_id"]).to_pandas()
    order = pd.DataFrame({"graph": pd.factorize(nodes["graph_id"])[0], **nodes[["level", "node", "image_id"]]})
    nodes = nodes.loc[order.sort_values([*order.columns]).index]
    wide = pd.DataFrame(metric_columns(scores, "image")).reindex(nodes["image_id"])
    columns = [nodes.assign(metric=metric, score=column.to_numpy(np.float64)) for metric, column in wide.items()]
    return pd.concat(columns, ignore_index=True)[schemas.GRAPH_IMAGES.names]


def average_nodes(images: pd.DataFrame) -> pd.DataFrame:
    """Return the mean score of every node's scored images by each metric, and their number (schema GRAPH_MEANS)."""
    keys = [name for name in schemas.GRAPH_MEANS.names if name not in ("n", "mean", "deviation")]
    grouped = images.groupby(keys, sort=False)["score"]
    found = {"n": grouped.count(), "mean": grouped.mean(), "deviation": grouped.std(ddof=0)}
    return pd.DataFrame(found).reset_index()
