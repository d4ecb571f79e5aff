"""What an address asks for: rows, their order and the page of them; and whether a run has what it names."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from starlette.requests import Request

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.images.generation_settings import COMPARE, Values, add_settings, all_settings
from plumbline.operators.report.marked_words import cut
from plumbline.plugins.viewer.browser import BrowsedRun, NotThere
from plumbline.plugins.viewer.run_database import ORDERS, Settings, WantedRows

ROWS = 50
"""Of a page."""
MOST_PAGES = 10**7
SETTING = "set."
"""How the name of a setting begins in an address."""
MOST_SETTINGS = 16
"""That an address asks for at once."""


class Side(NamedTuple):
    """What is chosen of one side: a run, and of it one generator or all, with these settings or any."""

    run: str = ""
    generator: str = ""
    settings: Settings = ()


class Choice(NamedTuple):
    """Which sides are chosen to be compared."""

    left: Side = Side()
    right: Side = Side()

    @property
    def pair(self) -> tuple[str, str] | None:
        """The generators that are beside each other; None where each is beside itself."""
        return (self.left.generator, self.right.generator) if self.right.generator else None

    @property
    def address(self) -> dict[str, str]:
        """As an address has it."""
        named: dict[str, str] = {}
        for name, side in self._asdict().items():
            named |= {name: side.run, f"{name}_generator": side.generator}
            named |= {f"{name}.{setting}": value for setting, value in side.settings}
        return named


class BadAddress(PlumblineError):
    """An address asks for what cannot be."""


def wanted_rows(request: Request, orders: Mapping[str, str] = ORDERS) -> WantedRows:
    """What an address asks for; raises BadAddress."""
    generator, metric, skill, kind, words, against = (
        request.query_params.get(name, "") for name in ("generator", "metric", "skill", "kind", "words", "against")
    )
    sort = request.query_params.get("sort", "")
    if sort not in orders:
        raise BadAddress(f"sort={sort}: expected {', '.join(filter(None, orders))}")
    low, high = _real(request, "low"), _real(request, "high")
    return WantedRows(
        generator=generator,
        metric=metric,
        skill=skill,
        kind=kind,
        low=low,
        high=high,
        words=words,
        sort=sort,
        settings=_settings(request, SETTING),
        against=against,
    )


def choice_of(request: Request) -> Choice:
    """The sides that an address names: left=RUN, left_generator=NAME, left.cfg=7 and the same of the right."""
    given = request.query_params
    left, right = (
        Side(given.get(name, ""), given.get(f"{name}_generator", ""), _settings(request, f"{name}."))
        for name in Choice._fields
    )
    return Choice(left, right)


def _settings(request: Request, prefix: str) -> Settings:
    named = (
        (name.removeprefix(prefix), value)
        for name, value in request.query_params.items()
        if name.startswith(prefix) and value
    )
    return tuple(islice(named, MOST_SETTINGS))


def beside_other(run: BrowsedRun, wanted: WantedRows) -> WantedRows:
    """With the metric that another is set against: the run's first other one, where none is named."""
    others = [name for name in run.manifest.get("metrics") or [] if name != wanted.against]
    metric = wanted.metric or (others[0] if wanted.against and others else "")
    return wanted._replace(metric=metric, against="" if wanted.against == metric else wanted.against)


def check_wanted(run: BrowsedRun, wanted: WantedRows) -> None:
    """Raises NotThere where a run has not what an address names."""
    check_settings(run, wanted.settings)
    check_named("metric", wanted.against, run.manifest.get("metrics"), run.run_id)
    check_named("generator", wanted.generator, run.manifest.get("generators"), run.run_id)
    check_named("metric", wanted.metric, run.manifest.get("metrics"), run.run_id)
    check_named("skill", wanted.skill, run.rows.skills() if wanted.skill and not run.unreadable else None, run.run_id)


def check_settings(run: BrowsedRun, settings: Settings) -> None:
    """Raises NotThere where no image of a run was generated with one of them."""
    offered = offered_settings(run.manifest)
    for name, value in settings:
        check_named("setting", name, offered, run.run_id)
        check_named(name, value, offered.get(name), run.run_id)


def check_named(what: str, name: str, there: Sequence[str] | Mapping[str, Any] | None, run_id: str) -> None:
    """Raises NotThere where a run says what it has, and has no such thing."""
    if name and there is not None and name not in there:
        raise NotThere(f"{what}={cut(name, 80)}: run {run_id} has no such {what}; it has {cut(', '.join(there), 200)}")


def offered_settings(manifest: Mapping[str, Any]) -> dict[str, list[str] | None]:
    """By name of a setting its values in a run, None where they are too many to choose from."""
    known: dict[str, Values | int] = {}
    for of_generator in all_settings(manifest, COMPARE).values():
        known = add_settings(known, of_generator)
    return {name: None if isinstance(of, int) else sorted(of, key=_as_number) for name, of in known.items()}


def _as_number(value: str) -> tuple[float, str]:
    try:
        return float(value), value
    except ValueError:
        return math.inf, value


def _real(request: Request, name: str) -> float | None:
    given = request.query_params.get(name, "").strip()
    try:
        value = float(given) if given else None
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise BadAddress(f"{name}={given}: expected a number")
    return value


def whole_number(request: Request, name: str, default: int) -> int:
    """A whole number of an address; raises BadAddress."""
    given = request.query_params.get(name, "") or str(default)
    if not (given.isascii() and given.isdecimal()) or len(given) > len(str(MOST_PAGES)) or int(given) > MOST_PAGES:
        raise BadAddress(f"{name}={given}: expected a whole number up to {MOST_PAGES}")
    return int(given)


def first_row(request: Request, rows: int = ROWS) -> int:
    """The first row of the page that is asked for."""
    return (max(whole_number(request, "page", 1), 1) - 1) * rows
