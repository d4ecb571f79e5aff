"""Matches scores with judgements of the same image, using ids that both have."""

from collections.abc import Sequence

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import SourceError
from plumbline.operators.metaeval.judgement import convert_to_floats
from plumbline.operators.statistics.options import MATCH_COLUMNS, Match
from plumbline.operators.statistics.rounding import merge_equal

ID_COLUMNS = ("image_id", "prompt_id", "generator")
MAX_LISTED_EXAMPLES = 2


def list_rated_ids(ratings: pa.Table) -> pd.DataFrame:
    """Return image_id, prompt_id and generator of the images that have a rating, without duplicates."""
    return list_distinct_ids(ratings.filter(pc.is_valid(ratings.column("rating"))))


def list_paired_ids(preferences: pa.Table) -> pd.DataFrame:
    """Return image_id, prompt_id and generator of both images of each pair with an answer, without duplicates."""
    decided = preferences.filter(pc.is_valid(preferences.column("preferred")))
    names = [[name_side_columns(side).get(name, name) for name in ID_COLUMNS] for side in "ab"]
    return list_distinct_ids(pa.concat_tables([decided.select(own).rename_columns(ID_COLUMNS) for own in names]))


def list_scored_ids(scores: pa.Table) -> pd.DataFrame:
    """Return image_id, prompt_id and generator of the images that have a finite score, without duplicates."""
    return list_distinct_ids(scores.filter(pc.fill_null(pc.is_finite(scores.column("score")), False)))


def list_distinct_ids(judged: pa.Table) -> pd.DataFrame:
    """Return image_id, prompt_id and generator of a table's images, without duplicates.

    Tables of pairings and of error graphs lack some of these columns; their values are then missing.
    """
    columns = [name for name in ID_COLUMNS if name in judged.column_names]
    return judged.select(columns).to_pandas().reindex(columns=list(ID_COLUMNS)).drop_duplicates(ignore_index=True)


def count_shared_images(judged: pd.DataFrame, scored: pd.DataFrame, match: Match) -> int:
    """Return the number of images that occur in both tables of ids, compared by the id columns of `match`."""
    keys = list(MATCH_COLUMNS[match])
    judged_keys, scored_keys = (ids[keys].dropna().drop_duplicates() for ids in (judged, scored))
    return len(judged_keys.merge(scored_keys)) if len(judged_keys) and len(scored_keys) else 0


def choose_match(judged: pd.DataFrame, scored: pd.DataFrame) -> Match:
    """Return the id columns to match images by: the ids that the most images share; the first if several tie."""
    choices: tuple[Match, ...] = ("image", "image_and_prompt", "prompt_and_generator")
    return max(choices, key=lambda match: count_shared_images(judged, scored, match))


def format_examples(ids: pd.DataFrame, columns: Sequence[str]) -> str:
    """Return text with a few example ids of each column, for messages about ids that do not match."""
    parts = []
    for column in columns:
        some = ids[column].dropna().unique()[:MAX_LISTED_EXAMPLES]
        parts.append(f"{column} ({', '.join(map(repr, some))})" if len(some) else f"no {column}")
    return ", ".join(parts)


def complete_ids(table: pa.Table, ids: pd.DataFrame, side: str = "") -> pa.Table:
    """Return the table with missing prompt ids and generators filled in from `ids`, by image_id.

    The table contains ratings, scores or choices. For choices, only the image on `side` (a or b) is completed. An
    image_id with several prompts or generators in `ids` is not completed.
    """
    names = name_side_columns(side)
    for column in ("prompt_id", "generator"):
        name = names.get(column, column)
        if table.column(name).null_count:
            pairs = ids[["image_id", column]].dropna().drop_duplicates()
            only = pairs[~pairs.duplicated("image_id", keep=False)].set_index("image_id")[column]
            images = table.column(names.get("image_id", "image_id")).to_pandas()
            filled = pc.coalesce(table.column(name), pa.Array.from_pandas(images.map(only), type=pa.string()))
            table = table.set_column(table.schema.get_field_index(name), name, filled)
    return table


def name_side_columns(side: str) -> dict[str, str]:
    """Return the names of id columns in a table of choices, for the image on `side`, such as `image_a` for `image_id`.

    The result is empty if `side` is empty.
    """
    return {"image_id": f"image_{side}", "generator": f"generator_{side}"} if side else {}


def copy_ids_from_scores(frame: pd.DataFrame, scores: pa.Table, match: Match, side: str = "") -> pd.DataFrame:
    """Return `frame` with missing prompt ids and generators filled in from the scores of the same images.

    The frame contains ratings or choices. For choices, only the image on `side` (a or b) is completed.
    """
    keys, own = list(MATCH_COLUMNS[match]), name_side_columns(side)
    ids = scores.select(ID_COLUMNS).to_pandas().dropna(subset=keys).drop_duplicates(keys).set_index(keys)
    joined = frame[[own.get(key, key) for key in keys]].set_axis(keys, axis=1).join(ids, on=keys)
    names = {own.get(name, name): joined[name] for name in ids.columns if own.get(name, name) in frame}
    return frame.assign(**{name: column.fillna(frame[name]) for name, column in names.items()})


def select_images(table: pa.Table, ids: pd.DataFrame, match: Match, side: str = "") -> pa.Table:
    """Return the rows of `table` whose image is in `ids`.

    The table contains ratings, scores or choices. For choices, only the image on `side` (a or b) matters.
    """
    keys = MATCH_COLUMNS[match]
    names = name_side_columns(side)
    wanted = pd.MultiIndex.from_frame(ids[list(keys)].dropna())
    images = pd.MultiIndex.from_frame(table.select([names.get(key, key) for key in keys]).to_pandas())
    return table.filter(pa.array(images.isin(wanted)))


def split_by_metric(scores: pa.Table, match: Match) -> dict[str, "pd.Series[float]"]:
    """Return each metric's scores, indexed by image ids; raise SourceError if an image has two scores.

    Scores that differ only by rounding are made equal, so that no statistic ranks one above the other. Rows without
    the ids of an image (for example, because the image is missing) are left out.
    """
    keys = list(MATCH_COLUMNS[match])
    columns = {}
    frame = scores.select([*keys, "metric", "score"]).to_pandas()
    for metric, metric_rows in frame.groupby("metric", sort=False):
        named_rows = metric_rows.dropna(subset=keys)
        twice = named_rows.duplicated(keys)
        if twice.any():
            first = named_rows.loc[twice, keys].iloc[0]
            where = ", ".join(f"{key} {first[key]!r}" for key in keys)
            times = int((named_rows[keys] == first).all(axis=1).sum())
            raise SourceError(f"scores: expected one row of metric {metric} for {where}, found {times}; keep one")
        column = convert_to_floats(named_rows.set_index(keys)["score"])
        columns[str(metric)] = pd.Series(merge_equal(column.to_numpy()), column.index, name="score")
    return columns
