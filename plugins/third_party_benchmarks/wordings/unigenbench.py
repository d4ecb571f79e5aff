"""UniGenBench++'s published prompts (CodeGoat24/UniGenBench at 49d0bce): one question about all checkpoints."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

from plumbline.operators.metrics.metric import Rating, Verdict
from plumbline.operators.metrics.wording import Checkout, PythonFile, Release, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, UnreadableReply, Writing, WrittenQuestion

MAX_TOKENS = 4096
"""Maximum number of tokens in a reply, as in upstream's eval_common.py and vllm_request.py."""
MAX_REQUEST_TRIES = 11
"""Maximum number of requests until a reply can be parsed, as in the same files."""


class Language(NamedTuple):
    """The published request to the judge in one language, from `LANG_CONFIGS` in eval_common.py."""

    template: str
    meanings: Mapping[str, str]
    """Meanings of checkpoints by name."""
    meanings_heading: str
    wanted_heading: str


@dataclass(frozen=True, slots=True)
class UniGenBenchRelease(Release):
    """UniGenBench++'s published requests to the judge, in English and Chinese, from eval/src/eval_common.py."""

    repository: ClassVar[str] = "CodeGoat24/UniGenBench"
    marker_file: ClassVar[str] = "eval/src/eval_common.py"
    fixed_options: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies")
    languages: tuple[Language, ...]

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code = checkout.parse_python(cls.marker_file)
        return cls(tuple(_read_language(code, name) for name in ("en", "zh")))

    def request_verdict(self, prompt: str, checkpoints: Sequence[WrittenQuestion], seed: int) -> Writing[Verdict]:
        """Ask for a verdict of 1 or 0 on each checkpoint, like upstream's `call_evaluation_vllm`.

        Question packs number the checkpoints of a prompt that have the same name. The numbers are removed, because
        upstream's prompts do not contain them.
        """
        names = [(checkpoint.kind or "").rstrip(" 0123456789") for checkpoint in checkpoints]
        language = next((each for each in self.languages if each.meanings.keys() >= {*names}), None)
        if language is None:
            unknown = next(name for name in names if all(name not in each.meanings for each in self.languages))
            raise UnreadableReply(f"the release does not define the checkpoint {unknown!r}")
        meanings = "".join(f"\n{name}: {language.meanings[name]}" for name in names)
        wanted = "".join(f"\n{name}: {each.text}" for name, each in zip(names, checkpoints, strict=True))
        places = {
            "prompt": prompt,
            "testpoint": str(names),
            "explanation": f"{language.meanings_heading}:「{meanings}\n」",
            "test_explanation": f"{language.wanted_heading}:「{wanted}\n」",
        }
        text = re.sub(r"\{(\w+)\}", lambda match: places[match[1]], language.template)
        request = ReplySampling(MAX_TOKENS, seed=seed).make_request(text, stop=())
        ((analyses, scores),) = yield from ask_as_released(
            [request], [partial(_parse_reply, len(names))], tries=MAX_REQUEST_TRIES
        )
        rated = zip(checkpoints, scores, strict=True)
        ratings = tuple(Rating(each.kind or each.text, float(score == 1)) for each, score in rated)
        return Verdict(ratings, " ".join(map(str, analyses)))


def _read_language(code: PythonFile, name: str) -> Language:
    suffix = name.upper()
    headings = code.read_texts_under("LANG_CONFIGS", name)
    if not {"checkpoint_header", "checkpoint_desc_header"} <= headings.keys():
        raise code.checkout.make_checkout_error(code.path, f"lacks the headings of the language {name} in LANG_CONFIGS")
    return Language(
        code.read_plain_string(f"SYSTEM_PROMPT_{suffix}_TEMPLATE"),
        code.read_literal(f"EXPLANATION_DICT_{suffix}"),
        headings["checkpoint_header"],
        headings["checkpoint_desc_header"],
    )


def _find_tagged_text(reply: str, tag: str) -> str | None:
    """Return the text between the first start tag and the next end tag, or None if a tag is missing."""
    _, _, behind = reply.partition(f"<{tag}>")
    text, end, _ = behind.partition(f"</{tag}>")
    return text if end else None


def _parse_reply(count: int, reply: str) -> list[list[Any]]:
    """Return the analyses and the scores in a reply: two Python lists within tags.

    Upstream's `parse_evaluation_response` does the same.
    """
    found = [_find_tagged_text(reply, tag) for tag in ("analysis", "score")]
    try:
        read = [list(ast.literal_eval(text.strip())) for text in found if text is not None]
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(
            f"expected Python lists within <analysis> and <score>, found other text ({type(error).__name__})"
        ) from error
    if [len(each) for each in read] != [count, count]:
        raise ValueError(
            f"expected lists with {count} entries in <analysis> and <score>, found {[*map(len, read)]} entries"
        )
    return read
