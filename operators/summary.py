"""The summary stage: every generator's mean per metric, overall and per skill, with its interval and coverage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from operators import rows
from operators.statistics.poisson import poisson_weights, ratio_intervals

OVERALL = "overall"
Floats = NDArray[np.float64]


def summarise(scores: pa.Table, skills: Mapping[str, Sequence[str]]) -> pa.Table:
    """Scores (schema SCORES) to the summary (schema SUMMARY): what a Tally of them gives."""
    tally = Tally(skills)
    tally.add(scores)
    return tally.summary()


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
    """Sums of scores that come part by part, in any order; parts counted apart can be merged.

    `skills` maps prompt_id to the prompt's skills; every row also counts under `overall`. A null score is outside the
    mean and inside `n_null`; coverage = n / (n + n_null). Intervals are a Poisson bootstrap over prompts, the same
    however the rows are cut into parts.
    """

    def __init__(self, skills: Mapping[str, Sequence[str]]) -> None:
        self.skills = [OVERALL, *sorted({skill for its in skills.values() for skill in its} - {OVERALL})]
        place = {skill: number for number, skill in enumerate(self.skills)}
        self.places = {prompt: sorted({0, *(place[skill] for skill in its)}) for prompt, its in skills.items()}
        self.sums: dict[tuple[str, str], _Sums] = {}

    def add(self, scores: pa.Table) -> None:
        """Counts the rows of a table with generator, metric, prompt_id and score."""
        frame = scores.select(["generator", "metric", "prompt_id", "score"]).to_pandas()
        for (generator, metric), its in frame.groupby(["generator", "metric"], sort=False):
            self._merge((str(generator), str(metric)), self._count(its))

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
        per_prompt = [
            np.bincount(codes, weights=values, minlength=len(names))
            for values in (np.ones(len(codes)), scored, np.where(scored, scores, 0.0))
        ]
        member = self._membership(names)
        every, n, total = (member.T @ values for values in per_prompt)
        mean = np.divide(total, n, out=np.zeros_like(n), where=n > 0)
        weights = poisson_weights(names).astype(np.float64)
        return _Sums(
            rows=every,
            n=n,
            mean=mean,
            squares=self._squares(member, codes[scored], scores[scored], mean),
            totals=(member * per_prompt[2][:, None]).T @ weights,
            counts=(member * per_prompt[1][:, None]).T @ weights,
        )

    def _membership(self, prompts: Sequence[str]) -> Floats:
        """Which prompts have which skills, (prompts, skills)."""
        member = np.zeros((len(prompts), len(self.skills)))
        for row, prompt in enumerate(prompts):
            member[row, self.places.get(prompt, [0])] = 1
        return member

    def _squares(self, member: Floats, codes: NDArray[np.intp], scores: Floats, mean: Floats) -> Floats:
        apart = (scores[:, None] - mean[None, :]) ** 2
        return np.asarray((apart * member[codes]).sum(axis=0))

    def summary(self) -> pa.Table:
        """The summary (schema SUMMARY), best overall mean first within each metric; a skill without rows is left
        out.
        """
        frames = [self._frame(generator, metric, sums) for (generator, metric), sums in self.sums.items()]
        if not frames:
            return rows.SUMMARY.empty_table()
        ranked = _ranked(pd.concat(frames, ignore_index=True))
        return pa.Table.from_pandas(ranked[rows.SUMMARY.names], schema=rows.SUMMARY, preserve_index=False)

    def _frame(self, generator: str, metric: str, sums: _Sums) -> pd.DataFrame:
        low, high = ratio_intervals(sums.totals, sums.counts)
        with np.errstate(invalid="ignore", divide="ignore"):
            sem = np.where(sums.n > 1, np.sqrt(sums.squares / (sums.n - 1) / sums.n), np.nan)
        frame = pd.DataFrame(
            {
                "skill": self.skills,
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


def _ranked(summary: pd.DataFrame) -> pd.DataFrame:
    """Metrics by name, `overall` before the skills, and within each the best mean first."""
    first = summary["skill"].ne(OVERALL)
    ordered = summary.assign(first=first).sort_values(
        ["metric", "first", "skill", "mean", "generator"], ascending=[True, True, True, False, True]
    )
    return ordered.drop(columns="first").reset_index(drop=True)
