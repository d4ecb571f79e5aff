"""The health of a run: coverage, failures, truncations, models, conventions, versions, and what it cost."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from operators.comparison import Standing
from operators.errors import REMEDIES
from operators.report.findings import Boards
from operators.report.marks import cut
from operators.report.words import Shown, plural, shown

MOST_KINDS = 30


class Failure(NamedTuple):
    """A kind of failure."""

    kind: str
    rows: int
    share: float
    """Of all rows."""
    example: str
    message: str
    remedy: str


class Named(NamedTuple):
    """A name with what it stands for."""

    name: str
    value: str


class Group(NamedTuple):
    """Names under a heading."""

    title: str
    values: list[Named]


class Cost(NamedTuple):
    """What one stage asked of its model in this run."""

    stage: str
    calls: str
    read: str
    written: str
    seconds: str


class Health(NamedTuple):
    """All of it, as the page shows it."""

    rows: int
    rows_null: int
    coverage: float
    uneven: Shown[Standing]
    """The generators and metrics whose coverage is below 1, the lowest first."""
    failures: Shown[Failure]
    truncated: list[Named]
    models: list[Group]
    conventions: list[Group]
    facts: list[Named]
    costs: list[Cost]
    cost_note: str


def health(manifest: Mapping[str, Any], scores: pa.Table, errors: pa.Table, found: Boards) -> Health:
    """What can be told from a run's manifest and tables; what an old manifest lacks is left out."""
    n_null = int(scores.column("score").null_count)
    standings = [one for board in found.values() for one in board.standings if one.n_null]
    return Health(
        rows=len(scores),
        rows_null=n_null,
        coverage=1 - n_null / len(scores) if len(scores) else 1.0,
        uneven=shown(sorted(standings, key=lambda one: one.coverage), MOST_KINDS),
        failures=_failures(errors, len(scores)),
        truncated=_truncated(scores),
        models=_models(manifest),
        conventions=[
            Group(name, [Named(key, _shown(value)) for key, value in options.items()])
            for name, options in _mapping(manifest, "config", "metrics").items()
        ],
        facts=_facts(manifest),
        costs=_costs(manifest),
        cost_note=_cost_note(manifest),
    )


def reasons(its: Health) -> str:
    """Why rows have no score: the kinds with their rows, and what the most frequent one says of one row."""
    if not its.failures.rows:
        return ""
    kinds = ", ".join(f"{one.rows:,} {one.kind}" for one in its.failures.rows)
    more = f" and {plural(its.failures.left_out, 'more kind')}" if its.failures.left_out else ""
    first = its.failures.rows[0]
    return f"{kinds}{more}. For instance {first.example}: {first.message}"


def _failures(errors: pa.Table, rows: int) -> Shown[Failure]:
    """The kinds of failure, the most frequent first, each with one of its rows."""
    counts = sorted(pc.value_counts(errors.column("kind")).to_pylist(), key=lambda one: -one["counts"])
    kinds = shown(counts, MOST_KINDS)
    return Shown([_failure(one["values"], one["counts"], rows, errors) for one in kinds.rows], kinds.left_out)


def _failure(kind: str, count: int, rows: int, errors: pa.Table) -> Failure:
    row = errors.slice(pc.index(errors.column("kind"), kind).as_py(), 1).to_pylist()[0]
    where = f"image {row['image_id']}" if row["image_id"] is not None else f"prompt {row['prompt_id']}"
    example = cut(f"{row['generator']}, {row['metric']}, {where}", 200)
    remedy = REMEDIES.get(kind, "act on the message")
    return Failure(kind, count, count / rows if rows else 0.0, example, cut(row["message"]), remedy)


def _truncated(scores: pa.Table) -> list[Named]:
    """By metric, how many rows were scored on a prompt that was cut."""
    cut_rows = scores.filter(pc.fill_null(scores.column("truncated"), False)).column("metric")
    return [Named(one["values"], f"{one['counts']:,}") for one in pc.value_counts(cut_rows).to_pylist()]


def _mapping(manifest: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """A mapping in the manifest, empty where it is not there."""
    value: Any = manifest
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _models(manifest: Mapping[str, Any]) -> list[Group]:
    """By stage, which model it was: where it came from, and exactly which files or commit."""
    return [Group(stage, [*_origin(stage, manifest), *_identity(model)])
            for stage, model in _mapping(manifest, "models").items()]  # fmt: skip


def _origin(stage: str, manifest: Mapping[str, Any]) -> Iterable[Named]:
    config = _mapping(manifest, "config", "models", stage.partition(":")[2])
    for name in ("checkpoint", "revision", "engine"):
        if config.get(name):
            yield Named(name, str(config[name]))


def _identity(model: Any) -> Iterable[Named]:
    if not isinstance(model, Mapping):
        yield Named("model", _shown(model))
        return
    for name, value in model.items():
        if isinstance(value, Mapping):
            yield from (Named(f"{part} content", _shown(its)) for part, its in value.items() if its)
        elif value is not None:
            yield Named(name, _shown(value))


def _shown(value: Any) -> str:
    """A configuration's value in words; long ones shortened."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return cut(", ".join(f"{key}={_shown(its)}" for key, its in value.items())) or "–"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return cut(", ".join(_shown(its) for its in value)) or "–"
    return cut(str(value))


def _facts(manifest: Mapping[str, Any]) -> list[Named]:
    """When it ran, on what, and from where."""
    benchmark = _mapping(manifest, "config", "benchmark")
    facts = [Named(name, str(manifest[name])) for name in ("began", "ended") if manifest.get(name)]
    facts += [Named(name, _shown(benchmark.get(name))) for name in ("prompts", "images") if benchmark.get(name)]
    packages = _mapping(manifest, "versions")
    return [*facts, *(Named(package, str(version)) for package, version in packages.items())]


def _costs(manifest: Mapping[str, Any]) -> list[Cost]:
    """By stage, model calls, tokens and seconds, where the manifest has them."""
    usage, seconds, calls = (_mapping(manifest, name) for name in ("usage", "seconds", "calls"))
    return [
        _cost(stage, {"calls": calls.get(stage), **(usage.get(stage) or {})}, seconds.get(stage))
        for stage in dict.fromkeys([*usage, *seconds])
    ]


def _cost(stage: str, usage: Mapping[str, Any], seconds: Any) -> Cost:
    calls, read, written = (usage.get(name) for name in ("calls", "prompt_tokens", "new_tokens"))
    return Cost(stage, _count(calls), _count(read), _count(written), "–" if seconds is None else f"{seconds:,.0f}")


def _count(value: Any) -> str:
    return "–" if value is None else f"{value:,}"


def _cost_note(manifest: Mapping[str, Any]) -> str:
    """How long the run took, and how much of it stood in the store before."""
    counts = _mapping(manifest, "counts")
    took = seconds_between(manifest.get("began"), manifest.get("ended"))
    words = [] if took is None else [f"The run took {duration(took)}."]
    parts = [
        f"{counts[key]:,} {said}"
        for key, said in (
            ("cells_computed", "computed"),
            ("cells_cached", "found in the store from earlier runs"),
            ("cells_renewed", "of them found damaged, or to stand on what is no more, and computed anew"),
            ("cells_failed", "failed"),
        )
        if counts.get(key)
    ]
    if parts:
        words.append(f"Of its {counts.get('cells', 0):,} pieces of work: {', '.join(parts)}.")
    return " ".join(words)


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
