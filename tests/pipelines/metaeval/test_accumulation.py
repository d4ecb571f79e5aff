"""Released answers become scores; options decide how wrong and missing answers to parent questions count."""

import json
from pathlib import Path

import pytest

from plumbline.jobs.accumulate import main
from plumbline.operators.base import schemas
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.accumulation import AccumulateConfig, accumulate, accumulate_answers
from plumbline.pipelines.metaeval.releases.scores import read_scores
from tests.commands import load_job_config
from tests.pipelines.metaeval.releases.files import TS2_METADATA, format_csv, write_file

PARENTS_BY_QUESTION = {"1": [], "2": ["1"], "3": ["2"], "4": ["9"]}
RELEASED_ANSWERS = """image,prompt,model,q,above,wanted,blip,mplug
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
def test_a_question_counts_alone_or_with_its_parents_or_with_all_its_ancestors(
    accumulation: str, missing: str, score: float
) -> None:
    right = {"1": False, "2": True, "3": True, "4": True}
    assert accumulate(right, PARENTS_BY_QUESTION, accumulation, missing) == score  # type: ignore[arg-type]


def test_a_question_without_an_answer_is_wrong_or_left_out() -> None:
    right = {"1": None, "2": True, "3": True, "4": False}
    assert accumulate(right, PARENTS_BY_QUESTION, "recursive", "wrong") == 0
    assert accumulate(right, PARENTS_BY_QUESTION, "recursive", "left_out") == 2 / 3
    assert accumulate({"1": None}, PARENTS_BY_QUESTION, "none", "left_out") is None
    assert accumulate({"1": None}, PARENTS_BY_QUESTION, "none", "wrong") == 0


def make_config(folder: Path, content: str, *overrides: str) -> AccumulateConfig:
    (folder / "answers.csv").write_text(content)
    names = {"image_id": "image", "prompt_id": "prompt", "generator": "model", "question_id": "q", "parents": "above"}
    given = [f"answers={folder}/answers.csv", f"output={folder}/scores.parquet", "given=[blip,mplug]", "separator='-'",
             "no_parent='-1'", *(f"columns.{ours}={theirs}" for ours, theirs in names.items())]  # fmt: skip
    return load_job_config("accumulate", *given, *overrides)


def test_answers_are_compared_with_the_right_answers_and_written_as_scores(tmp_path: Path) -> None:
    asked = make_config(tmp_path, RELEASED_ANSWERS, "columns.answer=wanted", "accumulation=direct")
    assert main(asked) == 2, "an image without an answer has a null score"
    scores = read_scores(StorageConfig().locate(asked.output))
    assert scores.schema == schemas.SCORES
    found = {(row["image_id"], row["metric"]): (row["score"], row["n_questions"]) for row in scores.to_pylist()}
    assert found == {
        ("i1", "blip"): (0, 3), ("i2", "blip"): (None, 0), ("i1", "mplug"): (1, 2), ("i2", "mplug"): (1, 1),
    }  # fmt: skip
    (lost,) = [row for row in scores.to_pylist() if row["score"] is None]
    assert lost["error"]["kind"] == "not_scored" and "set missing=wrong" in lost["error"]["message"]
    assert {(row["prompt_id"], row["generator"]) for row in scores.to_pylist()} == {("p", "sd")}


def test_answers_marked_as_right_or_wrong_need_no_right_answers(tmp_path: Path) -> None:
    content = "image,q,blip,mplug\ni,1,1,true\ni,2,0,False\n"
    found = accumulate_answers(make_config(tmp_path, content)).scores.to_pylist()
    assert [(row["metric"], row["score"], row["prompt_id"]) for row in found] == [
        ("blip", 0.5, None),
        ("mplug", 0.5, None),
    ]


@pytest.mark.parametrize(
    ("content", "overrides", "said"),
    [
        (RELEASED_ANSWERS, [], r"row 0: expected 1 or 0 as blip, found 'no'; name the column of right answers"),
        (
            "image,q,blip,mplug\ni,1,1,1\n",
            ["accumulation=direct"],
            r"answers\.csv: accumulation=direct needs the questions' parents, but.*set columns\.p",
        ),
        ("image,q,blip\ni,1,1\n", [], r"expected column\(s\) mplug.*set columns and given"),
        (
            "image,q,blip,mplug\ni,1,1,1\ni,1,0,1\n",
            [],
            r"row 1: question '1' about image 'i' is answered twice; remove",
        ),
    ],
)
def test_an_invalid_answer_is_an_error_with_file_row_and_remedy(
    tmp_path: Path, content: str, overrides: list[str], said: str
) -> None:
    with pytest.raises(SourceError, match=said):
        accumulate_answers(make_config(tmp_path, content, *overrides))


DSG_FILES = {
    "dsg/data/dsg-1k-anns.csv": """item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,\
