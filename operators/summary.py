"""The summary stage: every generator's mean per metric, overall and per skill, with its interval and coverage."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators import rows, schemas
from plumbline.operators.metrics.metric import direction
from plumbline.operators.statistics.poisson_bootstrap import hash_ids, ratio_intervals, weighted_sums

OVERALL = "overall"
PROMPTS_AT_ONCE = 4096
Floats = NDArray[np.float64]

TALLIES = pa.schema(
    [
        *schemas.texts("generator", "metric", "skill"),
        *schemas.floats("rows", "n", "mean", "squares"),
        ("totals", pa.list_(pa.float64())),
        ("counts", pa.list_(pa.float64())),
    ]
)
"""A tally as it is stored: the sums of each generator, metric and skill that has rows."""


class Skills:
    """The skills of every prompt, laid out once for any number of tallies and comparisons, in 12 bytes a prompt.

    Every prompt also counts under `overall`, and one whose skills are not known under that alone.
    """

    def __init__(self, skills: Iterable[tuple[str, Sequence[str]]]) -> None:
        """`skills` are pairs of a prompt_id and that prompt's skills."""
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
        """How many prompts are known."""
        return len(self._prompts)

    def _numbers(self, prompts: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The number of each prompt's set of skills; 0, the empty one's, of one that is not known."""
        if not len(self):
            return np.zeros(len(prompts), np.int32)
        places = np.minimum(np.searchsorted(self._prompts, prompts), len(self) - 1)
        return np.where(self._prompts[places] == prompts, self._set_of[places], 0)

    def membership(self, prompts: NDArray[np.uint64]) -> Floats:
        """Which prompts, by their ids' hashes, have which skills, (prompts, skills)."""
        return self._member[self._numbers(prompts)].astype(np.float64)

    def each(self, prompts: NDArray[np.uint64]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Every skill, `overall` first, and which prompts, by their ids' hashes, have it."""
        numbers = self._numbers(prompts)
        for place, name in enumerate(self.names):
            yield name, self._member[:, place][numbers]

    def of(self, prompt_id: str) -> tuple[str, ...]:
        """The skills of a prompt, in the order in which they were given."""
        return self._sets[int(self._numbers(hash_ids([prompt_id]))[0])]


@dataclass(slots=True)
class _Sums:
    """One generator's and metric's sums by skill, `overall` first; every one can be added to another's."""

    rows: Floats
    n: Floats
    mean: Floats
    squares: Floats
    """Of the differences from the mean."""
    totals: Floats = field(repr=False)
    """Weighted sums of scores, by skill and resample."""
    counts: Floats = field(repr=False)
    """Weighted numbers of scores, by skill and resample."""

    def merge(self, other: "_Sums") -> None:
        """Adds another's rows (means and squares as in Chan, Golub and LeVeque 1983)."""
        n = self.n + other.n
        apart = other.mean - self.mean
        share = np.divide(other.n, n, out=np.zeros_like(n), where=n > 0)
        self.squares += other.squares + apart**2 * self.n * share
        self.mean += apart * share
        self.rows, self.n = self.rows + other.rows, n
        self.totals += other.totals
        self.counts += other.counts


class Tally:
    """Sums of scores that come part by part, in any order; parts counted apart can be stored and merged.

    A null score is outside the mean and inside `n_null`; coverage = n / (n + n_null). Intervals are a Poisson
    bootstrap over prompts, the same however the rows are cut into parts.
    """

    def __init__(self, skills: Skills) -> None:
        self.skills = skills
        self.sums: dict[tuple[str, str], _Sums] = {}

    def add(self, scores: pa.Table) -> None:
        """Counts the rows of a table with generator, metric, prompt_id and score."""
        frame = scores.select(["generator", "metric", "prompt_id", "score"]).to_pandas()
        for (generator, metric), rows_of_both in frame.groupby(["generator", "metric"], sort=False, observed=True):
            self._merge((str(generator), str(metric)), self._count(rows_of_both))

    def merge(self, other: "Tally") -> None:
        """Adds what another counted, of the same skills."""
        for key, sums in other.sums.items():
            self._merge(key, sums)

    def _merge(self, key: tuple[str, str], sums: _Sums) -> None:
        if key in self.sums:
            self.sums[key].merge(sums)
        else:
            self.sums[key] = sums

    def _count(self, frame: pd.DataFrame) -> _Sums:
        """The sums of one generator's and metric's rows."""
        prompts = frame["prompt_id"].astype(object).where(frame["prompt_id"].notna(), "")
        codes, names = pd.factorize(prompts)
        scores = frame["score"].to_numpy(np.float64)
        scored = ~np.isnan(scores)
        codes_scored, scores = codes[scored], scores[scored]
        hashes = hash_ids(names)
        member = self.skills.membership(hashes)

        def per_prompt(of: NDArray[np.intp], values: Floats | None = None) -> Floats:
            return np.bincount(of, weights=values, minlength=len(names)).astype(np.float64)

        n, total = per_prompt(codes_scored), per_prompt(codes_scored, scores)
        own_mean = _ratio(total, n)
        own_squares = per_prompt(codes_scored, (scores - own_mean[codes_scored]) ** 2)
        n_of_skill = member.T @ n
        mean = _ratio(member.T @ total, n_of_skill)
        apart = (own_mean[:, None] - mean[None, :]) ** 2 * n[:, None] + own_squares[:, None]
        per_prompt_sums = np.stack([total, n], axis=1)
        weighted = weighted_sums(
            hashes, lambda part: (per_prompt_sums[part, :, None] * member[part, None, :]).reshape(-1, 2 * len(mean))
        )
        return _Sums(
            rows=member.T @ per_prompt(codes),
            n=n_of_skill,
            mean=mean,
            squares=(member * apart).sum(axis=0),
            totals=weighted[: len(mean)],
            counts=weighted[len(mean) :],
        )

    def to_table(self) -> pa.Table:
        """The tally (schema TALLIES), without the skills that have no rows."""
        return rows.table(
            [
                {"generator": generator, "metric": metric, "skill": skill}
                | {name: getattr(sums, name)[place] for name in TALLIES.names[3:]}
                for (generator, metric), sums in self.sums.items()
                for place, skill in enumerate(self.skills.names)
                if sums.rows[place]
            ],
            TALLIES,
        )

    def merge_table(self, table: pa.Table) -> None:
        """Adds a stored tally; raises KeyError for one with a skill that no prompt has."""
        place = {skill: number for number, skill in enumerate(self.skills.names)}
        for (generator, metric), frame in table.to_pandas().groupby(["generator", "metric"], sort=False):
            places = [place[skill] for skill in frame["skill"]]
            columns = {}
            for name in TALLIES.names[3:]:
                stored = np.stack(frame[name].to_list())
                columns[name] = np.zeros((len(place), *stored.shape[1:]))
                columns[name][places] = stored
            self._merge((str(generator), str(metric)), _Sums(**columns))

    def summary(self) -> pa.Table:
        """The summary (schema SUMMARY), highest overall mean first within each metric; a skill without rows is left
        out.
        """
        frames = [self._frame(generator, metric, sums) for (generator, metric), sums in self.sums.items()]
        if not frames:
            return schemas.SUMMARY.empty_table()
        frame = pd.concat(frames, ignore_index=True)
        return best_first(pa.Table.from_pandas(frame, schema=schemas.SUMMARY, preserve_index=False))

    def _frame(self, generator: str, metric: str, sums: _Sums) -> pd.DataFrame:
        low, high = ratio_intervals(sums.totals, sums.counts)
        with np.errstate(invalid="ignore", divide="ignore"):
            sem = np.where(sums.n > 1, np.sqrt(sums.squares / (sums.n - 1) / sums.n), np.nan)
        frame = pd.DataFrame(
            {
                "skill": self.skills.names,
                "mean": np.where(sums.n > 0, sums.mean, np.nan),
                "low": low,
                "high": high,
                "sem": sem,
                "n": sums.n.astype(np.int64),
                "n_null": (sums.rows - sums.n).astype(np.int64),
                "coverage": sums.n / np.maximum(sums.rows, 1),
            }
        )
        return frame[sums.rows > 0].assign(generator=generator, metric=metric)


def _ratio(total: Floats, n: Floats) -> Floats:
    """Means; 0 of nothing."""
    return np.divide(total, n, out=np.zeros_like(total), where=n > 0)


def best_first(summary: pa.Table, falling: Container[str] = ()) -> pa.Table:
    """A summary's metrics by name, `overall` before the skills, and within each the best mean first, the lowest by the
    metrics `falling`; who has no mean comes last.
    """
    frame = summary.select(["metric", "skill", "generator", "mean"]).to_pandas()
    worth = frame["mean"] * np.array([direction(metric, falling) for metric in frame["metric"]], np.float64)
    ordered = frame.assign(later=frame["skill"].ne(OVERALL), worth=worth).sort_values(
        ["metric", "later", "skill", "worth", "generator"], ascending=[True, True, True, False, True]
    )
    return summary.take(ordered.index.to_numpy())


def part_of(manifest: Mapping[str, Any]) -> str:
    """Of how many of its benchmark's prompts a run is, as `12 of 256 prompts`; empty where of all.

    Such are runs of a sweep with a limit, and of an adaptive one that stopped early.
    """
    counts = [manifest[name] for name in ("seen", "limited") if manifest.get(name)]
    if not counts or counts[0]["prompts"] == counts[-1]["of_prompts"]:
        return ""
    return f"{counts[0]['prompts']:,} of {counts[-1]['of_prompts']:,} prompts"
