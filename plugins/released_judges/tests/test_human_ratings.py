"""Judge benchmarks are read from their original layouts, and used to compare one of our judges with people."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from plugins.released_judges.tests.made_checkouts import MMRB2_FILES
from plugins.released_judges.tests.test_pair_wordings import write_preference
from plumbline.operators.base.errors import SourceError
from tests.bench_of import read_prompt_rows, write_rows
from tests.commands import run_for_output
from tests.jobs.test_pairwise_sweep import N_PROMPTS, JudgedBenchmark, paint, read_images, read_pixel
from tests.operators.metrics.made_releases import write_release
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Answer, Server, make_completion
from tests.pipelines.metaeval.releases.files import Layout, read_with, write_file
from tests.pipelines.metaeval.releases.test_releases import check_complaint, check_missing, check_tables


def make_pair(pair_id: str, annotations: object, chosen: str = "A") -> dict[str, Any]:
    response = {"model_name": "m", "response_content": [["image", f"{pair_id}_0.jpg"]]}
    return {
        "id": pair_id, "response_a": response, "response_b": response, "chosen": chosen,
        "human_annotations": annotations, "prompt_source": "wise", "prompt_metadata": {},
    }  # fmt: skip


def make_verdict(forward: str | None, reverse: str | None) -> dict[str, Any]:
    return {
        order: [{"judgement": verdict, "evaluator": "gpt", "metadata": {}}]
        for order, verdict in (("forward", forward), ("reverse", reverse))
    }


T2I_FILE, REASONING_FILE = "benchmark/t2i_response_only.json", "benchmark/reasoning_response_only.json"
JUDGED_FILE = "evaluate/generate_judgements/outputs/gpt.json"
PAIRS = [make_pair("one", [6, 2, 5]), make_pair("two", [3, 1, 4], "B")]
MMRB2_RELEASE: dict[str, Any] = {
    T2I_FILE: {"pairs": PAIRS},
    REASONING_FILE: {"pairs": [make_pair("three", {"response_a_ratings": ["B"], "response_b_ratings": ["C"]}, "B")]},
    JUDGED_FILE: {
        "one": make_verdict("A", "B"), "two": make_verdict("B", "B"), "three": make_verdict(None, "C"),
        "other": make_verdict("A", "B"),
    },
}  # fmt: skip
EDIT_PAIR = {"dimension": "VC", "source_image": "s.png", "prompt": "p", "winner": "w.png", "loser": "l.png"}
COMPASS_RELEASE: dict[str, Any] = {
    "reward_eval.json": [{**EDIT_PAIR, "label": "preference"}, {**EDIT_PAIR, "dimension": "IA", "label": "tie"}]
}
QUESTION = 'Rate. For this video, the text prompt is "a "red" cat",\nall the frames are:\n<image>'
ASPECT_NAMES = (
    "visual quality",
    "temporal consistency",
    "dynamic degree",
    "text-to-video alignment",
    "factual consistency",
)
ANSWER = "".join(f"\n{name}: {rating}" for name, rating in zip(ASPECT_NAMES, (1, 2, 3, 4, 2), strict=True))
VIDEO = {"id": "v1", "images": ["0.jpg"], "conversations": [{"from": "human", "value": QUESTION}, {"value": ANSWER}]}
RESULT = {"id": "v1", "text": "a cat", "ref": "[1, 2, 3, 4, 2]", "ans": "[1.5, 2.25, 3, 4, null]"}
RESULT_FILE = "eval_video_feedback_videoscore.json"
LAYOUTS: Mapping[str, Layout] = {
    "mmrb2": Layout("mmrb2", MMRB2_RELEASE, True),
    "edit_reward_compass": Layout("edit_reward_compass", COMPASS_RELEASE, False),
    "video_feedback": Layout("video_feedback", {RESULT_FILE: [RESULT], "eval_other_gpt4o.json": [RESULT]}, True),
}
CHOICE_COLUMNS = "prompt_id image_a generator_b rater template preferred"
EXPECTED: Mapping[str, Mapping[str, Any]] = {
    "mmrb2": {
        "preferences": (CHOICE_COLUMNS, 1, [
            ("one", "one/a", "b", "1", "t2i", "b"), ("one", "one/a", "b", "2", "t2i", "a"),
            ("two", "two/a", "b", "0", "t2i", "b"), ("two", "two/a", "b", "1", "t2i", "b"),
            ("two", "two/a", "b", "2", "t2i", "a"), ("three", "three/a", "b", "0", "reasoning", "b"),
        ]),
        "scores": ("image_id generator metric score", 0, [
            ("one/a", "a", "gpt", 1.0), ("one/b", "b", "gpt", 0.0), ("two/a", "a", "gpt", 0.5),
            ("two/b", "b", "gpt", 0.5), ("three/a", "a", "gpt", None), ("three/b", "b", "gpt", None),
        ]),
        "skills": {"one": ["wise"], "two": ["wise"], "three": ["wise"]},
    },
    "edit_reward_compass": {
        "preferences": ("prompt_id image_a image_b generator_a template preferred", 0, [
            ("0", "w.png", "l.png", "winner", "VC", "a"), ("1", "w.png", "l.png", "winner", "IA", "unsure"),
        ]),
    },
    "video_feedback": {
        "ratings": ("image_id prompt_id template rating", 3, [
            ("v1", "a cat", "text_to_video_alignment", 4.0), ("v1", "a cat", "factual_consistency", 2.0),
        ]),
        "scores": ("metric score", 3, [
            ("gpt4o_text_to_video_alignment", 4.0), ("gpt4o_factual_consistency", None),
            ("videoscore_visual_quality", 1.5),
        ]),
    },
}  # fmt: skip
"""Expected tables by layout, each with its columns, the index of the first compared row, and the expected rows."""
REFUSED: Mapping[str, list[tuple[Any, ...]]] = {
    "mmrb2": [
        (T2I_FILE, {"pairs": []}, "expected a list of pairs, found an empty list"),
        (T2I_FILE, {"pairs": [PAIRS[0]] * 2}, r"row 1: pair one occurs twice \(first in .*row 0\)"),
        (T2I_FILE, {"pairs": [make_pair("one", [7])]}, "row 0: expected annotations from 1 to 6, found 7"),
        (T2I_FILE, {"pairs": [make_pair("one", [True])]}, "expected annotations from 1 to 6, found True"),
        (T2I_FILE, {"pairs": [make_pair("one", [3], "C")]}, "row 0: expected chosen to be A or B, found 'C'"),
        (T2I_FILE, [1], "t2i_response_only.json"),
        (JUDGED_FILE, {"one": 3}, "gpt.json"),
    ],
    "edit_reward_compass": [
        ([{**EDIT_PAIR, "label": "draw"}], "row 0: expected the label preference or tie, found 'draw'"),
        ([{**EDIT_PAIR, "label": "tie", "winner": None}], "row 0: expected text in winner, found None"),
    ],
    "video_feedback": [
        ([{**RESULT, "ans": "[1, 2]"}], r"row 0: expected a list of 5 numbers in ans, found '\[1, 2\]'"),
        ([{**RESULT, "ref": "__import__('os')"}], "expected a list of 5 numbers in ref"),
        ([{**RESULT, "ans": '["a", 1, 1, 1, 1]'}], "row 0: expected a number as the rating, found 'a'"),
        ([{**RESULT, "ref": "[2, 2, 3, 4, 2]"}], "row 0: visual_quality of v1 is 2.0, but 1.0 in .*gpt4o.json, row 0"),
    ],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_release_is_read_from_its_layout(name: str, tmp_path: Path) -> None:
    check_tables(read_with(name, LAYOUTS[name].write(tmp_path)), EXPECTED[name])


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_missing_file_is_reported(name: str, tmp_path: Path) -> None:
    check_missing(LAYOUTS[name], tmp_path, takes_folder=LAYOUTS[name].reads_folder)


@pytest.mark.parametrize(("name", "content"), [(name, each) for name, listed in REFUSED.items() for each in listed])
def test_content_of_another_layout_is_refused_with_its_file_and_row(name: str, content: Any, tmp_path: Path) -> None:
    check_complaint(LAYOUTS[name], content, tmp_path)


@pytest.mark.parametrize("file", ["data.json", "data.parquet"])
def test_video_feedbacks_data_set_is_read_alone(file: str, tmp_path: Path) -> None:
    release = read_with("video_feedback", write_file(tmp_path / file, [VIDEO]))
    names, rows = "image_id prompt_id template rating", [("v1", 'a "red" cat', "dynamic_degree", 3.0)]
    check_tables(release, {"ratings": (names, 2, rows)})
    assert len(release.ratings) == 5 and len(release.scores) == 0
    broken = {**VIDEO, "conversations": [{"value": QUESTION}, {"value": "visual quality: good"}]}
    with pytest.raises(SourceError, match="row 0: expected ratings for 5 aspects in the second turn, found 0"):
        read_with("video_feedback", write_file(tmp_path / "broken.json", [broken]))


def test_a_single_task_of_mmrb2_can_be_read(tmp_path: Path) -> None:
    LAYOUTS["mmrb2"].write(tmp_path)
    release = read_with("mmrb2", tmp_path / T2I_FILE)
    assert len(release.preferences) == 6 and len(release.scores) == 0


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JudgedBenchmark]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    server = Server()
    server.trial = make_completion("yes")
    yield JudgedBenchmark(tmp_path, server)
    server.close()


def test_a_judge_with_mmrb2s_wording_is_compared_with_mmrb2s_experts(judged: JudgedBenchmark, tmp_path: Path) -> None:
    """The judge prefers brighter images; experts prefer the darker image of the last pair."""

    def prefer_brighter(number: int, body: Mapping[str, Any]) -> Answer:
        first, second = (read_pixel(image)[0] for image in read_images(body))
        return make_completion(write_preference("A" if first > second else "B"))

    judged.server.script = prefer_brighter
    bench = tmp_path / "pairs"
    write_rows(bench / "prompts.parquet", read_prompt_rows(N_PROMPTS))
    for side, brightness in (("a", 200), ("b", 50)):
        rows = [
            {"image_id": f"{prompt['prompt_id']}/{side}", "prompt_id": prompt["prompt_id"],
             "image": paint(brightness, number)}
            for number, prompt in enumerate(read_prompt_rows(N_PROMPTS))
        ]  # fmt: skip
        write_rows(bench / "images" / side / "00000.parquet", rows)
    pairs = [make_pair(each["prompt_id"], [6, 5, 1] if place else [1, 2, 6]) for place, each in
             enumerate(reversed(read_prompt_rows(N_PROMPTS)))]  # fmt: skip
    release = write_file(tmp_path / "t2i_response_only.json", {"pairs": pairs})
    wording = write_release(tmp_path / "MMRB2", MMRB2_FILES)
    words = [f"metrics.pairwise.wording={wording}", "metrics.pairwise.release=mmrb2"]
    paths = [f"benchmark.prompts={bench}/prompts.parquet", f"benchmark.images={bench}/images"]
    judged.sweep(*words, *paths)
    output = tmp_path / "judged"
    run_for_output("metaeval", "protocol=mmrb2", f"protocol.path={release}", "run=latest", f"store={tmp_path}/store",
            f"output={output}")  # fmt: skip
    found = pd.read_parquet(output / "judgements.parquet")
    (row,) = found[found["statistic"] == "binary_accuracy"].to_dict("records")
    assert (row["metric"], row["template"], row["value"], row["n"]) == ("pairwise", "t2i", 0.75, N_PROMPTS)


@pytest.mark.skipif("RELEASE_CHECKOUTS" not in os.environ, reason="needs a checkout in RELEASE_CHECKOUTS/MMRB2")
def test_the_released_judgements_have_the_published_accuracies() -> None:
    release = read_with("mmrb2", Path(os.environ["RELEASE_CHECKOUTS"]) / "MMRB2")
    scores = {(row["image_id"]): row["score"] for row in release.scores.to_pylist()}
    votes = (
        release.preferences.to_pandas().groupby(["template", "prompt_id"])["preferred"].agg(lambda each: each.mode()[0])
    )
    right = votes.reset_index()
    right["right"] = [scores[f"{row.prompt_id}/{row.preferred}"] for row in right.itertuples()]
    assert right.groupby("template")["right"].mean().round(4).to_dict() == {
        "t2i": 0.532, "edit": 0.555, "interleaved": 0.575, "reasoning": 0.475
    }  # fmt: skip
