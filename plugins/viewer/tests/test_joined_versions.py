"""Two runs can be compared even if the judge changed between them."""

import re
from pathlib import Path

from plugins.viewer.tests.page_client import open_client
from plugins.viewer.tests.test_sides import read_text
from tests.operators.report.made import MadeRun
from tests.pipelines.report import test_joined_versions
from tests.pipelines.report.test_joined_versions import DAYS, make_both_nights

SIDES_PAGE = f"/compare?left={DAYS[0]}&right={DAYS[1]}"
joined = test_joined_versions.joined


def test_without_a_bridge_the_scores_are_not_compared(tmp_path: Path) -> None:
    run = make_both_nights(tmp_path)
    with open_client(run.store, tmp_path / "rows") as ask:
        page = read_text(ask, SIDES_PAGE)
    assert "gecko is not the same metric in both runs, so its scores are not compared: template so? → no?." in page
    assert f"bridge.old=gecko bridge.old_run={DAYS[0]} bridge.new_run={DAYS[1]}" in page
    assert "Images whose scores changed" not in page


def test_a_bridge_removes_the_effect_of_a_changed_judge_from_a_comparison(joined: MadeRun, tmp_path: Path) -> None:
    with open_client(joined.store, tmp_path / "rows") as ask:
        page = read_text(ask, f"{SIDES_PAGE}&generator=atlas")
    assert "and its earlier scores are compared by bridge" in page and "Nothing changed." in page
    assert "No bridge leads" not in page and "no fair measure" not in page
    moved = [float(move) for move in re.findall(r"[+−]?(\d\.\d{3}) by gecko", page)]
    assert len(moved) == 10 and max(moved) < 0.15, "without the bridge the changes would be 0.3 or more"
    mapped = re.findall(r"mean (\d\.\d{3}) as the right side’s gecko", page)
    assert len(mapped) == 10 and all(0.3 < float(mean) < 0.7 for mean in mapped), "the old wording gave atlas 0.9"
