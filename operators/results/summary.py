"""Summarises scores: each generator's mean by metric, overall and by skill, with its interval and coverage."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from plumbline.operators.base import rows, schemas
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.statistics.poisson_bootstrap import compute_ratio_intervals, compute_weighted_sums, hash_ids
from plumbline.operators.statistics.rounding import compute_order_independent_sums, merge_equal

OVERALL = "overall"
PROMPTS_AT_ONCE = 4096
Floats = NDArray[np.float64]

TALLIES_SCHEMA = pa.schema(
    [
        *schemas.texts("generator", "metric", "skill"),
        *schemas.floats("rows", "n", "mean", "squares"),
        ("totals", pa.list_(pa.float64())),
        ("counts", pa.list_(pa.float64())),
    ]
)
"""Schema of a stored tally: the sums for each generator, metric and skill that has rows."""


class Skills:
    """Skills of all prompts, stored in 12 bytes per prompt; tallies and comparisons share one such object.

    Every prompt has the skill `overall`. A prompt whose skills are unknown has no other skill.
    """

    def __init__(self, skills: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Store the skills of each prompt, given pairs of a prompt_id and the names of the prompt's skills."""
        sets: dict[tuple[str, ...], int] = {(): 0}
        hashes, set_of = [np.zeros(0, np.uint64)], [np.zeros(0, np.int32)]
        pairs = iter(skills)
        while some := list(islice(pairs, PROMPTS_AT_ONCE)):
            hashes.append(hash_ids([prompt for prompt, _ in some]))
            numbers = [sets.setdefault(tuple(of_prompt), len(sets)) for _, of_prompt in some]
            set_of.append(np.array(numbers, np.int32))
        prompts = np.concatenate(hashes)
        order = np.argsort(prompts)
        self._prompts, self._set_of = prompts[order], np.concatenate(set_of)[order]
        self._sets = list(sets)
        self.names = [OVERALL, *sorted({skill for of_set in sets for skill in of_set} - {OVERALL})]
        self._member = np.array([[name == OVERALL or name in of_set for name in self.names] for of_set in sets])

    def __len__(self) -> int:
        return len(self._prompts)

    def _find_set_numbers(self, prompts: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the index of each prompt's set of skills, or 0, the index of the empty set, for an unknown prompt."""
        if not len(self):
            return np.zeros(len(prompts), np.int32)
        indices = np.minimum(np.searchsorted(self._prompts, prompts), len(self) - 1)
        return np.where(self._prompts[indices] == prompts, self._set_of[indices], 0)

    def compute_membership(self, prompts: NDArray[np.uint64]) -> Floats:
        """Return a matrix (prompts, skills) with 1 if the prompt, given by its hash, has the skill, and 0 otherwise."""
        return self._member[self._find_set_numbers(prompts)].astype(np.float64)

    def iterate_masks(self, prompts: NDArray[np.uint64]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Yield (skill, mask of the prompts with this skill), given the prompts' hashes; `overall` comes first."""
        numbers = self._find_set_numbers(prompts)
        for column, name in enumerate(self.names):
            yield name, self._member[:, column][numbers]

    def find(self, prompt_id: str) -> tuple[str, ...]:
        """Return the skills of a prompt in their original order, without `overall`."""
        return self._sets[int(self._find_set_numbers(hash_ids([prompt_id]))[0])]


@dataclass(slots=True)
class ScoreSums:
    """Sums from which the mean of a generator's scores on one metric, and its interval, are computed.

    Each array is indexed by skill, with `overall` first. `merge` combines the sums of several parts.
    """

    rows: Floats
    """Number of rows by skill."""
    n: Floats
    """Number of rows with a score, by skill."""
    mean: Floats
    squares: Floats
    """Sums of squared differences from the mean, by skill."""
    totals: Floats = field(repr=False)
    """Weighted sums of scores, by skill and resample."""
    counts: Floats = field(repr=False)
    """Weighted counts of scores, by skill and resample."""

    def merge(self, other: "ScoreSums") -> None:
        """Add the sums of other rows (means and squares as in Chan, Golub and LeVeque 1983)."""
        n = self.n + other.n
        apart = other.mean - self.mean
        share = np.divide(other.n, n, out=np.zeros_like(n), where=n > 0)
        self.squares = self.squares + (other.squares + apart**2 * self.n * share)
        self.mean = self.mean + apart * share
        self.rows, self.n = self.rows + other.rows, n
        self.totals, self.counts = self.totals + other.totals, self.counts + other.counts


class Tally:
    """Sums of scores by metric, generator and skill, built from parts in any order; tallies can be stored and merged.

    A null score counts in `n_null` but not in the mean; coverage = n / (n + n_null). Intervals come from a Poisson
    bootstrap over prompts, and do not depend on how the rows are divided into parts.
    """

    def __init__(self, skills: Skills) -> None:
        self.skills = skills
        self.sums: dict[tuple[str, str], ScoreSums] = {}

    def merge(self, sums: Mapping[tuple[str, str], ScoreSums]) -> None:
        """Add the sums, by metric and generator, of another tally with the same skills."""
        for key, own in sums.items():
            if key in self.sums:
                self.sums[key].merge(own)
            else:
                self.sums[key] = own

    def to_table(self) -> pa.Table:
        """Return the tally as a table (schema TALLIES_SCHEMA), omitting skills without rows."""
        return rows.table(
            [
                {"generator": generator, "metric": metric, "skill": skill}
                | {name: getattr(sums, name)[index] for name in TALLIES_SCHEMA.names[3:]}
                for (generator, metric), sums in self.sums.items()
                for index, skill in enumerate(self.skills.names)
                if sums.rows[index]
            ],
            TALLIES_SCHEMA,
        )

    def merge_table(self, table: pa.Table) -> None:
        """Add a stored tally; raise KeyError if it has a skill that no prompt has."""
        index_of = {skill: index for index, skill in enumerate(self.skills.names)}
        for (generator, metric), frame in table.to_pandas().groupby(["generator", "metric"], sort=False):
            indices = [index_of[skill] for skill in frame["skill"]]
            columns = {}
            for name in TALLIES_SCHEMA.names[3:]:
                stored = np.stack(frame[name].to_list())
                columns[name] = np.zeros((len(index_of), *stored.shape[1:]))
                columns[name][indices] = stored
            self.merge({(str(generator), str(metric)): ScoreSums(**columns)})

    def make_summary(self) -> pa.Table:
        """Return the summary (schema SUMMARY), highest overall mean first within each metric, omitting empty skills."""
        tables, skills = [], self.skills.names
        for (generator, metric), sums in self.sums.items():
            low, high = compute_ratio_intervals(sums.totals, sums.counts)
            with np.errstate(invalid="ignore", divide="ignore"):
                sem = np.where(sums.n > 1, np.sqrt(sums.squares / (sums.n - 1) / sums.n), np.nan)
            columns = {
                "generator": [generator] * len(skills),
                "metric": [metric] * len(skills),
                "skill": skills,
                "mean": np.where(sums.n > 0, sums.mean, np.nan),
                "low": low,
                "high": high,
                "sem": sem,
                "n": sums.n.astype(np.int64),
                "n_null": (sums.rows - sums.n).astype(np.int64),
                "coverage": sums.n / np.maximum(sums.rows, 1),
            }
            # from_pandas: nan becomes null
            arrays = [pa.array(columns[field.name], field.type, from_pandas=True) for field in schemas.SUMMARY]
            tables.append(pa.table(arrays, schema=schemas.SUMMARY).filter(pa.array(sums.rows > 0)))
        return sort_best_first(pa.concat_tables(tables)) if tables else schemas.SUMMARY.empty_table()


def tally_tables(tables: Sequence[pa.Table], skills: Skills) -> list[Tally]:
    """Return a tally of each table; the tables must have the columns generator, metric, prompt_id and score.

    Tables with the same prompts share the bootstrap's weights, because drawing the weights takes most of the time.
    """
    tallies = [Tally(skills) for _ in tables]
    by_prompts: dict[bytes, list[tuple[_EncodedPrompts, ScoreSums, Callable[[slice], Floats]]]] = {}
    prompts: _EncodedPrompts | None = None
    for table, tally in zip(tables, tallies, strict=True):
        keys = table.select(["generator", "metric"]).group_by(["generator", "metric"], use_threads=False).aggregate([])
        for generator, metric in zip(*(column.to_pylist() for column in keys.columns), strict=True):
            own = table
            if len(keys) > 1:
                own = table.filter(pc.and_(pc.equal(table["generator"], generator), pc.equal(table["metric"], metric)))
            if prompts is None or not own.column("prompt_id").equals(prompts.column):
                prompts = _encode_prompts(own.column("prompt_id"), skills)
            sums, values = _sum_scores(own.column("score"), prompts)
            tally.sums[generator, metric] = sums
            by_prompts.setdefault(prompts.hashes.tobytes(), []).append((prompts, sums, values))
    for group in by_prompts.values():
        weighted = compute_weighted_sums(group[0][0].hashes, [values for _, _, values in group])
        for (_, sums, _), both in zip(group, weighted, strict=True):
            sums.totals, sums.counts = np.split(both, 2)
    return tallies


class _EncodedPrompts(NamedTuple):
    column: pa.ChunkedArray
    """The prompt_id of each row."""
    codes: NDArray[np.int32]
    """Index of each row's prompt in `hashes`."""
    hashes: NDArray[np.uint64]
    """Hashes of the prompts' ids in ascending order."""
    member: Floats
    """Matrix (prompts, skills) with 1 if the prompt has the skill, and 0 otherwise."""


def _encode_prompts(column: pa.ChunkedArray, skills: Skills) -> _EncodedPrompts:
    encoded = column.fill_null("").combine_chunks().dictionary_encode()
    hashes = hash_ids(encoded.dictionary.to_numpy(zero_copy_only=False))
    order = np.argsort(hashes)  # so that sums over prompts do not depend on the order of the rows
    codes = np.empty(len(hashes), np.int32)
    codes[order] = np.arange(len(hashes))
    return _EncodedPrompts(
        column, codes[encoded.indices.to_numpy()], hashes[order], skills.compute_membership(hashes[order])
    )


def _sum_scores(scores: pa.ChunkedArray, prompts: _EncodedPrompts) -> tuple[ScoreSums, Callable[[slice], Floats]]:
    """Sum one generator's scores on one metric.

    Returns:
        The sums, whose fields for the bootstrap (totals and counts) are still empty, and a function that returns the
        values to resample. This function takes a slice of the prompts and returns the sum and the number of each
        prompt's scores by skill, with the shape (prompts, 2 x skills).
    """
    _, codes, hashes, member = prompts
    values = scores.to_numpy().astype(np.float64)
    scored = ~np.isnan(values)
    codes_scored, values = codes[scored], values[scored]
    n = np.bincount(codes_scored, minlength=len(hashes)).astype(np.float64)
    total = compute_order_independent_sums(values, codes_scored, len(hashes))
    own_mean = _divide_or_zero(total, n)
    own_squares = compute_order_independent_sums((values - own_mean[codes_scored]) ** 2, codes_scored, len(hashes))
    n_of_skill = member.T @ n
    mean = _divide_or_zero(member.T @ total, n_of_skill)
    apart = (own_mean[:, None] - mean[None, :]) ** 2 * n[:, None] + own_squares[:, None]
    each = np.stack([total, n], axis=1)

    def read_values(part: slice) -> Floats:
        return (each[part, :, None] * member[part, None, :]).reshape(-1, 2 * member.shape[1])

    sums = ScoreSums(
        rows=member.T @ np.bincount(codes, minlength=len(hashes)).astype(np.float64),
        n=n_of_skill,
        mean=mean,
        squares=(member * apart).sum(axis=0),
        totals=np.zeros(0),
        counts=np.zeros(0),
    )
    return sums, read_values


def _divide_or_zero(total: Floats, n: Floats) -> Floats:
    return np.divide(total, n, out=np.zeros_like(total), where=n > 0)


def sort_best_first(summary: pa.Table, lower_is_better: Container[str] = ()) -> pa.Table:
    """Sort a summary by metric, then by skill (`overall` first), and then from the best mean to the worst.

    For the metrics in `lower_is_better`, the lowest mean is best. Generators without a mean come last in their group.
    """
    frame = summary.select(["metric", "skill", "generator", "mean"]).to_pandas()
    means = frame.groupby(["metric", "skill"])["mean"].transform(lambda mean: merge_equal(mean.to_numpy(np.float64)))
    worth = means * np.array([get_direction(metric, lower_is_better) for metric in frame["metric"]], np.float64)
    ordered = frame.assign(later=frame["skill"].ne(OVERALL), worth=worth).sort_values(
        ["metric", "later", "skill", "worth", "generator"], ascending=[True, True, True, False, True]
    )
    return summary.take(ordered.index.to_numpy())


def describe_part(manifest: Mapping[str, Any]) -> str:
    """Return text such as `12 of 256 prompts` if only part of a benchmark was scored; empty otherwise."""
    counts = [manifest[name] for name in ("seen", "limited") if manifest.get(name)]
    if not counts or counts[0]["prompts"] == counts[-1]["of_prompts"]:
        return ""
    return f"{counts[0]['prompts']:,} of {counts[-1]['of_prompts']:,} prompts"
