"""Restricts replies to a JSON schema: llguidance, which vLLM also uses, determines which tokens may come next."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import LogitsProcessor

from plumbline.operators.base.errors import ModelError, RowError, UnprocessableRowError
from plumbline.operators.base.extensions import explain_missing_extra

if TYPE_CHECKING:
    from llguidance import LLMatcher

SPACING_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

MAX_TOKEN_CHARACTERS = 200
"""Maximum length in characters of a token that llguidance accepts."""


def restrict_white_space(schema: str) -> str:
    """Return the schema, changed to allow only the white space that json.dumps writes.

    Otherwise, a model could write spaces forever.
    """
    return json.dumps({**json.loads(schema), "x-guidance": SPACING_OPTIONS})


class SchemaGrammars:
    """Compiler that turns JSON schemas into grammars over the tokens of a model's tokenizer."""

    def __init__(self, tokenizer: Any, *, end_ids: Sequence[int], width: int) -> None:
        """Read the tokenizer; raise ModelError if llguidance cannot read it, MissingExtraError if it is not installed.

        `end_ids` are the tokens that end a reply. `width` is the number of scores that the model computes per position.
        """
        with explain_missing_extra("judges", "enforcing a schema (replies=json)"):
            from llguidance import LLTokenizer
        self.end_ids = list(end_ids)
        try:
            self.tokens = LLTokenizer(_serialize_tokenizer(tokenizer), n_vocab=width, eos_token=self.end_ids)
        except (AttributeError, ValueError) as error:
            raise ModelError(
                f"{tokenizer.name_or_path}: no schema can be enforced with this tokenizer ({error}); add its "
                "tokenizer.json, or set the metric's replies=text"
            ) from error

    def make_matcher(self, schema: str) -> "LLMatcher":
        """Return a matcher for one reply. Raise UnprocessableRowError for a schema that cannot be enforced."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self.tokens, LLMatcher.grammar_from_json_schema(restrict_white_space(schema)))
        if matcher.is_error():
            reason = " ".join(matcher.get_error().split())[:300]
            raise UnprocessableRowError(RowError("request_refused", f"the schema cannot be enforced: {reason}"))
        return matcher


def _serialize_tokenizer(tokenizer: Any) -> str:
    """Return the tokenizer as JSON; tokens too long for llguidance are renamed, because no schema needs them."""
    fields = json.loads(tokenizer.backend_tokenizer.to_str())
    names = {
        token: f"<{number}>" for token, number in tokenizer.get_vocab().items() if len(token) > MAX_TOKEN_CHARACTERS
    }
    for added in fields["added_tokens"]:
        added["content"] = names.get(added["content"], added["content"])
    vocabulary = fields["model"]["vocab"]
    if isinstance(vocabulary, dict):
        fields["model"]["vocab"] = {names.get(token, token): number for token, number in vocabulary.items()}
    return json.dumps({**fields, "padding": None, "truncation": None})


class SchemaEnforcer(LogitsProcessor):  # type: ignore[misc]
    """Logits processor that restricts each row of a batch to tokens that keep the reply valid under its schema."""

    def __init__(self, grammars: SchemaGrammars, schemas: Sequence[str | None], *, start: int) -> None:
        """Compile each row's schema (None allows any reply); raise UnprocessableRowError if one cannot be enforced.

        `start` is the number of tokens before every reply.
        """
        self.end_ids = grammars.end_ids
        self.matchers = [None if schema is None else grammars.make_matcher(schema) for schema in schemas]
        self.start = start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores (n, vocabulary) with -inf for tokens that must not follow `input_ids` (n, length)."""
        allowed = np.ones(scores.shape, dtype=bool)
        for row, matcher in enumerate(self.matchers):
            if matcher is None:
                continue
            reply = input_ids[row, self.start :]
            if len(reply) and not matcher.is_stopped():
                matcher.consume_token(int(reply[-1]))  # the matcher has read the earlier tokens in earlier calls
            if matcher.is_stopped():  # the reply is complete, so only its end may follow
                allowed[row] = np.isin(np.arange(scores.shape[1]), self.end_ids)
            else:
                bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
                allowed[row] = np.unpackbits(bits, count=scores.shape[1], bitorder="little")
        return scores.masked_fill(~torch.from_numpy(allowed).to(scores.device), -torch.inf)
