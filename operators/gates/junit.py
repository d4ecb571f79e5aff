"""What a gate says as JUnit XML, as CI systems show the results of tests."""

import re
from xml.etree import ElementTree

from plumbline.operators.gates.checks import Check, GateResult

NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML can hold."""


def to_junit(result: GateResult) -> str:
    """A test suite with a case for each check: one that fails the gate is a failure, one that passes though its
    prompts cannot tell is skipped.
    """
    failures = len(result.failing)
    skipped = sum(check.outcome == "cannot tell" and not check.fails for check in result.checks)
    counts = {"tests": str(len(result.checks)), "failures": str(failures), "errors": "0", "skipped": str(skipped)}
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", {"name": _text(f"gate {result.run_id}"), **counts})
    for check in result.checks:
        _add_case(suite, check)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, "unicode", xml_declaration=True) + "\n"


def _add_case(suite: ElementTree.Element, check: Check) -> None:
    name = " ".join(part for part in (check.generator, check.metric, check.skill) if part)
    case = ElementTree.SubElement(suite, "testcase", {"classname": _text(check.rule), "name": _text(name)})
    said = {"message": _text(f"{check.outcome}: {check.found}")}
    if check.fails:
        failure = ElementTree.SubElement(case, "failure", {**said, "type": check.outcome})
        failure.text = _text(f"asked: {check.asked}")
    elif check.outcome == "cannot tell":
        ElementTree.SubElement(case, "skipped", said)
    else:
        ElementTree.SubElement(case, "system-out").text = _text(check.found)


def _text(text: str) -> str:
    return NO_XML.sub("\ufffd", text)
