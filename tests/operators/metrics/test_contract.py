"""Metrics have all the stages they need and refuse impossible options; options only change the recipes they affect."""

from collections.abc import Mapping
from typing import Any

import pytest

from plumbline.jobs.help import list_choice_names
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.function import FunctionConfig
from plumbline.operators.metrics.judges.llmscore import LlmScoreConfig
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.questions.dsg import DsgConfig
from plumbline.operators.metrics.questions.gecko import GeckoConfig
from plumbline.operators.metrics.questions.question_pack import QuestionPackConfig
from plumbline.operators.metrics.questions.tifa import TifaConfig
from plumbline.operators.metrics.questions.vpeval import VpevalConfig
from plumbline.operators.metrics.questions.vq2 import Vq2Config
from plumbline.operators.metrics.questions.vqascore import VqaScoreConfig
from plumbline.operators.metrics.similarities.clipscore import ClipScoreConfig
from plumbline.operators.metrics.similarities.sentence_matching import SentenceMatchingConfig
from plumbline.operators.metrics.similarities.similarity import SimilarityConfig
from plumbline.operators.metrics.table import METRICS
from plumbline.operators.stages.graph import check_chain
from tests.commands import load_job_config
from tests.operators.metrics.scripted import run

Options = dict[str, Any]
METRICS_OVERRIDE = f"metric=[{','.join(list_choice_names('metric', None))}]"
QUESTION_OPTIONS = (
    "benchmark.questions=questions.csv",
    "benchmark.question_pack=dsg_1k",
    "benchmark.columns.source=source",
    "benchmark.columns.source_caption=was",
    "benchmark.columns.target_caption=wanted",
)
CONFIGURED_METRICS = load_job_config(
    "sweep", "sweep=shapes", "models=released", METRICS_OVERRIDE, *QUESTION_OPTIONS
).metrics
"""Configuration of every metric that has a file in a folder conf/metric, keyed by the metric's name."""
WRITING_CONFIGS: list[type[Any]] = [GeckoConfig, TifaConfig, DsgConfig, Vq2Config]


@pytest.mark.parametrize("name", CONFIGURED_METRICS)
def test_the_chain_of_every_configured_metric_is_complete(name: str) -> None:
    check_chain(name, CONFIGURED_METRICS[name])


def test_every_kind_of_metric_has_a_name() -> None:
    assert {type(metric) for metric in CONFIGURED_METRICS.values()} == set(METRICS) - {FunctionConfig}, (
        "functions have own names"
    )


REFUSED_OPTIONS: list[tuple[type[Any], Options]] = [
    *((config, options) for config in WRITING_CONFIGS for options in (
        {"template": "no place"}, {"writer": " "}, {"model": ""}, {"max_tokens": 0}, {"temperature": -1.0},
        {"temperature": float("nan")},
    )),
    *((VqaScoreConfig, {"template": template}) for template in ("no place", "{} and {}", "")),
    *((VqaScoreConfig, {"answer": answer}) for answer in ("", "  ")),
    (VqaScoreConfig, {"answer": "Yes", "normalise": "yes_no"}),
    (VqaScoreConfig, {"reduction": "mean", "normalise": "yes_no"}),
    (VqaScoreConfig, {"prior": "blank_image"}), (GeckoConfig, {"prior": "blank_image", "likelihood": "nll"}),
    *((GeckoConfig, {name: value}) for name in ("threshold", "min_groundable") for value in (-0.1, 1.1, float("nan"))),
    (GeckoConfig, {"nli": ""}), (TifaConfig, {"min_f1": 1.5}), (TifaConfig, {"matcher": ""}),
    (Vq2Config, {"min_f1": 2}),
    (DsgConfig, {"questions": "released", "replies": "json"}), (VpevalConfig, {"box_threshold": 40}),
    (QuestionPackConfig, {"zeroing": "direct", "aggregate": "soft_mean"}),
    (QuestionPackConfig, {"aggregate": "soft_geometric", "answers": "reply"}),
    (QuestionPackConfig, {"template": "Is it so?"}),
    (LlmScoreConfig, {"max_tokens": 0}), (LlmScoreConfig, {"temperature": -1.0}),
    (LlmScoreConfig, {"caption_tokens": 0}),
]  # fmt: skip
"""Configuration classes of metrics, each with options that it refuses; the error names the first option."""


@pytest.mark.parametrize(("config", "options"), REFUSED_OPTIONS, ids=str)
def test_an_impossible_option_is_refused_with_its_name(config: type[Any], options: Options) -> None:
    with pytest.raises(ConfigError) as refused:
        config(**options)
    name, value = next(iter(options.items()))
    kind = config.__dataclass_fields__["kind"].default
    assert str(refused.value).startswith(f"{kind} ") and name in str(refused.value)
    assert len(options) > 1 or "expected" in str(refused.value) or str(value) in str(refused.value)


