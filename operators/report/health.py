"""Health of a run: coverage, failures, truncated prompts, models, settings, versions and costs."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import REMEDIES
from plumbline.operators.base.failures import kinds_of_failure, name_row
from plumbline.operators.base.sentences import FirstRows, Sentence, first_rows, plural
from plumbline.operators.report.findings import Boards
from plumbline.operators.report.marked_words import cut
from plumbline.operators.report.unscored import NOTHING_UNSCORED, Unscored, unscored_sentences
from plumbline.operators.results.run_scores import RunScores

MAX_KINDS = 30
CELLS = {
    "cells_computed": "computed",
    "cells_cached": "found in the store from earlier runs",
    "cells_renewed": "of them found damaged, or to stand on what is no more, and computed anew",
    "cells_failed": "failed",
}
"""Words for a manifest's counts of cells."""

Named = Mapping[str, str]
"""Values as text, by name."""


class Failure(NamedTuple):
    """A kind of failure, with one of its rows as an example."""

    kind: str
    rows: int
    share: float
    """Fraction of all rows."""
    example: str
    """Generator and metric of the example, and its image or prompt."""
    message: str
    remedy: str


class Gap(NamedTuple):
    """Missing scores of a generator by a metric."""

    generator: str
    metric: str
    n_null: int
    """Number of rows without a score. Rows of prompts that fail with every generator do not count."""
    coverage: float
    """Fraction of all rows of the generator that have a score."""


class StageCost(NamedTuple):
    """Use of a stage's model in this run; None for values that the manifest does not have."""

    stage: str
    calls: int | None
    read: int | None
    """Number of tokens read."""
    written: int | None
    """Number of tokens written."""
    seconds: int | None
    waited: float | None
    """Fraction of the models' time that was spent waiting for rows to be read and decoded."""


class MetricCost(NamedTuple):
    """Cost of one metric."""

    metric: str
    model_seconds: int
    gpu_seconds: int
    money: str
    """Amounts by currency; empty if nothing has a price."""


class Health(NamedTuple):
    """Content of the page's section about health."""

    rows: int
    rows_null: int
    unscored: list[Sentence]
    """Sentences about the prompts that fail with every generator."""
    uneven: FirstRows[Gap]
    """Generators and metrics with further rows without a score, the lowest coverage first."""
    failures: FirstRows[Failure]
    truncated: list[tuple[str, int]]
    """Metrics with the number of rows that were scored on a truncated prompt."""
    noise: FirstRows[Mapping[str, Any]]
    """Noise of judges that answered several times about each image (schema JUDGE_NOISE), the noisiest first."""
    models: dict[str, Named]
    """Properties of each stage's model."""
    conventions: dict[str, Named]
    """Options of each metric."""
    facts: Named
    costs: list[StageCost]
    metric_costs: list[MetricCost]
    cost_note: str

    @property
    def coverage(self) -> float:
        """Fraction of rows with a score."""
        return 1 - self.rows_null / self.rows if self.rows else 1.0


def health(
    manifest: Mapping[str, Any],
    scores: RunScores,
    failures: pa.Table,
    overall: Boards,
    noise: pa.Table,
    unscored: Mapping[str, Unscored],
) -> Health:
    """Return the health of a run from its manifest and tables, without values that an old manifest lacks."""
    metrics = _mapping(manifest, "config", "metrics")
    return Health(
        rows=len(scores),
        rows_null=scores.n_null,
        unscored=unscored_sentences(unscored, scores),
        uneven=first_rows(sorted(_gaps(overall, unscored), key=lambda gap: gap.coverage), MAX_KINDS),
        failures=_failures(failures, len(scores)),
        truncated=list(scores.truncated.items()),
        noise=first_rows(sorted(noise.to_pylist(), key=lambda row: -(row["share"] or 0)), MAX_KINDS),
        models={stage: _model(stage, manifest) for stage in _mapping(manifest, "models")},
        conventions={name: {key: _text(value) for key, value in options.items()} for name, options in metrics.items()},
        facts=_facts(manifest),
        costs=_costs(manifest),
        metric_costs=_metric_costs(manifest),
        cost_note=cost_note(manifest),
    )


def _gaps(overall: Boards, unscored: Mapping[str, Unscored]) -> Iterator[Gap]:
    for board in overall.values():
        everywhere = unscored.get(board.metric, NOTHING_UNSCORED).by_generator
        for row in board.rows:
            if n_null := row.n_null - everywhere.get(row.generator, 0):
                yield Gap(row.generator, board.metric, n_null, row.coverage)


def reasons(failures: FirstRows[Failure]) -> str:
    """Return why rows have no score: the kinds of failure, and an example of the most frequent one."""
    if not failures.rows:
        return ""
    kinds = ", ".join(f"{failure.rows:,} {failure.kind}" for failure in failures.rows)
    more = f" and {plural(failures.left_out, 'more kind')}" if failures.left_out else ""
    first = failures.rows[0]
    return f"{kinds}{more}. For instance {first.example}: {first.message}"


