"""What a benchmark's release holds, once it is in our tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from operators import rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """People's judgements of images, and the scores that were published beside them; what a release lacks is empty."""

    ratings: pa.Table = field(default_factory=rows.RATINGS.empty_table)
    preferences: pa.Table = field(default_factory=rows.PREFERENCES.empty_table)
    pairings: pa.Table = field(default_factory=rows.PAIRINGS.empty_table)
    graph_nodes: pa.Table = field(default_factory=rows.GRAPH_NODES.empty_table)
    scores: pa.Table = field(default_factory=rows.SCORES.empty_table)
    skills: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By prompt_id, where the release says; a skill is also the subset that results are broken down by."""
    notes: Sequence[str] = ()
    """What a reader had to do to the rows (dropped, repaired, averaged), in words that results show."""
    warnings: Sequence[str] = ()
    """What a person should look at before believing the results."""