tuple,question_natural_language
tifa160_0,A red dog,dog,1,0,entity,whole,entity - whole (dog),Is there a dog?
tifa160_0,A red dog,"dog, red",2,1,attribute,color,"attribute - color (dog, red)",Is the dog red?
tifa160_1,A cat,cat,1,0,entity,whole,entity - whole (cat),Is there a cat?
whoops_1,A sea,sea,1,"0, whole",entity,whole,entity - whole (sea),Is there a sea?
""",
    "dsg/data/tifa160-likert-anns.csv": """dsg_prompt_split,t2i_model,item_id,source_id,worker_id,question,answer
tifa160,mini-dalle,tifa160_0,coco_12,437,How consistent is the image with the text description?,3
""",
    "tifa_ann/tifa_v1.0_question_answers.json": json.dumps(
        [
            {"id": "coco_12", "caption": "A red dog", "question": question, "choices": choices, "answer": answer,
             "element_type": "animal/human", "element": "dog", "coco_val_id": "1"}
            for question, choices, answer in (("is there a dog?", ["yes", "no"], "no"),
                                              ("what is red?", ["dog", "cat"], "dog"))
        ]
    ),
    "vqa_answers_release/mplug_dsg.csv": """dsg_prompt_split,qg_model,t2i_model,item_id,question,question_id,\
dependency_id,answer
tifa160,dsg,mini-dalle,tifa160_0,Is there a dog?,1,0,no
tifa160,dsg,mini-dalle,tifa160_0,Is the dog red?,2,1,yes
""",
    "vqa_answers_release/pali17b_tifa.csv": """dsg_prompt_split,qg_model,t2i_model,item_id,question,answer
tifa160,tifa,mini-dalle,tifa160_0,"Question: is there a dog? Choices: yes, no. Answer:",yes
tifa160,tifa,mini-dalle,tifa160_0,"Question: what is red? Choices: dog, cat. Answer:",
""",
    "vqa_answers_release/mplug_vq2a.csv": """dsg_prompt_split,qg_model,t2i_model,item_id,question,answer
