"""Each image is described, judged and scored, row by row, and no question is asked twice."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ModelError, RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.judges.gpt4v_eval import Gpt4vEvalConfig
from plumbline.operators.metrics.judges.llmscore import LlmScoreConfig
from plumbline.operators.metrics.judges.viescore import VieScoreConfig
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.similarities.sentence_matching import SentenceMatchingConfig
from plumbline.operators.models.calls import Generation, ImageRequest, Region, Request, TextFeatures
from plumbline.operators.results.judge_noise import measure_noise_by_generator
from plumbline.operators.stages.stage import Inputs, RowStage, Stage
from plumbline.operators.stages.table import STAGES
from tests.operators import tiny
from tests.operators.stages.given import make_options, make_upstream
from tests.operators.stages.test_writing import ScriptedModel

PROMPTS = {"p0": "a red car", "p1": "two sheep", "p2": "a vase", "empty": " "}
RETRYABLE_ERROR = RowError("model_unavailable", "try later", retryable=True)
RATING_REPLY = '{"rating": 70, "rationale": "It fits."}'


class ScriptedVlm:
    """A model that identifies an image by the colour of its first pixel, and gives scripted replies."""

    side_by_side = False

    def __init__(self, reply: Callable[[str, Request], str | RowError] = lambda image, request: f"It is {image}."):
        self.reply = reply
        self.encoded: list[str] = []
        self.asked: list[tuple[str, Request]] = []
        self.calls = 0

    def preprocess(self, image: Any) -> str:
        return "#{:02x}{:02x}{:02x}".format(*image.getpixel((0, 0)))

    def preprocess_several(self, images: Sequence[Any]) -> str:
        return " then ".join(map(self.preprocess, images))

    def encode(self, pixels: Sequence[str]) -> Sequence[str]:
        self.encoded += pixels
        return pixels

    def generate_from_images(
        self, features: Sequence[str], requests: Sequence[ImageRequest]
    ) -> list[Generation | RowError]:
        self.calls += 1
        self.asked += [(features[one.image], one.request) for one in requests]
        told = [self.reply(features[one.image], one.request) for one in requests]
        return [one if isinstance(one, RowError) else Generation(one, True, Usage(1, 5, 0, 2)) for one in told]

    def regions(self, features: Sequence[str]) -> list[list[Region]]:
        return [[Region(f"{colour} thing", 1, 2, 3, 4)] for colour in features]


class VowelEncoder:
    """A text encoder that embeds texts by the frequency of each vowel."""

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        import torch

        counts = torch.tensor([[text.count(vowel) + 1.0 for vowel in "aeiou"] for text in texts])
        counts[[text == "nowhere near" for text in texts]] = float("nan")
        return TextFeatures(torch.nn.functional.normalize(counts, dim=-1), [len(text) > 30 for text in texts])


def draw_images(count: int) -> list[bytes]:
    return [tiny.encode_image(tiny.draw_image(seed)) for seed in range(count)]


def compute_colour(seed: int) -> str:
    return ScriptedVlm().preprocess(tiny.draw_image(seed))


class ScriptedChain:
    """The stages of some metrics in order, with scripted models, and their tables by metric and stage."""

    def __init__(self, metrics: dict[str, Metric], images: pa.Table, **models: Any) -> None:
        self.metrics = metrics
        self.images = images
        self.models = models
        self.tables: dict[tuple[str, str], pa.Table] = {}

    def run(self, earlier: "ScriptedChain | None" = None, *, image_batch: int = 100) -> "ScriptedChain":
        names = [name for name in STAGES if any(name in metric.chain for metric in self.metrics.values())]
        for name in names:
            metrics = {one: metric for one, metric in self.metrics.items() if name in metric.chain}
            models = {key: self.models[key] for key in STAGES[name].calls if self._is_read(key, metrics)}
            stage: Stage = STAGES[name](metrics, models, make_options(image_batch=image_batch))
            made = stage.compute(stage.prepare(self._make_inputs(STAGES[name], metrics, earlier)))
            self.tables |= {(one, name): table for one, table in made.items()}
        return self

    def _is_read(self, key: str, metrics: dict[str, Metric]) -> bool:
        return any(key in metric.roles for metric in metrics.values())

    def _make_inputs(self, stage: type[Stage], metrics: dict[str, Metric], earlier: "ScriptedChain | None") -> Inputs:
        read = {
            name: {other: make_upstream(self.tables[name, other]) for other in stage.list_input_stages(metric)}
            for name, metric in metrics.items()
        }
        texts = rows.table([{"prompt_id": one, "text": text} for one, text in PROMPTS.items()], schemas.PROMPTS)
        before = {name: [earlier.tables[name, stage.name]] for name in metrics} if earlier else {}
        shard = self.images if issubclass(stage, RowStage) else pa.table({})
        return Inputs("gen", shard, tuple(metrics), read, make_upstream(texts), before if stage.keeps_rows else {})

    def list_rows(self, metric: str, stage: str = "scores") -> list[dict[str, Any]]:
        return list(self.tables[metric, stage].to_pylist())


def run_llmscore(images: pa.Table, *, judge: ScriptedModel | None = None, **models: Any) -> ScriptedChain:
    """Run all stages of LLMScore on the images with scripted models, and return the stages with their tables.

    The models given by name replace the default ones.
    """
    given = {
        "captioner": ScriptedVlm(),
        "grounder": ScriptedVlm(),
        "describer": ScriptedModel(lambda request: "A thing."),
        **models,
    }
    given["judge"] = judge or ScriptedModel(lambda request: RATING_REPLY)
    return ScriptedChain({"llmscore": LlmScoreConfig()}, images, **given)


def list_error_kinds(records: Sequence[dict[str, Any]]) -> list[str | None]:
    return [row["error"] and row["error"]["kind"] for row in records]


def test_an_image_becomes_a_caption_and_regions_a_description_a_verdict_and_a_score() -> None:
    describer = ScriptedModel(lambda request: f"Described, {describer.calls}.")
    judge = ScriptedModel(lambda request: RATING_REPLY)
    chain = run_llmscore(tiny.make_image_table(draw_images(2), ["p0", "p1"]), describer=describer, judge=judge).run(
        image_batch=1
    )
    (caption, _) = chain.list_rows("llmscore", "captions")
    assert caption["captions"] == [{"text": f"It is {compute_colour(0)}.", "width": 48, "height": 48}]
    (region, _) = chain.list_rows("llmscore", "regions")
    assert region["regions"] == [[{"label": f"{compute_colour(0)} thing", "x1": 1, "y1": 2, "x2": 3, "y2": 4}]]
    asked = describer.asked[0].messages[0].text
    assert (
        f"It is {compute_colour(0)}." in asked
        and f"{compute_colour(0)} thing: [1, 2, 3, 4]" in asked
        and "48 x 48" in asked
    )
    assert describer.calls == 1 and judge.calls == 1, "all images of a shard are batched"
    assert "a red car" in judge.asked[0].messages[0].text and "Described, 1." in judge.asked[0].messages[0].text
    for row in chain.list_rows("llmscore"):
        assert (row["score"], row["rationale"]) == (0.7, "It fits.")
        assert row["ratings"] == [{"name": "rating", "value": 70}]
    assert rows.read_usage(chain.tables["llmscore", "captions"]) == Usage(2, 10, 0, 4)


def test_the_score_of_a_repeated_judge_is_the_mean_of_the_readable_ratings() -> None:
    """The first image gets the ratings 40 and 50 and an unreadable reply; the second image gets 90 three times.

    All replies about the third image are unreadable.
    """

    def rate(image: str, request: Request) -> str:
        rated = {
            compute_colour(0): (40, 50, None),
            compute_colour(1): (90, 90, 90),
            compute_colour(2): (None, None, None),
        }[image]
        rating = rated[request.seed - 5]
        return "Well." if rating is None else json.dumps({"rating": rating, "rationale": "So."})

    judge = ScriptedVlm(rate)
    metric = Gpt4vEvalConfig(repeats=3, temperature=0.5, seed=5)
    images = tiny.make_image_table(draw_images(3), ["p0", "p1", "p2"])
    chain = ScriptedChain({"judged": metric}, images, judge=judge).run()
    first, second, third = chain.list_rows("judged")
    assert [row["score"] for row in (first, second, third)] == [45, 90, None]
    assert [row["asks"] for row in (first, second, third)] == [[40, 50, None], [90, 90, 90], None]
    assert (first["rationale"], third["error"]["kind"]) == ("Ask 1: So. Ask 2: So.", "unreadable_reply")
    assert judge.encoded == [compute_colour(0), compute_colour(1), compute_colour(2)], "each image is encoded once"
    (noise,) = measure_noise_by_generator("judged", chain.tables["judged", "scores"])
    assert (noise["repeats"], noise["images"], noise["unread"]) == (3, 2, 1)
    assert noise["deviation"] == pytest.approx(math.sqrt(50 / 3))  # 25 + 25 + 0, with 1 + 2 degrees of freedom
    assert noise["share"] == pytest.approx(50 / 3 * (1 / 2 + 1 / 3) / 2 / (45**2 / 2))


def test_a_row_is_tried_again_after_a_failure_of_the_service() -> None:
    judge = ScriptedVlm(lambda image, request: RETRYABLE_ERROR if request.seed == 1 else RATING_REPLY)
    metric = Gpt4vEvalConfig(repeats=2, temperature=1)
    chain = ScriptedChain({"judged": metric}, tiny.make_image_table(draw_images(1), ["p0"]), judge=judge).run()
    assert rows.count_errors(chain.tables["judged", "scores"], retryable_only=True) == 1


def test_an_unreadable_verdict_is_a_null_with_its_reason_after_one_more_try() -> None:
    judge = ScriptedModel(lambda request: "Nice." if "a red car" in request.messages[0].text else RATING_REPLY)
    first, second = (
        run_llmscore(tiny.make_image_table(draw_images(2), ["p0", "p1"]), judge=judge).run().list_rows("llmscore")
    )
    assert (first["score"], first["ratings"], first["rationale"]) == (None, None, None)
    assert first["error"]["kind"] == "unreadable_reply" and "expected a JSON object" in first["error"]["message"]
    assert second["score"] == 0.7 and len(judge.asked) == 3


def test_a_failure_affects_only_its_row_and_is_passed_on() -> None:
    captioner = ScriptedVlm(
        lambda image, request: (
            RETRYABLE_ERROR if image == compute_colour(1) else "" if image == compute_colour(2) else "a car"
        )
    )
    given = [*draw_images(4), b"no image", *draw_images(2)[:1], draw_images(1)[0]]
    images = tiny.make_image_table(given, ["p0", "p0", "p0", "p1", "p0", "nowhere", "empty"])
    chain = run_llmscore(images, captioner=captioner).run()
    expected = [None, "model_unavailable", "unreadable_reply", None, "corrupt_image", "unknown_prompt", "empty_prompt"]
    assert list_error_kinds(chain.list_rows("llmscore")) == expected
    assert list_error_kinds(chain.list_rows("llmscore", "descriptions")) == [*expected[:5], None, None], (
        "they need no prompt"
    )
    assert [row["score"] is None for row in chain.list_rows("llmscore")] == [kind is not None for kind in expected]


def fail_in_batches(image: str, request: Request) -> str:
    if image == compute_colour(2):
        raise ValueError("expected an image, found none")
    return "a car"


def test_a_failing_call_is_halved_until_the_bad_image_is_alone() -> None:
    chain = run_llmscore(
        tiny.make_image_table(draw_images(5), ["p0"] * 5), captioner=ScriptedVlm(fail_in_batches)
    ).run()
    assert list_error_kinds(chain.list_rows("llmscore")) == [None, None, "model_failed", None, None]
    assert rows.count_errors(chain.tables["llmscore", "captions"], retryable_only=True) == 1


def test_an_unreachable_model_ends_the_shard() -> None:
    def refuse(image: str, request: Request) -> str:
        raise ModelError("the service answered 401")

    with pytest.raises(ModelError, match="401"):
        run_llmscore(tiny.make_image_table(draw_images(2), ["p0"] * 2), captioner=ScriptedVlm(refuse)).run()


def test_rows_are_retryable_after_a_failure_of_the_whole_call_to_the_judge() -> None:
    def fail(request: Request) -> str:
        raise RuntimeError("the engine has stopped")

    chain = run_llmscore(tiny.make_image_table(draw_images(2), ["p0", "p1"]), judge=ScriptedModel(fail)).run()
    assert rows.count_errors(chain.tables["llmscore", "scores"], retryable_only=True) == 2


def test_each_image_of_a_row_is_judged_and_the_score_is_their_mean() -> None:
    images = pa.table(
        {"image_id": ["film", "still"], "prompt_id": ["p0", "p0"], "image": [draw_images(2), draw_images(1)]}
    )
    describer = ScriptedModel(lambda request: "first" if compute_colour(0) in request.messages[0].text else "second")
    judge = ScriptedModel(
        lambda request: RATING_REPLY if "\nfirst\n" in request.messages[0].text else RATING_REPLY.replace("7", "2")
    )
    chain = run_llmscore(images, describer=describer, judge=judge).run()
    film, still = chain.list_rows("llmscore")
    assert film["score"] == pytest.approx((0.7 + 0.2) / 2) and still["score"] == 0.7
    assert film["ratings"] == [{"name": "rating", "value": 45}]
    assert film["rationale"] == "Image 1: It fits. Image 2: It fits."


def test_rows_of_earlier_cells_are_reused_if_their_inputs_are_unchanged() -> None:
    before = run_llmscore(tiny.make_image_table(draw_images(3), ["p0", "p0", "p1"])).run()
    replaced = tiny.make_image_table([*draw_images(2), tiny.encode_image(tiny.draw_image(7))], ["p0", "p0", "p1"])
    after = run_llmscore(replaced)
    after.run(before)
    assert after.models["captioner"].encoded == [compute_colour(7)] and after.models["grounder"].encoded == [
        compute_colour(7)
    ]
    assert [len(after.models[name].asked) for name in ("describer", "judge")] == [1, 1]
    assert list_error_kinds(after.list_rows("llmscore")) == [None] * 3
    assert after.list_rows("llmscore")[:2] == before.list_rows("llmscore")[:2]


def test_a_changed_prompt_only_recomputes_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    images = tiny.make_image_table(draw_images(2), ["p0", "p1"])
    before = run_llmscore(images).run()
    monkeypatch.setitem(PROMPTS, "p1", "three sheep")
    after = run_llmscore(images)
    after.run(before)
    assert after.models["captioner"].encoded == [] and after.models["describer"].asked == []
    assert ["three sheep" in request.messages[0].text for request in after.models["judge"].asked] == [True]


def test_a_failed_row_is_tried_again_and_the_others_are_reused() -> None:
    images = tiny.make_image_table(draw_images(2), ["p0", "p1"])
    before = run_llmscore(
        images, captioner=ScriptedVlm(lambda image, request: RETRYABLE_ERROR if image == compute_colour(0) else "a car")
    ).run()
    after = run_llmscore(images, captioner=ScriptedVlm(lambda image, request: "a car"))
    after.run(before)
    assert after.models["captioner"].encoded == [compute_colour(0)]
    assert len(after.models["judge"].asked) == 1 and list_error_kinds(after.list_rows("llmscore")) == [None, None]


def test_captions_and_regions_of_different_images_are_never_joined() -> None:
    chain = run_llmscore(tiny.make_image_table(draw_images(2), ["p0", "p1"])).run()
    other = run_llmscore(
        tiny.make_image_table([draw_images(1)[0], tiny.encode_image(tiny.draw_image(9))], ["p0", "p1"])
    ).run()
    stage = STAGES["descriptions"](chain.metrics, {"describer": chain.models["describer"]}, make_options())
    read = {"captions": make_upstream(chain.tables["llmscore", "captions"])}
    read |= {"regions": make_upstream(other.tables["llmscore", "regions"])}
    inputs = Inputs(
        "gen", pa.table({}), ("llmscore",), {"llmscore": read}, make_upstream(schemas.PROMPTS.empty_table())
    )
    assert list_error_kinds(stage.compute(stage.prepare(inputs))["llmscore"].to_pylist()) == [None, "incomplete_cell"]


def test_metrics_that_share_a_model_encode_an_image_once() -> None:
    scales = '{"rating": 35, "semantic_consistency": 8, "naturalness": 9, "artifacts": 2, "rationale": "So."}'
    judge = ScriptedVlm(lambda image, request: scales)
    metrics = {"viescore": VieScoreConfig(), "gpt4v_eval": Gpt4vEvalConfig()}
    chain = ScriptedChain(
        metrics, tiny.make_image_table([*draw_images(2), b"no image"], ["p0", "nowhere", "p0"]), judge=judge
    ).run()
    assert judge.encoded == [compute_colour(0), compute_colour(1)] and judge.calls == 1
    assert [row["score"] for row in chain.list_rows("viescore")] == [4.0, None, None]
    assert [row["score"] for row in chain.list_rows("gpt4v_eval")] == [35.0, None, None]
    assert list_error_kinds(chain.list_rows("gpt4v_eval")) == [None, "unknown_prompt", "corrupt_image"]
    assert [row["rationale"] for row in chain.list_rows("viescore")] == ["So. So.", None, None]


def test_prompts_are_compared_with_captions_and_descriptions() -> None:
    metrics: dict[str, Metric] = {
        "capclip": SentenceMatchingConfig(),
        "descclip": SentenceMatchingConfig(text="description"),
    }
    captioner = ScriptedVlm(lambda image, request: "a red car")
    describer = ScriptedModel(lambda request: "u" * 40)
    images = tiny.make_image_table([*draw_images(2), b"no image"], ["p0", "empty", "p0"])
    chain = ScriptedChain(
        metrics, images, captioner=captioner, grounder=ScriptedVlm(), describer=describer, embedder=VowelEncoder()
    ).run()
    same, empty, broken = chain.list_rows("capclip")
    assert same["score"] == pytest.approx(1) and list_error_kinds([empty, broken]) == ["empty_prompt", "corrupt_image"]
    other, *_ = chain.list_rows("descclip")
    assert other["score"] < 0.9 and (same["truncated"], other["truncated"]) == (False, True)


def test_a_similarity_that_is_not_a_number_is_a_null() -> None:
    captioner = ScriptedVlm(lambda image, request: "nowhere near" if image == compute_colour(0) else "a red car")
    metrics: dict[str, Metric] = {"capclip": SentenceMatchingConfig()}
    chain = ScriptedChain(
        metrics, tiny.make_image_table(draw_images(2), ["p0", "p0"]), captioner=captioner, embedder=VowelEncoder()
    ).run()
    assert list_error_kinds(chain.list_rows("capclip")) == ["not_finite", None]


def test_meteor_needs_no_model() -> None:
    metrics: dict[str, Metric] = {"capmeteor": SentenceMatchingConfig(measure="meteor")}
    captioner = ScriptedVlm(lambda image, request: "A red car.")
    images = pa.table({"image_id": ["film"], "prompt_id": ["p0"], "image": [draw_images(2)]})
    (row,) = ScriptedChain(metrics, images, captioner=captioner).run().list_rows("capmeteor")
    assert row["score"] == pytest.approx(0.9814814814814815)
