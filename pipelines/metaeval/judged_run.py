"""Comparison of a run's scores with people's judgements, written into the run's folder."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.metrics.table import falling_metrics
from plumbline.operators.statistics.options import Sampling
from plumbline.pipelines.metaeval.metaeval import Findings, judge, open_release, write_findings
from plumbline.pipelines.metaeval.protocols import ProtocolConfig
from plumbline.pipelines.metaeval.releases.release import Release
from plumbline.pipelines.metaeval.releases.scores import read_elements
from plumbline.pipelines.store.run_scores import read_run_scores, score_parts
from plumbline.pipelines.store.runs import read_manifest
from plumbline.pipelines.store.store import Store

RESAMPLES = 200
"""Number of bootstrap resamples for a run's report; plumbline metaeval draws more."""


def judge_run(store: Store, run_id: str, protocol: ProtocolConfig) -> Findings:
    """Judge a run and write the findings, replacing earlier findings.

    Raises SourceError if the judgements cannot be read, or are about other images; the run itself is complete.
    """
    run = store.place / f"runs/{run_id}"
    release = open_release(protocol, store.place.storage)
    protocol = replace(protocol, falling=(*protocol.falling, *falling_metrics(read_manifest(store, run_id))))
    findings = judge(
        protocol,
        release,
        _judged_scores(store, run_id, release),
        Sampling(resamples=RESAMPLES),
        scored_by=run.url,
        elements=read_elements(run) if "words" in protocol.tasks else (),
        run=read_run_scores(store, run_id),
    )
    write_findings(findings, run / "metaeval")
    return findings


def _judged_scores(store: Store, run_id: str, release: Release) -> pa.Table:
    """Return the scores of judged images and prompts; if there are none, some other scores for the error message."""
    people = (release.ratings, release.preferences, release.pairings, release.graph_nodes, release.words)
    images, prompts = (
        pa.chunked_array(
            [
                chunk
                for table in people
                for name in names
                if name in table.column_names
                for chunk in table.column(name).chunks
            ],
            pa.string(),
        )
        for names in (("image_id", "image_a", "image_b"), ("prompt_id",))
    )
    judged: list[pa.Table] = []
    others: list[pa.Table] = []
    for part in map(store.read_table, score_parts(store, run_id)):
        is_judged = pc.or_(pc.is_in(part.column("image_id"), images), pc.is_in(part.column("prompt_id"), prompts))
        judged.append(part.filter(is_judged))
        others = others or [part]
    return pa.concat_tables(judged if any(map(len, judged)) else others)
