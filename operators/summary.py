"""The summary stage: every generator's mean per metric, overall and per skill, with its coverage."""

from collections.abc import Mapping, Sequence

import pandas as pd
import pyarrow as pa

from operators import rows

OVERALL = "overall"


def summarise(scores: pa.Table, skills: Mapping[str, Sequence[str]]) -> pa.Table:
    """Scores (schema SCORES) to the summary (schema SUMMARY), best overall mean first within each metric.

    `skills` maps prompt_id to the prompt's skills; every row also counts under `overall`. A null score is outside the
    mean and inside `n_null`; coverage = n / (n + n_null).
    """
    frame = scores.select(["generator", "metric", "prompt_id", "score"]).to_pandas(strings_to_categorical=True)
    prompts_of = {OVERALL: None, **_prompts_of(skills)}
    summary = pd.concat([_aggregate(frame, skill, prompts) for skill, prompts in prompts_of.items()])
    summary["n_null"] = summary["rows"] - summary["n"]
    summary["coverage"] = summary["n"] / summary["rows"]
    return pa.Table.from_pandas(_ranked(summary)[rows.SUMMARY.names], schema=rows.SUMMARY, preserve_index=False)


def _prompts_of(skills: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The prompts of each skill."""
    found: dict[str, list[str]] = {}
    for prompt_id, its in skills.items():
        for skill in dict.fromkeys(its):
            if skill != OVERALL:
                found.setdefault(skill, []).append(prompt_id)
    return found


def _aggregate(frame: pd.DataFrame, skill: str, prompts: Sequence[str] | None) -> pd.DataFrame:
    """A skill's numbers by generator and metric, over the rows of its prompts, or over all."""
    mine = frame if prompts is None else frame[frame["prompt_id"].isin(prompts)]
    grouped = mine.groupby(["generator", "metric"], observed=True, sort=True)["score"]
    summary = grouped.agg(mean="mean", sem="sem", n="count", rows="size").reset_index()
    return summary.astype({"generator": str, "metric": str}).assign(skill=skill)


def _ranked(summary: pd.DataFrame) -> pd.DataFrame:
    """Metrics by name, `overall` before the skills, and within each the best mean first."""
    first = summary["skill"].ne(OVERALL)
    ordered = summary.assign(first=first).sort_values(
        ["metric", "first", "skill", "mean", "generator"], ascending=[True, True, True, False, True]
    )
    return ordered.drop(columns="first").reset_index(drop=True)
