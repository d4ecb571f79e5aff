"""Writes the comparison as JSON and as the page docs/compare.md, whose sentences are in compare.md.j2."""

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from plumbline.operators.base.cores import count_cores
from tests.benchmarks.peers.cases import RESTART, RESTARTED, ContenderResults
from tests.benchmarks.peers.inputs import LONG_WORDS, Case

TEMPLATE = "compare.md.j2"
NOTHING = "-"
MEASURES = {
    "clipscore": ("CLIPScore", "The cosine of the embedded CLIP's embeddings (`assets/clip-shapes`)."),
    "vqascore": ("VQAScore", "The likelihood of Yes by the embedded CLIP-FlanT5 (`assets/clip-flant5-shapes`)."),
    "p_yes": ("VQAScore by vLLM", "The likelihood of Yes by a tiny Qwen2-VL with random weights."),
}
"""Title and sentence of each measure."""
SPEED_NAMES = {
    "speed": "images a second",
    "cpu": "CPU an image",
    "rss": "memory",
    "first": "the first score",
    "asked": "texts a second",
    "many_speed": "images a second with many images",
    "further_speed": "further images a second",
    "further_cpu": "CPU a further image",
    "many_rss": "memory with many images",
}
"""Names of the numbers in which a peer may be better, by the names in `make_numbers`."""
LOWER_IS_BETTER = {"cpu", "rss", "first", "further_cpu", "many_rss"}


def make_record(found: Sequence[ContenderResults], sizes: Mapping[str, int], options: str) -> dict[str, Any]:
    """Return all that was measured, with the date, the machine and the options of the command."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cores": count_cores(),
        "python": platform.python_version(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "options": options,
        "sizes": dict(sizes),
        "contenders": [each.describe() for each in found],
    }


def make_numbers(contender: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a contender that can be compared, without those of runs that did not finish."""
    numbers: dict[str, float] = {}
    base, many, asked = (_find_finished(contender, case) for case in (Case.BASE, Case.MANY, Case.ASKED))
    if base:
        numbers["speed"] = base["scored"] / base["measured"]["seconds"]
        numbers["cpu"] = 1000 * base["measured"]["cpu_seconds"] / base["scored"]
        numbers["rss"] = base["measured"]["rss_bytes"] / 1e6
        numbers["pss"] = base["measured"]["pss_bytes"] / 1e6
        numbers["first"] = base["measured"]["first_seconds"]
    if asked:
        numbers["asked"] = asked["scored"] / asked["measured"]["seconds"]
    if many:
        numbers["many_speed"] = many["scored"] / many["measured"]["seconds"]
        numbers["many_rss"] = many["measured"]["rss_bytes"] / 1e6
    if base and many:
        further = many["scored"] - base["scored"]
        for name, field in (("further_speed", "seconds"), ("further_cpu", "cpu_seconds")):
            spent = many["measured"][field] - base["measured"][field]
            if further > 0 and spent > 0:
                numbers[name] = further / spent if field == "seconds" else 1000 * spent / further
    return numbers


def _find_finished(contender: Mapping[str, Any], case: str) -> Mapping[str, Any] | None:
    run: Mapping[str, Any] | None = contender["runs"].get(case)
    return run if run and run["scored"] and run["measured"]["exit_code"] is not None else None


def describe_contender(contender: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a contender's two rows."""
    numbers = make_numbers(contender)
    cells = dict.fromkeys((*SPEED_NAMES, "pss"), NOTHING) | {
        name: f"{number:,.1f}" if number < 100 else f"{number:,.0f}" for name, number in numbers.items()
    }
    runs, difference = contender["runs"], contender["difference"]
    corrupt, long = runs.get(Case.CORRUPT), runs.get(Case.LONG)
    cells |= {
        "name": contender["name"],
        "lines": str(contender["lines"]),
        "difference": NOTHING if difference is None else f"{difference:.1e}",
        "corrupt": _describe_corrupt(corrupt) if corrupt else NOTHING,
        "long": _describe_long(long) if long else NOTHING,
        "restart": _describe_restart(runs),
    }
    return cells


def _describe_corrupt(run: Mapping[str, Any]) -> str:
    outcome = "a null with its reason" if run["nulls"] else "no row for it"
    if run["odd"] is not None:
        outcome = f"scored as {run['odd']:.3f}"
    return f"{run['scored']:,} of {run['pairs']:,} scored, {outcome}, exit code {run['measured']['exit_code']}"


def _describe_long(run: Mapping[str, Any]) -> str:
    if run["odd"] is not None:
        return f"scored as {run['odd']:.3f}"
    return f"no score, {run['scored']} of {run['pairs']} scored, exit code {run['measured']['exit_code']}"


def _describe_restart(runs: Mapping[str, Any]) -> str:
    if RESTARTED not in runs:
        return NOTHING
    share = runs[RESTARTED]["measured"]["seconds"] / runs[Case.MANY]["measured"]["seconds"]
    kept = runs[RESTART]["measured"]["killed_at"] or 0
    return f"{share:.0%}, after {kept:,} of {runs[Case.MANY]['pairs']:,}"


def describe_notes(contenders: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences about versions, differences, failures, and all in which a peer is better than Plumbline."""
    notes = []
    own = [make_numbers(each) for each in contenders if not each["is_peer"]]
    for each in (each for each in contenders if each["is_peer"]):
        said = [f"**{each['name']}**: {', '.join(each['versions'])}."]
        if each["failure"]:
            said.append(f"It has no environment: {each['failure']}.")
        elif not _find_finished(each, Case.BASE):
            said.append(
                f"It scored nothing: `{each['runs'][Case.BASE]['said']}`." if each["runs"] else "It was not run."
            )
        if each["reason"] and each["difference"]:
            said.append(f"Its scores differ: it {each['reason']}.")
        numbers = make_numbers(each)
        better = [
            f"{words} ({numbers[name]:,.1f}, Plumbline {best:,.1f})"
            for name, words in SPEED_NAMES.items()
            if name in numbers and (best := _find_best(own, name)) is not None and _is_better(name, numbers[name], best)
        ]
        if better:
            said.append(f"It is better in {', '.join(better)}.")
        notes.append(" ".join(said))
    return notes


def _find_best(own: Sequence[Mapping[str, float]], name: str) -> float | None:
    numbers = [each[name] for each in own if name in each]
    return (min if name in LOWER_IS_BETTER else max)(numbers, default=None)


def _is_better(name: str, theirs: float, own: float) -> bool:
    return theirs < own if name in LOWER_IS_BETTER else theirs > own


def write_page(path: Path, record: Mapping[str, Any]) -> None:
    """Write the page from the JSON record."""
    environment = Environment(loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined)
    environment.filters["count"] = "{:,}".format
    measures = []
    for measure, (title, text) in MEASURES.items():
        contenders = [each for each in record["contenders"] if each["measure"] == measure]
        if contenders:
            rows = [describe_contender(each) for each in contenders]
            notes = describe_notes(contenders)
            measures.append({"title": title, "text": text, "contenders": rows, "notes": notes})
    page = environment.get_template(TEMPLATE).render(**record, measures=measures, long_words=LONG_WORDS)
    path.write_text(page.strip() + "\n")