tifa160,vq2a,mini-dalle,tifa160_0,What is red? dog?,yes
""",
}  # fmt: skip
"""A checkout of j-min/DSG with synthetic rows; the split `whoops` has questions, but no answers."""


def write_release(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        write_file(folder / name, content)
    return folder


def make_format_config(name: str, answers: Path, *overrides: str) -> AccumulateConfig:
    given = [f"answers={answers}", f"format={name}", f"output={answers}.parquet", *overrides]
    return load_job_config("accumulate", *given)


def compute_scores(config: AccumulateConfig) -> dict[tuple[str, str], float | None]:
    return {(row["metric"], row["image_id"]): row["score"] for row in accumulate_answers(config).scores.to_pylist()}


def test_dsgs_unanswered_questions_are_read_too(tmp_path: Path) -> None:
    config = make_format_config(
        "dsg", write_release(tmp_path, DSG_FILES), "given=[mplug_dsg]", "accumulation=direct", "missing=wrong"
    )
    assert compute_scores(config) == {
        ("mplug_dsg", "tifa160_0/mini-dalle"): 0, ("mplug_dsg", "tifa160_1/mini-dalle"): 0,
    }, "a yes whose parent is no, and a prompt without answers"  # fmt: skip
    (row, lost) = accumulate_answers(make_format_config("dsg", tmp_path, "given=[mplug_dsg]")).scores.to_pylist()
    assert (row["prompt_id"], row["generator"], row["score"]) == ("tifa160_0", "mini-dalle", 0.5)
    assert lost["score"] is None and lost["error"]["kind"] == "not_scored"
    (note,) = accumulate_answers(config).notes
    assert "dsg-1k-anns.csv, row 3: the dependency '0, whole' is not all numbers" in note


def test_dsgs_answers_to_questions_of_tifa_and_vq2_are_compared_as_in_its_code(tmp_path: Path) -> None:
    config = make_format_config(
        "dsg", write_release(tmp_path, DSG_FILES), "given=[pali17b_tifa,mplug_vq2a]", "missing=wrong"
    )
    assert compute_scores(config) == {
        ("pali17b_tifa", "tifa160_0/mini-dalle"): 0.5, ("mplug_vq2a", "tifa160_0/mini-dalle"): 1,
    }, "yes is the right answer to yes/no questions, whatever TIFA's file says"  # fmt: skip


TIFA_RESULT = {
    "tifa_average": 0.5,
    "tifa_stdev": 0.1,
    "accuracy_by_type": {"color": 0.5},
    "question_details": {
        "coco_12": {
            question: {
                "id": "coco_12", "caption": "A red dog", "question": question, "choices": ["yes", "no"],
                "answer": "yes", "element_type": "color", "element": "dog", "coco_val_id": "1",
                "free_form_vqa": "yes", "multiple_choice_vqa": answer, "scores": int(answer == "yes"),
            }
            for question, answer in (("is it red?", "yes"), ("is it a dog?", "no"))
        }
    },
    "caption_scores": {"coco_12": 0.5},
}  # fmt: skip


def test_tifas_results_have_one_file_per_generator(tmp_path: Path) -> None:
    write_file(tmp_path / "sd.json", json.dumps(TIFA_RESULT))
    write_file(tmp_path / "vq.json", json.dumps({**TIFA_RESULT, "caption_scores": {"coco_12": 2 / 3}}))
    found = accumulate_answers(make_format_config("tifa", tmp_path, "given=[tifa_mplug]"))
    assert [(row["metric"], row["image_id"], row["generator"], row["score"]) for row in found.scores.to_pylist()] == [
        ("tifa_mplug", "coco_12/sd", "sd", 0.5), ("tifa_mplug", "coco_12/vq", "vq", 0.5),
    ]  # fmt: skip
    assert len(found.notes) == 1 and "vq.json: caption_scores of 1 prompts, first 'coco_12'" in found.notes[0]
    assert compute_scores(make_format_config("tifa", tmp_path / "sd.json")) == {("tifa", "coco_12/sd"): 0.5}


TS2_FILES = {
    "data/metadata.csv": format_csv(TS2_METADATA[:2]),
    "output/score_per_question/DSG/mplug_dsg_mc.csv": """id,question_id,vqa_answer,mc_answer,correct,parent_question_id
0,0,No there is not.</s>,no,0,-1
0,1,Yes.</s>,yes,1,0
0,2,Yes.</s>,yes,1,0-1
0,0,Yes.</s>,yes,1,-1
0,1,,,,0
""",
    "output/score_per_question/TIFA/mplug_tifa_mc.csv": """id,question_id,vqa_answer,mc_answer,correct
