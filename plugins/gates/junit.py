"""Converts a gate's result to JUnit XML, which CI systems show as test results."""

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from plumbline.plugins.gates.checks import Check, GateResult

INVALID_XML_CHARACTER_PATTERN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that are not allowed in XML."""


def to_junit(results: Sequence[GateResult]) -> str:
    """Return one test suite per run, with one case per check.

    A check that makes the gate fail is a failure. An undecided check that does not make the gate fail is skipped.
    """
    suites = ElementTree.Element("testsuites", _count_checks([check for result in results for check in result.checks]))
    for result in results:
        name = _replace_invalid_characters(f"gate {result.run_id} {result.benchmark}")
        suite = ElementTree.SubElement(suites, "testsuite", {"name": name, **_count_checks(result.checks)})
        for check in result.checks:
            _add_case(suite, check)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, "unicode", xml_declaration=True) + "\n"


def _count_checks(checks: Sequence[Check]) -> dict[str, str]:
    failures = sum(check.fails for check in checks)
    skipped = sum(check.outcome == "cannot tell" and not check.fails for check in checks)
    return {"tests": str(len(checks)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}


def _add_case(suite: ElementTree.Element, check: Check) -> None:
    name = " ".join(part for part in (check.generator, check.metric, check.skill) if part)
    case = ElementTree.SubElement(
        suite,
        "testcase",
        {"classname": _replace_invalid_characters(check.rule), "name": _replace_invalid_characters(name)},
    )
    message = {"message": _replace_invalid_characters(f"{check.outcome}: {check.found}")}
    if check.fails:
        failure = ElementTree.SubElement(case, "failure", {**message, "type": check.outcome})
        failure.text = _replace_invalid_characters(f"asked: {check.asked}")
    elif check.outcome == "cannot tell":
        ElementTree.SubElement(case, "skipped", message)
    else:
        ElementTree.SubElement(case, "system-out").text = _replace_invalid_characters(check.found)


def _replace_invalid_characters(text: str) -> str:
    return INVALID_XML_CHARACTER_PATTERN.sub("\ufffd", text)
