"""Invalid configurations of jobs.build_benchmark are refused with a message that says how to fix them."""

from collections.abc import Callable

import pytest

from tests.refusals import Refusals, list_refusals

REFUSED: Refusals = {
    "build_benchmark output={out} models=shapes": [
        ("", "prompts: expected a file of prompts or generation=llm, got neither; set prompts=FILE"),
        ("generation=llm tagging=llm", "prompts: expected a file of prompts for tagging and drawing, got none"),
        ("prompts={prompts} near_duplicates=0", "near_duplicates: expected a fraction above 0 and at most 1 or null"),
        ("prompts={prompts} drawing=balanced drawing.count=1",
         "p.csv: prompts are drawn by skill, but none of the"),
        ("prompts={prompts} drawing=balanced", "config key 'drawing.count' is required"),
        ("prompts={prompts} drawing=balanced drawing.count=0", "drawing.count: expected at least 1, got 0"),
        ("prompts={prompts} taxonomy=geko", "taxonomy=geko: no such choice; did you mean gecko"),
        ("generation=llm generation.controls={{Words:[1]}}", "write +generation.controls.NAME=VALUE"),
        ("generation=llm generation.sub_skills=[att/colr]", "'att/colr' has no template in the taxonomy gecko"),
        ("generation=llm +generation.controls.Wrods=[1]", "generation.controls: no template has a control 'Wrods'"),
        ("prompts={prompts} tagging=llm tagging.writer=judge", "no model has the role 'judge'"),
        ("prompts=none.csv", "none.csv: not found; check the path"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("command", "said"), list_refusals(REFUSED))
def test_an_invalid_configuration_is_refused_in_one_line_and_writes_nothing(
    command: str, said: str, check_refusal: Callable[[str, str], None]
) -> None:
    check_refusal(command, said)
