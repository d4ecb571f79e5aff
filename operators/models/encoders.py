"""What models that read in batches share: how long a text may be, and batches of like length."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Input = TypeVar("Input")
Result = TypeVar("Result")

UNLIMITED = 100_000
"""Tokenizers say a number beyond this where they know of no limit."""
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl")
"""Models whose first position is the padding token's id plus one."""


def context_of(config: Any, tokenizer: Any) -> int | None:
    """How many tokens a text may have, special tokens included; None where neither the model nor the tokenizer says."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and config.model_type in OFFSET_POSITIONS:
        positions -= config.pad_token_id + 1
    limits = [limit for limit in (positions, tokenizer.model_max_length) if limit is not None and 0 < limit < UNLIMITED]
    return int(min(limits)) if limits else None


def in_batches(
    call: Callable[[Sequence[Input]], Sequence[Result]],
    inputs: Sequence[Input],
    sizes: Sequence[Any],
    *,
    size: int,
) -> list[Result]:
    """The call's result for every input, in their order; `size` inputs of like `sizes` go together."""
    import torch

    order = sorted(range(len(inputs)), key=lambda index: sizes[index])
    results: dict[int, Result] = {}
    with torch.inference_mode():
        for first in range(0, len(order), size):
            batch = order[first : first + size]
            results.update(zip(batch, call([inputs[index] for index in batch]), strict=True))
    return [results[index] for index in range(len(inputs))]
