"""A judge that is prompted with a release's wording sees a source image and two edits, and chooses the better edit."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plugins.released_judges.tests.made_checkouts import (
    GEDIT_BENCH_FILES,
    MMRB2_FILES,
    RATIONAL_REWARDS_FILES,
    UNIFIED_REWARD_FILES,
)
from plugins.released_judges.tests.replying_vlm import save_replying_vlm
from plugins.released_judges.tests.test_pair_wordings import write_critique, write_preference
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.judges.pairwise import PairwiseConfig
from plumbline.operators.metrics.writing import UnreadableReply
from plumbline.operators.models.families import make_model_config
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from plumbline.plugins.released_judges.judges.pairwise_edit import PairwiseEditConfig
from tests.bench_of import list_arguments, read_prompt_rows, read_run_tables, run_bench, write_rows
from tests.commands import find_newest_run_folder, run_for_output, run_refused
from tests.jobs.test_pairwise_sweep import paint, read_images, read_pixel
from tests.operators.metrics.made_releases import write_release
from tests.operators.metrics.scripted import run
from tests.operators.metrics.test_wording import fill_in_defaults
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Answer, Server, make_completion
from tests.operators.tiny import captioners

FILES_BY_NAME: Mapping[str, Mapping[str, str]] = {
    "pvc_judge": GEDIT_BENCH_FILES,
    "gedit_instruction": GEDIT_BENCH_FILES,
    "mmrb2_edit": MMRB2_FILES,
    "rational_rewards_edit": RATIONAL_REWARDS_FILES,
    "unified_reward_edit": UNIFIED_REWARD_FILES,
}
MakeMetric = Callable[[str], PairwiseEditConfig]
N_PROMPTS = 3
SOURCE_BRIGHTNESS, BRIGHTNESS_BY_EDITOR = 90, {"bold": 200, "calm": 100, "dull": 20}
"""Brightness of the images before the edits, and of each editor's edits; the judge prefers the closer one."""


@pytest.fixture
def make_metric(tmp_path: Path) -> MakeMetric:
    """Return a function that returns the metric with the named wording, read from a made-up checkout."""

    def make(name: str) -> PairwiseEditConfig:
        folder = write_release(tmp_path / name, FILES_BY_NAME[name])
        metric: PairwiseEditConfig = fill_in_defaults(PairwiseEditConfig(wording=folder, release=name))
        return metric

    return make


def test_the_images_are_where_the_release_puts_them(make_metric: MakeMetric) -> None:
    shown = {}
    for name in FILES_BY_NAME:
        request = next(make_metric(name).compare("{x}"))[0]
        text, places = request.messages[0].text, request.image_at
        edges = [0, *((places,) * 3 if isinstance(places, int) else places), len(text)]
        shown[name] = "#".join(text[start:end] for start, end in pairwise(edges))
    gedit = "Judge {}: {{x}}.\nOriginal Image:#\nImage A:#\nImage B:#"
    assert shown == {
        "pvc_judge": gedit.format("visual_consistency"),
        "gedit_instruction": gedit.format("instruction_following"),
        "mmrb2_edit": "Compare edits.[ORIGINAL PROMPT TO MODEL:]{x}#[RESPONSE A:]#[RESPONSE B:]#",
        "rational_rewards_edit": "Request: {x}\n1. Source #\n2. A #\n3. B #",
        "unified_reward_edit": "###Score both edits.\n\nText instruction - {x}\n",
    }


@pytest.mark.parametrize(
    ("name", "reply", "choice"),
    [
        ("pvc_judge", '```json\n{"winner": "Image A"}\n```', "first"),
        ("pvc_judge", '<think>{"winner": "Image A"}</think>{"winner": "image_b", "reasoning": "B."}', "second"),
        ("pvc_judge", '{"winner": "TIE"}', "tie"),
        ("mmrb2_edit", write_preference("B"), "second"),
        (
            "rational_rewards_edit",
            write_critique({"Text Faithfulness": (3, 3), "Image Faithfulness": (2, 4)}),
            "second",
        ),
        ("unified_reward_edit", "Image 1: 2.5314\nImage 2: -0.12", "first"),
        ("unified_reward_edit", "Scores: 1.50, 1.50", "tie"),
    ],
)
def test_a_reply_in_the_releases_form_is_read(name: str, reply: str, choice: str, make_metric: MakeMetric) -> None:
    answers, ((request, swapped),) = run(make_metric(name).compare("paint it"), [reply, reply])
    assert {answer.choice for answer in answers} == {choice} and (request.view, swapped.view) == (0, 1)


