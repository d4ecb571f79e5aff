"""A reward function for TRL: it scores how well images match the texts that a policy writes about them.

TRL (trl/trainer/grpo_trainer.py) calls `reward_func(prompts=, completions=, completion_ids=, **columns,
trainer_state=)`, uses `__name__` as the function's name, and excludes None from means. modelscope/ms-swift 3602360
(swift/rl_core/grpo_algorithm.py) does the same, but passes the completions as the first argument.
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
    """Return a reward function for the `reward_funcs` option of TRL's trainers.

    The reward is None if the score is missing, and the negated score if lower scores are better for this metric.

    Args:
        scorer: The scorer.
        metric: One of the scorer's metrics.
        images: Column with an image, or a list of images, for each completion.
        texts: Column with the texts: `completions` for a policy that describes images, `prompts`, or another column.
        questions: Column with questions, for a metric that uses a benchmark's own questions.
        sources: Column with the image, or list of images, from which each image was edited.

    Raises:
        ConfigError: The scorer has no such metric, or the name of a column is not text. The function raises it, too, if
            the trainer does not pass one of the columns.
    """
    if not isinstance(metric, str) or metric not in scorer.metrics:
        raise ConfigError(f"metric: the scorer has no metric {metric!r}; {suggest(metric, [*scorer.metrics])}")
    optional = {"questions": questions, "sources": sources}
    named = {"images": images, "texts": texts} | {key: column for key, column in optional.items() if column is not None}
    for option, column in named.items():
        if not isinstance(column, str) or not column:
            raise ConfigError(f"{option}: expected the name of a column, got {column!r}")

    def compute_reward(completions: Sequence[Any], prompts: Sequence[Any] = (), **columns: Any) -> list[float | None]:
        columns |= {"prompts": prompts, "completions": completions}
        for name in named.values():
            if name not in columns:
                raise ConfigError(f"no column is called {name!r}; choose one of {', '.join(columns)}")
        table = scorer.score_table(
            columns[images],
            [_extract_text(text) for text in columns[texts]],
            [metric],
            columns[questions] if questions is not None else None,
            columns[sources] if sources is not None else None,
        )
        scores: list[float | None] = table.column("score").to_pylist()
        return [-score if score is not None and scorer.metrics[metric].prefers_lower else score for score in scores]

    compute_reward.__name__ = metric
    return compute_reward


def _extract_text(value: Any) -> Any:
    """Return a string, or the text of a conversation's last message; return other values for the scorer to reject."""
    try:
        content = value if isinstance(value, str) else value[-1]["content"]
        if isinstance(content, str):
            return content
        return "\n".join(part["text"] for part in content if part.get("type") == "text")
    except (LookupError, TypeError, AttributeError):
        return value
