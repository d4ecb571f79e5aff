"""Reads a release and selects the judgements that a protocol uses."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import ConfigError, SourceError, check_known
from plumbline.operators.metaeval.people import list_rated_parts
from plumbline.operators.metaeval.ratings import describe_off_scale_ratings
from plumbline.operators.statistics.agreement import find_reliable_prompts
from plumbline.operators.statistics.bootstrap import Scale
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.protocols import ProtocolConfig, Task
from plumbline.pipelines.metaeval.releases.readers import read_release
from plumbline.pipelines.metaeval.releases.release import Release

TASK_TABLES: Mapping[Task, Sequence[str]] = {
    "ratings": ["ratings"],
    "preferences": ["preferences"],
    "pairings": ["pairings"],
    "graphs": ["graph_nodes"],
    "words": ["words"],
    "orders": ["ratings", "preferences"],
}
"""Tables of a release that each task needs."""
TABLES_WITH_TEMPLATE = ("ratings", "parts", "preferences")
"""Tables of a release with the columns template and prompt_id."""


def open_release(protocol: ProtocolConfig, storage: StorageConfig) -> Release:
    """Read a release and apply the protocol to it; raise SourceError with the file and row of an invalid value."""
    release = read_release(protocol.release, storage.locate(protocol.path), protocol.columns)
    for apply in (_select_choices, _select_templates, _leave_out_skills, _apply_range, _reverse_ratings):
        release = apply(protocol, release)
    release = _select_reliable_prompts(protocol, release) if protocol.reliable else release
    needed = {name for task in protocol.tasks for name in TASK_TABLES[task]}
    unneeded = {name for tables in TASK_TABLES.values() for name in tables} - needed
    release = replace(release, **{name: getattr(release, name).slice(0, 0) for name in unneeded})
    columns = {"ratings": release.ratings.column("rating"), "choices": release.preferences.column("preferred")}
    n_answers = sum(len(column) - column.null_count for column in columns.values())
    if not n_answers and not any(map(len, (release.pairings, release.graph_nodes, release.words))):
        empty = " and ".join(f"all {len(column)} {name} are empty" for name, column in columns.items() if len(column))
        found = "; ".join([empty or "the release has none", *release.notes])
        raise SourceError(
            f"{protocol.path}: no usable judgements: {found}; fill in the file, or set protocol.path to another release"
        )
    return release


def _select_choices(protocol: ProtocolConfig, release: Release) -> Release:
    if not protocol.choices:
        return release
    count = len(release.preferences)
    if missing := [number for number in protocol.choices if not 0 <= number < count]:
        raise SourceError(
            f"{protocol.path}: expected a choice with the id {missing[0]}, found ids from 0 to {count - 1}; give the "
            "complete file, or change protocol.choices"
        )
    note = f"protocol.choices selects {len(protocol.choices)} of {count} choices"
    selected = release.preferences.take(pa.array(sorted(protocol.choices)))
    return replace(release, preferences=selected, notes=(*release.notes, note))


def _select_templates(protocol: ProtocolConfig, release: Release) -> Release:
    if not protocol.templates:
        return release
    tables = [getattr(release, name) for name in TABLES_WITH_TEMPLATE]
    known = {name for table in tables for name in table.column("template").unique().to_pylist()}
    for name in protocol.templates:
        check_known("protocol.templates", name, sorted(known))
    return _filter_rows(release, TABLES_WITH_TEMPLATE, "template", protocol.templates)


def _filter_rows(
    release: Release, tables: Iterable[str], column: str, values: Iterable[str], keep: bool = True
) -> Release:
    listed = pa.array(sorted(values), pa.string())
    filtered = {}
    for name in tables:
        table = getattr(release, name)
        has_value = pc.is_in(table.column(column), listed)
        filtered[name] = table.filter(has_value if keep else pc.invert(has_value))
    return replace(release, **filtered)


def _leave_out_skills(protocol: ProtocolConfig, release: Release) -> Release:
    known = sorted({skill for skills in release.skills.values() for skill in skills})
    for name in protocol.without_skills:
        check_known("protocol.without_skills", name, known)
    kept = {prompt: skills for prompt, skills in release.skills.items() if not {*protocol.without_skills} & {*skills}}
    left_out = release.skills.keys() - kept.keys()
    if not left_out:
        return release
    names = " or ".join(protocol.without_skills)
    note = f"protocol.without_skills leaves out {len(left_out)} prompts with {names}"
    release = _filter_rows(release, (*TABLES_WITH_TEMPLATE, "pairings", "words"), "prompt_id", left_out, keep=False)
    return replace(release, skills=kept, notes=(*release.notes, note))


def get_protocol_scales(protocol: ProtocolConfig, templates: Iterable[str]) -> dict[str, Scale]:
    """Return the rating scales that the protocol defines, by template; templates without a scale are left out."""
    found = {name: (protocol.scales or {}).get(name, protocol.rating_range) for name in templates}
    return {name: Scale(*scale) for name, scale in found.items() if scale is not None}


def _apply_range(protocol: ProtocolConfig, release: Release) -> Release:
    scales = get_protocol_scales(protocol, release.ratings.column("template").unique().to_pylist())
    names = pa.array(scales, pa.string())
    unknown = release.ratings.filter(pc.invert(pc.is_in(release.ratings.column("template"), names)))
    release = replace(release, warnings=(*release.warnings, *describe_off_scale_ratings(unknown)))

    def is_outside(table: pa.Table) -> pa.ChunkedArray:
        indices, rating = pc.index_in(table.column("template"), names), table.column("rating")
        low, high = (pa.array([scale[end] for scale in scales.values()], pa.float64()).take(indices) for end in (0, 1))
        return pc.fill_null(pc.or_(pc.less(rating, low), pc.greater(rating, high)), False)

    outside = release.ratings.filter(is_outside(release.ratings))
    if not len(outside):
        return release
    first = outside.slice(0, 1).to_pylist()[0]
    low, high = scales[first["template"]]
    found = (
        f"{len(outside)} ratings are outside {low:g} to {high:g}, first {first['rating']:g} of image "
        f"{first['image_id']} by rater {first['rater']}"
    )
    if protocol.out_of_range == "refused":
        raise SourceError(
            f"{protocol.path}: {found}; correct them, or set protocol.rating_range or protocol.out_of_range=left_out"
        )
    empty = pa.scalar(None, pa.float64())
    tables = {
        name: _replace_ratings(table, pc.if_else(is_outside(table), empty, table.column("rating")))
        for name, table in (("ratings", release.ratings), ("parts", release.parts))
    }
    return replace(release, **tables, notes=(*release.notes, f"{found}: left out"))


def _replace_ratings(table: pa.Table, ratings: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.schema.get_field_index("rating"), "rating", ratings)


def _reverse_ratings(protocol: ProtocolConfig, release: Release) -> Release:
    known = sorted(release.ratings.column("template").unique().to_pylist())
    scales = get_protocol_scales(protocol, known)
    for name in protocol.fewer_is_better:
        check_known("protocol.fewer_is_better", name, known)
        if name not in scales:
            raise ConfigError(
                f"protocol.fewer_is_better: ratings by {name!r} can only be reversed if their scale is known; set "
                f"it, as in 'protocol.scales={{{name}: [0, 9]}}'"
            )
    sums = {name: scales[name].least + scales[name].greatest for name in protocol.fewer_is_better}
    tables, notes = {"ratings": release.ratings, "parts": release.parts}, list(release.notes)
    for template, total in sums.items():
        for name, table in tables.items():
            rating, is_reversed = table.column("rating"), pc.is_in(table.column("template"), pa.array([template]))
            tables[name] = _replace_ratings(table, pc.if_else(is_reversed, pc.subtract(total, rating), rating))
        notes.append(f"{template}: fewer is better, so a rating counts as {total:g} minus the rating")
    return replace(release, **tables, notes=notes)


def _select_reliable_prompts(protocol: ProtocolConfig, release: Release) -> Release:
    kept = find_reliable_prompts(list_rated_parts(release.ratings, release.parts).to_pandas())
    total = len(pc.unique(release.ratings.column("prompt_id").drop_null()))
    if not kept:
        raise SourceError(f"{protocol.path}: raters agree on none of {total} prompts; set protocol.reliable=false")
    note = f"{len(kept)} of {total} prompts are reliable: raters' variance below half of the largest"
    release = _filter_rows(release, TABLES_WITH_TEMPLATE, "prompt_id", kept)
    return replace(release, notes=(*release.notes, note))