def test_pvc_judge_is_asked_four_times_for_a_reply_that_can_be_read(make_metric: MakeMetric) -> None:
    read, broken = '{"winner": "Image A"}', '{"winner": "Image C"}'
    answers, rounds = run(make_metric("pvc_judge").compare("paint it"), [read, broken], [read, read])
    assert [answer.choice for answer in answers] == ["first", "first"]
    assert [requests[0].seed for requests in rounds] == [0, 1] and rounds[0][0].system == "You are meticulous."
    with pytest.raises(UnreadableReply, match="Image A, Image B or Tie, found 'Image C'; the reply ends with"):
        run(make_metric("pvc_judge").compare("paint it"), *[[read, broken]] * 4)


def test_gedit_benchs_quality_is_judged_without_source_and_instruction(tmp_path: Path) -> None:
    folder = write_release(tmp_path, GEDIT_BENCH_FILES)
    metric = fill_in_defaults(PairwiseConfig(wording=folder))
    request = next(metric.compare("paint it"))[0]
    assert request.messages[0].text == "Judge quality.\nImage A:\nImage B:" and request.image_at == (23, 32)
    with pytest.raises(ConfigError, match=r"expected one of .*, found pvc_judge; choose one of them"):
        PairwiseConfig(wording=folder, release="pvc_judge")
    with pytest.raises(ConfigError, match="expected the folder with a checkout of an edit judge"):
        fill_in_defaults(PairwiseEditConfig())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("user_prompt: [", "is not YAML"),
        ("[1]", "has no keys"),
        ("system_prompt: a\nuser_prompt: [{text: a}, {image: {source: b}}]", "is not a question about 3 images"),
    ],
)
def test_a_changed_checkout_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    name = "src/prompts/assets/vlm/assessment/visual_consistency/pairwise/v1.yaml"
    with pytest.raises(ConfigError, match=problem):
        fill_in_defaults(PairwiseEditConfig(wording=write_release(tmp_path, {name: text}), release="pvc_judge"))


