"""Qwen-Image-Bench's release (QwenLM/Qwen-Image-Bench at b6b556b): one question for each dimension of a prompt.

Stability-AI/Qwen-Image-Bench continues its history and has shorter checklists at 88f6f78.
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
"""Limit from backends/ms_swift_backend.py, which includes the thinking tokens; the temperature is 0."""
DIMENSIONS = ("Quality", "Aesthetics", "Alignment", "Real-world Fidelity", "Creative Generation")
PICTURE = "<image>"
"""Placeholder for the image in a question."""
SLOT = re.compile(r"\{(prompt|level1_dim|format_checklist)\}|\{\{|\}\}")


class Marked(NamedTuple):
    """A facet and its mark."""

    dimension: str
    capability: str
    facet: str
    mark: int


@dataclass(frozen=True, slots=True)
class QwenImageBenchRelease(Release):
    """Checklists from checklists.py, and the capability of each facet from score_utils.py."""

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
        code, scores = checkout.python(cls.marker_file), checkout.python("score_utils.py")
        template = code.plain("USER_PROMPT_TEMPLATE")
        if PICTURE not in template:
            raise checkout.refusal(cls.marker_file, f"has no {PICTURE} in USER_PROMPT_TEMPLATE")
        names = {name: re.sub(r"\W", "_", name.upper()) for name in DIMENSIONS}
        checklists = {name: code.plain(f"{constant}_CHECKLIST") for name, constant in names.items()}
        places = scores.value("CHECKLIST_L3_TO_L2"), scores.value("L3_RENAME")
        return cls(code.plain("SYSTEM_PROMPT"), template, checklists, *places)

    def inspect(self, prompt: str, dimensions: Sequence[tuple[str, str]], seed: int) -> Writing[list[Marked]]:
        """Ask for the marks in each dimension separately; `dimensions` are pairs of key and name (judge.py)."""
        sampling = ReplySampling(MAX_TOKENS, seed=seed)
        requests = []
        for _, name in dimensions:
            text, place = self._question(prompt, name)
            requests.append(sampling.request(text, stop=())._replace(system=self.system, image_at=place))
        readers = [partial(self._read, key, name) for key, name in dimensions]
        read = yield from ask_as_released(requests, readers)
        return [marked for of_dimension in read for marked in of_dimension]

    def _question(self, prompt: str, dimension: str) -> tuple[str, int]:
        """Return the question about a dimension, and the position of the image in it."""
        given = {"prompt": prompt, "level1_dim": dimension, "format_checklist": self.checklists[dimension]}
        before, after = (
            SLOT.sub(lambda match: given[match[1]] if match[1] else match[0][0], part)
            for part in self.template.split(PICTURE, 1)
        )
        return before + after, len(before)

    def _read(self, key: str, dimension: str, reply: str) -> list[Marked]:
        """Return the facets that have a mark, with the capabilities that they belong to (fix_score_json, map_score)."""
        capabilities, renamed = self.capabilities[dimension], self.renamed.get(dimension, {})
        found: dict[str, dict[str, Any]] = {}
        for group, facet, value in _facets(_object(reply)):
            facet = renamed.get(facet, facet)
            found.setdefault(capabilities.get(facet, group), {})[facet] = value
        marks = ((group, facet, _mark(value)) for group, facets in found.items() for facet, value in facets.items())
        return [Marked(key, group.replace(":", " "), facet, mark) for group, facet, mark in marks if mark is not None]


def _object(reply: str) -> Mapping[str, Any]:
    """Return the JSON object that follows the thoughts in a reply (extract_json_from_response)."""
    text = reply.rpartition("</think>")[2].strip()
    try:
        found = json.loads(text)
    except ValueError:
        start, end = text.find("{"), text.rfind("}")
        found = json.loads(text[start : end + 1]) if 0 <= start < end else None
    if not isinstance(found, dict):
        raise ValueError("expected an object of marks")
    return found


def _facets(found: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Return capability, facet and value of each facet, whether or not facets are grouped by capability."""
    first = next(iter(found.values()), None)
    if isinstance(first, dict) and "score" in first:
        return [(facet, facet, value) for facet, value in found.items()]
    groups = {group: facets for group, facets in found.items() if isinstance(facets, dict)}
    return [(group, facet, value) for group, facets in groups.items() for facet, value in facets.items()]


def _mark(value: Any) -> int | None:
    """Return 0, 1 or 2, or None for N/A and, as in the release, for anything else."""
    raw: Any = value.get("score") if isinstance(value, dict) else value
    try:
        mark = int(raw)
    except (TypeError, ValueError):
        return None
    return mark if mark in (0, 1, 2) else None
