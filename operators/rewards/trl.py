"""A reward function of TRL's signature: how well images fit the texts that a policy writes about them.

Source: huggingface/trl, trl/trainer/grpo_trainer.py: it calls `reward_func(prompts=, completions=, completion_ids=,
**columns, trainer_state=)`, names it by `__name__`, and takes None as NaN, which enters no mean. modelscope/ms-swift
3602360, swift/rl_core/grpo_algorithm.py, does the same with the completions as the first argument.
"""

from collections.abc import Callable, Sequence
from typing import Any

from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.scoring.scorer import Scorer

TrlReward = Callable[..., list[float | None]]


def trl_reward(
    scorer: Scorer,
    metric: str,
    *,
    images: str = "image",
    texts: str = "completions",
    questions: str | None = None,
    sources: str | None = None,
) -> TrlReward:
    """Return a function for `reward_funcs` of TRL's trainers.

    `images` is the column with an image, or a list of images, for every completion. `texts` is the column that the
    images are compared with: `completions` for a policy that describes images, `prompts`, or another column.
    `questions` is the column with questions for a metric with a benchmark's own questions. `sources` is the column with
    the image that each was edited from, or a list of them.

    The reward is None if there is no score, and the negated score if a lower score of the metric is better. Raises
    ConfigError for a metric that the scorer does not have.
    """
    if metric not in scorer.metrics:
        raise ConfigError(f"metric: the scorer has none called {metric!r}; {suggest(metric, [*scorer.metrics])}")

    falling = scorer.metrics[metric].prefers_lower

    def reward(completions: Sequence[Any], prompts: Sequence[Any] = (), **columns: Any) -> list[float | None]:
        written = {"prompts": prompts, "completions": completions, **columns}
        for name in filter(None, (images, texts, questions, sources)):
            if name not in written:
                raise ConfigError(f"no column is called {name!r}; the trainer gives {', '.join(written)}")
        lists = written[questions] if questions is not None else None
        before = written[sources] if sources is not None else None
        asked = [_text(text) for text in written[texts]]
        table = scorer.score_table(written[images], asked, [metric], lists, before)
        scores: list[float | None] = table.column("score").to_pylist()
        return [-score if score is not None and falling else score for score in scores]

    reward.__name__ = metric
    return reward


def _text(written: Any) -> Any:
    """Return a text, or the text of a conversation's last message; anything else as it is, for the scorer to refuse."""
    try:
        content = written if isinstance(written, str) else written[-1]["content"]
        if isinstance(content, str):
            return content
        return "\n".join(part["text"] for part in content if part.get("type") == "text")
    except (LookupError, TypeError, AttributeError):
        return written
