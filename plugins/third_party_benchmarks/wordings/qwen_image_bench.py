"""Qwen-Image-Bench's release (QwenLM/Qwen-Image-Bench at b6b556b): one question about each dimension of a prompt.

Stability-AI/Qwen-Image-Bench continues its history, and at 88f6f78 has shorter checklists.
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
"""Value of backends/ms_swift_backend.py, including the thoughts, at temperature 0."""
DIMENSIONS = ("Quality", "Aesthetics", "Alignment", "Real-world Fidelity", "Creative Generation")
PICTURE = "<image>"
"""Placeholder of the image in a question."""
SLOT = re.compile(r"\{(prompt|level1_dim|format_checklist)\}|\{\{|\}\}")


class Marked(NamedTuple):
    """A facet with its mark."""

    dimension: str
    capability: str
    facet: str
    mark: int


@dataclass(frozen=True, slots=True)
class QwenImageBenchRelease(Release):
    """The checklists in checklists.py, and the place of each facet in score_utils.py."""

    repository: ClassVar[str] = "QwenLM/Qwen-Image-Bench"
    mark: ClassVar[str] = "checklists.py"
    decides: ClassVar[tuple[str, ...]] = ("max_tokens", "temperature", "replies")
    system: str
    template: str
    checklists: Mapping[str, str]
    capabilities: Mapping[str, Mapping[str, str]]
    """Capabilities by dimension and facet."""
    renamed: Mapping[str, Mapping[str, str]]
    """Names of facets by the other names that the judge uses, by dimension."""

    @classmethod
    def read(cls, checkout: Checkout) -> Self:
        code, scores = checkout.python(cls.mark), checkout.python("score_utils.py")
        template = code.plain("USER_PROMPT_TEMPLATE")
        if PICTURE not in template:
            raise checkout.refusal(cls.mark, f"has no {PICTURE} in USER_PROMPT_TEMPLATE")
        names = {name: re.sub(r"\W", "_", name.upper()) for name in DIMENSIONS}
        checklists = {name: code.plain(f"{constant}_CHECKLIST") for name, constant in names.items()}
        places = scores.value("CHECKLIST_L3_TO_L2"), scores.value("L3_RENAME")
        return cls(code.plain("SYSTEM_PROMPT"), template, checklists, *places)

    def inspect(self, prompt: str, dimensions: Sequence[tuple[str, str]], seed: int) -> Writing[list[Marked]]:
        """Ask once for the marks in each dimension, given by key and name (judge.py)."""
        sampling = ReplySampling(MAX_TOKENS, seed=seed)
        requests = []
        for _, name in dimensions:
            text, place = self._question(prompt, name)
            requests.append(sampling.request(text, stop=())._replace(system=self.system, image_at=place))
        readers = [partial(self._read, key, name) for key, name in dimensions]
        read = yield from ask_as_released(requests, readers)
        return [marked for of_dimension in read for marked in of_dimension]

    def _question(self, prompt: str, dimension: str) -> tuple[str, int]:
        """Return the text about a dimension, and the position of the image in it."""
        given = {"prompt": prompt, "level1_dim": dimension, "format_checklist": self.checklists[dimension]}
        before, after = (
            SLOT.sub(lambda match: given[match[1]] if match[1] else match[0][0], part)
            for part in self.template.split(PICTURE, 1)
        )
        return before + after, len(before)

    def _read(self, key: str, dimension: str, reply: str) -> list[Marked]:
        """Return each facet that has a mark, with the capability that it belongs to (fix_score_json, map_score)."""
        capabilities, renamed = self.capabilities[dimension], self.renamed.get(dimension, {})
        found: dict[str, dict[str, Any]] = {}
        for group, facet, value in _facets(_object(reply)):
            facet = renamed.get(facet, facet)
            found.setdefault(capabilities.get(facet, group), {})[facet] = value
        marks = ((group, facet, _mark(value)) for group, facets in found.items() for facet, value in facets.items())
        return [Marked(key, group.replace(":", " "), facet, mark) for group, facet, mark in marks if mark is not None]


def _object(reply: str) -> Mapping[str, Any]:
    """Return the object after a reply's thoughts (extract_json_from_response)."""
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
    """Return capability, facet and value, whether the facets are grouped by capability or not."""
    first = next(iter(found.values()), None)
    if isinstance(first, dict) and "score" in first:
        return [(facet, facet, value) for facet, value in found.items()]
    groups = {group: facets for group, facets in found.items() if isinstance(facets, dict)}
    return [(group, facet, value) for group, facets in groups.items() for facet, value in facets.items()]


def _mark(value: Any) -> int | None:
    """Return 0, 1 or 2; None for N/A and, as in the release, for anything else."""
    raw: Any = value.get("score") if isinstance(value, dict) else value
    try:
        mark = int(raw)
    except (TypeError, ValueError):
        return None
    return mark if mark in (0, 1, 2) else None
