"""A chain that cannot be served is rejected when the configuration is read, with the missing part; nothing is
dropped."""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.videos import Clips
from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.judges.viescore import VieScoreConfig, VieScoreEditConfig
from plumbline.operators.metrics.metric import Evidence, Metric
from plumbline.operators.metrics.questions.gecko import GeckoConfig
from plumbline.operators.metrics.questions.tifa import TifaConfig
from plumbline.operators.metrics.questions.vqascore import VqaScoreConfig
from plumbline.operators.metrics.similarities.clipscore import ClipScoreConfig
from plumbline.operators.metrics.similarities.similarity import SimilarityConfig
from plumbline.operators.metrics.writing import VqaPrompt
from plumbline.operators.models.families import model_config
from plumbline.operators.stages.graph import check_image_inputs, check_models, make_nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeMetric(Metric):
    """A metric with declarations of a test."""

    kind: str = "made"
    stages: tuple[str, ...] = ("similarities", "scores")
    named: Mapping[str, str]

    @property
    def chain(self) -> tuple[str, ...]:
        return self.stages

    @property
    def roles(self) -> Mapping[str, str]:
        return self.named

    def scoring(self) -> dict[str, Any]:
        return {}

    def score(self, evidence: Evidence) -> Scored:
        return Scored(0.0)

    def answering(self) -> dict[str, Any]:
        return {}

    def vqa_prompt(self, text: str, choices: Sequence[str]) -> VqaPrompt:
        return VqaPrompt(text, tuple(choices), free=False)


