"""A run's scores compared with people's judgements."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.statistics.options import Sampling
from plumbline.pipelines.sweeps.planning import PlannedSweep
from plumbline.pipelines.sweeps.results import Results
from plumbline.pipelines.sweeps.sweep import FinishedSweep

if TYPE_CHECKING:
    from plumbline.pipelines.judging.metaeval import Findings
    from plumbline.pipelines.judging.releases.release import Release

RESAMPLES = 200
"""Bootstrap resamples at a sweep's end; python -m jobs.metaeval draws more."""


def judge_metrics(planned: PlannedSweep, finished: FinishedSweep) -> "Findings | None":
    """Compares a run's scores with people's judgements, into the run's folder; None where there is no protocol.

    Raises SourceError where the judgements cannot be read, or are of other images; the run stands all the same.
    """
    protocol = planned.config.protocol
    if protocol is None:
        return None
    # imports scipy, which takes a second
    from plumbline.pipelines.judging.metaeval import judge, open_release, write_findings
    from plumbline.pipelines.judging.releases.scores import read_elements

    release = open_release(protocol, planned.config.storage)
    protocol = replace(protocol, falling=(*protocol.falling, *finished.falling))
    scores = _judged_scores(finished.results, release)
    run = planned.store.place / f"runs/{finished.run_id}"
    elements = read_elements(run) if "words" in protocol.tasks else ()
    findings = judge(protocol, release, scores, Sampling(resamples=RESAMPLES), finished.folder, elements)
    write_findings(findings, run / "metaeval")
    return findings


def _judged_scores(results: Results, release: "Release") -> pa.Table:
    """The scores of images and prompts that people judged; where there are none, some others, for the message."""
    people = (release.ratings, release.preferences, release.pairings, release.graph_nodes, release.words)
    images, prompts = (
        pa.chunked_array([table.column(name) for table in people for name in names if name in table.column_names])
        for names in (("image_id", "image_a", "image_b"), ("prompt_id",))
    )
    judged: list[pa.Table] = []
    others: list[pa.Table] = []
    for part in results.read_parts():
        is_judged = pc.or_(pc.is_in(part.column("image_id"), images), pc.is_in(part.column("prompt_id"), prompts))
        judged.append(part.filter(is_judged))
        others = others or [part]
    return pa.concat_tables(judged if any(map(len, judged)) else others)
