"""What models that read whole texts at once share: how long a text may be, and batches of texts of like length."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Text = TypeVar("Text")
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
    call: Callable[[Sequence[Text]], Sequence[Result]],
    texts: Sequence[Text],
    lengths: Sequence[int],
    *,
    size: int,
) -> list[Result]:
    """The call's result for every text, in their order; `size` texts of like length go together."""
    order = sorted(range(len(texts)), key=lambda index: lengths[index])
    found: dict[int, Result] = {}
    for first in range(0, len(order), size):
        batch = order[first : first + size]
        found.update(zip(batch, call([texts[index] for index in batch]), strict=True))
    return [found[index] for index in range(len(texts))]
