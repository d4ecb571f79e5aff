"""The health of a run: coverage, failures, truncations, models, conventions, versions, and what it cost."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base.errors import REMEDIES
from plumbline.operators.base.failures import kinds_of_failure, name_row
from plumbline.operators.base.sentences import FirstRows, Sentence, plural, shown
from plumbline.operators.report.findings import Boards
from plumbline.operators.report.marked_words import cut
from plumbline.operators.report.unscored import NOTHING_UNSCORED, Unscored, unscored_sentences
from plumbline.operators.results.run_scores import RunScores

MOST_KINDS = 30
CELLS = {
    "cells_computed": "computed",
    "cells_cached": "found in the store from earlier runs",
    "cells_renewed": "of them found damaged, or to stand on what is no more, and computed anew",
    "cells_failed": "failed",
}
"""What a manifest's counts of cells say."""

Named = Mapping[str, str]
"""Names with what they stand for."""


class Failure(NamedTuple):
    """A kind of failure."""

    kind: str
    rows: int
    share: float
    """Of all rows."""
    example: str
    message: str
    remedy: str


class Gap(NamedTuple):
    """A generator with rows without a score by a metric."""

    generator: str
    metric: str
    n_null: int
    """Number of these rows, without the rows of prompts that fail with every generator."""
    coverage: float
    """Share of all its rows with a score."""


class ShownCost(NamedTuple):
    """What one stage asked of its model in this run; None where the manifest does not say."""

    stage: str
    calls: int | None
    read: int | None
    written: int | None
    seconds: int | None
    waited: float | None
    """The share of its models' time in which they waited for rows to be read and decoded."""


class MetricCost(NamedTuple):
    """What one metric took of a run."""

    metric: str
    model_seconds: int
    gpu_seconds: int
    money: str
    """Empty where nothing has a price."""


class Health(NamedTuple):
    """All of it, as the page shows it."""

    rows: int
    rows_null: int
    unscored: list[Sentence]
    """Sentences about the prompts that fail with every generator."""
    uneven: FirstRows[Gap]
    """The generators and metrics with further rows without a score, the lowest coverage first."""
    failures: FirstRows[Failure]
    truncated: list[tuple[str, int]]
    """By metric, how many rows were scored on a prompt that was cut."""
    noise: FirstRows[Mapping[str, Any]]
    """Of judges that were asked several times about each image (schema JUDGE_NOISE), the most in doubt first."""
    models: dict[str, Named]
    conventions: dict[str, Named]
    facts: Named
    costs: list[ShownCost]
    metric_costs: list[MetricCost]
    cost_note: str

    @property
    def coverage(self) -> float:
        """The share of rows with a score."""
        return 1 - self.rows_null / self.rows if self.rows else 1.0


