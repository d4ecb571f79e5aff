"""Qwen-Image-Bench's published prompts (QwenLM/Qwen-Image-Bench at b6b556b): one question per dimension.

Stability-AI/Qwen-Image-Bench, at 88f6f78, is a later fork with shorter checklists.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

from plumbline.operators.metrics.wording import Checkout, Release, ask_as_released
from plumbline.operators.metrics.writing import ReplySampling, Writing

MAX_TOKENS = 4096
"""Token limit from backends/ms_swift_backend.py; thoughts count. The temperature there is 0."""
DIMENSION_NAMES = ("Quality", "Aesthetics", "Alignment", "Real-world Fidelity", "Creative Generation")
IMAGE_PLACEHOLDER = "<image>"
"""Placeholder for the image in a question."""
PLACEHOLDER_PATTERN = re.compile(r"\{(prompt|level1_dim|format_checklist)\}|\{\{|\}\}")


class FacetMark(NamedTuple):
    """A facet of image quality, and the judge's mark for it."""

    dimension: str
    capability: str
    facet: str
    mark: int


@dataclass(frozen=True, slots=True)
class QwenImageBenchRelease(Release):
    """Qwen-Image-Bench's published checklists (checklists.py), and the capability of each facet (score_utils.py)."""

    repository: ClassVar[str] = "QwenLM/Qwen-Image-Bench"
    marker_file: ClassVar[str] = "checklists.py"
    fixed_options: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies")
    system: str
    template: str
    checklists: Mapping[str, str]
    capabilities: Mapping[str, Mapping[str, str]]
    """Capabilities by dimension and facet."""
    renamed: Mapping[str, Mapping[str, str]]
    """Facet names by the alternative names that the judge uses, by dimension."""

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code, scores = checkout.parse_python(cls.marker_file), checkout.parse_python("score_utils.py")
        template = code.read_plain_string("USER_PROMPT_TEMPLATE")
        if IMAGE_PLACEHOLDER not in template:
            raise checkout.make_checkout_error(
                cls.marker_file, f"has a USER_PROMPT_TEMPLATE without the placeholder {IMAGE_PLACEHOLDER} of the image"
            )
        names = {name: re.sub(r"\W", "_", name.upper()) for name in DIMENSION_NAMES}
        checklists = {name: code.read_plain_string(f"{constant}_CHECKLIST") for name, constant in names.items()}
        places = scores.read_literal("CHECKLIST_L3_TO_L2"), scores.read_literal("L3_RENAME")
        return cls(code.read_plain_string("SYSTEM_PROMPT"), template, checklists, *places)

    def request_marks(self, prompt: str, dimensions: Sequence[tuple[str, str]], seed: int) -> Writing[list[FacetMark]]:
        """Ask for the marks in each dimension separately, like judge.py; a dimension is a pair of key and name."""
        sampling = ReplySampling(MAX_TOKENS, seed=seed)
        requests = []
        for _, name in dimensions:
            text, place = self._make_question(prompt, name)
            requests.append(sampling.make_request(text, stop=())._replace(system=self.system, image_at=place))
        readers = [partial(self._parse_reply, key, name) for key, name in dimensions]
        read = yield from ask_as_released(requests, readers)
        return [marked for of_dimension in read for marked in of_dimension]

    def _make_question(self, prompt: str, dimension: str) -> tuple[str, int]:
        """Return the question about a dimension, and the position of the image in it."""
        given = {"prompt": prompt, "level1_dim": dimension, "format_checklist": self.checklists[dimension]}
        before, after = (
            PLACEHOLDER_PATTERN.sub(lambda match: given[match[1]] if match[1] else match[0][0], part)
            for part in self.template.split(IMAGE_PLACEHOLDER, 1)
        )
        return before + after, len(before)

    def _parse_reply(self, key: str, dimension: str, reply: str) -> list[FacetMark]:
        """Return the facets that have a mark, with their capabilities.

        Upstream does the same in `fix_score_json` and `map_score`.
        """
        capabilities, renamed = self.capabilities[dimension], self.renamed.get(dimension, {})
        found: dict[str, dict[str, Any]] = {}
        for group, facet, value in _list_facets(_parse_object(reply)):
            facet = renamed.get(facet, facet)
            found.setdefault(capabilities.get(facet, group), {})[facet] = value
        marks = (
            (group, facet, _parse_mark(value)) for group, facets in found.items() for facet, value in facets.items()
        )
        return [
            FacetMark(key, group.replace(":", " "), facet, mark) for group, facet, mark in marks if mark is not None
        ]


def _parse_object(reply: str) -> Mapping[str, Any]:
    """Return the JSON object that follows the thoughts in a reply, like upstream's `extract_json_from_response`.

    Raises ValueError if there is no object.
    """
    text = reply.rpartition("</think>")[2].strip()
    try:
        found = json.loads(text)
    except ValueError:
        start, end = text.find("{"), text.rfind("}")
        found = json.loads(text[start : end + 1]) if 0 <= start < end else None
    if not isinstance(found, dict):
        raise ValueError("expected a JSON object with marks, found none")
    return found


def _list_facets(found: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Return the capability, name and value of each facet; a facet outside any group is its own capability."""
    first = next(iter(found.values()), None)
    if isinstance(first, dict) and "score" in first:
        return [(facet, facet, value) for facet, value in found.items()]
    groups = {group: facets for group, facets in found.items() if isinstance(facets, dict)}
    return [(group, facet, value) for group, facets in groups.items() for facet, value in facets.items()]


def _parse_mark(value: Any) -> int | None:
    """Return a mark of 0, 1 or 2; like upstream, return None for N/A and any other value."""
    raw: Any = value.get("score") if isinstance(value, dict) else value
    try:
        mark = int(raw)
    except (TypeError, ValueError):
        return None
    return mark if mark in (0, 1, 2) else None
