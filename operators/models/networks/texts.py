"""How models read texts: how long one may be, and what CLIP makes of one first."""

import html
from typing import Any

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