def health(
    manifest: Mapping[str, Any],
    scores: RunScores,
    failures: pa.Table,
    overall: Boards,
    noise: pa.Table,
    unscored: Mapping[str, Unscored],
) -> Health:
    """What can be told from a run's manifest and tables; what an old manifest lacks is left out."""
    metrics = _mapping(manifest, "config", "metrics")
    return Health(
        rows=len(scores),
        rows_null=scores.n_null,
        unscored=unscored_sentences(unscored, scores),
        uneven=shown(sorted(_gaps(overall, unscored), key=lambda gap: gap.coverage), MOST_KINDS),
        failures=_failures(failures, len(scores)),
        truncated=list(scores.truncated.items()),
        noise=shown(sorted(noise.to_pylist(), key=lambda row: -(row["share"] or 0)), MOST_KINDS),
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
        for standing in board.standings:
            if n_null := standing.n_null - everywhere.get(standing.generator, 0):
                yield Gap(standing.generator, board.metric, n_null, standing.coverage)


def reasons(failures: FirstRows[Failure]) -> str:
    """Why rows have no score: the kinds with their rows, and what the most frequent says of one row."""
    if not failures.rows:
        return ""
    kinds = ", ".join(f"{failure.rows:,} {failure.kind}" for failure in failures.rows)
    more = f" and {plural(failures.left_out, 'more kind')}" if failures.left_out else ""
    first = failures.rows[0]
    return f"{kinds}{more}. For instance {first.example}: {first.message}"


def _failures(failures: pa.Table, rows: int) -> FirstRows[Failure]:
    """The kinds of failure, the most frequent first, each with one of its rows."""
    kinds = shown(sorted(kinds_of_failure(failures), key=lambda first: -first["rows"]), MOST_KINDS)
    told = []
    for row in kinds.rows:
        example = cut(name_row(row, "generator", "metric"), 200)
        remedy = REMEDIES.get(row["kind"], "act on the message")
        share = row["rows"] / rows if rows else 0.0
        told.append(Failure(row["kind"], row["rows"], share, example, cut(row["message"]), remedy))
    return FirstRows(told, kinds.left_out)


def _mapping(manifest: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """A mapping in the manifest, empty where it is not there."""
    value: Any = manifest
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _model(stage: str, manifest: Mapping[str, Any]) -> Named:
    """Which model a stage had: where it came from, and exactly which files or commit."""
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
    """A configuration's value in words; long ones shortened."""
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
    """When it ran, on what, and from where."""
    benchmark, versions = _mapping(manifest, "config", "benchmark"), _mapping(manifest, "versions")
    facts = {name: str(manifest[name]) for name in ("began", "ended") if manifest.get(name)}
    facts |= {name: _text(benchmark.get(name)) for name in ("prompts", "images") if benchmark.get(name)}
    return facts | {package: str(version) for package, version in versions.items()}


def _costs(manifest: Mapping[str, Any]) -> list[ShownCost]:
    """By stage, model calls, tokens and seconds, where the manifest has them."""
    usage, seconds, calls = (_mapping(manifest, name) for name in ("usage", "seconds", "calls"))
    worked, waited = (_mapping(manifest, name) for name in ("worked", "waited"))
    costs = []
    for stage in dict.fromkeys([*usage, *seconds]):
        used = {"calls": calls.get(stage), **(usage.get(stage) or {})}
        made, read, written = (used.get(name) for name in ("calls", "prompt_tokens", "new_tokens"))
        took = seconds.get(stage)
        of_models = worked.get(stage, 0) + waited.get(stage, 0)
        share = waited[stage] / of_models if of_models else None
        costs.append(ShownCost(stage, made, read, written, None if took is None else round(took), share))
    return costs


def cost_note(manifest: Mapping[str, Any]) -> str:
    """How long the run took, and how much of it stood in the store before."""
    counts = _mapping(manifest, "counts")
    took = seconds_between(manifest.get("began"), manifest.get("ended"))
    words = [] if took is None else [f"The run took {duration(took)}."]
    if parts := [f"{counts[key]:,} {said}" for key, said in CELLS.items() if counts.get(key)]:
        words.append(f"Of its {counts.get('cells', 0):,} pieces of work: {', '.join(parts)}.")
    if spent := _spent(manifest):
        who = "GPUs and services" if _mapping(manifest, "gpu_seconds") else "Services"
        words.append(f"{who} cost {' and '.join(spent)}.")
    return " ".join(words)


def _metric_costs(manifest: Mapping[str, Any]) -> list[MetricCost]:
    """The metrics for which models worked."""
    return [
        MetricCost(
            metric,
            round(cost["model_seconds"]),
            round(cost["gpu_seconds"]),
            ", ".join(f"{amount:.2f} {currency}" for currency, amount in cost["costs"].items()),
        )
        for metric, cost in _mapping(manifest, "by_metric").items()
    ]


def _spent(manifest: Mapping[str, Any]) -> list[str]:
    """What services and GPUs came to by their prices, of each currency."""
    amounts: dict[str, float] = defaultdict(float)
    for cost in _mapping(manifest, "costs").values():
        amounts[cost["currency"]] += cost["amount"]
    return [f"{amount:.2f} {currency}" for currency, amount in amounts.items()]


def seconds_between(began: Any, ended: Any) -> float | None:
    """Seconds from one ISO time to another, None where one is missing or not a time."""
    try:
        return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()
    except (TypeError, ValueError):
        return None


def duration(seconds: float) -> str:
    """Seconds in words."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} seconds"
    return f"{whole // 60} minutes" if whole < 7200 else f"{whole / 3600:.1f} hours"