def _failures(failures: pa.Table, rows: int) -> FirstRows[Failure]:
    """Return the kinds of failure, the most frequent first."""
    kinds = [
        Failure(
            kind=row["kind"],
            rows=row["rows"],
            share=row["rows"] / rows if rows else 0.0,
            example=cut(name_row(row, "generator", "metric"), 200),
            message=cut(row["message"]),
            remedy=REMEDIES.get(row["kind"], "act on the message"),
        )
        for row in kinds_of_failure(failures)
    ]
    return first_rows(sorted(kinds, key=lambda kind: -kind.rows), MAX_KINDS)


def _mapping(manifest: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """Return a mapping in the manifest, or an empty one if it is missing."""
    value: Any = manifest
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _model(stage: str, manifest: Mapping[str, Any]) -> Named:
    """Return the checkpoint, revision and engine of a stage's model, and the digests of its files."""
    config = _mapping(manifest, "config", "models", *stage.split(":")[1:2])
    named = {name: str(config[name]) for name in ("checkpoint", "revision", "engine") if config.get(name)}
    model = manifest["models"][stage]
    for name, value in (model if isinstance(model, Mapping) else {"model": model}).items():
        if isinstance(value, Mapping):
            named |= {f"{part} content": _text(content) for part, content in value.items() if content}
        elif value is not None:
            named[name] = _text(value)
    return named


def _text(value: Any) -> str:
    """Return a value of a configuration as text, shortened if it is long."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return cut(", ".join(f"{key}={_text(inner)}" for key, inner in value.items())) or "–"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return cut(", ".join(map(_text, value))) or "–"
    return cut(str(value))


def _facts(manifest: Mapping[str, Any]) -> Named:
    """Return the run's times, its files of prompts and images, and the versions of packages."""
    benchmark, versions = _mapping(manifest, "config", "benchmark"), _mapping(manifest, "versions")
    facts = {name: str(manifest[name]) for name in ("began", "ended") if manifest.get(name)}
    facts |= {name: _text(benchmark.get(name)) for name in ("prompts", "images") if benchmark.get(name)}
    return facts | {package: str(version) for package, version in versions.items()}


def _costs(manifest: Mapping[str, Any]) -> list[StageCost]:
    usage, seconds, calls = (_mapping(manifest, name) for name in ("usage", "seconds", "calls"))
    worked, waited = (_mapping(manifest, name) for name in ("worked", "waited"))
    costs = []
    for stage in dict.fromkeys([*usage, *seconds]):
        used = {"calls": calls.get(stage), **(usage.get(stage) or {})}
        took = seconds.get(stage)
        model_time = worked.get(stage, 0) + waited.get(stage, 0)
        costs.append(
            StageCost(
                stage=stage,
                calls=used.get("calls"),
                read=used.get("prompt_tokens"),
                written=used.get("new_tokens"),
                seconds=None if took is None else round(took),
                waited=waited[stage] / model_time if model_time else None,
            )
        )
    return costs


def cost_note(manifest: Mapping[str, Any]) -> str:
    """Return sentences about the run's time and money, and about the results that were in the store before."""
    counts = _mapping(manifest, "counts")
    took = seconds_between(manifest.get("began"), manifest.get("ended"))
    words = [] if took is None else [f"The run took {duration(took)}."]
    if parts := [f"{counts[key]:,} {said}" for key, said in CELLS.items() if counts.get(key)]:
        words.append(f"Of its {counts.get('cells', 0):,} pieces of work: {', '.join(parts)}.")
    amounts: dict[str, float] = defaultdict(float)
    for cost in _mapping(manifest, "costs").values():
        amounts[cost["currency"]] += cost["amount"]
    if amounts:
        who = "GPUs and services" if _mapping(manifest, "gpu_seconds") else "Services"
        words.append(f"{who} cost {' and '.join(f'{amount:.2f} {name}' for name, amount in amounts.items())}.")
    return " ".join(words)


def _metric_costs(manifest: Mapping[str, Any]) -> list[MetricCost]:
    return [
        MetricCost(
            metric,
            round(cost["model_seconds"]),
            round(cost["gpu_seconds"]),
            ", ".join(f"{amount:.2f} {currency}" for currency, amount in cost["costs"].items()),
        )
        for metric, cost in _mapping(manifest, "by_metric").items()
    ]


def seconds_between(began: Any, ended: Any) -> float | None:
    """Return the seconds from one ISO time to another; None if one is missing or not a time."""
    try:
        return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
    except (TypeError, ValueError):
        return None


def duration(seconds: float) -> str:
    """Return a number of seconds in words."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} seconds"
    return f"{whole // 60} minutes" if whole < 7200 else f"{whole / 3600:.1f} hours"