@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        (MadeMetric(stages=("dreams", "scores"), named={}), "has the stage 'dreams'; those there are: pictures,"),
        (MadeMetric(stages=("scores", "answers"), named={}), "is scores, answers; expected the order pictures,"),
        (MadeMetric(stages=("questions", "answers"), named={}), "is questions, answers; expected the order"),
        (MadeMetric(stages=(), named={}), "expected the order"),
        (MadeMetric(named={"model": "m"}), "has the stage similarities, which wants a ComparingMetric"),
        (MadeMetric(stages=("answers", "scores"), named={"model": "m"}), "stage answers without questions"),
        (MadeMetric(stages=("entailment", "scores"), named={"nli": "n"}), "stage entailment without questions"),
        (MadeMetric(stages=("scores",), named={"model": "m", "nli": "n"}), "has no stage that uses its model, nli"),
    ],
    ids=str,
)
def test_a_chain_that_does_not_hold_together_is_refused_by_name(metric: Metric, problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make_nodes({"clipscore": ClipScoreConfig(), "mine": metric})
    assert str(refusal.value).startswith("metrics.mine: the chain of made ") and problem in str(refusal.value)


def test_a_stage_without_a_role_for_its_model_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Modelless(ClipScoreConfig):
        @property
        def roles(self) -> dict[str, str]:
            return {}

    with pytest.raises(ConfigError, match=r"metrics\.mine: .* has the stage similarities and names no model for it"):
        make_nodes({"mine": Modelless()})


def test_metrics_that_share_a_model_share_a_node_and_others_have_their_own() -> None:
    metrics = {
        "gecko": GeckoConfig(),
        "tifa": TifaConfig(),
        "vqascore": VqaScoreConfig(),
        "large": VqaScoreConfig(model="vqa_large"),
        "clipscore": ClipScoreConfig(),
    }
    nodes = {node.name: (list(node.metrics), dict(node.roles)) for node in make_nodes(metrics)}
    assert nodes == {
        "questions:llm": (["gecko", "tifa"], {"writer": "llm"}),
        "questions": (["vqascore", "large"], {}),
        "entailment:nli": (["gecko"], {"nli": "nli"}),
        "answers:vqa": (["gecko", "tifa", "vqascore"], {"model": "vqa", "matcher": "matcher"}),
        "answers:vqa_large": (["large"], {"model": "vqa_large"}),
        "similarities:clip": (["clipscore"], {"model": "clip"}),
        "scores": (list(metrics), {}),
    }


def test_metrics_of_one_model_that_want_two_matchers_are_refused() -> None:
    with pytest.raises(ConfigError, match="share one model share one matcher, got matcher, other"):
        make_nodes({"a": TifaConfig(), "b": TifaConfig(matcher="other")})


def test_a_role_without_a_model_and_a_model_without_the_call_are_refused_by_key() -> None:
    models = {"clip": model_config(family="nli", checkpoint="owner/name")}
    with pytest.raises(ConfigError, match=r"metrics\.c\.model: clipscore needs a clip or .* model, and the role"):
        check_models(make_nodes({"c": ClipScoreConfig()}), models)
    with pytest.raises(ConfigError, match=r"metrics\.t\.matcher: no model has the role 'matcher'"):
        served = {role: model_config(family=family, checkpoint="owner/name") for role, family in SERVED.items()}
        check_models(make_nodes({"v": VqaScoreConfig(), "t": TifaConfig()}), served)
    thinking = {"vqa": model_config(family="vlm", checkpoint="owner/name", thinking="allowed")}
    with pytest.raises(ConfigError, match=r"metrics\.v\.model, role 'vqa': a likelihood is that of an answer given at"):
        check_models(make_nodes({"v": VqaScoreConfig()}), thinking)


def test_a_measure_that_no_model_of_the_family_gives_is_refused_with_those_it_gives() -> None:
    models = {"clip": model_config(family="clip", checkpoint="owner/name")}
    check_models(make_nodes({"p": SimilarityConfig(model="clip", measure="logit")}), models)
    wanted = (
        r"metrics\.p: it wants the measure 'match' of a model that gives cosine or logit; the role 'clip' is a clip"
    )
    with pytest.raises(ConfigError, match=wanted):
        check_models(make_nodes({"p": SimilarityConfig(model="clip", measure="match")}), models)


def test_a_model_of_edits_is_no_model_of_images() -> None:
    models = {"editreward": model_config(family="editreward", checkpoint="owner/name")}
    metric = SimilarityConfig(model="editreward", measure="reward")
    with pytest.raises(ConfigError, match=r"metrics\.e: it wants compares=prompt of a model that takes edit; the role"):
        check_models(make_nodes({"e": metric}), models)


def test_metrics_that_look_at_sources_share_a_pass_of_their_own() -> None:
    metrics = {"plain": VieScoreConfig(), "edit": VieScoreEditConfig(), "success": VieScoreEditConfig(part="quality")}
    nodes = {node.name: list(node.metrics) for node in make_nodes(metrics) if node.roles}
    assert nodes == {"inspections:vlm": ["plain"], "inspections:vlm:edit+result": ["edit", "success"]}


def test_a_model_that_takes_one_image_is_refused_for_two() -> None:
    metrics, served = {"e": VieScoreEditConfig()}, {"family": "openai", "checkpoint": "gpt"}
    check_image_inputs(make_nodes(metrics), {"vlm": model_config(**served)}, Clips())
    with pytest.raises(ConfigError, match=r"metrics\.e looks at images and their sources; set clips\.shown=each"):
        check_image_inputs(make_nodes(metrics), {"vlm": model_config(**served)}, Clips(shown="video"))
    captioner = {"vlm": model_config(family="captioner", checkpoint="owner/name")}
    with pytest.raises(ConfigError, match=r"metrics\.e: .* the role 'vlm' is owner/name, which takes one image"):
        check_image_inputs(make_nodes(metrics), captioner, Clips())


@pytest.mark.parametrize(("kind", "several"), [("qwen2_vl", True), ("paligemma", False)])
def test_on_vllm_a_model_is_shown_as_many_images_as_on_transformers(tmp_path: Path, kind: str, several: bool) -> None:
    fields = {"architectures": ["ForConditionalGeneration"], "model_type": kind, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    served = {"vlm": model_config(family="vlm", checkpoint=str(tmp_path), engine="vllm")}
    refusal = pytest.raises(ConfigError, match="which takes one image; use a model that takes several")
    with nullcontext() if several else refusal:
        check_image_inputs(make_nodes({"e": VieScoreEditConfig()}), served, Clips())


def test_on_vllm_a_limit_of_one_image_is_refused_for_two(tmp_path: Path) -> None:
    fields = {"architectures": ["ForConditionalGeneration"], "model_type": "qwen2_vl", "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    nodes = make_nodes({"e": VieScoreEditConfig()})
    for limit in ({"image": 1}, {"image": 2}, {"video": 0}):
        options = {"engine": "vllm", "engine_options": {"limit_mm_per_prompt": limit}}
        served = {"vlm": model_config(family="vlm", checkpoint=str(tmp_path), **options)}
        refusal = pytest.raises(
            ConfigError, match=r"models\.vlm\.engine_options\.limit_mm_per_prompt: it allows 1 .* 2"
        )
        with refusal if limit == {"image": 1} else nullcontext():
            check_image_inputs(nodes, served, Clips())


def test_two_measures_of_one_model_share_its_pass() -> None:
    itm, itc = SimilarityConfig(model="itm", measure="match"), SimilarityConfig(model="itm")
    nodes = [node for node in make_nodes({"itm": itm, "itc": itc}) if node.roles]
    assert [(node.name, list(node.metrics)) for node in nodes] == [("similarities:itm", ["itm", "itc"])]


SERVED = {"vqa": "vlm", "llm": "causal_lm"}
