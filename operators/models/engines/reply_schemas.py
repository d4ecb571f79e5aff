"""Replies that a JSON schema leaves no choice: which tokens may follow, told by llguidance, in vLLM too."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from transformers import LogitsProcessor

from plumbline.operators.base.errors import HopelessRow, ModelError, RowError

SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

LONGEST_TOKEN = 200
"""Characters."""


def spaced(schema: str) -> str:
    """The schema with replies' spaces, with which a model could go on for ever, only where json.dumps puts them."""
    return json.dumps({**json.loads(schema), "x-guidance": SPACING})


class SchemaGrammars:
    """The schemas that a model's replies may be held to, in the tokens of its tokenizer."""

    def __init__(self, tokenizer: Any, *, end_ids: Sequence[int], width: int) -> None:
        """`end_ids` are the tokens that end a reply; `width` is that of the model's scores.

        Raises ModelError for a tokenizer that llguidance cannot read.
        """
        self.end_ids = list(end_ids)
        try:
            self.tokens = LLTokenizer(_written(tokenizer), n_vocab=width, eos_token=self.end_ids)
        except (AttributeError, ValueError) as error:
            raise ModelError(
                f"{tokenizer.name_or_path}: no schema can be enforced with this tokenizer ({error}); add its "
                "tokenizer.json, or set the metric's replies=text"
            ) from error

    def matcher(self, schema: str) -> LLMatcher:
        """What follows one reply; raises HopelessRow for a schema that cannot be enforced."""
        matcher = LLMatcher(self.tokens, LLMatcher.grammar_from_json_schema(spaced(schema)))
        if matcher.is_error():
            reason = " ".join(matcher.get_error().split())[:300]
            raise HopelessRow(RowError("request_refused", f"the schema cannot be enforced: {reason}"))
        return matcher


def _written(tokenizer: Any) -> str:
    """A tokenizer as its tokenizer.json, tokens too long for llguidance, which no schema asks for, by other names."""
    whole = json.loads(tokenizer.backend_tokenizer.to_str())
    names = {token: f"<{number}>" for token, number in tokenizer.get_vocab().items() if len(token) > LONGEST_TOKEN}
    for added in whole["added_tokens"]:
        added["content"] = names.get(added["content"], added["content"])
    vocabulary = whole["model"]["vocab"]
    if isinstance(vocabulary, dict):
        whole["model"]["vocab"] = {names.get(token, token): number for token, number in vocabulary.items()}
    return json.dumps({**whole, "padding": None, "truncation": None})


class SchemaEnforcement(LogitsProcessor):  # type: ignore[misc]
    """Leaves each row of a batch the tokens by which its reply can fit its schema."""

    def __init__(self, grammars: SchemaGrammars, schemas: Sequence[str | None], *, start: int) -> None:
        """One schema for each row, None where any reply will do; `start` tokens stand before every reply.

        Raises HopelessRow for a schema that cannot be enforced.
        """
        self.end_ids = grammars.end_ids
        self.matchers = [None if schema is None else grammars.matcher(schema) for schema in schemas]
        self.start = start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores (n, vocabulary) of the tokens that may follow `input_ids` (n, length), the others' -inf."""
        allowed = np.ones(scores.shape, dtype=bool)
        for row, matcher in enumerate(self.matchers):
            if matcher is not None:
                allowed[row] = self._allowed(matcher, input_ids[row, self.start :], scores.shape[1])
        return scores.masked_fill(~torch.from_numpy(allowed).to(scores.device), -torch.inf)

    def _allowed(self, matcher: LLMatcher, reply: torch.Tensor, width: int) -> np.ndarray:
        """Which tokens (width,) may follow the reply so far, of which the matcher has seen all but the last."""
        if len(reply) and not matcher.is_stopped():
            matcher.consume_token(int(reply[-1]))
        if matcher.is_stopped():  # nothing can follow: the reply is whole
            return np.isin(np.arange(width), self.end_ids)
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, count=width, bitorder="little").astype(bool)
