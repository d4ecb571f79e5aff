"""Parses the query parameters of a page's URL, and checks that the names in it exist in the run."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from starlette.requests import Request

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.images.generation_settings import COMPARE, ValueCounts, add_settings, read_all_settings
from plumbline.operators.report.marked_words import shorten
from plumbline.plugins.viewer.browser import BrowsedRun, NotFound
from plumbline.plugins.viewer.run_database import SCORE_ORDERS, SettingPairs, WantedRows

ROWS_PER_PAGE = 50
"""Number of scores, notes or questions on a page."""
MAX_PAGE_NUMBER = 10**7
"""Largest page or image number that is accepted."""
SETTING_PREFIX = "set."
"""Prefix of query parameters for generation settings."""
MAX_SETTINGS = 16


class ComparisonSide(NamedTuple):
    """One side of a comparison: a run, optionally restricted to one generator or to images with certain settings."""

    run: str = ""
    generator: str = ""
    settings: SettingPairs = ()


class ChosenSides(NamedTuple):
    """The two sides of a comparison."""

    left: ComparisonSide = ComparisonSide()
    right: ComparisonSide = ComparisonSide()

    @property
    def pair(self) -> tuple[str, str] | None:
        """The two generators to compare with each other, or None to compare each generator between the two runs."""
        return (self.left.generator, self.right.generator) if self.right.generator else None

    @property
    def address(self) -> dict[str, str]:
        """Query parameters for the comparison's page."""
        parameters: dict[str, str] = {}
        for name, side in self._asdict().items():
            parameters |= {name: side.run, f"{name}_generator": side.generator}
            parameters |= {f"{name}.{setting}": value for setting, value in side.settings}
        return parameters


class BadAddress(PlumblineError):
    """Raised for a URL with an invalid parameter."""


def parse_rows(request: Request, orders: Mapping[str, str] = SCORE_ORDERS) -> WantedRows:
    """Parse the filter and order of rows; raise BadAddress if a parameter is invalid."""
    generator, metric, skill, kind, words, against, sort = (
        request.query_params.get(name, "")
        for name in ("generator", "metric", "skill", "kind", "words", "against", "sort")
    )
    if sort not in orders:
        raise BadAddress(f"sort={sort}: expected one of {', '.join(filter(None, orders))}; correct the address")
    low, high = _parse_real(request, "low"), _parse_real(request, "high")
    settings = _parse_settings(request, SETTING_PREFIX)
    return WantedRows(generator, metric, skill, kind, low, high, words, sort, settings, against=against)


def parse_choice(request: Request) -> ChosenSides:
    """Parse the two sides: left=RUN, left_generator=NAME, left.cfg=7, and the same for the right side."""
    parameters = request.query_params
    left, right = (
        ComparisonSide(
            parameters.get(name, ""), parameters.get(f"{name}_generator", ""), _parse_settings(request, f"{name}.")
        )
        for name in ChosenSides._fields
    )
    return ChosenSides(left, right)


def _parse_settings(request: Request, prefix: str) -> SettingPairs:
    settings = (
        (name.removeprefix(prefix), value)
        for name, value in request.query_params.items()
        if name.startswith(prefix) and value
    )
    return tuple(islice(settings, MAX_SETTINGS))


def add_other_metric(run: BrowsedRun, wanted: WantedRows) -> WantedRows:
    """Return the filter; if only `against` is set, set `metric` to the run's first metric other than `against`.

    If both are the same metric, clear `against`.
    """
    others = [name for name in run.manifest.get("metrics") or [] if name != wanted.against]
    metric = wanted.metric or (others[0] if wanted.against and others else "")
    return wanted._replace(metric=metric, against="" if wanted.against == metric else wanted.against)


def check_rows(run: BrowsedRun, wanted: WantedRows) -> None:
    """Raise NotFound if the filter names a generator, metric, skill or setting that the run does not have."""
    check_settings(run, wanted.settings)
    check_name("metric", wanted.against, run.manifest.get("metrics"), run.run_id)
    check_name("generator", wanted.generator, run.manifest.get("generators"), run.run_id)
    check_name("metric", wanted.metric, run.manifest.get("metrics"), run.run_id)
    check_name(
        "skill", wanted.skill, run.rows.list_skills() if wanted.skill and not run.unreadable else None, run.run_id
    )


def check_settings(run: BrowsedRun, settings: SettingPairs) -> None:
    """Raise NotFound if one of the settings does not occur in any image of the run."""
    offered = find_settings(run.manifest)
    for name, value in settings:
        check_name("setting", name, offered, run.run_id)
        check_name(name, value, offered.get(name), run.run_id)


def check_name(label: str, name: str, known: Sequence[str] | Mapping[str, Any] | None, run_id: str) -> None:
    """Raise NotFound if the name is unknown; `known` is None if the run does not list its names."""
    if name and known is not None and name not in known:
        raise NotFound(
            f"{label}={shorten(name, 80)}: not in run {run_id}; choose one of {shorten(', '.join(known), 200)}"
        )


def find_settings(manifest: Mapping[str, Any]) -> dict[str, list[str] | None]:
    """Return the values of each generation setting in a run; None if there are too many to list."""
    found: dict[str, ValueCounts | int] = {}
    for generator_settings in read_all_settings(manifest, COMPARE).values():
        found = add_settings(found, generator_settings)
    return {
        name: None if isinstance(values, int) else sorted(values, key=_make_sort_key) for name, values in found.items()
    }


def _make_sort_key(value: str) -> tuple[float, str]:
    try:
        return float(value), value
    except ValueError:
        return math.inf, value


def _parse_real(request: Request, name: str) -> float | None:
    text = request.query_params.get(name, "").strip()
    try:
        value = float(text) if text else None
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise BadAddress(f"{name}={text}: expected a number; correct the address")
    return value


def parse_number(request: Request, name: str, default: int) -> int:
    """Parse a whole number from the URL; raise BadAddress if it is not valid."""
    text = request.query_params.get(name, "") or str(default)
    if (
        not (text.isascii() and text.isdecimal())
        or len(text) > len(str(MAX_PAGE_NUMBER))
        or int(text) > MAX_PAGE_NUMBER
    ):
        raise BadAddress(f"{name}={text}: expected a whole number up to {MAX_PAGE_NUMBER}; correct the address")
    return int(text)


def compute_first_row(request: Request, rows: int = ROWS_PER_PAGE) -> int:
    """Return the index of the first row on the requested page."""
    return (max(parse_number(request, "page", 1), 1) - 1) * rows