DIFFERING_RECIPES: list[tuple[Metric, Metric, set[str]]] = [
    *((GeckoConfig(), GeckoConfig(**options), {"score"}) for options in (
        {"normalise": False}, {"likelihood": "nll"}, {"reduction": "mean"}, {"threshold": 0.1})),
    *((GeckoConfig(), GeckoConfig(**options), {"question"}) for options in (
        {"coverage": False}, {"min_groundable": 0.1})),
    *((config(), config(**options), {"question"}) for config in WRITING_CONFIGS for options in (
        {"seed": 1}, {"max_tokens": 9})),
    *((config(), config(template="{}?", model="other", writer="other"), {"answer"}) for config in WRITING_CONFIGS),
    (DsgConfig(), DsgConfig(zeroing="recursive"), {"score"}),
    (Vq2Config(), Vq2Config(reduction="first"), {"score"}), (Vq2Config(), Vq2Config(min_f1=0.1), {"question"}),
    (Vq2Config(temperature=1.0), Vq2Config(temperature=1.0, convention="released"), {"question"}),
    (Vq2Config(temperature=1.0, convention="released"),
     Vq2Config(temperature=1.0, convention="released", min_f1=0.1), set()),
    (TifaConfig(), TifaConfig(filter=False), {"question"}), (TifaConfig(), TifaConfig(min_f1=0.5), {"question"}),
    (TifaConfig(filter=False), TifaConfig(filter=False, min_f1=0.5), set()),
    (TifaConfig(), TifaConfig(matcher="x"), set()),
    (VpevalConfig(), VpevalConfig(box_threshold=0.3), {"query"}),
    (VpevalConfig(), VpevalConfig(replies="json"), {"question"}),
    (LlmScoreConfig(), LlmScoreConfig(variant="error_counting"), {"verdict", "score"}),
    (SimilarityConfig(model="itm"), SimilarityConfig(model="itm", about="compares"), set()),
    (SimilarityConfig(model="clip"), SimilarityConfig(model="clip", compares="source"), {"similarity"}),
    (SimilarityConfig(model="itm"), SimilarityConfig(model="itm", measure="match"), {"similarity"}),
    (SimilarityConfig(model="itm"), SimilarityConfig(model="itm", pixels="padded"), {"similarity"}),
    (ClipScoreConfig(), ClipScoreConfig(variant="torchmetrics"), {"score"}),
    (ClipScoreConfig(), ClipScoreConfig(variant="original"), {"similarity", "score"}),
]  # fmt: skip
"""Pairs of metrics, each pair with the names of the recipes that differ between the two."""


def list_recipes(metric: Metric) -> Mapping[str, Any]:
    names = ("question", "answer", "query", "caption", "description", "verdict", "similarity", "score")
    return {
        name: getattr(metric, f"list_{name}_options")() for name in names if hasattr(metric, f"list_{name}_options")
    }


@pytest.mark.parametrize(("one", "other", "differ"), DIFFERING_RECIPES)
def test_an_option_only_enters_the_recipes_that_it_affects(one: Metric, other: Metric, differ: set[str]) -> None:
    first, second = list_recipes(one), list_recipes(other)
    assert {name for name in first if first[name] != second[name]} == differ


@pytest.mark.parametrize(
    ("metric", "roles"),
    [
        (GeckoConfig(writer="w", model="m", nli="n"), {"writer": "w", "model": "m", "nli": "n"}),
        (GeckoConfig(nli=None), {"writer": "llm", "model": "vqa"}),
        (TifaConfig(), {"writer": "llm", "model": "vqa", "matcher": "matcher"}),
        (DsgConfig(), {"writer": "llm", "model": "vqa"}),
        (Vq2Config(), {"writer": "llm", "model": "vqa"}),
        (SentenceMatchingConfig(measure="meteor"), {"captioner": "captioner"}),
    ],
)
def test_every_stage_has_its_role(metric: Metric, roles: Mapping[str, str]) -> None:
    assert metric.roles == roles


YES_NO_QUESTION = "is 'a' true for '{0} what?' in this image?"
REPLIES_BY_CONFIG: Mapping[type[Any], list[list[str]]] = {
    GeckoConfig: [["{1}[a, counting, 1.0] {2}[nowhere, entity, 1.0]"], ["About {2}:\nQ: is {0} there?\nA: yes"]],
    TifaConfig: [["Q: is {0} there?\nA: yes"], ["yes"]],
    DsgConfig: [["1 | global (x {0})"], ["1 | is {0} there?", "1 | 0"]],
    Vq2Config: [["a"], ["{0} what?"], ["a"]],
}
HOSTILE_TEXTS = ["{} a {0}", "a\n\nDescription:\nb", "About {1}:\nQ: a?\nA: no", "%s a \\1 \\g<0>",
           "a 1 | entity - whole (dog)",
           "is 'a' true for '{question}'", "[[(( a ```"]  # fmt: skip


@pytest.mark.parametrize("prompt", HOSTILE_TEXTS)
@pytest.mark.parametrize("config", WRITING_CONFIGS)
def test_prompts_and_replies_of_any_content_are_taken_literally(config: type[Any], prompt: str) -> None:
    written, rounds = run(config().write(prompt), *REPLIES_BY_CONFIG[config])
    described = f"Description:\n{' '.join(prompt.split())}\n"
    texts = [requests[0].messages[0].text for requests in rounds]
    assert described in texts[0] and (config is GeckoConfig or all(described in text for text in texts))
    assert [one.text for one in written] == [YES_NO_QUESTION if config is Vq2Config else "is {0} there?"]
