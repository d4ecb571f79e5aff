"""The section of a run's report with its generators' distances from reference images."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from plumbline.operators.base.sentences import (
    NO_VALUE_MARK,
    Sentence,
    ShownTable,
    format_count,
    format_interval,
    format_number,
    format_quantity,
    take_first_rows,
)
from plumbline.operators.report.page import ReportSection
from plumbline.operators.report.page_tables import MAX_GENERATORS
from plumbline.operators.statistics.compact_letters import compact_letters
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.pipelines.store.store import Store
from plumbline.plugins.distances.distance_config import INPUTS, DistanceName
from plumbline.plugins.distances.results import DistanceResults, DistanceRow, FailedImages, read_results

USUAL_IMAGES = 10_000
"""Number of images below which published distances are not comparable."""
CAPTION = (
    "How much the images of a generator, taken together, differ from a set of reference images. A distance does not "
    "look at prompts. “Released” is the number that the release prints; a finite number of images makes it too large. "
    "“Without bias” is an estimate for infinitely many images, with its 95% interval. Generators share a letter if "
    "their distances do not differ clearly (Holm)."
)


def read_section(store: Store, run_id: str) -> ReportSection | None:
    """Return the section about a run's distances, or None if none were measured.

    It shows the newest result for each distance, reference and model.
    """
    newest: dict[tuple[DistanceName, str, str], DistanceResults] = {}
    for results in read_results(store, run_id):
        for distance in dict.fromkeys(row.distance for row in results.distances):
            newest[distance, results.reference, _name_model(results, distance)] = results
    if not newest:
        return None
    shown = [(results, distance) for (distance, _, _), results in newest.items()]
    sentences = [sentence for one in shown for sentence in write_sentences(*one)]
    warnings = [warning for one in shown for warning in _list_warnings(*one)]
    return ReportSection(
        anchor="distances",
        link="Distances",
        title="Distances from reference images",
        caption=CAPTION,
        tables=[make_table(*one) for one in shown],
        sentences=[*sentences, *(Sentence("Warning:", f"{warning}.") for warning in dict.fromkeys(warnings))],
    )


def make_table(results: DistanceResults, distance: DistanceName) -> ShownTable:
    """Return the table of a distance's generators, closest first; if two share no letter, they differ clearly."""
    rows = sorted((row for row in results.distances if row.distance == distance), key=_get_sort_key)
    clear = _list_clear_pairs(results, distance)
    estimated = [row.generator for row in rows if row.estimate is not None]
    letters = compact_letters(estimated, clear) if len(estimated) > 1 else {}
    shown = take_first_rows(rows, MAX_GENERATORS)
    left_out = f" {format_quantity(shown.left_out, 'more generator')} in distances.parquet." if shown.left_out else ""
    references = max((row.reference_images for row in rows), default=0)
    caption = (
        f"{format_quantity(references, 'reference image')} of {results.reference}. Features by "
        f"{_name_model(results, distance)}.{left_out}"
    )
    cells = [_format_row(row, letters) for row in shown.rows]
    columns = ("generator", "images", "released", "without bias", "95% interval", "letters")
    return ShownTable(f"{distance.upper()} from {_name_reference(results)}, lower is closer", caption, columns, cells)


def _format_row(row: DistanceRow, letters: Mapping[str, str]) -> tuple[str, ...]:
    interval = NO_VALUE_MARK if row.estimate is None else format_interval(row.low, row.high)
    values = (format_count(row.images), format_number(row.value), format_number(row.estimate), interval)
    return (row.generator, *values, letters.get(row.generator, NO_VALUE_MARK))


def _get_sort_key(row: DistanceRow) -> float:
    return row.value if row.estimate is None else row.estimate


def _list_clear_pairs(results: DistanceResults, distance: DistanceName) -> set[frozenset[str]]:
    pairs = (pair for pair in results.comparisons if pair.distance == distance)
    return {frozenset((pair.closer, pair.farther)) for pair in pairs if pair.p_value < SIGNIFICANCE}


def _name_model(results: DistanceResults, distance: DistanceName) -> str:
    model = results.models[INPUTS[distance].role]
    return model.checkpoint or model.family


def _name_reference(results: DistanceResults) -> str:
    return PurePosixPath(results.reference).name or results.reference


def write_sentences(results: DistanceResults, distance: DistanceName) -> list[Sentence]:
    """Return how many pairs of generators differ clearly, and the reasons for missing intervals and images."""
    sentences = []
    pairs = [pair for pair in results.comparisons if pair.distance == distance]
    if pairs:
        clear = _list_clear_pairs(results, distance)
        lead = f"{len(clear)} of {format_quantity(len(pairs), 'pair')} of generators"
        sentences.append(Sentence(lead, f"are told apart by {distance}."))
    reasons = (row.reason for row in results.distances if row.reason)
    for note in dict.fromkeys([*results.notes, *reasons]):
        lead, _, rest = note.partition(": ")
        if lead == distance:
            sentences.append(Sentence(f"{lead}:", rest))
    return sentences


def describe_small_sets(rows: Sequence[DistanceRow]) -> str:
    """Return a warning if a set has fewer than USUAL_IMAGES images; otherwise an empty string."""
    fewest = min((min(row.images, row.reference_images) for row in rows), default=USUAL_IMAGES)
    if fewest >= USUAL_IMAGES:
        return ""
    return (
        f"the smallest set has {format_quantity(fewest, 'image')}; below {USUAL_IMAGES:,}, the released numbers are "
        "too large, and only comparable between sets of equal size"
    )


def describe_failed_images(failed: FailedImages) -> str:
    """Return how many images of a set have no features, and why; empty if all have features."""
    if not failed.failed:
        return ""
    kinds = ", ".join(f"{count} {kind}" for kind, count in failed.kinds.items())
    return f"{failed.name}: {failed.failed} of {failed.total} images have no features: {kinds}"


def _list_warnings(results: DistanceResults, distance: DistanceName) -> list[str]:
    small = describe_small_sets([row for row in results.distances if row.distance == distance])
    return [text for text in (small, *map(describe_failed_images, results.failed)) if text]
