"""What models that read in batches share: how long a text may be, and batches of like length."""

import html
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from plumbline.operators.batches import BatchSize, out_of_memory

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


def clean(text: str) -> str:
    """The text as CLIP's released code reads it; single spaces are left to the tokenizer, which has no other way."""
    from ftfy import fix_text  # takes a tenth of a second to import, and only few models need it

    return html.unescape(html.unescape(fix_text(text))).strip().lower()


def in_batches(
    call: Callable[[Sequence[Input]], Sequence[Result]],
    inputs: Sequence[Input],
    sizes: Sequence[Any],
    *,
    size: BatchSize,
) -> list[Result]:
    """The call's result for every input, in their order; `size` inputs of like `sizes` go together.

    Where so many are out of memory, half as many go together from then on.
    """
    import torch

    left, before = sorted(range(len(inputs)), key=lambda index: sizes[index]), size.rows
    failed = len(left)
    results: dict[int, Result] = {}
    with torch.inference_mode():
        while left:
            before = size.rows if len(left) <= failed else before  # as in `in_windows`
            batch = left[: size.rows]
            try:
                results.update(zip(batch, call([inputs[index] for index in batch]), strict=True))
                left = left[len(batch) :]
            except Exception as error:
                if not out_of_memory(error):
                    raise
                failed = min(failed, len(left) - len(batch))
                size.shrink(len(batch), before)
                if len(batch) == 1:
                    raise
    return [results[index] for index in range(len(inputs))]