class EditBenchmark:
    """A benchmark of plain-coloured edits by three editors, with a judge that prefers edits close to their source."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        self.checkout = write_release(folder / "GEditBench_v2", GEDIT_BENCH_FILES)
        write_rows(folder / "prompts.parquet", read_prompt_rows(N_PROMPTS))
        for editor in BRIGHTNESS_BY_EDITOR:
            self.write_edits(editor, [paint(SOURCE_BRIGHTNESS, number) for number in range(N_PROMPTS)])

    def write_edits(self, editor: str, sources: Sequence[bytes | None]) -> None:
        edits = [paint(BRIGHTNESS_BY_EDITOR[editor], number) for number in range(N_PROMPTS)]
        rows = [
            {"image_id": f"{editor}-{number}", "prompt_id": prompt["prompt_id"], "image": edit, "before": source}
            for number, (prompt, edit, source) in enumerate(
                zip(read_prompt_rows(N_PROMPTS), edits, sources, strict=True)
            )
        ]
        write_rows(self.folder / "images" / editor / "00000.parquet", rows)

    def line(self, *more: str) -> list[str]:
        service = f"family: openai, checkpoint: judge, endpoint: '{self.server.url}', key_variable: {KEY_VARIABLE}"
        wording = f"metrics.pairwise_edit.wording={self.checkout}"
        words = ["sweep=own_images", "models=shapes", f"+models.vlm={{{service}, max_retries: 0}}", wording]
        words += ["metric=[pairwise_edit]", "metrics.pairwise_edit.release=pvc_judge", "max_failed=1"]
        return list_arguments(self.folder, self.folder / "store", *words, *more)

    def sweep(self, *more: str, code: int = 0) -> str:
        return " ".join(
            run_for_output("sweep", *self.line("benchmark.columns.source=before", *more), code=code).split()
        )

    def means(self) -> dict[str, float]:
        scores = self.read("scores").to_pandas()
        return {name: round(float(mean), 3) for name, mean in scores.groupby("generator")["score"].mean().items()}

    def read(self, name: str) -> pa.Table:
        """Return a table of the newest run."""
        return pq.read_table(find_newest_run_folder(self.folder / "store") / f"{name}.parquet")

    def count_new_requests(self) -> int:
        asked = len(self.server.bodies)
        self.server.bodies.clear()
        return asked


@pytest.fixture
def edited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EditBenchmark]:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    server = Server()
    server.trial = make_completion("yes")

    def prefer_close(number: int, body: Mapping[str, Any]) -> Answer:
        images = read_images({"messages": body["messages"][1:]})
        source, first, second = (read_pixel(image)[0] for image in images)
        return make_completion(json.dumps({"winner": f"Image {'AB'[abs(first - source) > abs(second - source)]}"}))

    server.script = prefer_close
    yield EditBenchmark(tmp_path, server)
    server.close()


def test_a_sweep_shows_the_source_first_and_then_both_edits_in_both_orders(edited: EditBenchmark) -> None:
    assert "9 pairs compared in both orders" in edited.sweep()
    assert edited.means() == {"bold": 0.0, "calm": 1.0, "dull": 0.5}
    bodies = edited.server.bodies
    first = [read_pixel(read_images({"messages": body["messages"][1:]})[0])[0] for body in bodies]
    assert len(bodies) == 18 and set(first) == {SOURCE_BRIGHTNESS}
    assert {body["temperature"] for body in bodies} == {0.7}


def test_only_the_pairs_of_a_changed_source_are_judged_again(edited: EditBenchmark) -> None:
    edited.sweep()
    assert edited.count_new_requests() == 18
    assert "0 cells to compute" in run_for_output("sweep", *edited.line("benchmark.columns.source=before"))
    edited.write_edits("dull", [paint(SOURCE_BRIGHTNESS, 0), paint(230, 1), paint(SOURCE_BRIGHTNESS, 2)])
    edited.sweep()
    # the source of a pair is that of the second editor by name: the pairs of `dull` with both others have a new one
    assert edited.count_new_requests() == 2 * 2
    assert edited.means()["bold"] == round(1 / 6, 3)


def test_a_missing_source_fails_its_pairs_and_no_others(edited: EditBenchmark) -> None:
    edited.write_edits("dull", [None, paint(SOURCE_BRIGHTNESS, 1), b"no image"])
    edited.sweep(code=2)
    errors = edited.read("comparisons").column("error").drop_null().to_pylist()
    assert len(errors) == 2 * 2 * 2 and {error["kind"] for error in errors} == {"missing_image", "corrupt_image"}
    assert {error["message"].partition(": ")[0] for error in errors} == {"the source of the edit"}
    assert edited.means()["calm"] == 1.0


def test_a_scorer_ranks_the_edits_of_a_source(edited: EditBenchmark) -> None:
    service = make_model_config(
        family="openai", checkpoint="judge", endpoint=edited.server.url, key_variable=KEY_VARIABLE, max_retries=0
    )
    metric = PairwiseEditConfig(wording=str(edited.checkout), release="pvc_judge")
    scorer = Scorer(ScorerConfig(models={"vlm": service}, metrics={"pairwise_edit": metric}))
    edits = [paint(brightness) for brightness in BRIGHTNESS_BY_EDITOR.values()]
    sources = [*[paint(SOURCE_BRIGHTNESS)] * len(edits), None, None, paint(1)]
    scored = scorer.score([*edits, *edits[:2], edits[0]], "paint it", sources=sources)
    assert dict(zip(BRIGHTNESS_BY_EDITOR, scored["score"], strict=False)) == {"bold": 0.0, "calm": 1.0, "dull": 0.5}
    messages = [error["message"] for error in scored["error"][len(edits) :]]
    assert all(message.startswith("the source of the edit: the row has none") for message in messages[:2])
    assert messages[2].startswith("no other image of its prompt"), "edits of different sources are not compared"


def test_a_benchmark_without_sources_and_a_model_for_one_image_are_refused(edited: EditBenchmark) -> None:
    assert "pairwise_edit" in run_refused("sweep", *edited.line())
    single = captioners.save_blip(edited.folder / "blip")
    said = run_refused("sweep", *edited.line("benchmark.columns.source=before", "metrics.pairwise_edit.judge=one",
                                         f"+models.one={{family: captioner, checkpoint: {single}}}"))  # fmt: skip
    assert "the model for role 'one' is a captioner" in said


def test_sources_may_be_stored_with_the_prompts_and_the_judge_may_run_here(
    edited: EditBenchmark, tmp_path: Path
) -> None:
    bench = tmp_path / "with_prompts"
    source = paint(SOURCE_BRIGHTNESS)
    write_rows(bench / "prompts.parquet", [{**prompt, "before": source} for prompt in read_prompt_rows(N_PROMPTS)])
    for editor, brightness in BRIGHTNESS_BY_EDITOR.items():
        rows = [
            {"image_id": f"{editor}-{number}", "prompt_id": prompt["prompt_id"], "image": paint(brightness, number)}
            for number, prompt in enumerate(read_prompt_rows(N_PROMPTS))
        ]
        write_rows(bench / "images" / editor / "00000.parquet", rows)
    judge = save_replying_vlm(tmp_path / "judge", '{"winner": "Image B"}')
    done = run_bench(
        bench, tmp_path / "here", "metric=[pairwise_edit]", f"metrics.pairwise_edit.wording={edited.checkout}",
        "metrics.pairwise_edit.release=pvc_judge", "benchmark.columns.source=before",
        f"+models.vlm={{family: vlm, checkpoint: '{judge}'}}",
    )  # fmt: skip
    assert set(read_run_tables(done)["scores"]["score"]) == {0.5}
