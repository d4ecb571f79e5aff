"""When two runs are compared, prompts whose text changed under the same id do not count as changes to the images."""

from pathlib import Path

from plugins.viewer.tests.page_client import open_client
from plumbline.pipelines.store.runs import read_runs_newest_first
from tests.commands import open_store_at
from tests.jobs import test_edited_prompts
from tests.jobs.test_edited_prompts import N_EDITED, N_PROMPTS

sweep = test_edited_prompts.sweep


def test_prompts_with_edited_texts_are_left_out_of_a_comparison(sweep: tuple[str, object], tmp_path: Path) -> None:
    store, _ = sweep
    opened = open_store_at(store.removeprefix("store="))
    later, earlier = (run.run_id for run in read_runs_newest_first(opened))
    with open_client(opened, tmp_path / "rows") as pages:
        page = " ".join(pages(f"/compare?left={earlier}&right={later}").text.split())
    assert f"of {N_PROMPTS - N_EDITED} prompts" in page
    assert f"of {N_PROMPTS} prompts" not in page
