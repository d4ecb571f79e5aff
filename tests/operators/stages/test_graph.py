"""A chain that cannot be run is rejected when the configuration is read.

The message names the missing part; nothing is dropped silently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.metric import Evidence, Metric, Scored
from plumbline.operators.metrics.questions.gecko import GeckoConfig
from plumbline.operators.metrics.questions.tifa import TifaConfig
from plumbline.operators.metrics.questions.vqascore import VqaScoreConfig
from plumbline.operators.metrics.similarities.clipscore import ClipScoreConfig
from plumbline.operators.metrics.similarities.similarity import SimilarityConfig
from plumbline.operators.metrics.writing import VqaPrompt
from plumbline.operators.models.families import make_model_config
from plumbline.operators.stages.graph import check_models, make_nodes


@dataclass(frozen=True, kw_only=True, slots=True)
class MadeMetric(Metric):
    """Metric whose chain and roles are set by each test."""

    kind: str = "made"
    stages: tuple[str, ...] = ("similarities", "scores")
    named: Mapping[str, str]

    @property
    def chain(self) -> tuple[str, ...]:
        return self.stages

    @property
    def roles(self) -> Mapping[str, str]:
        return self.named

    def list_score_options(self) -> dict[str, Any]:
        return {}

    def score(self, evidence: Evidence) -> Scored:
        return Scored(0.0)

    def list_answer_options(self) -> dict[str, Any]:
        return {}

    def make_vqa_prompt(self, text: str, choices: Sequence[str]) -> VqaPrompt:
        return VqaPrompt(text, tuple(choices), free=False)


@pytest.mark.parametrize(
    ("metric", "problem"),
    [
        (
            MadeMetric(stages=("dreams", "scores"), named={}),
            "has the unknown stage 'dreams'; the stages are questions,",
        ),
        (MadeMetric(stages=("scores", "answers"), named={}), "is scores, answers; expected the order questions,"),
        (MadeMetric(stages=("questions", "answers"), named={}), "is questions, answers; expected the order"),
        (MadeMetric(stages=(), named={}), "expected the order"),
        (MadeMetric(named={"model": "m"}), "has the stage similarities, which requires a SimilarityMetric"),
        (MadeMetric(stages=("answers", "scores"), named={"model": "m"}), "stage answers without questions"),
        (MadeMetric(stages=("entailment", "scores"), named={"nli": "n"}), "stage entailment without questions"),
        (MadeMetric(stages=("scores",), named={"model": "m", "nli": "n"}), "has no stage that uses its model, nli"),
    ],
    ids=str,
)
def test_an_incomplete_chain_is_refused_by_name(metric: Metric, problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        make_nodes({"clipscore": ClipScoreConfig(), "mine": metric})
    assert str(refusal.value).startswith("metrics.mine: the chain of made ") and problem in str(refusal.value)


def test_a_stage_without_a_role_for_its_model_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True, slots=True)
    class MetricWithoutModels(ClipScoreConfig):
        @property
        def roles(self) -> dict[str, str]:
            return {}

    with pytest.raises(ConfigError, match=r"metrics\.mine: .* has the stage similarities but sets no model for it"):
        make_nodes({"mine": MetricWithoutModels()})


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


def test_metrics_of_one_model_that_need_two_matchers_are_refused() -> None:
    with pytest.raises(ConfigError, match="with the same model must have the same matcher, got matcher, other"):
        make_nodes({"a": TifaConfig(), "b": TifaConfig(matcher="other")})


def test_missing_models_and_models_that_lack_a_call_are_refused_by_config_key() -> None:
    models = {"clip": make_model_config(family="nli", checkpoint="owner/name")}
    with pytest.raises(ConfigError, match=r"metrics\.c\.model: clipscore needs a clip or .* model, but the model for"):
        check_models(make_nodes({"c": ClipScoreConfig()}), models)
    with pytest.raises(ConfigError, match=r"metrics\.t\.matcher: no model has the role 'matcher'"):
        served = {
            role: make_model_config(family=family, checkpoint="owner/name") for role, family in SERVED_FAMILIES.items()
        }
        check_models(make_nodes({"v": VqaScoreConfig(), "t": TifaConfig()}), served)
    thinking = {"vqa": make_model_config(family="vlm", checkpoint="owner/name", thinking="allowed")}
    with pytest.raises(ConfigError, match=r"metrics\.v\.model, role 'vqa': likelihoods are for immediate answers"):
        check_models(make_nodes({"v": VqaScoreConfig()}), thinking)


def test_an_unsupported_measure_is_refused_with_the_supported_ones() -> None:
    models = {"clip": make_model_config(family="clip", checkpoint="owner/name")}
    check_models(make_nodes({"p": SimilarityConfig(model="clip", measure="logit")}), models)
    wanted = r"metrics\.p: the model for role 'clip' is a clip, which returns .* logit, not match; set another measure"
    with pytest.raises(ConfigError, match=wanted):
        check_models(make_nodes({"p": SimilarityConfig(model="clip", measure="match")}), models)


def test_two_measures_of_one_model_share_its_pass() -> None:
    itm, itc = SimilarityConfig(model="itm", measure="match"), SimilarityConfig(model="itm")
    nodes = [node for node in make_nodes({"itm": itm, "itc": itc}) if node.roles]
    assert [(node.name, list(node.metrics)) for node in nodes] == [("similarities:itm", ["itm", "itc"])]


SERVED_FAMILIES = {"vqa": "vlm", "llm": "causal_lm"}