0,0,Yes.</s>,yes,1
0,0,A cat.</s>,cat,0
""",
}
FIRST_IMAGE, SECOND_IMAGE = (str(row["file_name"]) for row in TS2_METADATA[:2])


def test_t2iscorescores_answers_are_in_the_order_of_the_metadata(tmp_path: Path) -> None:
    config = make_format_config("t2iscorescore", write_release(tmp_path, TS2_FILES), "accumulation=recursive")
    assert compute_scores(config) == {
        ("mplug_dsg", FIRST_IMAGE): 0, ("mplug_dsg", SECOND_IMAGE): 1,
        ("mplug_tifa", FIRST_IMAGE): 1, ("mplug_tifa", SECOND_IMAGE): 0,
    }  # fmt: skip
    wide = {
        "metadata.csv": TS2_FILES["data/metadata.csv"],
        "ts2_dsg_correct.csv": "id,image_row,question_id,parents,fuyu,llava\n0,0,0,-1,1,1\n0,1,0,-1,0,1\n",
    }
    config = make_format_config("t2iscorescore", write_release(tmp_path / "wide", wide), "given=[fuyu_dsg]")
    assert compute_scores(config) == {("fuyu_dsg", FIRST_IMAGE): 1, ("fuyu_dsg", SECOND_IMAGE): 0}


@pytest.mark.parametrize(
    ("name", "file", "content", "said"),
    [
        ("dsg", "vqa_answers_release/mplug_dsg.csv", None, "expected a folder with vqa_answers_release/.*check the pa"),
        ("dsg", "dsg/data/dsg-1k-anns.csv", None, "expected a folder with dsg/data/dsg-1k-anns.csv or"),
        ("dsg", "vqa_answers_release/mplug_dsg.csv", "t2i_model,item_id,question,question_id,answer\nsd,x_1,q,9,yes\n",
         r"mplug_dsg\.csv, row 0: .*has no question 9 about x_1"),
        ("tifa", "r.json", "{}", r"r\.json: expected question_details, found nothing; check that"),
        ("tifa", "r.json", '{"question_details": {"c": {"q": {"scores": 0.5}}}}', "'q': expected scores of 1 or 0"),
        ("tifa", "r.txt", "", r"expected TIFA results \(.json files\), found none"),
        ("t2iscorescore", "output/score_per_question/DSG/mplug_dsg_mc.csv",
         "id,question_id,correct,parent_question_id\n7,0,1,-1\n", "row 0: .* has no image 0 in graph 7"),
        ("t2iscorescore", "output/score_per_question/DSG/mplug_dsg_mc.csv",
         "id,question_id,correct,parent_question_id\n0,0,yes,-1\n", "row 0: expected 1 or 0 as correct, found 'yes'"),
    ],
)  # fmt: skip
def test_an_invalid_release_is_an_error_of_one_line(
    tmp_path: Path, name: str, file: str, content: str | None, said: str
) -> None:
    files = {"dsg": {key: DSG_FILES[key] for key in ("vqa_answers_release/mplug_dsg.csv", "dsg/data/dsg-1k-anns.csv")}}
    write_release(tmp_path, {"dsg": files["dsg"], "tifa": {}, "t2iscorescore": TS2_FILES}[name])
    if content is None:
        (tmp_path / file).unlink()
    else:
        write_file(tmp_path / file, content)
    with pytest.raises(SourceError, match=said) as caught:
        accumulate_answers(make_format_config(name, tmp_path, "given=[]"))
    assert "\n" not in str(caught.value)


def test_a_missing_model_and_unsupported_options_are_errors(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"given: .* has no answers from 'blip'; it has answers from mplug_dsg, mplug_tifa"
    ):
        accumulate_answers(make_format_config("t2iscorescore", write_release(tmp_path, TS2_FILES), "given=[blip]"))
    with pytest.raises(ConfigError, match=r"format: expected one of dsg, .* or null, got 'vq2'"):
        make_format_config("vq2", tmp_path)
    for key, value in (("columns.image_id", "image"), ("separator", "'-'"), ("no_parent", "'-1'")):
        said = f"{key.split('.')[0]}: cannot be set for format=tifa, whose file format is known; leave it out"
        with pytest.raises(ConfigError, match=said):
            make_format_config("tifa", tmp_path, f"{key}={value}")


def test_a_table_requires_columns_of_answers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="given: expected the columns of answers, got none"):
        make_config(tmp_path, RELEASED_ANSWERS, "given=[]")
