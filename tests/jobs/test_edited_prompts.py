"""When a report or a nightly run compares images, prompts that were edited under the same id are excluded."""

import numpy as np
import pytest

from plumbline.pipelines.base.exit_codes import COMPLETE
from tests.bench_of import list_arguments, read_image_rows, read_prompt_rows, write_rows
from tests.commands import FinishedJob, run

N_EDITED, N_PROMPTS = 20, 44
EDITED_MESSAGE = (
    f"{N_EDITED} prompts have different texts under the same id in the earlier run, so they are not compared"
)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, FinishedJob]:
    """Run a nightly CLIPScore job, edit 20 random prompts, and run it again on the same images.

    Return the option that names the store, and the result of the second job.
    """
    folder = tmp_path_factory.mktemp("edited")
    random = np.random.default_rng(0)
    given = read_prompt_rows(N_PROMPTS)
    write_rows(folder / "images" / "atlas" / "00000.parquet", read_image_rows("atlas", N_PROMPTS), row_group=16)
    write_rows(folder / "prompts.parquet", given, row_group=16)
    words = list_arguments(
        folder, folder / "store", "sweep=own_images", "models=shapes", "metric=[clipscore]", "shard_rows=16"
    )
    assert run("nightly", *words).code == COMPLETE
    for place in random.permutation(N_PROMPTS)[:N_EDITED]:
        given[place] = {**given[place], "text": "something that no picture shows"}
    random.shuffle(given)
    write_rows(folder / "prompts.parquet", given, row_group=16)
    return f"store={folder}/store", run("nightly", *words)


def test_an_edited_prompt_is_not_reported_as_a_regression(sweep: tuple[str, FinishedJob]) -> None:
    _, night = sweep
    assert night.code == COMPLETE, "the scores of edited prompts are lower"
    assert "regression" not in night.out.lower().replace("no regression", "")
    assert f"(left out: {N_EDITED} prompts with edited texts) since" in night.words


def test_the_report_says_how_many_prompts_were_left_out_and_compares_the_others(sweep: tuple[str, FinishedJob]) -> None:
    store, _ = sweep
    said = run("report", store, "compare=previous")
    assert EDITED_MESSAGE in said.words and "Nothing changed in the scores that both runs have" in said.words
