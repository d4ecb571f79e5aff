"""Preparation of texts: maximum lengths, and CLIP's cleaning."""

import html
from typing import Any

UNLIMITED = 100_000
"""Tokenizers without a limit state a number larger than this."""
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl")
"""Models whose first position is the padding token's id plus one."""


def text_context(config: Any, tokenizer: Any) -> int | None:
    """Return the maximum tokens of a text, special ones included; None if neither model nor tokenizer has a limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and config.model_type in OFFSET_POSITIONS:
        positions -= config.pad_token_id + 1
    limits = [limit for limit in (positions, tokenizer.model_max_length) if limit is not None and 0 < limit < UNLIMITED]
    return int(min(limits)) if limits else None


def clean(text: str) -> str:
    """Return the text as CLIP's released code cleans it; the tokenizer treats runs of spaces as one."""
    from ftfy import fix_text  # takes a tenth of a second to import, and only few models need it

    return html.unescape(html.unescape(fix_text(text))).strip().lower()
