"""The summary of scores that are all at hand."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from operators.summary import Skills, Tally


def summarise(scores: pa.Table, skills: Mapping[str, Sequence[str]]) -> pa.Table:
    """Scores (schema SCORES) to the summary (schema SUMMARY)."""
    tally = Tally(Skills(skills))
    tally.add(scores)
    return tally.summary()
