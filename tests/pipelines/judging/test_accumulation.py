"""Released answers become scores, by whether a question counts where those above it fail or have no answer."""

from pathlib import Path

import pytest

from jobs.accumulate import main
from jobs.command import load_values
from operators import rows
from operators.errors import ConfigError, SourceError
from operators.judging.accumulation import accumulate
from pipelines.config import read_config
from pipelines.judging.accumulation import AccumulateConfig, accumulated
from pipelines.judging.releases.scores import read_scores
from pipelines.storage import StorageConfig, locate

CHAIN = {"1": [], "2": ["1"], "3": ["2"], "4": ["9"]}
RELEASED = """image,prompt,model,q,above,wanted,blip,mplug
i1,p,sd,1,-1,yes,no,yes
i1,p,sd,2,1,yes,Yes,yes
i1,p,sd,3,1-2,red,red,
i2,p,sd,1,-1,yes,,yes
"""


@pytest.mark.parametrize(
    ("accumulation", "missing", "score"),
    [("none", "wrong", 3 / 4), ("direct", "wrong", 2 / 4), ("recursive", "wrong", 1 / 4),
     ("none", "left_out", 3 / 4), ("direct", "left_out", 2 / 4), ("recursive", "left_out", 1 / 4)],
)  # fmt: skip
def test_a_question_counts_by_itself_by_its_parents_or_by_all_above_it(
    accumulation: str, missing: str, score: float
) -> None:
    right = {"1": False, "2": True, "3": True, "4": True}
    assert accumulate(right, CHAIN, accumulation, missing) == score  # type: ignore[arg-type]


def test_a_question_without_an_answer_is_wrong_or_not_there() -> None:
    right = {"1": None, "2": True, "3": True, "4": False}
    assert accumulate(right, CHAIN, "recursive", "wrong") == 0
    assert accumulate(right, CHAIN, "recursive", "left_out") == 2 / 3
    assert accumulate({"1": None}, CHAIN, "none", "left_out") is None
    assert accumulate({"1": None}, CHAIN, "none", "wrong") == 0


def config(folder: Path, content: str, *overrides: str) -> AccumulateConfig:
    (folder / "answers.csv").write_text(content)
    names = {"image_id": "image", "prompt_id": "prompt", "generator": "model", "question_id": "q", "parents": "above"}
    given = [f"answers={folder}/answers.csv", f"output={folder}/scores.parquet", "given=[blip,mplug]", "separator='-'",
             "no_parent='-1'", *(f"columns.{ours}={theirs}" for ours, theirs in names.items())]  # fmt: skip
    return read_config(load_values("accumulate", [*given, *overrides]), AccumulateConfig)


def test_answers_are_compared_with_the_right_ones_and_written_for_metaeval(tmp_path: Path) -> None:
    asked = config(tmp_path, RELEASED, "columns.answer=wanted", "accumulation=direct")
    assert main(asked) == 2, "an image without an answer has a null score"
    scores = read_scores(locate(asked.output, StorageConfig()))
    assert scores.schema == rows.SCORES
    found = {(row["image_id"], row["metric"]): (row["score"], row["n_questions"]) for row in scores.to_pylist()}
    assert found == {
        ("i1", "blip"): (0, 3), ("i2", "blip"): (None, 0), ("i1", "mplug"): (1, 2), ("i2", "mplug"): (1, 1),
    }  # fmt: skip
    (lost,) = [row for row in scores.to_pylist() if row["score"] is None]
    assert lost["error"]["kind"] == "not_scored" and "set missing=wrong" in lost["error"]["message"]
    assert {(row["prompt_id"], row["generator"]) for row in scores.to_pylist()} == {("p", "sd")}


def test_answers_that_say_themselves_whether_they_are_right_need_no_others(tmp_path: Path) -> None:
    content = "image,q,blip,mplug\ni,1,1,true\ni,2,0,False\n"
    found = accumulated(config(tmp_path, content)).to_pylist()
    assert [(row["metric"], row["score"], row["prompt_id"]) for row in found] == [
        ("blip", 0.5, None),
        ("mplug", 0.5, None),
    ]


@pytest.mark.parametrize(
    ("content", "overrides", "said"),
    [
        (RELEASED, [], r"row 0: expected 1 or 0 as blip, found 'no'; name the column of right answers"),
        ("image,q,blip,mplug\ni,1,1,1\n", ["accumulation=direct"], r"expected column\(s\) above.*set columns\.parents"),
        ("image,q,blip\ni,1,1\n", [], r"expected column\(s\) mplug.*set columns and given"),
        ("image,q,blip,mplug\ni,1,1,1\ni,1,0,1\n", [], r"row 1: image 'i' is asked question '1' twice; remove one"),
    ],
)
def test_what_cannot_be_read_is_said_with_file_row_and_remedy(
    tmp_path: Path, content: str, overrides: list[str], said: str
) -> None:
    with pytest.raises(SourceError, match=said):
        accumulated(config(tmp_path, content, *overrides))


def test_without_a_column_of_answers_there_is_nothing_to_score(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="given: expected the columns of answers, got none"):
        config(tmp_path, RELEASED, "given=[]")
